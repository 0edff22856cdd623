"""Arrivals at mbarriers that come when a thread's short copies are there (``cp.async.mbarrier.arrive``).

Such an arrival waits for all of the thread's copies so far, those that an earlier one waits for among
them: the arrivals of a thread come in the order of its instructions. The copies are then accesses of the
barrier at which the first of these arrivals is made; who waits for a later one knows of them, too.

Not here: when the next one comes (``transfers``), what an arrival does (``mbarrier``), the copies
(``copies``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tilejit.sim.geometry import Ints
from tilejit.sim.hazards import Clock


@dataclass(frozen=True, slots=True, eq=False)
class LateArrival:
    """An arrival of some threads that is still to come, by ``arrive``."""

    threads: Ints
    arrive: Callable[[], None]


class LateArrivals:
    """Those of one batch. ``brought``: by thread, the agents whose accesses its copies have become."""

    def __init__(self) -> None:
        self.pending: list[LateArrival] = []
        self.brought: dict[int, Clock] = {}

    def add(self, threads: Ints, arrive: Callable[[], None]) -> Callable[[], None]:
        """An arrival to come. Returns what makes it come, after those before it of the same threads."""
        late = LateArrival(threads, arrive)
        self.pending.append(late)
        return lambda: self._come(late)

    def _come(self, late: LateArrival) -> None:
        if late not in self.pending:
            return  # it came with a later one
        for earlier in self.pending[: self.pending.index(late)]:
            if np.isin(earlier.threads, late.threads).any():
                self._come(earlier)
        self.pending.remove(late)
        late.arrive()

    def known(self, threads: Ints) -> Clock | None:
        """What an arrival of the threads tells of the copies that earlier ones have waited for."""
        clocks = {id(c): c for t in threads.tolist() if (c := self.brought.get(t)) is not None}
        joined: Clock | None = None
        for clock in clocks.values():
            joined = clock.joined(joined)
        return joined

    def bring(self, threads: Ints, clock: Clock) -> None:
        """Copies of the threads have become accesses that ``clock`` knows."""
        whole = clock.joined(self.known(threads))
        self.brought.update(dict.fromkeys(threads.tolist(), whole))
