"""Barriers that make warps wait: those of the CTA, the cluster and the grid, and named ones. Registers
that others must give up first are waited for alike.

A waiting cohort carries a ``Wait``. A CTA or grid barrier opens for a group when every warp of it that
has not exited waits there; a named barrier when as many warps as it counts wait or have arrived. The
cluster's (``cluster_barrier``) has warps that have arrived and do not wait yet.

Not here: warp barriers, which never wait here because a warp's lanes run together (``program``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from tilejit.errors import Span, Unsimulated, fault
from tilejit.sim.cluster_barrier import ClusterBarrier
from tilejit.sim.convergent import lane_list
from tilejit.sim.faults import place
from tilejit.sim.geometry import LANES, Bools, Ints, any_lane
from tilejit.sim.hazards import Clock
from tilejit.sim.register_budget import RegisterBudget

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Array, Cohort

BarrierKind: TypeAlias = Literal[
    "cta", "cluster", "grid", "named", "registers", "warpgroup", "tensor memory"
]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a cohort waits for. ``threads``: how many a named barrier counts. ``arrives``: False for
    the second half of a cluster barrier, whose first half came earlier. ``aligned``: False where lanes
    of a warp may come one by one."""

    kind: BarrierKind
    span: Span | None
    number: int = 0
    threads: int = 0
    arrives: bool = True
    aligned: bool = True

    @property
    def what(self) -> str:
        if self.kind == "named":
            return f"named barrier {self.number} ({self.threads} threads)"
        if self.kind == "registers":
            return f"{self.number} registers for each thread (setmaxnreg)"
        if self.kind == "warpgroup":
            return "the other warps of its warpgroup (wgmma)"
        if self.kind == "tensor memory":
            return "columns of tensor memory (tcgen05.alloc)"
        return f"the {'CTA' if self.kind == 'cta' else self.kind} barrier"


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The last round of a named barrier in a CTA: its warps, the tick that it began, what they
    waited for."""

    warps: Bools
    tick: int
    wait: Wait


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """A warp of a CTA that has arrived at a named barrier and does not wait: ``clock`` is what it did
    and knew."""

    warp: int
    wait: Wait
    clock: Clock


@dataclass(slots=True, eq=False)
class Barriers:
    """Who waits where. ``waiting`` holds cohorts with a ``wait``; ``arrived`` and ``rounds`` are by CTA
    and number of a named barrier: the arrivals of the round under way, and the last round that some
    warps of the CTA were not part of. ``votes``: what lanes brought to a barrier that reduces;
    ``tally`` and ``voters``, by warp: how many of how many were true."""

    batch: Batch
    waiting: list[Cohort] = field(default_factory=list)
    arrived: dict[tuple[int, int], list[Arrival]] = field(default_factory=dict)
    rounds: dict[tuple[int, int], Round] = field(default_factory=dict)
    cluster: ClusterBarrier = field(init=False)
    budget: RegisterBudget | None = None
    votes: Bools | None = None
    tally: Ints = field(init=False)
    voters: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.cluster = ClusterBarrier(self.batch)
        self.tally = np.zeros(self.batch.rows, np.int64)
        self.voters = np.zeros(self.batch.rows, np.int64)

    def alive_rows(self) -> Bools:
        """Per warp of the batch: has it a lane that has not exited?"""
        return any_lane(self.batch.alive)

    def opened(self) -> list[Cohort]:
        """Cohorts whose barriers are complete, ready to go on; the others stay."""
        ready: list[Cohort] = []
        for kind, number in sorted({(c.wait.kind, c.wait.number) for c in self.waiting if c.wait}):
            if kind == "named":
                rows = self._complete_named(number)
            elif kind == "registers":
                assert self.budget is not None
                rows = self.budget.granted(self._waiting_rows(kind, number), number)
            elif kind == "warpgroup":
                waiting = self._waiting_rows(kind, number)
                rows = self.batch.warpgroups.complete(waiting, self.alive_rows())
            elif kind == "tensor memory":
                rows = self._granted(self._waiting_rows(kind, number))
            elif kind == "cluster":
                rows = self.cluster.opened(self._waiting_rows(kind, number))
            else:
                rows = self._complete_groups(kind, number)
            if rows is not None:
                ready += self._take(kind, number, rows)
        return ready

    def _granted(self, waiting: Bools) -> Bools | None:
        """The waiting warps that have got their columns of tensor memory."""
        rows = np.flatnonzero(waiting)
        waiting[rows] = ~self.batch.tensor_allocation.waits(rows)
        return waiting if waiting.any() else None

    def change_registers(
        self, c: Cohort, start: int, wanted: int, grows: bool, span: Span | None
    ) -> None:
        """The cohort's warps, whose CTAs began with ``start`` registers a thread, want another number."""
        if self.budget is None:
            self.budget = RegisterBudget(self.batch, start)
        self.budget.change(c, wanted, grows, span)
        if grows:
            c.wait = Wait("registers", span, wanted)

    def missing(self, wait: Wait, cta: int) -> str:
        """Which warps of the CTA or cluster have not come to the barrier, or who holds what is waited for;
        empty where that is not known."""
        if wait.kind == "tensor memory":
            return self.batch.tensor_allocation.missing(cta)
        if wait.kind != "cluster":
            return ""
        per_cluster = self.batch.warps_per_cluster
        first = cta // self.batch.geometry.cluster_size * per_cluster
        rows = np.arange(first, first + per_cluster)
        late = rows[self.alive_rows()[rows] & ~self.cluster.has_arrived(rows)]
        if not late.size:
            return ""
        named = self.batch.describe_row(int(late[0]))
        if late.size == 1:
            return f"{named} has not arrived"
        return f"{named} and {late.size - 1} more have not arrived"

    def _at(self, kind: str, number: int) -> list[Cohort]:
        return [
            c for c in self.waiting if c.wait and (c.wait.kind, c.wait.number) == (kind, number)
        ]

    def _waiting_rows(self, kind: str, number: int) -> Bools:
        rows = np.zeros(self.batch.rows, np.bool_)
        for c in self._at(kind, number):
            rows[c.rows] = True
        return rows

    def _complete_groups(self, kind: str, number: int) -> Bools | None:
        """Rows of the CTAs, or of the grid, whose barrier opens."""
        batch = self.batch
        per_group = batch.geometry.warps if kind == "cta" else batch.rows
        arrived = np.zeros(batch.rows, np.bool_)
        place_of = np.full(batch.rows, -1, np.int64)
        cohorts = self._at(kind, number)
        for c in cohorts:
            arrived[c.rows] = True
            place_of[c.rows] = c.pc
        groups = (arrived | ~self.alive_rows()).reshape(-1, per_group)
        complete = ~any_lane(~groups) & any_lane(arrived.reshape(-1, per_group))
        if not complete.any():
            return None
        self._check_one_place(cohorts, place_of.reshape(-1, per_group), complete, kind)
        which = np.flatnonzero(complete)
        if kind == "cta":
            wait = cohorts[0].wait
            assert wait is not None
            self._check_rounds(number, arrived.reshape(-1, per_group), which, wait)
            self._forget_rounds(number, which)
            batch.clocks.cta_barrier(which)
        else:
            batch.clocks.cluster_barrier(np.arange(batch.ctas // batch.geometry.cluster_size))
            batch.global_memory.forget_accesses()
        rows: Bools = arrived & np.repeat(complete, per_group)
        self._count_votes(rows)
        return rows

    def _check_one_place(
        self, cohorts: list[Cohort], places: Ints, complete: Bools, kind: str
    ) -> None:
        """All warps of a group must wait at one barrier of the program."""
        low = np.where(places < 0, np.iinfo(np.int64).max, places).min(axis=1)
        mixed = complete & (places.max(axis=1) != low)
        if not mixed.any():
            return
        group = int(np.argmax(mixed))
        first, last = int(low[group]), int(places[group].max())
        by_pc = {c.pc: c.wait.span for c in cohorts if c.wait}
        row = group * places.shape[1] + int(np.argmax(places[group] == first))
        other = group * places.shape[1] + int(np.argmax(places[group] == last))
        describe = self.batch.describe_row
        self.batch.faults.add(
            "sim/barrier-divergence",
            f"warps of one {'CTA' if kind == 'cta' else kind} meet at two different barriers",
            by_pc[first],
            (
                ("where", f"{describe(row)} waits here"),
                ("other", f"{describe(other)} waits at {place(by_pc[last])}"),
                ("help", "all of them must reach the same barrier; named barriers join parts"),
            ),
            by_pc[last],
            int(mixed.sum()),
        )

    def _complete_named(self, number: int) -> Bools | None:
        """Rows that wait at a named barrier whose round is complete."""
        batch = self.batch
        warps = batch.geometry.warps
        waits = np.zeros(batch.rows, np.bool_)
        wanted = np.zeros(batch.rows, np.int64)
        present = np.zeros(batch.rows, np.int64)
        at: list[Wait] = []
        for c in self._at("named", number):
            assert c.wait is not None
            at.append(c.wait)
            waits[c.rows] = True
            present[c.rows] += 1
            wanted[c.rows] = c.wait.threads
        for (cta, found), arrivals in self.arrived.items():
            for arrival in arrivals if found == number else ():
                at.append(arrival.wait)
                row = cta * warps + arrival.warp
                present[row] += 1
                wanted[row] = max(int(wanted[row]), arrival.wait.threads)
        threads = present.reshape(-1, warps).sum(axis=1) * LANES
        expected = wanted.reshape(-1, warps).max(axis=1)
        complete: Bools = (threads > 0) & (threads >= expected)
        if not complete.any():
            return None
        self._check_count(at[0], number, threads, wanted.reshape(-1, warps), complete)
        per_cta = (present > 0).reshape(-1, warps)
        self._check_rounds(number, per_cta, np.flatnonzero(complete), at[0])
        self._join_named(per_cta, waits.reshape(-1, warps), complete, at[0])
        for cta in np.flatnonzero(complete).tolist():
            self.arrived.pop((cta, number), None)
        rows: Bools = waits & np.repeat(complete, warps)
        self._count_votes(rows)
        return rows

    def _join_named(self, per_cta: Bools, waits: Bools, complete: Bools, wait: Wait) -> None:
        """Who waits learns what all of the round did. ``per_cta``: the warps of the round."""
        geometry, clocks = self.batch.geometry, self.batch.clocks
        everyone = ~any_lane(~waits) & complete
        if everyone.any():
            clocks.cta_barrier(np.flatnonzero(everyone))
            self._forget_rounds(wait.number, np.flatnonzero(everyone))
        for cta in np.flatnonzero(complete & ~everyone).tolist():
            cluster = cta // geometry.cluster_size
            start = cta % geometry.cluster_size * geometry.slots
            threads = start + np.flatnonzero(np.repeat(waits[cta], LANES))
            if threads.size:
                for arrival in self.arrived.get((cta, wait.number), ()):
                    clocks.acquire(cluster, threads, arrival.clock)
                clocks.group_barrier(cluster, threads)
            tick = int(clocks.tick[cluster])
            self.rounds[cta, wait.number] = Round(per_cta[cta], tick, wait)

    def arrive_named(self, c: Cohort, wait: Wait) -> None:
        """The cohort's warps arrive at a named barrier and go on; its round may be complete now."""
        geometry, clocks = self.batch.geometry, self.batch.clocks
        check_whole(c, wait)
        for row in c.rows.tolist():
            cta, warp = divmod(row, geometry.warps)
            arrivals = self.arrived.setdefault((cta, wait.number), [])
            if any(a.warp == warp for a in arrivals):
                self._arrived_twice(row, wait)
            first = cta % geometry.cluster_size * geometry.slots + warp * LANES
            threads = np.arange(first, first + LANES)
            clock = clocks.release(cta // geometry.cluster_size, threads)
            arrivals.append(Arrival(warp, wait, clock))
        rows = self._complete_named(wait.number)
        if rows is not None:
            self.batch.arrivals += self._take("named", wait.number, rows)

    def _arrived_twice(self, row: int, wait: Wait) -> None:
        self.batch.faults.add(
            "sim/barrier-count",
            f"a warp arrives at {wait.what} again before the round that it arrived for is complete: it "
            "is counted twice there",
            wait.span,
            (
                ("where", self.batch.describe_row(row)),
                (
                    "help",
                    "wait for those who wait there, at another barrier, before the next arrival",
                ),
            ),
            wait.number,
        )

    def arrive_cluster(self, c: Cohort, span: Span | None, *, releases: bool) -> None:
        """The cohort's warps arrive at the cluster barrier and go on."""
        self.cluster.arrive(c, span, joint=False, releases=releases)
        rows = self.cluster.opened(self._waiting_rows("cluster", 0))
        if rows is not None:
            self.batch.arrivals += self._take("cluster", 0, rows)

    # --- reductions

    def bring(self, c: Cohort, flags: Array) -> None:
        """What each lane brings to the reducing barrier that it comes to."""
        if self.votes is None:
            self.votes = np.zeros((self.batch.rows, LANES), np.bool_)
        self.votes[c.rows] = np.broadcast_to(flags, (c.warps, LANES)) & c.mask_array()

    def _count_votes(self, rows: Bools) -> None:
        """Of the CTAs whose warps ``rows`` go on: how many lanes brought true, of how many."""
        if self.votes is None:
            return
        warps = self.batch.geometry.warps
        here = self.batch.alive & rows[:, None]
        for counts, lanes in ((self.tally, self.votes & here), (self.voters, here)):
            per_cta = lanes.reshape(-1, warps * LANES).sum(axis=1)
            counts[rows] = np.repeat(per_cta, warps)[rows]

    def _forget_rounds(self, number: int, which: Ints) -> None:
        """A round of all warps has come: whoever joins the next one was there."""
        if self.rounds:
            for cta in which.tolist():
                self.rounds.pop((cta, number), None)

    def _check_count(
        self, first: Wait, number: int, threads: Ints, wanted: Ints, complete: Bools
    ) -> None:
        low = np.where(wanted > 0, wanted, np.iinfo(np.int64).max).min(axis=1)
        wrong = complete & ((threads > wanted.max(axis=1)) | (low != wanted.max(axis=1)))
        if not wrong.any():
            return
        cta = int(np.argmax(wrong))
        self.batch.faults.add(
            "sim/barrier-count",
            f"{int(threads[cta])} threads come to named barrier {number}, which counts "
            f"{int(low[cta])}: who belongs to which round is undefined",
            first.span,
            (("where", self.batch.geometry.describe_cta(self.batch.first_cta + cta)),),
            number,
            int(wrong.sum()),
        )

    def _check_rounds(self, number: int, arrived: Bools, which: Ints, wait: Wait) -> None:
        """Warps that were not in the barrier's last round must come after it: else they could have
        been counted there. ``arrived``: (CTAs, warps). Single warps never share a round."""
        batch = self.batch
        watch = batch.shared.watch
        if not self.rounds or watch.ordered_by_memory or not watch.hazards:
            return
        slots = batch.geometry.slots
        for cta in which.tolist():
            last = self.rounds.get((cta, number))
            if last is None or last.wait.threads == wait.threads == LANES:
                continue
            new = np.flatnonzero(arrived[cta] & ~last.warps)
            first = (batch.first_cta + cta) * slots
            earlier = np.full(new.size, first + LANES * int(np.argmax(last.warps)))
            before = np.full(new.size, last.tick - 1)
            late = batch.clocks.ordered(earlier, before, first + LANES * new)
            if late.all():
                continue
            row = cta * batch.geometry.warps + int(new[np.argmin(late)])
            batch.faults.add(
                "sim/barrier-count",
                f"{batch.describe_row(row)} joins barrier {number}, and nothing orders it after the "
                "last round there, which other warps made up: either round may count it",
                wait.span,
                (
                    ("last", f"warps {lane_list(last.warps)} at {place(last.wait.span)}"),
                    ("help", "use another barrier number (T.cuda.cta_sync() is barrier 0), or a "
                     "barrier between the two that both sides join"),
                ),
                (number, last.wait.span),
            )  # fmt: skip

    def _take(self, kind: str, number: int, rows: Bools) -> list[Cohort]:
        ready: list[Cohort] = []
        for c in self._at(kind, number):
            go = rows[c.rows]
            if not go.any():
                continue
            self.waiting.remove(c)
            if not go.all():
                self.waiting.append(c.select(np.flatnonzero(~go)))
                c = c.select(np.flatnonzero(go))
            c.wait = None
            ready.append(c)
        return ready


def arrive(c: Cohort, wait: Wait) -> None:
    """The cohort waits. Every lane of a warp that has not exited must be there."""
    c.wait = wait
    check_whole(c, wait)
    if wait.kind == "cluster":
        barrier = c.batch.barriers.cluster
        if wait.arrives:
            barrier.arrive(c, wait.span, joint=True, releases=True)
        else:
            barrier.begin_wait(c, wait.span)


def check_whole(c: Cohort, wait: Wait) -> None:
    """Reports a warp of which only a part has come."""
    if c.mask is None:
        return
    missing = c.batch.alive[c.rows] & ~c.mask
    if not missing.any():
        return
    if not wait.aligned:
        raise fault(
            Unsimulated, "sim/unsimulated", f"the simulator does not model lanes of one warp that come to "
            f"{wait.what} one by one", wait.span,
        )  # fmt: skip
    without = any_lane(missing)
    row = int(np.argmax(without))
    c.batch.lane_fault(
        c,
        "sim/barrier-divergence",
        f"part of a warp arrives at {wait.what}: lanes {lane_list(missing[row])} are not here",
        wait.span,
        c.mask & without[:, None],
        warp=c.batch.describe_row(int(c.rows[row])),
    )
