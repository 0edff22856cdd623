"""Asynchronous copies in flight: groups per thread, and bytes that move late.

Issuing a copy checks its addresses and notes both accesses in the history, as ones that nothing is
ordered after. The bytes move at once or at the wait that covers them, as the seed has it; a program
may rely on neither. The wait also stamps both accesses with its own time, so that what the waiting
thread does next, and what others do after a barrier with it, is ordered after the copy.

A ``Flight`` is one instruction's copies, one per lane, of one source buffer and one number of copied
bytes. Not here: the history (``hazards``), checks and bytes (``memory``), what a family asks for
(``machine``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, Bools, Ints
from tilejit.sim.global_memory import GlobalMemory
from tilejit.sim.hazards import IN_FLIGHT, Clocks
from tilejit.sim.memory import Bytes, Lanes, Window, taken
from tilejit.sim.shared_memory import SharedMemory

if TYPE_CHECKING:
    from tilejit.sim.cohort import Array, Cohort

NEVER = -1


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a flight's bytes come from: ``nbytes`` at ``offsets`` of the window."""

    window: Window
    offsets: Ints
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """Copies of some lanes. ``stamp`` marks their accesses in the history; ``numbers`` are the
    threads in the batch, ``group`` each one's group; ``moved``: lanes whose bytes have arrived."""

    stamp: int
    lanes: Lanes
    numbers: Ints
    group: Ints
    offsets: Ints
    nbytes: int
    source: Source | None
    moved: Bools

    def some(self, chosen: Bools) -> Flight:
        source = self.source
        if source is not None:
            source = Source(source.window, source.offsets[chosen], source.nbytes)
        return Flight(
            self.stamp,
            taken(self.lanes, np.flatnonzero(chosen)),
            self.numbers[chosen],
            self.group[chosen],
            self.offsets[chosen],
            self.nbytes,
            source,
            self.moved[chosen],
        )


class Copies:
    """The copies of one batch, and how far each of its threads has committed and waited."""

    def __init__(
        self,
        shared: SharedMemory,
        global_memory: GlobalMemory,
        clocks: Clocks,
        first_row: int,
        rows: int,
        random: np.random.Generator,
    ) -> None:
        self.shared, self.global_memory, self.clocks = shared, global_memory, clocks
        self.first_thread = first_row * LANES
        self.random = random
        threads = rows * LANES
        self.committed = np.zeros(threads, np.int32)
        self.waited_at = np.full(threads, NEVER, np.int32)
        """Groups that were committed at the thread's last wait."""
        self.waited_for = np.zeros(threads, np.int32)
        """Groups that the thread's last wait left pending."""
        self.flights: dict[int, Flight] = {}
        self.issued = 0

    # --- issue

    def issue(
        self,
        c: Cohort,
        destination: tuple[Array, Site, str | None],
        source: tuple[Array, Site, str | None],
        nbytes: int,
        kept: Array,
    ) -> None:
        """One copy per active lane: addresses, site and buffer of both sides, ``kept`` bytes."""
        to, site, name = destination
        addresses = np.ascontiguousarray(c.flat(to))
        if not addresses.size:
            return
        counts = self._counts(c, kept, nbytes, site)
        lanes = c.lanes()
        at, offsets = self.shared.locate(addresses, nbytes, lanes, site, name)
        window = self.shared.named(name)
        start, reads, source_name = source
        sources = c.flat(start)
        at = np.arange(addresses.size) if at is None else at
        counts = counts[at]
        for count in np.unique(counts).tolist():
            here = np.flatnonzero(counts == count)
            chosen, places = at[here], offsets[here]
            part = taken(lanes, chosen)
            if count == 0:
                self._start(window, places, nbytes, part, site, None, reads)
                continue
            located = self.global_memory.locate(
                np.ascontiguousarray(sources[chosen]), count, part, reads, source_name, nbytes
            )
            for found, some, begin in located:
                bytes_ = Source(found, begin, count)
                there = places if some is None else places[some]
                self._start(window, there, nbytes, taken(part, some), site, bytes_, reads)

    def _counts(self, c: Cohort, kept: Array, nbytes: int, site: Site) -> Ints:
        """Bytes that each active lane copies; more than a chunk is a fault."""
        wrong = kept > nbytes
        if wrong.any():
            lanes = np.broadcast_to(wrong, (c.warps, LANES)) & c.mask_array()
            if lanes.any():
                most = int(np.broadcast_to(kept, lanes.shape)[lanes][0])
                c.batch.lane_fault(
                    c,
                    "sim/copy-size",
                    f"`{site.what}` copies {most} bytes of a chunk of {nbytes}",
                    site.span,
                    lanes,
                    help=f"src_size is 0..{nbytes}; a negative one is a large unsigned number",
                )
        return np.minimum(c.flat(kept), np.uint32(nbytes))

    def _start(
        self,
        window: Window,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        source: Source | None,
        reads: Site,
    ) -> None:
        stamp = IN_FLIGHT + self.issued
        self.issued += 1
        numbers = lanes.threads - self.first_thread
        late = self._late(numbers.size)
        flight = Flight(
            stamp, lanes, numbers, self.committed[numbers], offsets, nbytes, source, ~late
        )
        self.flights[stamp] = flight
        airborne = Lanes(lanes.threads, lanes.cta, stamp)
        if source is not None:
            found, begin, size = source.window, source.offsets, source.nbytes
            self.global_memory.check_written(found, begin, size, lanes, reads, False)
            self.global_memory.watch_read(found, begin, size, airborne, reads, False)
        self.shared.watch_write(window, offsets, nbytes, airborne, site, False)
        window.mark_written(offsets, nbytes, False)
        if not late.all():
            self._move(flight if not late.any() else flight.some(~late))

    def _late(self, count: int) -> Bools:
        """The lanes whose bytes arrive at the wait: none, all, or some."""
        kind = int(self.random.integers(3))
        if kind == 0:
            return np.zeros(count, np.bool_)
        return np.ones(count, np.bool_) if kind == 1 else self.random.random(count) < 0.5

    # --- groups

    def commit(self, c: Cohort) -> None:
        """The open groups of the active lanes close."""
        self.committed[self._numbers(c)] += 1

    def wait(self, c: Cohort, pending: int | None) -> None:
        """The active lanes go on when all but their ``pending`` latest groups have arrived."""
        numbers = self._numbers(c)
        done = self.committed[numbers]
        self.waited_at[numbers] = done
        self.waited_for[numbers] = pending or 0
        if not self.flights:
            return
        below = np.zeros(self.committed.size, np.int32)
        below[numbers] = done + 1 if pending is None else done - pending
        stamps = list(self.flights)
        for index in self.random.permutation(len(stamps)).tolist():
            self._arrive(stamps[index], below)

    def under_way(self, threads: Ints) -> list[int]:
        """Flights that carry copies of these threads."""
        numbers = threads - self.first_thread
        return [s for s, flight in self.flights.items() if np.isin(flight.numbers, numbers).any()]

    def arrive_for(self, stamps: list[int], threads: Ints, agent: int, tick: int) -> None:
        """The threads' copies of these flights arrive: accesses of the agent at ``tick``."""
        numbers = threads - self.first_thread
        for stamp in stamps:
            if stamp in self.flights:
                covered = np.isin(self.flights[stamp].numbers, numbers)
                self._land(stamp, covered, agent, tick)

    def _arrive(self, stamp: int, below: Ints) -> None:
        """A flight's copies of groups less than ``below`` arrive."""
        flight = self.flights[stamp]
        self._land(stamp, flight.group < below[flight.numbers])

    def _land(
        self, stamp: int, covered: Bools, agent: int | None = None, tick: int = NEVER
    ) -> None:
        """The covered copies arrive: now and as their threads', or as the agent's at ``tick``."""
        if not covered.any():
            return
        flight = self.flights[stamp]
        if covered.all():
            del self.flights[stamp]
        else:
            self.flights[stamp], flight = flight.some(~covered), flight.some(covered)
        if not flight.moved.all():
            self._move(flight if not flight.moved.any() else flight.some(~flight.moved))
        now = self.clocks.tick[flight.lanes.cta // self.clocks.geometry.cluster_size]
        lanes = Lanes(flight.lanes.threads, flight.lanes.cta, now if agent is None else tick)
        to, memory = self.shared.window, self.global_memory
        self.shared.landed(to, flight.offsets, flight.nbytes, lanes, stamp, wrote=True, agent=agent)
        source = flight.source
        if source is not None:
            memory.landed(
                source.window, source.offsets, source.nbytes, lanes, stamp, wrote=False, agent=agent
            )

    def _move(self, flight: Flight) -> None:
        data: Bytes = np.zeros((flight.offsets.size, flight.nbytes), np.uint8)
        source = flight.source
        if source is not None:
            data[:, : source.nbytes] = source.window.gather(source.offsets, source.nbytes, False)
        self.shared.window.scatter(flight.offsets, data, False)

    def _numbers(self, c: Cohort) -> Ints:
        return c.lanes().threads - self.first_thread

    # --- words

    def explain(self, stamp: int, thread: int, toucher: int) -> tuple[str, str] | None:
        """How far the flight's copy by ``thread`` is, and what would have it arrived before
        ``toucher`` touches it. None for a flight of an earlier batch."""
        flight = self.flights.get(stamp)
        number = thread - self.first_thread
        at = None if flight is None else np.flatnonzero(flight.numbers == number)
        if flight is None or at is None or not at.size:
            return None
        wait = 'T.ptx["cp.async.wait_group"]({})'
        after = "" if thread == toucher else ", then T.cuda.cta_sync()"
        group, done = int(flight.group[at[0]]), int(self.committed[number])
        if group == done:
            help_ = f'T.ptx["cp.async.commit_group"](), then {wait.format(0)}{after}'
            return "its group is not committed, so no wait_group covers it", help_
        newer = done - group - 1
        help_ = f"{wait.format(newer)} in the thread that copies{after}"
        if self.waited_at[number] <= group:
            return "no wait has followed its commit_group", help_
        pending = int(self.waited_for[number])
        if pending > newer:
            help_ += (
                f", or {pending - newer} more commit_group before it: a group every round, empty or "
                "not, keeps the count"
            )
        return (
            f"its last wait left up to {pending} groups pending, this one among them; groups "
            f"committed after it: {newer}",
            help_,
        )
