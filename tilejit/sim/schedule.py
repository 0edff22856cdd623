"""Runs the cohorts of a batch until all have ended, in a seeded order; reports deadlock.

Cohorts that nothing can make ready any more let the transfers under way complete, one after another;
then attempts to wait give up, as the hardware's do. So do cohorts that are ready and only spin.

Not here: what operations do (``program``), when barriers open (``barrier``), phases (``mbarrier``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from tilejit.errors import Span, Unsimulated, fault
from tilejit.sim.ahead import Ahead
from tilejit.sim.barrier import Barriers
from tilejit.sim.batch import Batch
from tilejit.sim.cohort import Cohort, Frame, IfFrame
from tilejit.sim.convergent import lane_list
from tilejit.sim.faults import place
from tilejit.sim.geometry import Bools, Ints
from tilejit.sim.memory import Read
from tilejit.sim.program import Program
from tilejit.sim.spinning import alike, describe, standing, still_spins

MAX_NOTES = 16
MAX_IDLE_ROUNDS = 4096
"""Rounds in which nobody but pollers runs and nothing else happens, before that is a deadlock."""
TURNS_PER_IDLE_ROUND = 16
"""Of the step limit: what a round counts where pollers are never as they were, because they count."""
COMPLETION_CHANCES = (1 / 16, 1 / 4, 1.0)
"""Of a transfer under way, each time a cohort has run."""
GIVE_UP_CHANCE = 1 / 16
"""Of an attempt to wait that is held up, likewise: a poller may do other things."""


@dataclass(slots=True, eq=False)
class Scheduler:
    """``operations`` counts operations of all cohorts run so far. ``suspended`` holds cohorts that wait
    for a phase. ``idle``: rounds since something other than a poller's turn happened, of which
    ``happened`` is the sign. ``stood``: how the suspended ones were after half of the rounds;
    ``repeats``: have they been so again?"""

    program: Program
    batch: Batch
    random: Random
    ready: list[Cohort] = field(default_factory=list)
    suspended: list[Cohort] = field(default_factory=list)
    operations: int = 0
    idle: int = 0
    happened: tuple[int, ...] = ()
    stood: list[Any] = field(default_factory=list)
    repeats: bool = False
    chance: float = 0.0
    barriers: Barriers = field(init=False)

    def __post_init__(self) -> None:
        self.barriers = self.batch.barriers
        self.chance = self.random.choice(COMPLETION_CHANCES)

    def run(self, first: Cohort) -> None:
        """Until every warp has ended. Raises on deadlock."""
        self.ready.append(first)
        while self.ready or self._resume():
            if not all(still_spins(c) for c in self.ready):
                self._step(self._next())
            elif not self._let_others_go_on():
                self._deadlock()
        if self.barriers.waiting or self.suspended:
            self._deadlock()
        self.batch.transfers.finish()

    def _next(self) -> Cohort:
        """A ready cohort, joined by all others that are at its place."""
        chosen = self.ready[self.random.randrange(len(self.ready))]
        mates = [c for c in self.ready if c.pc == chosen.pc]
        if len(mates) == 1:
            self.ready.remove(chosen)
            return chosen
        self.ready = [c for c in self.ready if c.pc != chosen.pc]
        return Cohort.merge(mates)

    def _run(self, c: Cohort) -> None:
        """Until it stops."""
        code, pc, count = self.program.code, c.pc, 0
        while pc >= 0:
            pc = code[pc](c)
            count += 1
        self.operations += count

    def _step(self, c: Cohort) -> None:
        self._run(c)
        self._sort(c)
        for part in self.batch.arrivals:
            self._sort(part)
        self.batch.arrivals.clear()
        if self.barriers.waiting:
            self.ready += self.barriers.opened()
        if self.batch.transfers.under_way and self.random.random() < self.chance:
            self.batch.transfers.complete_one()
        if self.suspended:
            self.ready += self._woken()
            if self.ready and self.random.random() < GIVE_UP_CHANCE:
                self._give_up()

    def _sort(self, c: Cohort) -> None:
        if c.wait is not None or c.suspension is not None:
            c.turn, c.spins = None, False
        if c.wait is not None:
            self.barriers.waiting.append(c)
        elif c.suspension is not None:
            self.suspended.append(c)
        elif c.rows.size:
            self.ready.append(c)

    # --- phases

    def _resume(self) -> bool:
        """Nobody is ready: what is under way completes until somebody is."""
        while True:
            self.ready = self.barriers.opened() + self._woken()
            if self.ready:
                return True
            if not self.batch.transfers.under_way:
                return self._poll()
            self.batch.transfers.complete_one()

    def _let_others_go_on(self) -> bool:
        """All who are ready spin: whoever else may goes on; False if that is nobody."""
        if self.batch.transfers.under_way:
            self.batch.transfers.complete_one()
            return True
        others = self.barriers.opened() + self._woken()
        self.ready += others
        return bool(others) or self._poll()

    def _woken(self) -> list[Cohort]:
        """Cohorts that wait for a phase of an object one of whose phases has ended; they try again."""
        completed = self.batch.mbarriers.completed
        if not completed:
            return []
        woken = [c for c in self.suspended if _awaits(c, completed)]
        self.suspended = [c for c in self.suspended if not _awaits(c, completed)]
        self.batch.mbarriers.completed = set()
        for c in woken:
            c.suspension = None
        return woken

    def _poll(self) -> bool:
        """Whoever may go on without its phase does; False when that is nobody, or has led nowhere for too
        long."""
        batch = self.batch
        happened = (batch.mbarriers.events, int(batch.alive.sum()), int(batch.clocks.tick.sum()))
        self.idle = self.idle + 1 if happened == self.happened else 0
        self.happened = happened
        self._look_for_repeats()
        before = len(self.ready)
        if self.idle < MAX_IDLE_ROUNDS or not (self.repeats or self._counts_for_ever()):
            self._give_up()
        return len(self.ready) > before

    def _look_for_repeats(self) -> None:
        half = MAX_IDLE_ROUNDS // 2
        if self.idle <= half:
            self.repeats = False
        if self.idle == half:
            self.stood = standing(self.suspended)
        elif self.idle > half and not self.repeats:
            self.repeats = alike(self.stood, standing(self.suspended))

    def _counts_for_ever(self) -> bool:
        """Pollers whose turns differ may give up some time; have there been too many turns?"""
        return self.idle * TURNS_PER_IDLE_ROUND > self.batch.step_limit

    def _give_up(self) -> None:
        for c in self.suspended:
            assert c.suspension is not None
            if c.suspension.give_up is not None:
                c.pc, c.suspension = c.suspension.give_up, None
                self.batch.mbarriers.forget_passed(c.rows)
                self.ready.append(c)
        self.suspended = [c for c in self.suspended if c.suspension is not None]

    # --- deadlock

    def _deadlock(self) -> None:
        """Nobody can run, unless to spin, and somebody waits."""
        waiting = [*self.ready, *self.barriers.waiting, *self.suspended]
        waiting.sort(key=_how_derived)
        self._check_branches(waiting)
        self._check_counting()
        first = waiting[0]
        span = self._span(first)
        cta = int(first.rows[0]) // self.batch.geometry.warps
        notes = [note for c in waiting if self._of(c, cta).size for note in self._describe(c, cta)]
        notes.sort(key=lambda note: note[0] not in ("waits", "spins", "writes"))
        notes += self.batch.tensor_cores.uncommitted(cta)
        ended = self._ended(cta)
        if ended:
            notes.append(("ended", ended))
        self._report_bytes(waiting)
        warps = sum(c.warps for c in waiting)
        self.batch.faults.add(
            "sim/deadlock",
            f"no warp can go on, warps waiting forever: {warps}; shown is "
            f"{self.batch.geometry.describe_cta(self.batch.first_cta + cta)}",
            span,
            tuple(notes[:MAX_NOTES]),
        )
        raise self.batch.faults.exception()

    def _check_branches(self, waiting: list[Cohort]) -> None:
        """The lanes that did not take a branch run after those that did, and those that have left a loop
        after those still in it: where these wait, it may be for what the others would do."""
        ahead = Ahead(self.program.checked, by_writes=bool(self.ready))
        for c in waiting:
            if _others_help(c, ahead) if c.wait is None else any(_skipped(f) for f in c.frames):
                self.batch.faults.raise_if_any()
                raise fault(
                    Unsimulated,
                    "sim/unsimulated",
                    "lanes of one warp wait in a branch or loop, and the others of the warp may do what they "
                    "wait for; the simulator does not interleave the two",
                    self._span(c),
                )

    def _check_counting(self) -> None:
        """Pollers that count their attempts are no deadlock before they have given up."""
        if self.idle < MAX_IDLE_ROUNDS or self.repeats:
            return
        self.batch.faults.raise_if_any()
        polls = [(c, c.suspension) for c in self.suspended if c.suspension and c.suspension.awaited]
        poller, suspension = next((c, s) for c, s in polls if s.give_up is not None)
        ((offset, value), *_) = next(iter(suspension.awaited.values()))
        state, _ = self.batch.mbarriers.describe_wait(offset, value, suspension.parity)
        raise fault(
            Unsimulated,
            "sim/step-limit",
            f"nobody goes on but loops that poll a phase, {self.idle} times so far, and whose turns differ: "
            f"they may never end. One polls {state}",
            self._span(poller),
            help="tile.simulation(step_limit=…) allows more, if the loop is meant to give up later",
        )

    def _check_later(self, spinning: Cohort) -> None:
        """What is polled in global memory may be written by CTAs that have not begun."""
        batch = self.batch
        later = batch.geometry.ctas - batch.first_cta - batch.ctas
        if not later:
            return
        batch.faults.raise_if_any()
        raise fault(
            Unsimulated,
            "sim/unsimulated",
            f"warps poll memory that nobody changes who runs together with them; {later} CTAs run later, "
            f"{batch.ctas} at a time",
            self._span(spinning),
            help="tile.simulation(batch_warps=…) runs more warps together; on the GPU, too, only CTAs that fit "
            "at once may wait for each other",
        )

    def _report_bytes(self, waiting: list[Cohort]) -> None:
        """Phases that lack bytes alone: those that were announced never come."""
        mbarriers = self.batch.mbarriers
        for offset in sorted({o for c in waiting if c.suspension for o in _objects(c)}):
            barrier = mbarriers.live.get(offset)
            if barrier is not None and barrier.tx_bytes and not barrier.pending:
                mbarriers.bytes_differ(barrier)

    def _of(self, c: Cohort, cta: int) -> Ints:
        """The cohort's warps in that CTA, counted inside it."""
        warps = self.batch.geometry.warps
        mine: Ints = c.rows[c.rows // warps == cta] % warps
        return mine

    def _describe(self, c: Cohort, cta: int) -> list[tuple[str, str]]:
        """What the cohort's warps in that CTA wait for, and what is known about it."""
        if c.wait is not None:
            missing = self.barriers.missing(c.wait, cta)
            where = f"{_warps(self._of(c, cta))} for {c.wait.what} at {place(c.wait.span)}"
            return [("waits", f"{where}; {missing}" if missing else where)]
        if c.suspension is None:
            return self._describe_spin(c, cta)
        first = cta * self.batch.geometry.warps
        warps_of: dict[tuple[int, int], list[int]] = {}
        for warp in self._of(c, cta).tolist():
            for key in c.suspension.awaited.get(first + warp, ()):
                warps_of.setdefault(key, []).append(warp)
        notes: list[tuple[str, str]] = []
        for (offset, value), warps in warps_of.items():
            state, more = self.batch.mbarriers.describe_wait(offset, value, c.suspension.parity)
            where = place(self._span(c))
            notes += [("waits", f"{_warps(np.array(warps))} for {state}, at {where}"), *more]
        return notes

    def _describe_spin(self, c: Cohort, cta: int) -> list[tuple[str, str]]:
        """Some more of the cohort's turns, listing what it reads."""
        where = f"{_warps(self._of(c, cta))} in a loop whose turns are all alike, at {place(self._span(c))}"
        batch, near, far = self.batch, list[Read](), list[Read]()
        batch.shared.reads, batch.global_memory.reads = near, far
        c.turns = 0
        self._run(c)
        batch.shared.reads = batch.global_memory.reads = None
        if far:
            self._check_later(c)
        return [("waits", where), *describe(batch, near + far)]

    def _span(self, c: Cohort) -> Span | None:
        """Where a cohort waits, or spins."""
        if c.wait is not None:
            return c.wait.span
        if c.suspension is not None:
            return None if c.suspension.site is None else c.suspension.site.span
        return self.program.loops.get(c.pc)

    def _ended(self, cta: int) -> str:
        warps = self.batch.geometry.warps
        alive = self.barriers.alive_rows()[cta * warps : (cta + 1) * warps]
        gone = np.flatnonzero(~alive)
        return f"{_warps(gone)} have exited and will not arrive" if gone.size else ""


def _warps(numbers: Ints) -> str:
    flags = np.zeros(int(numbers.max()) + 1, np.bool_)
    flags[numbers] = True
    return f"warp{'s' if numbers.size > 1 else ''} {lane_list(flags)}"


def _skipped(frame: Frame) -> bool:
    """Are there lanes that did not take the branch, and have not run since?"""
    return isinstance(frame, IfFrame) and (frame.orelse is None or bool(frame.orelse.any()))


def _how_derived(c: Cohort) -> int:
    """Who lacks columns is told why, and others often wait for such a warp; a barrier of the cluster says
    least: another CTA lacks what keeps its warps from it."""
    if c.wait is None:
        return 1
    return {"tensor memory": 0, "cluster": 2}.get(c.wait.kind, 1)


def _others_help(c: Cohort, ahead: Ahead) -> bool:
    """May lanes that are not where the cohort waits do what it waits for, if they go on?"""
    inside = c.mask_array()
    for frame in reversed(c.frames):
        outside: Bools = ~inside if frame.outer is None else frame.outer & ~inside
        if outside.any() and ahead.may(frame.others):
            return True
        inside = inside | outside
    return False


def _objects(c: Cohort) -> frozenset[int]:
    """The objects that a suspended cohort waits for."""
    assert c.suspension is not None
    return c.suspension.objects


def _awaits(c: Cohort, completed: set[int]) -> bool:
    return not completed.isdisjoint(_objects(c))
