"""Which lanes and columns of tensor memory tcgen05.mma works on, in each CTA of its group.

Tensor memory has four *slabs* of 32 lanes, and each multiplies with what is in its own lanes: a slab has
rows and columns of D, the same rows of A where A is in tensor memory, and the scale factors of both.

Source: PTX ISA, "data path layout organization" (layouts A to G), "block scaling"; contract "Tensor Core
matrix multiply-accumulate"; CUTLASS, ``tmem_sf_frg``, for SFB of M=128 of two CTAs. Not here: layouts
that kernels declare (``language.tensor_memory_layouts``), where operands begin, sparse A (layout C).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from tilejit.ir.tensor_memory import CELL_BITS, HALF_SLAB_LANES, SLAB_LANES, SLABS
from tilejit.tile.affine import IntArray

FACTOR_BITS = 8
FACTORS_PER_COLUMN = CELL_BITS // FACTOR_BITS
"""Bytes of a column: each is a scale factor."""


@dataclass(frozen=True, slots=True)
class Datapath:
    """``rows`` of M in a CTA; D's columns in ``parts`` equal parts, each in lanes of its own. ``half``:
    16 rows in each slab, in its lower or upper lanes."""

    letter: str
    rows: int
    parts: int = 1
    half: bool = False

    @property
    def first_lanes(self) -> tuple[int, ...]:
        """Where D and A may begin."""
        return (0, HALF_SLAB_LANES) if self.half else (0,)

    @property
    def row_lanes(self) -> IntArray:
        """The lane of every row, after the first: shape (rows,)."""
        row = np.arange(self.rows, dtype=np.int64)
        if self.half:
            return SLAB_LANES * (row // HALF_SLAB_LANES) + row % HALF_SLAB_LANES
        return row

    @property
    def part_lanes(self) -> IntArray:
        """How many lanes after the first part of the columns each lies: shape (parts,)."""
        return np.arange(self.parts, dtype=np.int64) * (SLABS * SLAB_LANES // self.parts)

    def accumulator(self, n: int) -> tuple[IntArray, IntArray]:
        """Lanes and columns of D, (rows, n), after its origin."""
        column = np.arange(n, dtype=np.int64)
        width = n // self.parts
        lanes = self.row_lanes[:, None] + self.part_lanes[column // width]
        return lanes, np.broadcast_to(column % width, lanes.shape)

    def slab(self, number: int, n: int) -> tuple[slice, slice]:
        """The rows and columns of D that a slab has."""
        per_part = SLABS // self.parts
        part, inside = divmod(number, per_part)
        height, width = self.rows // per_part, n // self.parts
        return slice(inside * height, (inside + 1) * height), slice(
            part * width, (part + 1) * width
        )


_PATHS: dict[tuple[int, int, bool], Datapath] = {
    (256, 2, False): Datapath("A", 128),
    (128, 2, False): Datapath("B", 64, parts=2),
    (128, 1, False): Datapath("D", 128),
    (128, 1, True): Datapath("D", 128),
    (64, 1, True): Datapath("E", 64, parts=2),
    (64, 1, False): Datapath("F", 64, half=True),
    (32, 1, True): Datapath("G", 32, parts=4),
}


def datapath(m: int, ctas: int, weight_stationary: bool) -> Datapath:
    """Of an instruction's M, CTAs and ``.ws``."""
    return _PATHS[m, ctas, weight_stationary]


@cache
def factor_cells(rows: int, parts: int = 1) -> tuple[IntArray, IntArray]:
    """Lane and column of a row's scale factors in a slab that multiplies with them: shape (rows,).
    ``parts``: of SFB those of D's columns, each of which begins anew in slabs of its own."""
    row = np.arange(rows, dtype=np.int64) % (rows // parts)
    return row % SLAB_LANES, row // SLAB_LANES
