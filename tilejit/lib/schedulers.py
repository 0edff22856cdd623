"""Which tile of a matrix comes when, and who computes it, in the kernel language.

An *order* maps the number of a tile to its (row, column). Workers (CTAs, or clusters of them) that run at
one time have close numbers, so the order decides what they share in L2.

Worker w of W takes the *items* of work w, w + W, … An item is a whole tile or, of the tiles beyond the
last whole wave, a part along K: ``items``, ``slices``.

Not here: what the parts of a tile do with their sums (``lib.split_sums``).
"""

from __future__ import annotations

from tilejit import T, jit

# --- orders

ORDERS = ("grouped", "snake", "hilbert")


@jit
def place(number, tiles_m, tiles_n, order: T.constexpr, group_m: T.constexpr):
    """The (row, column) of a tile. ``order``, one of ``ORDERS``: "grouped"; "snake": the same with every
    other group from right to left; "hilbert", for a ``group_m`` that is a power of two."""
    T.static_assert(order in ORDERS, "order is grouped, snake or hilbert")
    if order == "hilbert":
        return hilbert(number, tiles_m, tiles_n, group_m)
    return grouped(number, tiles_m, tiles_n, group_m, order == "snake")


@jit
def grouped(number, tiles_m, tiles_n, group_m: T.constexpr, snake: T.constexpr = False):
    """Down ``group_m`` tile rows, then one tile column to the right; the last group may be lower.
    ``snake``: every other group runs from right to left, so that it starts where the one before
    ended."""
    per_group = group_m * tiles_n
    group = T.truncdiv(number, per_group)
    first = group * group_m
    height = min(tiles_m - first, group_m)
    inside = T.truncmod(number, per_group)
    row, column = first + T.truncmod(inside, height), T.truncdiv(inside, height)
    if snake:
        column = T.if_then_else(group % 2 == 1, tiles_n - 1 - column, column)
    T.assume(0 <= row < tiles_m)
    T.assume(0 <= column < tiles_n)
    return row, column


@jit
def hilbert(number, tiles_m, tiles_n: T.constexpr, side: T.constexpr):
    """Bands of ``side`` (a power of two) tile rows, every other one from right to left. In a band,
    squares of ``side`` columns one after another, each along Hilbert's curve from its first to its last
    column; what no square covers goes down and to the right. Each two neighbours of a curve share a
    row or a column."""
    T.static_assert(side & (side - 1) == 0, "the side of Hilbert's curve is a power of two")
    per_band, per_square = side * tiles_n, side * side
    band = T.truncdiv(number, per_band)
    inside = T.truncmod(number, per_band)
    height = min(tiles_m - band * side, side)
    covered = T.if_then_else(height == side, tiles_n // side * per_square, 0)
    square, rest = T.truncdiv(inside, per_square), inside - covered
    x, y = curve(T.truncmod(inside, per_square), side)
    on_curve = rest < 0
    first_column = T.truncdiv(covered, side)
    column = T.if_then_else(on_curve, square * side + x, first_column + T.truncdiv(rest, height))
    row = T.if_then_else(on_curve, y, T.truncmod(rest, height))
    column = T.if_then_else(band % 2 == 1, tiles_n - 1 - column, column)
    row = band * side + row
    T.assume(0 <= row < tiles_m)
    T.assume(0 <= column < tiles_n)
    return row, column


@jit
def curve(distance, side: T.constexpr):
    """(x, y) of a point of Hilbert's curve over a square, from (0, 0) to (side - 1, 0)."""
    x, y = T.int32(0), T.int32(0)
    half = 1
    while half < side:
        right = T.truncdiv(distance, 2) & 1
        up = (distance ^ right) & 1
        turned_x = T.if_then_else(right == 1, half - 1 - y, y)
        turned_y = T.if_then_else(right == 1, half - 1 - x, x)
        x = T.if_then_else(up == 1, x, turned_x) + half * right
        y = T.if_then_else(up == 1, y, turned_y) + half * up
        distance = T.truncdiv(distance, 4)
        half = half * 2
    return x, y


# --- items of work


@jit
def items(tiles, workers, parts: T.constexpr):
    """(number of items, number of whole tiles, which come first). Tiles beyond the last whole wave are
    cut into ``parts`` items, unless that gives some worker two of them."""
    T.static_assert(parts > 0, "a tile has at least one part")
    if parts == 1:
        return tiles, tiles
    rest = T.truncmod(tiles, workers)
    whole = T.if_then_else(rest * parts <= workers, tiles - rest, tiles)
    return whole + (tiles - whole) * parts, whole


@jit
def slices(item, tiles, whole, parts: T.constexpr, k_tiles: T.constexpr):
    """(tile, part, first slice, slice behind the last) of an item. The last part of a tile has the
    highest number of its items: by the time it runs, the others run or have run. A whole tile is its
    own last part."""
    if parts == 1:
        return item, 0, 0, k_tiles
    split = item >= whole
    beyond, rest = item - whole, tiles - whole
    part = T.int32(0)
    for other in T.unroll(1, parts):
        part = part + T.cast(beyond >= other * rest, "int32")
    tile = T.if_then_else(split, whole + beyond - part * rest, item)
    part = T.if_then_else(split, part, parts - 1)
    begin = T.if_then_else(split, T.truncdiv(part * k_tiles, parts), 0)
    end = T.truncdiv((part + 1) * k_tiles, parts)
    T.assume(0 <= part < parts)
    T.assume(begin >= 0)
    T.assume(end <= k_tiles)
    return tile, part, begin, end
