"""Copies of shared memory, which a 64-bit matrix descriptor describes, into tensor memory.

Shapes that are copied to several groups of lanes say to which. The last two modifiers expand packed 4-
or 6-bit values to bytes. Not here: loads from global memory into shared memory.
"""

from __future__ import annotations

from tilejit.ptx.rows import Row
from tilejit.ptx.tables.tcgen05 import PAIR, TARGET

FAMILY = "tcgen05_cp"

_SHAPE = (
    "(shape=.128x256b|.128x128b|.4x256b"
    "|.64x128b.warpx2::02_13|.64x128b.warpx2::01_23|.32x128b.warpx4)"
)
_EXPANDED = "[expanded=.b8x16.b4x16_p64|.b8x16.b6x16_p32]"

ROWS: tuple[Row, ...] = (
    Row(
        f"tcgen05.cp{PAIR}{_SHAPE}{_EXPANDED}",
        "=[taddr:b32@tmem] descriptor:b64",
        TARGET,
        ("reads_memory", "writes_memory", "async", "volatile"),
    ),
)
