"""Races, by exact happens-before.

Every access carries its thread number and a *stamp*: the tick of its cluster at that time. A
cluster's tick grows at every synchronisation, so an access of thread u with stamp s happens before
thread t's present exactly when t knows u up to more than s. What threads know is kept at three
levels, each exact: per CTA (CTA barriers), per warp (warp barriers), and, only in clusters that
synchronise in other ways, a matrix over the cluster's threads (named barriers and, through
``release`` and ``acquire``, any object that carries a clock). Accesses of different clusters are
never ordered.

A ``Shadow`` remembers, per granule of memory, the last writer and the readers since. The granule is
the largest power of two that every access so far is made of; it shrinks when a smaller access
comes, which loses nothing because older accesses covered whole granules. One reader is held in
place; a second reader that is not ordered after the first goes to a log (same cluster) or marks the
granule as read by several clusters (then any write races).

Whatever completes asynchronous accesses (an mbarrier, a thread's bulk groups, a warpgroup's groups) is
an *agent*: a number above all threads' and a column in the cluster's matrix. An access of an agent
is stamped with the agent's own tick (a phase, a group) when it is issued; a thread knows it once it
has waited for that tick, or has synchronised with someone who has. The asynchronous proxy queues neither
behind a thread's ordinary writes nor behind its ordinary reads without a proxy fence: ``carried`` holds,
per memory space, which of them each thread knows to be over there.

An access in flight (of ``cp.async``) has a stamp of ``IN_FLIGHT`` or more, which names the
copy: it happens before nothing, not even its own thread's next access. ``land_write`` and
``land_read`` give it the time of the wait that covers it.

Not here: what is accessed (``memory``), who synchronises (``barrier``).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.geometry import LANES, Bools, Geometry, Ints

Selection: TypeAlias = slice | Ints
Race: TypeAlias = Callable[[int, int, int, int, int, int], None]
"""Called with granule, thread, earlier thread, earlier site, earlier stamp, number of such pairs."""

NOBODY = -1
IN_FLIGHT = 1 << 30
"""The least stamp of an access in flight. Ticks stay below: one per synchronisation."""
MAX_GRANULE_BYTES = 16
COMPACT_ENTRIES = 1 << 20
"""Of a log of readers, before those that tell nothing new are dropped."""


PHASES, STARTED = "phases", "started"
TENSOR_OVER, TENSOR_FENCED = "tensor over", "tensor fenced"
TENSOR = (TENSOR_OVER, TENSOR_FENCED)
TOLD = (PHASES, STARTED, *TENSOR)
CARRIED = ("shared", "global", *TOLD)
"""What synchronisation carries besides the order of memory accesses: what the asynchronous proxy sees of
each memory, which ticks of agents are known to be over, whether all CTAs of the cluster are known to have
started, and which accesses to tensor memory are known to be over, or to come before a fence
(``tensor_order``). All but the first go further: relaxed arrivals and transfers carry them, too, because
nobody can be told of an end, or a start, that has not come."""
FIRST_AGENT_COLUMNS = 32

Explain: TypeAlias = Callable[[int], tuple[str, str]]
"""Of an agent's tick: who completes its accesses and how far that is; what would wait for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Clock:
    """What one or several threads did and knew: ``known`` by column, ``carried`` as in ``CARRIED``."""

    known: npt.NDArray[np.int32]
    carried: dict[str, npt.NDArray[np.int32]]

    def phases(self) -> Clock:
        """What a relaxed operation carries of it."""
        kept = {what: self.carried[what] for what in TOLD if what in self.carried}
        return Clock(np.zeros(0, np.int32), kept)

    def joined(self, other: Clock | None) -> Clock:
        """What both hold."""
        if other is None:
            return self
        carried = dict(self.carried)
        for space, theirs in other.carried.items():
            carried[space] = _longest_max(carried[space], theirs) if space in carried else theirs
        return Clock(_longest_max(self.known, other.known), carried)


def _longest_max(a: npt.NDArray[np.int32], b: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """The maximum; a column that one of them lacks is taken from the other."""
    if a.size < b.size:
        a, b = b, a
    joined = a.copy()
    np.maximum(joined[: b.size], b, out=joined[: b.size])
    return joined


class Clocks:
    """What each thread of the batch's clusters knows of the others.

    ``tick`` per cluster; ``cta_known`` per CTA, ``cluster_known`` per cluster, ``warp_known`` per
    row: ticks below which everybody's accesses are known to everybody inside. ``matrix[cluster]``
    holds known[t, u] over the cluster's thread numbers, then its agents.

    ``carried[what, cluster]``: likewise, for each of ``CARRIED``; of phases the columns are the agents, of
    starts there is one, of tensor memory they are ``tensor_column``'s.
    ``has_agents``: may a history hold agents, of an earlier batch perhaps?
    """

    def __init__(
        self, geometry: Geometry, first_cta: int, ctas: int, has_agents: bool = False
    ) -> None:
        self.geometry = geometry
        self.first_cta = first_cta
        clusters = ctas // geometry.cluster_size
        self.tick = np.zeros(clusters, np.int32)
        self.cta_known = np.zeros(ctas, np.int32)
        self.cluster_known = np.zeros(clusters, np.int32)
        self.warp_known = np.zeros(ctas * geometry.warps, np.int32)
        self.matrix: dict[int, npt.NDArray[np.int32]] = {}
        self.carried: dict[tuple[str, int], npt.NDArray[np.int32]] = {}
        self.version = 0
        self.has_agents = has_agents
        self.first_agent = geometry.ctas * geometry.slots
        self.launch_clusters = max(1, geometry.ctas // geometry.cluster_size)
        self.agents: dict[tuple[int, Hashable], int] = {}
        self.agent_ticks: dict[int, int] = {}
        self.explanations: dict[int, Explain] = {}
        self.agents_of = np.zeros(clusters, np.int64)
        self.tensor_columns: dict[int, int] = {}
        """By cluster: how many there are."""

    @property
    def cluster_slots(self) -> int:
        """Thread numbers of one cluster."""
        return self.geometry.cluster_size * self.geometry.slots

    def first_thread(self, cluster: int) -> int:
        """Launch-wide number of the first thread of a cluster of the batch."""
        return (self.first_cta // self.geometry.cluster_size + cluster) * self.cluster_slots

    def cta_barrier(self, ctas: Ints) -> None:
        """All threads of the batch's CTAs ``ctas`` (0 = first of the batch) meet."""
        clusters = ctas // self.geometry.cluster_size
        self._advance(np.unique(clusters))
        self.cta_known[ctas] = self.tick[clusters]
        slots = self.geometry.slots
        for cta, cluster in zip(ctas.tolist(), clusters.tolist()):
            if cluster in self.matrix:
                start = cta % self.geometry.cluster_size * slots
                self._meet(cluster, np.arange(start, start + slots))

    def cluster_barrier(self, clusters: Ints) -> None:
        """All threads of the clusters meet."""
        self._advance(clusters)
        self.cluster_known[clusters] = self.tick[clusters]
        for cluster in clusters.tolist():
            if cluster in self.matrix:
                known, threads = self.matrix[cluster], self.cluster_slots
                known[:, :threads] = self.tick[cluster]
                known[:, threads:] = known[:, threads:].max(axis=0)
                self._meet_carried(cluster, np.arange(threads))

    def warp_barrier(self, rows: Ints) -> None:
        """The lanes of each warp ``rows`` meet."""
        warps = self.geometry.warps
        clusters = rows // (warps * self.geometry.cluster_size)
        self._advance(np.unique(clusters))
        self.warp_known[rows] = self.tick[clusters]
        if self.matrix:
            per_cluster = warps * self.geometry.cluster_size
            for row, cluster in zip(rows.tolist(), clusters.tolist()):
                if cluster in self.matrix:
                    start = row % per_cluster * LANES
                    self._meet(cluster, np.arange(start, start + LANES))

    def group_barrier(self, cluster: int, threads: Ints) -> None:
        """Threads (numbers within their cluster) meet."""
        self._advance(np.array([cluster]))
        self._materialise(cluster)
        self._meet(cluster, threads)

    def release(self, cluster: int, threads: Ints) -> Clock:
        """A clock holding what ``threads`` did and know up to now, for ``acquire``."""
        self._advance(np.array([cluster]))
        known = self._materialise(cluster)
        column: npt.NDArray[np.int32] = known[threads].max(axis=0)
        column[threads] = self.tick[cluster]
        carried = {
            space: self.carried[space, cluster][threads].max(axis=0)
            for space in CARRIED
            if (space, cluster) in self.carried
        }
        return Clock(column, carried)

    def acquire(self, cluster: int, threads: Ints, clock: Clock) -> None:
        """``threads`` learn what ``clock`` holds."""
        self.version += 1
        known, size = self._materialise(cluster), clock.known.size
        known[threads, :size] = np.maximum(known[threads, :size], clock.known)
        for space, visible in clock.carried.items():
            held, width = self._held(space, cluster), visible.size
            held[threads, :width] = np.maximum(held[threads, :width], visible)

    # --- agents and the asynchronous proxy

    def agent(self, cluster: int, key: Hashable, explain: Explain) -> int:
        """The number of the cluster's agent called ``key``; ``explain`` words its accesses."""
        number = self.agents.get((cluster, key))
        if number is None:
            index = int(self.agents_of[cluster])
            self.agents_of[cluster] += 1
            launch_cluster = self.first_cta // self.geometry.cluster_size + cluster
            number = self.first_agent + launch_cluster + self.launch_clusters * index
            self.agents[cluster, key] = number
            self.agent_ticks[number] = 0
            self.explanations[number] = explain
            self.has_agents = True
            self._widen(cluster, index)
        return number

    def _widen(self, cluster: int, index: int) -> None:
        known = self._materialise(cluster)
        missing = self.cluster_slots + index + 1 - known.shape[1]
        if missing > 0:
            more = ((0, 0), (0, max(missing, known.shape[1] - self.cluster_slots)))
            self.matrix[cluster] = np.pad(known, more)
            if (PHASES, cluster) in self.carried:
                self.carried[PHASES, cluster] = np.pad(self.carried[PHASES, cluster], more)

    def agent_tick(self, agent: int) -> int:
        """The tick that the agent's accesses are stamped with now."""
        return self.agent_ticks[agent]

    def advance_agent(self, agent: int) -> None:
        """Later accesses belong to the agent's next tick."""
        self.agent_ticks[agent] += 1

    def learn(self, cluster: int, threads: Ints, agent: int, tick: int) -> None:
        """``threads`` know the agent's accesses of all ticks below ``tick`` to have happened."""
        self.version += 1
        known, column = self.matrix[cluster], self._column(agent)
        known[threads, column] = np.maximum(known[threads, column], tick)

    def of_agent(self, agent: int, tick: int) -> Clock:
        """One that knows the agent's accesses of all ticks below ``tick`` to have happened."""
        known = np.zeros(self._column(agent) + 1, np.int32)
        known[-1] = tick
        return Clock(known, {})

    def learn_end(self, cluster: int, threads: Ints, agent: int, tick: int) -> None:
        """``threads`` know that the agent's ticks below ``tick`` are over; no more than that."""
        held, column = self._held(PHASES, cluster), self._column(agent) - self.cluster_slots
        held[threads, column] = np.maximum(held[threads, column], tick)

    def known_ends(self, cluster: int, threads: Ints, agent: int) -> Ints:
        """Per thread: the tick below which it knows the agent's to be over."""
        held = self._held(PHASES, cluster)
        ticks: Ints = held[threads, self._column(agent) - self.cluster_slots]
        return ticks

    def ends(self, cluster: int, threads: Ints) -> Clock:
        """What ``threads`` know to be over, and to have started."""
        told = {
            what: self.carried[what, cluster][threads].max(axis=0)
            for what in TOLD
            if (what, cluster) in self.carried
        }
        return Clock(np.zeros(0, np.int32), told)

    def waited(self, cluster: int, threads: Ints) -> Clock:
        """``ends``, and what of agents ``threads`` know to be over; nothing of what threads did."""
        told = self.ends(cluster, threads)
        column: npt.NDArray[np.int32] = self._materialise(cluster)[threads].max(axis=0)
        column[: self.cluster_slots] = 0
        return Clock(column, told.carried)

    def learn_start(self, cluster: int, threads: Ints) -> None:
        """``threads`` know that all CTAs of the cluster run: they have all come to its barrier."""
        if not self.cluster_known[cluster]:
            self._materialise(cluster)
            self._held(STARTED, cluster)[threads] = 1

    def know_start(self, threads: Ints) -> Bools:
        """Per thread of the launch: does it know that all CTAs of its cluster run?"""
        clusters = threads // self.cluster_slots - self.first_cta // self.geometry.cluster_size
        result: Bools = self.cluster_known[clusters] > 0
        for cluster in np.unique(clusters[~result]).tolist():
            held = self.carried.get((STARTED, cluster))
            if held is not None:
                at = np.flatnonzero(clusters == cluster)
                result[at] = held[threads[at] % self.cluster_slots, 0] > 0
        return result

    def known_ticks(self, cluster: int, threads: Ints, agent: int) -> Ints:
        """Per thread: the tick below which it knows the agent."""
        ticks: Ints = self.matrix[cluster][threads, self._column(agent)]
        return ticks

    def proxy_fence(self, cluster: int, threads: Ints, space: str) -> None:
        """What each of ``threads`` did or knows of is visible to the asynchronous proxy."""
        self._advance(np.array([cluster]))
        known, held = self._materialise(cluster), self._held(space, cluster)
        held[threads] = np.maximum(held[threads], known[threads, : self.cluster_slots])
        held[threads, threads] = self.tick[cluster]

    def visible(self, space: str, earlier: Ints, stamp: Ints, thread: Ints) -> Bools:
        """Per element: does ``thread`` know the ordinary access of ``earlier`` (of its cluster) at
        ``stamp`` to be visible to the asynchronous proxy? True of agents' accesses."""
        result: Bools = earlier >= self.first_agent
        if result.all():
            return result
        clusters = self.cluster_of(thread) - self.first_cta // self.geometry.cluster_size
        for cluster in np.unique(clusters).tolist():
            held = self.carried.get((space, cluster))
            at = np.flatnonzero(~result & (clusters == cluster))
            if held is not None and at.size:
                t, u = thread[at] % self.cluster_slots, earlier[at] % self.cluster_slots
                result[at] = stamp[at] < held[t, u]
        return result

    def tensor_column(self, cluster: int) -> int:
        """A new column of what threads know of accesses to tensor memory."""
        column = self.tensor_columns.get(cluster, 0)
        self.tensor_columns[cluster] = column + 1
        for what in TENSOR:
            held = self._held(what, cluster)
            if held.shape[1] <= column:
                more = ((0, 0), (0, held.shape[1]))
                self.carried[what, cluster] = np.pad(held, more)
        return column

    def tensor(self, what: str, cluster: int) -> npt.NDArray[np.int32]:
        """What the cluster's threads know of accesses to tensor memory: (threads, columns), to be changed
        in place. ``what``: one of ``TENSOR``."""
        return self._held(what, cluster)

    def _held(self, space: str, cluster: int) -> npt.NDArray[np.int32]:
        if (space, cluster) not in self.carried:
            columns = 1 if space == STARTED else self.cluster_slots
            known = self._materialise(cluster)
            if space == PHASES:
                columns = known.shape[1] - self.cluster_slots
            elif space in TENSOR:
                columns = FIRST_AGENT_COLUMNS
            self.carried[space, cluster] = np.zeros((self.cluster_slots, columns), np.int32)
        return self.carried[space, cluster]

    def _column(self, agent: int) -> int:
        return self.cluster_slots + (agent - self.first_agent) // self.launch_clusters

    def is_agent(self, numbers: Ints) -> Bools:
        """Per number: is it an agent's rather than a thread's?"""
        result: Bools = numbers >= self.first_agent
        return result

    def cluster_of(self, numbers: Ints) -> Ints:
        """Launch-wide clusters of threads and agents."""
        clusters = numbers // self.cluster_slots
        if self.has_agents:
            of_agents = (numbers - self.first_agent) % self.launch_clusters
            clusters = np.where(numbers >= self.first_agent, of_agents, clusters)
        return clusters

    def ordered(self, earlier: Ints, stamp: Ints, thread: Ints) -> Bools:
        """Per element: does the access of ``earlier`` at ``stamp`` happen before ``thread`` now?"""
        if earlier.size and earlier[0] >= self.first_agent:
            if (earlier == earlier[0]).all() and (stamp == stamp[0]).all():
                return self._of_one_agent(int(earlier[0]), int(stamp[0]), thread)
        slots, size = self.geometry.slots, self.geometry.cluster_size
        cta = thread // slots
        result: Bools = (earlier == thread) & (stamp < IN_FLIGHT)
        same_cluster = self.same_cluster(earlier, thread)
        local = cta - self.first_cta
        cluster = local // size
        met = same_cluster & (stamp < self.cluster_known[cluster])
        result |= met & (earlier < self.first_agent) if self.has_agents else met
        result |= (earlier // slots == cta) & (stamp < self.cta_known[local])
        row = thread // LANES - self.first_cta * self.geometry.warps
        result |= (earlier // LANES == thread // LANES) & (stamp < self.warp_known[row])
        if self.matrix:
            self._ordered_by_matrix(result, same_cluster, cluster, earlier, stamp, thread)
        return result

    def _of_one_agent(self, agent: int, stamp: int, thread: Ints) -> Bools:
        """``ordered`` for what one copy, or one wgmma, accessed: many granules, one pair of numbers."""
        cluster = (agent - self.first_agent) % self.launch_clusters
        cluster -= self.first_cta // self.geometry.cluster_size
        result = np.zeros(thread.size, np.bool_)
        known = self.matrix.get(cluster)
        if known is not None:
            own = thread - self.first_thread(cluster)
            at = np.flatnonzero((own >= 0) & (own < self.cluster_slots))
            result[at] = stamp < known[own[at], self._column(agent)]
        return result

    def _ordered_by_matrix(
        self, result: Bools, same: Bools, cluster: Ints, earlier: Ints, stamp: Ints, thread: Ints
    ) -> None:
        open_ = np.flatnonzero(same & ~result)
        for index in np.unique(cluster[open_]).tolist():
            known = self.matrix.get(index)
            at = open_[cluster[open_] == index]
            if known is not None:
                t, u = thread[at] % self.cluster_slots, earlier[at] % self.cluster_slots
                if self.has_agents:
                    columns = self.cluster_slots + (
                        (earlier[at] - self.first_agent) // self.launch_clusters
                    )
                    u = np.where(earlier[at] >= self.first_agent, columns, u)
                result[at] = stamp[at] < known[t, u]

    def same_cluster(self, a: Ints, b: Ints) -> Bools:
        """Do two numbers of threads or agents belong to one cluster?"""
        result: Bools = self.cluster_of(a) == self.cluster_of(b)
        return result

    def _advance(self, clusters: Ints) -> None:
        self.tick[clusters] += 1
        self.version += 1

    def _materialise(self, cluster: int) -> npt.NDArray[np.int32]:
        if cluster not in self.matrix:
            size, slots = self.geometry.cluster_size, self.geometry.slots
            known = np.full((size * slots,) * 2, self.cluster_known[cluster], np.int32)
            known = np.pad(known, ((0, 0), (0, FIRST_AGENT_COLUMNS)))
            for rank in range(size):
                part = slice(rank * slots, (rank + 1) * slots)
                base = self.cta_known[cluster * size + rank]
                known[part, part] = np.maximum(known[part, part], base)
            first = cluster * size * self.geometry.warps
            for warp in range(size * self.geometry.warps):
                part = slice(warp * LANES, (warp + 1) * LANES)
                known[part, part] = np.maximum(known[part, part], self.warp_known[first + warp])
            self.matrix[cluster] = known
        return self.matrix[cluster]

    def _meet(self, cluster: int, threads: Ints) -> None:
        known = self.matrix[cluster]
        joined = known[threads].max(axis=0)
        joined[threads] = self.tick[cluster]
        known[threads] = joined
        self._meet_carried(cluster, threads)

    def _meet_carried(self, cluster: int, threads: Ints) -> None:
        for space in CARRIED:
            held = self.carried.get((space, cluster))
            if held is not None:
                held[threads] = held[threads].max(axis=0)


@dataclass(frozen=True, slots=True, eq=False)
class Asynchronous:
    """An access that a thread issues and ``agent`` completes at its tick ``stamp``. ``space``: the
    memory, for proxy fences; ``unfenced``: called for ordinary accesses before it that no proxy fence
    follows (writes, and before a write also reads); None: it is no access of the asynchronous proxy."""

    agent: int
    stamp: int
    space: str
    unfenced: Race | None


class ReaderLog:
    """Readers beyond the first of granules that several unordered threads have read."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Ints, Ints, Ints, Ints]] = []
        self.size = 0
        self.compact_at = COMPACT_ENTRIES

    def add(self, granules: Ints, threads: Ints, stamps: Ints, sites: Ints) -> None:
        self.chunks.append((granules, threads, stamps, sites))
        self.size += granules.size

    def joined(self) -> tuple[Ints, Ints, Ints, Ints]:
        if len(self.chunks) > 1:
            columns = [np.concatenate(column) for column in zip(*self.chunks)]
            self.chunks = [(columns[0], columns[1], columns[2], columns[3])]
        if not self.chunks:
            empty = np.zeros(0, np.int64)
            return empty, empty, empty, empty
        return self.chunks[0]

    def restamp(self, chosen: Ints, stamps: Ints, agent: int | None) -> None:
        """The chosen entries get new stamps, and become the agent's if there is one."""
        self.joined()[2][chosen] = stamps
        if agent is not None:
            self.joined()[1][chosen] = agent

    def keep(self, chosen: Bools) -> None:
        g, t, stamps, sites = self.joined()
        self.chunks = [(g[chosen], t[chosen], stamps[chosen], sites[chosen])]
        self.size = self.chunks[0][0].size
        self.compact_at = max(COMPACT_ENTRIES, 2 * self.size)

    def clear(self) -> None:
        self.chunks, self.size = [], 0


class Shadow:
    """Access history of ``nbytes`` of memory. Offsets are bytes from its start, which is aligned.

    ``thread_type``: an integer type that holds every thread number of the launch. ``strong_sites``,
    by site: strong accesses (atomic, relaxed, acquire, release) do not race with each other.
    """

    def __init__(self, nbytes: int, thread_type: Any, strong_sites: Bools) -> None:
        self.strong_sites = strong_sites
        self.nbytes = nbytes
        self.granule_bytes = MAX_GRANULE_BYTES
        self.thread_type = thread_type
        self.writer: npt.NDArray[Any] | None = None
        self.writer_stamp: npt.NDArray[Any] = np.zeros(0, np.int32)
        self.writer_site: npt.NDArray[Any] = np.zeros(0, np.int32)
        self.reader: npt.NDArray[Any] | None = None
        self.reader_stamp: npt.NDArray[Any] = np.zeros(0, np.int32)
        self.reader_site: npt.NDArray[Any] = np.zeros(0, np.int32)
        self.crowd: npt.NDArray[Any] = np.zeros(0, np.int8)
        self.far_reader: npt.NDArray[Any] | None = None
        self.far_site: npt.NDArray[Any] = np.zeros(0, np.int32)
        self.log = ReaderLog()
        self.flights = False
        """Was any access in flight?"""
        self._scratch: npt.NDArray[Any] | None = None

    @property
    def granules(self) -> int:
        return -(-self.nbytes // self.granule_bytes)

    # --- granules

    def select(
        self, offsets: Ints, nbytes: int, threads: Ints, dense: bool
    ) -> tuple[Selection, Ints]:
        """Granules of accesses of ``nbytes`` at ``offsets``, and the thread of each granule.

        ``dense``: the accesses are adjacent and ascending, so the granules are a slice.
        """
        size = nbytes & -nbytes
        if size < self.granule_bytes:
            self._refine(size)
        granule = self.granule_bytes
        per_access = nbytes // granule
        if per_access > 1:
            threads = np.repeat(threads, per_access)
        if dense:
            first = int(offsets[0]) // granule
            return slice(first, first + threads.size), threads
        selection = offsets // granule
        if per_access > 1:
            selection = (selection[:, None] + np.arange(per_access)).ravel()
        return selection, threads

    def _refine(self, granule_bytes: int) -> None:
        factor = self.granule_bytes // granule_bytes
        self.granule_bytes = granule_bytes
        self._scratch = None
        count = self.granules

        def finer(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return np.repeat(array, factor)[:count]

        if self.writer is not None:
            self.writer = finer(self.writer)
            self.writer_stamp = finer(self.writer_stamp)
            self.writer_site = finer(self.writer_site)
        if self.reader is not None:
            self.reader = finer(self.reader)
            self.reader_stamp = finer(self.reader_stamp)
            self.reader_site = finer(self.reader_site)
            self.crowd = finer(self.crowd)
        if self.far_reader is not None:
            self.far_reader = finer(self.far_reader)
            self.far_site = finer(self.far_site)
        if self.log.size:
            g, t, stamps, sites = self.log.joined()
            parts = (g[:, None] * factor + np.arange(factor)).ravel()
            self.log.clear()
            self.log.add(parts, *(np.repeat(column, factor) for column in (t, stamps, sites)))

    def _repeated(self, selection: Selection) -> tuple[Ints, Ints] | None:
        """Positions of later accesses to a granule this operation touches twice, and of the one
        access kept for it; None when all granules differ."""
        if isinstance(selection, slice):
            return None
        if self._scratch is None:
            self._scratch = np.zeros(self.granules, np.int32)
        order = np.arange(selection.size, dtype=np.int32)
        self._scratch[selection] = order
        kept = self._scratch[selection]
        losers = np.flatnonzero(kept != order)
        return (losers, kept[losers].astype(np.int64)) if losers.size else None

    # --- accesses

    def write(
        self,
        selection: Selection,
        threads: Ints,
        stamp: Ints,
        site: int,
        clocks: Clocks,
        race: Race,
        asynchronous: Asynchronous | None = None,
    ) -> None:
        """Threads write the selected granules, or issue the write. ``stamp`` broadcasts against
        ``threads``."""
        self.flights |= np.ndim(stamp) == 0 and int(stamp) >= IN_FLIGHT
        repeated = self._repeated(selection)
        if repeated is not None:
            self._report_repeated(selection, threads, stamp, repeated, site, race)
        if self.writer is None:
            self._allocate_writer()
        else:
            self._check_writer(selection, threads, clocks, race, site, asynchronous)
        if self.reader is not None:
            self._check_readers(selection, threads, clocks, race, site, asynchronous)
        assert self.writer is not None
        self.writer[selection] = threads if asynchronous is None else asynchronous.agent
        self.writer_stamp[selection] = stamp if asynchronous is None else asynchronous.stamp
        self.writer_site[selection] = site

    def read(
        self,
        selection: Selection,
        threads: Ints,
        stamp: Ints,
        site: int,
        clocks: Clocks,
        race: Race,
        asynchronous: Asynchronous | None = None,
    ) -> None:
        """Threads read the selected granules, or issue the read."""
        self.flights |= np.ndim(stamp) == 0 and int(stamp) >= IN_FLIGHT
        if self.writer is not None:
            self._check_writer(selection, threads, clocks, race, site, asynchronous)
        if self.reader is None:
            self._allocate_reader()
        assert self.reader is not None
        repeated = self._repeated(selection)
        prior = self.reader[selection]
        issuers = threads
        if asynchronous is not None:
            threads = np.full_like(threads, asynchronous.agent)
            stamp = np.array(asynchronous.stamp, np.int32)
        if repeated is None and int(prior.max(initial=NOBODY)) < 0:
            self._set_reader(selection, threads, stamp, site)
            return
        if isinstance(selection, slice):
            selection = np.arange(selection.start, selection.stop)
        stamps = np.broadcast_to(np.asarray(stamp, np.int32), threads.shape)
        self._add_readers(selection, issuers, threads, stamps, site, prior, clocks)

    def _set_reader(self, selection: Selection, threads: Ints, stamp: Ints, site: int) -> None:
        assert self.reader is not None
        self.reader[selection] = threads
        self.reader_stamp[selection] = stamp
        self.reader_site[selection] = site

    def _add_readers(
        self,
        granules: Ints,
        issuers: Ints,
        threads: Ints,
        stamps: Ints,
        site: int,
        prior: Ints,
        clocks: Clocks,
    ) -> None:
        """Readers of granules that had readers, or several readers at once. ``issuers``: the threads,
        where ``threads`` are agents."""
        assert self.reader is not None
        crowded = self.crowd[granules] > 0
        airborne = (prior >= 0) & (self.reader_stamp[granules] >= IN_FLIGHT)
        replaces = (prior < 0) | ((prior == threads) & ~crowded & ~airborne)
        open_ = np.flatnonzero(~replaces)
        if open_.size:
            earlier = self.reader_stamp[granules[open_]]
            done = clocks.ordered(prior[open_], earlier, issuers[open_])
            everyone = ~crowded[open_] | self._all_ordered(
                prior[open_], earlier, issuers[open_], clocks
            )
            # A read of the asynchronous proxy does not stand for an ordinary one: that needs its own fence.
            alike = ~clocks.is_agent(threads[open_]) | clocks.is_agent(prior[open_])
            replaces[open_] = done & everyone & alike
        winners = np.flatnonzero(replaces)
        chosen = granules[winners]
        self.reader[chosen] = threads[winners]
        self.reader_stamp[chosen] = stamps[winners]
        self.reader_site[chosen] = site
        self.crowd[chosen] = 0
        # Whoever is not the one reader of its granule now joins the crowd of its readers.
        joins = (crowded | airborne) & ~replaces
        extra = np.flatnonzero((self.reader[granules] != threads) | joins)
        if extra.size:
            self._join_crowd(granules[extra], threads[extra], stamps[extra], site, clocks)

    @staticmethod
    def _all_ordered(prior: Ints, stamp: Ints, threads: Ints, clocks: Clocks) -> Bools:
        """Is every access of the prior's cluster up to ``stamp`` known to ``threads``, whoever
        made it? Sufficient, not necessary: only CTA-wide and cluster-wide barriers count, and with
        agents, whose stamps are of another scale, nothing does."""
        if clocks.has_agents:
            return np.zeros(prior.size, np.bool_)
        slots, size = clocks.geometry.slots, clocks.geometry.cluster_size
        local = threads // slots - clocks.first_cta
        known = clocks.cluster_known[local // size]
        if size == 1:
            known = np.maximum(known, clocks.cta_known[local])
        result: Bools = clocks.same_cluster(prior, threads) & (stamp < known)
        return result

    def _join_crowd(
        self, granules: Ints, threads: Ints, stamps: Ints, site: int, clocks: Clocks
    ) -> None:
        assert self.reader is not None
        held = self.reader[granules]
        near = clocks.same_cluster(held, threads)
        far = np.flatnonzero(~near)
        if far.size:
            if self.far_reader is None:
                self.far_reader = np.full(self.granules, NOBODY, self.thread_type)
                self.far_site = np.zeros(self.granules, np.int32)
            self.far_reader[granules[far]] = threads[far]
            self.far_site[granules[far]] = site
        close = np.flatnonzero(near)
        if close.size:
            g = granules[close]
            first = np.unique(g[self.crowd[g] == 0])
            if first.size:
                self.log.add(
                    first, self.reader[first], self.reader_stamp[first], self.reader_site[first]
                )
            self.crowd[g] = 1
            self.log.add(g, threads[close], stamps[close], np.full(g.size, site, np.int32))
            np.maximum.at(self.reader_stamp, g, stamps[close])
            if self.log.size > self.log.compact_at:
                self._compact(clocks)

    def _compact(self, clocks: Clocks) -> None:
        """Readers that everyone knows of need no entry. With agents, to which that does not make them
        known, each reader keeps its latest: it stands for those before it."""
        g, t, stamps, _ = self.log.joined()
        crowded = self.crowd[g] > 0
        if clocks.has_agents:
            self.log.keep(crowded & (_latest(_pairs(g, t), stamps) | (stamps >= IN_FLIGHT)))
            return
        local = t // clocks.geometry.slots - clocks.first_cta
        known = clocks.cluster_known[local // clocks.geometry.cluster_size]
        if clocks.geometry.cluster_size == 1:
            known = np.maximum(known, clocks.cta_known[local])
        self.log.keep(crowded & (stamps >= known))

    def forget_clusters(self) -> None:
        """The batch's threads are over: the log (which orders threads of one cluster) is idle."""
        self.log.clear()

    def forget(self) -> None:
        """Every access so far happens before every one to come: those in flight stay."""
        if self.writer is not None:
            self.writer[self.writer_stamp < IN_FLIGHT] = NOBODY
        if self.reader is not None:
            done = self.reader_stamp < IN_FLIGHT
            self.reader[done], self.crowd[done] = NOBODY, 0
            self.log.keep(self.log.joined()[2] >= IN_FLIGHT)
        self.far_reader = None

    # --- landing

    def land_write(
        self,
        selection: Selection,
        threads: Ints,
        flight: int,
        stamps: Ints,
        agent: int | None = None,
    ) -> None:
        """The writes stamped ``flight`` that the granules still hold happen now, at ``stamps``, as the
        agent's if there is one."""
        assert self.writer is not None
        held = (self.writer_stamp[selection] == flight) & (self.writer[selection] == threads)
        at = np.flatnonzero(held)
        self.writer_stamp[_granules_at(selection, at)] = stamps[at]
        if agent is not None:
            self.writer[_granules_at(selection, at)] = agent

    def land_read(
        self,
        selection: Selection,
        threads: Ints,
        flight: int,
        stamps: Ints,
        agent: int | None = None,
    ) -> None:
        """The reads stamped ``flight`` happen now, at ``stamps``, as the agent's if there is one."""
        assert self.reader is not None
        granules = _granules_at(selection, np.arange(threads.size))
        alone = (self.reader[granules] == threads) & (self.crowd[granules] == 0)
        at = np.flatnonzero(alone & (self.reader_stamp[granules] == flight))
        self.reader_stamp[granules[at]] = stamps[at]
        if agent is not None:
            self.reader[granules[at]] = agent
        if not self.log.size:
            return
        held, readers, logged, _ = self.log.joined()
        entries = np.flatnonzero(logged == flight)
        order = np.lexsort((threads, granules))
        keys = _pairs(granules, threads)[order]
        wanted = _pairs(held[entries], readers[entries])
        place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        mine = keys[place] == wanted
        self.log.restamp(entries[mine], stamps[order[place[mine]]], agent)
        # The latest of a crowd's readers, anew.
        crowded = np.unique(granules[self.crowd[granules] > 0])
        of_crowd = np.isin(held, crowded)
        self.reader_stamp[crowded] = 0
        np.maximum.at(self.reader_stamp, held[of_crowd], self.log.joined()[2][of_crowd])

    # --- checks

    def _check_writer(
        self,
        selection: Selection,
        threads: Ints,
        clocks: Clocks,
        race: Race,
        site: int,
        asynchronous: Asynchronous | None = None,
    ) -> None:
        assert self.writer is not None
        prior = self.writer[selection]
        # A thread's own writes need a proxy fence, too.
        suspect = prior >= 0
        if asynchronous is None:
            suspect &= self._others(prior, self.writer_stamp[selection], threads)
        suspects = np.flatnonzero(suspect)
        if not suspects.size:
            return
        granules = _granules_at(selection, suspects)
        prior, threads = prior[suspects], threads[suspects]
        stamps = self.writer_stamp[granules]
        bad = ~clocks.ordered(prior, stamps, threads)
        sites = self.writer_site[granules]
        self._report(bad, granules, threads, prior, stamps, sites, race, site)
        self._report_unfenced(
            ~bad, granules, threads, prior, stamps, sites, site, clocks, asynchronous
        )

    def _report_unfenced(
        self,
        ordered: Bools,
        granules: Ints,
        threads: Ints,
        earlier: Ints,
        stamps: Ints,
        sites: Ints,
        site: int,
        clocks: Clocks,
        asynchronous: Asynchronous | None,
    ) -> None:
        """Reports the ``ordered`` accesses behind which the asynchronous one does not queue."""
        if asynchronous is None or asynchronous.unfenced is None:
            return
        bad = ordered & ~clocks.visible(asynchronous.space, earlier, stamps, threads)
        self._report(bad, granules, threads, earlier, stamps, sites, asynchronous.unfenced, site)

    def _others(self, prior: Ints, stamps: Ints, threads: Ints) -> Bools:
        """Accesses that program order may not order: other threads', and those in flight."""
        result: Bools = prior != threads
        return result | (stamps >= IN_FLIGHT) if self.flights else result

    def _check_readers(
        self,
        selection: Selection,
        threads: Ints,
        clocks: Clocks,
        race: Race,
        site: int,
        asynchronous: Asynchronous | None,
    ) -> None:
        assert self.reader is not None
        prior = self.reader[selection]
        at = np.flatnonzero(prior >= 0)
        if not at.size:
            return
        granules, prior, threads = _granules_at(selection, at), prior[at], threads[at]
        self._check_crowd(granules, threads, clocks, race, site, asynchronous)
        if asynchronous is None:
            other = np.flatnonzero(self._others(prior, self.reader_stamp[granules], threads))
        else:
            # A thread's own reads need a proxy fence, too.
            other = np.arange(prior.size)
        if other.size:
            g, first, writers = granules[other], prior[other], threads[other]
            stamps, sites = self.reader_stamp[g], self.reader_site[g]
            # A crowd of the writer's cluster is in the log.
            alone = self.crowd[g] == 0
            if not alone.all():
                alone |= ~clocks.same_cluster(first, writers)
            done = clocks.ordered(first, stamps, writers)
            self._report(alone & ~done, g, writers, first, stamps, sites, race, site)
            self._report_unfenced(
                alone & done, g, writers, first, stamps, sites, site, clocks, asynchronous
            )
        if self.far_reader is not None:
            far = self.far_reader[granules]
            lone = np.flatnonzero((far >= 0) & ~clocks.same_cluster(far, threads))
            if lone.size:
                g = granules[lone]
                every, never = np.ones(lone.size, np.bool_), np.zeros(lone.size, np.int32)
                sites = self.far_site[g]
                self._report(every, g, threads[lone], far[lone], never, sites, race, site)
            self.far_reader[granules] = NOBODY
        self.reader[granules] = NOBODY
        self.crowd[granules] = 0

    def _check_crowd(
        self,
        granules: Ints,
        threads: Ints,
        clocks: Clocks,
        race: Race,
        site: int,
        asynchronous: Asynchronous | None,
    ) -> None:
        """Granules with several readers of one cluster: all are in the log, the first included.

        Readers of a cluster other than the writer's need no log: any of them proves the race."""
        assert self.reader is not None
        crowded = np.flatnonzero(self.crowd[granules])
        if crowded.size:
            near = clocks.same_cluster(self.reader[granules[crowded]], threads[crowded])
            crowded = crowded[near]
        if not crowded.size:
            return
        g, writers = granules[crowded], threads[crowded]
        first, stamp = self.reader[g], self.reader_stamp[g]
        risky = ~self._all_ordered(first, stamp, writers, clocks)
        if not risky.any():
            return
        g, writers = g[risky], writers[risky]
        order = np.argsort(g, kind="stable")
        g, writers = g[order], writers[order]
        held, readers, stamps, sites = self.log.joined()
        position = np.minimum(np.searchsorted(g, held), g.size - 1)
        mine = g[position] == held
        at = np.flatnonzero(mine)
        writer = writers[position[at]]
        held, readers, stamps, sites = held[at], readers[at], stamps[at], sites[at]
        done = clocks.ordered(readers, stamps, writer)
        self._report(~done, held, writer, readers, stamps, sites, race, site)
        self._report_unfenced(
            done, held, writer, readers, stamps, sites, site, clocks, asynchronous
        )
        self.log.keep(~mine)

    def _report_repeated(
        self,
        selection: Selection,
        threads: Ints,
        stamp: Ints,
        repeated: tuple[Ints, Ints],
        site: int,
        race: Race,
    ) -> None:
        losers, kept = repeated
        granules = _granules_at(selection, losers)
        different = threads[losers] != threads[kept]
        sites = np.full(losers.size, site)
        stamps = np.broadcast_to(np.asarray(stamp, np.int32), threads.shape)[losers]
        self._report(different, granules, threads[kept], threads[losers], stamps, sites, race, site)

    def _report(
        self,
        bad: Bools,
        granules: Ints,
        threads: Ints,
        earlier: Ints,
        stamps: Ints,
        sites: Ints,
        race: Race,
        site: int,
    ) -> None:
        """One call of ``race`` per earlier site, of those in flight and of others, with the first
        example."""
        if self.strong_sites[site]:
            bad = bad & ~self.strong_sites[sites]
        at = np.flatnonzero(bad)
        if not at.size:
            return
        airborne = stamps[at] >= IN_FLIGHT
        for flying in np.unique(airborne).tolist():
            alike = at[airborne == flying]
            for other in np.unique(sites[alike]).tolist():
                of_site = alike[sites[alike] == other]
                i = of_site[0]
                race(
                    int(granules[i]), int(threads[i]), int(earlier[i]), other, int(stamps[i]),
                    of_site.size,
                )  # fmt: skip

    # --- storage

    def _allocate_writer(self) -> None:
        self.writer = np.full(self.granules, NOBODY, self.thread_type)
        self.writer_stamp = np.zeros(self.granules, np.int32)
        self.writer_site = np.zeros(self.granules, np.int32)

    def _allocate_reader(self) -> None:
        self.reader = np.full(self.granules, NOBODY, self.thread_type)
        self.reader_stamp = np.zeros(self.granules, np.int32)
        self.reader_site = np.zeros(self.granules, np.int32)
        self.crowd = np.zeros(self.granules, np.int8)


def _pairs(granules: Ints, threads: Ints) -> Ints:
    """(granule, thread) as one number, ascending as they are."""
    return (granules.astype(np.int64) << 32) | threads.astype(np.int64)


def _latest(keys: Ints, stamps: Ints) -> Bools:
    """Per element: has no other of its key a later stamp, or the same and a later place?"""
    order = np.lexsort((stamps, keys))
    last = np.append(keys[order][1:] != keys[order][:-1], True)
    result = np.zeros(keys.size, np.bool_)
    result[order] = last
    return result


def _granules_at(selection: Selection, positions: Ints) -> Ints:
    if isinstance(selection, slice):
        return np.asarray(positions + selection.start)
    return np.asarray(selection[positions])
