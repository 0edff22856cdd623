"""Copies and reductions of boxes of a tensor map: cp.async.bulk.tensor, cp.reduce.async.bulk.tensor.

Contract: docs/contract/cp_async_bulk_tensor.md. The author counts dimensions outermost first, PTX and
tensor maps innermost first: ``tile.map_spec`` and ``bind`` turn the order round.

Not here: which spellings exist (``ptx.tables.cp_async_bulk_tensor``), the hardware's rules for a map
(``ir.tensor_map``), encoding one (``runtime``), groups of bulk copies and their waits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.errors import Report
from tilejit.ir import build, nodes, tensor_map
from tilejit.ir.tensor_map import FORMATS, Number, TensorMap, TensorMapSpec
from tilejit.layout import ComposeLayout
from tilejit.ptx.forms import Form
from tilejit.ptx.spelling import lookup
from tilejit.sim import numeric
from tilejit.sim.numeric import boxes, reduction
from tilejit.tile import addresses, box_image, cluster, contracts, cta_pair, map_spec, raw
from tilejit.tile.affine import Affine
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import (
    CACHE_POLICY,
    CTA_WINDOW_BYTES,
    NO_SOURCE,
    PRED,
    BitArray,
    Chunks,
    Combine,
    Family,
    Issue,
    Machine,
    Memory,
    NativeOperand,
    Param,
    Registers,
    Step,
    TensorBox,
    Transfer,
    Value,
    only,
)
from tilejit.tile.map_spec import Fields
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/cp_async_bulk_tensor.md"
ORIGIN_ALIGN_BYTES = 128
"""Of every box in shared memory, before any swizzle."""
GATHERED_ROWS = 4

# --- parameters

PARAMS = (
    Param(
        "box", "static", "tuple of int", None,
        "One extent per dimension of the opcode, outermost first, each 1..256.", required=True,
    ),
    Param(
        "coords", "runtime", "tuple of int", None,
        "Where the box starts in the tensor, outermost first.", required=True,
    ),
    Param(
        "coord_steps", "static", "tuple of tuples of int", (),
        "What each group and repeat axis adds to the coordinates.",
    ),
    Param("format", "static", "str", None, "Elements of the tensor map; tf32 over float32."),
    Param("element_strides", "static", "tuple of int", None, "Steps along each dimension, 1..8."),
    Param("swizzle", "static", "int", 0, "0 none, 1 32 bytes, 2 64 bytes, 3 128 bytes."),
    Param("interleave", "static", "int", 0, "0 none, 1 16-byte slices, 2 32-byte slices."),
    Param("l2_promotion", "static", "int", 0, "0 none, 1 64, 2 128, 3 256 bytes."),
    Param("oob_fill", "static", "int", 0, "Outside the tensor: 0 zeros, 1 NaN."),
    Param("gather4", "runtime", "tuple of int", None, "The four rows of a gather or scatter."),
    Param("mbar", "runtime", "pointer", None, "The mbarrier that a load completes bytes on."),
    Param("cta_mask", "runtime", "integer", None, "The CTAs of a multicast, one bit per rank."),
    CACHE_POLICY,
    PRED,
)  # fmt: skip

# --- operands
#
# shared, global for loads; global, shared for stores and reductions; global for a prefetch. The shared
# operand is (*group, *repeat, *image).

REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("uint32", "int32", "uint64", "float16", "bfloat16", "float32", "float64"),
    **dict.fromkeys(("min", "max"), ("uint32", "int32", "uint64", "int64", "float16", "bfloat16")),
    **dict.fromkeys(("inc", "dec"), ("uint32",)),
    **dict.fromkeys(("and", "or", "xor"), ("uint32", "int32", "uint64")),
}
"""The formats that each operation has. Bits of int64 maps are an illegal instruction on an H200."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What a spelling says."""

    rank: int
    loads: bool
    prefetches: bool
    reduction: str | None
    gathers: bool
    """Four rows of their own: gather4 or scatter4."""
    multicasts: bool

    @staticmethod
    def of(form: Form) -> Mode:
        words = form.modifiers
        return Mode(
            rank=next(int(w[0]) for w in words if w in ("1d", "2d", "3d", "4d", "5d")),
            loads="mbarrier::complete_tx::bytes" in words,
            prefetches="prefetch" in words,
            reduction=next((w for w in words if w in REDUCTIONS), None) if "reduce" in words else None,
            gathers="tile::gather4" in words or "tile::scatter4" in words,
            multicasts="multicast::cluster" in words,
        )  # fmt: skip

    def operands(self) -> tuple[str, ...]:
        if self.prefetches:
            return ("global",)
        return ("shared", "global") if self.loads else ("global", "shared")


def _image(fields: Fields, mode: Mode, dtype: dtypes.DType) -> tuple[int, ...]:
    """The shape of one box in shared memory, in elements of ``dtype``."""
    if mode.gathers:
        return (GATHERED_ROWS, fields.box[1])
    taken = fields.taken()
    if not fields.interleave:
        return taken
    # One issue moves one slice of channels, however many the box names.
    slice_elems = tensor_map.INTERLEAVE_BYTES[fields.interleave] * 8 // dtype.bits
    return (taken[0], 1, *taken[2:], slice_elems)


# --- legality


def check(call: TileCall, report: Report) -> None:
    mode = Mode.of(call.forms[0])
    if len(call.operands) != len(mode.operands()):
        report.error(
            _code("operand-count"),
            f"{call.spelling} was given {len(call.operands)} operands, it takes "
            f"{len(mode.operands())}: {', '.join(mode.operands())}",
            span=call.span, contract=CONTRACT,
            help="the barrier, the mask and the policy are keywords: mbar=, cta_mask=, cache_policy=",
        )  # fmt: skip
        return
    before = len(report.diagnostics)
    shared, global_ = _operands(call, mode)
    contracts.cache_policy(call, report)
    cta_pair.check(call, report)
    _check_presence(call, mode, report)
    _check_tuples(call, mode, report)
    if shared is not None and not _check_shared_kind(call, shared, report):
        return
    if not _check_global_kind(call, global_, report):
        return
    fields = _check_fields(call, mode, shared, global_, report)
    if fields is None or len(report.diagnostics) > before:
        return
    _check_map(call, mode, fields, global_, report)
    if shared is None:
        _check_steps(call, mode, len(call.group.shape), report)
    elif len(report.diagnostics) == before:
        _check_shared(call, mode, fields, shared, report)
    if len(report.diagnostics) == before:
        _check_places(call, mode, fields, report)


def _code(what: str) -> str:
    return f"cp_async_bulk_tensor/{what}"


def _operands(
    call: TileCall, mode: Mode
) -> tuple[TensorOperand | ScalarOperand | None, TensorOperand | ScalarOperand]:
    if mode.prefetches:
        return None, call.operands[0]
    first, second = call.operands
    return (first, second) if mode.loads else (second, first)


def _check_presence(call: TileCall, mode: Mode, report: Report) -> None:
    """Keywords that some opcodes need and others cannot take."""
    wanted = (
        ("mbar", mode.loads, "a load completes its bytes on an mbarrier",
         "a prefetch completes nowhere" if mode.prefetches else "stores belong to the bulk group"),
        ("cta_mask", mode.multicasts, "a multicast needs the mask of its CTAs", "only .multicast::cluster takes it"),
        ("gather4", mode.gathers, "the four rows are given one by one", "only gather4 and scatter4 take rows"),
    )  # fmt: skip
    for name, needed, why, why_not in wanted:
        given = call.params[name] is not None
        if given == needed:
            continue
        report.error(
            _code(name.replace("_", "-")),
            f"{call.spelling} needs {name}=: {why}"
            if needed
            else f"{call.spelling} has no {name}: {why_not}",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
    mbar = call.params["mbar"]
    if mode.loads and mbar is not None:
        contracts.barrier_aligned(call, mbar, report)
        if mbar.type not in (nodes.PointerType("shared"), nodes.UINT32):
            report.error(
                _code("mbar"),
                f"mbar is {_shown(mbar)}, expected a shared address",
                span=call.span, contract=CONTRACT, help="mbar=barriers.ptr_to([stage])",
            )  # fmt: skip
    _check_mask(call, report)


def _check_mask(call: TileCall, report: Report) -> None:
    mask = call.params["cta_mask"]
    if mask is None:
        return
    if not _is_integer(mask):
        report.error(
            _code("cta-mask"), f"cta_mask is {_shown(mask)}, expected an integer of 16 bits",
            span=call.span, contract=CONTRACT, help="bit r stands for the CTA of rank r",
        )  # fmt: skip
        return
    contracts.cta_mask(call, mask, report)


def _is_integer(value: object) -> bool:
    type_ = getattr(value, "type", None)
    return isinstance(type_, nodes.ScalarType) and type_.dtype.is_integer


def _shown(value: nodes.Expr) -> str:
    """A keyword's value for messages: itself where it is known, else its type."""
    if isinstance(value, nodes.Static | nodes.Const | nodes.Text):
        return repr(value.value)
    if isinstance(value, nodes.Tuple):
        return f"({', '.join(map(_shown, value.items))})"
    return f"a {value.type}"


def _expressions(value: object) -> tuple[nodes.Expr, ...] | None:
    """A run-time tuple of integers; None for anything else."""
    if isinstance(value, nodes.Static) and isinstance(value.value, tuple):
        if all(isinstance(v, int) and not isinstance(v, bool) for v in value.value):
            return tuple(nodes.Const(v, nodes.INT32) for v in value.value)
    if isinstance(value, nodes.Tuple) and all(map(_is_integer, value.items)):
        return value.items
    return None


def _check_tuples(call: TileCall, mode: Mode, report: Report) -> None:
    """Coordinates and rows are as many int32 as the opcode takes."""
    for name, count in (("coords", mode.rank), ("gather4", GATHERED_ROWS)):
        value = call.params[name]
        if value is None:
            continue
        found = _expressions(value)
        if found is None or len(found) != count:
            each = f"one per dimension of {call.spelling}" if name == "coords" else "the rows"
            report.error(
                _code(name), f"{name} is {_shown(value)}, expected {count} integers: {each}",
                span=call.span, contract=CONTRACT,
                help="one dimension is written coords=(i,)" if count == 1
                else "T.cast(x, ty=\"int32\") makes an integer" if found is None else None,
            )  # fmt: skip
            continue
        for number, item in enumerate(found):
            low, high = call.context.range(call.evaluator.integer(item))
            if low > 2**31 - 1 or high < -(2**31):
                report.error(
                    _code(name), f"{name}[{number}] is {low}..{high}, expected an int32",
                    span=call.span, contract=CONTRACT,
                )  # fmt: skip


def _check_shared_kind(
    call: TileCall, operand: TensorOperand | ScalarOperand, report: Report
) -> bool:
    if not contracts.is_tensor(operand, call, report):
        return False
    if operand.space == "global":
        mode = Mode.of(call.forms[0])
        report.error(
            _code("direction"),
            f"{call.spelling} was given a global tensor where shared memory belongs, expected "
            f"{', '.join(mode.operands())}",
            span=operand.span, contract=CONTRACT,
        )  # fmt: skip
        return False
    return contracts.in_space(call, operand, ("shared",), report)


def _check_global_kind(
    call: TileCall, operand: TensorOperand | ScalarOperand, report: Report
) -> bool:
    if isinstance(operand, TensorOperand):
        if operand.view.layout is None:
            report.error(
                "tile/layout", f"{operand.name} has no layout, so its strides are not known",
                span=operand.span, declared=operand.declared(), contract=CONTRACT,
            )  # fmt: skip
            return False
        return contracts.in_space(call, operand, ("global",), report)
    if operand.expr.type == nodes.PointerType("global"):
        return True
    report.error(
        _code("map"),
        f"{operand.name} is a {operand.expr.type}, expected a global tensor or the global address of "
        "an encoded tensor map",
        span=operand.span, contract=CONTRACT,
        help="maps.ptr_to([0]) of what tile.encode_tensor_map(…) gave",
    )  # fmt: skip
    return False


# --- fields


def _check_fields(
    call: TileCall,
    mode: Mode,
    shared: TensorOperand | ScalarOperand | None,
    global_: TensorOperand | ScalarOperand,
    report: Report,
) -> Fields | None:
    """The static parameters, when each is of its type and the modes are known."""
    before = len(report.diagnostics)
    box = _integers(call, "box", mode.rank, report)
    steps = (1,) * mode.rank
    if call.params["element_strides"] is not None:
        steps = _integers(call, "element_strides", mode.rank, report) or steps
    modes: dict[str, int] = {}
    for name, most in (("swizzle", 3), ("interleave", 2), ("l2_promotion", 3), ("oob_fill", 1)):
        value = call.params[name]
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most:
            modes[name] = value
            continue
        report.error(
            _code(name.replace("_", "-")), f"{name} is {value!r}, expected 0 to {most}",
            span=call.span, contract=CONTRACT,
            help=next(param.doc for param in PARAMS if param.name == name),
        )  # fmt: skip
    format_ = _format(call, shared, global_, report)
    if len(report.diagnostics) > before or box is None or format_ is None:
        return None
    fields = Fields(
        box, steps, modes["swizzle"], modes["interleave"], modes["l2_promotion"], modes["oob_fill"],
        format_,
    )  # fmt: skip
    _check_mode(call, mode, fields, report)
    return fields if len(report.diagnostics) == before else None


def _integers(call: TileCall, name: str, count: int, report: Report) -> tuple[int, ...] | None:
    value = call.params[name]
    right = isinstance(value, tuple) and all(
        isinstance(v, int) and not isinstance(v, bool) for v in value
    )
    if right and len(value) == count:
        return tuple(value)
    report.error(
        _code(name.replace("_", "-")),
        f"{name} is {value!r}, expected {count} integers: one per dimension of {call.spelling}",
        span=call.span, contract=CONTRACT,
        help="one dimension is written (n,)" if count == 1 else None,
    )  # fmt: skip
    return None


def _format(
    call: TileCall,
    shared: TensorOperand | ScalarOperand | None,
    global_: TensorOperand | ScalarOperand,
    report: Report,
) -> str | None:
    """The map's format, and whether both sides hold such elements."""
    source = global_ if isinstance(global_, TensorOperand) else shared
    wanted = call.params["format"]
    if not isinstance(source, TensorOperand):
        return _format_of_nothing(call, report)
    format_ = tensor_map.format_of(source.dtype, wanted)
    if format_ is None:
        report.error(
            _code("format"),
            f"format {source.dtype.name if wanted is None else wanted!r} is none for {source.dtype} elements, expected "
            f"{tensor_map.default_format(source.dtype) or 'another dtype'}"
            + (" or tf32" if source.dtype == dtypes.float32 else ""),
            span=call.span, contract=CONTRACT,
            help="view the tensor as the type that its elements have",
        )  # fmt: skip
        return None
    if not isinstance(shared, TensorOperand):
        return format_
    expected = "uint8" if format_ == tensor_map.PADDED else source.dtype.name
    if shared.dtype.name != expected:
        report.error(
            _code("operand-type"),
            f"{shared.name} holds {shared.dtype} elements, the tensor {source.dtype}, expected "
            f"{expected} in shared memory",
            span=shared.span, declared=shared.declared(), contract=CONTRACT,
            help=f'.view("{expected}") shows the same bytes',
        )  # fmt: skip
        return None
    return format_


def _format_of_nothing(call: TileCall, report: Report) -> str | None:
    """Of a prefetch through the caller's own map, which no tensor tells: what the call says, if it does."""
    wanted = call.params["format"]
    if wanted is None or wanted in FORMATS:
        return wanted or "uint8"
    report.error(
        _code("format"), f"format is {wanted!r}, expected one of {', '.join(FORMATS)}",
        span=call.span, contract=CONTRACT,
    )  # fmt: skip
    return None


def _check_mode(call: TileCall, mode: Mode, fields: Fields, report: Report) -> None:
    """What an opcode asks of the fields."""
    if mode.gathers and (fields.box[0] != 1 or fields.interleave):
        report.error(
            _code("box"),
            f"{call.spelling} has box {fields.box} and interleave {fields.interleave}, expected "
            "(1, width) and 0: each of its four rows is a box of its own",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
    legal = REDUCTIONS.get(mode.reduction or "")
    if legal is not None and fields.format not in legal:
        report.error(
            _code("format"),
            f"there is no .{mode.reduction} on {fields.format} elements, expected {', '.join(legal)}",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
    if fields.format == tensor_map.PADDED and not (mode.loads or mode.prefetches):
        report.error(
            _code("format"), f"{fields.format} can be loaded only, not stored",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip


# --- the map


def _check_map(
    call: TileCall,
    mode: Mode,
    fields: Fields,
    global_: TensorOperand | ScalarOperand,
    report: Report,
) -> None:
    rank = mode.rank
    if isinstance(global_, ScalarOperand):
        # What an encoded map says cannot be seen; what the call says of it can be wrong all the same.
        unknown: tuple[None, ...] = (None,) * rank
        _report_faults(call, _known(None, unknown, unknown[1:], fields), None, report)
        return
    wanted = rank + 1 if fields.interleave else rank
    if len(global_.view.shape) != wanted:
        axes = (
            "(N, C slices, *spatial, channels of a slice)" if fields.interleave else "the tensor's"
        )
        report.error(
            _code("rank"),
            f"{global_.name} has {len(global_.view.shape)} dimensions, {call.spelling} takes "
            f"{wanted}: {axes}",
            span=global_.span, declared=global_.declared(), contract=CONTRACT,
            help="an index keeps its axis with extent 1: .sub[i, …] drops it",
        )  # fmt: skip
        return
    if isinstance(global_.layout, ComposeLayout) or global_.tile.replica:
        report.error(
            _code("strides"),
            f"{global_.name} has a swizzled or replicated layout, expected one stride per dimension",
            span=global_.span, declared=global_.declared(), contract=CONTRACT,
        )  # fmt: skip
        return
    if not contracts.bounds(call, global_, report):
        return
    strides = map_spec.strides_of(call, global_, report)
    if strides is None or not map_spec.check_innermost(call, fields, global_, strides, report):
        return
    spec = map_spec.described(call, fields, global_, strides, report)
    if spec is None:
        return
    numbers = _known(
        None, tuple(map(_static, spec.dims)), tuple(map(_static, spec.strides_bytes)), fields
    )
    if _report_faults(call, numbers.settled(), global_, report):
        map_spec.check_base(call, numbers.align_bytes, spec, global_, report)


def _static(number: Number) -> int | None:
    return number if isinstance(number, int) else None


def _known(
    address: int | None,
    dims: tuple[int | None, ...],
    strides_bytes: tuple[int | None, ...],
    fields: Fields,
) -> TensorMap:
    return TensorMap(
        address, fields.format, dims, strides_bytes, fields.box[::-1], fields.element_strides[::-1],
        fields.interleave, fields.swizzle, fields.l2_promotion, fields.oob_fill,
    )  # fmt: skip


def _report_faults(
    call: TileCall, map_: TensorMap, global_: TensorOperand | None, report: Report
) -> bool:
    found = tensor_map.faults(map_)
    for fault in found:
        report.error(
            _code(fault.field), fault.message, span=call.span,
            declared=None if global_ is None else global_.declared(),
            contract=f"{CONTRACT}: descriptor fields", help=fault.help,
        )  # fmt: skip
    return not found


# --- the image in shared memory


def _check_shared(
    call: TileCall,
    mode: Mode,
    fields: Fields,
    shared: TensorOperand | ScalarOperand,
    report: Report,
) -> None:
    assert isinstance(shared, TensorOperand)
    image = _image(fields, mode, shared.dtype)
    laid = contracts.shaped(call, shared, image, report)
    if laid is None:
        return
    _check_steps(call, mode, laid.prefix + len(laid.repeat), report)
    if shared.tile.replica:
        report.error(
            _code("image"), f"{shared.name} has a replicated layout, expected one place per element",
            span=shared.span, declared=shared.declared(), contract=CONTRACT,
        )  # fmt: skip
        return
    origin = box_image.origin(call, laid, fields)
    if isinstance(origin, str):
        report.error(
            _code("image"),
            f"{shared.name} is not the image of a box with swizzle {fields.swizzle}: {origin}"
            f"{_gaps(fields, laid)}",
            span=shared.span, declared=shared.declared(),
            contract=f"{CONTRACT}: the shared image matches the descriptor",
            help="T.cuda.mma_shared_layout(shape, dtype) lays rows of up to 128 bytes out so, what is longer is a "
            f"repeat axis; {box_image.other_modes(call, laid, fields)}",
        )  # fmt: skip
        return
    period = box_image.period_bytes(fields.swizzle)
    if shared.buffer_type.align_bytes % period == 0:
        contracts.aligned(call, origin, ORIGIN_ALIGN_BYTES, report)
    else:
        report.error(
            _code("alignment"),
            f"{shared.view.buffer.name} is aligned to {shared.buffer_type.align_bytes} bytes, expected "
            f"{period}: the hardware swizzles addresses, {period} bytes at a time",
            span=shared.span, declared=shared.declared(), contract=CONTRACT,
            help=f"declare it with align={period}",
        )  # fmt: skip


def _gaps(fields: Fields, laid: Walk) -> str:
    """What a compact image lacks, where rows have gaps between them."""
    width, size = laid.atom[-1], laid.operand.dtype.bytes
    pitch = box_image.row_pitch_bytes(laid, fields)
    if pitch == width * size:
        return ""
    return (
        f": rows of {width * size} bytes lie {pitch} bytes apart with swizzle {fields.swizzle}, as in "
        f"[..., :{width}] of rows of {pitch // size} elements"
    )


def _check_steps(call: TileCall, mode: Mode, axes: int, report: Report) -> None:
    steps = call.params["coord_steps"]
    right = isinstance(steps, tuple) and all(
        isinstance(row, tuple)
        and len(row) == mode.rank
        and all(isinstance(v, int) and not isinstance(v, bool) for v in row)
        for row in steps
    )
    if not right or len(steps) != axes:
        report.error(
            _code("coord-steps"),
            f"coord_steps is {steps!r}, expected {axes} rows of {mode.rank} integers: one row per group "
            "and repeat axis",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
        return
    if mode.gathers and any(row[0] for row in steps):
        report.error(
            _code("coord-steps"),
            f"coord_steps is {steps!r}, expected 0 for the rows, which gather4 gives",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
        return
    furthest = max((abs(v) for row in (*steps, *_moves(call, mode)) for v in row), default=0)
    if furthest > 2**31 - 1:
        report.error(
            _code("coord-steps"),
            f"coord_steps is {steps!r}, which moves a coordinate by {furthest} elements, expected an "
            "int32",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip


# --- where boxes may start


def _check_places(call: TileCall, mode: Mode, fields: Fields, report: Report) -> None:
    """What ends the launch on the GPU, at the coordinates of every group member and repeat."""
    step = _innermost_step(call, mode, fields)
    writes = not mode.loads and not mode.prefetches
    innermost, moves = mode.rank - 1, _moves(call, mode)
    found = [(f"gather4[{number}]", row, 1) for number, row in enumerate(_rows(call))]
    for d, start in enumerate(_starts(call)):
        if mode.gathers and d != innermost:
            continue  # its rows are given one by one
        for move in sorted({m[d] for m in moves}):
            name = f"coords[{d}]" if move == 0 else f"coords[{d}] + {move}"
            place = build.add(start, build.const(move, dtypes.int32))
            found.append((name, place, step if d == innermost else 1))
    for name, place, wanted in found:
        value = call.evaluator.integer(place)
        if not call.context.divisible(value, wanted):
            _report_step(call, fields, name, value, wanted, report)
        elif writes and not call.context.prove_nonnegative(value):
            _report_negative(call, name, value, report)
        else:
            continue
        return


def _innermost_step(call: TileCall, mode: Mode, fields: Fields) -> int:
    """Of the innermost coordinate, in elements; 1 where nothing tells the map's format."""
    if isinstance(_operands(call, mode)[1], ScalarOperand) and mode.prefetches:
        if call.params["format"] is None:
            return 1
    return tensor_map.innermost_step_elems(fields.format, fields.interleave)


def _report_step(
    call: TileCall, fields: Fields, name: str, value: Affine, step: int, report: Report
) -> None:
    bits, where = FORMATS[fields.format].bits, None
    mod, rem = call.context.congruence(value)
    if mod % step:
        known = math.gcd(mod, step, int(np.gcd.reduce(np.atleast_1d(rem))))
        message = f"{name} is {value}, only known to be a multiple of {known}"
    else:
        left = np.broadcast_to(np.asarray(rem) % step, (call.context.threads.total,))
        first = int(np.flatnonzero(left[call.group.threads])[0])
        thread = int(call.group.threads[first])
        number, off = value.at(thread).constant, int(left[thread])
        shown = f"{off} above a multiple of {step}" if number is None else str(number)
        message = f"{name} is {shown}, {off * bits // 8} bytes off"
        where = None if value.constant is not None else call.group.describe(first)
    report.error(
        _code("coordinates"),
        f"{message}, expected a multiple of {step} {fields.format} elements, {step * bits // 8} bytes: "
        "any other innermost coordinate is an illegal instruction",
        span=call.span, where=where, contract=f"{CONTRACT}: coordinates",
        help=f"start boxes there, or promise it of a run-time value: T.assume(x % {step} == 0)",
    )  # fmt: skip


def _report_negative(call: TileCall, name: str, value: Affine, report: Report) -> None:
    example = contracts.counter_example(call, value, value)
    if example is None:
        low, high = call.context.range(value)
        where, message = None, f"could not prove {name} ≥ 0: it is {value}, ranging {low}..{high}"
    else:
        where, message = example[0], f"{name} is {example[1]}, expected 0 or more elements"
    report.error(
        _code("coordinates"),
        f"{message}; a store or reduction at a negative coordinate is an illegal instruction",
        span=call.span, where=where, contract=f"{CONTRACT}: coordinates",
        help="store the part that is inside, or promise it of a run-time value: T.assume(x >= 0)",
    )  # fmt: skip


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """For each repeat one instruction: the map, the coordinates innermost first, the origin of the
    box before its swizzle."""
    form, report = call.forms[0], Report()
    mode = Mode.of(form)
    shared, global_ = _operands(call, mode)
    fields = _check_fields(call, mode, shared, global_, report)
    assert fields is not None
    steps: list[Step] = []
    places: list[NativeOperand | None] = [None]
    coordinates: list[tuple[int, ...]] = [()]
    if shared is not None:
        laid = call.walk_of(0 if mode.loads else 1)
        origin = box_image.origin(call, laid, fields)
        assert isinstance(origin, Walk)
        lets, memories = addresses.memory_operands(call, origin)
        steps += lets
        places = list(memories)
        coordinates = laid.repeat_coordinates()
    map_: TensorMapSpec | nodes.Expr
    if isinstance(global_, ScalarOperand):
        map_ = global_.expr
    else:
        strides = map_spec.strides_of(call, global_, report)
        assert strides is not None
        spec = map_spec.described(call, fields, global_, strides, report)
        assert spec is not None
        map_ = spec
    extra = _extra(call, mode)
    starts, rows = _starts(call), _rows(call)
    for place, coordinate, move in zip(places, coordinates, _moves(call, mode)):
        moved = [build.add(s, build.const(m, dtypes.int32)) for s, m in zip(starts, move)]
        box = TensorBox(map_, (moved[-1], *rows) if mode.gathers else tuple(moved[::-1]))
        operands: tuple[NativeOperand, ...]
        if place is None:
            operands = (box, *extra)
        else:
            operands = (place, box, *extra) if mode.loads else (box, place, *extra)
        steps.append(Issue(form, operands, call.pred, False, coordinate, call.span))
    return steps


def _starts(call: TileCall) -> list[nodes.Expr]:
    """Where the box of the first repeat starts, outermost first, as int32."""
    starts = _expressions(call.params["coords"])
    assert starts is not None
    found: list[nodes.Expr] = []
    for d, start in enumerate(starts):
        total = build.cast(start, dtypes.int32)
        for axis, row in enumerate(call.params["coord_steps"][: len(call.group.shape)]):
            if row[d]:
                step = build.const(row[d], dtypes.int32)
                total = build.add(total, build.mul(addresses.coordinate(call.group, axis), step))
        found.append(total)
    return found


def _moves(call: TileCall, mode: Mode) -> list[tuple[int, ...]]:
    """What every repeat adds to the coordinates, outermost first."""
    repeats: list[tuple[int, ...]] = [()]
    if not mode.prefetches:
        repeats = call.walk_of(0 if mode.loads else 1).repeat_coordinates()
    rows = call.params["coord_steps"][len(call.group.shape) :]
    return [
        tuple(sum(index * row[d] for index, row in zip(repeat, rows)) for d in range(mode.rank))
        for repeat in repeats
    ]


def _rows(call: TileCall) -> list[nodes.Expr]:
    """The rows of a gather or scatter, as int32."""
    rows = call.params["gather4"]
    return [] if rows is None else [build.cast(r, dtypes.int32) for r in _expressions(rows) or ()]


def _extra(call: TileCall, mode: Mode) -> list[NativeOperand]:
    """Barrier, mask and policy, as far as the opcode has them."""
    found: list[NativeOperand] = []
    for spec in call.forms[0].operands:
        if spec.name == "mbar":
            found.append(raw.address(call.params["mbar"], spec))
        elif spec.name == "cta_mask":
            mask = build.cast(call.params["cta_mask"], dtypes.uint16)
            found.append(Registers((Value(mask),)))
        elif spec.name == "cache_policy":
            found.append(Registers((Value(call.params["cache_policy"]),)))
    return found


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Each thread's box is one transfer, a multicast one per destination. A prefetch changes nothing."""
    if issue.form.mnemonic == "prefetch":
        return
    mode = Mode.of(issue.form)
    operands = {spec.name: operand for spec, operand in zip(issue.form.operands, issue.operands)}
    box = operands["tensor"]
    assert isinstance(box, TensorBox)
    coords = [_per_lane(machine, c).astype(np.int32) for c in machine.read(box)]
    cluster.check_own(machine, issue.form.operands, issue.operands)
    for thread in machine.threads():
        map_ = machine.tensor_map(box, thread)
        at = tuple(int(c[thread]) for c in coords)
        if map_ is None or not _legal(machine, thread, mode, map_, at) or mode.prefetches:
            continue
        found = boxes.boxed(map_, at, mode.gathers)
        if mode.loads:
            _load(machine, thread, issue.form, operands, map_, found)
        else:
            _store(machine, thread, operands, mode, map_, found)


def _legal(
    machine: Machine, thread: tuple[int, int], mode: Mode, map_: TensorMap, at: tuple[int, ...]
) -> bool:
    """Whether the hardware takes these coordinates, innermost first; reports a fault where it does not."""
    step = tensor_map.innermost_step_elems(map_.format, map_.interleave)
    shown = f"coordinates {at[0]}, {at[1:]}" if mode.gathers else f"coordinates {at[::-1]}"
    wrong = None
    if at[0] % step:
        bits = FORMATS[map_.format].bits
        wrong = (
            f"the innermost, {at[0]}, is {at[0] % step * bits // 8} bytes above a multiple of {step} "
            f"{map_.format} elements, {step * bits // 8} bytes"
        )
    elif min(at) < 0 and not (mode.loads or mode.prefetches):
        wrong = f"{min(at)} is negative, which a store or reduction may not be"
    if wrong is not None:
        message = f"a box at {shown} is an illegal instruction: {wrong}"
        machine.fault("sim/coordinates", message, only(machine, thread))
    return wrong is None


def _per_lane(machine: Machine, values: BitArray) -> BitArray:
    return np.broadcast_to(values, machine.active().shape)


def _load(
    machine: Machine,
    thread: tuple[int, int],
    form: Form,
    operands: dict[str, NativeOperand],
    map_: TensorMap,
    found: boxes.Boxed,
) -> None:
    dst, mbar = operands["dst"], operands["mbar"]
    assert isinstance(dst, Memory) and isinstance(mbar, Memory)
    origin, barrier = int(machine.address(dst)[thread]), int(machine.address(mbar)[thread])
    if not _aligned(machine, thread, origin):
        return
    places = tensor_map.swizzled(origin + found.offsets, map_.swizzle)
    copy = Transfer(
        Chunks(dst, "shared", places, found.nbytes),
        Chunks(operands["tensor"], "global", found.sources, found.nbytes),
        boxes.fill(map_, found.nbytes), None, barrier, found.payload_bytes,
        convert=_rounded_to_tf32 if map_.format == "tf32" else None,
    )  # fmt: skip
    paired, mask = cta_pair.works_on_pair(form), None
    if "cta_mask" in operands:
        mask = int(_per_lane(machine, machine.read(operands["cta_mask"])[0])[thread])
    else:
        cluster.check_barrier(machine, thread, origin, barrier, paired=paired)
    for one in cluster.to_each(machine, thread, copy, mask, paired=paired):
        machine.transfer(thread, one)


def _rounded_to_tf32(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Loads of tf32 maps round to nearest even, as an H200 does."""
    (form,) = lookup("cvt.rn.tf32.f32")
    words = np.ascontiguousarray(data).view(np.uint32)
    return numeric.compute(form, [words])[0].astype(np.uint32).view(np.uint8).reshape(data.shape)


def _aligned(machine: Machine, thread: tuple[int, int], origin: int) -> bool:
    """Whether a box's origin is where the hardware takes one; reports a fault where it is not."""
    left = origin % CTA_WINDOW_BYTES % ORIGIN_ALIGN_BYTES
    if left:
        machine.fault(
            "sim/alignment",
            f"a box in shared memory starts {left} bytes above a multiple of {ORIGIN_ALIGN_BYTES}",
            only(machine, thread),
        )
    return not left


def _store(
    machine: Machine,
    thread: tuple[int, int],
    operands: dict[str, NativeOperand],
    mode: Mode,
    map_: TensorMap,
    found: boxes.Boxed,
) -> None:
    """What lies outside the tensor is not written."""
    src = operands["src"]
    assert isinstance(src, Memory)
    origin = int(machine.address(src)[thread])
    if not _aligned(machine, thread, origin):
        return
    kept = found.sources != NO_SOURCE
    places = tensor_map.swizzled(origin + found.offsets, map_.swizzle)
    combine = None
    if mode.reduction is not None:
        combine = _elementwise(map_, mode.reduction)
    copy = Transfer(
        Chunks(operands["tensor"], "global", found.sources[kept], found.nbytes),
        Chunks(src, "shared", places[kept], found.nbytes),
        None, combine, None, 0,
    )  # fmt: skip
    machine.transfer(thread, copy)


_PTX_TYPES = {
    "uint32": "u32", "int32": "s32", "uint64": "u64", "int64": "s64",
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
}  # fmt: skip


def _elementwise(map_: TensorMap, operation: str) -> Combine:
    type_ = _PTX_TYPES[map_.format]
    if operation in ("and", "or", "xor"):
        type_ = f"b{FORMATS[map_.format].bits}"
    return reduction.combination(operation, type_)


FAMILY = Family(
    name="cp_async_bulk_tensor", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
