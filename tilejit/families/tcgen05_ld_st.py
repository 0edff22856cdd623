"""Loads and stores of tensor memory by a warp: tcgen05.ld, tcgen05.st.

Contract: docs/contract/tcgen05_ld_st.md. Not here: which spellings exist (``ptx.tables.tcgen05_ld_st``),
waits, fences and allocation (``families.tcgen05``), lanes and columns of an operand (``tile.tensor_memory``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilejit.errors import Report
from tilejit.ir.tensor_memory import CELL_BITS, LANE_SHIFT, SLAB_LANES, SLABS
from tilejit.ptx.forms import Form
from tilejit.tile import contracts, tensor_memory
from tilejit.tile.addresses import memory_operands
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.family import (
    BitArray,
    Family,
    Immediate,
    Issue,
    Machine,
    Memory,
    NativeOperand,
    Param,
    Registers,
    Step,
    WarpCells,
)
from tilejit.tile.fragments import LANES, Fragment, collective, fragment_registers, laid_fragment
from tilejit.tile.region import Walk
from tilejit.tile.register_budget import OTHER_REGISTERS, at_launch

CONTRACT = "docs/contract/tcgen05_ld_st.md"

# --- parameters

PARAMS = (
    Param(
        "imm_half_splitoff", "static", "int", None,
        "16x32bx2 only: what the second access adds to the address of the first.",
    ),
)  # fmt: skip

# --- operands
#
# registers, tmem for ld; tmem, registers for st; 16x32bx2 has tmem_low, tmem_high in place of tmem.
# Registers are (*group, *repeat, row, column) of b32 words, of 16x32bx2 (…, access, row, column). Tensor
# memory is (*group, *repeat, row, column) of cells, with pack or unpack (…, row, column, half) of 16 bits.

HALF_BITS = CELL_BITS // 2


class Shape(NamedTuple):
    """A shape of the opcode with .x1: rows and columns of words, registers of a lane, and which word
    lane ``t`` has in register ``r``."""

    rows: int
    columns: int
    registers: int
    coordinate: Callable[[int, int], tuple[int, ...]]
    accesses: int = 1


SHAPES: dict[str, Shape] = {
    "32x32b": Shape(32, 1, 1, lambda t, r: (t, r)),
    "16x64b": Shape(16, 2, 1, lambda t, r: (t // 4 + 8 * (t % 2), t // 2 % 2 + 2 * r)),
    "16x128b": Shape(16, 4, 2, lambda t, r: (t // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2))),
    "16x256b": Shape(
        16, 8, 4, lambda t, r: (t // 4 + 8 * (r // 2 % 2), r % 2 + 2 * (t % 4) + 8 * (r // 4))
    ),
    "16x32bx2": Shape(16, 1, 1, lambda t, r: (t // 16, t % 16, r), accesses=2),
}  # fmt: skip


class Image(NamedTuple):
    """What an opcode moves: rows and columns of words, how many times, and whether a word is the low
    halves of two cells."""

    shape: str
    rows: int
    columns: int
    registers: int
    accesses: int
    packed: bool

    @property
    def tmem_atom(self) -> tuple[int, ...]:
        return (self.rows, self.columns, 2) if self.packed else (self.rows, self.columns)

    @property
    def element_bits(self) -> int:
        return HALF_BITS if self.packed else CELL_BITS

    @property
    def cells(self) -> int:
        """Cells of a row, in each access."""
        return self.columns * (2 if self.packed else 1)


@cache
def image_of(form: Form) -> Image:
    """``tcgen05.ld.sync.aligned.16x64b.x4.pack::16b.b32`` in numbers."""
    name, times = form.modifiers[3], int(form.modifiers[4][1:])
    shape = SHAPES[name]
    packed = any(word.endswith("pack::16b") for word in form.modifiers)
    return Image(
        name, shape.rows, shape.columns * times, shape.registers * times, shape.accesses, packed
    )


@cache
def fragment(image: Image) -> Fragment:
    """Which lane has each word of the image, and in which register."""
    accesses = (image.accesses,) if image.accesses > 1 else ()
    atom = (*accesses, image.rows, image.columns)
    return Fragment.of(atom, image.registers, SHAPES[image.shape].coordinate)


def _loads(form: Form) -> bool:
    return form.modifiers[0] == "ld"


def _operand_names(form: Form) -> tuple[str, ...]:
    """In the call's order."""
    tmem = ("tmem_low", "tmem_high") if image_of(form).accesses > 1 else ("tmem",)
    return ("registers", *tmem) if _loads(form) else (*tmem, "registers")


# --- legality


def check(call: TileCall, report: Report) -> None:
    form = call.forms[0]
    image, names = image_of(form), _operand_names(form)
    right = _check_keyword(call, image, report)
    _check_fits(call, image, report)
    if not _check_order(call, names, report) or not collective(call, report) or not right:
        return
    # The call has a second tensor where the form has the immediate: names of its own.
    call = replace(call, operands=tuple(replace(o, name=n) for o, n in zip(call.operands, names)))
    walks: list[Walk] = []
    cells: list[Walk] = []
    for name, operand in zip(names, call.operands):
        assert isinstance(operand, TensorOperand)
        memory = name != "registers"
        laid = (_check_tmem if memory else _check_registers)(call, form, image, operand, report)
        if laid is not None:
            walks.append(laid)
            cells += [laid] * memory
    if len(walks) == len(names) and contracts.repeats_agree(call, walks, report) and len(cells) > 1:
        _check_split(call, image, cells[0], cells[1], report)


def _check_keyword(call: TileCall, image: Image, report: Report) -> bool:
    """imm_half_splitoff is given exactly where the opcode has the immediate."""
    given = call.params["imm_half_splitoff"]
    if image.accesses > 1:
        if isinstance(given, int) and not isinstance(given, bool):
            return True
        found = "is not given" if given is None else f"is {given!r}"
        message = f"imm_half_splitoff {found}, {call.spelling} needs an integer"
        help_: str | None = (
            "(lanes << 16) + columns from the first half to the second: (16 << 16) + 8"
        )
    elif given is None:
        return True
    else:
        message = f"{call.spelling} makes one access and has no imm_half_splitoff"
        help_ = "leave it out; .16x32bx2 makes two accesses, the second so far from the first"
    report.error(
        f"{call.family}/half-splitoff", message, span=call.span, contract=CONTRACT, help=help_
    )
    return False


def _check_fits(call: TileCall, image: Image, report: Report) -> None:
    """One instruction's registers are there at once, of those that threads start with."""
    limit = at_launch(call.launch, call.target)
    if image.registers + OTHER_REGISTERS <= limit:
        return
    report.error(
        f"{call.family}/registers",
        f"{call.spelling} needs {image.registers} registers and about {OTHER_REGISTERS} others; the "
        f"{call.launch.threads} threads of this block have {limit} each",
        span=call.span, contract=CONTRACT,
        help="a smaller .xN and more repeats, or fewer threads in the block: setmaxnreg does not help",
    )  # fmt: skip


def _check_order(call: TileCall, names: tuple[str, ...], report: Report) -> bool:
    """As many tensors as the opcode takes, registers and tensor memory not exchanged."""
    wanted = ", ".join(names)
    if len(call.operands) != len(names):
        count = len(call.operands)
        report.error(
            f"{call.family}/operand-count",
            f"{call.spelling} was given {count} operand{'s' * (count != 1)}, it takes {len(names)}: "
            f"{wanted}",
            span=call.span, contract=CONTRACT,
            help="the two accesses of 16x32bx2 are an operand each" if "tmem_low" in names else None,
        )  # fmt: skip
        return False
    if not all(contracts.is_tensor(operand, call, report) for operand in call.operands):
        return False
    given = [o.space for o in call.operands if isinstance(o, TensorOperand)]
    spaces = ["local" if name == "registers" else "tmem" for name in names]
    if given != spaces and sorted(given) == sorted(spaces):
        report.error(
            f"{call.family}/operand-order",
            f"{call.spelling} takes {wanted}, got tensors in {', '.join(given)} memory",
            span=call.span, contract=CONTRACT, help="exchange them: the destination is first",
        )  # fmt: skip
        return False
    return True


def _check_registers(
    call: TileCall, form: Form, image: Image, operand: TensorOperand, report: Report
) -> Walk | None:
    if not contracts.in_space(call, operand, ("local",), report):
        return None
    if operand.dtype.bits != CELL_BITS:
        _report_type(
            call, operand, "b32 words", '.view("uint32") shows the same bits as b32 words', report
        )
        return None
    return laid_fragment(call, operand, fragment(image), report, written=_loads(form))


def _report_type(
    call: TileCall, operand: TensorOperand, expected: str, help_: str, report: Report
) -> None:
    report.error(
        f"{call.family}/operand-type",
        f"{operand.name} of {call.spelling} is {operand.dtype} ({operand.dtype.bits} bits), expected "
        f"{expected}",
        span=operand.span,
        declared=operand.declared(),
        contract=CONTRACT,
        help=help_,
    )


def _check_tmem(
    call: TileCall, form: Form, image: Image, operand: TensorOperand, report: Report
) -> Walk | None:
    if not contracts.in_space(call, operand, ("tmem",), report):
        return None
    if operand.dtype.bits != image.element_bits:
        expected, help_ = "cells of 32 bits", '.view("uint32") shows whole cells'
        if image.packed:
            expected = "16-bit elements, the low halves of cells"
            help_ = "the suffix is (row, column, half) of 16-bit elements, 4@TCol and 2@TCol apart"
        _report_type(call, operand, expected, help_, report)
        return None
    if not _loads(form) and tensor_memory.replicas(operand):
        report.error(
            f"{call.family}/replica",
            f"{operand.name} has copies in its layout, and {call.spelling} writes one of them",
            span=operand.span, declared=operand.declared(), contract=CONTRACT,
            help="store every copy through a view of its own, or fill them with tcgen05.cp.…warpx4",
        )  # fmt: skip
        return None
    laid = tensor_memory.laid(call, operand, image.tmem_atom, report, collective=True)
    if laid is None or not _consecutive(call, image, laid, report):
        return None
    # A cell's low half is where the cell starts.
    if not tensor_memory.starts_at_columns(call, laid, 1, report):
        return None
    return laid if _own_slab(call, image, laid, report) else None


def _consecutive(call: TileCall, image: Image, laid: Walk, report: Report) -> bool:
    """Rows are consecutive lanes, columns consecutive cells (low halves of consecutive cells)."""
    row, cell = (i.reshape(-1) for i in np.indices((image.rows, image.cells)))
    wrong = tensor_memory.misplaced(laid, row, cell * CELL_BITS)
    if wrong is None:
        return True
    (a, r, k), (lane, bit), (expected_lane, expected_bit) = wrong
    report.error(
        f"{call.family}/image",
        f"{laid.operand.name}: {laid.coordinate(r, k)} lies {lane} lanes and {_columns(bit)} after the first "
        f"element, expected {expected_lane} lanes and {_columns(expected_bit)}",
        span=laid.operand.span,
        where=laid.where((a, r, k)),
        declared=laid.operand.declared(),
        contract=CONTRACT,
        help=_image_help(image),
    )
    return False


def _columns(bits: int) -> str:
    return f"{bits / CELL_BITS:g} columns"


def _image_help(image: Image) -> str:
    rows = "the row's stride is 1@TLane"
    if image.packed:
        return (
            f"{rows}; in 16-bit elements the column's is 4@TCol and the half's 2@TCol: .pack and .unpack "
            "use the low half of each cell, and 2@TCol and 1@TCol would be both halves of one"
        )
    return f"{rows}, the column's 1@TCol, counted in 32-bit cells"


def _own_slab(call: TileCall, image: Image, laid: Walk, report: Report) -> bool:
    """Every warp's rows lie in the 32 lanes that belong to it, from their beginning or their middle."""
    first: IntArray = tensor_memory.lanes(laid)[..., 0]
    warps = (laid.group.threads % laid.group.per_cta // LANES).reshape(-1, 1)
    wrong = np.broadcast_to(first % image.rows != 0, first.shape)
    if wrong.any():
        _report_lane(
            call, laid, wrong,
            lambda a, r: f"{image.rows} rows from lane {int(first[a, r])} on, expected a multiple of "
            f"{image.rows}",
            None, report,
        )  # fmt: skip
        return False
    wrong = first // SLAB_LANES != warps % SLABS
    if wrong.any():
        lanes = np.broadcast_to(first, wrong.shape)

        def foreign(a: int, r: int) -> str:
            warp, lane = int(warps[a, 0]), int(lanes[a, r])
            least = SLAB_LANES * (warp % SLABS)
            return (
                f"warp {warp} would access lanes {lane} to {lane + image.rows - 1}, its own are {least} to "
                f"{least + SLAB_LANES - 1}"
            )

        _report_lane(call, laid, wrong, foreign, _slab_help(call), report)
        return False
    return _one_half(call, first, laid, report)


def _one_half(call: TileCall, first: IntArray, laid: Walk, report: Report) -> bool:
    """The address holds the lane within the slab: one number for all warps."""
    half = first % SLAB_LANES
    wrong = half != half[:1]
    if not wrong.any():
        return True
    _report_lane(
        call, laid, wrong,
        lambda a, r: f"this warp's rows begin {int(half[a, r])} lanes into its 32, those of the first "
        f"warp {int(half[0, r])}",
        "the half of the lanes is part of the instruction, one for all warps: make a call for each",
        report,
    )  # fmt: skip
    return False


def _report_lane(
    call: TileCall,
    laid: Walk,
    wrong: npt.NDArray[np.bool_],
    words: Callable[[int, int], str],
    help_: str | None,
    report: Report,
) -> None:
    a, r = (int(i) for i in np.argwhere(wrong)[0])
    report.error(
        f"{call.family}/lanes",
        f"{laid.operand.name}: {words(a, r)}",
        span=laid.operand.span,
        where=laid.where((a, r)),
        declared=laid.operand.declared(),
        contract=f"{CONTRACT}: lanes belong to the executing warp's slab",
        help=help_,
    )


def _slab_help(call: TileCall) -> str:
    if call.scope == "warp":
        return (
            "guard the call with the warp whose rows they are, T.cuda.warp_id() == 0, or use "
            'scope="warpgroup" with an axis of warps in front, 32@TLane apart: .view(4, 32, columns)'
        )
    return "the axis of warps has stride 32@TLane: .view(4, 32, columns) of 128 rows"


def _check_split(call: TileCall, image: Image, low: Walk, high: Walk, report: Report) -> None:
    """The second access lies where imm_half_splitoff says, and a store's two are distinct."""
    if low.operand.view.buffer != high.operand.view.buffer:
        report.error(
            f"{call.family}/half-splitoff",
            f"tmem_low is a part of {low.operand.view.buffer.name}, tmem_high of "
            f"{high.operand.view.buffer.name}: how far they are apart is not known",
            span=high.operand.span, declared=high.operand.declared(),
            contract=f"{CONTRACT}: both halves share one allocation",
            help="declare one tensor (T.cuda.decl_tmem) and take both parts of it",
        )  # fmt: skip
        return
    apart = high.symbolic - low.symbolic
    given = int(call.params["imm_half_splitoff"])
    if apart.constant is None:
        report.error(
            f"{call.family}/half-splitoff",
            f"how far tmem_high is from tmem_low depends on {apart} (elements), expected {given}, known at "
            "compile time",
            span=high.operand.span, declared=high.operand.declared(), contract=CONTRACT,
            help="start both parts at the same run-time column",
        )  # fmt: skip
        return
    lanes = tensor_memory.lanes(high)[..., 0] - tensor_memory.lanes(low)[..., 0]
    bits = tensor_memory.column_bits(high)[..., 0] - tensor_memory.column_bits(low)[..., 0]
    columns = (bits + apart.constant * image.element_bits) // CELL_BITS
    distance = (lanes << LANE_SHIFT) + columns
    if bool((distance != given).any()):
        a, r = (int(i) for i in np.argwhere(distance != given)[0])
        lane, column = (int(np.broadcast_to(v, distance.shape)[a, r]) for v in (lanes, columns))
        report.error(
            f"{call.family}/half-splitoff",
            f"imm_half_splitoff is {given}, and tmem_high lies {lane} lanes and {column} columns after "
            f"tmem_low: expected ({lane} << 16) + {column} = {int(distance[a, r])}",
            span=call.span, where=low.where((a, r)), declared=high.operand.declared(),
            contract=f"{CONTRACT}: the second address is the first plus the immediate",
        )  # fmt: skip
        return
    if not _loads(call.forms[0]):
        _check_distinct(call, image, lanes, columns, low, report)


def _check_distinct(
    call: TileCall, image: Image, lanes: IntArray, columns: IntArray, low: Walk, report: Report
) -> None:
    """Nothing says which of two writes to a cell stays."""
    shared = (lanes == 0) & (abs(columns) < image.cells)
    if not shared.any():
        return
    a, r = (int(i) for i in np.argwhere(shared)[0])
    report.error(
        f"{call.family}/overlap",
        f"tmem_low and tmem_high share cells: they are {int(np.broadcast_to(columns, shared.shape)[a, r])} "
        f"columns apart, and one instruction writes {image.cells} columns of each",
        span=call.span, where=low.where((a, r)), contract=CONTRACT,
        help="cells that are loaded may be the same, cells that are stored are distinct",
    )  # fmt: skip


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """For each repeat one instruction: the first cell's address within the warp's slab, the registers in
    order, the immediate of the second access."""
    form = call.forms[0]
    names = _operand_names(form)
    local = call.walk_of(names.index("registers"))
    cells = call.walk_of(names.index("tmem_low" if "tmem_low" in names else "tmem"))
    within: list[int] = (tensor_memory.lanes(cells)[0, :, 0] % SLAB_LANES).tolist()
    lets, places = memory_operands(call, cells, lanes=within)
    values = fragment_registers(local, fragment(image_of(form)))
    steps: list[Step] = list(lets)
    for place, registers, repeat in zip(places, values, cells.repeat_coordinates()):
        native: dict[str, NativeOperand] = {"addr": place, "reg": registers}
        if len(names) > 2:
            native["imm"] = Immediate(int(call.params["imm_half_splitoff"]))
        operands = tuple(native[spec.kind] for spec in form.operands)
        steps.append(Issue(form, operands, repeat=repeat, span=call.span))
    return steps


# --- what the hardware does


class Figure(NamedTuple):
    """A matrix fragment of the PTX ISA: what each bit of the lane's number, and of the register's, adds to
    (row, column). Registers beyond those bits go on ``width`` columns further."""

    lane_bits: tuple[tuple[int, int], ...]
    register_bits: tuple[tuple[int, int], ...]
    width: int


FIGURES: dict[str, Figure] = {
    "32x32b": Figure(((1, 0), (2, 0), (4, 0), (8, 0), (16, 0)), (), 1),
    "16x64b": Figure(((8, 0), (0, 1), (1, 0), (2, 0), (4, 0)), (), 2),
    "16x128b": Figure(((0, 1), (0, 2), (1, 0), (2, 0), (4, 0)), ((8, 0),), 4),
    "16x256b": Figure(((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ((0, 1), (8, 0)), 8),
    "16x32bx2": Figure(((1, 0), (2, 0), (4, 0), (8, 0), (0, 0)), (), 1),
}
"""In 16x32bx2 the highest bit of the lane chooses the access."""


@cache
def _cells(shape: str, count: int, packed: bool, splitoff: int) -> WarpCells:
    """The cells of every lane's registers, relative to the address; of a packed register two."""
    figure = FIGURES[shape]
    lane, register = np.arange(LANES).reshape(-1, 1), np.arange(count)
    place = np.zeros((2, LANES, count), np.int64)
    for bit, (row, column) in enumerate(figure.lane_bits):
        place += np.array([row, column]).reshape(2, 1, 1) * (lane >> bit & 1)
    for bit, (row, column) in enumerate(figure.register_bits):
        place += np.array([row, column]).reshape(2, 1, 1) * (register >> bit & 1)
    rows, columns = place
    columns += figure.width * (register >> len(figure.register_bits))
    if packed:
        rows = np.repeat(rows, 2, axis=1)
        columns = np.stack((2 * columns, 2 * columns + 1), axis=-1).reshape(LANES, -1)
    if splitoff:
        # A 32-bit sum: 16 bits of columns below the lanes.
        across = (splitoff + (1 << 15)) % (1 << LANE_SHIFT) - (1 << 15)
        second = lane >= LANES // 2
        columns = columns + second * across
        rows = rows + second * (splitoff - across >> LANE_SHIFT)
    return WarpCells(rows, columns, (1 << HALF_BITS) - 1 if packed else (1 << CELL_BITS) - 1)


def execute(issue: Issue, machine: Machine) -> None:
    """Moves b32 words between a warp's registers and cells at one address; .pack::16b and .unpack::16b
    between a word and the low halves of two cells."""
    form = issue.form
    native = {spec.kind: operand for spec, operand in zip(form.operands, issue.operands)}
    memory, registers, immediate = native["addr"], native["reg"], native.get("imm")
    assert isinstance(memory, Memory) and isinstance(registers, Registers)
    splitoff = immediate.value if isinstance(immediate, Immediate) else 0
    count, packed = len(registers.items), image_of(form).packed
    cells = _cells(form.modifiers[3], count, packed, splitoff)
    if _loads(form):
        words = _joined(machine.tensor_load(memory, cells), packed)
        machine.write(registers, [words[..., i] for i in range(count)])
        machine.tensor_hold(registers)
    else:
        machine.tensor_store(memory, cells, _split(_stacked(machine, registers), packed))


def _stacked(machine: Machine, registers: Registers) -> npt.NDArray[np.uint32]:
    """(warps, 32, registers)"""
    shape = machine.active().shape
    words: list[BitArray] = machine.read(registers)
    return np.stack([np.broadcast_to(w, shape).astype(np.uint32) for w in words], axis=-1)


def _joined(cells: npt.NDArray[np.uint32], packed: bool) -> npt.NDArray[np.uint32]:
    """Two cells' low halves as one word."""
    if not packed:
        return cells
    low = cells & np.uint32((1 << HALF_BITS) - 1)
    word: npt.NDArray[np.uint32] = low[..., 0::2] | low[..., 1::2] << np.uint32(HALF_BITS)
    return word


def _split(words: npt.NDArray[np.uint32], packed: bool) -> npt.NDArray[np.uint32]:
    """The reverse of ``_joined``."""
    if not packed:
        return words
    halves = words & np.uint32((1 << HALF_BITS) - 1), words >> np.uint32(HALF_BITS)
    return np.stack(halves, axis=-1).reshape(*words.shape[:2], -1)


FAMILY = Family(
    name="tcgen05_ld_st", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
