"""Memory barrier objects of a batch: arrivals, transaction bytes, phases, and what they order.

An object lives in 8 bytes of shared memory between ``mbarrier.init`` and ``mbarrier.inval``. Its phase
ends when as many arrivals as expected have come and the transaction count is zero. An arrival releases,
a wait that succeeds acquires; the bytes that asynchronous copies bring are ordered by the barrier's
agent (``hazards``), whose tick grows with each phase.

Scopes are not looked at: an arrival or wait of ``.cta`` orders threads of other CTAs here, too.

Which arrivals belong to which phase must not depend on timing: a thread that arrives in a phase must
know that the arrivals of the phase before were made.

Not here: the copies that bring bytes (``transfers``), who runs while others wait (``schedule``), raw
instructions (``families.mbarrier``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from tilejit.sim.cohort import STOP
from tilejit.sim.faults import Site, place
from tilejit.sim.geometry import LANES, Bools, Ints
from tilejit.sim.hazards import Clock, Clocks
from tilejit.sim.late_arrivals import LateArrivals
from tilejit.sim.mbarrier_uses import Arriving, Uses
from tilejit.sim.memory import Lanes, taken

if TYPE_CHECKING:
    from tilejit.sim.cohort import Array, Cohort
    from tilejit.sim.faults import FaultLog
    from tilejit.sim.geometry import Geometry
    from tilejit.sim.shared_memory import SharedMemory

OBJECT_BYTES = 8
MAX_COUNT = (1 << 20) - 1
"""Of arrivals, and of transaction bytes either way."""
PHASE_SHIFT = 32
"""A state holds the running phase above the pending arrivals."""
SHOWN = 4
Doubt: TypeAlias = Literal["never", "once", "always"]
"""When a test says that a phase is not over although it is, and nothing has told the thread: it might have
been a moment ago. Never where the thread waits; once where it reads the answer, as the seed has it."""
DOUBT_CHANCE = 1 / 2


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Arrivals of some threads by one instruction, at ``stamp``."""

    threads: Ints
    stamp: int
    site: Site
    count: int


@dataclass(frozen=True, slots=True)
class Bytes:
    """Transaction bytes announced or brought by a thread's instruction."""

    nbytes: int
    thread: int
    site: Site


@dataclass(slots=True, eq=False)
class Barrier:
    """A live object. ``offset``: in the batch's shared window. ``phase``: phases that are over.

    ``first_tick``: the agent's tick in phase 0. ``tx_bytes``: announced and not yet there. ``flights``:
    copies in flight that will bring bytes to the running phase. ``released``: what the running phase's
    arrivals release; ``done``: what those of all phases before it did. ``deferred``: do arrivals come
    when short copies are there? ``known_to``: threads of the
    cluster that were found to know the initialisation. ``uses``: what must be over before its end.
    ``answered``: warps that have tested the phase that was over last.
    """

    offset: int
    cta: int
    cluster: int
    expected: int
    agent: int
    first_tick: int
    initialiser: int
    stamp: int
    site: Site
    known_to: Bools
    uses: Uses
    pending: int = 0
    phase: int = 0
    tx_bytes: int = 0
    flights: int = 0
    deferred: bool = False
    released: Clock | None = None
    done: Clock | None = None
    arrivals: list[Arrivals] = field(default_factory=list)
    previous: list[Arrivals] = field(default_factory=list)
    announced: list[Bytes] = field(default_factory=list)
    brought: list[Bytes] = field(default_factory=list)
    answered: set[int] = field(default_factory=set)

    @property
    def tick(self) -> int:
        return self.first_tick + self.phase

    @property
    def idle(self) -> bool:
        """Has nobody arrived in the running phase?"""
        return self.pending == self.expected and self.tx_bytes == 0 and not self.flights


@dataclass(frozen=True, slots=True, eq=False)
class Suspension:
    """A cohort held up until a phase is over. ``awaited``: per row of the batch, objects and the phases
    (states or parities) waited for; empty: any event may end it. ``give_up``: where the cohort goes on
    without the phase; None: nowhere."""

    site: Site | None
    awaited: dict[int, list[tuple[int, int]]]
    parity: bool
    give_up: int | None
    objects: frozenset[int] = field(init=False)
    """The objects awaited, by offset."""

    def __post_init__(self) -> None:
        objects = frozenset(offset for keys in self.awaited.values() for offset, _ in keys)
        object.__setattr__(self, "objects", objects)


class Mbarriers:
    """The objects of one batch. ``events`` counts what may end somebody's waiting, ``completed`` holds
    the objects whose phase ended since the scheduler looked."""

    def __init__(
        self,
        shared: SharedMemory,
        clocks: Clocks,
        geometry: Geometry,
        first_cta: int,
        faults: FaultLog,
    ) -> None:
        self.shared, self.clocks, self.geometry = shared, clocks, geometry
        self.first_cta = first_cta
        self.faults = faults
        self.hazards = shared.watch.hazards
        self.live: dict[int, Barrier] = {}
        self.over: dict[int, Site] = {}
        """Where objects were invalidated."""
        self.passed: dict[int, Bools] = {}
        """By row: lanes whose phase was over while the warp waits for others."""
        self.late = LateArrivals()
        self.events = 0
        self.completed: set[int] = set()

    # --- which object

    def _objects(
        self, c: Cohort, addresses: Array, site: Site, name: str | None
    ) -> Iterator[tuple[int, Ints, Lanes]]:
        """The objects' offsets, with the positions of their lanes among the active ones."""
        flat = np.ascontiguousarray(c.flat(addresses))
        if not flat.size:
            return
        lanes = c.lanes()
        at, offsets = self.shared.locate(flat, OBJECT_BYTES, lanes, site, name)
        positions = np.arange(flat.size) if at is None else at
        for offset in np.unique(offsets).tolist():
            chosen = positions[offsets == offset]
            yield offset, chosen, taken(lanes, chosen)

    def find(self, offset: int, threads: Ints, site: Site) -> Barrier | None:
        """The live object, for an instruction of ``threads``; reported where there is none."""
        barrier = self.live.get(offset)
        if barrier is None:
            self._absent(offset, threads, site)
            return None
        self._check_known(barrier, threads, site)
        own = threads % self.clocks.cluster_slots
        barrier.uses.note(own, int(self.clocks.tick[barrier.cluster]), site)
        return barrier

    def _absent(self, offset: int, threads: Ints, site: Site) -> None:
        ended = self.over.get(offset)
        state = "was invalidated" if ended else "no mbarrier.init has made one"
        notes = [("where", self.geometry.describe_thread(int(threads[0])))]
        if ended:
            notes.append(("inval", place(ended.span)))
            help_ = "synchronise the last use with the thread that invalidates, or init it again before this"
        else:
            help_ = "one thread executes mbarrier.init, then a barrier joins it with all who use the object"
        notes.append(("help", help_))
        self._fault(
            "sim/mbarrier-init", f"`{site.what}` at {self.name(offset)}, which is no mbarrier: {state}",
            site, notes, None if ended is None else ended.span, threads.size,
        )  # fmt: skip

    def _check_known(self, barrier: Barrier, threads: Ints, site: Site) -> None:
        """Somebody must order the initialisation before the use; of a published one, relaxed arrivals tell,
        too."""
        if not self.hazards:
            return
        own = threads % self.clocks.cluster_slots
        if barrier.known_to[own].all():
            return
        earlier = np.full(threads.size, barrier.initialiser)
        late = ~self.clocks.ordered(earlier, np.full(threads.size, barrier.stamp), threads)
        ends = self.clocks.known_ends(barrier.cluster, own, barrier.agent)
        late &= ends < barrier.first_tick
        barrier.known_to[own] = True
        if not late.any():
            return
        if self.shared.watch.ordered_by_memory:
            return
        first = int(threads[int(np.argmax(late))])
        self._fault(
            "sim/mbarrier-init",
            f"`{site.what}` at {self.name(barrier.offset)}, and nothing orders its initialisation "
            "before that",
            site,
            [
                ("where", self.geometry.describe_thread(first)),
                ("init", f"{self.geometry.describe_thread(barrier.initialiser)} at "
                 f"{place(barrier.site.span)}"),
                ("help", "T.cuda.cta_sync() after mbarrier.init; for other CTAs "
                 'T.ptx["fence.mbarrier_init.release.cluster"]() and T.cuda.cluster_sync()'),
            ],
            barrier.site.span,
            int(late.sum()),
        )  # fmt: skip

    def name(self, offset: int) -> str:
        """```full[1]` of CTA (0, 0, 0)``."""
        cta, inside = divmod(offset, max(1, self.shared.window_bytes))
        where = self.geometry.describe_cta(self.first_cta + cta)
        for buffer in self.shared.buffers.values():
            at = inside - buffer.offset_bytes
            if 0 <= at < buffer.nbytes:
                element = f"[{at // OBJECT_BYTES}]" if buffer.nbytes > OBJECT_BYTES else ""
                return f"`{buffer.name}{element}` of {where}"
        return f"shared offset {inside} of {where}"

    # --- life

    def initialise(
        self, c: Cohort, addresses: Array, site: Site, name: str | None, count: Array
    ) -> None:
        counts = c.flat(count).astype(np.int64)
        for offset, at, lanes in self._objects(c, addresses, site, name):
            thread, expected = int(lanes.threads[0]), int(counts[at[0]])
            held = self.live.get(offset)
            if held is not None or at.size > 1:
                self._initialised_twice(offset, held, lanes.threads, site)
            if not 1 <= expected <= MAX_COUNT:
                self._fault(
                    "sim/mbarrier-init", f"`{site.what}` of {self.name(offset)} with {expected} arrivals, "
                    f"expected 1..{MAX_COUNT}", site,
                    [("where", self.geometry.describe_thread(thread))], None,
                )  # fmt: skip
                continue
            self._make(offset, expected, taken(lanes, np.zeros(1, np.int64)), site, held)

    def _make(
        self, offset: int, expected: int, lanes: Lanes, site: Site, held: Barrier | None
    ) -> None:
        window, places = self.shared.window, np.array([offset])
        if held is None:
            self.shared.watch_write(window, places, OBJECT_BYTES, lanes, site, False)
        if window.objects is None:
            window.objects = np.zeros(window.data.size, np.bool_)
        window.objects[offset : offset + OBJECT_BYTES] = True
        cta = offset // self.shared.window_bytes
        cluster = cta // self.geometry.cluster_size
        agent = first = stamp = 0
        if self.hazards:
            agent = self.clocks.agent(
                cluster, ("mbarrier", offset), lambda t: self._explain(offset, t)
            )
            self.clocks.advance_agent(agent)
            first = self.clocks.agent_tick(agent)
            stamp = int(self.clocks.tick[cluster])
        made = Barrier(
            offset, cta, cluster, expected, agent, first, int(lanes.threads[0]), stamp, site,
            np.zeros(self.clocks.cluster_slots, np.bool_), Uses.of(self.clocks.cluster_slots),
            pending=expected,
        )  # fmt: skip
        self.live[offset] = made

    def _initialised_twice(
        self, offset: int, held: Barrier | None, threads: Ints, site: Site
    ) -> None:
        first = held.site if held is not None else site
        state = ""
        if held is not None and not held.idle:
            state = f", whose phase {held.phase} is under way: {self.missing(held)}"
        self._fault(
            "sim/mbarrier-init",
            f"`{site.what}` of {self.name(offset)}, which is a live mbarrier{state}"
            if held is not None
            else f"{threads.size} threads initialise {self.name(offset)} at once",
            site,
            [
                ("where", self.geometry.describe_thread(int(threads[0]))),
                ("init", place(first.span)),
                ("help", "one thread initialises it once; mbarrier.inval ends it"),
            ],
            first.span,
        )

    def invalidate(self, c: Cohort, addresses: Array, site: Site, name: str | None) -> None:
        for offset, _, lanes in self._objects(c, addresses, site, name):
            barrier = self.find(offset, lanes.threads, site)
            if barrier is None:
                continue
            self._check_unused(barrier, int(lanes.threads[0]), site)
            del self.live[offset]
            self.over[offset] = site
            window = self.shared.window
            assert window.objects is not None
            window.objects[offset : offset + OBJECT_BYTES] = False
            offsets = np.full(lanes.threads.size, offset)
            self.shared.watch_write(window, offsets, OBJECT_BYTES, lanes, site, False)

    def _check_unused(self, barrier: Barrier, thread: int, site: Site) -> None:
        """Nobody may operate on the object any more when the thread invalidates it."""
        under_way = ""
        if barrier.flights:
            under_way = _under_way(barrier, "that complete on it")
        elif barrier.tx_bytes or barrier.uses.late:
            under_way = f"its phase {barrier.phase} is under way: {self.missing(barrier)}"
        if under_way:
            self._fault(
                "sim/mbarrier-bytes" if barrier.flights else "sim/mbarrier-inval",
                f"`{site.what}` of {self.name(barrier.offset)} while {under_way}",
                site,
                [*self._byte_notes(barrier), ("help", "wait for the phase before mbarrier.inval")],
                None,
            )
        elif self.hazards and not self.shared.watch.ordered_by_memory:
            self._check_over(barrier, thread, site)

    def _check_over(self, barrier: Barrier, thread: int, site: Site) -> None:
        """By synchronisation, whatever the schedule."""
        cluster, uses = barrier.cluster, barrier.uses
        own = np.array([thread % self.clocks.cluster_slots])
        known = int(self.clocks.known_ends(cluster, own, barrier.agent)[0])
        ended = max(0, known - barrier.first_tick)
        late = uses.open_before(self.clocks, cluster, thread, ended)
        if late.size:
            other = int(late[0])
            earlier = self.shared.watch.sites[uses.sites[other % self.clocks.cluster_slots]]
            self._still_used(barrier, thread, other, site, earlier, late.size)
        elif uses.arriving is not None and uses.arriving.phase >= ended:
            coming = uses.arriving
            self._still_used(barrier, thread, coming.thread, site, coming.site, 1)

    def _still_used(
        self, barrier: Barrier, thread: int, other: int, site: Site, earlier: Site, times: int
    ) -> None:
        describe = self.geometry.describe_thread
        self._fault(
            "sim/mbarrier-inval",
            f"`{site.what}` of {self.name(barrier.offset)}, and nothing orders the last use of it by another "
            "thread, or by a copy, before that: it may still be waited for, or completed",
            site,
            [
                ("where", describe(thread)),
                ("other", f"`{earlier.what}` of {describe(other)} at {place(earlier.span)}"),
                ("help", "wait for the phase that counts that use (T.cuda.mbarrier_wait), then T.cuda.cta_sync() "
                 "(T.cuda.warp_sync(), where one warp alone uses it; T.cuda.cluster_sync(), where other CTAs "
                 "do) before mbarrier.inval"),
            ],
            earlier.span,
            times,
        )  # fmt: skip

    def publish(self, c: Cohort) -> None:
        """The objects that the active lanes initialised are visible to their clusters: what went on before is
        over."""
        if not self.hazards:
            return
        numbers = set(c.lanes().threads.tolist())
        for barrier in self.live.values():
            if barrier.initialiser in numbers:
                own = np.array([barrier.initialiser % self.clocks.cluster_slots])
                self.clocks.learn_end(barrier.cluster, own, barrier.agent, barrier.first_tick)

    # --- arrivals

    def arrive(
        self,
        c: Cohort,
        addresses: Array,
        site: Site,
        name: str | None,
        count: Array,
        expect_bytes: Array | None,
        drop: bool,
        release: bool,
    ) -> Array:
        """The states before each active lane's arrival, (warps, 32)."""
        counts = c.flat(count).astype(np.int64)
        nbytes = None if expect_bytes is None else c.flat(expect_bytes).astype(np.int64)
        states = np.zeros(counts.size, np.uint64)
        for offset, at, lanes in self._objects(c, addresses, site, name):
            barrier = self.find(offset, lanes.threads, site)
            if barrier is None:
                continue
            announced = None if nbytes is None else nbytes[at]
            states[at] = self._arrive(
                barrier, lanes.threads, counts[at], announced, site, drop, release
            )
        whole = np.zeros((c.warps, LANES), np.uint64)
        whole[c.mask_array()] = states
        return whole

    def _arrive(
        self,
        barrier: Barrier,
        threads: Ints,
        counts: Ints,
        nbytes: Ints | None,
        site: Site,
        drop: bool,
        release: bool,
        told: Clock | None = None,
    ) -> Ints:
        """Lane after lane, as many at a time as one phase takes. ``told``: what the arrivals carry, where
        that is not what the threads know now."""
        states = np.zeros(threads.size, np.uint64)
        start = 0
        while start < threads.size:
            summed = np.cumsum(counts[start:])
            taken_ = int(np.searchsorted(summed, barrier.pending, "right"))
            if taken_ == 0:
                self._too_many(barrier, threads[start:], site)
                break
            part = slice(start, start + taken_)
            before = barrier.pending - (summed[:taken_] - counts[part])
            states[part] = before.astype(np.uint64) | np.uint64(barrier.phase << PHASE_SHIFT)
            self._check_order(barrier, threads[part], site)
            if nbytes is not None:
                for thread, announced in zip(threads[part].tolist(), nbytes[part].tolist()):
                    self.announce(barrier, announced, thread, site)
            total = int(summed[taken_ - 1])
            barrier.pending -= total
            if drop:
                barrier.expected -= total
            self._release(barrier, threads[part], total, site, release, told)
            self.settle(barrier)
            start += taken_
        return states

    def _release(
        self,
        barrier: Barrier,
        threads: Ints,
        count: int,
        site: Site,
        release: bool,
        told: Clock | None,
    ) -> None:
        stamp = int(self.clocks.tick[barrier.cluster])
        barrier.arrivals.append(Arrivals(threads, stamp, site, count))
        own = threads % self.clocks.cluster_slots
        barrier.uses.counted(own, site, barrier.phase)
        if self.hazards:
            if told is None:
                carry = self.clocks.release if release else self.clocks.ends
                told = carry(barrier.cluster, own)
            barrier.released = told.joined(barrier.released)

    def _too_many(self, barrier: Barrier, threads: Ints, site: Site) -> None:
        self._fault(
            "sim/mbarrier-arrivals",
            f"an arrival at {self.name(barrier.offset)} beyond the {barrier.expected} that its phase "
            f"{barrier.phase} expects: {self.missing(barrier)}",
            site,
            [
                ("where", self.geometry.describe_thread(int(threads[0]))),
                *self._arrival_notes(barrier.arrivals),
                ("init", place(barrier.site.span)),
                ("help", "mbarrier.init's count is the number of arrivals of a phase; one elected thread "
                 "arrives for many"),
            ],
            barrier.site.span,
            threads.size,
        )  # fmt: skip

    def _check_order(self, barrier: Barrier, threads: Ints, site: Site) -> None:
        """Each thread must know that the last phase is over, or that its arrivals were made: else it may
        be counted there."""
        if not self.hazards or barrier.phase == 0 or barrier.deferred:
            return
        if self.shared.watch.ordered_by_memory:
            return
        own = threads % self.clocks.cluster_slots
        waited = self.clocks.known_ends(barrier.cluster, own, barrier.agent) >= barrier.tick
        for thread in threads[~waited].tolist():
            for earlier in barrier.previous:
                stamps = np.full(earlier.threads.size, earlier.stamp)
                late = ~self.clocks.ordered(
                    earlier.threads, stamps, np.full(earlier.threads.size, thread)
                )
                if late.any():
                    other = int(earlier.threads[int(np.argmax(late))])
                    self._unordered(barrier, thread, other, site, earlier.site)
                    return

    def _unordered(
        self, barrier: Barrier, thread: int, other: int, site: Site, earlier: Site
    ) -> None:
        describe = self.geometry.describe_thread
        self._fault(
            "sim/mbarrier-arrivals",
            f"an arrival in phase {barrier.phase} of {self.name(barrier.offset)}, and nothing orders it "
            f"after an arrival that completed the phase before: more arrive than the {barrier.expected} "
            "expected, and which phase counts whom depends on timing",
            site,
            [
                ("where", describe(thread)),
                ("other", f"{describe(other)} at {place(earlier.span)}"),
                ("init", place(barrier.site.span)),
                ("help", "mbarrier.init's count is the number of arrivals of a phase; one elected thread "
                 "arrives for many, or each waits for the phase before it arrives again"),
            ],
            earlier.span,
        )  # fmt: skip

    def arrive_on_copies(
        self, c: Cohort, addresses: Array, site: Site, name: str | None, counted: bool
    ) -> None:
        """Each active lane arrives when its short copies so far are there; not ``counted``: the phase
        expects one arrival more."""
        for offset, _, lanes in self._objects(c, addresses, site, name):
            barrier = self.find(offset, lanes.threads, site)
            if barrier is None:
                continue
            if not counted:
                barrier.pending += lanes.threads.size
            self._arrive_later(c, barrier, lanes.threads, site)

    def _arrive_later(self, c: Cohort, barrier: Barrier, threads: Ints, site: Site) -> None:
        copies = c.batch.copies
        barrier.deferred = True
        barrier.uses.late += 1
        stamps, phase = copies.under_way(threads), barrier.phase

        def arrive() -> None:
            if self.live.get(barrier.offset) is not barrier:
                return
            barrier.uses.late -= 1
            barrier.uses.arriving = Arriving(barrier.phase, int(threads[0]), site)
            tick = barrier.first_tick + phase
            copies.arrive_for(stamps, threads, barrier.agent, tick)
            if self.hazards:
                if (known := self.late.known(threads)) is not None:
                    barrier.released = known.joined(barrier.released)
                if stamps:
                    self.late.bring(threads, self.clocks.of_agent(barrier.agent, tick + 1))
            self._arrive(
                barrier,
                threads,
                np.ones(threads.size, np.int64),
                None,
                site,
                drop=False,
                release=False,
            )

        c.batch.transfers.completions.append(self.late.add(threads, arrive))

    def await_arrival(self, barrier: Barrier) -> None:
        """An arrival will come by itself."""
        barrier.uses.late += 1

    def arrive_by_itself(
        self, barrier: Barrier, thread: int, site: Site, told: Clock | None
    ) -> None:
        """The arrival of a thread's instruction that was awaited; it tells what ``told`` holds."""
        if self.live.get(barrier.offset) is not barrier:
            return
        barrier.uses.late -= 1
        barrier.uses.arriving = Arriving(barrier.phase, thread, site)
        one = np.ones(1, np.int64)
        self._arrive(
            barrier, np.array([thread]), one, None, site, drop=False, release=False, told=told
        )

    # --- transaction bytes

    def transactions(
        self,
        c: Cohort,
        addresses: Array,
        site: Site,
        name: str | None,
        nbytes: Array,
        expect: bool,
    ) -> None:
        sizes = c.flat(nbytes).astype(np.int64)
        for offset, at, lanes in self._objects(c, addresses, site, name):
            barrier = self.find(offset, lanes.threads, site)
            if barrier is None:
                continue
            for thread, size in zip(lanes.threads.tolist(), sizes[at].tolist()):
                if expect:
                    self.announce(barrier, size, thread, site)
                else:
                    self._bring(barrier, size, thread, site)
                barrier.uses.counted(lanes.threads % self.clocks.cluster_slots, site, barrier.phase)
                self.settle(barrier)

    def announce(self, barrier: Barrier, nbytes: int, thread: int, site: Site) -> None:
        """The running phase expects ``nbytes`` more."""
        barrier.tx_bytes += nbytes
        barrier.announced.append(Bytes(nbytes, thread, site))
        self._check_range(barrier, site)

    def _bring(self, barrier: Barrier, nbytes: int, thread: int, site: Site) -> None:
        barrier.tx_bytes -= nbytes
        barrier.brought.append(Bytes(nbytes, thread, site))
        self._check_range(barrier, site)

    def take_off(self, barrier: Barrier, thread: int, site: Site) -> None:
        """A copy is issued that will bring bytes to the running phase."""
        barrier.flights += 1
        barrier.uses.arriving = Arriving(barrier.phase, thread, site)
        barrier.uses.counted(np.array([thread % self.clocks.cluster_slots]), site, barrier.phase)

    def land(
        self,
        barrier: Barrier,
        phase: int,
        nbytes: int,
        thread: int,
        site: Site,
        ends: Clock | None,
    ) -> None:
        """A copy issued in ``phase`` has brought ``nbytes``; its issuer knew of ``ends``."""
        if self.live.get(barrier.offset) is not barrier or barrier.phase != phase:
            return  # reported when the phase ended, or the object, without it
        barrier.flights -= 1
        if ends is not None:
            barrier.released = ends.joined(barrier.released)
        self._bring(barrier, nbytes, thread, site)
        self.settle(barrier)

    def _check_range(self, barrier: Barrier, site: Site) -> None:
        if abs(barrier.tx_bytes) > MAX_COUNT:
            self._fault(
                "sim/mbarrier-bytes",
                f"the transaction count of {self.name(barrier.offset)} is {barrier.tx_bytes} bytes, "
                f"expected at most {MAX_COUNT} either way",
                site, self._byte_notes(barrier), None,
            )  # fmt: skip

    def settle(self, barrier: Barrier) -> None:
        """Ends the phase if nothing is missing."""
        self.events += 1
        if barrier.pending or barrier.tx_bytes:
            return
        if barrier.flights:
            self._overtaken(barrier)
        barrier.phase += 1
        barrier.pending, barrier.flights = barrier.expected, 0
        barrier.previous, barrier.arrivals = barrier.arrivals, []
        barrier.announced, barrier.brought = [], []
        barrier.answered = set()
        if barrier.released is not None:
            barrier.done, barrier.released = barrier.released.joined(barrier.done), None
        if self.hazards:
            self.clocks.advance_agent(barrier.agent)
        self.completed.add(barrier.offset)

    def _overtaken(self, barrier: Barrier) -> None:
        last = barrier.arrivals[-1].site if barrier.arrivals else barrier.site
        self._fault(
            "sim/mbarrier-bytes",
            f"phase {barrier.phase} of {self.name(barrier.offset)} is over while "
            f"{_under_way(barrier, 'issued to complete on it')}: it does not wait for their bytes",
            last,
            [
                *self._arrival_notes(barrier.arrivals),
                *self._byte_notes(barrier),
                ("help", "announce the bytes of all copies with an arrival of the phase "
                 "(mbarrier.arrive.expect_tx), before they are issued"),
            ],
            "overtaken",
        )  # fmt: skip

    def check_end(self) -> None:
        """The CTAs have ended: nobody may be owed bytes."""
        for barrier in self.live.values():
            if barrier.tx_bytes:
                self.bytes_differ(barrier)

    def bytes_differ(self, barrier: Barrier) -> None:
        """A phase whose bytes will never be complete."""
        announced = sum(b.nbytes for b in barrier.announced)
        brought = sum(b.nbytes for b in barrier.brought)
        latest = (barrier.announced or barrier.brought)[-1].site
        self._fault(
            "sim/mbarrier-bytes",
            f"phase {barrier.phase} of {self.name(barrier.offset)} cannot complete: {announced} bytes "
            f"were announced, {brought} have arrived and nothing is under way",
            latest, self._byte_notes(barrier), "differ",
        )  # fmt: skip

    # --- waiting

    def test(
        self,
        c: Cohort,
        addresses: Array,
        site: Site,
        name: str | None,
        phase: Array,
        parity: bool,
        acquire: bool,
        suspend: bool,
        doubt: Doubt,
    ) -> tuple[Bools, dict[int, list[tuple[int, int]]]]:
        """Per lane: is the phase over? And what the rows with lanes where it is not wait for."""
        values = c.flat(phase).astype(np.int64)
        rows, lane = np.nonzero(c.mask_array())
        over = np.ones(values.size, np.bool_)
        awaited: dict[int, list[tuple[int, int]]] = {}
        for offset, at, lanes in self._objects(c, addresses, site, name):
            barrier = self.find(offset, lanes.threads, site)
            if barrier is None:
                continue
            wanted = values[at]
            if parity:
                self._check_parity(barrier, wanted, lanes.threads, site)
                fresh = (wanted & 1) != (barrier.phase & 1)
            else:
                fresh = wanted >> PHASE_SHIFT < barrier.phase
            held = self._held(c, rows[at], lane[at]) if suspend and self.passed else None
            denied = np.zeros(at.size, np.bool_)
            if doubt != "never" and held is None and fresh.any():
                denied = fresh & self._denied(c, barrier, rows[at], lanes.threads, doubt)
            told = fresh & ~denied
            over[at] = told if held is None else told | held
            if told.any():
                self._learn(barrier, lanes.threads[told], acquire)
            failed = at[~over[at] & ~denied]
            if failed.size:
                keys = zip(c.rows[rows[failed]].tolist(), values[failed].tolist())
                for row, value in sorted(set(keys)):
                    awaited.setdefault(row, []).append((offset, value))
        whole = np.zeros((c.warps, LANES), np.bool_)
        whole[rows, lane] = over
        if suspend:
            self._remember(c, whole, awaited)
        return whole, awaited

    def _denied(
        self, c: Cohort, barrier: Barrier, rows: Ints, threads: Ints, doubt: Doubt
    ) -> Bools:
        """Per lane: is it told that the last phase is not over yet, as may be on the GPU?"""
        denied = np.zeros(threads.size, np.bool_)
        if not self.hazards or barrier.phase == 0 or self.shared.watch.ordered_by_memory:
            return denied
        for row in np.unique(c.rows[rows]).tolist():
            if doubt == "always" or (
                row not in barrier.answered and c.batch.random.random() < DOUBT_CHANCE
            ):
                denied |= c.rows[rows] == row
            barrier.answered.add(row)
        if denied.any():
            denied[denied] = ~self._certain(barrier, threads[denied])
        return denied

    def _certain(self, barrier: Barrier, threads: Ints) -> Bools:
        """Per thread: does synchronisation tell it that the last phase is over? That of a wait, or with
        all that completed the phase."""
        own = threads % self.clocks.cluster_slots
        certain: Bools = self.clocks.known_ends(barrier.cluster, own, barrier.agent) >= barrier.tick
        coming = barrier.uses.arriving
        if coming is not None and coming.phase >= barrier.phase - 1:
            return certain
        for at in np.flatnonzero(~certain).tolist():
            certain[at] = all(
                self.clocks.ordered(
                    a.threads,
                    np.full(a.threads.size, a.stamp),
                    np.full(a.threads.size, threads[at]),
                ).all()
                for a in barrier.previous
            )
        return certain

    def _held(self, c: Cohort, rows: Ints, lane: Ints) -> Bools:
        nobody = np.zeros(LANES, np.bool_)
        held = [self.passed.get(row, nobody) for row in c.rows[rows].tolist()]
        result: Bools = np.array(held)[np.arange(lane.size), lane]
        return result

    def _remember(self, c: Cohort, over: Bools, awaited: dict[int, list[tuple[int, int]]]) -> None:
        """Lanes that pass while their warp waits for others have passed, whatever follows."""
        if self.passed or (awaited and over.any()):
            for position, row in enumerate(c.rows.tolist()):
                if row in awaited and over[position].any():
                    self.passed[row] = over[position]
                else:
                    self.passed.pop(row, None)

    def forget_passed(self, rows: Ints) -> None:
        """The rows wait no longer, although their phases are not over."""
        for row in rows.tolist():
            self.passed.pop(row, None)

    def _check_parity(self, barrier: Barrier, wanted: Ints, threads: Ints, site: Site) -> None:
        wrong = np.flatnonzero((wanted < 0) | (wanted > 1))
        if wrong.size:
            self._fault(
                "sim/mbarrier-parity",
                f"`{site.what}` of {self.name(barrier.offset)} with parity {int(wanted[wrong[0]])}, "
                "expected 0 or 1",
                site,
                [
                    ("where", self.geometry.describe_thread(int(threads[wrong[0]]))),
                    ("help", "the parity of a phase is its number modulo 2"),
                ],
                None,
                wrong.size,
            )

    def _learn(self, barrier: Barrier, threads: Ints, acquire: bool) -> None:
        """The threads have seen that the phases before the running one are over."""
        if not self.hazards or barrier.phase == 0:
            return
        clocks, cluster, agent = self.clocks, barrier.cluster, barrier.agent
        own = threads % clocks.cluster_slots
        known = (clocks.known_ticks if acquire else clocks.known_ends)(cluster, own, agent)
        new = own[known < barrier.tick]
        if not new.size:
            return
        if barrier.done is not None:
            clocks.acquire(cluster, new, barrier.done if acquire else barrier.done.phases())
        clocks.learn_end(cluster, new, agent, barrier.tick)
        if acquire:
            clocks.learn(cluster, new, agent, barrier.tick)

    # --- words

    def missing(self, barrier: Barrier) -> str:
        """``1 of 2 arrivals and 128 bytes are missing``."""
        parts = []
        if barrier.pending:
            parts.append(f"{barrier.pending} of {barrier.expected} arrivals")
        if barrier.tx_bytes:
            more = "missing" if barrier.tx_bytes > 0 else "beyond the announced ones"
            return " and ".join([*parts, f"{abs(barrier.tx_bytes)} bytes"]) + f" are {more}"
        return " and ".join(parts) + " are missing" if parts else "nothing is missing"

    def describe_wait(
        self, offset: int, value: int, parity: bool
    ) -> tuple[str, list[tuple[str, str]]]:
        """What a waiter lacks, and notes about who arrived and brought bytes."""
        wanted = f"parity {value & 1}" if parity else f"phase {value >> PHASE_SHIFT}"
        barrier = self.live.get(offset)
        if barrier is None:
            return f"{wanted} of {self.name(offset)}, which is no mbarrier any more", []
        state = (
            f"{wanted} of {self.name(offset)}, whose running phase is {barrier.phase} (parity "
            f"{barrier.phase & 1}): {self.missing(barrier)}"
        )
        notes = self._arrival_notes(barrier.arrivals or barrier.previous)
        notes += self._byte_notes(barrier)
        return state, [(label, f"{self.name(offset)}: {text}") for label, text in notes]

    def _explain(self, offset: int, tick: int) -> tuple[str, str]:
        barrier = self.live.get(offset)
        if barrier is None or tick < barrier.first_tick:
            return (
                f"it completes on {self.name(offset)}, which was invalidated since",
                "wait for its phase before mbarrier.inval",
            )
        phase = tick - barrier.first_tick
        if phase == barrier.phase > 0 and not barrier.announced:
            return (
                f"it completes in phase {phase} of {self.name(offset)}, where nobody has announced bytes: phase "
                f"{phase - 1} was complete, without bytes of it, before it was issued",
                "announce its bytes with the arrival of the phase that it is to complete in, before it is issued: "
                'T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](T.ptx.SINK, …, bytes)',
            )
        state = (
            "is over, but the thread knows of nobody who waited for it"
            if phase < barrier.phase
            else f"is not over: {self.missing(barrier)}"
            if phase == barrier.phase
            else "has not begun"
        )
        return (
            f"it completes in phase {phase} of {self.name(offset)}, which {state}",
            f"T.cuda.mbarrier_wait(…, {phase & 1}) before the access",
        )

    def _arrival_notes(self, arrivals: list[Arrivals]) -> list[tuple[str, str]]:
        describe = self.geometry.describe_thread
        return [
            ("arrived", f"{a.count} by {describe(int(a.threads[0]))}"
             f"{' and others' if a.threads.size > 1 else ''} at {place(a.site.span)}")
            for a in arrivals[-SHOWN:]
        ]  # fmt: skip

    def _byte_notes(self, barrier: Barrier) -> list[tuple[str, str]]:
        notes: list[tuple[str, str]] = []
        for label, items in (("announced", barrier.announced), ("brought", barrier.brought)):
            if items:
                notes.append((label, f"{sum(b.nbytes for b in items)} bytes in all"))
            notes += [
                (label, f"{b.nbytes} bytes by {self.geometry.describe_thread(b.thread)} at "
                 f"{place(b.site.span)}")
                for b in items[-SHOWN:]
            ]  # fmt: skip
        return notes

    def _fault(
        self,
        code: str,
        message: str,
        site: Site,
        notes: list[tuple[str, str]],
        other: object,
        times: int = 1,
    ) -> None:
        self.faults.add(code, message, site.span, tuple(notes), other, times)


def _under_way(barrier: Barrier, which: str) -> str:
    """``1 copy issued to complete on it is under way``."""
    count = barrier.flights
    return f"{count} {'copy' if count == 1 else 'copies'} {which} {'is' if count == 1 else 'are'} under way"


def hold_up(c: Cohort, here: int, after: int, give_up: int | None) -> int:
    """Where the cohort goes on when its wait at ``here`` is over in all warps: ``after``. Otherwise the
    warps part, and those that wait try again."""
    held, c.held = c.held, None
    if held is None:
        return after
    failed = np.array([row in held.awaited for row in c.rows.tolist()])
    waiting = Suspension(held.site, held.awaited, held.parity, give_up)
    if failed.all():
        c.pc, c.suspension = here, waiting
        return STOP
    for chosen, pc, suspension in ((~failed, after, None), (failed, here, waiting)):
        part = c.select(np.flatnonzero(chosen))
        part.pc, part.suspension = pc, suspension
        c.batch.arrivals.append(part)
    c.rows = c.rows[:0]
    return STOP


def wait_for_phase(
    c: Cohort, addresses: Array, site: Site, name: str | None, parity: Array, acquire: bool
) -> None:
    """``mbarrier_wait``: notes the warps that have to wait, for ``hold_up``."""
    _, awaited = c.batch.mbarriers.test(
        c, addresses, site, name, parity, True, acquire, True, "never"
    )
    c.held = Suspension(site, awaited, True, None) if awaited else None
