"""Shared memory: one window per CTA, those of a batch side by side.

An address is an offset in a window and, from bit ``RANK_SHIFT`` up, the rank in the cluster of the CTA
whose window it is.

Not here: the checks both memories share (``memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilejit.dtypes import DType
from tilejit.sim.faults import Site
from tilejit.sim.geometry import OFFSET_MASK, RANK_SHIFT, Bools, Ints, any_lane
from tilejit.sim.hazards import MAX_GRANULE_BYTES
from tilejit.sim.memory import (
    UNORDERED_NOTE,
    Bytes,
    Lanes,
    Memory,
    Watch,
    Window,
    element_text,
    taken,
)

SHARED_START_BYTES = 1024
"""Offset of the first shared buffer: offset 0 stays invalid, as does anything derived from null."""
SHARED_GAP_BYTES = 16
"""Unowned bytes after each shared buffer, so that a small overrun is never a neighbour."""


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """A shared allocation: ``offset_bytes`` in the CTA's window, ``nbytes`` long."""

    name: str
    offset_bytes: int
    nbytes: int
    dtype: DType


def place_shared(wanted: Sequence[tuple[str, int, int, DType]]) -> dict[str, SharedBuffer]:
    """Offsets of shared buffers given as (name, bytes, alignment in bytes, dtype), with gaps."""
    placed: dict[str, SharedBuffer] = {}
    end = SHARED_START_BYTES
    for name, nbytes, align_bytes, dtype in wanted:
        align = max(align_bytes, MAX_GRANULE_BYTES)
        offset = -(-end // align) * align
        placed[name] = SharedBuffer(name, offset, nbytes, dtype)
        end = offset + nbytes + SHARED_GAP_BYTES
    return placed


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """The last access of each thread of a cluster to one CTA's memory: its stamp (-1: none), its site."""

    stamps: Ints
    sites: Ints


class SharedMemory(Memory):
    """The shared windows of all CTAs of a batch, side by side in one array."""

    def __init__(
        self,
        buffers: dict[str, SharedBuffer],
        ctas: int,
        watch: Watch,
    ) -> None:
        super().__init__(watch)
        self.buffers = buffers
        end = max((b.offset_bytes + b.nbytes for b in buffers.values()), default=0)
        self.window_bytes = -(-end // MAX_GRANULE_BYTES) * MAX_GRANULE_BYTES
        total = self.window_bytes * ctas
        data, written = np.zeros(total, np.uint8), np.zeros(total, np.bool_)
        self.window = Window("shared", data, written, watch.shadow(total), 0, True)
        self.alive: Bools | None = None
        """The batch's lanes that have not exited, where CTAs can reach each other's windows."""
        self.visits: dict[int, Visits] = {}
        """By CTA of the batch."""
        owned = np.zeros(self.window_bytes, np.bool_)
        for buffer in buffers.values():
            owned[buffer.offset_bytes : buffer.offset_bytes + buffer.nbytes] = True
        self.owned_before = np.concatenate([[0], np.cumsum(owned)])
        """By byte of a CTA's window: how many before it belong to buffers."""

    def describe(self, window: Window, offset: int) -> str:
        cta, offset = divmod(offset, self.window_bytes)
        size = self.geometry.cluster_size
        whose = f" of rank {cta % size}" if size > 1 else ""
        buffer = self._holder(offset)
        if buffer is None:
            return f"shared offset {offset}{whose}"
        inside = offset - buffer.offset_bytes
        return f"byte {inside}{element_text(buffer.dtype, inside)} of `{buffer.name}`{whose}"

    def owner(self, window: Window, offset: int) -> str:
        buffer = self._holder(offset % self.window_bytes)
        return window.name if buffer is None else buffer.name

    def _holder(self, inside: int) -> SharedBuffer | None:
        """The buffer that the byte of a CTA's window belongs to."""
        for buffer in self.buffers.values():
            if 0 <= inside - buffer.offset_bytes < buffer.nbytes:
                return buffer
        return None

    def load(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Bytes:
        """(lanes, nbytes) at flat addresses; zeros where the access is faulty."""
        at, offsets = self.locate(addresses, nbytes, lanes, site, name)
        if at is None:
            return self.read(self.named(name), offsets, nbytes, lanes, site)
        out = np.zeros((addresses.size, nbytes), np.uint8)
        if at.size:
            out[at] = self.read(self.named(name), offsets, nbytes, taken(lanes, at), site)
        return out

    def store(
        self, addresses: Ints, values: Bytes, lanes: Lanes, site: Site, name: str | None
    ) -> None:
        """Stores (lanes, nbytes) at flat addresses; faulty lanes store nothing."""
        at, offsets = self.locate(addresses, values.shape[1], lanes, site, name)
        if at is not None:
            if not at.size:
                return
            values, lanes = values[at], taken(lanes, at)
        self.write(self.named(name), offsets, values, lanes, site)

    def update(
        self,
        addresses: Ints,
        nbytes: int,
        change: Callable[[int, Bytes], Bytes],
        lanes: Lanes,
        site: Site,
        name: str | None,
    ) -> Bytes:
        """Atomic read-modify-writes at flat addresses: the old bytes."""
        out = np.zeros((addresses.size, nbytes), np.uint8)
        at, offsets = self.locate(addresses, nbytes, lanes, site, name)
        if offsets.size:
            part = taken(lanes, at)
            old = self.read_modify_write(self.named(name), offsets, nbytes, change, at, part, site)
            out[slice(None) if at is None else at] = old
        return out

    def named(self, name: str | None) -> Window:
        """The window, which messages call ``name``."""
        self.window.name = name or "shared"
        return self.window

    def locate(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> tuple[Ints | None, Ints]:
        """The lanes whose access is sound (None: all) and their offsets in the batch's window."""
        wrong = self.misaligned(addresses, nbytes, lanes, site)
        size = self.geometry.cluster_size
        cta, offsets, far = lanes.cta, addresses, None
        if size > 1:
            rank, offsets = addresses >> RANK_SHIFT, addresses & OFFSET_MASK
            own = lanes.cta % size
            far = self._beyond(rank, own, lanes, site, name)
            cta = lanes.cta - own + (rank if far is None else np.where(far, own, rank))
        outside = self._outside(offsets, nbytes, lanes, site, name, far)
        bad = None
        for part in (wrong, far, outside):
            if part is not None:
                bad = part if bad is None else bad | part
        if bad is None:
            return None, offsets + cta * self.window_bytes
        at = np.flatnonzero(~bad)
        return at, offsets[at] + cta[at] * self.window_bytes

    def _beyond(
        self, rank: Ints, own: Ints, lanes: Lanes, site: Site, name: str | None
    ) -> Bools | None:
        """Per lane: does the address name a CTA that the access cannot reach? Reported."""
        other: Bools = rank != own
        if not other.any():
            return None
        size = self.geometry.cluster_size
        outside: Bools = (rank < 0) | (rank >= size)
        if outside.any():
            at = np.flatnonzero(outside)
            what = (
                f"{site.verb} shared memory of rank {int(rank[at[0]])}, but the cluster has {size} CTAs"
                if name is None
                else f"{site.verb} outside `{name}`, at an address outside the CTA's shared memory"
            )
            self.report("sim/out-of-bounds", what, site, lanes, at)
        far: Bools = other & ~outside
        if not far.any():
            return outside
        at = np.flatnonzero(far)
        if not site.remote:
            what = (
                f"{site.verb} shared memory of rank {int(rank[at[0]])} from rank {int(own[at[0]])}, "
                "which only an instruction on `.shared::cluster` reaches"
            )
            self.report("sim/out-of-bounds", what, site, lanes, at)
            return other
        gone = far & self._exited(lanes.cta - own + np.where(far, rank, own))
        if gone.any():
            at = np.flatnonzero(gone)
            what = (
                f"{site.verb} shared memory of rank {int(rank[at[0]])}, whose CTA has exited: the memory "
                "may be another CTA's by now"
            )
            self.report("sim/cluster-exited", what, site, lanes, at)
        self.check_started(taken(lanes, np.flatnonzero(far)), int(rank[np.argmax(far)]), site)
        self._note_visits(far & ~gone, rank - own + lanes.cta, lanes, site)
        lost: Bools = np.asarray(outside | gone)
        return lost if lost.any() else None

    def check_started(self, lanes: Lanes, rank: int, site: Site) -> None:
        """Reports threads that reach another CTA's memory, the first of them that of ``rank``, and do not
        know that it runs yet."""
        if not self.watch.hazards or self.clocks is None:
            return
        at = np.flatnonzero(~self.clocks.know_start(lanes.threads))
        if not at.size:
            return
        if self.watch.ordered_by_memory:
            self.watch.notes.add(UNORDERED_NOTE)
            return
        what = (
            f"{site.verb} shared memory of rank {rank}, and nothing makes it wait until that CTA has started: "
            "the memory may be another CTA's still"
        )
        notes = (("help", "T.cuda.cluster_sync() before the first access, which all CTAs join"),)
        self.report("sim/cluster-not-started", what, site, lanes, at, notes=notes)

    def _note_visits(self, chosen: Bools, cta: Ints, lanes: Lanes, site: Site) -> None:
        """Threads access another CTA's memory, which must not be gone by then (``check_exit``)."""
        if not self.watch.hazards or self.watch.ordered_by_memory or site.asynchronous:
            return
        slots = self.geometry.cluster_size * self.geometry.slots
        stamps = np.broadcast_to(np.asarray(lanes.stamp), chosen.shape)
        for target in np.unique(cta[chosen]).tolist():
            at = np.flatnonzero(chosen & (cta == target))
            visits = self.visits.get(target)
            if visits is None:
                visits = self.visits[target] = Visits(np.full(slots, -1), np.zeros(slots, np.int64))
            threads = lanes.threads[at] % slots
            visits.stamps[threads], visits.sites[threads] = stamps[at], site.index

    def check_exit(self, cta: int) -> None:
        """The CTA has exited: whoever accessed its memory must have done so before, whatever the
        schedule: then some thread of it knows of the access."""
        visits = self.visits.pop(cta, None)
        if visits is None or self.clocks is None:
            return
        size, slots = self.geometry.cluster_size, self.geometry.slots
        first_cta = self.clocks.first_cta
        visitors = np.flatnonzero(visits.stamps >= 0)
        threads = (first_cta + cta // size * size) * slots + visitors
        stamps = visits.stamps[visitors]
        late = np.ones(visitors.size, np.bool_)
        for own in range((first_cta + cta) * slots, (first_cta + cta + 1) * slots):
            late &= ~self.clocks.ordered(threads, stamps, np.full(visitors.size, own))
            if not late.any():
                return
        for index in np.unique(visits.sites[visitors[late]]).tolist():
            of_site = late & (visits.sites[visitors] == index)
            site = self.watch.sites[index]
            thread = int(threads[int(np.argmax(of_site))])
            self.faults.add(
                "sim/cluster-exited",
                f"`{site.what}` {site.verb} shared memory of rank {cta % size}, and nothing keeps that CTA "
                "from exiting before",
                site.span,
                (
                    ("where", self.geometry.describe_thread(thread)),
                    ("help", "T.cuda.cluster_sync() after the last access, which all CTAs join"),
                ),
                site.what,
                int(of_site.sum()),
            )

    def _exited(self, cta: Ints) -> Bools:
        """Per CTA of the batch: has every thread exited?"""
        assert self.alive is not None, "the batch says who is alive"
        per_cta = self.alive.reshape(-1, self.geometry.slots)
        gone: Bools = ~any_lane(per_cta)
        return np.asarray(gone[cta])

    def owns(self, inside: Ints, nbytes: int) -> Bools:
        """Per place in a CTA's window: do ``nbytes`` from there belong to a buffer? Buffers lie apart, so
        that bytes of them all are bytes of one."""
        held: Bools = self.owned_before[inside + nbytes] - self.owned_before[inside] == nbytes
        return held

    def _outside(
        self,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        name: str | None,
        told: Bools | None,
    ) -> Bools | None:
        """Per lane: are the bytes outside the buffer, or outside every buffer? Reported but for the
        lanes of which something was ``told`` already."""
        if name is not None:
            buffer = self.buffers[name]
            start, size = buffer.offset_bytes, buffer.nbytes
            bad = (offsets < start) | (offsets > start + size - nbytes)
        else:
            bad = (offsets < 0) | (offsets > self.window_bytes - nbytes)
            at = np.flatnonzero(~bad)
            bad[at] = ~self.owns(offsets[at], nbytes)
        if told is not None:
            bad = bad & ~told
        if not bad.any():
            return None
        wrong = np.flatnonzero(bad)
        first = int(offsets[wrong[0]])
        if name is not None:
            offset = first - start
            what = (
                f"{site.verb} bytes [{offset}, {offset + nbytes}) of `{name}`, which has "
                f"{size} bytes"
            )
        else:
            what = f"{site.verb} {nbytes} bytes at shared offset {first}, which no buffer holds"
        self.report("sim/out-of-bounds", what, site, lanes, wrong)
        return bad
