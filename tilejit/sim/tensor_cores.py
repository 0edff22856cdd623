"""Operations of tensor cores in flight: mma, cp and shift, and the commits that tell of their end.

An operation is checked when it is issued: shared memory is read through the asynchronous proxy, by an agent
of the issuing thread (``hazards``) whose tick is the operation's number; for cells see ``tensor_order``. It
runs at once, or later by itself, or because something waits for it: an operation that runs in order after
it, or a commit. A commit arrives at its mbarriers some time after all operations before it.

A CTA may not end before the operations that use its memory are known to be over.

Not here: phases (``mbarrier``), what an operation computes (families).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tilejit.sim.faults import Site, place
from tilejit.sim.geometry import RANK_SHIFT, Ints
from tilejit.sim.hazards import Asynchronous, Clock
from tilejit.sim.mbarrier import Barrier
from tilejit.sim.memory import Lanes, is_dense
from tilejit.sim.tensor_memory import TensorMemory, Words
from tilejit.sim.tensor_order import Access, Commit, Stream, in_order
from tilejit.sim.transfers import Place, Side
from tilejit.tile.family import Chunks, SharedBlocks, TensorCells, TensorOperation, TensorSource

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch

BLOCK_BYTES = 16
AT_ONCE_CHANCE = 1 / 3
"""That an operation runs when it is issued."""


@dataclass(frozen=True, slots=True, eq=False)
class CellPart:
    """Cells of a source or destination: ``at`` are places in the tensor memory of ``cta``."""

    cta: int
    at: Ints
    mask: int | Words


@dataclass(frozen=True, slots=True, eq=False)
class BlockPart:
    """Blocks of a source, of which so many there are."""

    places: list[Place]
    count: int


Part = CellPart | BlockPart


@dataclass(slots=True, eq=False)
class Flight:
    """An operation that may not have run yet. ``after``: those that run before it."""

    operation: TensorOperation
    stream: Stream
    sources: list[Part]
    destinations: list[CellPart]
    after: list[Flight] = field(default_factory=list)
    ran: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """Arrivals to come: of ``commit``, when ``flights`` have run. ``told``: what they tell."""

    commit: Commit
    thread: int
    barriers: list[Barrier]
    flights: list[Flight]
    told: Clock | None


class TensorCores:
    """The operations of one batch. ``flights``: those that have not run, in the order of issue; ``signals``,
    by thread: commits whose arrivals are to come; ``uses``, by CTA: the last operation of each stream that
    uses its memory."""

    def __init__(self, batch: Batch, memory: TensorMemory) -> None:
        self.batch, self.memory = batch, memory
        self.order, self.random = memory.order, memory.random
        self.geometry, self.clocks = batch.geometry, batch.clocks
        self.hazards = memory.hazards
        self.flights: list[Flight] = []
        self.signals: dict[int, list[Signal]] = {}
        self.uses: dict[int, dict[Stream, Access]] = {}

    # --- issue

    def issue(
        self,
        thread: int,
        operation: TensorOperation,
        reads: Sequence[Side],
        writes: Sequence[Side],
    ) -> None:
        """One operation of a thread of the launch. ``reads`` and ``writes``: what messages call its sources
        and destinations."""
        first = writes[0].site
        self.batch.tensor_allocation.check_group(operation.pair, first)
        sources = [self._source(thread, s, reads[i]) for i, s in enumerate(operation.sources)]
        targets = [self._cells(thread, d, writes[i]) for i, d in enumerate(operation.destinations)]
        if None in sources or None in targets:
            return  # reported
        parts = [part for part in sources if part is not None]
        destinations = [part for part in targets if part is not None]
        stream = self.order.of_thread(thread)
        stamp = self.order.next_operation(stream)
        number = self.memory.number(Access(stream, stamp, first, operation))
        for i, part in enumerate(parts):
            self._note_read(thread, part, reads[i], Access(stream, stamp, reads[i].site, operation))
        for i, part in enumerate(destinations):
            self.memory.note_write(part.cta, part.at, part.mask, number, writes[i].name)
        self._use(self.memory.accesses[number], [*parts, *destinations])
        self._begin(Flight(operation, stream, parts, destinations))

    def _cta(self, thread: int) -> int:
        return thread // self.geometry.slots - self.clocks.first_cta

    def _of_rank(self, thread: int, rank: int) -> int:
        """The CTA of the batch with a rank in the thread's cluster."""
        own = self._cta(thread)
        return own - own % self.geometry.cluster_size + rank

    def _source(self, thread: int, source: TensorSource, side: Side) -> Part | None:
        if isinstance(source, TensorCells):
            return self._cells(thread, source, side)
        return self._blocks(thread, source, side)

    def _cells(self, thread: int, cells: TensorCells, side: Side) -> CellPart | None:
        cta = self._of_rank(thread, cells.cta)
        lanes, columns = cells.lanes.reshape(-1), cells.columns.reshape(-1)
        who = self.geometry.describe_thread(thread)
        at = self.memory.sound(cta, lanes, columns, who, side.site, side.name)
        return None if at is None else CellPart(cta, at, cells.mask)

    def _blocks(self, thread: int, blocks: SharedBlocks, side: Side) -> BlockPart | None:
        addresses = blocks.addresses.reshape(-1) | blocks.cta << RANK_SHIFT
        chunks = Chunks(blocks.operand, "shared", addresses, BLOCK_BYTES)
        places = self.batch.transfers.locate(chunks, thread, self._cta(thread), side)
        found = sum(part.which.size for part in places)
        return BlockPart(places, addresses.size) if found == addresses.size else None

    def _note_read(self, thread: int, part: Part, side: Side, access: Access) -> None:
        """A source is read, some time from now on."""
        if isinstance(part, CellPart):
            number = self.memory.number(access)
            self.memory.check_written(part.cta, part.at, part.mask, number, side.name)
            self.memory.note_read(part.cta, part.at, number, side.name)
            return
        stamp = int(self.clocks.tick[access.stream.cluster])
        for found in part.places:
            lanes = Lanes(
                np.full(found.which.size, thread),
                np.full(found.which.size, self._cta(thread)),
                stamp,
            )
            window, offsets, memory = found.window, found.offsets, found.memory
            dense = is_dense(offsets, BLOCK_BYTES)
            memory.check_written(window, offsets, BLOCK_BYTES, lanes, side.site, dense)
            if self.hazards:
                late = Asynchronous(
                    self._agent(access.stream),
                    access.stamp,
                    "shared",
                    memory.unfenced(window, side.site, "shared"),
                )
                memory.watch_read(window, offsets, BLOCK_BYTES, lanes, side.site, dense, late)

    def _agent(self, stream: Stream) -> int:
        """The agent that reads shared memory for the stream's operations."""
        key = "tensor", int(stream.members[0])
        return self.clocks.agent(stream.cluster, key, lambda tick: self._explain(stream, tick))

    def _explain(self, stream: Stream, stamp: int) -> tuple[str, str]:
        """How far an operation is that reads shared memory, and what would wait for it."""
        commit = stream.committed(stamp)
        if commit is None or not commit.objects:
            return (
                f"no tcgen05.commit of {self.order.who(stream)} follows it",
                "tcgen05.commit after it, then T.cuda.mbarrier_wait(…) before the access",
            )
        name = self.batch.mbarriers.name(commit.objects[0])
        return (
            f"its commit at {place(commit.site.span)} completes a phase of {name}, which the thread does not "
            "know to be over",
            "T.cuda.mbarrier_wait(…) for the phase before the access",
        )

    def _use(self, access: Access, parts: Sequence[Part]) -> None:
        window = max(1, self.batch.shared.window_bytes)
        for part in parts:
            if isinstance(part, CellPart):
                ctas = [part.cta]
            else:
                ctas = [int(n) for p in part.places for n in np.unique(p.offsets // window)]
            for cta in ctas:
                self.uses.setdefault(cta, {})[access.stream] = access

    def _begin(self, flight: Flight) -> None:
        self.flights = [f for f in self.flights if not f.ran]
        seen: set[Any] = set()
        for earlier in reversed(self.flights):
            operation = earlier.operation
            if not in_order(operation, flight.operation):
                continue
            # Those of one pipe run in order themselves: the last stands for all.
            pipe = operation.kind, operation.pair, operation.pipe
            if operation.kind != "mma" or pipe not in seen:
                flight.after.append(earlier)
                seen.add(pipe)
        self.flights.append(flight)
        if self.random.random() < AT_ONCE_CHANCE:
            self._run(flight)
        else:
            self.batch.transfers.completions.append(lambda: self._run(flight))

    # --- running

    def _run(self, flight: Flight) -> None:
        """The operation runs, after those that it runs after."""
        stack = [flight]
        while stack:
            last = stack[-1]
            waiting = [f for f in last.after if not f.ran]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            if not last.ran:
                self._compute(last)

    def _compute(self, flight: Flight) -> None:
        flight.ran, flight.after = True, []
        operation = flight.operation
        results = operation.run([self._gather(part) for part in flight.sources])
        for part, result in zip(flight.destinations, results):
            self.memory.put(part.cta, part.at, result.reshape(-1), part.mask)

    def _gather(self, part: Part) -> npt.NDArray[Any]:
        if isinstance(part, CellPart):
            held: Words = self.memory.cells(part.cta).data[part.at]
            return held
        data = np.zeros((part.count, BLOCK_BYTES), np.uint8)
        for found in part.places:
            dense = is_dense(found.offsets, BLOCK_BYTES)
            data[found.which] = found.window.gather(found.offsets, BLOCK_BYTES, dense)
        return data

    # --- commit

    def commit(self, thread: int, barriers: Sequence[int], pair: bool, site: Site) -> None:
        """Arrivals at the mbarriers (cluster addresses) when the thread's operations so far are over."""
        self.batch.tensor_allocation.check_group(pair, site)
        cta = self._cta(thread)
        found = [self.batch.transfers.barrier(address, thread, cta, site) for address in barriers]
        objects = [barrier for barrier in found if barrier is not None]
        stream = self.order.of_thread(thread)
        told = self.order.of_commit(stream)
        if told is not None:
            told = self.clocks.of_agent(self._agent(stream), stream.now).joined(told)
        commit = Commit(stream.now, site, tuple(b.offset for b in objects))
        stream.commits.append(commit)
        for barrier in objects:
            self.batch.mbarriers.await_arrival(barrier)
            if barrier.cta != cta and stream.now:
                last = Access(stream, stream.now - 1, site)
                self.uses.setdefault(barrier.cta, {})[stream] = last
        covered = [
            f for f in self.flights if f.stream is stream and f.operation.pair == pair and not f.ran
        ]
        signal = Signal(commit, thread, objects, covered, told)
        self.signals.setdefault(thread, []).append(signal)
        self.batch.transfers.completions.append(lambda: self._signal(signal))

    def _signal(self, last: Signal) -> None:
        """The arrivals of a commit, after those of the thread's earlier ones."""
        waiting = self.signals[last.thread]
        while last in waiting:
            signal = waiting.pop(0)
            for flight in signal.flights:
                self._run(flight)
            for barrier in signal.barriers:
                signal.commit.phases[barrier.offset] = barrier.phase
                self.batch.mbarriers.arrive_by_itself(
                    barrier, signal.thread, signal.commit.site, signal.told
                )

    # --- the end

    def check_exit(self, cta: int) -> None:
        """All threads of the CTA have exited: what used its memory must be over."""
        slots, size = self.geometry.slots, self.geometry.cluster_size
        own = np.arange(cta % size * slots, (cta % size + 1) * slots)
        for stream, access in self.uses.pop(cta, {}).items():
            committed = stream.committed(access.stamp) is not None
            if committed and (not self.hazards or self.order.is_over(stream, access.stamp, own)):
                continue
            if committed and self.batch.shared.watch.ordered_by_memory:
                continue
            if access.site.index in self.memory.blamed:
                continue
            self._outlives(cta, access)

    def _outlives(self, cta: int, access: Access) -> None:
        state, repair = self._explain(access.stream, access.stamp)
        self.batch.faults.add(
            "sim/in-flight",
            f"{self.geometry.describe_cta(self.clocks.first_cta + cta)} ends while `{access.site.what}`, which "
            "uses its memory, may still be under way: none of its threads knows that it is over",
            access.site.span,
            (
                ("where", f"issued by {self.order.who(access.stream)}"),
                ("state", state),
                ("help", f"{repair}; in a cluster T.cuda.cluster_sync() before the end"),
            ),
            "exit",
        )

    def uncommitted(self, cta: int) -> list[tuple[str, str]]:
        """Notes for a deadlock: operations that use the CTA's memory and that no commit follows."""
        return [
            ("uncommitted", f"`{a.site.what}` by {self.order.who(stream)} at {place(a.site.span)}: no "
             "tcgen05.commit follows it")
            for stream, a in self.uses.get(cta, {}).items()
            if stream.committed(a.stamp) is None
        ]  # fmt: skip
