"""Asynchronous copies of 4, 8 or 16 bytes from global to shared memory, and their groups.

One spelling has three operand lists: the whole chunk, its first ``src_size`` bytes with zeros behind
them, or zeros only where ``ignore_src``. Groups and arrivals are raw: they have no tile operands.

Not here: bulk and tensor copies.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "cp_async"

_COPIES: tuple[Effect, ...] = ("reads_memory", "writes_memory", "async", "volatile")
_WAITS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "volatile")
_NEAR = "(near=.shared|.shared::cta)"
_HINT = "(hint=.L2::cache_hint)"
_SIZE = "[prefetch=.L2::64B|.L2::128B|.L2::256B]"
_CHUNK = "=[dst:b8@$near] [src:b8@global] #chunk_bytes"
_WIDTHS = {".ca": "4|8|16", ".cg": "16"}
_FILLS = ("", " src_size:b32", " ignore_src:pred")


def _raw(pattern: str, operands: str, effects: tuple[Effect, ...]) -> Row:
    return Row(pattern, operands, "sm_80", effects, tile=False)


def _copies(hint: str, policy: str) -> list[Row]:
    return [
        Row(
            f"cp.async(cache={level}){_NEAR}.global{hint}{_SIZE}",
            f"{_CHUNK}:{widths}{fill}{policy}", "sm_80", _COPIES,
        )
        for level, widths in _WIDTHS.items()
        for fill in _FILLS
    ]  # fmt: skip


ROWS: tuple[Row, ...] = (
    *_copies("", ""),
    *_copies(_HINT, " cache_policy:u64"),
    _raw("cp.async.commit_group", "", _COPIES),
    _raw("cp.async.wait_group", f"#pending_groups:0..{2**31 - 1}", _WAITS),
    _raw("cp.async.wait_all", "", _WAITS),
    _raw(f"cp.async.mbarrier.arrive[.noinc]{_NEAR}.b64", "+[barrier:b64@$near]", _COPIES),
)
