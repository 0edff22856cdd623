"""Matrix loads and stores: ldmatrix, stmatrix; raw movmatrix.

Contract: docs/contract/ldmatrix_stmatrix.md. Not here: which spellings exist
(``ptx.tables.ldmatrix_stmatrix``).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.errors import Report
from tilejit.ir import build, nodes
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile import contracts
from tilejit.tile.addresses import Providers, memory_operands
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import Elsewhere, Family, Issue, Machine, Step
from tilejit.tile.fragments import LANES, Fragment, collective, fragment_registers, laid_fragment
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/ldmatrix_stmatrix.md"

# --- operands
#
# dst_registers, src_shared for ldmatrix; dst_shared, src_registers for stmatrix. Both are
# (*group, *repeat, matrix, row, word) = (count, 8, 4) b32 words.

ROWS, WORDS = 8, 4
ROW_BYTES = 16


def _form(call: TileCall) -> Form:
    """One spelling is one form."""
    return call.forms[0]


def _count(form: Form) -> int:
    """Matrices, and b32 registers of a lane."""
    return next(spec.lanes for spec in form.operands if spec.kind == "reg")


@cache
def _owners(count: int) -> Fragment:
    """Word (matrix, row, word) is register ``matrix`` of lane 4·row + word."""
    atom = (count, ROWS, WORDS)
    return Fragment.of(atom, count, lambda lane, register: (register, lane // 4, lane % 4))


@cache
def _providers(count: int) -> Providers:
    """Lane 8·matrix + row gives the row's address; the lanes beyond repeat the valid ones."""
    lane = np.arange(LANES)
    elements = lane // ROWS % count * (ROWS * WORDS) + lane % ROWS * WORDS
    lane_id = nodes.HardwareId("laneid")
    matrix = build.bitand(
        build.shr(lane_id, build.const(3, dtypes.int32)), build.const(count - 1, dtypes.int32)
    )
    row = build.bitand(lane_id, build.const(ROWS - 1, dtypes.int32))
    index = (matrix, row, build.const(0, dtypes.int32))
    return Providers(elements, index, ROWS * count, ROW_BYTES)


# --- legality


def check(call: TileCall, report: Report) -> None:
    form = _form(call)
    if not _check_order(call, form, report) or not collective(call, report):
        return
    walks = [
        laid
        for spec, operand in zip(form.operands, call.operands)
        if (laid := _check_operand(call, form, spec, operand, report)) is not None
    ]
    if len(walks) == 2:
        contracts.repeats_agree(call, walks, report)


def _check_order(call: TileCall, form: Form, report: Report) -> bool:
    """Two operands, memory and registers not exchanged."""
    names = [spec.name for spec in form.operands]
    if len(call.operands) != 2:
        count = len(call.operands)
        report.error(
            "ldmatrix_stmatrix/operand-count",
            f"{call.spelling} was given {count} operand{'s' * (count != 1)}, it takes 2: "
            f"{', '.join(names)}",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
        return False
    given = [o.space for o in call.operands if isinstance(o, TensorOperand)]
    if given == ["local" if spec.kind == "addr" else "shared" for spec in form.operands]:
        report.error(
            "ldmatrix_stmatrix/operand-order",
            f"{call.spelling} takes {', '.join(names)}, got a {given[0]} tensor and then a "
            f"{given[1]} one",
            span=call.span, contract=CONTRACT, help="exchange them: the destination is first",
        )  # fmt: skip
        return False
    return True


def _check_operand(
    call: TileCall,
    form: Form,
    spec: OperandSpec,
    operand: TensorOperand | ScalarOperand,
    report: Report,
) -> Walk | None:
    if not contracts.is_tensor(operand, call, report):
        return None
    memory = spec.kind == "addr"
    if not contracts.in_space(call, operand, ("shared" if memory else "local",), report):
        return None
    if not types.accepts(spec, operand.dtype):
        report.error(
            "ldmatrix_stmatrix/operand-type",
            f"{operand.name} of {form.spelling} is {operand.dtype} ({operand.dtype.bits} bits), "
            "expected b32 words of two 16-bit values",
            span=operand.span,
            declared=operand.declared(),
            contract=CONTRACT,
            help='.view("uint32") shows the same bits as b32 words',
        )
        return None
    count = _count(form)
    if not memory:
        written = "w" in spec.direction
        return laid_fragment(call, operand, _owners(count), report, written=written)
    laid = contracts.shaped(call, operand, (count, ROWS, WORDS), report, collective=True)
    if laid is None:
        return None
    right = contracts.chunks(call, laid, ROW_BYTES, report, row=WORDS)
    if right and "w" in spec.direction:
        right = _rows_apart(call, laid, report)
    return laid if right else None


def _rows_apart(call: TileCall, laid: Walk, report: Report) -> bool:
    """The rows that one stmatrix writes are distinct: nothing says which of two writes stays."""
    if any(bool((index != index[..., :1]).any()) for _, index in laid.dynamic):
        return True
    # A swizzle that cannot be applied yet keeps distinct rows distinct.
    starts = laid.places[:, :, ::WORDS]
    order = np.argsort(starts, axis=2, kind="stable")
    same = np.diff(np.take_along_axis(starts, order, axis=2), axis=2) == 0
    if not same.any():
        return True
    at, repeat, place = (int(i) for i in np.argwhere(same)[0])
    first, second = (int(row) * WORDS for row in order[at, repeat, place : place + 2])
    report.error(
        "ldmatrix_stmatrix/overlap",
        f"{laid.operand.name}: {laid.coordinate(repeat, first)} and "
        f"{laid.coordinate(repeat, second)} are one row of 16 bytes, and one instruction writes both",
        span=laid.operand.span,
        declared=laid.operand.declared(),
        contract=CONTRACT,
        help="rows that are loaded may lie in one place, rows that are stored are distinct",
    )
    return False


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """For each repeat one instruction: every lane's row address, ``count`` registers in matrix order."""
    form = _form(call)
    first, second = call.walk_of(0), call.walk_of(1)
    load = form.mnemonic == "ldmatrix"
    local, shared = (first, second) if load else (second, first)
    count = _count(form)
    lets, places = memory_operands(call, shared, _providers(count))
    values = fragment_registers(local, _owners(count))
    steps: list[Step] = list(lets)
    for place, registers, repeat in zip(places, values, shared.repeat_coordinates()):
        operands = (registers, place) if load else (place, registers)
        steps.append(Issue(form, operands, repeat=repeat, span=call.span))
    return steps


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Rows of 16 bytes at the first 8·count lanes' addresses are spread over all lanes, 4 bytes each."""
    form = issue.form
    if form.mnemonic == "movmatrix":
        (word,) = machine.read(issue.operands[1])
        whole = np.broadcast_to(word, machine.active().shape).astype(np.uint32)
        machine.write(issue.operands[0], [_words(whole.reshape(-1, 1, LANES), True)[:, 0]])
    elif form.mnemonic == "ldmatrix":
        _load(issue, machine, _count(form), "trans" in form.modifiers)
    else:
        _store(issue, machine, _count(form), "trans" in form.modifiers)


def _load(issue: Issue, machine: Machine, count: int, transposed: bool) -> None:
    """A row is read for the lanes that receive it. Its provider and one receiver stand for all: what
    another thread does to the row unordered races with the provider, what the provider does itself
    with the receiver."""
    registers, memory = issue.operands
    provided = np.arange(LANES) < ROWS * count
    rows = machine.load(memory, ROW_BYTES, provided)[:, : ROWS * count]
    receiving, rows_of = _receivers(count, transposed)
    machine.load(memory, ROW_BYTES, receiving, Elsewhere(rows_of, np.zeros_like(rows_of)))
    words = _words(np.ascontiguousarray(rows).view("<u4").reshape(-1, count, LANES), transposed)
    machine.write(registers, [words[:, i] for i in range(count)])


@cache
def _receivers(count: int, transposed: bool) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
    """For each row a lane that receives some of it and does not provide it, all different: which
    lanes those are, and whose row each is."""
    receiving, rows = np.zeros(LANES, np.bool_), np.zeros(LANES, np.int64)
    for matrix in range(count):
        for row in range(ROWS):
            lane = 4 * row + (matrix ^ 1)
            if transposed:  # column c of the row goes to lane 4·c + row // 2
                lane = 4 * (2 * matrix + 1 - row % 2) + row // 2
            receiving[lane], rows[lane] = True, ROWS * matrix + row
    return receiving, rows


def _store(issue: Issue, machine: Machine, count: int, transposed: bool) -> None:
    """Each lane writes its words, or with .trans the halves of its words, into the rows."""
    memory, registers = issue.operands
    shape = machine.active().shape
    lane = np.arange(LANES, dtype=np.int64)
    machine.check_aligned(memory, ROW_BYTES, lane < ROWS * count)
    for matrix, register in enumerate(machine.read(registers)):
        word = np.broadcast_to(register, shape).astype("<u4")
        data = word.view(np.uint8).reshape(*shape, 4)
        first = ROWS * matrix
        if not transposed:
            machine.store(memory, data, at=Elsewhere(first + lane // 4, 4 * (lane % 4)))
            continue
        for half in range(2):
            rows = first + 2 * (lane % 4) + half
            part = data[..., 2 * half : 2 * half + 2]
            machine.store(memory, part, at=Elsewhere(rows, 2 * (lane // 4)))


def _words(words: npt.NDArray[np.uint32], transposed: bool) -> npt.NDArray[np.uint32]:
    """Matrices (warps, count, 32 words) of 8×8 b16, each transposed or as it is."""
    if not transposed:
        return words
    matrices = words.view("<u2").reshape(*words.shape[:2], ROWS, ROWS)
    return np.ascontiguousarray(matrices.swapaxes(2, 3)).view("<u4").reshape(words.shape)


FAMILY = Family(
    name="ldmatrix_stmatrix", params=(), check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT, providers=lambda form: _providers(_count(form)),
)  # fmt: skip
