"""Views of views, composed: every function returns a ``View`` whose base is the buffer itself.

A dimension of a view runs through one or more iters of its layout; ``sub`` narrows them and moves
what an index contributes into the view's offset. Run-time dimensions hold one iter of extent 1
(its stride), run-time strides one of stride 0 (the stride is in ``dynamic_strides``).

Everything wrong is a ``LayoutError`` with the numbers. Not here: bounds of run-time indices (the
checker proves them), contracts.
"""

from __future__ import annotations

import math
from typing import TypeAlias

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ir import build
from tilejit.ir.nodes import Binary, Cast, Const, Expr, Region, TensorType, Var, View
from tilejit.layout import (
    MEMORY_AXIS,
    ComposeLayout,
    Iter,
    Layout,
    LayoutError,
    TileLayout,
    normal_offset,
    render,
    row_major,
)

Item: TypeAlias = Expr | int | tuple["Expr | int | None", "Expr | int | None", "Expr | int | None"]
"""One axis of ``sub`` and ``region``: an index, or a slice as (start, stop, step)."""

Extent: TypeAlias = int | Var


def whole(buffer: Var, dynamic_strides: tuple[tuple[int, Expr], ...] = ()) -> View:
    """The buffer as it was declared. ``dynamic_strides``: (dimension, stride in elements)."""
    kind = buffer.type
    assert isinstance(kind, TensorType)
    zero = build.index(0)
    return View(buffer, kind.dtype, kind.shape, kind.layout, zero, dynamic_strides)


# --- iters by dimension


def dimension_iters(tile: TileLayout, shape: tuple[Extent, ...]) -> list[list[Iter]]:
    """The iters each dimension runs through, outermost first; split where a dimension ends inside
    one. ``LayoutError`` when an iter straddles dimensions without a common divisor."""
    if len(tile.shard) == len(shape) and all(
        i.extent == (e if isinstance(e, int) else 1) for i, e in zip(tile.shard, shape)
    ):
        return [[i] for i in tile.shard]
    if not all(isinstance(e, int) for e in shape):
        raise LayoutError(f"layout {render(tile)} does not follow the run-time shape {_show(shape)}")
    queue = list(tile.shard)
    found: list[list[Iter]] = []
    for extent in reversed(shape):
        assert isinstance(extent, int)
        pieces: list[Iter] = []
        need = extent
        while need > 1:
            last = queue.pop()
            if last.extent == 1:
                continue
            if need % last.extent == 0:
                pieces.append(last)
                need //= last.extent
            elif last.extent % need == 0:
                pieces.append(Iter(need, last.stride, last.axis))
                queue.append(Iter(last.extent // need, last.stride * need, last.axis))
                need = 1
            else:
                raise LayoutError(
                    f"layout {render(tile)} does not split over shape {_show(shape)}: an iter of "
                    f"extent {last.extent} meets a dimension with {need} left"
                )
        found.append(_joined(pieces[::-1]))
    return found[::-1]


def _joined(pieces: list[Iter]) -> list[Iter]:
    """Neighbours that are one longer stride as one iter."""
    joined: list[Iter] = []
    for piece in pieces:
        outer = joined[-1] if joined else None
        if outer and outer.axis == piece.axis and outer.stride == piece.stride * piece.extent:
            joined[-1] = Iter(outer.extent * piece.extent, piece.stride, piece.axis)
        else:
            joined.append(piece)
    return joined


def _show(shape: tuple[Extent, ...]) -> str:
    inner = ", ".join(str(e) if isinstance(e, int) else e.name for e in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def _tile(view: View) -> TileLayout:
    layout = view.layout
    if layout is None:
        assert all(isinstance(e, int) for e in view.shape)
        return row_major(tuple(e for e in view.shape if isinstance(e, int)))
    return layout.tile if isinstance(layout, ComposeLayout) else layout


def _with_tile(view: View, tile: TileLayout) -> Layout:
    layout = view.layout
    if isinstance(layout, ComposeLayout):
        return ComposeLayout(
            layout.per_element, layout.swizzle_len, layout.atom_len, tile, layout.swizzle_inner
        )
    return tile


# --- sub


def sub(view: View, items: tuple[Item, ...]) -> View:
    """``view.sub[items]``: an index drops its axis, a slice narrows or strides it."""
    if len(items) != len(view.shape):
        raise LayoutError(f"{len(items)} items for {len(view.shape)} axes")
    tile = _tile(view)
    groups = dimension_iters(tile, view.shape)
    strides = dict(view.dynamic_strides)
    offset = view.offset_elems
    owners = dict(tile.offset)
    shard: list[Iter] = []
    shape: list[Extent] = []
    kept_strides: list[tuple[int, Expr]] = []
    for axis, (item, iters) in enumerate(zip(items, groups)):
        if not isinstance(item, tuple):
            if axis in strides:
                step: Expr = build.index_mul(item, strides[axis])
            else:
                step = _contribution(view, axis, iters, item, owners)
            offset = build.index_add(offset, step)
            continue
        narrowed, new_extent, start, step_elems = _slice(view, axis, iters, item, owners)
        if axis in strides:
            kept_strides.append((len(shape), build.index_mul(strides[axis], step_elems)))
            offset = build.index_add(offset, build.index_mul(start, strides[axis]))
        else:
            offset = build.index_add(offset, start)
        shape.append(new_extent)
        # One iter per run-time or unit dimension keeps layout and shape in step.
        shard.extend(narrowed or [Iter(1, 0)])
    new = TileLayout(tuple(shard) or (Iter(1, 0),), tile.replica, normal_offset(owners))
    return View(
        view.buffer, view.dtype, tuple(shape), _with_tile(view, new), offset, tuple(kept_strides),
        span=view.span,
    )  # fmt: skip


def _contribution(
    view: View, axis: int, iters: list[Iter], item: Expr | int, owners: dict[str, int]
) -> Expr:
    """What index ``item`` of a dimension adds to the memory offset; owner axes go to ``owners``."""
    index = build.index(item)
    total: Expr = build.index(0)
    inner = math.prod(i.extent for i in iters)
    for i in iters:
        inner //= i.extent
        component = index
        if inner > 1:
            component = build.floordiv(component, build.index(inner))
        if i is not iters[0]:
            component = build.mod(component, build.index(i.extent))
        if i.axis == MEMORY_AXIS:
            total = build.index_add(total, build.index_mul(component, i.stride))
            continue
        value = build.as_int(component)
        if value is None:
            raise LayoutError(
                f"axis {axis} of {view.buffer.name} runs over {i.axis}: its index must be a "
                "compile-time integer"
            )
        owners[i.axis] = owners.get(i.axis, 0) + value * i.stride
    return total


def _slice(
    view: View,
    axis: int,
    iters: list[Iter],
    item: tuple[Expr | int | None, Expr | int | None, Expr | int | None],
    owners: dict[str, int],
) -> tuple[list[Iter], Extent, Expr, int]:
    """(iters left, extent, start's contribution in elements or the bare start, step)."""
    extent = view.shape[axis]
    start, stop, step = item
    step = _static(step, "a slice step") if step is not None else 1
    if start is None and stop is None and step == 1:
        return iters, extent, build.index(0), 1
    dynamic = axis in dict(view.dynamic_strides)
    count = slice_extent(extent, start, stop, step)
    first = build.index(0 if start is None else start)
    if dynamic:
        return [Iter(1, 0)], count, first, step
    if len(iters) <= 1:
        i = iters[0] if iters else Iter(1, 0)
        narrowed = Iter(count, i.stride * step, i.axis) if isinstance(extent, int) else Iter(
            count if isinstance(count, int) else 1, i.stride * step, i.axis
        )
        return [narrowed], count, _contribution(view, axis, [i], first, owners), step
    at = build.as_int(first)
    if at is None:
        raise LayoutError(
            f"axis {axis} of {view.buffer.name} runs through {len(iters)} iters of "
            f"{render(_tile(view))}: a slice of it must start at a compile-time integer"
        )
    return _slice_iters(view, axis, iters, at, count, step, owners), count, _contribution(
        view, axis, iters, at, owners
    ), step


def _slice_iters(
    view: View, axis: int, iters: list[Iter], at: int, count: int, step: int, owners: dict[str, int]
) -> list[Iter]:
    """Iters of ``[at, at + count*step)`` of a dimension of several iters."""
    inner = math.prod(i.extent for i in iters)
    for k, i in enumerate(iters):
        inner //= i.extent
        if step == 1 and count % inner == 0 and at % inner == 0:
            steps, taken = at // inner % i.extent, count // inner
            if steps + taken <= i.extent:
                return [Iter(taken, i.stride, i.axis), *iters[k + 1 :]]
        if inner == 1 and at % i.extent + (count - 1) * step < i.extent:
            return [Iter(count, i.stride * step, i.axis)]
    raise LayoutError(
        f"a slice of {count} from {at} by {step} cuts axis {axis} of {view.buffer.name} "
        f"({render(_tile(view))}) unevenly"
    )


def _static(value: Expr | int, what: str) -> int:
    number = value if isinstance(value, int) else build.as_int(value)
    if number is None:
        raise LayoutError(f"{what} must be a compile-time integer")
    return number


def slice_extent(
    extent: Extent, start: Expr | int | None, stop: Expr | int | None, step: int
) -> int:
    """The static number of elements of a slice; ``stop - start`` must be a compile-time integer.

    With a symbolic start and no stop, ``a::s`` takes every s-th element (a < s, extent % s == 0).
    """
    if step < 1:
        raise LayoutError(f"a slice step is at least 1, got {step}")
    if stop is None:
        if not isinstance(extent, int):
            raise LayoutError("a slice of a run-time dimension needs a static stop - start")
        first = 0 if start is None else (start if isinstance(start, int) else build.as_int(start))
        if first is None:
            if step > 1 and extent % step == 0:
                return extent // step
            raise LayoutError("a slice with a run-time start needs a stop: A[i : i + 4]")
        length = extent - first
    else:
        length = _difference(stop, 0 if start is None else start)
        first = None if start is None else (start if isinstance(start, int) else build.as_int(start))
        end = stop if isinstance(stop, int) else build.as_int(stop)
        if isinstance(extent, int) and end is not None and (end > extent or (first or 0) < 0):
            raise LayoutError(f"slice [{first or 0}:{end}] leaves an axis of extent {extent}")
    if length < 1:
        raise LayoutError(f"a slice takes {length} elements; extents are positive")
    return -(-length // step)


def _difference(stop: Expr | int, start: Expr | int) -> int:
    """``stop - start`` as a number, by comparing their linear forms."""
    terms: dict[Expr, int] = {}
    constant = _collect(build.index(stop), 1, terms) + _collect(build.index(start), -1, terms)
    left = {e: c for e, c in terms.items() if c}
    if left:
        raise LayoutError("stop - start of a slice must be a compile-time integer: A[i : i + 4]")
    return constant


def _collect(expr: Expr, factor: int, terms: dict[Expr, int]) -> int:
    if isinstance(expr, Const):
        return int(expr.value) * factor
    if isinstance(expr, Cast) and build.dtype_of(expr).bits >= build.dtype_of(expr.operand).bits:
        return _collect(expr.operand, factor, terms)
    if isinstance(expr, Binary):
        if expr.op == "add":
            return _collect(expr.lhs, factor, terms) + _collect(expr.rhs, factor, terms)
        if expr.op == "sub":
            return _collect(expr.lhs, factor, terms) + _collect(expr.rhs, -factor, terms)
        if expr.op == "mul":
            for a, b in ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs)):
                if isinstance(b, Const):
                    return _collect(a, factor * int(b.value), terms)
    terms[expr] = terms.get(expr, 0) + factor
    return 0


# --- reshape, permute, reinterpretation


def reshape(view: View, shape: tuple[int, ...]) -> View:
    """The same elements in row-major order with another shape; one extent may be -1."""
    if tuple(shape) == view.shape:
        return view
    if not all(isinstance(e, int) for e in view.shape) or view.dynamic_strides:
        raise LayoutError(f"a view of run-time shape {_show(view.shape)} cannot be reshaped")
    size = math.prod(e for e in view.shape if isinstance(e, int))
    if shape.count(-1) > 1 or any(e < 1 and e != -1 for e in shape):
        raise LayoutError(f"shape {shape}: extents are positive, at most one is -1")
    if -1 in shape:
        known = math.prod(e for e in shape if e != -1)
        if size % known:
            raise LayoutError(f"{size} elements do not fill shape {shape}")
        shape = tuple(size // known if e == -1 else e for e in shape)
    if math.prod(shape) != size:
        raise LayoutError(f"{_show(view.shape)} has {size} elements, {_show(shape)} has {math.prod(shape)}")
    return View(view.buffer, view.dtype, shape, view.layout, view.offset_elems, span=view.span)


def permute(view: View, dims: tuple[int, ...]) -> View:
    """Dimensions in another order; ``dims`` names the old ones, negative counting from the end."""
    rank = len(view.shape)
    order = tuple(d + rank if d < 0 else d for d in dims)
    if sorted(order) != list(range(rank)):
        raise LayoutError(f"permute{dims} is not an order of {rank} dimensions")
    tile = _tile(view)
    groups = dimension_iters(tile, view.shape)
    shard = [i for d in order for i in (groups[d] or [Iter(1, 0)])]
    place = {old: new for new, old in enumerate(order)}
    strides = tuple(sorted(((place[d], s) for d, s in view.dynamic_strides), key=lambda x: x[0]))
    new = TileLayout(tuple(shard), tile.replica, tile.offset)
    return View(
        view.buffer, view.dtype, tuple(view.shape[d] for d in order), _with_tile(view, new),
        view.offset_elems, strides, span=view.span,
    )  # fmt: skip


def with_layout(view: View, shape: tuple[int, ...], layout: Layout) -> View:
    """The storage from the view's offset on, seen through another shape and layout."""
    if layout.size != math.prod(shape):
        raise LayoutError(
            f"layout {render(layout)} has {layout.size} elements, shape {_show(shape)} has "
            f"{math.prod(shape)}"
        )
    return View(view.buffer, view.dtype, shape, layout, view.offset_elems, span=view.span)


def with_dtype(view: View, dtype: DType) -> View:
    """The same bits as elements of another width: the last dimension is rescaled.

    Widening needs consecutive elements in the last dimension and an offset and outer strides that
    are whole wide elements; narrowing makes consecutive narrow elements of each.
    """
    old, new = view.dtype.bits, dtype.bits
    if old == new:
        return View(
            view.buffer, dtype, view.shape, view.layout, view.offset_elems, view.dynamic_strides,
            span=view.span,
        )  # fmt: skip
    if not view.shape or not isinstance(view.shape[-1], int):
        raise LayoutError(f"a view of shape {_show(view.shape)} has no last dimension to rescale")
    if new > old:
        return _widen(view, dtype, _ratio(new, old, view.dtype, dtype))
    return _narrow(view, dtype, _ratio(old, new, view.dtype, dtype))


def _ratio(wide: int, narrow: int, a: DType, b: DType) -> int:
    if wide % narrow:
        raise LayoutError(f"{a} and {b}: {wide} bits are not a multiple of {narrow}")
    return wide // narrow


def _widen(view: View, dtype: DType, ratio: int) -> View:
    *outer, last = view.shape
    assert isinstance(last, int)
    if last % ratio:
        raise LayoutError(
            f"{last} {view.dtype} in the last dimension do not fill whole {dtype} ({ratio} each)"
        )
    tile = _tile(view)
    groups = dimension_iters(tile, view.shape)
    inner = _fold_inner(groups[-1], ratio)
    if inner is None:
        raise LayoutError(
            f"{dtype} needs {ratio} consecutive {view.dtype} in the last dimension; its layout is "
            f"{render(tile)}"
        )
    groups[-1] = inner
    shard = []
    for iters in groups:
        for i in iters:
            shard.append(_scaled_down(i, ratio, view, dtype))
        if not iters:
            shard.append(Iter(1, 0))
    replica = tuple(_scaled_down(i, ratio, view, dtype) for i in tile.replica)
    offsets = dict(tile.offset)
    if offsets.get(MEMORY_AXIS, 0) % ratio:
        raise LayoutError(f"offset {offsets[MEMORY_AXIS]} is not whole {dtype}")
    if MEMORY_AXIS in offsets:
        offsets[MEMORY_AXIS] //= ratio
    new = TileLayout(tuple(shard), replica, normal_offset(offsets))
    strides = tuple((d, _divide(s, ratio, view, dtype)) for d, s in view.dynamic_strides)
    offset = _divide(view.offset_elems, ratio, view, dtype)
    layout = _rescaled(view, new, -(ratio.bit_length() - 1))
    return View(
        view.buffer, dtype, (*outer, last // ratio), layout, offset, strides, span=view.span
    )


def _fold_inner(iters: list[Iter], ratio: int) -> list[Iter] | None:
    """The last dimension's iters with their innermost ``ratio`` consecutive elements as one."""
    kept = list(iters)
    need = ratio
    step = 1
    while need > 1:
        if not kept:
            return None
        last = kept.pop()
        if last.axis != MEMORY_AXIS or last.stride != step:
            return None
        if need % last.extent == 0:
            need //= last.extent
            step *= last.extent
        elif last.extent % need == 0:
            kept.append(Iter(last.extent // need, last.stride * need))
            need = 1
        else:
            return None
    return kept


def _scaled_down(i: Iter, ratio: int, view: View, dtype: DType) -> Iter:
    if i.axis != MEMORY_AXIS or i.extent == 1 and i.stride % ratio:
        return i if i.axis != MEMORY_AXIS else Iter(1, 0)
    if i.stride % ratio:
        raise LayoutError(
            f"stride {i.stride} of {view.buffer.name} ({view.dtype}) is not whole {dtype} "
            f"({ratio} each)"
        )
    return Iter(i.extent, i.stride // ratio, i.axis)


def _divide(expr: Expr, ratio: int, view: View, dtype: DType) -> Expr:
    """``expr / ratio`` exactly: every constant factor and term divides, else a division that the
    checker proves (misaligned wide elements are an alignment fault of the instruction)."""
    terms: dict[Expr, int] = {}
    constant = _collect(build.index(expr), 1, terms)
    if constant % ratio:
        raise LayoutError(
            f"offset of {view.buffer.name} is not whole {dtype}: {constant} {view.dtype} with "
            f"{ratio} each"
        )
    total: Expr = build.index(constant // ratio)
    rest: Expr | None = None
    for term, factor in terms.items():
        if factor % ratio == 0:
            total = build.index_add(build.index_mul(term, factor // ratio), total)
        elif factor:
            piece = build.index_mul(term, factor)
            rest = piece if rest is None else build.index_add(rest, piece)
    if rest is not None:
        total = build.index_add(build.floordiv(rest, build.index(ratio)), total)
    return total


def _narrow(view: View, dtype: DType, ratio: int) -> View:
    *outer, last = view.shape
    assert isinstance(last, int)
    tile = _tile(view)
    groups = dimension_iters(tile, view.shape)

    def up(i: Iter) -> Iter:
        return Iter(i.extent, i.stride * ratio, i.axis) if i.axis == MEMORY_AXIS else i

    shard = [up(i) for iters in groups for i in (iters or [Iter(1, 0)])]
    shard.append(Iter(ratio, 1))
    offsets = {a: v * ratio if a == MEMORY_AXIS else v for a, v in tile.offset}
    new = TileLayout(tuple(shard), tuple(up(i) for i in tile.replica), normal_offset(offsets))
    strides = tuple((d, build.index_mul(s, ratio)) for d, s in view.dynamic_strides)
    layout = _rescaled(view, new, ratio.bit_length() - 1)
    return View(
        view.buffer, dtype, (*outer, last * ratio), layout,
        build.index_mul(view.offset_elems, ratio), strides, span=view.span,
    )  # fmt: skip


def _rescaled(view: View, tile: TileLayout, shift: int) -> Layout:
    """The layout around a rescaled tile; a swizzle keeps its bytes."""
    layout = view.layout
    if not isinstance(layout, ComposeLayout):
        return tile
    per_element = layout.per_element + shift
    if per_element < 0:
        raise LayoutError(f"the swizzle of {view.buffer.name} permutes parts of the wide element")
    return ComposeLayout(
        per_element, layout.swizzle_len, layout.atom_len, tile, layout.swizzle_inner
    )


# --- regions and elements


def region(view: View, items: tuple[Item, ...]) -> Region:
    """``view[items]`` with a slice: an index keeps its axis with extent 1."""
    starts: list[Expr] = []
    extents: list[int] = []
    for axis, item in enumerate(items):
        if not isinstance(item, tuple):
            starts.append(build.const(item, dtypes.int32) if isinstance(item, int) else item)
            extents.append(1)
            continue
        start, stop, step = item
        if step is not None and _static(step, "a slice step") != 1:
            raise LayoutError("a region is a rectangle without steps: use .sub[a::s]")
        first: Expr | int = 0 if start is None else start
        starts.append(build.const(first, dtypes.int32) if isinstance(first, int) else first)
        extents.append(slice_extent(view.shape[axis], start, stop, 1))
    return Region(view, tuple(starts), tuple(extents), span=view.span)


def element_offset(view: View, indices: tuple[Expr, ...]) -> Expr:
    """Position of one element in elements of ``view.dtype`` from the buffer's start, swizzle
    included: what a scalar access and ``ptr_to`` use."""
    tile = _tile(view)
    groups = dimension_iters(tile, view.shape)
    strides = dict(view.dynamic_strides)
    owners: dict[str, int] = {}
    total = build.index_add(view.offset_elems, dict(tile.offset).get(MEMORY_AXIS, 0))
    for axis, (index, iters) in enumerate(zip(indices, groups)):
        if axis in strides:
            step: Expr = build.index_mul(index, strides[axis])
        else:
            step = _contribution(view, axis, iters, index, owners)
        total = build.index_add(total, step)
    if isinstance(view.layout, ComposeLayout):
        return swizzled(view.layout, total)
    return total


def swizzled(layout: ComposeLayout, address: Expr) -> Expr:
    """``layout.swizzle`` as an expression."""
    mask = build.index((1 << layout.swizzle_len) - 1)
    low, high = build.index(layout.per_element), build.index(layout.per_element + layout.atom_len)
    source, target = (high, low) if layout.swizzle_inner else (low, high)
    bits = build.bitand(build.shr(address, source), mask)
    return build.bitxor(address, build.shl(bits, target))
