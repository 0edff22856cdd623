"""Matrix loads and stores between shared memory and a warp's registers: 8×8 matrices of b16.

Not here: 8-bit and narrower matrices (``m16n16``, ``m8n16``, ``m16n8``), which the contract does not
have.
"""

from __future__ import annotations

from tilejit.ptx.rows import Row

FAMILY = "ldmatrix_stmatrix"

_SHAPE = ".sync.aligned.m8n8(num=.x1|.x2|.x4)[.trans](space=.shared|.shared::cta).b16"
_ROW = "shared:b32*4@$space]"

ROWS: tuple[Row, ...] = (
    Row(
        f"ldmatrix{_SHAPE}",
        f"=dst_registers:b32*{{$num}} [src_{_ROW}",
        "sm_75",
        ("reads_memory", "convergent"),
    ),
    Row(
        f"stmatrix{_SHAPE}",
        f"=[dst_{_ROW} src_registers:b32*{{$num}}",
        "sm_90",
        ("writes_memory", "convergent"),
    ),
    Row(
        "movmatrix.sync.aligned.m8n8.trans.b16",
        "=d:b32 a:b32",
        "sm_75",
        ("convergent",),
        tile=False,
    ),
)
