"""Layouts of the registers that ``tcgen05.ld`` and ``tcgen05.st`` move.

Computed from numbers and nothing else, as ``language.mma_layouts`` does. Packed forms have the same
registers. Not here: layouts of tensor memory itself, what the instructions require (families).

Source: contract "TMEM loads and stores"; PTX ISA, data movement shapes.
"""

from __future__ import annotations

from typing import Literal

from tilejit.language.mma_layouts import Extents, WarpAxis, over_warps_and_repeats
from tilejit.layout import Iter, LayoutError, TileLayout
from tilejit.ptx.tables.tcgen05_ld_st import MAX_REGISTERS, REGISTERS

TmemShape = Literal["32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2"]


def tcgen05_ld_layout(
    shape: TmemShape,
    num: int,
    repeats: Extents = (),
    *,
    warps: Extents = (),
    warp_axis: WarpAxis = "wid_in_wg",
) -> TileLayout:
    """Registers of ``tcgen05.ld`` and ``tcgen05.st``, for the shape ``(*warps, *repeats, *atom)``.

    ``shape`` and ``num`` as in the opcode: ``"16x64b"`` and 4 for ``.16x64b.x4``. Atoms are (rows, columns)
    of b32 words: ``(32, num)`` for 32x32b, ``(16, 2*num)`` for 16x64b, ``(16, 4*num)`` for 16x128b, ``(16, 8*num)``
    for 16x256b, and (access, row, column) ``(2, 16, num)`` for 16x32bx2. A lane's registers follow each
    other in the instruction's order, repeat by repeat. ``warps``: 4 at scope="warpgroup"; at scope="cta"
    the warps of the CTA with ``warp_axis="warpid"``.
    """
    if shape not in REGISTERS:
        raise LayoutError(f"shapes of tcgen05.ld are {', '.join(REGISTERS)}, got {shape!r}")
    most = MAX_REGISTERS // REGISTERS[shape]
    if (
        isinstance(num, bool)
        or not isinstance(num, int)
        or num < 1
        or num & (num - 1)
        or num > most
    ):
        raise LayoutError(
            f"tcgen05.ld.{shape} comes with .x1 to .x{most} in powers of two, got {num!r}"
        )
    registers = num * REGISTERS[shape]
    return over_warps_and_repeats(_atom(shape, num), registers, repeats, warps, warp_axis)


def _atom(shape: TmemShape, num: int) -> tuple[Iter, ...]:
    """Rows, then columns."""
    rows_of_4 = Iter(8, 4, "laneid")
    match shape:
        case "32x32b":
            return (Iter(32, 1, "laneid"), Iter(num, 1))
        case "16x64b":
            return (Iter(2, 1, "laneid"), rows_of_4, Iter(num, 1), Iter(2, 2, "laneid"))
        case "16x128b":
            return (Iter(2, 1), rows_of_4, Iter(num, 2), Iter(4, 1, "laneid"))
        case "16x256b":
            return (Iter(2, 2), rows_of_4, Iter(num, 4), Iter(4, 1, "laneid"), Iter(2, 1))
        case "16x32bx2":
            return (Iter(2, 16, "laneid"), Iter(16, 1, "laneid"), Iter(num, 1))
