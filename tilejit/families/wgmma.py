"""Asynchronous matrix multiply-accumulate of a warpgroup: wgmma.mma_async, and its raw fence, commit
and wait.

Contract: docs/contract/wgmma.md. Not here: which spellings exist (``ptx.tables.wgmma``), how shared
operands become descriptors (``tile.descriptor``), how a tensor core rounds (``sim.numeric.mma``).
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Report
from tilejit.ir import build, nodes
from tilejit.ptx import types
from tilejit.ptx.forms import Form
from tilejit.sim.numeric import mma as numeric
from tilejit.tile import contracts, descriptor, matrices
from tilejit.tile.affine import WARPGROUP, IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.family import (
    BitArray,
    Family,
    Immediate,
    Issue,
    Machine,
    NativeOperand,
    Param,
    Registers,
    Step,
    Value,
)
from tilejit.tile.faults import hand_on
from tilejit.tile.fragments import (
    LANES,
    WARPGROUP_LANES,
    Fragment,
    fragment_registers,
    laid_fragment,
    warpgroup_collective,
)
from tilejit.tile.region import Walk
from tilejit.tile.register_budget import OTHER_REGISTERS, at_launch

CONTRACT = "docs/contract/wgmma.md"

# --- parameters

PARAMS = (
    Param(
        "accum", "runtime", "bool", False, "Add to the old D; False leaves it out at the first K."
    ),
    Param("a_major", "static", "str", "k", "Whether rows of A in shared memory run along k or mn."),
    Param("b_major", "static", "str", "k", "Whether rows of B run along k or mn."),
    Param("neg_a", "static", "bool", False, "Multiply by -A."),
    Param("neg_b", "static", "bool", False, "Multiply by -B."),
    Param("instruction_shape", "static", "tuple", None, "(64, N, K), as the opcode says."),
    Param("a_format", "static", "str", None, "A's type, as the opcode says."),
    Param("b_format", "static", "str", None, "B's type, as the opcode says."),
)

# --- operands
#
# D, A, B. After the warpgroup axis of scope "cta" and any batch axes: D (M_repeat, N_repeat, 64, N) in
# registers, A (M_repeat, K_repeat, 64, K) in shared memory or (M_repeat, K_repeat, 64, 8) words in
# registers, B (N_repeat, K_repeat, N, K) in shared memory. f16 accumulators are words: (64, N / 2).

NAMES = ("D", "A", "B")
ROWS = 64
A_WORDS = 8
A_REGISTERS = 4
ROW_BYTES = 4 * A_WORDS
"""A row of A or B along K, whatever its type."""

MAX_REGISTERS = 255

STORED: dict[str, DType] = {
    "f16": dtypes.float16, "bf16": dtypes.bfloat16, "tf32": dtypes.float32,
    "e4m3": dtypes.float8_e4m3fn, "e5m2": dtypes.float8_e5m2, "s8": dtypes.int8, "u8": dtypes.uint8,
    "b1": dtypes.uint32,
}  # fmt: skip
"""Elements in shared memory by the opcode's type; the bit container will do. One-bit values come in
words of 32."""


class Shape(NamedTuple):
    """What an opcode says."""

    columns: int
    depth: int
    d_type: str
    a_type: str
    b_type: str

    @property
    def stored_depth(self) -> int:
        """Stored elements of a row along K."""
        return A_WORDS if self.a_type == "b1" else self.depth


@cache
def shape_of(form: Form) -> Shape:
    """N, K and the types of an opcode."""
    modifiers = [m for m in form.modifiers if m not in ("satfinite", "and", "popc")]
    sizes = re.fullmatch(r"m64n(\d+)k(\d+)", modifiers[3])
    assert sizes is not None
    return Shape(int(sizes[1]), int(sizes[2]), *modifiers[4:])


@cache
def accumulator(columns: int) -> Fragment:
    """D's elements: warp w has rows 16·w to 16·w + 15, as ``mma.sync``'s D has them."""
    return Fragment.of(
        (ROWS, columns),
        columns // 2,
        lambda t, r: (
            16 * (t // 32) + t % 32 // 4 + 8 * (r // 2 % 2),
            8 * (r // 4) + 2 * (t % 4) + r % 2,
        ),
        WARPGROUP_LANES,
    )


@cache
def packed_words(words: int) -> Fragment:
    """Words of A's rows, and of D's where a word holds two f16."""
    return Fragment.of(
        (ROWS, words),
        words // 2,
        lambda t, r: (16 * (t // 32) + t % 32 // 4 + 8 * (r % 2), t % 4 + 4 * (r // 2)),
        WARPGROUP_LANES,
    )


def _d_fragment(form: Form) -> Fragment:
    shape = shape_of(form)
    return packed_words(shape.columns // 2) if shape.d_type == "f16" else accumulator(shape.columns)


def _form(call: TileCall) -> Form:
    """A's space chooses between the two forms of the spelling."""
    a = call.operands[1]
    in_registers = isinstance(a, TensorOperand) and a.space == "local"
    return next(f for f in call.forms if (f.operands[1].bits == 32) == in_registers)


def _in_registers(form: Form) -> bool:
    return form.operands[1].bits == 32


# --- legality


def check(call: TileCall, report: Report) -> None:
    if not warpgroup_collective(call, report):
        return
    if len(call.operands) != 3:
        report.error(
            "wgmma/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes 3: D, A, B",
            span=call.span, contract=CONTRACT,
            help="accum= says whether D is added to",
        )  # fmt: skip
        return
    form = _form(call)
    _check_one_instruction(call, form, report)
    right = _check_parameters(call, form, report)
    d = _check_registers(call, form, 0, _d_fragment(form), report)
    if _in_registers(form):
        a = _check_registers(call, form, 1, packed_words(A_WORDS), report)
    else:
        a = _check_shared(call, form, 1, ROWS, right, report)
    b = _check_shared(call, form, 2, shape_of(form).columns, right, report)
    matrices.repeats_agree(call, zip(NAMES, (d, a, b)), report)
    if d is not None:
        _check_all_registers(call, form, d, a, report)
    if d is not None and a is not None and _in_registers(form):
        _check_overlap(d, a, report)


def _check_one_instruction(call: TileCall, form: Form, report: Report) -> None:
    """One instruction fits into the registers that threads start with: ``setmaxnreg`` comes too late for
    the assembler, which gives every instruction of the kernel as many."""
    launch = call.launch
    limit = min(MAX_REGISTERS, at_launch(launch, call.target))
    accumulators, words = form.operands[0].lanes, A_REGISTERS * _in_registers(form)
    if accumulators + words + OTHER_REGISTERS > limit:
        block = f"the {launch.threads} threads of this block have {limit} each"
        help_ = "fewer threads in the block, or a narrower N: setmaxnreg does not help"
        _report_registers(call, accumulators, words, block, help_, report)


def _check_all_registers(
    call: TileCall, form: Form, d: Walk, a: Walk | None, report: Report
) -> None:
    """The call's accumulators and words of A fit into a thread, whatever ``setmaxnreg`` gives it."""
    accumulators = d.repeats * form.operands[0].lanes
    words = A_REGISTERS * a.repeats if a is not None and _in_registers(form) else 0
    if accumulators + words + OTHER_REGISTERS > MAX_REGISTERS:
        limit = f"a thread has {MAX_REGISTERS} at most"
        help_ = "fewer repeats of M or N: more warpgroups, or one part of the tile after another"
        _report_registers(call, accumulators, words, limit, help_, report)


def _report_registers(
    call: TileCall, accumulators: int, words: int, limit: str, help_: str, report: Report
) -> None:
    of_a = f", {words} words of A" if words else ""
    report.error(
        "wgmma/registers",
        f"{call.spelling} needs {accumulators} accumulators{of_a} and about {OTHER_REGISTERS} other "
        f"registers; {limit}",
        span=call.span,
        contract=CONTRACT,
        help=help_,
    )


def _check_parameters(call: TileCall, form: Form, report: Report) -> bool:
    """Every fault of the keywords; whether the majors can be relied on."""
    _check_opcode_again(call, form, report)
    _check_accum(call, report)
    operands = {spec.name for spec in form.operands}
    for name in ("a", "b"):
        negated = call.params[f"neg_{name}"]
        if not isinstance(negated, bool):
            report.error(
                "wgmma/negation", f"neg_{name} is {negated!r}, expected True or False",
                span=call.span, contract=CONTRACT,
            )  # fmt: skip
        elif negated and f"scale_{name}" not in operands:
            report.error(
                "wgmma/negation",
                f"neg_{name}: {call.spelling} cannot negate its operands, floating-point types can",
                span=call.span, contract=CONTRACT,
            )  # fmt: skip
    return all([_check_major(call, form, name, report) for name in ("a", "b")])


def _check_major(call: TileCall, form: Form, name: str, report: Report) -> bool:
    major = call.params[f"{name}_major"]
    if major == "k":
        return True
    shape = shape_of(form)
    kind = shape.a_type if name == "a" else shape.b_type
    if major != "mn":
        message, help_ = f'{name}_major is {major!r}, expected "k" or "mn"', None
    elif any(spec.name == f"transpose_{name}" for spec in form.operands):
        return True
    elif name == "a" and _in_registers(form):
        message, help_ = 'a_major="mn" for A in registers, whose words are rows along K', None
    else:
        message = f'{name}_major="mn" for {kind} elements, only 16-bit ones may run along M or N'
        help_ = "store the operand transposed, with rows along K"
    report.error("wgmma/major", message, span=call.span, contract=CONTRACT, help=help_)
    return False


def _check_opcode_again(call: TileCall, form: Form, report: Report) -> None:
    """Keywords that repeat what the opcode says must agree with it."""
    shape = shape_of(form)
    said = {
        "instruction_shape": (ROWS, shape.columns, shape.depth),
        "a_format": shape.a_type, "b_format": shape.b_type,
    }  # fmt: skip
    for name, expected in said.items():
        given = call.params[name]
        if given is not None and given != expected:
            report.error(
                f"wgmma/{name.replace('_', '-')}",
                f"{name} is {given!r}, {call.spelling} says {expected!r}",
                span=call.span, contract=CONTRACT, help="the opcode decides; the keyword may be left out",
            )  # fmt: skip


def _check_accum(call: TileCall, report: Report) -> None:
    """All threads of the warpgroup agree."""
    accum = call.params["accum"]
    if not isinstance(accum, nodes.Expr):
        return
    if call.evaluator.level(call.evaluator.value(accum)) < WARPGROUP:
        report.error(
            "wgmma/accum",
            "accum may differ between the threads of a warpgroup, which execute one instruction",
            span=accum.span or call.span,
            contract=CONTRACT,
        )


def _check_registers(
    call: TileCall, form: Form, position: int, fragment: Fragment, report: Report
) -> Walk | None:
    operand, spec = call.operands[position], form.operands[position]
    if not contracts.is_tensor(operand, call, report):
        return None
    if not types.accepts(spec, operand.dtype):
        _report_type(call, operand, position, _register_text(form, position), report)
        return None
    trial = Report()
    laid = laid_fragment(call, operand, fragment, trial, written=position == 0)
    if laid is not None and not matrices.has_axes(call, NAMES[position], laid, trial):
        laid = None
    hand_on(trial, report, _ABOUT_LAYOUT, _register_recipe(call, form, position))
    return laid


_ABOUT_LAYOUT = {
    "tile/atom-shape", "tile/group-shape", "tile/layout", "wgmma/owner", "wgmma/slot-per-lane",
    "wgmma/slot-per-thread", "wgmma/overlap", "wgmma/repeat-axes", "wgmma/space",
}  # fmt: skip
"""Faults that the operand's declaration or view answers."""


def _register_recipe(call: TileCall, form: Form, position: int) -> str:
    """The declaration of a register operand, its layout included."""
    shape = shape_of(form)
    axes = ", ".join(f"{axis}_repeat" for axis in matrices.AXES[NAMES[position]])
    groups = ", ".join(map(str, call.group.warpgroups.shape))
    lead, more = (f"{groups}, ", f", warpgroups=({groups},)") if groups else ("", "")
    if position == 0 and shape.d_type != "f16":
        columns, maker = shape.columns, "wgmma_fragment_layout"
        dtype = "int32" if shape.d_type == "s32" else "float32"
    else:
        columns = A_WORDS if position == 1 else shape.columns // 2
        maker, dtype = "wgmma_words_layout", "uint32"
    return (
        f'{NAMES[position]} in registers: T.alloc_local(({lead}{axes}, {ROWS}, {columns}), "{dtype}", '
        f"layout=T.cuda.{maker}({columns}, ({axes}){more})); one tile alone is a view with repeats of 1, of a "
        f"thread's own registers, too: .view({lead}1, 1, {ROWS}, {columns}, layout=T.cuda.{maker}({columns}, "
        f"(1, 1){more}))"
    )


def _shared_recipe(form: Form, position: int) -> str:
    """The declaration of a shared operand and its view, rows along K."""
    shape = shape_of(form)
    rows, name = (ROWS, "M") if position == 1 else (shape.columns, "N")
    stored = STORED[shape.a_type if position == 1 else shape.b_type]
    return (
        f'{NAMES[position]} in shared memory: T.alloc_shared((rows, columns), "{stored}", '
        f'layout=T.cuda.wgmma_shared_layout((rows, columns), "{stored}"), align=1024), rows along K, then '
        f".view({name}_repeat, {rows}, K_repeat, {shape.stored_depth}).permute(0, 2, 1, 3)"
    )


def _register_text(form: Form, position: int) -> str:
    shape = shape_of(form)
    if position == 1:
        return f"32-bit words (uint32) of adjacent K values in {shape.a_type}"
    if shape.d_type == "f16":
        return "32-bit words (uint32) of two adjacent columns in f16"
    spec = form.operands[0]
    return f"{types.scalar_type(spec.type)} or {types.container_type(spec.type)} elements"


def _check_shared(
    call: TileCall, form: Form, position: int, rows: int, majors_right: bool, report: Report
) -> Walk | None:
    operand, shape = call.operands[position], shape_of(form)
    if not contracts.is_tensor(operand, call, report):
        return None
    trial = Report()
    if not contracts.in_space(call, operand, ("shared",), trial):
        hand_on(trial, report, _ABOUT_LAYOUT, _shared_recipe(form, position))
        return None
    stored = STORED[shape.a_type if position == 1 else shape.b_type]
    if operand.dtype not in (stored, dtypes.container(stored.bits)):
        _report_type(
            call, operand, position, f"{stored} or {dtypes.container(stored.bits)} elements", report
        )
        return None
    laid = contracts.shaped(call, operand, (rows, shape.stored_depth), trial, warpgroups=True)
    if laid is not None and not matrices.has_axes(call, NAMES[position], laid, trial):
        laid = None
    hand_on(trial, report, _ABOUT_LAYOUT, _shared_recipe(form, position))
    if laid is None:
        return None
    if majors_right and descriptor.extract(call, laid, _major(call, position), report) is None:
        return None
    return laid


def _major(call: TileCall, position: int) -> descriptor.Major:
    major: descriptor.Major = call.params["a_major" if position == 1 else "b_major"]
    return major


def _report_type(
    call: TileCall, operand: TensorOperand, position: int, expected: str, report: Report
) -> None:
    report.error(
        "wgmma/operand-type",
        f"{operand.name} ({NAMES[position]}) of {call.spelling} is {operand.dtype}, expected {expected}",
        span=operand.span,
        declared=operand.declared(),
        contract=CONTRACT,
        help='.view("…") gives the same bits another type; it converts no values',
    )


def _check_overlap(d: Walk, a: Walk, report: Report) -> None:
    """D is written while later instructions still read A."""
    if d.operand.view.buffer != a.operand.view.buffer:
        return
    shared = _words(d) & _words(a)
    if shared:
        report.error(
            "wgmma/source-overlap",
            f"{a.operand.name} (A) and {d.operand.name} (D) share {len(shared)} of "
            f"{d.operand.view.buffer.name}'s 32-bit registers, the first at word {min(shared)}",
            span=a.operand.span,
            declared=a.operand.declared(),
            contract=CONTRACT,
        )


def _words(walk: Walk) -> set[int]:
    """The slots of 32-bit elements that an operand occupies."""
    slots: IntArray = walk.physical()[0].reshape(-1)
    return set(slots.tolist())


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """Batch, M, N, K: the first K adds to D when ``accum`` says so, the others always."""
    form = _form(call)
    d = fragment_registers(call.walk_of(0), _d_fragment(form))
    steps: list[Step] = []
    a = _a_operands(call, form, steps)
    b = _descriptors(call, 2, steps)
    *batch, rows, columns = call.walk_of(0).repeat
    depth = call.walk_of(1).repeat[-1]
    accum = call.params["accum"]
    first = accum if isinstance(accum, nodes.Expr) else build.const(accum, dtypes.bool_)
    scales = [Registers((Value(first),))] + [Registers((Value(_TRUE),))] * (depth - 1)
    tail = _immediates(call, form)
    for row, where in enumerate(product(*map(range, (*batch, rows)))):
        tile = row // rows  # rows are counted over all batches
        for column in range(columns):
            for k in range(depth):
                operands = (
                    d[row * columns + column], a[row * depth + k],
                    b[(tile * columns + column) * depth + k], scales[k], *tail,
                )  # fmt: skip
                steps.append(Issue(form, operands, repeat=(*where, column, k), span=call.span))
    return steps


_TRUE = build.const(True, dtypes.bool_)


def _a_operands(call: TileCall, form: Form, steps: list[Step]) -> list[Registers]:
    if _in_registers(form):
        return fragment_registers(call.walk_of(1), packed_words(A_WORDS))
    return _descriptors(call, 1, steps)


def _descriptors(call: TileCall, position: int, steps: list[Step]) -> list[Registers]:
    found = call.walk_of(position).findings.descriptors[_major(call, position)]
    more, values = descriptor.sm_90_descriptors(call, found)
    steps.extend(more)
    return [Registers((Value(value),)) for value in values]


def _immediates(call: TileCall, form: Form) -> tuple[NativeOperand, ...]:
    params = call.params
    values = {
        "scale_a": -1 if params["neg_a"] else 1, "scale_b": -1 if params["neg_b"] else 1,
        "transpose_a": int(params["a_major"] == "mn"), "transpose_b": int(params["b_major"] == "mn"),
    }  # fmt: skip
    return tuple(Immediate(values[spec.name]) for spec in form.operands if spec.kind == "imm")


# --- what the hardware does

Matrix = npt.NDArray[np.uint32]
"""Words of a row: (rows, words)."""


def execute(issue: Issue, machine: Machine) -> None:
    """fence, commit and wait; or, for each warpgroup, D = A·B (+ D) in its open group."""
    action = issue.form.modifiers[0]
    if action == "fence":
        machine.warpgroup_fence()
    elif action == "commit_group":
        machine.warpgroup_commit()
    elif action == "wait_group":
        (pending,) = machine.read(issue.operands[0])
        machine.warpgroup_wait(int(pending.flat[0]))
    else:
        _multiply(issue, machine)


def _multiply(issue: Issue, machine: Machine) -> None:
    form, shape, fours = issue.form, shape_of(issue.form), machine.warpgroups()
    named = {spec.name: operand for spec, operand in zip(form.operands, issue.operands)}
    fragment = _d_fragment(form)
    warps = machine.active().shape[0]
    machine.warpgroup_hold(named["d"], shape.columns)
    if _in_registers(form):
        machine.warpgroup_hold(named["a"], 0)
        a = _gathered(machine.read(named["a"]), packed_words(A_WORDS), fours, warps)
    else:
        a = _matrices(machine, named["a"], fours, ROWS, shape.a_type, _walked(machine, named, "a"))
    b = _matrices(
        machine, named["b"], fours, shape.columns, shape.b_type, _walked(machine, named, "b")
    )
    added = _of_warpgroups(machine, machine.read(named["scale_d"])[0], fours, "scale-d").astype(
        np.bool_
    )
    old = np.zeros((len(fours), *fragment.atom), np.uint32)
    if added.any():
        adding = np.zeros(warps, np.bool_)
        adding[fours[added]] = True
        old = _gathered(machine.read(named["d"], adding), fragment, fours, warps)
        old[~added] = 0
    signs = [_literal(machine, named, f"scale_{name}", 1) == 1 for name in "ab"]
    result = numeric.warpgroup_multiply_accumulate(
        (shape.d_type, shape.a_type, shape.b_type), a, b, old,
        saturate="satfinite" in form.modifiers, negate=signs[0] != signs[1],
    )  # fmt: skip
    machine.write(named["d"], _scattered(result, fragment, fours, warps))


def _literal(machine: Machine, named: dict[str, NativeOperand], name: str, default: int) -> int:
    """The immediate called ``name``, where the form has one."""
    return int(machine.read(named[name])[0].flat[0]) if name in named else default


def _walked(machine: Machine, named: dict[str, NativeOperand], name: str) -> descriptor.Major:
    return "mn" if _literal(machine, named, f"transpose_{name}", 0) else "k"


def _of_warpgroups(
    machine: Machine, bits: BitArray, fours: npt.NDArray[np.int64], what: str
) -> BitArray:
    """A value that all threads of a warpgroup have in common, one for each warpgroup."""
    whole = np.broadcast_to(bits, machine.active().shape)
    values = whole[fours].reshape(len(fours), -1)
    mixed = (values != values[:, :1]).any(axis=1)
    if mixed.any():
        lanes = np.zeros(machine.active().shape, np.bool_)
        lanes[fours[mixed]] = True
        machine.fault(
            "sim/wgmma-operand",
            f"{what} of wgmma differs between the threads of a warpgroup",
            lanes,
        )
    return values[:, 0]


def _matrices(
    machine: Machine,
    operand: NativeOperand,
    fours: npt.NDArray[np.int64],
    rows: int,
    kind: str,
    major: descriptor.Major,
) -> Matrix:
    """The words of the matrix that each warpgroup's descriptor walks: (warpgroups, rows, words)."""
    found = _of_warpgroups(machine, machine.read(operand)[0], fours, "a descriptor")
    return np.stack(
        [
            _matrix(machine, int(four[0]), _fields(machine, bits), rows, STORED[kind].bytes, major)
            for four, bits in zip(fours, found.tolist())
        ]
    )


def _fields(machine: Machine, bits: int) -> descriptor.Fields:
    found = descriptor.sm_90_fields(bits)
    if found is None:
        machine.unsimulated(f"a matrix descriptor 0x{bits:x}, with a base offset or reserved bits")
    assert found is not None
    return found


def _matrix(
    machine: Machine,
    warp: int,
    fields: descriptor.Fields,
    rows: int,
    size: int,
    major: descriptor.Major,
) -> Matrix:
    atom = (rows, ROW_BYTES // size)
    addresses = descriptor.chunk_addresses(fields, atom, 8 * size, major)
    data = machine.warpgroup_read(warp, addresses.reshape(-1))
    if major == "k":
        words: Matrix = np.ascontiguousarray(data).reshape(rows, -1).view("<u4")
        return words
    turned = data.view("<u2").reshape(addresses.shape[0], rows).T
    return np.ascontiguousarray(turned).view("<u4")


def _gathered(
    bits: list[BitArray], fragment: Fragment, fours: npt.NDArray[np.int64], warps: int
) -> Matrix:
    """Each warpgroup's atom from its threads' registers: (warpgroups, rows, words)."""
    found = np.empty((len(fours), *fragment.atom), np.uint32)
    flat = found.reshape(len(fours), -1)
    for register, column in enumerate(bits):
        whole = np.broadcast_to(column, (warps, LANES))[fours].reshape(len(fours), -1)
        flat[:, fragment.elements[:, register]] = whole
    return found


def _scattered(
    atoms: npt.NDArray[np.generic], fragment: Fragment, fours: npt.NDArray[np.int64], warps: int
) -> list[BitArray]:
    """The registers of all warps' lanes."""
    flat = atoms.reshape(len(fours), -1)
    registers: list[BitArray] = []
    for register in range(fragment.count):
        whole = np.zeros((warps, LANES), np.uint32)
        whole[fours] = flat[:, fragment.elements[:, register]].reshape(*fours.shape, LANES)
        registers.append(whole)
    return registers


FAMILY = Family(
    name="wgmma", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
