"""Pictures of layouts: who owns each element, or where in memory it lies and in which bank.

A picture is a grid of the tile's coordinates, rows down and columns across. Elements of one owner (thread,
warp, lane of tensor memory) have one colour, or those of one bank; the text in a cell is its owner and
register, or its address. Big tiles are cut, and the caption says so.

Not here: layouts themselves (``layout``), which accesses a kernel makes (``tile.banks``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilejit import markup
from tilejit.markup import Html
from tilejit.shared_banks import BANKS, WORD_BYTES, IntArray, busiest

MAX_ROWS = 32
MAX_COLUMNS = 32
_LANES = 32
_CELL_HEIGHT = 28
_MARGIN = 30
_LETTER_WIDTH = 6.7

_NAMES = {
    "laneid": ("thread of the warp", "t"), "warpid": ("warp", "w"), "wid_in_wg": ("warp of the warpgroup", "w"),
    "wgid": ("warpgroup", "g"), "tx": ("thread", "t"), "tid_in_wg": ("thread of the warpgroup", "t"),
    "cbx": ("CTA x", "x"), "cby": ("CTA y", "y"), "cbz": ("CTA z", "z"),
    "TLane": ("lane of tensor memory", "L"), "TCol": ("column of tensor memory", "C"),
}  # fmt: skip
"""Axes in words, and in the cells."""
_OWNERS = ("cbz", "cby", "cbx", "wgid", "warpid", "wid_in_wg", "tid_in_wg", "tx", "laneid", "TLane", "TCol")  # fmt: skip
"""In the order that a cell names them."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """``text``: its lines. ``group``: cells of one group have one colour and are marked together."""

    text: tuple[str, ...]
    group: int
    tip: str


def owners(positions: Mapping[str, IntArray], shape: tuple[int, int], caption: str) -> Html:
    """A tile in registers or in tensor memory. ``positions``: every axis' value at the coordinates that are
    looked at, the first of ``shape``; ``m`` is the register."""
    named = [axis for axis in _OWNERS if axis in positions]
    colour_of = _numbered([positions[axis] for axis in named if axis != "TCol"])
    slots = positions["m"] if "TCol" not in named else None

    def cell(row: int, column: int) -> _Cell:
        values = [(axis, int(positions[axis][row, column])) for axis in named]
        first = " ".join(f"{_NAMES[axis][1]}{value}" for axis, value in values)
        words = ", ".join(f"{_NAMES[axis][0]} {value}" for axis, value in values)
        if slots is None:
            return _Cell((first,), int(colour_of[row, column]), f"({row}, {column}): {words}")
        slot = int(slots[row, column])
        tip = f"({row}, {column}): {words}, register {slot}"
        return _Cell((first, f"r{slot}"), int(colour_of[row, column]), tip)

    legend = ", ".join(f"{_NAMES[axis][1]} {_NAMES[axis][0]}" for axis in named)
    registers = "" if slots is None else ", r register (element of its buffer)"
    note = f"{legend}{registers}; one colour is one thread's" if slots is not None else legend
    return _picture(shape, cell, caption, note)


def memory(
    addresses_elems: IntArray, shape: tuple[int, int], element_bytes: int, caption: str
) -> Html:
    """A tile in memory: addresses coloured by bank of shared memory, and what usual accesses cost there.
    ``addresses_elems``: of the coordinates that are looked at, the first of ``shape``."""
    addresses_bytes = addresses_elems * element_bytes
    banks = addresses_bytes // WORD_BYTES % BANKS

    def cell(row: int, column: int) -> _Cell:
        address, at = int(addresses_elems[row, column]), int(banks[row, column])
        tip = f"({row}, {column}): element {address}, byte {address * element_bytes}, bank {at}"
        return _Cell((str(address), f"b{at}"), at, tip)

    unit = f"elements of {element_bytes} byte{'s' if element_bytes > 1 else ''}"
    note = f"address in {unit}, b bank of shared memory; one colour is one bank"
    picture = _picture(shape, cell, caption, note)
    return markup.join((picture, _costs(addresses_bytes, element_bytes)))


# --- what accesses cost


def _costs(addresses_bytes: IntArray, element_bytes: int) -> Html:
    rows = [
        (what, ideal, _mark(actual, ideal))
        for what, ideal, actual in _accesses(addresses_bytes, element_bytes)
    ]
    return markup.table(
        ("worst access of a warp", "wavefronts without conflicts", "wavefronts"),
        rows,
        numeric=(1, 2),
    )


def _mark(actual: int, ideal: int) -> Html:
    if actual <= ideal:
        return markup.tag("span", actual, class_="good")
    return markup.tag("span", f"{actual}, a {actual / ideal:g}-way conflict", class_="bad")


def _accesses(addresses_bytes: IntArray, element_bytes: int) -> Iterator[tuple[str, int, int]]:
    """(what, ideal, wavefronts of the worst) of the accesses that the tile is large enough for."""
    rows, columns = addresses_bytes.shape
    for name, table, extent in (
        ("along a row", addresses_bytes, columns),
        ("down a column", addresses_bytes.T, rows),
    ):
        lanes = min(_LANES, extent)
        if lanes > 1:
            starts = table[:, : extent // lanes * lanes].reshape(-1, lanes)
            each = f"{lanes} lanes {name}, {element_bytes} bytes each"
            yield each, *_wavefronts(starts, element_bytes)
    chunk = 16 // element_bytes
    if rows >= 8 and columns >= chunk and 16 % element_bytes == 0:
        whole = addresses_bytes[: rows // 8 * 8, : columns // chunk * chunk : chunk]
        starts = whole.reshape(rows // 8, 8, -1).transpose(0, 2, 1).reshape(-1, 8)
        yield "8 rows of 16 bytes (a matrix of ldmatrix)", *_wavefronts(starts, 16)


def _wavefronts(starts_bytes: IntArray, nbytes: int) -> tuple[int, int]:
    """Ideal and worst of warp instructions whose lanes ask for ``nbytes`` at these addresses, one
    instruction per row, at most 128 bytes each phase."""
    count = -(-nbytes // WORD_BYTES)
    lanes = max(1, min(starts_bytes.shape[1], _LANES // count))
    usable = starts_bytes[:, : starts_bytes.shape[1] // lanes * lanes]
    words = usable[..., np.newaxis] // WORD_BYTES + np.arange(count)
    phases = usable.shape[1] // lanes
    flat = words.reshape(-1, lanes * count)
    worst = busiest(flat, np.ones_like(flat, dtype=np.bool_)).reshape(-1, phases).sum(axis=1)
    return phases, int(worst.max())


# --- drawing


def _numbered(axes: Sequence[IntArray]) -> IntArray:
    """One number for each combination of values."""
    if not axes:
        raise ValueError("a picture of owners needs an axis of owners")
    stacked = np.stack([axis.reshape(-1) for axis in axes], axis=1)
    _, numbers = np.unique(stacked, axis=0, return_inverse=True)
    result: IntArray = numbers.reshape(axes[0].shape).astype(np.int64)
    return result


def _picture(
    shape: tuple[int, int], cell: Callable[[int, int], _Cell], caption: str, note: str
) -> Html:
    rows, columns = min(shape[0], MAX_ROWS), min(shape[1], MAX_COLUMNS)
    cells = [[cell(row, column) for column in range(columns)] for row in range(rows)]
    longest = max(len(line) for row in cells for c in row for line in c.text)
    width = max(26.0, longest * _LETTER_WIDTH + 6)
    drawn = [_heading(column, _MARGIN + (column + 0.5) * width, 12) for column in range(columns)]
    for row, line in enumerate(cells):
        top = 18 + row * _CELL_HEIGHT
        drawn.append(_heading(row, _MARGIN / 2, top + _CELL_HEIGHT / 2 + 4))
        drawn += [_drawn(c, _MARGIN + column * width, top, width) for column, c in enumerate(line)]
    cut = (rows, columns) != shape
    shown = f"{shape[0]} × {shape[1]} elements"
    if cut:
        shown += f", of which the first {rows} × {columns} are drawn"
    picture = markup.svg(
        _MARGIN + columns * width + 2, 20 + rows * _CELL_HEIGHT, markup.join(drawn), caption
    )
    return markup.join(
        (
            markup.tag("div", markup.tag("code", caption), class_="title"),
            markup.tag("div", f"{shown}. {note}.", class_="faint"),
            markup.tag("div", picture, class_="scroll picture"),
        )
    )


def _heading(number: int, x: float, y: float) -> Html:
    return markup.tag(
        "text", number, x=f"{x:g}", y=f"{y:g}", text_anchor="middle", fill="currentColor", opacity=0.7,
    )  # fmt: skip


def _drawn(cell: _Cell, x: float, y: float, width: float) -> Html:
    box = markup.tag(
        "rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=_CELL_HEIGHT,
        fill=_colour(cell.group), stroke="rgba(0,0,0,.25)",
    )  # fmt: skip
    middle = y + _CELL_HEIGHT / 2 + 4 - 5.5 * (len(cell.text) - 1)
    lines = [
        markup.tag(
            "text", text, x=f"{x + width / 2:g}", y=f"{middle + 11 * i:g}", text_anchor="middle",
            fill="#111",
        )
        for i, text in enumerate(cell.text)
    ]  # fmt: skip
    body = markup.join((markup.tag("title", cell.tip), box, *lines))
    return Html(f'<g data-line="g{cell.group}">{body}</g>')


def _colour(number: int) -> str:
    """Neighbouring numbers are told apart: hues step by the golden angle, all light enough for dark text."""
    return f"hsl({number * 137.508 % 360:.0f} 70% {82 - number // 8 % 3 * 7}%)"
