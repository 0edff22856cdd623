"""The layout iters that each dimension of a view runs through, and what indices and slices pick.

A static dimension owns a sequence of iters, outermost first. A run-time dimension owns one iter of
extent 1 that holds its stride. Where a layout holds one iter per dimension, this is a look-up.

Not here: views (``ir.views``); walks over threads (``tile``).
"""

from __future__ import annotations

import math
from typing import TypeAlias

from tilejit.ir import build
from tilejit.ir.linear import difference, divisor, index_floordiv, index_mod
from tilejit.ir.nodes import Expr, Space, Var, View
from tilejit.layout import (
    MEMORY_AXIS,
    ComposeLayout,
    Iter,
    LayoutError,
    TileLayout,
    render,
    row_major,
)

Extent: TypeAlias = int | Var

UNIT = Iter(1, 0)
MAX_OFFSET_ELEMS = 1 << 48
"""Beyond this, offsets in 64 bits would wrap around to where something lies."""
"""What stands for a dimension of extent 1 that owns no iter."""


def show(shape: tuple[Extent, ...]) -> str:
    """A shape as Python prints a tuple."""
    inner = ", ".join(str(e) if isinstance(e, int) else e.name for e in shape)
    return f"({inner},)" if len(shape) == 1 else f"({inner})"


def storage_axis(space: Space) -> str:
    """The axis that a view's ``offset_elems`` counts along."""
    return "TCol" if space == "tmem" else MEMORY_AXIS


def tile_of(view: View) -> TileLayout:
    """The view's layout without a swizzle; row-major where it has none."""
    layout = view.layout
    if layout is None:
        extents = tuple(e for e in view.shape if isinstance(e, int))
        if len(extents) != len(view.shape):
            raise LayoutError(f"{view.buffer.name} {show(view.shape)} has no layout to go by")
        return row_major(extents)
    return layout.tile if isinstance(layout, ComposeLayout) else layout


def dimension_iters(tile: TileLayout, shape: tuple[Extent, ...]) -> list[list[Iter]]:
    """The iters each dimension runs through, outermost first; a dimension of extent 1 may have none.

    Neighbouring iters that are one longer stride count as one; an iter is split where a dimension
    ends inside it. ``LayoutError`` when it straddles dimensions without a common divisor.
    """
    in_step = len(tile.shard) == len(shape) and all(
        i.extent == (e if isinstance(e, int) else 1) for i, e in zip(tile.shard, shape)
    )
    if in_step:
        return [[i] for i in tile.shard]
    runtime = sum(not isinstance(e, int) for e in shape)
    if not runtime:
        queue = joined([i for i in tile.shard if i.extent > 1])
        statics = [e for e in shape if isinstance(e, int)]
        return [joined(_take(queue, e, tile, shape)) for e in reversed(statics)][::-1]
    queue = list(tile.shard)
    none_to_spare = sum(i.extent == 1 for i in queue) == runtime
    found: list[list[Iter]] = []
    for extent in reversed(shape):
        if isinstance(extent, int) and (extent > 1 or none_to_spare):
            found.append(joined(_take(queue, extent, tile, shape)))
        elif queue and queue[-1].extent == 1:
            found.append([queue.pop()])
        else:
            raise _does_not_follow(tile, shape)
    if queue:  # more than there are dimensions for: whose they are is a guess
        raise _does_not_follow(tile, shape)
    return found[::-1]


def _does_not_follow(tile: TileLayout, shape: tuple[Extent, ...]) -> LayoutError:
    return LayoutError(f"layout {render(tile)} does not follow the run-time shape {show(shape)}")


def _take(queue: list[Iter], need: int, tile: TileLayout, shape: tuple[Extent, ...]) -> list[Iter]:
    """Takes the innermost ``need`` positions off ``queue``, outermost iter first."""
    pieces: list[Iter] = []
    while need > 1:
        if not queue:
            raise LayoutError(f"layout {render(tile)} is too small for shape {show(shape)}")
        last = queue.pop()
        if need % last.extent == 0:
            pieces.append(last)
            need //= last.extent
        elif last.extent % need == 0:
            pieces.append(Iter(need, last.stride, last.axis))
            queue.append(Iter(last.extent // need, last.stride * need, last.axis))
            need = 1
        else:
            raise LayoutError(
                f"layout {render(tile)} does not split over shape {show(shape)}: an iter of "
                f"extent {last.extent} meets a dimension with {need} left"
            )
    return [i for i in pieces[::-1] if i.extent > 1]


def joined(iters: list[Iter]) -> list[Iter]:
    """Neighbours that are one longer stride as one iter."""
    result: list[Iter] = []
    for i in iters:
        outer = result[-1] if result else None
        if outer and outer.axis == i.axis and outer.stride == i.stride * i.extent:
            result[-1] = Iter(outer.extent * i.extent, i.stride, i.axis)
        else:
            result.append(i)
    return result


def split(iters: list[Iter], inner: int) -> tuple[list[Iter], list[Iter]] | None:
    """A dimension's iters as (outer, innermost ``inner`` positions), or None if one is cut."""
    tile = TileLayout(tuple(iters) or (UNIT,))
    try:
        outer, rest = dimension_iters(tile, (tile.size // inner, inner))
    except LayoutError:
        return None
    return outer, rest


# --- indices


def contribution(
    where: str, iters: list[Iter], index: Expr | int, storage_axis: str, owners: dict[str, int]
) -> Expr:
    """What ``index`` of a dimension adds to the storage position, as an int64 expression.

    Other axes take only compile-time components, added to ``owners``; ``where`` names the dimension
    in the ``LayoutError`` for a run-time one. The outermost component needs no modulo: an index is
    inside its dimension.
    """
    inner = math.prod(i.extent for i in iters)
    at = static(index)
    if at is not None:
        moved = _static_contribution(iters, inner, at, storage_axis, owners)
        if abs(moved) > MAX_OFFSET_ELEMS:
            raise LayoutError(
                f"index {at} of {where} is {moved} elements away: no memory is as large"
            )
        return build.index(moved)
    total: Expr = build.index(0)
    for number, i in enumerate(iters):
        inner //= i.extent
        component = index_floordiv(index, inner) if inner > 1 else build.index(index)
        if number > 0:
            component = index_mod(component, i.extent)
        if i.axis == storage_axis or not i.stride:
            total = build.index_add(total, build.index_mul(component, i.stride))
            continue
        value = build.as_int(component)
        if value is None and i.axis == "TLane":
            raise LayoutError(
                f"{where} runs over TLane, and lanes are fixed when compiling: a tile instruction takes its "
                "warp's own as a region that keeps the axis, D[warp, …], without .sub; T.cuda.decl_tmem(T.cuda."
                "get_tmem_addr(address, row, 0), …) declares a tensor at a lane that the run tells"
            )
        if value is None:
            raise LayoutError(
                f"{where} runs over {i.axis}: who holds an element is fixed when compiling, so its "
                "index must be a compile-time integer; a thread's own registers are "
                '.view(…, layout="default")'
            )
        owners[i.axis] = owners.get(i.axis, 0) + value * i.stride
    return total


def _static_contribution(
    iters: list[Iter], inner: int, index: int, storage_axis: str, owners: dict[str, int]
) -> int:
    """``contribution`` of a compile-time index; ``inner`` is the dimension's extent."""
    total = 0
    for number, i in enumerate(iters):
        inner //= i.extent
        component = index // inner % i.extent if number > 0 else index // inner
        if i.axis == storage_axis:
            total += component * i.stride
        else:
            owners[i.axis] = owners.get(i.axis, 0) + component * i.stride
    return total


# --- slices


def slice_extent(
    extent: Extent, start: Expr | int | None, stop: Expr | int | None, step: int
) -> int:
    """Elements of a slice; ``stop - start`` must be a compile-time integer.

    With a run-time start and no stop, ``a::s`` takes every s-th element (a < s, extent % s == 0).
    """
    if step < 1:
        raise LayoutError(f"a slice step is at least 1, got {step}")
    first = 0 if start is None else static(start)
    if stop is None:
        length = _to_the_end(extent, first, step)
    else:
        known = difference(stop, 0 if start is None else start)
        if known is None:
            raise LayoutError(
                "stop - start of a slice must be a compile-time integer: A[i : i + 4]"
            )
        length = known
    if first is not None and isinstance(extent, int):
        if first < 0 or first + length > extent:
            raise LayoutError(f"slice [{first}:{first + length}] leaves an axis of extent {extent}")
    if first is not None and first < 0:
        raise LayoutError(f"a slice starts at {first} of a run-time axis; starts are not negative")
    if length < 1:
        raise LayoutError(f"a slice takes {length} elements; extents are positive")
    if isinstance(extent, int) and length > extent:
        raise LayoutError(
            f"a slice of {length} elements is longer than its axis of extent {extent}"
        )
    return -(-length // step)


def _to_the_end(extent: Extent, first: int | None, step: int) -> int:
    if not isinstance(extent, int):
        raise LayoutError(
            f"a slice of the run-time axis {extent.name} needs a compile-time length: A[i : i + 4]"
        )
    if first is not None:
        return extent - first
    if step > 1 and extent % step == 0:
        return extent
    raise LayoutError("a slice with a run-time start needs a stop: A[i : i + 4]")


def static(value: Expr | int) -> int | None:
    """The number, if it is one when compiling."""
    return value if isinstance(value, int) else build.as_int(value)


def narrowed(iters: list[Iter], start: Expr | int, count: int, step: int) -> list[Iter] | None:
    """Iters of the ``count`` coordinates ``start, start + step, …`` of a dimension, relative to the
    first; None where a slice cuts an iter unevenly or cannot be shown not to.

    A dimension of one iter can be cut anywhere. One of several can be cut where the slice consists
    of whole inner blocks: its start must be a known multiple of them.
    """
    if len(iters) <= 1:
        i = iters[0] if iters else UNIT
        return [Iter(count, i.stride * step, i.axis)]
    if step == 1:
        return _block(iters, start, count)
    rows = split(iters, step)
    if rows is not None:
        found = narrowed(rows[0], index_floordiv(start, step), count, 1)
        if found is not None:
            return found
    at, last = static(start), iters[-1]
    if at is not None and at % last.extent + (count - 1) * step < last.extent:
        return [Iter(count, last.stride * step, last.axis)]
    return None


def _block(iters: list[Iter], start: Expr | int, count: int) -> list[Iter] | None:
    """``narrowed`` for consecutive coordinates."""
    at, multiple = static(start), divisor(build.index(start))
    inner = math.prod(i.extent for i in iters)
    for number, i in enumerate(iters):
        inner //= i.extent
        taken = count // inner
        if count % inner or multiple % inner or taken > i.extent:
            continue
        if at is not None:
            inside = number == 0 or at // inner % i.extent + taken <= i.extent
        else:
            inside = number == 0 or (i.extent % taken == 0 and multiple % (inner * taken) == 0)
        if inside:
            return [Iter(taken, i.stride, i.axis), *iters[number + 1 :]]
    return None
