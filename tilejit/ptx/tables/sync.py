"""Raw synchronisation and warp communication: barriers, fences, shuffles, votes, launch control.

For ``T.ptx[...]`` calls, not tile operations. Not here: ``mbarrier``.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "sync"

_ORDERS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "volatile")
_JOINS: tuple[Effect, ...] = ("barrier", "convergent", *_ORDERS)
_WARP: tuple[Effect, ...] = ("convergent",)
_WARP_JOINS: tuple[Effect, ...] = ("barrier", *_WARP, *_ORDERS)


def _raw(
    pattern: str, operands: str, min_target: str = "sm_75", effects: tuple[Effect, ...] = ()
) -> Row:
    return Row(pattern, operands, min_target, effects, tile=False)


_CTA = [
    row
    for head in ("bar[.cta]", "barrier[.cta]")
    for aligned in (("[.aligned]",) if head.startswith("barrier") else ("",))
    for row in (
        _raw(f"{head}.sync{aligned}", "barrier:b32", effects=_JOINS),
        _raw(f"{head}.sync{aligned}", "barrier:b32 threads:b32:32..1024/32", effects=_JOINS),
        _raw(f"{head}.arrive{aligned}", "barrier:b32 threads:b32:32..1024/32", effects=_JOINS),
        _raw(f"{head}.red.popc{aligned}.u32", "=d:u32 barrier:b32 p:pred", effects=_JOINS),
        _raw(
            f"{head}.red.popc{aligned}.u32",
            "=d:u32 barrier:b32 threads:b32:32..1024/32 p:pred",
            effects=_JOINS,
        ),
        _raw(
            f"{head}.red(reduce=.and|.or){aligned}.pred",
            "=p:pred barrier:b32 q:pred",
            effects=_JOINS,
        ),
        _raw(
            f"{head}.red(reduce=.and|.or){aligned}.pred",
            "=p:pred barrier:b32 threads:b32:32..1024/32 q:pred",
            effects=_JOINS,
        ),
    )
]

_FENCES = (
    _raw("fence(order=.acq_rel|.sc)(.cta|.gpu|.sys)", "", effects=_ORDERS),
    _raw("fence(order=.acq_rel|.sc)(.cluster)", "", "sm_90", _ORDERS),
    # Older assemblers take these below sm_90 too, newer ones do not.
    _raw("fence(order=.acquire|.release)(.cta|.cluster|.gpu|.sys)", "", "sm_90", _ORDERS),
    _raw("membar(level=.cta|.gl|.sys)", "", effects=_ORDERS),
)

_PROXIES = (
    _raw("fence.proxy.async[space=.global|.shared::cta|.shared::cluster]", "", "sm_90", _ORDERS),
    _raw("fence.proxy.alias", "", effects=_ORDERS),
    _raw("fence.mbarrier_init.release.cluster", "", "sm_90", _ORDERS),
)

_CLUSTER = (
    _raw("barrier.cluster.arrive[.release|.relaxed][.aligned]", "", "sm_90", _JOINS),
    _raw("barrier.cluster.wait[.acquire][.aligned]", "", "sm_90", _JOINS),
    _raw("mapa(type=.u32|.u64)", "=d:$type a:$type rank:u32", "sm_90"),
    _raw("mapa.shared::cluster(type=.u32|.u64)", "=d:$type a:$type rank:u32", "sm_90"),
    _raw("getctarank[.shared::cluster](type=.u32|.u64)", "=d:u32 a:$type", "sm_90"),
)

_SHUFFLES = [
    _raw(f"shfl.sync(mode=.{mode}).b32", operands, effects=_WARP)
    for mode in ("idx", "up", "down", "bfly")
    for operands in (
        "=d:b32 a:b32 lane:b32 clamp:b32 members:b32",
        "=d:b32 =|p:pred~ a:b32 lane:b32 clamp:b32 members:b32",
    )
]

_VOTES = (
    _raw("bar.warp.sync", "members:b32", effects=_WARP_JOINS),
    _raw("vote.sync(vote=.all|.any|.uni).pred", "=d:pred a:pred members:b32", effects=_WARP),
    _raw("vote.sync.ballot.b32", "=d:b32 a:pred members:b32", effects=_WARP),
    _raw("match.any.sync(type=.b32|.b64)", "=d:b32 a:$type members:b32", effects=_WARP),
    _raw("match.all.sync(type=.b32|.b64)", "=d:b32 a:$type members:b32", effects=_WARP),
    _raw("match.all.sync(type=.b32|.b64)", "=d:b32~ =|p:pred~ a:$type members:b32", effects=_WARP),
    _raw("activemask.b32", "=d:b32", effects=("convergent", "volatile")),
    _raw("elect.sync", "=d:b32~ =|p:pred members:b32", "sm_90", _WARP),
    _raw(
        "redux.sync(reduce=.add|.min|.max)(type=.u32|.s32)",
        "=d:$type a:$type members:b32",
        "sm_80",
        _WARP,
    ),
    _raw("redux.sync(reduce=.and|.or|.xor).b32", "=d:b32 a:b32 members:b32", "sm_80", _WARP),
    _raw(
        "redux.sync(reduce=.min|.max)[.abs][.NaN].f32", "=d:f32 a:f32 members:b32", "sm_100f", _WARP
    ),
)

_LAUNCH = (
    _raw("griddepcontrol(.launch_dependents|.wait)", "", "sm_90", _ORDERS),
    _raw(
        "setmaxnreg(change=.inc|.dec).sync.aligned.u32",
        "#registers:24..256/8",
        "sm_90a|sm_100f|sm_110f|sm_120f",
        ("convergent", "volatile"),
    ),
    _raw("nanosleep.u32", "duration_ns:u32", effects=("volatile",)),
)

ROWS: tuple[Row, ...] = (*_CTA, *_FENCES, *_PROXIES, *_CLUSTER, *_SHUFFLES, *_VOTES, *_LAUNCH)
