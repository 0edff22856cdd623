"""Raw asynchronous stores and reductions of registers to shared memory of another block of the
cluster; each completes its bytes on an mbarrier there.

For ``T.ptx[...]`` calls, not tile operations. Both addresses are in ``.shared::cluster``, as ``mapa``
gives them. Not here: forms with a generic address, ``.mmio`` forms to global memory.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "st_async"

_EFFECTS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "async", "volatile")
_FAR = "(to=.shared::cluster).mbarrier::complete_tx::bytes"
_BARRIER = "[mbar:b64@$to]"

_VECTORS: tuple[str, ...] = (
    "[vec=.v2|.v4](type=.b32|.u32|.s32|.f32)",
    "[vec=.v2](type=.b64|.u64|.s64|.f64)",
)
_REDUCTIONS: tuple[str, ...] = (
    "(op=.add)(type=.u32|.s32|.u64)",
    "(op=.min|.max)(type=.u32|.s32)",
    "(op=.inc|.dec)(type=.u32)",
    "(op=.and|.or|.xor)(type=.b32)",
)

ROWS: tuple[Row, ...] = (
    *(
        Row(
            f"st.async[.weak]{_FAR}{tail}",
            f"=[a:$type*$vec@$to] b:$type*$vec {_BARRIER}", "sm_90", _EFFECTS, tile=False,
        )
        for tail in _VECTORS
    ),
    *(
        Row(
            f"red.async.relaxed.cluster{_FAR}{tail}",
            f"+[a:$type@$to] b:$type {_BARRIER}", "sm_90", _EFFECTS, tile=False,
        )
        for tail in _REDUCTIONS
    ),
)  # fmt: skip
