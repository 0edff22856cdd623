"""Bulk copies within a cluster: whose shared memory an address is in, and the copies of a multicast.

Not here: what is copied (``families``), when it moves (the simulator), the check of a mask
(``tile.contracts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilejit.ptx.forms import OperandSpec
from tilejit.tile.family import CTA_WINDOW_BYTES, Machine, Memory, NativeOperand, Transfer, only


def check_own(
    machine: Machine, specs: Sequence[OperandSpec], operands: Sequence[NativeOperand]
) -> None:
    """A ``.shared::cta`` address is one of the executing CTA; reports a fault where it is not."""
    for spec, operand in zip(specs, operands):
        if spec.space != "shared::cta":
            continue
        assert isinstance(operand, Memory)
        places = machine.address(operand)
        wrong = machine.active() & (places // CTA_WINDOW_BYTES != machine.cluster_rank())
        if wrong.any():
            machine.fault(
                "sim/out-of-bounds",
                f"{spec.name} is in shared memory of rank {int(places[wrong][0]) // CTA_WINDOW_BYTES}, "
                "expected an address of one's own CTA in .shared::cta",
                wrong,
            )


def check_barrier(
    machine: Machine, thread: tuple[int, int], box: int, barrier: int, *, paired: bool
) -> None:
    """A box completes on a barrier of the CTA that it goes to, or of the one beside that in its pair
    (``paired``); reports a fault where it does not. Both are cluster addresses."""
    there, found = box // CTA_WINDOW_BYTES, barrier // CTA_WINDOW_BYTES
    if found == there or (paired and found == there ^ 1):
        return
    either = f"rank {there} or {there ^ 1}" if paired else f"rank {there}"
    beside = "" if paired else "; with .cta_group::2 its pair's other CTA may have it"
    machine.fault(
        "sim/out-of-bounds",
        f"mbar is in shared memory of rank {found}, expected {either}: the box goes to rank {there}{beside}",
        only(machine, thread),
    )


def to_each(
    machine: Machine,
    thread: tuple[int, int],
    copy: Transfer,
    mask: int | None,
    *,
    paired: bool = False,
) -> list[Transfer]:
    """The copy itself (None), or what a multicast makes of it: one for each CTA of the mask.

    ``paired``: every pair of CTAs has its barriers in one CTA, which may be the one beside that of the
    bytes. Of a multicast it is the even or the odd one everywhere, as the address of the barrier is."""
    if mask is None:
        return [copy]
    if mask >> machine.cluster_size:
        machine.fault(
            "sim/cta-mask",
            f"cta_mask is {mask:#b}, the cluster has {machine.cluster_size} CTAs",
            only(machine, thread),
        )
    ranks = [rank for rank in range(machine.cluster_size) if mask >> rank & 1]
    return [_to_cta(copy, rank, paired) for rank in ranks]


def _to_cta(copy: Transfer, rank: int, paired: bool) -> Transfer:
    """The copy to the same places in the CTA of that rank."""
    assert copy.barrier is not None
    signalled = (rank & ~1) | (copy.barrier // CTA_WINDOW_BYTES & 1) if paired else rank
    return replace(
        copy,
        dst=replace(
            copy.dst, addresses=copy.dst.addresses % CTA_WINDOW_BYTES + rank * CTA_WINDOW_BYTES
        ),
        barrier=copy.barrier % CTA_WINDOW_BYTES + signalled * CTA_WINDOW_BYTES,
    )
