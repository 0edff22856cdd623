"""Loads and stores of tensor memory by a warp.

``.xN`` repeats a shape N times along the columns; at most 128 registers of a lane take part. The split
shape ``16x32bx2`` accesses two places, the second at a literal distance. Not here: ``ld.red``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row
from tilejit.ptx.tables.tcgen05 import TARGET

FAMILY = "tcgen05_ld_st"

REGISTERS: dict[str, int] = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
"""Of each lane for ``.x1``, by shape."""
MAX_REGISTERS = 128
_TIMES = (1, 2, 4, 8, 16, 32, 64, 128)

# Registers are there, and cells stored, only after a wait.
_LOADS: tuple[Effect, ...] = ("reads_memory", "convergent", "async", "volatile")
_STORES: tuple[Effect, ...] = ("writes_memory", "convergent", "async", "volatile")


def _rows() -> Iterator[Row]:
    for shape, each in REGISTERS.items():
        distance = " #imm_half_splitoff" if shape == "16x32bx2" else ""
        for times in _TIMES:
            if each * times > MAX_REGISTERS:
                continue
            registers = f"registers:b32*{{{each * times}}}"
            form = f"sync.aligned(shape=.{shape})(num=.x{times})"
            yield Row(
                f"tcgen05.ld.{form}[pack=.pack::16b].b32",
                f"={registers} [taddr:b32@tmem]{distance}", TARGET, _LOADS,
            )  # fmt: skip
            yield Row(
                f"tcgen05.st.{form}[unpack=.unpack::16b].b32",
                f"=[taddr:b32@tmem]{distance} {registers}", TARGET, _STORES,
            )  # fmt: skip


ROWS: tuple[Row, ...] = tuple(_rows())
