"""Raw cache control: eviction policies for ``.L2::cache_hint``, prefetches, priorities.

For ``T.ptx[...]`` calls, not tile operations. None of them changes what a load returns, except
``discard``, which leaves the line's contents undefined.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "prefetch_policy"

_PRIMARY = "(primary=.L2::evict_last|.L2::evict_normal|.L2::evict_first|.L2::evict_unchanged)"
_SECONDARY = "[secondary=.L2::evict_first|.L2::evict_unchanged]"
_READS: tuple[Effect, ...] = ("reads_memory", "volatile")


def _raw(
    pattern: str, operands: str, min_target: str = "sm_75", effects: tuple[Effect, ...] = ()
) -> Row:
    return Row(pattern, operands, min_target, effects, tile=False)


ROWS: tuple[Row, ...] = (
    _raw(f"createpolicy.fractional{_PRIMARY}{_SECONDARY}.b64", "=d:b64", "sm_80"),
    _raw(f"createpolicy.fractional{_PRIMARY}{_SECONDARY}.b64", "=d:b64 fraction:f32", "sm_80"),
    _raw(
        f"createpolicy.range(space=.global){_PRIMARY}{_SECONDARY}.b64",
        "=d:b64 [a:b8@$space] primary_bytes:b32 total_bytes:b32",
        "sm_80",
    ),
    _raw("createpolicy.cvt.L2.b64", "=d:b64 access_property:b64", "sm_80"),
    _raw("prefetch(space=.global|.local)(.L1|.L2)", "[a:b8@$space]", effects=_READS),
    _raw(
        "prefetch(space=.global)(.L2::evict_last|.L2::evict_normal)",
        "[a:b8@$space]",
        "sm_80",
        _READS,
    ),
    _raw(
        "applypriority(space=.global).L2::evict_normal", "[a:b8@$space] #bytes:128", "sm_80", _READS
    ),
    _raw(
        "discard(space=.global).L2",
        "=[a:b8@$space] #bytes:128",
        "sm_80",
        ("writes_memory", "volatile"),
    ),
)
