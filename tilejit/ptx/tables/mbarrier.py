"""Raw memory-barrier objects in shared memory: arrivals, transaction bytes, waiting.

For ``T.ptx[...]`` calls, not tile operations. An arrival on another block's barrier
(``.shared::cluster``) has no result: its first operand is ``T.ptx.SINK``. Not here: the asynchronous
copies that complete on a barrier.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "mbarrier"

_EFFECTS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "volatile")
_NEAR = "(space=.shared|.shared::cta)"
_FAR = "(space=.shared::cluster)"
_AT = "[barrier:b64@$space]"
_STATE = "=state:b64~"
_NO_STATE = "=state:b64~~"
_COUNT = f"count:b32:1..{2**20 - 1}"
_BYTES = f"bytes:b32:0..{2**20 - 1}"
_PARITY = "parity:b32:0..1"
_WAITS = ("test_wait", "sm_80"), ("try_wait", "sm_90")


def _raw(pattern: str, operands: str, min_target: str) -> Row:
    return Row(pattern, operands, min_target, _EFFECTS, tile=False)


_ANY_ORDER = "[order=.release.cta|.release.cluster|.relaxed.cta|.relaxed.cluster]"
_NEW_ORDER = "(order=.release.cluster|.relaxed.cta|.relaxed.cluster)"
_FAR_ORDER = "[order=.release.cluster|.relaxed.cluster]"
_COUNTED = f"{_STATE} +{_AT} {_COUNT}"


def _arrivals(head: str) -> tuple[Row, ...]:
    """Orders other than ``.release.cta``, counts and bytes came with sm_90."""
    return (
        _raw(f"{head}[.release.cta]{_NEAR}.b64", f"{_STATE} +{_AT}", "sm_80"),
        _raw(f"{head}{_NEW_ORDER}{_NEAR}.b64", f"{_STATE} +{_AT}", "sm_90"),
        _raw(f"{head}.noComplete[.release.cta]{_NEAR}.b64", _COUNTED, "sm_80"),
        _raw(f"{head}{_ANY_ORDER}{_NEAR}.b64", _COUNTED, "sm_90"),
        _raw(f"{head}.expect_tx{_ANY_ORDER}{_NEAR}.b64", f"{_STATE} +{_AT} {_BYTES}", "sm_90"),
        _raw(f"{head}{_FAR_ORDER}{_FAR}.b64", f"{_NO_STATE} +{_AT}", "sm_90"),
        _raw(f"{head}{_FAR_ORDER}{_FAR}.b64", f"{_NO_STATE} +{_AT} {_COUNT}", "sm_90"),
        _raw(f"{head}.expect_tx{_FAR_ORDER}{_FAR}.b64", f"{_NO_STATE} +{_AT} {_BYTES}", "sm_90"),
    )


_TRANSACTIONS = [
    _raw(f"mbarrier.{name}[.relaxed.cta|.relaxed.cluster]{space}.b64", f"+{_AT} {_BYTES}", "sm_90")
    for name in ("expect_tx", "complete_tx")
    for space in (_NEAR, _FAR)
]

_WAITING = [
    row
    for name, least in _WAITS
    for row in (
        _raw(f"mbarrier.{name}[.acquire.cta]{_NEAR}.b64", f"=done:pred {_AT} state:b64", least),
        _raw(
            f"mbarrier.{name}.parity[.acquire.cta]{_NEAR}.b64",
            f"=done:pred {_AT} {_PARITY}",
            least,
        ),
        _raw(
            f"mbarrier.{name}(order=.acquire.cluster|.relaxed.cta|.relaxed.cluster){_NEAR}.b64",
            f"=done:pred {_AT} state:b64",
            "sm_90",
        ),
        _raw(
            f"mbarrier.{name}.parity(order=.acquire.cluster|.relaxed.cta|.relaxed.cluster){_NEAR}.b64",
            f"=done:pred {_AT} {_PARITY}",
            "sm_90",
        ),
    )
]

_WAIT_ORDER = "[order=.acquire.cta|.acquire.cluster|.relaxed.cta|.relaxed.cluster]"
_SUSPENDED = [
    _raw(
        f"mbarrier.try_wait{parity}{_WAIT_ORDER}{_NEAR}.b64",
        f"=done:pred {_AT} {phase} suspend_ns:b32",
        "sm_90",
    )
    for parity, phase in (("", "state:b64"), (".parity", _PARITY))
]

ROWS: tuple[Row, ...] = (
    _raw(f"mbarrier.init{_NEAR}.b64", f"={_AT} {_COUNT}", "sm_80"),
    _raw(f"mbarrier.inval{_NEAR}.b64", f"={_AT}", "sm_80"),
    *_arrivals("mbarrier.arrive"),
    *_arrivals("mbarrier.arrive_drop"),
    *_TRANSACTIONS,
    *_WAITING,
    *_SUSPENDED,
    _raw("mbarrier.pending_count.b64", "=count:u32 state:b64", "sm_80"),
)
