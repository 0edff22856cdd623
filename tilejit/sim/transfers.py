"""Bulk transfers in flight: bytes that the asynchronous proxy moves, and what tells that they are there.

Issuing a transfer checks it and notes its accesses in the history as those of an agent: the mbarrier that
it completes on, or the issuing thread's bulk groups, whose reads and writes are two agents because
``wait_group.read`` covers the reads alone. Its bytes are read and written at once, later, or part by part,
as the seed has it; it completes some time before nothing else can run.

A CTA may not end before the transfers that read its shared memory, write it or complete on one of its
barriers are known to be over.

Not here: phases (``mbarrier``), short copies (``copies``), the history (``hazards``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, OFFSET_MASK, RANK_SHIFT, Bools, Ints
from tilejit.sim.global_memory import GlobalMemory
from tilejit.sim.hazards import MAX_GRANULE_BYTES, Asynchronous, Clock, Clocks
from tilejit.sim.mbarrier import Barrier, Mbarriers
from tilejit.sim.memory import Bytes, Lanes, Memory, Window, is_dense
from tilejit.sim.shared_memory import SharedMemory
from tilejit.tile.family import NO_SOURCE, Chunks, Transfer

if TYPE_CHECKING:
    from tilejit.sim.cohort import Cohort

MOMENTS = ("at issue", "read at issue", "at completion", "in parts")


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side of a transfer as the program has it: what it is called in messages, and the buffer that
    its address certainly lies in."""

    site: Site
    name: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Chunks ``which`` of a transfer at ``offsets`` of a window."""

    memory: Memory
    window: Window
    which: Ints
    offsets: Ints

    def some(self, chosen: Bools) -> Place:
        """Those of the chosen chunks; ``chosen`` is by chunk of the transfer."""
        here = chosen[self.which]
        return Place(self.memory, self.window, self.which[here], self.offsets[here])


@dataclass(slots=True, eq=False)
class Flight:
    """A transfer whose completion is still to come. ``data``: the bytes that were read. ``unread`` and
    ``unwritten``: chunks to read and to write. ``ends``: phases that its issuer knew to be over."""

    transfer: Transfer
    sources: list[Place]
    destinations: list[Place]
    data: Bytes
    unread: Bools
    unwritten: Bools
    thread: int
    site: Site
    barrier: Barrier | None
    phase: int
    group: int
    ends: Clock | None


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """What must be over before a CTA ends: an agent's tick, and who issued what."""

    tick: int
    cluster: int
    thread: int
    site: Site


Completion: TypeAlias = Callable[[], None]


class Transfers:
    """The transfers of one batch, and how far each of its threads has committed bulk groups."""

    def __init__(
        self,
        shared: SharedMemory,
        global_memory: GlobalMemory,
        clocks: Clocks,
        mbarriers: Mbarriers,
        first_row: int,
        rows: int,
        random: np.random.Generator,
    ) -> None:
        self.shared, self.global_memory, self.clocks = shared, global_memory, clocks
        self.mbarriers = mbarriers
        self.geometry = clocks.geometry
        self.faults = shared.faults
        self.hazards = shared.watch.hazards
        self.first_thread = first_row * LANES
        self.random = random
        self.flights: list[Flight] = []
        self.committed = np.zeros(rows * LANES, np.int32)
        self.bulk_threads: set[int] = set()
        """Threads, counted in the batch, that have issued into a bulk group."""
        self.claims: dict[int, dict[int, Claim]] = {}
        """By CTA of the batch and agent."""
        self.completions: list[Completion] = []
        """What else completes by itself: arrivals that wait for short copies."""

    @property
    def under_way(self) -> bool:
        return bool(self.flights or self.completions)

    # --- issue

    def issue(
        self, c: Cohort, row: int, lane: int, transfer: Transfer, dst: Side, src: Side
    ) -> None:
        """One transfer of the thread (row, lane) of the cohort."""
        thread = int(c.thread_numbers()[row, lane])
        cta = thread // self.geometry.slots - self.clocks.first_cta
        barrier = None
        if transfer.barrier is not None:
            barrier = self.barrier(transfer.barrier, thread, cta, dst.site)
            if barrier is None:
                return
        sources = self.locate(transfer.src, thread, cta, src)
        destinations = self.locate(transfer.dst, thread, cta, dst)
        number = thread - self.first_thread
        flight = self._flight(transfer, sources, destinations, thread, dst.site, barrier)
        reads, writes = self._accesses(flight, number, transfer)
        self._note(flight, src.site, dst.site, reads, writes)
        if reads is not None:
            self._claim(flight, cta, reads, writes)
        if barrier is not None:
            self.mbarriers.take_off(barrier, thread, dst.site)
        else:
            self.bulk_threads.add(number)
        self._begin(flight)
        self.flights.append(flight)

    def barrier(self, address: int, thread: int, cta: int, site: Site) -> Barrier | None:
        """The object at a cluster address, as a thread of ``cta`` names it; reported where there is none."""
        place_ = self._shared_place(np.array([address]), cta)
        offset = int(place_[0])
        if offset < 0 or offset % 8:
            self.faults.add(
                "sim/out-of-bounds",
                f"`{site.what}` completes on an mbarrier at shared address 0x{address:x}, which is none",
                site.span,
                (("where", self.geometry.describe_thread(thread)),),
                "mbarrier",
            )
            return None
        self._check_there(offset // self.shared.window_bytes, thread, site)
        return self.mbarriers.find(offset, np.array([thread]), site)

    def _shared_place(self, addresses: Ints, cta: int) -> Ints:
        """Offsets in the batch's window of cluster addresses, as a thread of ``cta`` names them; -1
        where there is no such CTA or place."""
        size = self.geometry.cluster_size
        rank, inside = addresses >> RANK_SHIFT, addresses & OFFSET_MASK
        first = cta - cta % size
        sound = (rank >= 0) & (rank < size) & (inside < self.shared.window_bytes)
        return np.where(sound, (first + rank) * self.shared.window_bytes + inside, -1)

    def _check_there(self, cta: int, thread: int, site: Site) -> None:
        """The CTA (of the batch) that the thread's transfer reaches must have started, and not exited."""
        alive = self.shared.alive
        slots = self.geometry.slots
        own = thread // slots - self.clocks.first_cta
        if cta != own:
            rank = cta % self.geometry.cluster_size
            self.shared.check_started(self._lanes(thread, own, 1), rank, site)
        if alive is None or alive.reshape(-1)[cta * slots : (cta + 1) * slots].any():
            return
        self.faults.add(
            "sim/cluster-exited",
            f"`{site.what}` reaches shared memory of {self.geometry.describe_cta(self.clocks.first_cta + cta)}, "
            "which has exited",
            site.span,
            (
                ("where", self.geometry.describe_thread(thread)),
                ("help", "T.cuda.cluster_sync() before the end keeps every CTA until the others are done"),
            ),
            "exited",
        )  # fmt: skip

    def locate(self, chunks: Chunks, thread: int, cta: int, side: Side) -> list[Place]:
        """Where the chunks are; those that are not sound are reported and left out."""
        which = np.flatnonzero(chunks.addresses != NO_SOURCE)
        if not which.size:
            return []
        addresses = np.ascontiguousarray(chunks.addresses[which])
        lanes = self._lanes(thread, cta, which.size)
        align = min(MAX_GRANULE_BYTES, chunks.nbytes & -chunks.nbytes)
        if chunks.space == "global":
            found = self.global_memory.locate(
                addresses, chunks.nbytes, lanes, side.site, side.name, align
            )
            return [
                Place(self.global_memory, window, which if at is None else which[at], offsets)
                for window, at, offsets in found
            ]
        wrong = self.shared.misaligned(addresses, align, lanes, side.site)
        offsets = self._shared_place(addresses, cta)
        outside = self._outside(offsets, chunks.nbytes)
        if outside.any():
            at = np.flatnonzero(outside)
            what = (
                f"{side.site.verb} {chunks.nbytes} bytes at shared address "
                f"0x{int(addresses[at[0]]):x}, which no buffer holds"
            )
            self.shared.report("sim/out-of-bounds", what, side.site, lanes, at)
        sound = ~outside if wrong is None else ~(outside | wrong)
        at = np.flatnonzero(sound)
        if not at.size:
            return []
        for target in np.unique(offsets[at] // self.shared.window_bytes).tolist():
            self._check_there(target, thread, side.site)
        return [Place(self.shared, self.shared.named(side.name), which[at], offsets[at])]

    def _outside(self, offsets: Ints, nbytes: int) -> Bools:
        """Per chunk: is a byte of it outside every shared buffer?"""
        size = self.shared.window_bytes
        inside = offsets % size
        bad: Bools = (offsets < 0) | (inside + nbytes > size)
        at = np.flatnonzero(~bad)
        bad[at] = ~self.shared.owns(inside[at], nbytes)
        return bad

    def _lanes(self, thread: int, cta: int, count: int) -> Lanes:
        stamp = int(self.clocks.tick[cta // self.geometry.cluster_size])
        return Lanes(np.full(count, thread), np.full(count, cta), stamp)

    def _flight(
        self,
        transfer: Transfer,
        sources: list[Place],
        destinations: list[Place],
        thread: int,
        site: Site,
        barrier: Barrier | None,
    ) -> Flight:
        count, nbytes = transfer.dst.addresses.size, transfer.dst.nbytes
        data: Bytes = np.zeros((count, nbytes), np.uint8)
        if transfer.fill is not None:
            data[transfer.src.addresses == NO_SOURCE] = transfer.fill
        unread, unwritten = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        for part in sources:
            unread[part.which] = True
        for part in destinations:
            unwritten[part.which] = True
        # A chunk whose source is at fault is not written either.
        unwritten &= unread | (transfer.src.addresses == NO_SOURCE)
        phase = 0 if barrier is None else barrier.phase
        group = int(self.committed[thread - self.first_thread])
        ends = None
        if barrier is not None and self.hazards:
            own = np.array([thread % self.clocks.cluster_slots])
            ends = self.clocks.ends(barrier.cluster, own)
        return Flight(
            transfer, sources, destinations, data, unread, unwritten, thread, site, barrier, phase, group,
            ends,
        )  # fmt: skip

    # --- history

    def _accesses(
        self, flight: Flight, number: int, transfer: Transfer
    ) -> tuple[tuple[int, int] | None, tuple[int, int]]:
        """Agent and tick of the reads and of the writes; None without a history."""
        if not self.hazards:
            return None, (0, 0)
        if flight.barrier is not None:
            both = flight.barrier.agent, flight.barrier.tick
            return both, both
        return (self._group_agent(number, "reads"), flight.group), (
            self._group_agent(number, "writes"),
            flight.group,
        )

    def _group_agent(self, number: int, side: str) -> int:
        cluster = number // self.clocks.cluster_slots
        return self.clocks.agent(
            cluster, ("bulk", side, number), lambda tick: self._explain(number, side, tick)
        )

    def _note(
        self,
        flight: Flight,
        reads: Site,
        writes: Site,
        read: tuple[int, int] | None,
        write: tuple[int, int],
    ) -> None:
        cta = flight.thread // self.geometry.slots - self.clocks.first_cta
        for part in flight.sources:
            lanes, size = (
                self._lanes(flight.thread, cta, part.which.size),
                flight.transfer.src.nbytes,
            )
            dense = is_dense(part.offsets, size)
            part.memory.check_written(part.window, part.offsets, size, lanes, reads, dense)
            access = self._asynchronous(part, reads, read, flight)
            part.memory.watch_read(part.window, part.offsets, size, lanes, reads, dense, access)
        for part in flight.destinations:
            lanes, size = (
                self._lanes(flight.thread, cta, part.which.size),
                flight.transfer.dst.nbytes,
            )
            dense = is_dense(part.offsets, size)
            if flight.transfer.combine is not None:
                part.memory.check_written(part.window, part.offsets, size, lanes, writes, dense)
            access = self._asynchronous(part, writes, None if read is None else write, flight)
            part.memory.watch_write(part.window, part.offsets, size, lanes, writes, dense, access)
            part.window.mark_written(part.offsets, size, dense)

    @staticmethod
    def _asynchronous(
        part: Place, site: Site, stamp: tuple[int, int] | None, flight: Flight
    ) -> Asynchronous | None:
        if stamp is None:
            return None
        space = "shared" if isinstance(part.memory, SharedMemory) else "global"
        fenced = flight.transfer.proxy == "async"
        report = part.memory.unfenced(part.window, site, space) if fenced else None
        return Asynchronous(*stamp, space, report)

    def _claim(
        self, flight: Flight, cta: int, read: tuple[int, int], write: tuple[int, int]
    ) -> None:
        """The CTAs whose shared memory the transfer uses must outlive it."""
        cluster = cta // self.geometry.cluster_size
        uses = [(part, read) for part in flight.sources]
        uses += [(part, write) for part in flight.destinations]
        targets = {
            (int(offset), agent)
            for part, agent in uses
            if part.memory is self.shared
            for offset in np.unique(part.offsets // self.shared.window_bytes)
        }
        if flight.barrier is not None:
            targets.add((flight.barrier.cta, write))
        for target, (agent, tick) in targets:
            held = self.claims.setdefault(target, {})
            held[agent] = Claim(tick, cluster, flight.thread, flight.site)

    # --- movement

    def _begin(self, flight: Flight) -> None:
        moment = MOMENTS[int(self.random.integers(len(MOMENTS)))]
        everything = np.ones(flight.unread.size, np.bool_)
        if moment == "at issue":
            self._move(flight, everything)
        elif moment == "read at issue":
            self._read(flight, everything)
        elif moment == "in parts":
            self._move(flight, self.random.random(flight.unread.size) < 0.5)

    def _read(self, flight: Flight, chosen: Bools) -> None:
        now = flight.unread & chosen
        if not now.any():
            return
        nbytes, convert = flight.transfer.src.nbytes, flight.transfer.convert
        for part in flight.sources:
            some = part.some(now)
            if some.which.size:
                data = some.window.gather(some.offsets, nbytes, is_dense(some.offsets, nbytes))
                flight.data[some.which] = data if convert is None else convert(data)
        flight.unread &= ~chosen

    def _move(self, flight: Flight, chosen: Bools) -> None:
        self._read(flight, chosen)
        now = flight.unwritten & chosen
        if not now.any():
            return
        nbytes, combine = flight.transfer.dst.nbytes, flight.transfer.combine
        for part in flight.destinations:
            some = part.some(now)
            if not some.which.size:
                continue
            dense = is_dense(some.offsets, nbytes)
            data = flight.data[some.which]
            if combine is not None:
                data = combine(some.window.gather(some.offsets, nbytes, dense), data)
            some.window.scatter(some.offsets, data, dense)
        flight.unwritten &= ~chosen

    # --- completion

    def complete_one(self) -> None:
        """Something under way is over."""
        index = int(self.random.integers(len(self.flights) + len(self.completions)))
        if index < len(self.flights):
            self._complete(self.flights.pop(index))
        else:
            self.completions.pop(index - len(self.flights))()
        self.mbarriers.events += 1

    def _complete(self, flight: Flight) -> None:
        self._move(flight, np.ones(flight.unread.size, np.bool_))
        if flight.barrier is not None:
            self.mbarriers.land(
                flight.barrier, flight.phase, flight.transfer.tx_bytes, flight.thread, flight.site,
                flight.ends,
            )  # fmt: skip

    # --- bulk groups

    def commit(self, c: Cohort) -> None:
        self.committed[c.lanes().threads - self.first_thread] += 1

    def wait(self, c: Cohort, pending: int, read: bool) -> None:
        """The active lanes go on when all but their ``pending`` latest groups are over, or read."""
        numbers = set((c.lanes().threads - self.first_thread).tolist())
        for number in sorted(numbers & self.bulk_threads):
            self._wait(number, int(self.committed[number]) - pending, read)

    def _wait(self, number: int, below: int, read: bool) -> None:
        thread = number + self.first_thread
        for flight in [f for f in self.flights if f.barrier is None and f.thread == thread]:
            if flight.group >= below:
                continue
            if read:
                self._read(flight, np.ones(flight.unread.size, np.bool_))
            else:
                self.flights.remove(flight)
                self._complete(flight)
        if not self.hazards or below <= 0:
            return
        own = np.array([number % self.clocks.cluster_slots])
        cluster = number // self.clocks.cluster_slots
        for side in ("reads",) if read else ("reads", "writes"):
            self.clocks.learn(cluster, own, self._group_agent(number, side), below)

    # --- the end

    def check_exit(self, ctas: Ints) -> None:
        """All threads of these CTAs have exited: what used their shared memory must be over."""
        slots, size = self.geometry.slots, self.geometry.cluster_size
        for cta in ctas.tolist():
            claims = self.claims.pop(cta, {})
            threads = np.arange(cta % size * slots, (cta % size + 1) * slots)
            for agent, claim in claims.items():
                known = self.clocks.known_ticks(claim.cluster, threads, agent)
                if int(known.max()) <= claim.tick:
                    self._outlived(cta, agent, claim)

    def _outlived(self, cta: int, agent: int, claim: Claim) -> None:
        if self.shared.watch.ordered_by_memory:
            return
        state, repair = self.clocks.explanations[agent](claim.tick)
        self.faults.add(
            "sim/in-flight",
            f"{self.geometry.describe_cta(self.clocks.first_cta + cta)} ends while "
            f"`{claim.site.what}`, which uses its shared memory, may still be under way: none of its threads "
            "knows that it is over",
            claim.site.span,
            (
                ("where", f"issued by {self.geometry.describe_thread(claim.thread)}"),
                ("state", state),
                ("help", f"{repair}; in a cluster T.cuda.cluster_sync() before the end"),
            ),
            "exit",
        )

    def finish(self) -> None:
        """All threads have exited: the rest arrives."""
        while self.under_way:
            self.complete_one()
        self.mbarriers.check_end()

    # --- words

    def _explain(self, number: int, side: str, tick: int) -> tuple[str, str]:
        """How far a thread's bulk group ``tick`` is, and what would have waited for it."""
        thread = self.geometry.describe_thread(number + self.first_thread)
        done = int(self.committed[number])
        wait = 'T.ptx["cp.async.bulk.wait_group{}"]({})'
        form = wait.format(".read" if side == "reads" else "", max(0, done - tick - 1))
        if tick >= done:
            return (
                f"the bulk group of {thread} is not committed, so that no wait_group covers it",
                f'T.ptx["cp.async.bulk.commit_group"](), then {form}',
            )
        return (
            f"no wait of {thread} that others know of covers its bulk group",
            f"{form} in the thread that issues, then a barrier with the others",
        )
