"""Matrix multiply-accumulate of tensor memory by one thread: tcgen05.mma, dense, .ws and block-scaled.

Contract: docs/contract/tcgen05_mma.md. Not here: which spellings exist (``ptx.tables.tcgen05_mma``), what
may be multiplied (``tile.tensor_product``), masks (``tile.product_masks``), which lanes work on what
(``tile.datapath``), how shared operands become descriptors (``tile.descriptor``), what a tensor core makes
of its sources (``sim.numeric.tcgen05_product``), when an instruction runs (the simulator), its commit
(``families.tcgen05``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Report
from tilejit.ir import build, nodes
from tilejit.ir.tensor_memory import CELL_BITS, LANE_SHIFT, SLAB_LANES, SLABS, split_address
from tilejit.ptx import tcgen05_shapes as shapes
from tilejit.ptx.forms import Form
from tilejit.sim.numeric.tcgen05_product import Part, Work
from tilejit.tile import (
    column_mask,
    contracts,
    cta_pair,
    descriptor,
    instruction_descriptor,
    matrices,
    product_masks,
    tensor_image,
    tensor_memory,
)
from tilejit.tile.addresses import memory_operands
from tilejit.tile.affine import CLUSTER, WARP, IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.datapath import FACTOR_BITS, FACTORS_PER_COLUMN, datapath, factor_cells
from tilejit.tile.family import (
    PRED,
    Family,
    Issue,
    Machine,
    Memory,
    NativeOperand,
    Param,
    Registers,
    SharedBlocks,
    Step,
    TensorCells,
    TensorOperation,
    TensorSource,
    Value,
    only,
)
from tilejit.tile.faults import hand_on, listed, operand_fault
from tilejit.tile.instruction_descriptor import LONG_DEPTH, Instruction
from tilejit.tile.product_masks import LANE_WORDS
from tilejit.tile.region import Walk
from tilejit.tile.tensor_image import Image
from tilejit.tile.tensor_product import NAMES, Opcode, Product, keywords_fit, opcode_of, product_of

CONTRACT = "docs/contract/tcgen05_mma.md"

# --- parameters

PARAMS = (
    Param(
        "instruction_shape", "static", "tuple of int", None,
        "(M, N, K) of one instruction; M and N count both CTAs of a group.", required=True,
    ),
    Param("a_major", "static", "str", "k", "Whether A's rows in shared memory run along k or mn."),
    Param("b_major", "static", "str", "k", "Whether B's rows run along k or mn."),
    Param("a_format", "static", "str", None, "A's numbers, where its dtype does not say: tf32, 4 and 6 bits."),
    Param("b_format", "static", "str", None, "B's numbers, likewise."),
    Param("neg_a", "static", "bool", False, "Multiply by -A."),
    Param("neg_b", "static", "bool", False, "Multiply by -B."),
    Param("accum", "runtime", "bool", False, "Add to the old D; False leaves it out at the first K."),
    Param("sat_d", "static", "bool", False, "Clamp the s32 of kind::i8."),
    Param(
        "disable_output_lane", "runtime", "tuple of uint32", None,
        "Four masks of 32 lanes for each CTA: D is kept in lanes whose bit is set.",
    ),
    Param(
        "zero_column_mask", "runtime", "integer", None,
        "The zero-column mask descriptor of .ws: which columns of B count as zeros.",
    ),
    PRED,
)  # fmt: skip

# --- operands
#
# D, A, B, and SFA, SFB with .block_scale. After group and batch axes, for g CTAs: D (M_repeat, N_repeat,
# M/g, N), A (M_repeat, K_repeat, M/g, K), B (N_repeat, K_repeat, N/g, K), SFA (M_repeat, K_repeat, M/g,
# factors), SFB (N_repeat, K_repeat, N, factors). A of M=64 .ws in tensor memory ends in (2, 64, K).


# --- legality


def check(call: TileCall, report: Report) -> None:
    opcode = opcode_of(call.spelling)
    cta_pair.check(call, report)
    _check_issuers(call, opcode, report)
    if len(call.operands) != len(opcode.operands):
        report.error(
            "tcgen05_mma/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes "
            f"{len(opcode.operands)}: {', '.join(opcode.operands)}",
            span=call.span, contract=CONTRACT,
            help="accum= says whether D is added to; descriptors are made from the operands",
        )  # fmt: skip
        return
    # The form's own operands are others: an instruction descriptor stands between B and SFA.
    call = replace(
        call, operands=tuple(replace(o, name=n) for o, n in zip(call.operands, opcode.operands))
    )
    before = len(report.diagnostics)
    keywords_fit(call, opcode, report)
    product_masks.check_lanes(call, opcode, report)
    product_masks.check_columns(call, opcode, report)
    what = product_of(call, report) if len(report.diagnostics) == before else None
    if what is None:
        return
    d = _check_d(call, what, report)
    walks = [d, _check_a(call, what, d, report), _check_shared(call, what, 2, report)]
    walks += [_check_factors(call, what, position, report) for position in (3, 4) if what.scale]
    matrices.repeats_agree(call, zip(NAMES, walks), report)
    _check_collector(call, opcode, walks[2 if opcode.weight_stationary else 1], report)
    if d is not None:
        _check_overlaps(call, what, d, [w for w in (walks[1], *walks[3:]) if w is not None], report)


def _check_issuers(call: TileCall, opcode: Opcode, report: Report) -> None:
    """Every thread that gets there issues the whole product. What a run-time guard or ``pred`` leaves of
    them is not known here."""
    group, level = call.group, call.context.level
    if call.pred is not None or group.threads.size == 0:
        return
    warps = np.unique(group.threads // 32)
    ctas = np.unique(group.threads // group.per_cta)
    if level >= WARP and not group.elected and group.threads.size > warps.size:
        found = f"{group.threads.size} threads issue"
        help_ = "put it under an if: of one warp, and in that T.cuda.elect_sync() or one lane"
    elif opcode.ctas == 2 and level >= CLUSTER and np.unique(ctas // 2).size < ctas.size:
        found = "both CTAs of a pair issue"
        help_ = "put it under an if of the CTA with the even rank; it works on both"
    else:
        return
    report.error(
        "tcgen05_mma/issuers",
        f"{found} {call.spelling}, each the whole product, expected one thread",
        span=call.span, contract=f"{CONTRACT}: issued by one thread", help=help_,
    )  # fmt: skip


def _check_collector(call: TileCall, opcode: Opcode, kept: Walk | None, report: Report) -> None:
    """``::use`` and ``::lastuse`` read one matrix, which an earlier product left: A, or B with ``.ws``."""
    use = next((w for w in call.spelling.split("::") if w in ("use", "lastuse")), None)
    if use is None or kept is None or math.prod(kept.repeat) == 1:
        return
    name = "B" if opcode.weight_stationary else "A"
    report.error(
        "tcgen05_mma/collector",
        f"{call.spelling} multiplies {math.prod(kept.repeat)} repeats of {name} by the one in the collector "
        "buffer, expected one repeat",
        span=call.span, contract=CONTRACT,
        help=f"one call for each repeat of {name}; ::fill or no .collector loads it",
    )  # fmt: skip


# --- legality: tensor memory


def _check_d(call: TileCall, what: Product, report: Report) -> Walk | None:
    path = what.path
    lanes, columns = path.accumulator(what.n)
    image = Image((path.rows, what.n), lanes, columns * CELL_BITS, path.first_lanes)
    return _check_image(call, 0, image, _d_recipe(what), report)


def _check_a(call: TileCall, what: Product, d: Walk | None, report: Report) -> Walk | None:
    operand = call.operands[1]
    assert isinstance(operand, TensorOperand)
    if operand.space != "tmem":
        return _check_shared(call, what, 1, report)
    path = what.path
    if path.parts == SLABS:
        operand_fault(
            call, operand, "space", "A of an M=32 .ws product is in tensor memory, expected shared memory: "
            "the contract has no image of it there", report,
        )  # fmt: skip
        return None
    banks = path.part_lanes[: what.banks]
    bits = np.arange(what.k, dtype=np.int64) * what.a.stored.bits
    lanes, starts = np.broadcast_arrays(banks[:, None, None] + path.row_lanes[:, None], bits)
    rows = (*((what.banks,) if what.banks > 1 else ()), path.rows)
    copies = ((path.parts, int(path.part_lanes[1])),) if what.banks < path.parts else ()
    image = Image((*rows, what.k), lanes, starts, path.first_lanes, copies)
    laid = _check_image(call, 1, image, _a_recipe(what), report)
    if laid is not None and d is not None and not _check_first_lanes(call, laid, d, report):
        return None
    return laid


def _check_first_lanes(call: TileCall, a: Walk, d: Walk, report: Report) -> bool:
    """D and A of a product begin in the same lane."""
    of_a, of_d = (tensor_memory.lanes(w)[0, :, 0].reshape(-1, w.repeat[-1]) for w in (a, d))
    if of_a.shape[0] != of_d.shape[0]:
        return True  # repeats do not agree, which is reported
    rows = np.argwhere((of_a != of_a[:, :1]).any(axis=1) | (of_d != of_a[:, :1]).any(axis=1))
    if rows.size == 0:
        return True
    row = int(rows[0][0])
    lanes = [listed(sorted(set(of[row].tolist()))) for of in (of_a, of_d)]
    operand_fault(
        call, a.operand, "image", f"A begins in lane {lanes[0]}, D in lane {lanes[1]}, expected one for both",
        report, where=f"M repeat {row}", help_="half a slab holds the rows of A and of D that belong together",
    )  # fmt: skip
    return False


def _check_factors(call: TileCall, what: Product, position: int, report: Report) -> Walk | None:
    rows, parts = (what.path.rows, 1) if position == 3 else (what.n, what.path.parts)
    lanes, columns = factor_cells(rows, parts)
    if parts > 1:
        lanes = lanes + np.repeat(what.path.part_lanes, rows // parts)
    starts = columns[:, None] * CELL_BITS + np.arange(what.factors) * FACTOR_BITS
    lanes, starts = np.broadcast_arrays(lanes[:, None], starts)
    copies = ((SLABS // parts, SLAB_LANES),)
    image = Image((rows, what.factors), lanes, starts, copies=copies, whole=False)
    laid = _check_image(call, position, image, _factor_recipe(what, position), report)
    return laid if laid is not None and _check_first_bytes(call, what, laid, report) else None


def _check_first_bytes(call: TileCall, what: Product, laid: Walk, report: Report) -> bool:
    """The byte of a column where the factors start is a number, one that the instruction can say."""
    legal = what.first_bytes
    mod, rem = call.context.congruence(laid.symbolic)
    if mod % FACTORS_PER_COLUMN or not isinstance(rem, int):
        operand_fault(
            call, laid.operand, "scale-origin", f"{laid.operand.name} starts in a byte of a column that is known "
            f"at run time only: {laid.symbolic}", report,
            help_="the instruction descriptor is a constant: unroll the loop (T.unroll) over parts of a column",
        )  # fmt: skip
        return False
    found = (laid.memory[..., 0] + rem) % FACTORS_PER_COLUMN
    if bool((found != found[:1]).any()):
        operand_fault(
            call, laid.operand, "scale-origin",
            f"{laid.operand.name} starts in other bytes of a column for other threads", report,
        )  # fmt: skip
        return False
    wrong = np.argwhere(~np.isin(found[0], legal))
    if wrong.size == 0:
        return True
    repeat = int(wrong[0][0])
    operand_fault(
        call, laid.operand, "scale-origin", f"{laid.operand.name} starts in byte {int(found[0, repeat])} of a "
        f"column, expected {listed(legal, 'or')}: {what.factors} factors of a row are aligned to their number",
        report, where=laid.coordinate(repeat, 0),
    )  # fmt: skip
    return False


def _first_bytes(call: TileCall, laid: Walk) -> list[int]:
    """For every repeat, the byte of a column where the factors start."""
    _, rem = call.context.congruence(laid.symbolic)
    assert isinstance(rem, int)
    found: list[int] = ((laid.memory[0, :, 0] + rem) % FACTORS_PER_COLUMN).tolist()
    return found


def _check_image(
    call: TileCall, position: int, image: Image, recipe: str, report: Report
) -> Walk | None:
    operand = call.operands[position]
    assert isinstance(operand, TensorOperand)
    trial = Report()
    laid = tensor_memory.laid(call, operand, image.atom, trial)
    right = (
        laid is not None
        and matrices.has_axes(call, NAMES[position], laid, trial)
        and tensor_image.lies_as(call, laid, image, trial)
    )
    hand_on(trial, report, _ABOUT_LAYOUT, recipe)
    return laid if right else None


_ABOUT_LAYOUT = {
    "tile/atom-shape", "tile/layout", "tcgen05_mma/image", "tcgen05_mma/replicas",
    "tcgen05_mma/repeat-axes", "tcgen05_mma/space",
}  # fmt: skip
"""Faults that the operand's declaration or view answers."""


# How operands in tensor memory are declared, for messages.


def _d_recipe(what: Product) -> str:
    path = what.path
    if path.parts == SLABS:
        made = f'T.cuda.tmem_datapath_layout("G", 32, {what.n})'
        return f"D lies in layout G: layout={made} for one product, viewed as (1, 1, 32, {what.n})"
    return _recipe(what, "D", f"M_repeat, N_repeat, {path.rows}, {what.n}", what.d.dtype)


def _a_recipe(what: Product) -> str:
    banks = f"{what.banks}, " if what.banks > 1 else ""
    return _recipe(
        what, "A", f"M_repeat, K_repeat, {banks}{what.path.rows}, {what.k}", what.a.stored
    )


def _factor_recipe(what: Product, position: int) -> str:
    rows = what.path.rows if position == 3 else what.n
    assert what.scale is not None
    axes = ", ".join(f"{axis}_repeat" for axis in matrices.AXES[NAMES[position]])
    return _recipe(what, NAMES[position], f"{axes}, {rows}, {what.factors}", what.scale.dtype)


def _recipe(what: Product, name: str, shape: str, dtype: DType) -> str:
    ws = ", ws=True" if what.opcode.weight_stationary else ""
    return (
        f'{name} in tensor memory: T.cuda.decl_tmem(address, ({shape}), "{dtype}", layout='
        f'T.cuda.tmem_mma_operand_layout("{name}", ({shape}), "{dtype}", M={what.m}, '
        f"cta_group={what.opcode.ctas}{ws}))"
    )


# --- legality: shared memory


def _check_shared(call: TileCall, what: Product, position: int, report: Report) -> Walk | None:
    operand = call.operands[position]
    assert isinstance(operand, TensorOperand)
    rows, format_ = (what.path.rows, what.a) if position == 1 else (what.columns, what.b)
    trial = Report()
    spaces: tuple[nodes.Space, ...] = ("shared", "tmem") if position == 1 else ("shared",)
    laid = None
    if contracts.in_space(call, operand, spaces, trial):
        laid = contracts.shaped(call, operand, (rows, what.k), trial)
    if laid is not None and not matrices.has_axes(call, NAMES[position], laid, trial):
        laid = None
    hand_on(trial, report, _ABOUT_LAYOUT, _shared_recipe(what, position, rows, format_))
    if laid is None:
        return None
    major = _major(call, position)
    found = descriptor.extract(
        call, laid, major, report, descriptor.modes_of(format_.stored.bits, major),
        role=f"{'K' if major == 'k' else 'MN'}-major {NAMES[position]}", advice=_SHARED_ADVICE,
    )  # fmt: skip
    return None if found is None else laid


_SHARED_ADVICE = (
    "T.cuda.tcgen05_shared_layout(shape, dtype, major=…) lays a tile out so; a_major and b_major say whether "
    "its rows run along K or along M (N)"
)


def _shared_recipe(what: Product, position: int, rows: int, format_: shapes.Format) -> str:
    name = "M" if position == 1 else "N"
    return (
        f'{NAMES[position]} in shared memory: T.alloc_shared((rows, columns), "{format_.stored}", '
        f'layout=T.cuda.tcgen05_shared_layout((rows, columns), "{format_.stored}"), align=1024), rows along '
        f"K, then .view({name}_repeat, {rows}, K_repeat, {what.k}).permute(0, 2, 1, 3)"
    )


def _major(call: TileCall, position: int) -> descriptor.Major:
    major: descriptor.Major = call.params["a_major" if position == 1 else "b_major"]
    return major


# --- legality: what a call writes


def _check_overlaps(
    call: TileCall, what: Product, d: Walk, sources: list[Walk], report: Report
) -> None:
    """Products have cells of their own, and do not write what the call reads."""
    width = what.n // what.path.parts
    columns = _first_columns(d)
    lanes = tensor_memory.lanes(d)[0, :, 0]
    for lane in np.unique(lanes):
        repeats = np.flatnonzero(lanes == lane)
        order = repeats[np.argsort(columns[repeats], kind="stable")]
        close = np.flatnonzero(np.diff(columns[order]) < width)
        if close.size:
            first, second = (d.coordinate(int(order[close[0] + i]), 0) for i in (0, 1))
            operand_fault(
                call, d.operand, "overlap", f"D's products share columns: they are {width} columns wide, and "
                f"two begin {int(np.diff(columns[order])[close[0]])} columns apart", report,
                where=f"{first} and {second}",
            )  # fmt: skip
            return
    for source in sources:
        if source.operand.space == "tmem":
            _check_source_overlap(call, d, width, source, report)


def _first_columns(walk: Walk) -> IntArray:
    """The first column of every repeat, without what is known at run time only."""
    columns: IntArray = tensor_memory.column_bits(walk)[0, :, 0] // CELL_BITS
    return columns


def _check_source_overlap(
    call: TileCall, d: Walk, width: int, source: Walk, report: Report
) -> None:
    """Where both are parts of one buffer, as far apart as numbers say."""
    operand = source.operand
    if operand.view.buffer != d.operand.view.buffer:
        return
    moves = [w.symbolic.scaled(w.operand.dtype.bits) for w in (source, d)]
    if (moves[0] - moves[1]).constant != 0:
        return
    bits = tensor_memory.column_bits(source)[0]
    least, last = bits.min(axis=1) // CELL_BITS, bits.max(axis=1) // CELL_BITS
    first = _first_columns(d)
    meets = (least[:, None] < first + width) & (last[:, None] >= first)
    lanes = tensor_memory.lanes(source)[0, :, 0], tensor_memory.lanes(d)[0, :, 0]
    meets &= lanes[0][:, None] == lanes[1]
    if meets.any():
        read, written = (int(i) for i in np.argwhere(meets)[0])
        operand_fault(
            call, operand, "source-overlap", f"{operand.name} shares columns with D, which the call writes while "
            f"it reads: {operand.name} begins in column {int(least[read])}, D in {int(first[written])}, "
            f"{width} columns wide", report,
            where=f"{operand.name} {source.coordinate(read, 0)}, D {d.coordinate(written, 0)}",
        )  # fmt: skip


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """Batch, M, N, K: the first K adds to D when ``accum`` says so, the others always. The instruction
    descriptor is a constant; descriptors are made once for repeats that differ by constants."""
    what = product_of(call, Report())
    assert what is not None, "the call was checked"
    lanes, mask = product_masks.operands(call)
    form = _form(call, lanes, mask)
    steps: list[Step] = []
    sources = [_source(call, position, steps) for position in range(len(call.operands))]
    words = _instruction_words(call, what)
    d_walk, a_walk = call.walk_of(0), call.walk_of(1)
    *batch, rows, columns = d_walk.repeat
    depth = a_walk.repeat[-1]
    added = [_truth(call.params["accum"])] + [_truth(True)] * (depth - 1)
    for row, where in enumerate(product(*map(range, (*batch, rows)))):
        tile = row // rows  # rows are counted over all batches
        for column, k in product(range(columns), range(depth)):
            of_a, of_b = row * depth + k, (tile * columns + column) * depth + k
            at = (row * columns + column, of_a, of_b, of_a, of_b)
            d, a, b, *factors = (source[i] for source, i in zip(sources, at))
            operands = (d, a, b, words(of_a, of_b), *lanes, *factors, added[k], *mask)
            steps.append(Issue(form, operands, call.pred, False, (*where, column, k), call.span))
    return steps


def _truth(value: bool | nodes.Expr) -> Registers:
    return _scalar(value if isinstance(value, nodes.Expr) else build.const(value, dtypes.bool_))


def _scalar(expr: nodes.Expr) -> Registers:
    return Registers((Value(expr),))


def _form(call: TileCall, lanes: tuple[Registers, ...], mask: tuple[Registers, ...]) -> Form:
    """A's space and the masks choose among the forms of the spelling."""
    a = call.operands[1]
    space = "tmem" if isinstance(a, TensorOperand) and a.space == "tmem" else ""
    count = 5 + len(lanes) + len(mask) + len(call.operands) - 3
    return next(f for f in call.forms if f.operands[1].space == space and len(f.operands) == count)


def _source(call: TileCall, position: int, steps: list[Step]) -> Sequence[NativeOperand]:
    """What the instructions take of an operand, by repeat: an address in tensor memory or a descriptor."""
    walk = call.walk_of(position)
    if walk.operand.space == "tmem":
        lanes: list[int] = tensor_memory.lanes(walk)[0, :, 0].tolist()
        lets, places = memory_operands(call, walk, lanes=lanes)
        steps.extend(lets)
        return places
    found = walk.findings.descriptors[_major(call, position)]
    more, values = descriptor.sm_100_descriptors(call, found)
    steps.extend(more)
    return [_scalar(value) for value in values]


def _instruction_words(call: TileCall, what: Product) -> Callable[[int, int], Registers]:
    """The instruction descriptor of a repeat of A and one of B: they differ by where scale factors start."""
    params = call.params
    plain = Instruction(
        m=what.m, n=what.n, a=what.a, b=what.b, d=what.d, scale=what.scale,
        negate_a=params["neg_a"], negate_b=params["neg_b"],
        transpose_a=params["a_major"] == "mn", transpose_b=params["b_major"] == "mn",
        saturate=params["sat_d"], long=what.k == LONG_DEPTH,
    )  # fmt: skip
    first, second = ([0], [0])
    if what.scale is not None:
        first, second = (_first_bytes(call, call.walk_of(position)) for position in (3, 4))

    @cache
    def word(sfa_byte: int, sfb_byte: int) -> Registers:
        bits = instruction_descriptor.encode(replace(plain, sfa_byte=sfa_byte, sfb_byte=sfb_byte))
        return _scalar(build.const(bits, dtypes.uint32))

    if what.scale is None:
        return lambda of_a, of_b: word(0, 0)
    return lambda of_a, of_b: word(first[of_a], second[of_b])


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Each thread's product is one operation, in the tensor memory of every CTA that it works on."""
    form = issue.form
    if "ashift" in form.modifiers or any(s.name == "scale_input_d" for s in form.operands):
        machine.unsimulated(f"{form.spelling} that shifts A or scales the old D")
    named = {spec.name: operand for spec, operand in zip(form.operands, issue.operands)}
    active = machine.active().shape
    values = {
        name: [np.broadcast_to(bits, active) for bits in machine.read(operand)]
        if isinstance(operand, Registers) else [machine.address(operand)]
        for name, operand in named.items() if isinstance(operand, Registers | Memory)
    }  # fmt: skip
    for thread in machine.threads():
        given = {name: [int(v[thread]) for v in each] for name, each in values.items()}
        operation = _Issued(machine, form, thread, named, given).operation()
        if operation is not None:
            machine.tensor_issue(thread, operation)


class _Fault(Exception):
    """What is wrong with an instruction: a code and a message."""


@dataclass(slots=True)
class _Issued:
    """One thread's instruction: its operands for messages, and their numbers."""

    machine: Machine
    form: Form
    thread: tuple[int, int]
    named: dict[str, NativeOperand]
    given: dict[str, list[int]]

    def operation(self) -> TensorOperation | None:
        """None after a fault."""
        ctas = cta_pair.ranks(self.machine, self.form, self.thread)
        if not ctas:
            return None
        try:
            return self._operation(ctas)
        except _Fault as fault:
            code, message = fault.args
            self.machine.fault(code, message, only(self.machine, self.thread))
            return None

    def _operation(self, ctas: tuple[int, ...]) -> TensorOperation:
        opcode = opcode_of(self.form.spelling)
        says = self._instruction(opcode)
        work = Work(opcode, says, self._zero_columns(opcode, says))
        sources: list[TensorSource] = []
        parts = [self._part(work, number, cta, sources) for number, cta in enumerate(ctas)]
        return TensorOperation(
            kind="mma", pair=opcode.ctas == 2,
            pipe=(self.given["d"][0], says.m, says.n, opcode.kind.name, opcode.weight_stationary),
            sources=tuple(sources), destinations=tuple(part.destination for part in parts),
            run=partial(work.run, parts),
        )  # fmt: skip

    def _instruction(self, opcode: Opcode) -> Instruction:
        bits = self.given["idesc"][0]
        says = instruction_descriptor.decode(opcode.kind, bits)
        code = "sim/instruction-descriptor"
        if says is None:
            raise _Fault(
                code, f"the instruction descriptor {bits:#x} says nothing to {self.form.spelling}"
            )
        if says.long:
            self.machine.unsimulated(f"{self.form.spelling} with K={LONG_DEPTH}")
        k = opcode.kind.depths(opcode.ctas, opcode.weight_stationary)[0]
        row = opcode.kind.shape(opcode.ctas, opcode.weight_stationary, says.m, k)
        if row is None or says.n not in row.columns(says.b, "mn" if says.transpose_b else "k"):
            raise _Fault(
                code, f"the instruction descriptor {bits:#x} says M={says.m}, N={says.n}, which "
                f"{self.form.spelling} does not have"
            )  # fmt: skip
        for name, format_, turned, negated in (
            ("A", says.a, says.transpose_a, says.negate_a),
            ("B", says.b, says.transpose_b, says.negate_b),
        ):
            if (negated and not opcode.kind.negates) or (
                turned and not opcode.kind.mn_major(format_)
            ):
                raise _Fault(
                    code,
                    f"the instruction descriptor {bits:#x} turns or negates {name}, {format_.name}",
                )
        if says.a.name not in says.d.inputs or says.b.name not in says.d.inputs:
            raise _Fault(
                code, f"the instruction descriptor {bits:#x} has no such D, {says.d.dtype}"
            )
        return says

    def _zero_columns(self, opcode: Opcode, says: Instruction) -> npt.NDArray[np.bool_] | None:
        if "zero_column_mask" not in self.given:
            return None
        bits = self.given["zero_column_mask"][0]
        if bits & column_mask.RESERVED_BITS or column_mask.shift(bits) > says.max_shift:
            raise _Fault(
                "sim/zero-column-mask", f"the zero-column mask {bits:#x} has reserved bits, or shifts columns "
                f"further than the instruction descriptor allows, by {says.max_shift}"
            )  # fmt: skip
        if column_mask.shift(bits):
            self.machine.unsimulated("a zero-column mask that shifts columns")
        parts = datapath(says.m, opcode.ctas, opcode.weight_stationary).parts
        found = column_mask.zeros(bits, says.n, parts)
        if found is None:
            self.machine.unsimulated(
                f"the zero-column mask {bits:#x}, which skips more than the first run"
            )
        return found

    def _part(self, work: Work, number: int, cta: int, sources: list[TensorSource]) -> Part:
        def add(source: TensorSource) -> int:
            sources.append(source)
            return len(sources) - 1

        written, cells = self._accumulator(work, number, cta)
        a = self._in_tmem(work, cta) if isinstance(self.named["a"], Memory) else None
        factors = {
            name: self._factors(work, name, cta) for name in ("sfa", "sfb") if name in self.named
        }
        for name, source in factors.items():
            self._apart(name, source, cells)
        if a is not None:
            self._apart("a", a, cells)
        return Part(
            add(a or self._in_shared(work, "a", cta)),
            add(self._in_shared(work, "b", cta)),
            add(cells) if self.given["enable_input_d"][0] else None,
            tuple(add(source) for source in factors.values()),
            written,
            cells,
        )

    def _apart(self, name: str, source: TensorCells, written: TensorCells) -> None:
        """What is read lies in no cell of D: nothing says when an instruction writes which of them."""
        least, last = written.columns.min(), written.columns.max()
        if not ((source.columns >= least) & (source.columns <= last)).any():
            return  # as usual, and quickly seen
        read, sums = (c.lanes << LANE_SHIFT | c.columns for c in (source, written))
        shared = np.intersect1d(read, sums)
        if shared.size:
            lane, column = split_address(int(shared[0]))
            raise _Fault(
                "sim/tmem-overlap", f"{name} of {self.form.spelling} lies in {shared.size} cells that the "
                f"instruction writes D to while it reads them, lane {lane}, column {column} the first; expected "
                "cells of its own"
            )  # fmt: skip

    def _address(self, name: str) -> tuple[int, int]:
        return split_address(self.given[name][0])

    def _cells(
        self, name: str, cta: int, lanes: IntArray, columns: IntArray, mask: int = 0xFFFF_FFFF
    ) -> TensorCells:
        lane, column = self._address(name)
        return TensorCells(
            self.named[name], cta, lanes.reshape(-1) + lane, columns.reshape(-1) + column, mask
        )

    def _begins(self, name: str, lanes: tuple[int, ...]) -> None:
        found = self._address(name)[0]
        if found not in lanes:
            raise _Fault(
                "sim/tmem-lane", f"{name} of {self.form.spelling} begins in lane {found}, expected "
                f"{listed(lanes, 'or')}"
            )  # fmt: skip

    def _accumulator(
        self, work: Work, number: int, cta: int
    ) -> tuple[npt.NDArray[np.bool_], TensorCells]:
        """Which of D's cells are written, and the cells."""
        self._begins("d", work.path.first_lanes)
        lanes, columns = work.path.accumulator(work.says.n)
        words = self.given.get("disable_output_lane", [])[LANE_WORDS * number :][:LANE_WORDS]
        kept = np.zeros(SLABS * SLAB_LANES, np.bool_)
        if words:
            kept = np.unpackbits(np.asarray(words, "<u4").view(np.uint8), bitorder="little").astype(
                np.bool_
            )
        written = ~kept[lanes + self._address("d")[0]]
        mask = 0xFFFF if work.says.d.dtype.bits == 16 else 0xFFFF_FFFF
        return written, self._cells("d", cta, lanes[written], columns[written], mask)

    def _in_tmem(self, work: Work, cta: int) -> TensorCells:
        """A, of every part of the columns: (parts, rows, cells of a row)."""
        self._begins("a", (self._address("d")[0],))
        if work.says.transpose_a:
            raise _Fault(
                "sim/instruction-descriptor", "A in tensor memory runs along K, the bits say M"
            )
        columns = np.arange(work.k * work.says.a.stored.bits // CELL_BITS, dtype=np.int64)
        lanes = work.path.part_lanes[:, None, None] + work.path.row_lanes[:, None]
        lanes, columns = np.broadcast_arrays(lanes, columns)
        return self._cells("a", cta, lanes, columns)

    def _in_shared(self, work: Work, name: str, cta: int) -> SharedBlocks:
        """A's or B's blocks of 16 bytes in one CTA, as ``Work.from_shared`` takes them."""
        bits, format_, major, rows = self.given[name][0], *work.side(name)
        fields = descriptor.sm_100_fields(bits)
        if fields is None:
            self.machine.unsimulated(
                f"a matrix descriptor {bits:#x}, with a base offset, an absolute LDO or other bits that the "
                "contract leaves out"
            )
        assert fields is not None
        if major == "k" and fields.mode == descriptor.WIDE_ATOMS:
            self.machine.unsimulated(f"K-major {name} with {descriptor.mode_text(fields.mode)}")
        if fields.mode not in descriptor.modes_of(format_.stored.bits, major):
            raise _Fault(
                "sim/matrix-descriptor", f"{name} is {format_.name} along {major}, which a matrix descriptor "
                f"with {descriptor.mode_text(fields.mode)} does not walk"
            )  # fmt: skip
        at = descriptor.chunk_addresses(fields, (rows, work.k), format_.stored.bits, major)
        return SharedBlocks(self.named[name], cta, at.reshape(-1))

    def _factors(self, work: Work, name: str, cta: int) -> TensorCells:
        """Scale factors of every row in every slab: (slabs, rows). Where D's columns are in parts, a slab has
        those of its part, and what stands for the others is not looked at."""
        self._begins(name, (0,))
        rows, parts, byte = (
            (work.path.rows, 1, work.says.sfa_byte)
            if name == "sfa"
            else (work.says.n, work.path.parts, work.says.sfb_byte)
        )
        assert work.scale is not None, "the opcode has scale factors"
        if byte not in work.scale.ids(work.k):
            raise _Fault(
                "sim/instruction-descriptor", f"{name} of {self.form.spelling} starts in byte {byte} of a column: "
                f"{work.factors} factors are aligned to their number"
            )  # fmt: skip
        lanes, columns = factor_cells(rows, parts)
        lanes, columns = np.broadcast_arrays(
            lanes + SLAB_LANES * np.arange(SLABS)[:, None], columns
        )
        mask = ((1 << FACTOR_BITS * work.factors) - 1) << FACTOR_BITS * byte
        return self._cells(name, cta, lanes, columns, mask)


FAMILY = Family(
    name="tcgen05_mma", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="all but .ashift, a scaled old D, K=96, shifted columns and K-major 32-byte atoms", contract=CONTRACT,
)  # fmt: skip
