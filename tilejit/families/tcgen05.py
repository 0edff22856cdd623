"""Raw tcgen05 instructions: what each asks of tensor memory and of the tensor cores' operations.

Not here: allocation, order and the operations in flight (``sim.tensor_allocation``, ``sim.tensor_order``,
``sim.tensor_cores``), spellings (``ptx.tables.tcgen05``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilejit.ir.tensor_memory import SLAB_LANES, split_address
from tilejit.tile import cta_pair
from tilejit.tile.family import (
    CTA_WINDOW_BYTES,
    Issue,
    Machine,
    Memory,
    NativeOperand,
    TensorCells,
    TensorOperation,
    only,
)
from tilejit.tile.raw_only import raw_family

SHIFT_COLUMNS = 8
"""A shift moves 32 bytes of each lane of a slab."""


def execute(issue: Issue, machine: Machine) -> None:
    """The first modifier says what is done, ``.cta_group`` with how many CTAs."""
    action, pair = issue.form.modifiers[0], cta_pair.works_on_pair(issue.form)
    operands = {spec.name: o for spec, o in zip(issue.form.operands, issue.operands)}
    if action == "alloc":
        machine.tensor_alloc(_memory(operands["dst"]), machine.read(operands["columns"])[0], pair)
    elif action == "dealloc":
        machine.tensor_dealloc(operands["taddr"], machine.read(operands["columns"])[0], pair)
    elif action == "relinquish_alloc_permit":
        machine.tensor_relinquish(pair)
    elif action.startswith("wait::"):
        machine.tensor_wait(loads=action == "wait::ld")
    elif action.startswith("fence::"):
        machine.tensor_fence(before=action == "fence::before_thread_sync")
    elif action == "commit":
        _commit(machine, operands, pair)
    else:
        _shift(issue, machine)


def _memory(operand: NativeOperand) -> Memory:
    assert isinstance(operand, Memory)
    return operand


def _commit(machine: Machine, operands: dict[str, NativeOperand], pair: bool) -> None:
    """One arrival at the barrier, or at the same offset in each CTA of the mask."""
    addresses = machine.address(_memory(operands["mbar"]))
    masks = None
    if "cta_mask" in operands:
        masks = np.broadcast_to(machine.read(operands["cta_mask"])[0], machine.active().shape)
    for thread in machine.threads():
        address = int(addresses[thread])
        barriers = [address]
        if masks is not None:
            barriers = _multicast(machine, thread, address, int(masks[thread]))
        machine.tensor_commit(thread, barriers, pair)


def _multicast(machine: Machine, thread: tuple[int, int], address: int, mask: int) -> list[int]:
    size = machine.cluster_size
    if mask == 0 or mask >> size:
        machine.fault(
            "sim/cta-mask",
            f"tcgen05.commit to the CTAs of mask 0x{mask:x}; the cluster has {size}: one bit for each rank",
            only(machine, thread),
        )
    offset = address % CTA_WINDOW_BYTES
    return [rank * CTA_WINDOW_BYTES + offset for rank in range(size) if mask >> rank & 1]


def _shift(issue: Issue, machine: Machine) -> None:
    """The rows of a slab, but the last, go one row down, in each CTA; the first stays. So the ISA's text
    reads; no hardware was asked."""
    (place,) = issue.operands
    addresses = machine.address(_memory(place))
    for thread in machine.threads():
        lane, column = split_address(int(addresses[thread]))
        if lane % SLAB_LANES:
            machine.fault(
                "sim/tmem-alignment",
                f"tcgen05.shift at lane {lane}, expected a multiple of {SLAB_LANES} lanes",
                only(machine, thread),
            )
            continue
        ctas = cta_pair.ranks(machine, issue.form, thread)
        if ctas:
            operation = _shifted(place, ctas, lane, column, cta_pair.works_on_pair(issue.form))
            machine.tensor_issue(thread, operation)


def _shifted(
    place: NativeOperand, ctas: tuple[int, ...], lane: int, column: int, pair: bool
) -> TensorOperation:
    def rows(cta: int, first: int) -> TensorCells:
        lanes, columns = np.meshgrid(
            np.arange(first, first + SLAB_LANES - 1),
            np.arange(column, column + SHIFT_COLUMNS),
            indexing="ij",
        )
        return TensorCells(place, cta, lanes.reshape(-1), columns.reshape(-1))

    def run(found: list[npt.NDArray[np.uint32]]) -> list[npt.NDArray[np.uint32]]:
        return found

    return TensorOperation(
        kind="shift", pair=pair, pipe=None, run=run,
        sources=tuple(rows(cta, lane) for cta in ctas),
        destinations=tuple(rows(cta, lane + 1) for cta in ctas),
    )  # fmt: skip


FAMILY = raw_family("tcgen05", "docs/contract/tcgen05.md", execute, "yes")
