"""What the cohorts of one batch share: coordinates, memories, clocks, barriers, who has exited.

A batch is a run of whole clusters that are simulated together; batches follow one another, as CTAs
of one launch may.

Not here: choosing batches (``run``), running cohorts (``schedule``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np

from tilejit.errors import Span
from tilejit.sim.barrier import Barriers
from tilejit.sim.copies import Copies
from tilejit.sim.faults import FaultLog
from tilejit.sim.geometry import LANES, WARPS_PER_GROUP, Bools, Geometry, split
from tilejit.sim.global_memory import GlobalMemory
from tilejit.sim.hazards import Clocks
from tilejit.sim.mbarrier import Mbarriers
from tilejit.sim.shared_memory import SharedMemory
from tilejit.sim.tensor_allocation import TensorAllocation
from tilejit.sim.tensor_cores import TensorCores
from tilejit.sim.tensor_loads import TensorLoads
from tilejit.sim.tensor_memory import TensorMemory
from tilejit.sim.transfers import Transfers
from tilejit.sim.warpgroups import Warpgroups

if TYPE_CHECKING:
    from tilejit.sim.cohort import Array, Cohort
    from tilejit.sim.registers import Mask


@dataclass(slots=True, eq=False)
class Batch:
    """``alive``: lanes that exist and have not exited, (rows, 32). ``leader_lane``: the lane that
    ``elect_sync`` prefers. ``random``: of the order of cohorts. ``arrivals``: cohorts split off while another ran."""

    geometry: Geometry
    first_cta: int
    ctas: int
    clocks: Clocks
    global_memory: GlobalMemory
    shared: SharedMemory
    copies: Copies
    mbarriers: Mbarriers
    transfers: Transfers
    faults: FaultLog
    thread_type: Any
    leader_lane: int
    random: Random
    output: TextIO
    step_limit: int
    alive: Bools
    constants: dict[str, Array] = field(default_factory=dict)
    arrivals: list[Cohort] = field(default_factory=list)
    barriers: Barriers = field(init=False)
    warpgroups: Warpgroups = field(init=False)
    tensor_memory: TensorMemory = field(init=False)
    tensor_allocation: TensorAllocation = field(init=False)
    tensor_cores: TensorCores = field(init=False)
    tensor_loads: TensorLoads = field(init=False)

    def __post_init__(self) -> None:
        self.shared.alive = self.alive
        self.barriers = Barriers(self)
        self.warpgroups = Warpgroups(self)
        self.tensor_memory = TensorMemory(self)
        self.tensor_allocation = TensorAllocation(self, self.tensor_memory)
        self.tensor_cores = TensorCores(self, self.tensor_memory)
        self.tensor_loads = TensorLoads(self)

    @property
    def rows(self) -> int:
        return self.ctas * self.geometry.warps

    @property
    def first_row(self) -> int:
        """Launch-wide number of the batch's first warp."""
        return self.first_cta * self.geometry.warps

    @property
    def warps_per_cluster(self) -> int:
        return self.geometry.warps * self.geometry.cluster_size

    def describe_row(self, row: int) -> str:
        cta = self.first_cta + row // self.geometry.warps
        return f"warp {row % self.geometry.warps} of {self.geometry.describe_cta(cta)}"

    def lane_fault(
        self,
        c: Cohort,
        code: str,
        message: str,
        span: Span | None,
        lanes: Mask,
        other: object = None,
        **notes: str,
    ) -> None:
        """A fault of the given lanes of a cohort; the first is the example."""
        whole = np.broadcast_to(np.True_ if lanes is None else lanes, (c.warps, LANES))
        count = int(whole.sum())
        if self.faults.known(code, span, other, count):
            return
        first = int(np.argmax(whole))
        thread = int(c.thread_numbers().reshape(-1)[first])
        where = ("where", self.geometry.describe_thread(thread))
        self.faults.add(code, message, span, (where, *notes.items()), other, count)

    def exit(self, c: Cohort) -> None:
        """The active lanes of the cohort end."""
        if c.mask is None:
            self.alive[c.rows] = False
        else:
            self.alive[c.rows] &= ~c.mask
        if self.transfers.claims or self.shared.visits or self.tensor_memory.of_cta:
            ctas = np.unique(c.rows // self.geometry.warps)
            alive = self.alive.reshape(self.ctas, -1)[ctas].any(axis=1)
            self.transfers.check_exit(ctas[~alive])
            for cta in ctas[~alive].tolist():
                self.shared.check_exit(cta)
                self.tensor_cores.check_exit(cta)
                self.tensor_allocation.check_exit(cta)


def hardware_id(c: Cohort, name: str) -> Array:
    """A coordinate of ``ir.HardwareId`` for every lane of the cohort, int32."""
    held = c.ids.get(name)
    if held is None:
        held = c.ids[name] = np.asarray(_hardware_id(c, name), np.int32)
    return held


def _hardware_id(c: Cohort, name: str) -> Array:
    geometry = c.batch.geometry
    warp = (c.rows % geometry.warps)[:, None]
    lane = np.arange(LANES)[None, :]
    base, _, axis = name.partition(".")
    index = "xyz".index(axis) if axis else 0
    constant = {
        "ntid": geometry.block, "nctaid": geometry.grid, "cluster_nctaid": geometry.cluster,
        "nclusterid": geometry.cluster_grid,
    }.get(base)  # fmt: skip
    if constant is not None:
        return np.full((1, 1), constant[index])
    if name == "laneid":
        return lane
    if name == "warpid":
        return warp
    if name == "warpgroupid":
        return warp // WARPS_PER_GROUP
    if name == "warp_in_warpgroup":
        return warp % WARPS_PER_GROUP
    if name == "tid_in_warpgroup":
        return warp % WARPS_PER_GROUP * LANES + lane
    if base == "tid":
        tid = warp * LANES + lane
        return split(tid, geometry.block)[index] if axis else tid
    cta = c.batch.first_cta + c.rows // geometry.warps
    if base == "ctaid":
        extent, value = geometry.grid[index], geometry.cta_coordinates(cta)[index]
    elif base == "clusterid":
        extent = geometry.cluster_grid[index]
        value = split(cta // geometry.cluster_size, geometry.cluster_grid)[index]
    elif base == "cluster_ctaid":
        extent = geometry.cluster[index]
        value = split(cta % geometry.cluster_size, geometry.cluster)[index]
    elif name == "cluster_ctarank":
        extent, value = geometry.cluster_size, cta % geometry.cluster_size
    else:
        raise KeyError(name)
    return np.zeros((1, 1)) if extent == 1 else value[:, None]
