"""The cluster's barrier, whose arrival and wait may be apart.

Each warp goes idle → arrived → released → idle: a phase ends when every warp of the cluster that has not
exited has arrived, and the next one cannot end before each of them has waited for it.

Not here: the queue of waiting cohorts (``barrier``), what is known at which time (``hazards``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tilejit.errors import Span
from tilejit.sim.geometry import LANES, Bools, Ints, any_lane
from tilejit.sim.hazards import Clock

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Cohort

IDLE, ARRIVED, RELEASED = 0, 1, 2


@dataclass(slots=True, eq=False)
class ClusterBarrier:
    """``state`` per warp of the batch. ``joint``: warps that arrived and wait in one, so that what they
    know at the end of the phase is what they knew on arrival. ``pending`` and ``ended``, by cluster: the
    clocks of the other arrivals of the phase under way, and of all of the last one."""

    batch: Batch
    state: npt.NDArray[np.int8] = field(init=False)
    joint: Bools = field(init=False)
    pending: dict[int, list[Clock]] = field(default_factory=dict)
    ended: dict[int, list[Clock]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.state = np.zeros(self.batch.rows, np.int8)
        self.joint = np.zeros(self.batch.rows, np.bool_)

    def has_arrived(self, rows: Ints) -> Bools:
        result: Bools = self.state[rows] != IDLE
        return result

    def arrive(self, c: Cohort, span: Span | None, *, joint: bool, releases: bool) -> None:
        """The cohort's warps arrive. ``releases``: others may learn what they did."""
        again = self.state[c.rows] != IDLE
        if again.any():
            self._fault(c, again, "arrives at the cluster barrier a second time without a wait between",
                        span, "each barrier.cluster.arrive is followed by one barrier.cluster.wait")  # fmt: skip
        self.state[c.rows] = ARRIVED
        self.joint[c.rows] = joint
        if joint:
            return
        per_cluster, clocks = self.batch.warps_per_cluster, self.batch.clocks
        for cluster in np.unique(c.rows // per_cluster).tolist():
            threads = self._threads(c.rows[c.rows // per_cluster == cluster])
            if releases:
                clock = clocks.release(cluster, threads)
            else:
                clock = clocks.ends(cluster, threads)
            self.pending.setdefault(cluster, []).append(clock)

    def begin_wait(self, c: Cohort, span: Span | None) -> None:
        """The cohort's warps wait for the phase that they have arrived for."""
        lost = self.state[c.rows] == IDLE
        if lost.any():
            self._fault(c, lost, "waits at the cluster barrier without having arrived", span,
                        "barrier.cluster.arrive comes first; T.cuda.cluster_sync() is both")  # fmt: skip
            self.state[c.rows[lost]] = RELEASED

    def opened(self, waiting: Bools) -> Bools | None:
        """The ``waiting`` warps that go on."""
        self.end_phases()
        free: Bools = waiting & (self.state == RELEASED)
        if not free.any():
            return None
        per_cluster = self.batch.warps_per_cluster
        for cluster in np.unique(np.flatnonzero(free) // per_cluster).tolist():
            first = cluster * per_cluster
            threads = self._threads(first + np.flatnonzero(free[first : first + per_cluster]))
            for clock in self.ended.get(cluster, ()):
                self.batch.clocks.acquire(cluster, threads, clock)
            self.batch.clocks.learn_start(cluster, threads)
        self.state[free] = IDLE
        return free

    def end_phases(self) -> None:
        """Phases that everyone has arrived for end."""
        per_cluster = self.batch.warps_per_cluster
        alive = any_lane(self.batch.alive)
        arrived = self.state == ARRIVED
        groups = (arrived | ~alive).reshape(-1, per_cluster)
        complete = ~any_lane(~groups) & any_lane(arrived.reshape(-1, per_cluster))
        if not complete.any():
            return
        joint = complete & ~any_lane((arrived & ~self.joint).reshape(-1, per_cluster))
        if joint.any():
            self.batch.clocks.cluster_barrier(np.flatnonzero(joint))
        for cluster in np.flatnonzero(complete).tolist():
            clocks = self.pending.pop(cluster, [])
            if not joint[cluster]:
                # Warps that have exited count as having arrived.
                rows = cluster * per_cluster + np.arange(per_cluster)
                still = rows[(arrived & self.joint | ~alive)[rows]]
                if still.size:
                    clocks.append(self.batch.clocks.release(cluster, self._threads(still)))
            self.ended[cluster] = [] if joint[cluster] else clocks
        self.state[arrived & np.repeat(complete, per_cluster)] = RELEASED

    def _threads(self, rows: Ints) -> Ints:
        """Numbers in their cluster of the threads of warps."""
        first = rows % self.batch.warps_per_cluster * LANES
        threads: Ints = (first[:, None] + np.arange(LANES)).reshape(-1)
        return threads

    def _fault(self, c: Cohort, rows: Bools, what: str, span: Span | None, help: str) -> None:
        row = int(c.rows[int(np.argmax(rows))])
        self.batch.faults.add(
            "sim/cluster-barrier", f"a warp {what}", span,
            (("where", self.batch.describe_row(row)), ("help", help)), None, int(rows.sum()),
        )  # fmt: skip
