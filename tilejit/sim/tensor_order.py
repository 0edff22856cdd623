"""Which accesses to tensor memory come before which: waits, commits, fences and synchronisation.

Accesses belong to *streams*: the loads of a warp, its stores, or the operations (mma, cp, shift) of a
thread. Those of a warp are over when it waits for them, operations when the phase ends that a commit of
them completes. Who is in the stream knows of a wait by itself; anybody else's access Y comes after X only
if X was over, ``tcgen05.fence::before_thread_sync`` followed, the threads synchronised, and
``tcgen05.fence::after_thread_sync`` came before Y. Some operations run in order (``in_order``): for those
it is enough that X was issued.

A stream has a column in three arrays, by thread of the cluster: ticks below which its accesses are known
to be over (``TENSOR_OVER``), are published by a fence besides (``TENSOR_FENCED``), both of which
synchronisation carries, and come before what the thread does next (``known``). A stream of operations has
a second one, for those that were issued.

Source: PTX ISA, memory consistency model for 5th generation tensor core operations. Not here: which
cells an access touches (``tensor_memory``), when operations run (``tensor_cores``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.faults import Site, place
from tilejit.sim.geometry import LANES, Ints
from tilejit.sim.hazards import TENSOR_FENCED, TENSOR_OVER, Clock
from tilejit.tile.family import TensorOperation

if TYPE_CHECKING:
    from tilejit.sim.batch import Batch
    from tilejit.sim.cohort import Cohort

Kind: TypeAlias = Literal["loads", "stores", "operations"]

BEFORE = 'T.ptx["tcgen05.fence::before_thread_sync"]()'
AFTER = 'T.ptx["tcgen05.fence::after_thread_sync"]()'
WAITS = {
    "loads": 'T.ptx["tcgen05.wait::ld.sync.aligned"]()',
    "stores": 'T.ptx["tcgen05.wait::st.sync.aligned"]()',
}
COMMIT = 'T.ptx["tcgen05.commit.cta_group::{}.mbarrier::arrive::one.shared::cluster.b64"](…)'


@dataclass(frozen=True, slots=True, eq=False)
class Commit:
    """A commit of the operations numbered below ``below``. ``objects``: the barriers it completes on;
    ``phases``: which of theirs it arrived in, as far as it has."""

    below: int
    site: Site
    objects: tuple[int, ...]
    phases: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Stream:
    """``members``: threads of the cluster that know by themselves what is over. ``over`` and ``issued``:
    columns. ``now``: the tick of the accesses that come next, the number of waits so far or, of
    operations, that of operations."""

    kind: Kind
    cluster: int
    members: Ints
    over: int
    issued: int
    now: int = 0
    commits: list[Commit] = field(default_factory=list)

    def committed(self, stamp: int) -> Commit | None:
        """The first commit of the operation ``stamp``."""
        return next((c for c in self.commits if c.below > stamp), None)


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """An instruction's accesses of cells. ``operation``: what makes them, where that is no warp."""

    stream: Stream
    stamp: int
    site: Site
    operation: TensorOperation | None = None


def in_order(earlier: TensorOperation, later: TensorOperation) -> bool:
    """Do two operations run in the order in which they are issued?"""
    if earlier.pair != later.pair:
        return False
    if (earlier.kind, later.kind) == ("mma", "mma"):
        return earlier.pipe == later.pipe
    if (earlier.kind, later.kind) == ("shift", "cp"):
        return later.pipe == "4x256b"
    return (earlier.kind, later.kind) in (("cp", "mma"), ("shift", "mma"), ("mma", "shift"))


class TensorOrder:
    """The streams of one batch, and what its threads know of them."""

    def __init__(self, batch: Batch) -> None:
        self.batch, self.clocks = batch, batch.clocks
        self.hazards = batch.shared.watch.hazards
        self.streams: dict[tuple[Kind, int], Stream] = {}
        self.knowledge: dict[int, npt.NDArray[np.int32]] = {}

    # --- streams

    def of_warp(self, kind: Kind, row: int) -> Stream:
        """The loads, or the stores, of a warp of the batch."""
        found = self.streams.get((kind, row))
        if found is None:
            first = row % self.batch.warps_per_cluster * LANES
            found = self._new(kind, row, row // self.batch.warps_per_cluster, first, LANES)
        return found

    def of_thread(self, thread: int) -> Stream:
        """The operations of a thread of the launch."""
        found = self.streams.get(("operations", thread))
        if found is None:
            slots = self.clocks.cluster_slots
            cluster = (thread - self.clocks.first_thread(0)) // slots
            found = self._new("operations", thread, cluster, thread % slots, 1)
        return found

    def _new(self, kind: Kind, key: int, cluster: int, first: int, count: int) -> Stream:
        over = issued = 0
        if self.hazards:
            over = issued = self.clocks.tensor_column(cluster)
            if kind == "operations":
                issued = self.clocks.tensor_column(cluster)
        made = Stream(kind, cluster, np.arange(first, first + count), over, issued)
        self.streams[kind, key] = made
        return made

    def next_operation(self, stream: Stream) -> int:
        """The number of an operation that the stream's thread issues."""
        stream.now += 1
        self._learn(stream, stream.issued)
        return stream.now - 1

    def _learn(self, stream: Stream, column: int) -> None:
        """Who is in the stream knows of everything before ``now``."""
        if self.hazards:
            for held in (self._known(stream.cluster), self._over(stream.cluster)):
                held[stream.members, column] = stream.now

    # --- what threads learn

    def _known(self, cluster: int) -> npt.NDArray[np.int32]:
        shape = self._over(cluster).shape
        held = self.knowledge.get(cluster)
        if held is None:
            held = self.knowledge[cluster] = np.zeros(shape, np.int32)
        elif held.shape != shape:
            held = np.pad(held, ((0, 0), (0, shape[1] - held.shape[1])))
            self.knowledge[cluster] = held
        return held

    def _over(self, cluster: int) -> npt.NDArray[np.int32]:
        return self.clocks.tensor(TENSOR_OVER, cluster)

    def _fenced(self, cluster: int) -> npt.NDArray[np.int32]:
        return self.clocks.tensor(TENSOR_FENCED, cluster)

    def wait(self, rows: Ints, loads: bool) -> None:
        """The warps wait for their loads, or for their stores."""
        for row in rows.tolist():
            stream = self.streams.get(("loads" if loads else "stores", row))
            if stream is not None:
                stream.now += 1
                self._learn(stream, stream.over)

    def fence(self, c: Cohort, before: bool) -> None:
        """The fence of each active lane."""
        threads = c.lanes().threads
        clusters = (threads - self.clocks.first_thread(0)) // self.clocks.cluster_slots
        for cluster in np.unique(clusters).tolist():
            if cluster in self.clocks.tensor_columns:
                own = threads[clusters == cluster] % self.clocks.cluster_slots
                self.fence_of(cluster, own, before)

    def fence_of(self, cluster: int, own: Ints, before: bool) -> None:
        """The same of threads of a cluster."""
        known, fenced = self._known(cluster), self._fenced(cluster)
        to, of = (fenced, known) if before else (known, fenced)
        to[own] = np.maximum(to[own], of[own])

    def of_commit(self, stream: Stream) -> Clock | None:
        """What the end of a commit that the stream's thread issues now tells: its operations so far are
        over, and every copy that the thread has waited for. None without a history."""
        if not self.hazards:
            return None
        own = stream.members
        self.fence_of(stream.cluster, own, before=True)
        told = self.clocks.waited(stream.cluster, own)
        for what in (TENSOR_OVER, TENSOR_FENCED):
            told.carried[what][stream.over] = stream.now
        return told

    # --- questions

    def comes_before(self, earlier: Access, later: Access) -> bool:
        """Is ``earlier`` over, or sure to run before, whatever the schedule?"""
        stream, stamp = earlier.stream, earlier.stamp
        if stream.cluster != later.stream.cluster:
            return False
        known = self._known(stream.cluster)[later.stream.members]
        if (known[:, stream.over] > stamp).all():
            return True
        if not _runs_in_order(earlier, later):
            return False
        return bool((known[:, stream.issued] > stamp).all())

    def is_over(self, stream: Stream, stamp: int, own: Ints) -> bool:
        """Has one of the threads synchronised with the end of that access? Without fences."""
        return int(self._over(stream.cluster)[own, stream.over].max()) > stamp

    # --- words

    def who(self, stream: Stream) -> str:
        if stream.kind == "operations":
            thread = self.clocks.first_thread(stream.cluster) + int(stream.members[0])
            return self.batch.geometry.describe_thread(thread)
        row = stream.cluster * self.batch.warps_per_cluster + int(stream.members[0]) // LANES
        return self.batch.describe_row(row)

    def explain(self, earlier: Access, later: Access) -> tuple[str, str] | None:
        """The first link that is missing between two accesses, and how to make it; None where the program
        may synchronise in ways that are not modelled."""
        if not _runs_in_order(earlier, later):
            unfinished = self.unfinished(earlier, later.stream.members)
            if unfinished is not None:
                return unfinished
        return self._unfenced(earlier, later)

    def unfinished(self, earlier: Access, own: Ints) -> tuple[str, str] | None:
        """Why the threads cannot know that the access is over; None if they may."""
        stream, stamp = earlier.stream, earlier.stamp
        if stream.kind == "operations":
            return self._uncommitted(earlier, own)
        if stamp < stream.now:
            return None
        wait = WAITS[stream.kind]
        outside = not np.isin(own, stream.members).any()
        rest = f", then {BEFORE} and a barrier with the others" if outside else ""
        return (
            f"{self.who(stream)} has not waited for its {stream.kind} since",
            f"{wait} after it, in the warp that {stream.kind[:-1]}s{rest}",
        )

    def _uncommitted(self, earlier: Access, own: Ints) -> tuple[str, str] | None:
        stream, stamp = earlier.stream, earlier.stamp
        commit = stream.committed(stamp)
        if commit is None:
            pair = earlier.operation is not None and earlier.operation.pair
            return (
                f"no tcgen05.commit of {self.who(stream)} follows it",
                f"{COMMIT.format(2 if pair else 1)} after it, then T.cuda.mbarrier_wait(…) and {AFTER} before "
                "the access",
            )
        if (self._over(stream.cluster)[own, stream.over] > stamp).all():
            return None
        name, parity = self._phase(commit)
        return (
            f"its commit at {place(commit.site.span)} completes a phase of {name}, and nothing tells that it "
            "is over",
            f"T.cuda.mbarrier_wait(…{parity}) for the phase, then {AFTER}, before the access",
        )

    def _phase(self, commit: Commit) -> tuple[str, str]:
        """The barrier of a commit, and the parity of its phase if it is known."""
        if not commit.objects:
            return "no mbarrier", ""
        name = self.batch.mbarriers.name(commit.objects[0])
        phase = commit.phases.get(commit.objects[0])
        return name, "" if phase is None else f", {phase & 1}"

    def _unfenced(self, earlier: Access, later: Access) -> tuple[str, str] | None:
        """Which of the fences, or whether synchronisation, is missing."""
        stream, stamp, own = earlier.stream, earlier.stamp, later.stream.members
        column = stream.issued if _runs_in_order(earlier, later) else stream.over
        fenced, over = self._fenced(stream.cluster), self._over(stream.cluster)
        if (fenced[own, column] > stamp).all():
            return (
                f"no tcgen05.fence::after_thread_sync of {self.who(later.stream)} follows the synchronisation "
                "between them",
                f"{AFTER} after the wait or barrier, before the access, in every thread that accesses",
            )
        published = bool((fenced[stream.members, column] > stamp).any())
        if (over[own, column] > stamp).all() or not published:
            return (
                f"no tcgen05.fence::before_thread_sync of {self.who(stream)} comes before the synchronisation "
                "between them",
                f"{BEFORE} {self._after_what(earlier)}, before the arrival or barrier",
            )
        if self.batch.shared.watch.ordered_by_memory:
            return None
        return (
            f"nothing synchronises {self.who(stream)} with {self.who(later.stream)} in between",
            f"{BEFORE} {self._after_what(earlier)}, then an arrival; in the other thread a wait, then {AFTER}; "
            "or T.cuda.cta_sync() between the fences",
        )

    @staticmethod
    def _after_what(earlier: Access) -> str:
        if earlier.stream.kind == "operations":
            return "after it"
        return f"after {WAITS[earlier.stream.kind]}"


def _runs_in_order(earlier: Access, later: Access) -> bool:
    if earlier.operation is None or later.operation is None:
        return False
    return in_order(earlier.operation, later.operation)
