"""Memory accesses: checks, history, bytes. What global and shared memory have in common.

An access is a set of lanes with one address each and one width. It is checked for alignment,
bounds, gaps between a strided tensor's elements, reads of bytes nobody wrote, and races; what
fails is reported and left out, the rest is done.

Not here: where buffers lie (``global_memory``, ``shared_memory``), register files (``registers``),
ordering (``hazards``), who executes (``cohort``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.dtypes import DType
from tilejit.sim.faults import FaultLog, Site, place
from tilejit.sim.geometry import Bools, Geometry, Ints
from tilejit.sim.hazards import (
    IN_FLIGHT,
    MAX_GRANULE_BYTES,
    Asynchronous,
    Clocks,
    Race,
    Shadow,
)

if TYPE_CHECKING:
    from tilejit.sim.copies import Copies

Bytes: TypeAlias = npt.NDArray[np.uint8]

UNORDERED_NOTE = (
    "some accesses are ordered by nothing but fences and strong memory accesses, which the simulator "
    "does not model: it cannot tell whether they race"
)
WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(slots=True, eq=False)
class Lanes:
    """The lanes of one operation that touch memory: thread numbers, rows' CTAs (batch-relative),
    and stamps, each flat over the active lanes (or one value for all)."""

    threads: Ints
    cta: Ints
    stamp: Any


@dataclass(slots=True, eq=False)
class Window:
    """Bytes that offsets index into: one global buffer, or the shared memory of all CTAs.

    ``shadow_offset``: added to an offset to index ``shadow`` (buffers that overlap share one).
    ``word_aligned``: whether offset alignment equals address alignment up to 16 bytes.
    """

    name: str
    data: Bytes
    written: npt.NDArray[np.bool_] | None
    shadow: Shadow | None
    shadow_offset: int
    word_aligned: bool
    dtype: DType | None = None
    words: dict[int, Any] = field(default_factory=dict)
    objects: npt.NDArray[np.bool_] | None = None
    """Per byte: does it belong to a live mbarrier? None: there was none yet."""
    changes: int = 0
    """How often something was written, a value that was there before included unless by an atomic."""

    def gather(self, offsets: Ints, nbytes: int, dense: bool) -> Bytes:
        """``nbytes`` from each offset: shape (lanes, nbytes)."""
        return _gather(self.data, self.words, offsets, nbytes, dense, self.word_aligned)

    def scatter(self, offsets: Ints, values: Bytes, dense: bool) -> None:
        """Writes ``values`` (lanes, nbytes); of equal offsets the last lane wins."""
        _scatter(self.data, offsets, values, dense, self.word_aligned)
        self.changes += 1
        self.mark_written(offsets, values.shape[1], dense)

    def mark_written(self, offsets: Ints, nbytes: int, dense: bool) -> None:
        """The bytes count as written."""
        if self.written is not None:
            flags = np.ones((offsets.size, nbytes), np.uint8)
            _scatter(self.written.view(np.uint8), offsets, flags, dense, self.word_aligned)

    def unwritten(self, offsets: Ints, nbytes: int, dense: bool) -> Bools | None:
        """Per lane: is one of its bytes unwritten? None when no lane's is."""
        if self.written is None:
            return None
        flags = _gather(self.written.view(np.uint8), {}, offsets, nbytes, dense, self.word_aligned)
        if flags.all():
            return None
        return np.asarray(~flags.all(axis=1))


def _word_view(data: Bytes, nbytes: int) -> Any:
    whole = data[: data.size // nbytes * nbytes]
    if nbytes in WORDS:
        return whole.view(WORDS[nbytes])
    return whole.reshape(-1, nbytes)


def _gather(
    data: Bytes, words: dict[int, Any], offsets: Ints, nbytes: int, dense: bool, aligned: bool
) -> Bytes:
    if dense:
        first = int(offsets[0])
        return data[first : first + offsets.size * nbytes].reshape(-1, nbytes).copy()
    if aligned and nbytes & (nbytes - 1) == 0 and nbytes <= MAX_GRANULE_BYTES:
        view = words.get(nbytes)
        if view is None:
            view = words[nbytes] = _word_view(data, nbytes)
        taken = np.take(view, offsets // nbytes, axis=0)
        bytes_: Bytes = taken.view(np.uint8).reshape(-1, nbytes)
        return bytes_
    return data[offsets[:, None] + np.arange(nbytes)]


def _scatter(data: Bytes, offsets: Ints, values: Bytes, dense: bool, aligned: bool) -> None:
    nbytes = values.shape[1]
    if dense:
        first = int(offsets[0])
        data[first : first + values.size] = values.ravel()
    elif aligned and nbytes & (nbytes - 1) == 0 and nbytes <= MAX_GRANULE_BYTES:
        view = _word_view(data, nbytes)
        if nbytes in WORDS:
            values = np.ascontiguousarray(values).view(WORDS[nbytes])[:, 0]
        view[offsets // nbytes] = values
    else:
        data[offsets[:, None] + np.arange(nbytes)] = values


def is_dense(offsets: Ints, nbytes: int) -> bool:
    """Are the accesses adjacent and ascending?"""
    count = offsets.size
    if int(offsets[-1]) - int(offsets[0]) != (count - 1) * nbytes:
        return False
    return bool((np.diff(offsets) == nbytes).all())


@dataclass(frozen=True, slots=True, eq=False)
class Watch:
    """What the memories of one launch look for, and where they report it.

    ``ordered_by_memory``: the program synchronises through fences and strong accesses, which is
    not modelled; a pair that nothing else orders is then no proof of a race and becomes a note.
    ``thread_type``, ``strong_sites``: see ``Shadow``. ``writers``: the sites that may write a buffer, by
    name; None: any. ``hazards`` False: races are not looked for.
    """

    geometry: Geometry
    faults: FaultLog
    notes: set[str]
    sites: Sequence[Site]
    strong_sites: Bools
    thread_type: Any
    writers: Mapping[str | None, list[Site]]
    ordered_by_memory: bool
    hazards: bool

    def shadow(self, nbytes: int) -> Shadow | None:
        """The history of ``nbytes`` of memory, if one is kept."""
        return Shadow(nbytes, self.thread_type, self.strong_sites) if self.hazards else None


@dataclass(frozen=True, slots=True)
class Read:
    """What a thread has read, for ``spinning``: ``offset`` in the window, ``address`` in words."""

    thread: int
    site: Site
    owner: str
    offset: int
    address: str
    data: bytes


class Memory:
    """What the two memories share: the checks, the report, the access itself."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.geometry = watch.geometry
        self.faults = watch.faults
        self.clocks: Clocks | None = None
        self.copies: Copies | None = None
        """The running batch's asynchronous copies."""
        self.reads: list[Read] | None = None
        """Where the first lane's reads are listed, while somebody wants to know."""

    def read(self, window: Window, offsets: Ints, nbytes: int, lanes: Lanes, site: Site) -> Bytes:
        """Checked bytes at in-bounds offsets: (lanes, nbytes)."""
        dense = is_dense(offsets, nbytes)
        self.check_written(window, offsets, nbytes, lanes, site, dense)
        self.watch_read(window, offsets, nbytes, lanes, site, dense)
        data = window.gather(offsets, nbytes, dense)
        if self.reads is not None:
            self._list_read(window, offsets, data, lanes, site)
        return data

    def _list_read(
        self, window: Window, offsets: Ints, data: Bytes, lanes: Lanes, site: Site
    ) -> None:
        assert self.reads is not None
        offset, thread = int(offsets[0]), int(lanes.threads[0])
        owner, where = self.owner(window, offset), self.describe(window, offset)
        self.reads.append(Read(thread, site, owner, offset, where, data[0].tobytes()))

    def check_written(
        self, window: Window, offsets: Ints, nbytes: int, lanes: Lanes, site: Site, dense: bool
    ) -> None:
        """Reports lanes that read bytes nobody wrote."""
        unwritten = window.unwritten(offsets, nbytes, dense)
        if unwritten is not None:
            at = np.flatnonzero(unwritten)
            first = int(offsets[at[0]])
            what = f"reads {nbytes} bytes of `{self.owner(window, first)}` that nobody has written"
            self.report("sim/unwritten-read", what, site, lanes, at, window, first)

    def watch_read(
        self,
        window: Window,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        dense: bool,
        asynchronous: Asynchronous | None = None,
    ) -> None:
        """Notes a read in the history, and reports what it races with."""
        if window.objects is not None:
            self._check_objects(window, window.objects, offsets, nbytes, lanes, site, dense)
        shadow = window.shadow
        if shadow is None or self.clocks is None:
            return
        chosen, threads = self._granules(shadow, window, offsets, nbytes, lanes, dense)
        stamp, race = self._stamp_per(threads, lanes), self._race(window, site)
        shadow.read(chosen, threads, stamp, site.index, self.clocks, race, asynchronous)

    def write(self, window: Window, offsets: Ints, values: Bytes, lanes: Lanes, site: Site) -> None:
        """Checked store of (lanes, nbytes) at in-bounds offsets."""
        nbytes = values.shape[1]
        dense = is_dense(offsets, nbytes)
        self.watch_write(window, offsets, nbytes, lanes, site, dense)
        window.scatter(offsets, values, dense)

    def watch_write(
        self,
        window: Window,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        dense: bool,
        asynchronous: Asynchronous | None = None,
    ) -> None:
        """Notes a write in the history, and reports what it races with."""
        if window.objects is not None:
            self._check_objects(window, window.objects, offsets, nbytes, lanes, site, dense)
        shadow = window.shadow
        if shadow is None or self.clocks is None:
            return
        chosen, threads = self._granules(shadow, window, offsets, nbytes, lanes, dense)
        stamp, race = self._stamp_per(threads, lanes), self._race(window, site)
        shadow.write(chosen, threads, stamp, site.index, self.clocks, race, asynchronous)

    def _check_objects(
        self,
        window: Window,
        objects: Bools,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        dense: bool,
    ) -> None:
        """Reports ordinary accesses to the bytes of live mbarriers."""
        if dense:
            first = int(offsets[0])
            hit = objects[first : first + offsets.size * nbytes].reshape(-1, nbytes).any(axis=1)
        elif nbytes <= MAX_GRANULE_BYTES:
            # An access is aligned and an object has 8 bytes: its first byte, or one 8 further, tells.
            hit = objects[offsets] | objects[offsets + max(0, nbytes - 8)]
        else:
            hit = objects[offsets[:, None] + np.arange(nbytes)].any(axis=1)
        if hit.any():
            at = np.flatnonzero(hit)
            what = (
                f"{site.verb} {nbytes} bytes that hold a live mbarrier: only mbarrier instructions may "
                "touch it before mbarrier.inval"
            )
            help_ = "another buffer for data; mbarrier.inval by one thread makes the object memory again"
            self.report(
                "sim/mbarrier-object", what, site, lanes, at, window, int(offsets[at[0]]),
                (("help", help_),),
            )  # fmt: skip

    def landed(
        self,
        window: Window,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        flight: int,
        *,
        wrote: bool,
        agent: int | None = None,
    ) -> None:
        """The accesses that were noted with the stamp ``flight`` happen now, as the lanes' stamps say:
        as the lanes' own, or as the ``agent``'s."""
        shadow = window.shadow
        if shadow is None:
            return
        chosen, threads = self._granules(shadow, window, offsets, nbytes, lanes, False)
        land = shadow.land_write if wrote else shadow.land_read
        stamps = np.broadcast_to(self._stamp_per(threads, lanes), threads.shape)
        land(chosen, threads, flight, stamps, agent)

    @staticmethod
    def _granules(
        shadow: Shadow, window: Window, offsets: Ints, nbytes: int, lanes: Lanes, dense: bool
    ) -> tuple[Any, Ints]:
        """Granules of the accesses, and the thread of each."""
        moved = offsets + window.shadow_offset if window.shadow_offset else offsets
        return shadow.select(moved, nbytes, lanes.threads, dense)

    def read_modify_write(
        self,
        window: Window,
        offsets: Ints,
        nbytes: int,
        change: Callable[[int, Bytes], Bytes],
        at: Ints | None,
        lanes: Lanes,
        site: Site,
    ) -> Bytes:
        """``change(lane position, old bytes)`` gives each lane's new bytes, one lane at a time."""
        self.check_written(window, offsets, nbytes, lanes, site, False)
        self.watch_write(window, offsets, nbytes, lanes, site, False)
        old, before = (
            np.zeros((offsets.size, nbytes), np.uint8),
            window.gather(offsets, nbytes, False),
        )
        for i, offset in enumerate(offsets.tolist()):
            old[i] = window.data[offset : offset + nbytes]
            position = i if at is None else int(at[i])
            window.data[offset : offset + nbytes] = change(position, old[i])
        window.changes += int((window.gather(offsets, nbytes, False) != before).any())
        if self.reads is not None:
            self._list_read(window, offsets, old, lanes, site)
        return old

    def misaligned(self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site) -> Bools | None:
        """Per lane: is the address no multiple of ``nbytes``? Reported; None when all are."""
        alignment = nbytes & -nbytes
        if alignment == 1:
            return None
        wrong: Bools = (addresses & (alignment - 1)) != 0
        if not wrong.any():
            return None
        at = np.flatnonzero(wrong)
        address = int(addresses[at[0]])
        what = (
            f"{site.verb} {nbytes} bytes at address 0x{address:x}, which is "
            f"{address % alignment} bytes past a multiple of {alignment}"
        )
        self.report("sim/misaligned", what, site, lanes, at)
        return wrong

    def report(
        self,
        code: str,
        what: str,
        site: Site,
        lanes: Lanes,
        at: Ints,
        window: Window | None = None,
        offset: int = 0,
        notes: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """A fault of the lanes ``at``; the first is the example."""
        if self.faults.known(code, site.span, site.what, at.size):
            return
        thread = int(lanes.threads[at[0]])
        told = [("where", self.geometry.describe_thread(thread)), *notes]
        if window is not None:
            told.insert(1, ("address", self.describe(window, offset)))
        self.faults.add(code, f"`{site.what}` {what}", site.span, tuple(told), site.what, at.size)

    def describe(self, window: Window, offset: int) -> str:
        """``byte 64 (element 16) of `S``` ."""
        raise NotImplementedError

    def owner(self, window: Window, offset: int) -> str:
        """The name of the buffer that the byte belongs to."""
        del offset
        return window.name

    def _stamp_per(self, threads: Ints, lanes: Lanes) -> Any:
        if np.ndim(lanes.stamp) == 0 or threads.size == lanes.threads.size:
            return lanes.stamp
        return np.repeat(lanes.stamp, threads.size // lanes.threads.size)

    def _race(self, window: Window, site: Site) -> Any:
        def race(
            granule: int, thread: int, earlier: int, site_index: int, stamp: int, times: int
        ) -> None:
            other = self.watch.sites[site_index]
            if stamp >= IN_FLIGHT:
                self._in_flight(window, site, granule, thread, earlier, other, stamp, times)
                return
            if self.watch.ordered_by_memory:
                self.watch.notes.add(UNORDERED_NOTE)
                return
            if self.clocks is not None and earlier >= self.clocks.first_agent:
                self._not_waited_for(window, site, granule, thread, earlier, other, stamp, times)
                return
            if self.faults.known("sim/race", site.span, other.span, times):
                return
            assert window.shadow is not None
            size = window.shadow.granule_bytes
            offset = granule * size - window.shadow_offset
            self.faults.add(
                "sim/race",
                f"two threads touch the same {size} bytes of `{self.owner(window, offset)}`, one of them "
                "writing, and nothing orders the two accesses",
                site.span,
                (
                    ("where", f"{self.geometry.describe_thread(thread)} {site.verb} here"),
                    ("other", f"{self.geometry.describe_thread(earlier)} {other.verb} at {place(other.span)}"),
                    ("address", self.describe(window, offset)),
                    ("help", _race_help(thread, earlier, other, self.geometry)),
                ),
                other.span,
                times,
            )  # fmt: skip

        return race

    def _in_flight(
        self,
        window: Window,
        site: Site,
        granule: int,
        thread: int,
        earlier: int,
        other: Site,
        stamp: int,
        times: int,
    ) -> None:
        """An access to bytes that an asynchronous copy has not finished with."""
        if self.faults.known("sim/in-flight", site.span, other.span, times):
            return
        state = self.copies.explain(stamp, earlier, thread) if self.copies is not None else None
        progress, repair = state or (
            "its CTA has ended without waiting for it",
            "nothing but the end of the launch orders accesses of different CTAs",
        )
        side = "write to" if other.writes else "read of"
        issued = "copy", f"{self.geometry.describe_thread(earlier)}, at {place(other.span)}"
        doing = f"an asynchronous copy's {side} them"
        self._report_under_way(
            window, site, granule, thread, other, doing, issued, progress, repair, times
        )

    def _not_waited_for(
        self,
        window: Window,
        site: Site,
        granule: int,
        thread: int,
        agent: int,
        other: Site,
        tick: int,
        times: int,
    ) -> None:
        """An access to bytes of an asynchronous access whose completion the thread does not know."""
        if self.faults.known("sim/in-flight", site.span, other.span, times):
            return
        assert self.clocks is not None
        explain = self.clocks.explanations.get(agent)
        progress, repair = (
            explain(tick)
            if explain is not None
            else (
                "it was issued by a CTA of another cluster",
                "nothing but the end of the launch orders accesses of different clusters",
            )
        )
        side = "write to" if other.writes else "read of"
        issued = "other", f"issued at {place(other.span)}"
        doing = f"the {side} them by `{other.what}`"
        self._report_under_way(
            window, site, granule, thread, other, doing, issued, progress, repair, times
        )

    def _report_under_way(
        self,
        window: Window,
        site: Site,
        granule: int,
        thread: int,
        other: Site,
        doing: str,
        issued: tuple[str, str],
        progress: str,
        repair: str,
        times: int,
    ) -> None:
        """``doing``: what may still be under way; ``issued``: the note of where that began."""
        assert window.shadow is not None
        size = window.shadow.granule_bytes
        offset = granule * size - window.shadow_offset
        self.faults.add(
            "sim/in-flight",
            f"{size} bytes of `{self.owner(window, offset)}` are touched while {doing} may still be "
            "under way",
            site.span,
            (
                ("where", f"{self.geometry.describe_thread(thread)} {site.verb} here"),
                issued,
                ("address", self.describe(window, offset)),
                ("state", progress),
                ("help", repair),
            ),
            other.span,
            times,
        )  # fmt: skip

    def unfenced(self, window: Window, site: Site, space: str) -> Race:
        """Reports asynchronous accesses to what ordinary ones touched without a proxy fence after it."""

        def report(
            granule: int, thread: int, earlier: int, site_index: int, stamp: int, times: int
        ) -> None:
            other = self.watch.sites[site_index]
            if self.watch.ordered_by_memory:
                self.watch.notes.add(UNORDERED_NOTE)
                return
            if self.faults.known("sim/proxy-fence", site.span, other.span, times):
                return
            assert window.shadow is not None
            size = window.shadow.granule_bytes
            offset = granule * size - window.shadow_offset
            why = (
                "no proxy fence follows the ordinary write before it"
                if other.writes
                else "no proxy fence follows the ordinary read before it, which may still be under way: it "
                "may get the new bytes"
            )
            self.faults.add(
                "sim/proxy-fence",
                f"`{site.what}` {site.verb} {size} bytes of `{self.owner(window, offset)}` through the "
                f"asynchronous proxy, and {why}",
                site.span,
                (
                    ("where", f"issued by {self.geometry.describe_thread(thread)}"),
                    ("other", f"{self.geometry.describe_thread(earlier)} {other.verb} at {place(other.span)}"),
                    ("address", self.describe(window, offset)),
                    ("help", _fence_help(other, space)),
                ),
                other.span,
                times,
            )  # fmt: skip

        return report


def _fence_help(other: Site, space: str) -> str:
    """What is missing between an ordinary access and one of the asynchronous proxy."""
    fence = "fence.proxy.async.global" if space == "global" else "fence.proxy.async.shared::cta"
    if other.writes:
        return f'T.ptx["{fence}"]() in the threads that write, then a barrier with the thread that issues'
    return (
        f'T.ptx["{fence}"]() in the threads that read, before they release the bytes (an arrival, a '
        "barrier) to the thread that issues"
    )


def _race_help(thread: int, earlier: int, other: Site, geometry: Geometry) -> str:
    if thread // geometry.slots != earlier // geometry.slots:
        slots = geometry.slots * geometry.cluster_size
        if thread // slots == earlier // slots:
            return (
                "T.cuda.cluster_sync() orders all threads of a cluster; an arrival at an mbarrier and a wait "
                "for its phase order two of them"
            )
        unit = "CTAs" if geometry.cluster_size == 1 else "clusters"
        return f"nothing but the end of the launch orders accesses of different {unit}"
    if other.asynchronous:
        return (
            "a thread waits for its own copies only: T.cuda.cta_sync() after the wait shows them to "
            "the others"
        )
    if thread // 32 == earlier // 32:
        return "T.cuda.warp_sync() orders the lanes of a warp, T.cuda.cta_sync() all threads of the CTA"
    return "put T.cuda.cta_sync() between the accesses"


def element_text(dtype: DType | None, offset: int) -> str:
    """`` (element 3 of type float32)`` of a byte offset; empty when the type is not known."""
    if dtype is None or dtype.bits % 8:
        return ""
    return f" (element {offset // dtype.bytes} of type {dtype})"


def taken(lanes: Lanes, at: Ints | None) -> Lanes:
    """Some of the lanes; None: all."""
    if at is None:
        return lanes
    stamp = lanes.stamp if np.ndim(lanes.stamp) == 0 else lanes.stamp[at]
    return Lanes(lanes.threads[at], lanes.cta[at], stamp)


def original(at: Ints | None, positions: Ints) -> Ints:
    """Positions among the lanes ``at`` (None: all) as positions among all lanes."""
    return positions if at is None else at[positions]
