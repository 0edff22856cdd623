"""Barriers that make warps wait: CTA, cluster and named ones.

A waiting cohort carries a ``Wait``. A CTA or cluster barrier opens for a group when every warp of it
that has not exited waits there; a named barrier when as many warps as it counts wait.

Not here: warp barriers, which never wait here because a warp's lanes run together (``program``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from tilejit.errors import Span
from tilejit.sim.convergent import lane_list
from tilejit.sim.faults import place
from tilejit.sim.geometry import LANES, Bools, Ints, any_lane

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Cohort

BarrierKind: TypeAlias = Literal["cta", "cluster", "named"]


@dataclass(frozen=True, slots=True)
class Wait:
    """What a cohort waits for. ``threads``: how many a named barrier counts."""

    kind: BarrierKind
    span: Span | None
    number: int = 0
    threads: int = 0

    @property
    def what(self) -> str:
        if self.kind == "named":
            return f"named barrier {self.number} ({self.threads} threads)"
        return {"cta": "the CTA barrier", "cluster": "the cluster barrier"}[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The last round of a named barrier in a CTA: its warps, the tick that it began, what they
    waited for."""

    warps: Bools
    tick: int
    wait: Wait


@dataclass(slots=True, eq=False)
class Barriers:
    """Who waits where. ``waiting`` holds cohorts with a ``wait``; ``rounds``, by CTA and number, those
    that some warps of the CTA were not part of."""

    batch: Batch
    waiting: list[Cohort] = field(default_factory=list)
    rounds: dict[tuple[int, int], Round] = field(default_factory=dict)

    def alive_rows(self) -> Bools:
        """Per warp of the batch: has it a lane that has not exited?"""
        return any_lane(self.batch.alive)

    def opened(self) -> list[Cohort]:
        """Cohorts whose barriers are complete, ready to go on; the others stay."""
        ready: list[Cohort] = []
        for kind, number in sorted({(c.wait.kind, c.wait.number) for c in self.waiting if c.wait}):
            if kind == "named":
                rows = self._complete_named(number)
            else:
                rows = self._complete_groups(kind, number)
            if rows is not None:
                ready += self._take(kind, number, rows)
        return ready

    def _at(self, kind: str, number: int) -> list[Cohort]:
        return [
            c for c in self.waiting if c.wait and (c.wait.kind, c.wait.number) == (kind, number)
        ]

    def _complete_groups(self, kind: str, number: int) -> Bools | None:
        """Rows of the CTAs or clusters whose barrier opens."""
        batch = self.batch
        per_group = batch.geometry.warps if kind == "cta" else batch.warps_per_cluster
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
            batch.clocks.cluster_barrier(which)
        return arrived & np.repeat(complete, per_group)

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
            f"warps of one {'CTA' if kind == 'cta' else 'cluster'} meet at two different barriers",
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
        batch = self.batch
        warps = batch.geometry.warps
        arrived = np.zeros(batch.rows, np.bool_)
        wanted = np.zeros(batch.rows, np.int64)
        cohorts = self._at("named", number)
        for c in cohorts:
            assert c.wait is not None
            arrived[c.rows] = True
            wanted[c.rows] = c.wait.threads
        per_cta = arrived.reshape(-1, warps)
        threads = per_cta.sum(axis=1) * LANES
        expected = wanted.reshape(-1, warps).max(axis=1)
        complete: Bools = (threads > 0) & (threads >= expected)
        if not complete.any():
            return None
        self._check_count(cohorts, number, threads, wanted.reshape(-1, warps), complete)
        wait = cohorts[0].wait
        assert wait is not None
        self._check_rounds(number, per_cta, np.flatnonzero(complete), wait)
        self._join_named(per_cta, complete, wait)
        return arrived & np.repeat(complete, warps)

    def _join_named(self, per_cta: Bools, complete: Bools, wait: Wait) -> None:
        geometry, clocks = self.batch.geometry, self.batch.clocks
        everyone = ~any_lane(~per_cta) & complete
        if everyone.any():
            clocks.cta_barrier(np.flatnonzero(everyone))
            self._forget_rounds(wait.number, np.flatnonzero(everyone))
        for cta in np.flatnonzero(complete & ~everyone).tolist():
            start = cta % geometry.cluster_size * geometry.slots
            lanes = np.repeat(per_cta[cta], LANES)
            cluster = cta // geometry.cluster_size
            clocks.group_barrier(cluster, start + np.flatnonzero(lanes))
            tick = int(clocks.tick[cluster])
            self.rounds[cta, wait.number] = Round(per_cta[cta], tick, wait)

    def _forget_rounds(self, number: int, which: Ints) -> None:
        """A round of all warps has come: whoever joins the next one was there."""
        if self.rounds:
            for cta in which.tolist():
                self.rounds.pop((cta, number), None)

    def _check_count(
        self, cohorts: list[Cohort], number: int, threads: Ints, wanted: Ints, complete: Bools
    ) -> None:
        low = np.where(wanted > 0, wanted, np.iinfo(np.int64).max).min(axis=1)
        wrong = complete & ((threads > wanted.max(axis=1)) | (low != wanted.max(axis=1)))
        if not wrong.any():
            return
        cta = int(np.argmax(wrong))
        first = cohorts[0].wait
        assert first is not None
        self.batch.faults.add(
            "sim/barrier-count",
            f"{int(threads[cta])} threads wait at named barrier {number}, which counts "
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
    if c.mask is None:
        return
    missing = c.batch.alive[c.rows] & ~c.mask
    if not missing.any():
        return
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
