"""Layouts: from tile coordinates to owners and storage positions.

A layout is a list of *iters* over named axes. ``TileLayout`` has shard iters (which split the
row-major flattened logical coordinate, last iter fastest), replica iters (a set of extra positions
holding the same value) and a constant offset per axis. ``ComposeLayout`` is a TileLayout whose
memory address is swizzled. Axis ``m`` is the storage position in elements; ``laneid``, ``warpid``,
``wid_in_wg``, ``wgid``, ``tx``, ``tid_in_wg``, ``cbx``, ``cby``, ``cbz`` are owners; ``TLane`` and
``TCol`` are TMEM coordinates.

Source: contract "operand coordinates and storage"; reference notation ``(2,32,4):(1@warpid,1@laneid,1)``.
Not here: symbolic offsets (``ir.nodes.View``), contracts, drawing (``pictures``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations
from typing import TYPE_CHECKING, NoReturn, TypeAlias

if TYPE_CHECKING:
    from tilejit.markup import Html

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# numpy is imported where it is used: a process that finds its kernel in the disk cache needs none.
IntArray: TypeAlias = "npt.NDArray[np.int64]"

MEMORY_AXIS = "m"
MAX_SPAN_ELEMS = 1 << 22
THREAD_AXES = (
    "laneid", "warpid", "wid_in_wg", "wgid", "tx", "tid_in_wg", "cbx", "cby", "cbz",
)  # fmt: skip
TMEM_AXES = ("TLane", "TCol")
AXES = (MEMORY_AXIS, *THREAD_AXES, *TMEM_AXES)


class LayoutError(ValueError):
    """A layout or view that cannot be; the message says why with the numbers."""


@dataclass(frozen=True, slots=True)
class Iter:
    """``extent`` steps of ``stride`` positions along ``axis`` (elements for ``m``)."""

    extent: int
    stride: int
    axis: str = MEMORY_AXIS

    def __post_init__(self) -> None:
        if self.extent < 1:
            raise LayoutError(f"an iter has extent {self.extent}; extents are positive")
        if self.axis not in AXES:
            raise LayoutError(f"unknown axis {self.axis!r}; known: {', '.join(AXES)}")


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Shard iters, replica iters, and a constant offset per axis (kept sorted and without zeros)."""

    shard: tuple[Iter, ...]
    replica: tuple[Iter, ...] = ()
    offset: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if not self.offset:
            return
        for axis, _ in self.offset:
            if axis not in AXES:
                raise LayoutError(f"unknown axis {axis!r} in an offset; known: {', '.join(AXES)}")
        object.__setattr__(self, "offset", normal_offset(dict(self.offset)))

    @property
    def size(self) -> int:
        """Number of logical elements: the product of shard extents."""
        return math.prod(i.extent for i in self.shard)

    @property
    def axes(self) -> frozenset[str]:
        """Axes that any iter or offset names."""
        return frozenset(i.axis for i in self.shard + self.replica) | {a for a, _ in self.offset}

    def positions(self, shape: tuple[int, ...]) -> Mapping[str, IntArray]:
        """Every axis' value at every logical coordinate of ``shape`` (product == size), as int64
        arrays of that shape. Axis ``m`` is always present. Replicas are not included."""
        return _tile_positions(self, shape)

    def span(self, axis: str = MEMORY_AXIS) -> int:
        """Storage positions needed along ``axis``: largest position + 1, gaps and replicas included."""
        last = dict(self.offset).get(axis, 0)
        for i in self.shard + self.replica:
            if i.axis == axis and i.stride > 0:
                last += (i.extent - 1) * i.stride
        return last + 1

    def picture(self, *shape: int, element_bytes: int | None = None) -> Html:
        """Who owns each element, or its address and bank: ``layout.picture(16, 8)``. A shape of more than
        two dimensions shows its leading ones as rows; without one the layout's own iters are taken.
        ``element_bytes`` tells the banks of shared memory: 4 by default, or what a swizzle's units of 16
        bytes say."""
        return _picture(self, shape, element_bytes)

    def _repr_html_(self) -> str:
        return _page(self)

    def spread(self) -> TileLayout:
        """The replicas as ordinary innermost iters: one logical element for every stored copy."""
        return TileLayout(self.shard + self.replica, (), self.offset) if self.replica else self


@lru_cache(maxsize=1024)
def _tile_positions(layout: TileLayout, shape: tuple[int, ...]) -> Mapping[str, IntArray]:
    import numpy as np

    if math.prod(shape) != layout.size:
        raise LayoutError(
            f"layout {render(layout)} has {layout.size} elements, shape {shape} has "
            f"{math.prod(shape)}"
        )
    extents = tuple(i.extent for i in layout.shard)
    offsets = dict(layout.offset)
    result: dict[str, IntArray] = {}
    for axis in layout.axes | {MEMORY_AXIS}:
        total = np.full(extents, offsets.get(axis, 0), dtype=np.int64)
        for index, i in enumerate(layout.shard):
            if i.axis == axis and i.stride and i.extent > 1:
                steps = np.arange(i.extent, dtype=np.int64) * i.stride
                total += steps.reshape((-1,) + (1,) * (len(extents) - index - 1))
        array = total.reshape(shape)
        array.flags.writeable = False
        result[axis] = array
    return result


@dataclass(frozen=True, slots=True)
class ComposeLayout:
    """``tile``'s memory address, then an XOR swizzle.

    x = address >> per_element; bits [atom_len, atom_len + swizzle_len) of x are XORed into bits
    [0, swizzle_len); the low ``per_element`` bits stay. ``swizzle_inner`` False mirrors it (low
    bits XORed into the high ones). atom_len >= swizzle_len.
    """

    per_element: int
    swizzle_len: int
    atom_len: int
    tile: TileLayout
    swizzle_inner: bool = True

    def __post_init__(self) -> None:
        if min(self.per_element, self.swizzle_len) < 0 or self.atom_len < self.swizzle_len:
            raise LayoutError(
                f"swizzle({self.per_element},{self.swizzle_len},{self.atom_len}): needs "
                "per_element >= 0 and atom_len >= swizzle_len >= 0"
            )

    @property
    def size(self) -> int:
        return self.tile.size

    @property
    def axes(self) -> frozenset[str]:
        return self.tile.axes

    @property
    def period_elems(self) -> int:
        """The swizzle repeats with this period; an offset divisible by it may be added outside."""
        return 1 << (self.per_element + self.atom_len + self.swizzle_len)

    def swizzle(self, address_elems: IntArray) -> IntArray:
        mask = (1 << self.swizzle_len) - 1
        if self.swizzle_inner:
            source = (address_elems >> (self.per_element + self.atom_len)) & mask
            return address_elems ^ (source << self.per_element)
        source = (address_elems >> self.per_element) & mask
        return address_elems ^ (source << (self.per_element + self.atom_len))

    def positions(self, shape: tuple[int, ...]) -> Mapping[str, IntArray]:
        """As TileLayout.positions, with ``m`` swizzled."""
        return _compose_positions(self, shape)

    def span(self, axis: str = MEMORY_AXIS) -> int:
        """Storage positions needed along ``axis``: largest position + 1, gaps, replicas and what the
        swizzle reaches included; in whole periods where there are too many to look at."""
        if axis != MEMORY_AXIS:
            return self.tile.span(axis)
        if self.spread().size > MAX_SPAN_ELEMS:
            return -(-self.tile.span() // self.period_elems) * self.period_elems
        return int(self.spread().positions((self.spread().size,))[MEMORY_AXIS].max()) + 1

    def picture(self, *shape: int, element_bytes: int | None = None) -> Html:
        """As TileLayout.picture."""
        return _picture(self, shape, element_bytes)

    def _repr_html_(self) -> str:
        return _page(self)

    def spread(self) -> ComposeLayout:
        """As TileLayout.spread."""
        return replace(self, tile=self.tile.spread())


@lru_cache(maxsize=1024)
def _compose_positions(layout: ComposeLayout, shape: tuple[int, ...]) -> Mapping[str, IntArray]:
    positions = dict(layout.tile.positions(shape))
    swizzled = layout.swizzle(positions[MEMORY_AXIS])
    swizzled.flags.writeable = False
    positions[MEMORY_AXIS] = swizzled
    return positions


Layout: TypeAlias = TileLayout | ComposeLayout


def row_major(shape: tuple[int, ...]) -> TileLayout:
    """Dense row-major layout of a shape: ``layout="default"``."""
    strides = [1] * len(shape)
    for index in range(len(shape) - 2, -1, -1):
        strides[index] = strides[index + 1] * shape[index + 1]
    return strided(shape, tuple(strides))


def strided(shape: tuple[int, ...], strides: tuple[int, ...]) -> TileLayout:
    """One memory iter per dimension. A rank-0 shape gives one iter of extent 1."""
    if len(shape) != len(strides):
        raise LayoutError(f"shape {shape} and strides {strides} differ in rank")
    return TileLayout(tuple(Iter(e, s) for e, s in zip(shape, strides)) or (Iter(1, 0),))


# --- pictures

_MOST_COLUMNS = 64
"""That leading dimensions are drawn beside the last one for."""
_LOOKED_AT = 256
"""Rows and columns that a picture's numbers are taken from."""
_SWIZZLE_UNIT_BYTES = 16
"""What hardware's swizzles move as a whole."""


def _picture(layout: Layout, shape: tuple[int, ...], element_bytes: int | None) -> Html:
    from tilejit import pictures, shared_banks

    tile = layout.tile if isinstance(layout, ComposeLayout) else layout
    shape = shape or tuple(i.extent for i in tile.shard) or (1,)
    if math.prod(shape) != layout.size:
        raise LayoutError(
            f"layout {render(layout)} has {layout.size} elements, shape {shape} has {math.prod(shape)}"
        )
    columns = shape[-1]
    for extent in reversed(shape[1:-1]):
        if columns * extent > _MOST_COLUMNS:
            break
        columns *= extent
    whole = (layout.size // columns, columns)
    grids = _corner(layout, whole)
    copies = ", copies not drawn" if tile.replica else ""
    caption = f"{render(layout)} of {' × '.join(map(str, shape))}{copies}"
    if layout.axes - {MEMORY_AXIS}:
        return pictures.owners(grids, whole, caption)
    if element_bytes is None:
        element_bytes = shared_banks.WORD_BYTES
        if isinstance(layout, ComposeLayout):
            element_bytes = max(1, _SWIZZLE_UNIT_BYTES >> layout.per_element)
    return pictures.memory(grids[MEMORY_AXIS], whole, element_bytes, caption)


def _corner(layout: Layout, shape: tuple[int, int]) -> dict[str, IntArray]:
    """``positions`` of the first rows and columns, however large the rest is."""
    import numpy as np

    tile = layout.tile if isinstance(layout, ComposeLayout) else layout
    rows, columns = (np.arange(min(extent, _LOOKED_AT), dtype=np.int64) for extent in shape)
    left = rows[:, np.newaxis] * shape[1] + columns
    offsets = dict(tile.offset)
    found = {
        axis: np.full(left.shape, offsets.get(axis, 0), dtype=np.int64)
        for axis in layout.axes | {MEMORY_AXIS}
    }
    for i in reversed(tile.shard):
        found[i.axis] += left % i.extent * i.stride
        left = left // i.extent
    if isinstance(layout, ComposeLayout):
        found[MEMORY_AXIS] = layout.swizzle(found[MEMORY_AXIS])
    return found


def _page(layout: Layout) -> str:
    from tilejit import markup

    return markup.fragment(layout.picture())


# --- notation


_TOKEN = re.compile(r"\s*(?:(\d+)|([A-Za-z_]\w*)|(//|[-+*()\[\]:,@%]))")


class _Parser:
    """Recursive descent over the notation; positions are columns for the caret."""

    def __init__(self, text: str):
        self.text = text
        self.tokens: list[tuple[str, int]] = []
        position = 0
        self.index = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                blank = len(text[position:]) - len(text[position:].lstrip())
                self.fail(f"unexpected {text[position + blank]!r}", position + blank)
            self.tokens.append((match[0].strip(), match.end() - len(match[0].strip())))
            position = match.end()

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        if position is None:
            done = self.index >= len(self.tokens)
            position = len(self.text) if done else self.tokens[self.index][1]
        raise LayoutError(f"{message}\n  {self.text}\n  {' ' * position}^")

    def peek(self) -> str:
        return self.tokens[self.index][0] if self.index < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            self.fail(f"expected {expected or 'more'!r}, found {token or 'the end'!r}")
        self.index += 1
        return token

    def accept(self, token: str) -> bool:
        if self.peek() == token:
            self.index += 1
            return True
        return False

    # integer arithmetic: + - * // % and parentheses

    def integer(self) -> int:
        value = self.term()
        while self.peek() in ("+", "-"):
            value = value + self.term() if self.take() == "+" else value - self.term()
        return value

    def term(self) -> int:
        value = self.factor()
        while self.peek() in ("*", "//", "%"):
            operator = self.take()
            right = self.factor()
            if operator == "*":
                value *= right
                continue
            if right == 0:
                self.fail("division by zero")
            value = value // right if operator == "//" else value % right
        return value

    def factor(self) -> int:
        if self.accept("-"):
            return -self.factor()
        if self.accept("("):
            value = self.integer()
            self.take(")")
            return value
        token = self.peek()
        if not token.isdigit():
            self.fail(f"expected an integer, found {token or 'the end'!r}")
        return int(self.take())

    def axis(self) -> str:
        if not self.accept("@"):
            return MEMORY_AXIS
        axis = self.peek()
        if axis not in AXES:
            self.fail(f"unknown axis {axis!r}; known: {', '.join(AXES)}")
        return self.take()

    # lists

    def extents(self) -> list[int]:
        """``(a, b)`` or ``a``."""
        if not self.accept("("):
            return [self.extent()]
        found: list[int] = []
        while not self.accept(")"):
            found.append(self.extent())
            if self.peek() != ")":
                self.take(",")
        return found

    def extent(self) -> int:
        value = self.integer()
        if self.peek() == "@":
            self.fail("an axis belongs to a stride, after the colon")
        return value

    def strides(self) -> list[tuple[int, str]]:
        if not self.accept("("):
            return [(self.integer(), self.axis())]
        found: list[tuple[int, str]] = []
        while not self.accept(")"):
            found.append((self.integer(), self.axis()))
            if self.peek() != ")":
                self.take(",")
        return found

    def group(self) -> tuple[Iter, ...]:
        """``(extents)[:(strides)]`` or ``extent:stride``."""
        start = self.tokens[self.index][1] if self.index < len(self.tokens) else 0
        return self.joined(self.extents(), start)

    def joined(self, extents: list[int], start: int) -> tuple[Iter, ...]:
        """Extents with the strides that follow, or row-major ones; ``start`` is for the caret."""
        if not self.accept(":"):
            return row_major(tuple(extents)).shard if extents else ()
        strides = self.strides()
        if len(extents) != len(strides):
            self.fail(f"{len(extents)} extents but {len(strides)} strides", start)
        return tuple(Iter(e, s, a) for e, (s, a) in zip(extents, strides))

    def bracketed(self) -> tuple[Iter, ...]:
        """``[group]``, and ``[8, 4]`` for ``[(8, 4)]``."""
        self.take("[")
        start = self.tokens[self.index][1] if self.index < len(self.tokens) else 0
        extents = self.extents()
        while self.accept(","):
            extents.append(self.extent())
        iters = self.joined(extents, start)
        self.take("]")
        return iters

    def layout(self) -> Layout:
        if self.accept("swizzle"):
            self.take("(")
            numbers = [self.integer()]
            inner = True
            while self.accept(","):
                if self.accept("outer"):
                    inner = False
                else:
                    numbers.append(self.integer())
            self.take(")")
            if len(numbers) != 3:
                self.fail("swizzle takes (per_element, swizzle_len, atom_len)")
            self.take("o")
            return ComposeLayout(numbers[0], numbers[1], numbers[2], self.tile(), inner)
        return self.tile()

    def tile(self) -> TileLayout:
        shard = self.bracketed() if self.accept("S") else self.group()
        replica: tuple[Iter, ...] = ()
        offset: dict[str, int] = {}
        while self.peek():
            sign = -1 if self.peek() == "-" else 1
            if self.peek() not in ("+", "-"):
                self.fail(f"unexpected {self.peek()!r}")
            self.take()
            if sign > 0 and self.accept("R"):
                replica += self.bracketed()
            else:
                value = sign * self.term()
                axis = self.axis()
                offset[axis] = offset.get(axis, 0) + value
        return TileLayout(shard, replica, normal_offset(offset))


def normal_offset(offset: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Nonzero offsets, sorted by axis name: the form every layout keeps."""
    return tuple(sorted((a, v) for a, v in offset.items() if v))


def parse(text: str) -> Layout:
    """The layout a notation string denotes; inverse of ``render``. ``LayoutError`` with a caret position.

    ``(2,32,4):(1@warpid,1@laneid,1)``; strides may be left out (``(8,4)`` is row-major); replicas
    ``+ R[2:64@TLane]``; offsets ``+ 3@laneid`` or ``+ 16``; ``S[...]`` around the shard part is
    accepted; ``swizzle(per_element,swizzle_len,atom_len) o <tile>`` is a ComposeLayout (a fourth
    argument ``outer`` for ``swizzle_inner=False``). Extents and strides may be integer arithmetic.
    """
    parser = _Parser(text)
    result = parser.layout()
    if parser.peek():
        parser.fail(f"unexpected {parser.peek()!r}")
    return result


def _render_iters(iters: tuple[Iter, ...]) -> str:
    extents = ",".join(str(i.extent) for i in iters)
    strides = ",".join(
        str(i.stride) if i.axis == MEMORY_AXIS else f"{i.stride}@{i.axis}" for i in iters
    )
    return f"({extents}):({strides})"


def render(layout: Layout) -> str:
    """The contract's notation of a layout; ``parse`` reads it back."""
    if isinstance(layout, ComposeLayout):
        outer = "" if layout.swizzle_inner else ",outer"
        head = f"swizzle({layout.per_element},{layout.swizzle_len},{layout.atom_len}{outer})"
        return f"{head} o {render(layout.tile)}"
    text = _render_iters(layout.shard)
    for i in layout.replica:
        axis = "" if i.axis == MEMORY_AXIS else f"@{i.axis}"
        text += f" + R[{i.extent}:{i.stride}{axis}]"
    for axis, value in layout.offset:
        sign = "-" if value < 0 else "+"
        text += f" {sign} {abs(value)}" + ("" if axis == MEMORY_AXIS else f"@{axis}")
    return text


# --- injectivity


@dataclass(frozen=True, slots=True)
class Collision:
    """Two logical coordinates with one storage position and owner."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    position: tuple[tuple[str, int], ...]


MAX_ALIAS_STEPS = 1 << 16


def aliases(layout: Layout) -> bool:
    """Whether strides alone show that two coordinates share a place in memory. Cheap whatever the
    extents: two iters are solved, more are searched where a stride is within the reach of smaller
    ones; after ``MAX_ALIAS_STEPS`` the answer is no.
    """
    tile = layout.tile if isinstance(layout, ComposeLayout) else layout
    steps = sorted(
        (abs(i.stride), i.extent) for i in tile.shard if i.axis == MEMORY_AXIS and i.extent > 1
    )
    if steps and steps[0][0] == 0:
        return True
    for (narrow, others), (wide, count) in combinations(steps, 2):
        common = math.gcd(wide, narrow)
        if wide // common < others and narrow // common < count:
            return True
    reach = list(accumulate((stride * (extent - 1) for stride, extent in steps), initial=0))
    left = MAX_ALIAS_STEPS

    def meets(count: int, distance: int, moved: bool) -> bool:
        """Whether index differences of the ``count`` smallest strides make up ``distance``; not by
        standing still unless something has ``moved``."""
        nonlocal left
        if count == 0:
            return moved and distance == 0
        stride, extent = steps[count - 1]
        low = max(1 - extent if moved else 0, -((reach[count - 1] - distance) // stride))
        high = min(extent - 1, (reach[count - 1] + distance) // stride)
        for difference in range(low, high + 1):
            left -= 1
            if left < 0:
                return False
            if meets(count - 1, distance - difference * stride, moved or difference != 0):
                return True
        return False

    return meets(len(steps), 0, False)


def find_collision(layout: Layout, shape: tuple[int, ...]) -> Collision | None:
    """None when the layout is injective on ``shape``; else the first coordinate that collides and
    the earlier one it collides with. Replicas count: no copy may lie on another element's.
    """
    import numpy as np

    layout.positions(shape)  # refuses a shape of another size
    spread = layout.spread()
    copies = spread.size // layout.size
    positions = spread.positions((spread.size,))
    # One integer per stored copy: mixed radix over the axes, which sorts far faster than rows.
    key = np.zeros(spread.size, dtype=np.int64)
    for values in positions.values():
        low = int(values.min())
        key = key * (int(values.max()) - low + 1) + (values - low)
    _, first_index, inverse = np.unique(key, return_index=True, return_inverse=True)
    element = np.arange(spread.size) // copies
    earlier = first_index[inverse] // copies
    clashes = np.flatnonzero(earlier != element)
    if len(clashes) == 0:
        return None
    second = int(clashes[0])

    def coordinate(flat: int) -> tuple[int, ...]:
        return tuple(int(c) for c in np.unravel_index(flat, shape))

    where = tuple((a, int(positions[a][second])) for a in sorted(positions))
    return Collision(coordinate(int(earlier[second])), coordinate(second // copies), where)
