"""Views of views, composed: every function returns a ``View`` whose base is the buffer itself.

``sub`` narrows the layout's iters and moves what an index contributes into the view's offset. A
run-time dimension holds one iter of extent 1 (its stride); a run-time stride is in
``dynamic_strides`` and its iter has stride 0. In ``tmem`` space ``offset_elems`` counts elements
along ``TCol``, elsewhere along ``m``.

Everything wrong is a ``LayoutError`` with the numbers. An index that only the run tells, or of an
axis whose extent only the run tells, is kept as a ``Pick``. Not here: bounds of those (the checker
proves them where an instruction uses the view), contracts.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

from tilejit import dtypes
from tilejit.ir import build, tensor_memory
from tilejit.ir.dims import (
    MAX_OFFSET_ELEMS,
    UNIT,
    Extent,
    contribution,
    dimension_iters,
    narrowed,
    show,
    slice_extent,
    static,
    storage_axis,
    tile_of,
)
from tilejit.ir.linear import exact_quotient
from tilejit.ir.nodes import Expr, Pick, Region, TensorType, Var, View
from tilejit.ir.reinterpret import with_dtype, with_layout
from tilejit.layout import (
    ComposeLayout,
    Iter,
    Layout,
    LayoutError,
    TileLayout,
    normal_offset,
    render,
)

__all__ = [
    "Extent", "Item", "Slice", "cell_offset", "dimension_iters", "element_offset", "permute", "region",
    "reshape", "storage_axis", "sub", "swizzled", "tile_of", "whole", "with_dtype", "with_layout",
]  # fmt: skip

Slice: TypeAlias = tuple["Expr | int | None", "Expr | int | None", "Expr | int | None"]
"""(start, stop, step)."""

Item: TypeAlias = Expr | int | Slice
"""One axis of ``sub`` and ``region``: an index, or a slice."""


def whole(buffer: Var, dynamic_strides: tuple[tuple[int, Expr], ...] = ()) -> View:
    """The buffer as it was declared. ``dynamic_strides``: (dimension, stride in elements)."""
    kind = buffer.type
    assert isinstance(kind, TensorType)
    zero = build.index(0)
    return View(buffer, kind.dtype, kind.shape, kind.layout, zero, dynamic_strides)


# --- sub


def sub(view: View, items: tuple[Item, ...]) -> View:
    """``view.sub[items]``: an index drops its axis, a slice narrows or strides it.

    Along thread axes an index must be a compile-time integer and becomes the layout's offset.
    """
    if len(items) != len(view.shape):
        raise LayoutError(f"{len(items)} items for {len(view.shape)} axes")
    tile = tile_of(view)
    strides = dict(view.dynamic_strides)
    storage = storage_axis(view.space)
    offset = view.offset_elems
    owners = dict(tile.offset)
    shard: list[Iter] = []
    shape: list[Extent] = []
    kept_strides: list[tuple[int, Expr]] = []
    picks = list(view.picks)
    for axis, (item, iters) in enumerate(zip(items, dimension_iters(tile, view.shape))):
        start: Expr | int
        if isinstance(item, tuple):
            start, count, step = _bounds(view.shape[axis], item)
            if axis in strides:
                kept_strides.append((len(shape), build.index_mul(strides[axis], step)))
            shard.extend(_narrowed(view, axis, iters, start, count, step))
            shape.append(count)
            if isinstance(count, int):
                picks += _picked(view, axis, start, (count - 1) * step + 1)
        else:
            start = item
            _inside(view, axis, static(start))
            picks += _picked(view, axis, start, 1)
        if axis in strides:
            moved = build.index_mul(start, strides[axis])
        else:
            moved = contribution(_where(view, axis), iters, start, storage, owners)
        offset = build.index_add(offset, moved)
    new = TileLayout(tuple(shard) or (UNIT,), tile.replica, normal_offset(owners))
    return View(
        view.buffer, view.dtype, tuple(shape), _with_tile(view, new), offset, tuple(kept_strides),
        tuple(picks), span=view.span,
    )  # fmt: skip


def _picked(view: View, axis: int, start: Expr | int, count: int) -> list[Pick]:
    """The part ``[start, start + count)`` of an axis, where it is not known to be one."""
    extent, known = view.shape[axis], static(start)
    # A size is at least 1.
    if known is not None and (isinstance(extent, int) or known + count <= 1):
        return []
    index = build.index(start) if isinstance(start, int) else start
    return [Pick(index, count, extent, axis)]


def _bounds(extent: Extent, item: Slice) -> tuple[Expr | int, Extent, int]:
    """(start, elements, step) of a slice. A full slice of a run-time axis keeps its extent."""
    start, stop, step = item
    number = 1 if step is None else static(step)
    if number is None:
        raise LayoutError("a slice step must be a compile-time integer")
    from_zero = start is None or static(start) == 0
    if from_zero and number == 1 and (stop is None or stop == extent):
        return 0, extent, 1
    count = slice_extent(extent, start, stop, number)
    return 0 if start is None else start, count, number


def _narrowed(
    view: View, axis: int, iters: list[Iter], start: Expr | int, count: Extent, step: int
) -> list[Iter]:
    """The layout iters left of a sliced dimension: at least one, so that layout and shape stay in
    step where they were."""
    if count == view.shape[axis] and step == 1:
        return iters or [UNIT]
    assert isinstance(count, int)
    left = narrowed(iters, start, count, step)
    if left is None:
        at = static(start)
        raise LayoutError(
            f"a slice of {count} from {'a run-time start' if at is None else at} by {step} cuts "
            f"{_where(view, axis)} unevenly: it runs through {len(iters)} iters, "
            f"{render(TileLayout(tuple(iters)))}"
        )
    return left


def _where(view: View, axis: int) -> str:
    return f"axis {axis} of {view.buffer.name}"


def _inside(view: View, axis: int, index: int | None) -> None:
    extent = view.shape[axis]
    if index is not None and (index < 0 or (isinstance(extent, int) and index >= extent)):
        known = extent if isinstance(extent, int) else extent.name
        raise LayoutError(f"index {index} is outside {_where(view, axis)} of extent {known}")


# --- reshape, permute


def reshape(view: View, shape: tuple[Extent, ...]) -> View:
    """The same elements in row-major order with another shape; one extent may be -1.

    Leading dimensions up to the last one with a run-time extent or stride must stay as they are.
    """
    fixed = _runtime_dimensions(view)
    if tuple(shape[:fixed]) != view.shape[:fixed]:
        raise LayoutError(
            f"{show(view.shape)} cannot be reshaped to {show(shape)}: dimensions with a run-time "
            f"extent or stride stay as they are, here the first {fixed}"
        )
    tail = _filled(view.shape[fixed:], shape[fixed:])
    new_shape = (*view.shape[:fixed], *tail)
    if new_shape == view.shape:
        return view
    layout = view.layout
    if fixed:
        tile = tile_of(view)
        groups = dimension_iters(tile, view.shape)
        rest = TileLayout(tuple(i for g in groups[fixed:] for i in g) or (UNIT,))
        pieces = groups[:fixed] + dimension_iters(rest, tail)
        layout = _with_tile(view, _tile_like(tile, pieces))
    return View(
        view.buffer, view.dtype, new_shape, layout, view.offset_elems, view.dynamic_strides,
        view.picks, span=view.span,
    )  # fmt: skip


def _runtime_dimensions(view: View) -> int:
    """How many leading dimensions there are up to the last run-time extent or stride."""
    strides = dict(view.dynamic_strides)
    found = [d for d, e in enumerate(view.shape) if d in strides or not isinstance(e, int)]
    return found[-1] + 1 if found else 0


def _filled(old: tuple[Extent, ...], new: tuple[Extent, ...]) -> tuple[int, ...]:
    """``new`` with its -1 worked out so that it holds as many elements as ``old``."""
    wanted = [e for e in new if isinstance(e, int)]
    if len(wanted) != len(new) or wanted.count(-1) > 1 or any(e < 1 and e != -1 for e in wanted):
        raise LayoutError(f"shape {show(new)}: extents are positive integers, at most one is -1")
    size = math.prod(e for e in old if isinstance(e, int))
    known = math.prod(e for e in wanted if e != -1)
    if -1 in wanted:
        if size % known:
            raise LayoutError(f"{size} elements do not fill shape {show(new)}: not whole {known}s")
        wanted[wanted.index(-1)] = size // known
    elif known != size:
        raise LayoutError(f"{show(old)} has {size} elements, {show(new)} has {known}")
    return tuple(wanted)


def permute(view: View, dims: tuple[int, ...]) -> View:
    """Dimensions in another order; ``dims`` names the old ones, negative counting from the end."""
    rank = len(view.shape)
    order = tuple(d + rank if d < 0 else d for d in dims)
    if sorted(order) != list(range(rank)):
        raise LayoutError(f"permute{tuple(dims)} is not an order of {rank} dimensions")
    tile = tile_of(view)
    groups = dimension_iters(tile, view.shape)
    place = {old: new for new, old in enumerate(order)}
    strides = sorted(((place[d], s) for d, s in view.dynamic_strides), key=lambda pair: pair[0])
    layout = _with_tile(view, _tile_like(tile, [groups[d] for d in order]))
    return View(
        view.buffer, view.dtype, tuple(view.shape[d] for d in order), layout, view.offset_elems,
        tuple(strides), view.picks, span=view.span,
    )  # fmt: skip


# --- layouts of views


def _tile_like(tile: TileLayout, groups: list[list[Iter]]) -> TileLayout:
    """``tile`` with other shard iters; a dimension without iters gets a placeholder."""
    shard = tuple(i for group in groups for i in (group or [UNIT]))
    return replace(tile, shard=shard or (UNIT,))


def _with_tile(view: View, tile: TileLayout) -> Layout:
    layout = view.layout
    return replace(layout, tile=tile) if isinstance(layout, ComposeLayout) else tile


# --- regions and elements


def region(view: View, items: tuple[Item, ...]) -> Region:
    """``view[items]`` with a slice: an index keeps its axis with extent 1."""
    if len(items) != len(view.shape):
        raise LayoutError(f"{len(items)} items for {len(view.shape)} axes")
    starts: list[Expr] = []
    extents: list[int] = []
    for extent, item in zip(view.shape, items):
        start, count = _rectangle(extent, item)
        if isinstance(start, int):
            if abs(start) > MAX_OFFSET_ELEMS:
                raise LayoutError(f"a region starts at {start}: no memory is as large")
            start = build.const(start, dtypes.literal_type(start, None))
        starts.append(start)
        extents.append(count)
    return Region(view, tuple(starts), tuple(extents), span=view.span)


def _rectangle(extent: Extent, item: Item) -> tuple[Expr | int, int]:
    if not isinstance(item, tuple):
        return item, 1
    start, stop, step = item
    if step is not None and static(step) != 1:
        raise LayoutError("a region is a rectangle without steps: use .sub[a::s]")
    return 0 if start is None else start, slice_extent(extent, start, stop, 1)


def element_offset(view: View, indices: tuple[Expr, ...]) -> Expr:
    """Position of one element in elements of ``view.dtype`` from the buffer's start, swizzle
    included, as an int64 expression: what a scalar access and ``ptr_to`` use."""
    total, _ = _located(view, indices)
    if isinstance(view.layout, ComposeLayout):
        return swizzled(view.layout, total)
    return total


def _located(view: View, indices: tuple[Expr, ...]) -> tuple[Expr, int]:
    """``element_offset`` before the swizzle, and the lane of tensor memory."""
    if len(indices) != len(view.shape):
        raise LayoutError(f"{len(indices)} indices for {len(view.shape)} axes")
    tile = tile_of(view)
    strides = dict(view.dynamic_strides)
    storage = storage_axis(view.space)
    owners = dict(tile.offset)
    total = build.index_add(view.offset_elems, dict(tile.offset).get(storage, 0))
    for axis, (index, iters) in enumerate(zip(indices, dimension_iters(tile, view.shape))):
        if axis in strides:
            moved = build.index_mul(index, strides[axis])
        else:
            moved = contribution(_where(view, axis), iters, index, storage, owners)
        total = build.index_add(total, moved)
    return total, owners.get("TLane", 0)


def cell_offset(view: View, indices: tuple[Expr, ...]) -> Expr:
    """What the cell of tensor memory that an element starts adds to the address of the buffer, int64."""
    elements, lane = _located(view, indices)
    per_cell = tensor_memory.CELL_BITS // view.dtype.bits
    columns = exact_quotient(elements, per_cell)
    if columns is None:
        known = build.as_int(elements)
        at = "a run-time element" if known is None else f"element {known}"
        raise LayoutError(
            f"{at} of a lane of {view.buffer.name} ({view.dtype}) is not known to start a column, which holds "
            f"{per_cell}: only columns have addresses"
        )
    return build.index_add(columns, lane << tensor_memory.LANE_SHIFT)


def swizzled(layout: ComposeLayout, address: Expr) -> Expr:
    """``layout.swizzle`` as an expression of ``address``'s own integer type."""
    kind = build.dtype_of(address)
    mask = ((1 << layout.swizzle_len) - 1) << layout.per_element
    distance = build.const(layout.atom_len, kind)
    if layout.swizzle_inner:
        far = build.const(mask << layout.atom_len, kind)
        flips = build.shr(build.bitand(address, far), distance)
    else:
        flips = build.shl(build.bitand(address, build.const(mask, kind)), distance)
    return build.bitxor(address, flips)
