"""Layouts of tensor memory that ``tcgen05.mma`` reads and writes: accumulators, A, scale factors.

Each function computes a layout from numbers and nothing else: it chooses no instruction, allocates
nothing, and gives the same value inside a kernel (at compile time) and outside. ``TLane`` is a lane, 0
to 127; ``TCol`` counts elements of the buffer's dtype along the 512 columns of 32-bit cells, two of a
16-bit dtype to a cell. A layout fits every shape of its size: ``(64, 128)`` is ``(64, 2, 64)``, too.

Source: PTX ISA 9.0, "Data path layout organization" (9.7.16.10.5, layouts A to G), "Packing formats of
elements in Tensor and Shared memory" (9.7.16.10.4), "Block scaling" (9.7.16.10.7); contract "Tensor Core
matrix multiply-accumulate". Not here: what the instruction requires (families), registers of
``tcgen05.ld`` and ``.st``, shared operands (``mma_layouts``), sparse A.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from tilejit.dtypes import DType
from tilejit.dtypes import dtype as as_dtype
from tilejit.ir.tensor_memory import (
    CELL_BITS,
    HALF_SLAB_LANES,
    SLAB_LANES,
    SLABS,
    TENSOR_COLUMNS,
    TENSOR_LANES,
)
from tilejit.layout import Iter, LayoutError, TileLayout, row_major

Letter = Literal["A", "B", "C", "D", "E", "F", "G"]
Operand = Literal["D", "A", "SFA", "SFB"]

OPERANDS = ("D", "A", "SFA", "SFB")
CELL_FACTORS = CELL_BITS // 8
"""Scale factors of 8 bits in a cell."""


class Datapath(NamedTuple):
    """Where the rows and columns of D lie. ``parts``: of D's columns, in different lanes.
    ``half``: 16 rows in each slab of 32 lanes. ``used_by``: the instructions, for messages."""

    rows: int
    parts: int
    half: bool
    used_by: str


DATAPATHS: dict[str, Datapath] = {
    "A": Datapath(128, 1, False, "M=256 of two CTAs"),
    "B": Datapath(64, 2, False, "M=128 of two CTAs"),
    "C": Datapath(64, 1, True, "M=128 of two CTAs with sparse A"),
    "D": Datapath(128, 1, False, "M=128 of one CTA"),
    "E": Datapath(64, 2, False, "M=64 with .ws"),
    "F": Datapath(64, 1, True, "M=64 without .ws"),
    "G": Datapath(32, 4, False, "M=32 with .ws"),
}
"""Rows and lanes are those of one CTA."""


def tmem_datapath_layout(letter: Letter, rows: int, cols: int, sub_slab: int = 0) -> TileLayout:
    """Tensor memory of ``(rows, cols)`` in one of the PTX ISA's layouts A to G, of one CTA.

    (lane, column) of (r, c), N = ``cols``: A (M=256 of two CTAs) and D (M=128) have 128 rows, (r, c).
    B (M=128 of two CTAs) and E (M=64 .ws) have 64, (r + 64·(c // (N/2)), c % (N/2)). F (M=64) and C
    (M=128 of two CTAs, sparse) have 64, (32·(r//16) + r%16 + 16·``sub_slab``, c). G (M=32 .ws) has 32,
    (r + 32·(c // (N/4)), c % (N/4)). ``sub_slab``: 1 takes the upper halves of the slabs, in C and F.

    Columns follow each other: an accumulator of 16 bits, which leaves out every other one, is
    ``tmem_mma_operand_layout("D", …)``.
    """
    path = DATAPATHS.get(letter)
    if path is None:
        raise LayoutError(f"a layout of tensor memory is one of A to G, got {letter!r}")
    (width,) = _extents("columns", (cols,))
    if rows != path.rows:
        raise LayoutError(f"layout {letter} ({path.used_by}) has {path.rows} rows, got {rows!r}")
    if sub_slab not in (0, 1):
        raise LayoutError(f"sub_slab is 0 or 1, got {sub_slab!r}")
    if sub_slab and not path.half:
        raise LayoutError(
            f"layout {letter} ({path.used_by}) takes whole slabs of {SLAB_LANES} lanes: only C and F "
            "have an upper half, sub_slab=1"
        )
    iters = (*_rows(path), *_columns(letter, path, width, 1))
    return _layout(iters, offset=(("TLane", HALF_SLAB_LANES * sub_slab),))


def tmem_mma_operand_layout(
    operand: Operand,
    shape: Sequence[int],
    dtype: DType | str,
    *,
    M: int,
    cta_group: int,
    ws: bool = False,
    sparse: bool = False,
    group: Sequence[int] | None = None,
) -> TileLayout:
    """Tensor memory of an operand of ``tcgen05.mma``, in one CTA, for ``(*repeats, *atom)``.

    ``M`` is the instruction's, of both CTAs with ``cta_group`` 2; ``m`` is ``M / cta_group``. Atoms: D
    ``(m, N)`` in the datapath of M (``tmem_datapath_layout``), one element in a cell, so that a 16-bit one
    has every other TCol. A ``(m, K)`` in the lanes of D, elements side by side (those of 4 and 6 bits of
    kinds f8f6f4 and mxf8f6f4 in uint8 containers). M=128 of two CTAs reads a copy of A in lanes 64 and up,
    which is a replica; M=64 with .ws reads another A there: ``(2, 64, K)``. SFA ``(m, factors)`` and SFB
    ``(N, factors)``, 8-bit: factor f of row r in lane r%32, byte 4·(r//32) + f, and in all four slabs
    (replicas). SFB with M=128 of two CTAs: each half of the rows so, the first in slabs 0 and 1, the other
    in 2 and 3, as the halves of D's columns are.

    Repeats lie one after another along TCol, row-major. Of SFA and SFB the last is K's, and repeats of K
    share cells, as many as fit and divide their number: four of one factor, two of two.
    ``group=(s, 2, n)``: the columns of a flat D in layouts B and E are those of ``s`` instructions of 2·n
    columns, not of one.
    """
    if operand not in OPERANDS:
        raise LayoutError(
            f"an operand in tensor memory is 'D', 'A', 'SFA' or 'SFB', got {operand!r}"
        )
    extents = _extents("extents of an operand", shape)
    letter = _datapath_of(M, cta_group, ws, sparse)
    if group is not None and (operand != "D" or DATAPATHS[letter].parts == 1):
        raise LayoutError(
            "group= cuts the columns of D in layouts B (M=128 of two CTAs) and E (M=64 with .ws), "
            f"got {operand} in layout {letter}"
        )
    if operand == "D":
        return _accumulator(letter, extents, dtype, group)
    if operand == "A":
        return _multiplicand(letter, extents, dtype)
    if ws or M not in (128, 256):
        raise LayoutError(
            f"{operand} with M={M}{' and .ws' if ws else ''}: block scaling has M=128, and M=256 of two "
            "CTAs, and no .ws"
        )
    return _scale_factors(operand, extents, dtype, DATAPATHS[letter])


# --- operands


def _accumulator(
    letter: str, extents: tuple[int, ...], element: DType | str, group: Sequence[int] | None
) -> TileLayout:
    path = DATAPATHS[letter]
    *repeats, rows, columns = _atom("D", extents, 2, "(m, N)")
    bits = _bits("D", element, (16, 32))
    _check_rows("D", letter, rows)
    step = CELL_BITS // bits
    if group is None:
        across = _columns(letter, path, columns, step)
    else:
        across = _grouped_columns(path, columns, step, group)
    width = columns // path.parts * step
    return _repeated("D", repeats, (*_rows(path), *across), width, bits)


def _multiplicand(letter: str, extents: tuple[int, ...], element: DType | str) -> TileLayout:
    path = DATAPATHS[letter]
    bits = _bits("A", element, (4, 8, 16, 32))
    banks: tuple[Iter, ...] = ()
    copies: tuple[Iter, ...] = ()
    if letter == "E":
        *repeats, parts, rows, depth = _atom("A", extents, 3, "(2, 64, K) with M=64 and .ws")
        if parts != 2:
            raise LayoutError(
                f"A with M=64 and .ws ends in (2, 64, K), got {extents}: the halves of N, in lanes 0 to "
                "63 and 64 to 127, multiply an A of their own"
            )
        banks = (Iter(2, 64, "TLane"),)
    else:
        *repeats, rows, depth = _atom("A", extents, 2, "(m, K)")
    if letter == "B":
        copies = (Iter(2, 64, "TLane"),)
    _check_rows("A", letter, rows)
    if depth * bits % CELL_BITS:
        raise LayoutError(
            f"a row of A has {depth} elements of {bits} bits, expected whole cells of {CELL_BITS} bits"
        )
    iters = (*banks, *_rows(path), Iter(depth, 1, "TCol"))
    return _repeated("A", repeats, iters, depth, bits, copies)


def _scale_factors(
    operand: str, extents: tuple[int, ...], element: DType | str, path: Datapath
) -> TileLayout:
    bits = _bits(operand, element, (8,))
    *repeats, rows, factors = _atom(operand, extents, 2, "(rows, factors)")
    if operand == "SFA" and rows != path.rows:
        raise LayoutError(f"SFA has a row for every row of A in a CTA, {path.rows}, got {rows}")
    if factors not in (1, 2, 4):
        raise LayoutError(
            f"{operand} has 1, 2 or 4 factors in a row (scale_vec::1X, 2X, 4X), got {factors}"
        )
    parts = path.parts if operand == "SFB" else 1
    if rows % parts:
        raise LayoutError(
            f"SFB of {path.used_by} has a half of its rows for each half of D's columns, got {rows}"
        )
    _check_slabs(operand, rows, parts)
    slabs = -(-rows // (parts * SLAB_LANES))
    *outer, deep = repeats or [1]
    shared = math.gcd(CELL_FACTORS // factors, deep)
    width = CELL_FACTORS * slabs
    iters = (
        Iter(deep // shared, width, "TCol"),
        Iter(shared, factors, "TCol"),
        Iter(parts, TENSOR_LANES // parts, "TLane"),
        Iter(slabs, CELL_FACTORS, "TCol"),
        Iter(min(rows // parts, SLAB_LANES), 1, "TLane"),
        Iter(factors, 1, "TCol"),
    )
    copies = (Iter(SLABS // parts, SLAB_LANES, "TLane"),)
    return _repeated(operand, outer, iters, width * (deep // shared), bits, copies)


def _check_slabs(operand: str, rows: int, parts: int) -> None:
    """Rows beyond the first slab go on in its lanes: strides place whole slabs."""
    each = rows // parts
    if each <= SLAB_LANES or each % SLAB_LANES == 0:
        return
    up = -(-each // SLAB_LANES) * SLAB_LANES
    if parts > 1:
        raise LayoutError(
            f"{rows} rows of {operand} are halves of {each}, not of whole slabs of {SLAB_LANES} lanes: no "
            f"strides place them, expected up to {parts * SLAB_LANES} rows or a multiple of that"
        )
    raise LayoutError(
        f"{rows} rows of {operand} are not of whole slabs of {SLAB_LANES} lanes: no strides place "
        f"them; lay out {up} rows and use the first {rows}, the region [:, :, :{rows}, :]"
    )


def _datapath_of(m: int, cta_group: int, ws: bool, sparse: bool) -> str:
    """The letter of the datapath of an instruction that this module lays out operands of."""
    if sparse:
        raise LayoutError(
            "sparse A (tcgen05.mma.sp) is no tile instruction; its D with M=128 of two CTAs is "
            'T.cuda.tmem_datapath_layout("C", 64, N)'
        )
    if ws and (cta_group, m) == (1, 32):
        raise LayoutError(
            'M=32 with .ws is layout G, whose D is T.cuda.tmem_datapath_layout("G", 32, N); A comes from '
            "shared memory"
        )
    found = {
        (1, 64, False): "F", (1, 128, False): "D", (2, 128, False): "B", (2, 256, False): "A",
        (1, 64, True): "E", (1, 128, True): "D",
    }.get((cta_group, m, bool(ws)))  # fmt: skip
    if found is None:
        raise LayoutError(
            f"no tcgen05.mma has M={m!r} with cta_group={cta_group!r}{' and .ws' if ws else ''}, expected "
            "M=64 or 128 of one CTA (.ws: 32, too) or M=128 or 256 of two (M counts both)"
        )
    return found


# --- parts of a layout


def _rows(path: Datapath) -> tuple[Iter, ...]:
    """Iters of the rows of a datapath."""
    if path.half:
        return (
            Iter(path.rows // HALF_SLAB_LANES, SLAB_LANES, "TLane"),
            Iter(HALF_SLAB_LANES, 1, "TLane"),
        )
    return (Iter(path.rows, 1, "TLane"),)


def _columns(letter: str, path: Datapath, columns: int, step: int) -> tuple[Iter, ...]:
    """Iters of the columns of a datapath, ``step`` apart."""
    if columns % path.parts:
        raise LayoutError(
            f"layout {letter} ({path.used_by}) puts {path.parts} parts of the columns into different "
            f"lanes: {columns} columns, expected a multiple of {path.parts}"
        )
    return (
        Iter(path.parts, TENSOR_LANES // path.parts, "TLane"),
        Iter(columns // path.parts, step, "TCol"),
    )


def _grouped_columns(
    path: Datapath, columns: int, step: int, group: Sequence[int]
) -> tuple[Iter, ...]:
    """Iters of the columns of several instructions side by side."""
    parts = _extents("group", group)
    if len(parts) != 3 or parts[1] != path.parts or math.prod(parts) != columns:
        raise LayoutError(
            f"group={tuple(group)} of {columns} columns, expected (s, {path.parts}, n) with "
            f"s·{path.parts}·n = {columns}"
        )
    instructions, _, width = parts
    return (
        Iter(instructions, width * step, "TCol"),
        Iter(path.parts, TENSOR_LANES // path.parts, "TLane"),
        Iter(width, step, "TCol"),
    )


def _repeated(
    operand: str,
    repeats: Sequence[int],
    atom: tuple[Iter, ...],
    width: int,
    bits: int,
    copies: tuple[Iter, ...] = (),
) -> TileLayout:
    """``atom`` for every repeat, ``width`` elements apart."""
    columns = math.prod(repeats) * width * bits / CELL_BITS
    if columns > TENSOR_COLUMNS:
        raise LayoutError(
            f"{operand} needs {columns:g} columns of tensor memory, which has {TENSOR_COLUMNS}: "
            f"{math.prod(repeats)} × {width * bits / CELL_BITS:g}"
        )
    outer = row_major(tuple(repeats)).shard if repeats else ()
    return _layout((*(Iter(i.extent, i.stride * width, "TCol") for i in outer), *atom), copies)


def _layout(
    iters: tuple[Iter, ...],
    copies: tuple[Iter, ...] = (),
    offset: tuple[tuple[str, int], ...] = (),
) -> TileLayout:
    return TileLayout(tuple(i for i in iters if i.extent > 1), copies, offset)


# --- what was given


def _atom(operand: str, extents: tuple[int, ...], rank: int, form: str) -> tuple[int, ...]:
    if len(extents) < rank:
        raise LayoutError(f"{operand} is (*repeats, *atom) with the atom {form}, got {extents}")
    return extents


def _check_rows(operand: str, letter: str, rows: int) -> None:
    path = DATAPATHS[letter]
    if rows != path.rows:
        raise LayoutError(
            f"{operand} of {path.used_by} has {path.rows} rows in a CTA, got {rows}: its atom is the "
            "last axes of the shape, repeats come before"
        )


def _bits(operand: str, element: DType | str, expected: tuple[int, ...]) -> int:
    found = as_dtype(element)
    if found.bits not in expected:
        containers = (
            ": values of 6 bits lie in containers, uint8"
            if (operand, found.bits) == ("A", 6)
            else ""
        )
        *most, last = (str(b) for b in expected)
        bits = f"{', '.join(most)} or {last}" if most else last
        raise LayoutError(f"{operand} has elements of {bits} bits, got {found}{containers}")
    return found.bits


def _extents(name: str, value: Sequence[int]) -> tuple[int, ...]:
    found = tuple(value) if isinstance(value, Iterable) else (value,)
    if any(not isinstance(e, int) or isinstance(e, bool) or e < 1 for e in found):
        raise LayoutError(f"{name} are positive integers, got {value!r}")
    return found
