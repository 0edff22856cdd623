"""Copies and reductions of boxes that a tensor map describes, by the tensor memory accelerator.

Coordinates stand innermost first. ``gather4`` and ``scatter4`` take a column and four rows. Loads
complete bytes on an mbarrier, what writes global memory belongs to the thread's bulk group. The
generic tile mode may be written, ``.tile``, or left out: it is one instruction either way.

Not here: groups of bulk copies and their waits (``cp_async_bulk``), im2col modes.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "cp_async_bulk_tensor"

_RANKS = "(rank=.1d|.2d|.3d|.4d|.5d)"
_TILE = "[mode=.tile]"
_FAR = "(far=.shared::cluster)"
_NEAR = "(near=.shared::cta)"
_BYTES = ".mbarrier::complete_tx::bytes"
_PAIR = "(pair=.cta_group::1|.cta_group::2)"
_PAIRED = "sm_100f|sm_110f"
"""Where copies know of pairs of CTAs, and scatter rows."""
_HINTS = (("", ""), ("(hint=.L2::cache_hint)", " cache_policy:u64"))

_LOADS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "async", "volatile")
_PREFETCHES: tuple[Effect, ...] = ("reads_memory", "async", "volatile")


def _loads(rank: str, mode: str, coordinates: str, near: str, far: str, paired: str) -> list[Row]:
    """``near``, ``far``, ``paired``: the least targets of a load into the own CTA, into the cluster,
    and of one that names a pair of CTAs."""
    source = f"[tensor,{{{coordinates}}}]"
    rows: list[Row] = []
    for hint, policy in _HINTS:
        for space, group, least in (
            (_NEAR, "", near), (_NEAR, _PAIR, paired), (_FAR, "", far), (_FAR, _PAIR, paired),
        ):  # fmt: skip
            dst = "=[dst:b8@shared::cta]" if space == _NEAR else "=[dst:b8@shared::cluster]"
            mbar = dst.replace("=[dst:b8", "[mbar:b64")
            head = f"cp.async.bulk.tensor{rank}{space}.global{mode}{_BYTES}"
            rows.append(
                Row(f"{head}{group}{hint}", f"{dst} {source} {mbar}{policy}", least, _LOADS)
            )
            if space == _FAR:
                rows.append(
                    Row(
                        f"{head}.multicast::cluster{group}{hint}",
                        f"{dst} {source} {mbar} cta_mask:b16{policy}", least, _LOADS,
                    )
                )  # fmt: skip
    return rows


def _stores(mnemonic: str, rank: str, mode: str, coordinates: str, least: str) -> list[Row]:
    return [
        Row(
            f"{mnemonic}.async.bulk.tensor{rank}.global.shared::cta{mode}.bulk_group{hint}",
            f"=[tensor,{{{coordinates}}}] [src:b8@shared::cta]{policy}", least, _LOADS,
        )
        for hint, policy in _HINTS
    ]  # fmt: skip


def _prefetches(rank: str, mode: str, coordinates: str, least: str) -> list[Row]:
    return [
        Row(
            f"cp.async.bulk.prefetch.tensor{rank}.L2.global{mode}{hint}",
            f"[tensor,{{{coordinates}}}]{policy}", least, _PREFETCHES,
        )
        for hint, policy in _HINTS
    ]  # fmt: skip


_OPERATIONS = "(operation=.add|.min|.max|.inc|.dec|.and|.or|.xor)"
_GATHER = "(mode=.tile::gather4)"
_SCATTER = "(mode=.tile::scatter4)"
_ROWS = "(rank=.2d)"

ROWS: tuple[Row, ...] = (
    *_loads(_RANKS, _TILE, "$rank", "sm_90", "sm_90", _PAIRED),
    *_loads(_ROWS, _GATHER, "5", "sm_100", _PAIRED, _PAIRED),
    *_stores("cp", _RANKS, _TILE, "$rank", "sm_90"),
    *_stores("cp", _ROWS, _SCATTER, "5", _PAIRED),
    *_stores("cp.reduce", _RANKS, _OPERATIONS + _TILE, "$rank", "sm_90"),
    *_stores("cp.reduce", _ROWS, _OPERATIONS + _SCATTER, "5", _PAIRED),
    *_prefetches(_RANKS, _TILE, "$rank", "sm_90"),
    *_prefetches(_ROWS, _GATHER, "5", _PAIRED),
    Row(
        "prefetch.tensormap", "[map:b64@global]", "sm_90", ("reads_memory", "volatile"), tile=False
    ),
)
