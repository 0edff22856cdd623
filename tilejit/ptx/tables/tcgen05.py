"""Raw tcgen05 instructions: allocating tensor memory, waiting, fences, shifting, committing.

For ``T.ptx[...]`` calls, not tile operations. An address in tensor memory is a 32-bit number, ``lane <<
16 | column``: ``alloc`` writes one to shared memory, ``dealloc`` takes it in a register. Not here: what
moves or computes (``tcgen05_ld_st``, ``tcgen05_cp``, ``tcgen05_mma``), barriers at generic addresses.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "tcgen05"
TARGET = "sm_100f|sm_110f"
EXACT_TARGET = "sm_100a|sm_103a|sm_110a"
"""Of what a family does not keep."""
PAIR = "(pair=.cta_group::1|.cta_group::2)"

_COLUMNS = "columns:b32:32|64|128|256|512"
_ORDERS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "volatile")
_COLLECTIVE: tuple[Effect, ...] = ("convergent", *_ORDERS)
_LATER: tuple[Effect, ...] = ("async", *_ORDERS)


def _raw(pattern: str, operands: str, effects: tuple[Effect, ...], min_target: str = TARGET) -> Row:
    return Row(pattern, operands, min_target, effects, tile=False)


_COMMIT = f"tcgen05.commit{PAIR}.mbarrier::arrive::one.shared::cluster"

ROWS: tuple[Row, ...] = (
    _raw(
        f"tcgen05.alloc{PAIR}.sync.aligned.shared::cta.b32",
        f"=[dst:b32@shared::cta] {_COLUMNS}",
        _COLLECTIVE,
    ),
    _raw(f"tcgen05.dealloc{PAIR}.sync.aligned.b32", f"taddr:b32 {_COLUMNS}", _COLLECTIVE),
    _raw(f"tcgen05.relinquish_alloc_permit{PAIR}.sync.aligned", "", _COLLECTIVE),
    _raw("tcgen05(.wait::ld|.wait::st).sync.aligned", "", _COLLECTIVE),
    _raw("tcgen05(.fence::before_thread_sync|.fence::after_thread_sync)", "", _ORDERS),
    _raw(f"tcgen05.shift{PAIR}.down", "+[taddr:b32@tmem]", _LATER, EXACT_TARGET),
    _raw(f"{_COMMIT}.b64", "[mbar:b64@shared::cluster]", _LATER),
    _raw(f"{_COMMIT}.multicast::cluster.b64", "[mbar:b64@shared::cluster] cta_mask:b16", _LATER),
)
