"""Asynchronous bulk copies, reductions and prefetches of 16-byte multiples, and the groups of bulk
operations that a thread commits and waits for.

What arrives in shared memory completes on an mbarrier; what leaves it for global memory, in a bulk
group. The groups are also those of tensor copies. Not here: tensor copies (``cp.async.bulk.tensor``),
stores of registers to another block (``st_async``).
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "cp_async_bulk"

_COPIES: tuple[Effect, ...] = ("reads_memory", "writes_memory", "async", "volatile")
_READS: tuple[Effect, ...] = ("reads_memory", "async", "volatile")
_WAITS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "volatile")

_ARRIVES = "mbarrier::complete_tx::bytes"
_HINT = ".L2::cache_hint"
_POLICY = " cache_policy:u64"
_SIZE = f"chunk_bytes:b32:0..{2**20 - 16}/16"

_GLOBAL_REDUCTIONS: tuple[str, ...] = (
    "(op=.add)(type=.u32|.s32|.u64|.f32|.f64)",
    "(op=.add).noftz(type=.f16|.bf16)",
    "(op=.min|.max)(type=.u32|.s32|.u64|.s64|.f16|.bf16)",
    "(op=.inc|.dec)(type=.u32)",
    "(op=.and|.or|.xor)(type=.b32|.b64)",
)
_CLUSTER_REDUCTIONS: tuple[str, ...] = (
    "(op=.add)(type=.u32|.s32|.u64)",
    "(op=.min|.max)(type=.u32|.s32)",
    "(op=.inc|.dec)(type=.u32)",
    "(op=.and|.or|.xor)(type=.b32)",
)


def _row(
    pattern: str,
    operands: str,
    effects: tuple[Effect, ...] = _COPIES,
    least: str = "sm_90",
    *,
    tile: bool = True,
) -> Row:
    return Row(pattern, operands, least, effects, tile=tile)


def _hinted(pattern: str, operands: str, tail: str = "", more: str = "") -> list[Row]:
    """The rows without and with a cache policy, whose modifier stands before ``tail`` and whose
    operand before ``more``."""
    return [
        _row(f"{pattern}{tail}", f"{operands}{more}"),
        _row(f"{pattern}{_HINT}{tail}", f"{operands}{_POLICY}{more}"),
    ]


_TO_SHARED = [
    *(
        row
        for space in ("shared::cta", "shared::cluster")
        for row in _hinted(
            f"cp.async.bulk(to=.{space}).global.{_ARRIVES}",
            f"=[dst:b8@$to] [src:b8@global] {_SIZE} [mbar:b64@$to]",
        )
    ),
    *_hinted(
        f"cp.async.bulk(to=.shared::cluster).global.{_ARRIVES}.multicast::cluster",
        f"=[dst:b8@$to] [src:b8@global] {_SIZE} [mbar:b64@$to] cta_mask:b16",
    ),
    _row(
        f"cp.async.bulk(to=.shared::cluster).shared::cta.{_ARRIVES}",
        f"=[dst:b8@$to] [src:b8@shared::cta] {_SIZE} [mbar:b64@$to]",
    ),
]

_TO_GLOBAL = [
    *_hinted(
        "cp.async.bulk.global.shared::cta.bulk_group",
        f"=[dst:b8@global] [src:b8@shared::cta] {_SIZE}",
    ),
    _row(
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask",
        f"=[dst:b8@global] [src:b8@shared::cta] {_SIZE} byte_mask:b16",
        least="sm_100", tile=False,
    ),
    _row(
        f"cp.async.bulk.global.shared::cta.bulk_group{_HINT}.cp_mask",
        f"=[dst:b8@global] [src:b8@shared::cta] {_SIZE}{_POLICY} byte_mask:b16",
        least="sm_100", tile=False,
    ),
]  # fmt: skip

_REDUCTIONS = [
    *(
        row
        for tail in _GLOBAL_REDUCTIONS
        for row in _hinted(
            "cp.reduce.async.bulk.global.shared::cta.bulk_group",
            f"+[dst:$type@global] [src:$type@shared::cta] {_SIZE}",
            tail,
        )
    ),
    *(
        _row(
            f"cp.reduce.async.bulk(to=.shared::cluster).shared::cta.{_ARRIVES}{tail}",
            f"+[dst:$type@$to] [src:$type@shared::cta] {_SIZE} [mbar:b64@$to]",
        )
        for tail in _CLUSTER_REDUCTIONS
    ),
]

_PREFETCHES = [
    _row("cp.async.bulk.prefetch.L2.global", f"[src:b8@global] {_SIZE}", _READS),
    _row(f"cp.async.bulk.prefetch.L2.global{_HINT}", f"[src:b8@global] {_SIZE}{_POLICY}", _READS),
]

_GROUPS = [
    _row("cp.async.bulk.commit_group", "", tile=False),
    _row(
        "cp.async.bulk.wait_group[.read]",
        f"#pending_groups:0..{2**31 - 1}",
        _WAITS,
        tile=False,
    ),
]

ROWS: tuple[Row, ...] = (*_TO_SHARED, *_TO_GLOBAL, *_REDUCTIONS, *_PREFETCHES, *_GROUPS)
