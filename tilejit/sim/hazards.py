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

An access in flight (an asynchronous copy's) has a stamp of ``IN_FLIGHT`` or more, which names the
copy: it happens before nothing, not even its own thread's next access. ``land_write`` and
``land_read`` give it the time of the wait that covers it.

Not here: what is accessed (``memory``), who synchronises (``barrier``).
"""

from __future__ import annotations

from collections.abc import Callable
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


class Clocks:
    """What each thread of the batch's clusters knows of the others.

    ``tick`` per cluster; ``cta_known`` per CTA, ``cluster_known`` per cluster, ``warp_known`` per
    row: ticks below which everybody's accesses are known to everybody inside. ``matrix[cluster]``
    holds known[t, u] over the cluster's thread numbers.
    """

    def __init__(self, geometry: Geometry, first_cta: int, ctas: int) -> None:
        self.geometry = geometry
        self.first_cta = first_cta
        clusters = ctas // geometry.cluster_size
        self.tick = np.zeros(clusters, np.int32)
        self.cta_known = np.zeros(ctas, np.int32)
        self.cluster_known = np.zeros(clusters, np.int32)
        self.warp_known = np.zeros(ctas * geometry.warps, np.int32)
        self.matrix: dict[int, npt.NDArray[np.int32]] = {}
        self.version = 0

    @property
    def cluster_slots(self) -> int:
        """Thread numbers of one cluster."""
        return self.geometry.cluster_size * self.geometry.slots

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
                self.matrix[cluster][:] = self.tick[cluster]

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

    def release(self, cluster: int, threads: Ints) -> npt.NDArray[np.int32]:
        """A clock holding what ``threads`` did and know up to now, for ``acquire``."""
        self._advance(np.array([cluster]))
        known = self._materialise(cluster)
        clock: npt.NDArray[np.int32] = known[threads].max(axis=0)
        clock[threads] = self.tick[cluster]
        return clock

    def acquire(self, cluster: int, threads: Ints, clock: npt.NDArray[np.int32]) -> None:
        """``threads`` learn what ``clock`` holds."""
        self.version += 1
        known = self._materialise(cluster)
        known[threads] = np.maximum(known[threads], clock)

    def ordered(self, earlier: Ints, stamp: Ints, thread: Ints) -> Bools:
        """Per element: does the access of ``earlier`` at ``stamp`` happen before ``thread`` now?"""
        slots, size = self.geometry.slots, self.geometry.cluster_size
        cta = thread // slots
        result: Bools = (earlier == thread) & (stamp < IN_FLIGHT)
        same_cluster = earlier // (slots * size) == thread // (slots * size)
        local = cta - self.first_cta
        cluster = local // size
        result |= same_cluster & (stamp < self.cluster_known[cluster])
        result |= (earlier // slots == cta) & (stamp < self.cta_known[local])
        row = thread // LANES - self.first_cta * self.geometry.warps
        result |= (earlier // LANES == thread // LANES) & (stamp < self.warp_known[row])
        if self.matrix:
            self._ordered_by_matrix(result, same_cluster, cluster, earlier, stamp, thread)
        return result

    def _ordered_by_matrix(
        self, result: Bools, same: Bools, cluster: Ints, earlier: Ints, stamp: Ints, thread: Ints
    ) -> None:
        open_ = same & ~result
        for index, known in self.matrix.items():
            at = np.flatnonzero(open_ & (cluster == index))
            if at.size:
                t, u = thread[at] % self.cluster_slots, earlier[at] % self.cluster_slots
                result[at] = stamp[at] < known[t, u]

    def same_cluster(self, a: Ints, b: Ints) -> Bools:
        """Do two thread numbers belong to one cluster?"""
        result: Bools = a // self.cluster_slots == b // self.cluster_slots
        return result

    def _advance(self, clusters: Ints) -> None:
        self.tick[clusters] += 1
        self.version += 1

    def _materialise(self, cluster: int) -> npt.NDArray[np.int32]:
        if cluster not in self.matrix:
            size, slots = self.geometry.cluster_size, self.geometry.slots
            known = np.full((size * slots,) * 2, self.cluster_known[cluster], np.int32)
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


class ReaderLog:
    """Readers beyond the first of granules that several unordered threads have read."""

    def __init__(self) -> None:
        self.chunks: list[tuple[Ints, Ints, Ints, Ints]] = []
        self.size = 0
        self.compact_at = 1 << 20

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

    def restamp(self, chosen: Bools, stamps: Ints) -> None:
        """The chosen entries get new stamps."""
        self.joined()[2][chosen] = stamps

    def keep(self, chosen: Bools) -> None:
        g, t, stamps, sites = self.joined()
        self.chunks = [(g[chosen], t[chosen], stamps[chosen], sites[chosen])]
        self.size = self.chunks[0][0].size
        self.compact_at = max(1 << 20, 2 * self.size)

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
    ) -> None:
        """Threads write the selected granules. ``stamp`` broadcasts against ``threads``."""
        self.flights |= np.ndim(stamp) == 0 and int(stamp) >= IN_FLIGHT
        repeated = self._repeated(selection)
        if repeated is not None:
            self._report_repeated(selection, threads, stamp, repeated, site, race)
        if self.writer is None:
            self._allocate_writer()
        else:
            self._check_writer(selection, threads, clocks, race, site)
        if self.reader is not None:
            self._check_readers(selection, threads, clocks, race, site)
        assert self.writer is not None
        self.writer[selection] = threads
        self.writer_stamp[selection] = stamp
        self.writer_site[selection] = site

    def read(
        self,
        selection: Selection,
        threads: Ints,
        stamp: Ints,
        site: int,
        clocks: Clocks,
        race: Race,
    ) -> None:
        """Threads read the selected granules."""
        self.flights |= np.ndim(stamp) == 0 and int(stamp) >= IN_FLIGHT
        if self.writer is not None:
            self._check_writer(selection, threads, clocks, race, site)
        if self.reader is None:
            self._allocate_reader()
        assert self.reader is not None
        repeated = self._repeated(selection)
        prior = self.reader[selection]
        if repeated is None and int(prior.max(initial=NOBODY)) < 0:
            self._set_reader(selection, threads, stamp, site)
            return
        if isinstance(selection, slice):
            selection = np.arange(selection.start, selection.stop)
        stamps = np.broadcast_to(np.asarray(stamp, np.int32), threads.shape)
        self._add_readers(selection, threads, stamps, site, prior, repeated, clocks)

    def _set_reader(self, selection: Selection, threads: Ints, stamp: Ints, site: int) -> None:
        assert self.reader is not None
        self.reader[selection] = threads
        self.reader_stamp[selection] = stamp
        self.reader_site[selection] = site

    def _add_readers(
        self,
        granules: Ints,
        threads: Ints,
        stamps: Ints,
        site: int,
        prior: Ints,
        repeated: tuple[Ints, Ints] | None,
        clocks: Clocks,
    ) -> None:
        """Readers of granules that had readers, or several readers at once."""
        assert self.reader is not None
        crowded = self.crowd[granules] > 0
        airborne = (prior >= 0) & (self.reader_stamp[granules] >= IN_FLIGHT)
        replaces = (prior < 0) | ((prior == threads) & ~crowded & ~airborne)
        open_ = np.flatnonzero(~replaces)
        if open_.size:
            earlier = self.reader_stamp[granules[open_]]
            done = clocks.ordered(prior[open_], earlier, threads[open_])
            everyone = ~crowded[open_] | self._all_ordered(
                prior[open_], earlier, threads[open_], clocks
            )
            replaces[open_] = done & everyone
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
        made it? Sufficient, not necessary: only CTA-wide and cluster-wide barriers count."""
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
        g, t, stamps, _ = self.log.joined()
        local = t // clocks.geometry.slots - clocks.first_cta
        known = clocks.cluster_known[local // clocks.geometry.cluster_size]
        if clocks.geometry.cluster_size == 1:
            known = np.maximum(known, clocks.cta_known[local])
        self.log.keep((self.crowd[g] > 0) & (stamps >= known))

    def forget_clusters(self) -> None:
        """The batch's threads are over: the log (which orders threads of one cluster) is idle."""
        self.log.clear()

    # --- landing

    def land_write(self, selection: Selection, threads: Ints, flight: int, stamps: Ints) -> None:
        """The writes stamped ``flight`` that the granules still hold happen now, at ``stamps``."""
        assert self.writer is not None
        held = (self.writer_stamp[selection] == flight) & (self.writer[selection] == threads)
        at = np.flatnonzero(held)
        self.writer_stamp[_granules_at(selection, at)] = stamps[at]

    def land_read(self, selection: Selection, threads: Ints, flight: int, stamps: Ints) -> None:
        """The reads stamped ``flight`` happen now, at ``stamps``."""
        assert self.reader is not None
        granules = _granules_at(selection, np.arange(threads.size))
        alone = (self.reader[granules] == threads) & (self.crowd[granules] == 0)
        at = np.flatnonzero(alone & (self.reader_stamp[granules] == flight))
        self.reader_stamp[granules[at]] = stamps[at]
        if not self.log.size:
            return
        held, readers, logged, _ = self.log.joined()
        entries = np.flatnonzero(logged == flight)
        order = np.lexsort((threads, granules))
        keys = _pairs(granules, threads)[order]
        wanted = _pairs(held[entries], readers[entries])
        place = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        mine = keys[place] == wanted
        self.log.restamp(entries[mine], stamps[order[place[mine]]])
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
    ) -> None:
        assert self.writer is not None
        prior = self.writer[selection]
        suspects = np.flatnonzero(
            (prior >= 0) & self._others(prior, self.writer_stamp[selection], threads)
        )
        if not suspects.size:
            return
        granules = _granules_at(selection, suspects)
        prior, threads = prior[suspects], threads[suspects]
        stamps = self.writer_stamp[granules]
        bad = ~clocks.ordered(prior, stamps, threads)
        self._report(bad, granules, threads, prior, stamps, self.writer_site[granules], race, site)

    def _others(self, prior: Ints, stamps: Ints, threads: Ints) -> Bools:
        """Accesses that program order may not order: other threads', and those in flight."""
        result: Bools = prior != threads
        return result | (stamps >= IN_FLIGHT) if self.flights else result

    def _check_readers(
        self, selection: Selection, threads: Ints, clocks: Clocks, race: Race, site: int
    ) -> None:
        assert self.reader is not None
        prior = self.reader[selection]
        at = np.flatnonzero(prior >= 0)
        if not at.size:
            return
        granules, prior, threads = _granules_at(selection, at), prior[at], threads[at]
        self._check_crowd(granules, threads, clocks, race, site)
        other = np.flatnonzero(self._others(prior, self.reader_stamp[granules], threads))
        if other.size:
            g = granules[other]
            stamps = self.reader_stamp[g]
            bad = ~clocks.ordered(prior[other], stamps, threads[other])
            bad &= (self.crowd[g] == 0) | ~clocks.same_cluster(prior[other], threads[other])
            sites = self.reader_site[g]
            self._report(bad, g, threads[other], prior[other], stamps, sites, race, site)
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
        self, granules: Ints, threads: Ints, clocks: Clocks, race: Race, site: int
    ) -> None:
        """Granules with several readers of one cluster: all are in the log, the first included.

        Readers of a cluster other than the writer's need no log: any of them proves the race."""
        assert self.reader is not None
        near = clocks.same_cluster(self.reader[granules], threads)
        crowded = np.flatnonzero((self.crowd[granules] > 0) & near)
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
        bad = ~clocks.ordered(readers[at], stamps[at], writer)
        self._report(bad, held[at], writer, readers[at], stamps[at], sites[at], race, site)
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


def _granules_at(selection: Selection, positions: Ints) -> Ints:
    if isinstance(selection, slice):
        return np.asarray(positions + selection.start)
    return np.asarray(selection[positions])
