"""From a region of a global tensor to the tensor map that a launch encodes of it.

A map describes a rectangle: one stride per dimension, the innermost one element. Sizes, strides and the
region's start may be computed, from what a launch knows. Source: contract "operands and descriptor
fields". Not here: the hardware's rules (``ir.tensor_map``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tilejit import dtypes
from tilejit.errors import Report
from tilejit.ir import build, linear, nodes, tensor_map
from tilejit.ir.tensor_map import Number, TensorMapSpec
from tilejit.ir.walk import descend
from tilejit.layout import MEMORY_AXIS, Iter
from tilejit.tile import contracts
from tilejit.tile.affine import Affine
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.region import dimensions


@dataclass(frozen=True, slots=True)
class Fields:
    """What the call says of its map, outermost first."""

    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int
    l2_promotion: int
    oob_fill: int
    format: str

    def taken(self) -> tuple[int, ...]:
        """Elements of a box along each dimension that are moved."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides))


def _code(call: TileCall, what: str) -> str:
    return f"{call.family}/{what}"


def strides_of(
    call: TileCall, operand: TensorOperand, report: Report
) -> tuple[nodes.Expr | int, ...] | None:
    """The stride of every dimension in elements."""
    pieces = dimensions(operand.tile, operand.view.shape)
    run_time = dict(operand.view.dynamic_strides)
    found: list[nodes.Expr | int] = []
    for d in range(len(operand.view.shape)):
        single = None if pieces is None else _single_stride(pieces[d])
        if single is None:
            report.error(
                _code(call, "strides"),
                f"dimension {d} of {operand.name} has more than one stride, expected one: a tensor map "
                "describes a rectangle",
                span=operand.span, declared=operand.declared(), contract=call.contract,
                help="give the parts of the dimension dimensions of their own: .view(…)",
            )  # fmt: skip
            return None
        found.append(run_time.get(d, single))
    return tuple(found)


def _single_stride(iters: tuple[Iter, ...]) -> int | None:
    """The one stride of a dimension's iters; 0 for a dimension of one element."""
    for outer, inner in itertools.pairwise(iters):
        if outer.stride != inner.stride * inner.extent:
            return None
    return iters[-1].stride if iters else 0


def check_innermost(
    call: TileCall,
    fields: Fields,
    operand: TensorOperand,
    strides: Sequence[nodes.Expr | int],
    report: Report,
) -> bool:
    """Innermost elements lie side by side; with interleaving, slices of channels do as well."""
    last = len(strides) - 1
    step = strides[last] if operand.view.shape[last] != 1 else 1
    known = _known(call, step)
    if known != 1:
        report.error(
            _code(call, "stride"),
            f"the innermost stride of {operand.name} is {_stride_text(known)}, expected 1 element",
            span=operand.span, declared=operand.declared(), contract=call.contract,
            help="of a transposed tensor, .permute(…) in the kernel makes the dimension whose elements lie "
            "side by side the last; of any other, pass a .contiguous() copy",
        )  # fmt: skip
        return False
    if not fields.interleave:
        return True
    nbytes = tensor_map.INTERLEAVE_BYTES[fields.interleave]
    channels = operand.view.shape[last]
    size = channels * operand.dtype.bits if isinstance(channels, int) else None
    if size != nbytes * 8 or operand.extents[last] not in (-1, channels):
        report.error(
            _code(call, "interleave"),
            f"the last dimension of {operand.name} holds {channels} elements of {operand.dtype}, "
            f"expected one slice of {nbytes} bytes",
            span=operand.span, declared=operand.declared(), contract=call.contract,
        )  # fmt: skip
        return False
    spatial = _known(call, strides[last - 1])
    if operand.view.shape[last - 1] != 1 and spatial != channels:
        report.error(
            _code(call, "stride"),
            f"the innermost spatial stride of {operand.name} is {_stride_text(spatial)}, expected "
            f"{channels} elements: one slice",
            span=operand.span, declared=operand.declared(), contract=call.contract,
        )  # fmt: skip
        return False
    return True


def _known(call: TileCall, value: nodes.Expr | int) -> int | None:
    return value if isinstance(value, int) else call.evaluator.integer(value).constant


def _stride_text(known: int | None) -> str:
    return "a run-time value" if known is None else f"{known} elements"


def described(
    call: TileCall,
    fields: Fields,
    operand: TensorOperand,
    strides: Sequence[nodes.Expr | int],
    report: Report,
) -> TensorMapSpec | None:
    """The map of a global region, innermost dimension first; None, with a report, where a launch
    cannot tell its numbers."""
    kept = len(strides) - (1 if fields.interleave else 0)
    offset: nodes.Expr | int = build.index_add(
        operand.view.offset_elems, dict(operand.tile.offset).get(MEMORY_AXIS, 0)
    )
    for start, stride in zip(operand.starts, strides):
        offset = build.index_add(offset, build.index_mul(start, stride))
    taken = [("its start", offset)]
    for d, stride in enumerate(strides[: kept - 1]):
        if operand.view.shape[d] != 1:
            taken.append((f"the stride of dimension {d}", stride))
    if not all([_whole_bytes(call, operand, what, number, report) for what, number in taken]):
        return None
    base = _number(call, _in_bytes(offset, operand.dtype))
    if base is None:
        report.error(
            _code(call, "base"),
            f"{operand.name} starts where only the device can tell: the launch encodes the tensor's "
            "origin from sizes, strides and scalar parameters",
            span=operand.span, declared=operand.declared(), contract=call.contract,
            help="pass the whole tensor, and what varies as coords=",
        )  # fmt: skip
        return None
    dims: list[nodes.Expr | int] = [
        extent if extent != -1 else operand.view.shape[d]
        for d, extent in enumerate(operand.extents)
    ]
    packed = operand.dtype.bits // tensor_map.FORMATS[fields.format].bits
    if packed > 1:  # bytes that hold several elements of the map
        last = dims[kept - 1]
        dims[kept - 1] = last * packed if isinstance(last, int) else build.index_mul(last, packed)
    numbers: list[Number] = []
    for number in (*dims[:kept], *(_in_bytes(s, operand.dtype) for s in strides[: kept - 1])):
        host = _number(call, number)
        if host is None:
            report.error(
                _code(call, "strides"),
                f"a size or stride of {operand.name} is not known to the launch",
                span=operand.span, declared=operand.declared(), contract=call.contract,
            )  # fmt: skip
            return None
        numbers.append(host)
    return TensorMapSpec(
        operand.view.buffer.name, base, fields.format, tuple(numbers[:kept][::-1]),
        tuple(numbers[kept:][::-1]), fields.box[::-1], fields.element_strides[::-1],
        fields.interleave, fields.swizzle, fields.l2_promotion, fields.oob_fill, span=operand.span,
    )  # fmt: skip


def _whole_bytes(
    call: TileCall, operand: TensorOperand, what: str, elements: nodes.Expr | int, report: Report
) -> bool:
    """Whether elements, of which a byte may hold several, add up to bytes."""
    per_byte = max(1, 8 // operand.dtype.bits)
    value = Affine(elements) if isinstance(elements, int) else call.evaluator.integer(elements)
    if call.context.divisible(value, per_byte):
        return True
    report.error(
        _code(call, "strides"),
        f"{operand.name}: {what} is {value} elements of {operand.dtype.bits} bits, expected a multiple "
        f"of {per_byte}: whole bytes",
        span=operand.span, declared=operand.declared(), contract=call.contract,
    )  # fmt: skip
    return False


def _in_bytes(elements: nodes.Expr | int, dtype: dtypes.DType) -> nodes.Expr | int:
    if isinstance(elements, int):
        return elements * dtype.bits // 8
    if dtype.bits % 8:
        return linear.index_floordiv(elements, 8 // dtype.bits)
    return build.index_mul(elements, dtype.bytes)


def _number(call: TileCall, value: nodes.Expr | int) -> Number | None:
    """``value`` as a number or as an expression that a launch can compute."""
    if isinstance(value, int):
        return value
    known = _known(call, value)
    if known is not None:
        return known
    for node in descend(value):
        host = isinstance(
            node, nodes.Const | nodes.Binary | nodes.Unary | nodes.Cast | nodes.Select | nodes.ScalarType
        )  # fmt: skip
        if not host and not (isinstance(node, nodes.Var) and node.name in call.launch_scalars):
            return None
    return value


def check_base(
    call: TileCall, align: int, spec: TensorMapSpec, operand: TensorOperand, report: Report
) -> None:
    """What is known of the tensor's start at compile time: its declaration and its offset."""
    declared = operand.buffer_type.align_bytes
    offset = spec.offset_bytes
    known = offset if isinstance(offset, int) else None
    if known is None and isinstance(offset, nodes.Expr):
        known = linear.divisor(offset)
    if declared % align == 0 and known is not None and known % align == 0:
        return
    if declared % align == 0 and not isinstance(offset, int):
        return  # the launch checks it
    if declared % align:
        message = (
            f"{operand.name} needs a {align}-byte aligned start, but {operand.view.buffer.name} is only "
            f"known to be aligned to {declared} bytes"
        )
        help_: str | None = contracts.align_help(operand, align)
    else:
        message = (
            f"{operand.name} starts {known} bytes into {operand.view.buffer.name}, expected a multiple "
            f"of {align} bytes"
        )
        help_ = "pass the whole tensor, and where the box starts as coords="
    report.error(
        _code(call, "base"), message, span=operand.span, declared=operand.declared(),
        contract=f"{call.contract}: descriptor fields", help=help_,
    )  # fmt: skip
