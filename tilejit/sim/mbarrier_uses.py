"""What must be over before an mbarrier is invalidated: its threads' operations and what it still counts.

``mbarrier.inval`` is no wait. An attempt to wait that another thread makes after it is undefined, so each
thread's last operation must come before it by synchronisation; of an arrival, the end of its phase tells,
too. Copies and late arrivals have no thread that could tell: the end of their phase must be known.

Not here: phases (``mbarrier``), what is known (``hazards``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilejit.sim.faults import Site
from tilejit.sim.geometry import Ints
from tilejit.sim.hazards import Clocks

NO_USE = -1
NO_PHASE = np.iinfo(np.int64).max
"""Of an attempt to wait: no phase's end tells that it is over."""


@dataclass(frozen=True, slots=True)
class Arriving:
    """Something that comes by itself in ``phase``, by a thread's instruction."""

    phase: int
    thread: int
    site: Site


@dataclass(slots=True, eq=False)
class Uses:
    """Those of one object. By thread of the cluster, of its last operation: ``stamps`` (the cluster's tick),
    ``sites`` (their numbers), ``phases`` that take it. ``arriving``: what comes by itself in the latest
    phase; ``late``: the arrivals among it that are still to come."""

    stamps: Ints
    sites: Ints
    phases: Ints
    arriving: Arriving | None = None
    late: int = 0

    @staticmethod
    def of(slots: int) -> Uses:
        """No uses yet, by ``slots`` threads."""
        return Uses(
            np.full(slots, NO_USE), np.zeros(slots, np.int64), np.full(slots, NO_PHASE, np.int64)
        )

    def note(self, own: Ints, stamp: int, site: Site) -> None:
        """The threads (numbers in their cluster) operate on the object."""
        self.stamps[own], self.sites[own], self.phases[own] = stamp, site.index, NO_PHASE

    def counted(self, own: Ints, site: Site, phase: int) -> None:
        """``phase`` takes what the threads did at ``site``."""
        latest = own[self.sites[own] == site.index]
        self.phases[latest] = phase

    def open_before(self, clocks: Clocks, cluster: int, thread: int, ended: int) -> Ints:
        """The threads of the launch whose last operation nothing orders before ``thread`` now; it knows
        ``ended`` phases to be over."""
        users = np.flatnonzero((self.stamps != NO_USE) & (self.phases >= ended))
        threads = clocks.first_thread(cluster) + users
        before = clocks.ordered(threads, self.stamps[users], np.full(users.size, thread))
        late: Ints = threads[~before]
        return late
