"""Runs the cohorts of a batch until all have ended, in a seeded order; reports deadlock.

Not here: what operations do (``program``), when barriers open (``barrier``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from tilejit.errors import Span, Unsimulated, fault
from tilejit.sim.barrier import Barriers
from tilejit.sim.batch import Batch
from tilejit.sim.cohort import Cohort, IfFrame
from tilejit.sim.convergent import lane_list
from tilejit.sim.faults import place
from tilejit.sim.geometry import Ints
from tilejit.sim.program import Program

MAX_NOTES = 12


@dataclass(slots=True, eq=False)
class Scheduler:
    """``operations`` counts operations of all cohorts run so far."""

    program: Program
    batch: Batch
    random: Random
    ready: list[Cohort] = field(default_factory=list)
    operations: int = 0
    barriers: Barriers = field(init=False)

    def __post_init__(self) -> None:
        self.barriers = Barriers(self.batch)

    def run(self, first: Cohort) -> None:
        """Until every warp has ended. Raises on deadlock."""
        self.ready.append(first)
        while True:
            if not self.ready:
                self.ready = self.barriers.opened()
                if not self.ready:
                    if self.barriers.waiting:
                        self._deadlock()
                    return
            self._step(self._next())

    def _next(self) -> Cohort:
        """A ready cohort, joined by all others that are at its place."""
        chosen = self.ready[self.random.randrange(len(self.ready))]
        mates = [c for c in self.ready if c.pc == chosen.pc]
        if len(mates) == 1:
            self.ready.remove(chosen)
            return chosen
        self.ready = [c for c in self.ready if c.pc != chosen.pc]
        return Cohort.merge(mates)

    def _step(self, c: Cohort) -> None:
        code, pc, count = self.program.code, c.pc, 0
        while pc >= 0:
            pc = code[pc](c)
            count += 1
        self.operations += count
        if c.wait is not None:
            self.barriers.waiting.append(c)
        elif c.rows.size:
            self.ready.append(c)
        if self.batch.arrivals:
            self.ready += self.batch.arrivals
            self.batch.arrivals.clear()
        if self.barriers.waiting:
            self.ready += self.barriers.opened()

    # --- deadlock

    def _deadlock(self) -> None:
        """Nobody can run and somebody waits."""
        waiting = self.barriers.waiting
        for c in waiting:
            pending = [f for f in c.frames if isinstance(f, IfFrame)]
            if any(f.orelse is None or f.orelse.any() for f in pending):
                raise fault(
                    Unsimulated,
                    "sim/unsimulated",
                    "lanes of one warp wait in one side of a branch while its other side has not "
                    "run; the simulator does not interleave the two sides of one warp",
                    c.wait.span if c.wait else None,
                )
        first = waiting[0]
        assert first.wait is not None
        cta = int(first.rows[0]) // self.batch.geometry.warps
        notes = [("waits", self._describe(c, cta)) for c in waiting if self._of(c, cta).size]
        ended = self._ended(cta)
        if ended:
            notes.append(("ended", ended))
        warps = sum(c.warps for c in waiting)
        self.batch.faults.add(
            "sim/deadlock",
            f"no warp can go on, warps waiting forever: {warps}; shown is "
            f"{self.batch.geometry.describe_cta(self.batch.first_cta + cta)}",
            first.wait.span,
            tuple(notes[:MAX_NOTES]),
        )
        raise self.batch.faults.exception()

    def _of(self, c: Cohort, cta: int) -> Ints:
        """The cohort's warps in that CTA, counted inside it."""
        warps = self.batch.geometry.warps
        mine: Ints = c.rows[c.rows // warps == cta] % warps
        return mine

    def _describe(self, c: Cohort, cta: int) -> str:
        assert c.wait is not None
        span: Span | None = c.wait.span
        return f"{_warps(self._of(c, cta))} for {c.wait.what} at {place(span)}"

    def _ended(self, cta: int) -> str:
        warps = self.batch.geometry.warps
        alive = self.barriers.alive_rows()[cta * warps : (cta + 1) * warps]
        gone = np.flatnonzero(~alive)
        return f"{_warps(gone)} have exited and will not arrive" if gone.size else ""


def _warps(numbers: Ints) -> str:
    flags = np.zeros(int(numbers.max()) + 1, np.bool_)
    flags[numbers] = True
    return f"warp{'s' if numbers.size > 1 else ''} {lane_list(flags)}"
