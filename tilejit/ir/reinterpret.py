"""A view's storage seen as other elements: another dtype, or another shape and layout.

The bits stay where they are. Not here: views that keep the elements (``ir.views``).
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilejit.dtypes import DType
from tilejit.ir import build, tensor_memory
from tilejit.ir.dims import UNIT, Extent, dimension_iters, joined, show, storage_axis, tile_of
from tilejit.ir.linear import exact_quotient
from tilejit.ir.nodes import Expr, TensorType, View
from tilejit.layout import (
    ComposeLayout,
    Iter,
    Layout,
    LayoutError,
    TileLayout,
    normal_offset,
    render,
)


def with_layout(view: View, shape: tuple[int, ...], layout: Layout) -> View:
    """The storage from the view's offset on, in tensor memory from its lane on, seen through another
    shape and layout.

    Zero strides make broadcast views. Buffers other than global ones must hold the layout's physical
    span, gaps included, where the offset is known.
    """
    if layout.size != math.prod(shape):
        raise LayoutError(
            f"layout {render(layout)} has {layout.size} elements, shape {show(shape)} has "
            f"{math.prod(shape)}"
        )
    if view.space == "tmem":
        layout = _from_lane(view, layout)
    made = replace(view, shape=tuple(shape), layout=layout, dynamic_strides=())
    _require_storage(made, layout)
    return made


def _from_lane(view: View, layout: Layout) -> Layout:
    """``layout`` from the view's lane on."""
    lane = dict(tile_of(view).offset).get("TLane", 0)
    if not isinstance(layout, TileLayout):
        raise LayoutError(f"{view.buffer.name}: tensor memory has no swizzle, got {render(layout)}")
    offset = dict(layout.offset)
    return replace(layout, offset=normal_offset({**offset, "TLane": offset.get("TLane", 0) + lane}))


def _require_storage(view: View, layout: Layout) -> None:
    buffer = view.buffer.type
    offset = build.as_int(view.offset_elems)
    assert isinstance(buffer, TensorType)
    if view.space == "tmem":
        _require_lanes(view, buffer, layout)
    if view.space == "global" or offset is None:
        return
    axis = storage_axis(view.space)
    if buffer.layout is not None:
        held = buffer.layout.span(axis)
    else:
        held = math.prod(e for e in buffer.shape if isinstance(e, int))
    needed = (offset + layout.span(axis)) * view.dtype.bits
    if needed > held * buffer.dtype.bits:
        what = "of a lane " if view.space == "tmem" else ""
        raise LayoutError(
            f"layout {render(layout)} from element {offset} needs {needed // 8} bytes {what}of "
            f"{view.buffer.name}, which has {held * buffer.dtype.bits // 8}"
        )


def _require_lanes(view: View, buffer: TensorType, layout: Layout) -> None:
    assert isinstance(layout, TileLayout) and buffer.layout is not None
    strange = tensor_memory.axes_fault(layout)
    if strange is not None:
        raise LayoutError(f"a view of {view.buffer.name} in tensor memory: {strange}")
    needed, held = layout.span("TLane"), buffer.layout.span("TLane")
    if needed > held:
        raise LayoutError(
            f"layout {render(layout)} needs {needed} lanes of {view.buffer.name}, which has {held}"
        )


def with_dtype(view: View, dtype: DType) -> View:
    """The same bits as elements of another width: the last dimension is rescaled.

    Widening needs consecutive elements in the last dimension, and an offset and other strides that
    are whole wide elements, provably; narrowing makes consecutive narrow elements of each.
    """
    old, new = view.dtype.bits, dtype.bits
    strange = tensor_memory.dtype_fault(dtype) if view.space == "tmem" else None
    if strange is not None:
        raise LayoutError(f"a view of {view.buffer.name} in tensor memory: {strange}")
    if old == new:
        return replace(view, dtype=dtype)
    if max(old, new) % min(old, new):
        raise LayoutError(
            f"{view.dtype} ({old} bits) and {dtype} ({new} bits): neither width is a multiple of "
            "the other"
        )
    if not view.shape or not isinstance(view.shape[-1], int):
        raise LayoutError(
            f"a dtype view rescales the last dimension; that of shape {show(view.shape)} is not a "
            "compile-time integer"
        )
    if len(view.shape) - 1 in dict(view.dynamic_strides):
        raise LayoutError("a dtype view needs a compile-time stride in the last dimension")
    if new > old:
        return _Widening(view, dtype, new // old).view()
    return _narrow(view, dtype, old // new)


class _Widening:
    """``ratio`` consecutive elements become one: every stride and offset is divided, exactly."""

    def __init__(self, view: View, dtype: DType, ratio: int) -> None:
        self.old, self.dtype, self.ratio = view, dtype, ratio
        self.axis = storage_axis(view.space)

    def view(self) -> View:
        old, ratio = self.old, self.ratio
        *outer, last = old.shape
        assert isinstance(last, int)
        if last % ratio:
            raise LayoutError(
                f"{last} {old.dtype} in the last dimension do not fill whole {self.dtype} "
                f"({ratio} each)"
            )
        tile = tile_of(old)
        groups = dimension_iters(tile, old.shape)
        groups[-1] = self.folded(groups[-1], tile)
        shard = tuple(
            self.divided(i, extent)
            for group, extent in zip(groups, old.shape)
            for i in (group or [UNIT])
        )
        offsets = dict(tile.offset)
        if self.axis in offsets:
            offsets[self.axis] = self.whole(offsets[self.axis], "the layout's offset")
        new = TileLayout(
            shard, tuple(self.divided(i, i.extent) for i in tile.replica), normal_offset(offsets)
        )
        return replace(
            old,
            dtype=self.dtype,
            shape=(*outer, last // ratio),
            layout=_rescaled(old, new, 1 - ratio.bit_length()),
            offset_elems=self.quotient(old.offset_elems, "the offset"),
            dynamic_strides=tuple(
                (d, self.quotient(s, f"the run-time stride of dimension {d}"))
                for d, s in old.dynamic_strides
            ),
        )

    def folded(self, iters: list[Iter], tile: TileLayout) -> list[Iter]:
        """The last dimension's iters, strides still in old elements, without the innermost
        ``ratio`` consecutive positions."""
        kept = joined(iters)
        inner = kept.pop() if kept else UNIT
        if inner.axis != self.axis or inner.stride != 1 or inner.extent % self.ratio:
            raise LayoutError(
                f"{self.dtype} needs {self.ratio} consecutive {self.old.dtype} in the last "
                f"dimension; the layout of {self.old.buffer.name} is {render(tile)}"
            )
        left = inner.extent // self.ratio
        if left > 1 or not kept:
            kept.append(Iter(left, self.ratio, self.axis))
        return kept

    def divided(self, i: Iter, extent: Extent) -> Iter:
        """An iter of a dimension of ``extent``; nothing steps along a dimension of extent 1."""
        if i.axis != self.axis:
            return i
        if extent == 1:
            return UNIT
        return Iter(i.extent, self.whole(i.stride, "stride"), i.axis)

    def whole(self, value: int, what: str) -> int:
        if value % self.ratio:
            raise LayoutError(
                f"{what} {value} of {self.old.buffer.name} ({self.old.dtype}) is not whole "
                f"{self.dtype} ({self.ratio} each)"
            )
        return value // self.ratio

    def quotient(self, expr: Expr, what: str) -> Expr:
        found = exact_quotient(expr, self.ratio)
        if found is None:
            known = build.as_int(expr)
            raise LayoutError(
                f"{what} of {self.old.buffer.name}{'' if known is None else f', {known},'} is not "
                f"known to be whole {self.dtype} ({self.ratio} {self.old.dtype} each); take the "
                f'view first and the part of it afterwards: t.view("{self.dtype}").sub[...]'
            )
        return found


def _narrow(view: View, dtype: DType, ratio: int) -> View:
    axis = storage_axis(view.space)
    *outer, last = view.shape
    assert isinstance(last, int)
    tile = tile_of(view)

    def scaled(i: Iter) -> Iter:
        return Iter(i.extent, i.stride * ratio, i.axis) if i.axis == axis else i

    groups = [[scaled(i) for i in iters] for iters in dimension_iters(tile, view.shape)]
    groups[-1] = joined([i for i in groups[-1] if i.extent > 1] + [Iter(ratio, 1, axis)])
    shard = tuple(i for group in groups for i in (group or [UNIT]))
    offset = {a: v * ratio if a == axis else v for a, v in tile.offset}
    replica = tuple(scaled(i) for i in tile.replica)
    new = TileLayout(shard, replica, normal_offset(offset))
    return replace(
        view,
        dtype=dtype,
        shape=(*outer, last * ratio),
        layout=_rescaled(view, new, ratio.bit_length() - 1),
        offset_elems=build.index_mul(view.offset_elems, ratio),
        dynamic_strides=tuple((d, build.index_mul(s, ratio)) for d, s in view.dynamic_strides),
    )


def _rescaled(view: View, tile: TileLayout, shift: int) -> Layout:
    """The layout around a rescaled tile; a swizzle keeps its bytes."""
    layout = view.layout
    if not isinstance(layout, ComposeLayout):
        return tile
    if layout.per_element + shift < 0:
        raise LayoutError(
            f"the swizzle of {view.buffer.name} moves units of {1 << layout.per_element} "
            f"{view.dtype}, less than the wide element"
        )
    return replace(layout, per_element=layout.per_element + shift, tile=tile)
