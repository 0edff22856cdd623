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


def to_each(
    machine: Machine, thread: tuple[int, int], copy: Transfer, mask: int | None
) -> list[Transfer]:
    """The copy itself (None), or what a multicast makes of it: one for each CTA of the mask."""
    if mask is None:
        return [copy]
    if mask >> machine.cluster_size:
        machine.fault(
            "sim/cta-mask",
            f"cta_mask is {mask:#b}, the cluster has {machine.cluster_size} CTAs",
            only(machine, thread),
        )
    return [_to_cta(copy, rank) for rank in range(machine.cluster_size) if mask >> rank & 1]


def _to_cta(copy: Transfer, rank: int) -> Transfer:
    """The copy to the same places in the CTA of that rank."""
    assert copy.barrier is not None
    window = rank * CTA_WINDOW_BYTES
    return replace(
        copy,
        dst=replace(copy.dst, addresses=copy.dst.addresses % CTA_WINDOW_BYTES + window),
        barrier=copy.barrier % CTA_WINDOW_BYTES + window,
    )
