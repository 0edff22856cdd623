"""Global and shared memory: addresses to bytes, with every check on the way.

An access is a set of lanes with one address each and one width. It is checked for alignment,
bounds, gaps between a strided tensor's elements, reads of bytes nobody wrote, and races; what
fails is reported and left out, the rest is done. Global addresses are real 64-bit addresses;
shared addresses are 32-bit offsets into the CTA's window.

Not here: register files (``registers``), ordering (``hazards``), who executes (``cohort``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.dtypes import DType
from tilejit.sim.faults import FaultLog, Site, place
from tilejit.sim.geometry import Bools, Geometry, Ints
from tilejit.sim.hazards import MAX_GRANULE_BYTES, Clocks, Shadow

Bytes: TypeAlias = npt.NDArray[np.uint8]

SHARED_START_BYTES = 1024
"""Offset of the first shared buffer: offset 0 stays invalid, as does anything derived from null."""
SHARED_GAP_BYTES = 16
"""Unowned bytes after each shared buffer, so that a small overrun is never a neighbour."""
WORDS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(slots=True, eq=False)
class GlobalBuffer:
    """A tensor in global memory.

    ``bytes``: its storage window (uint8, one dimension), written in place by the kernel.
    ``base_address``: the address of the window's first byte. ``valid``: per byte, False where the
    window has no element (strided tensors); None: all bytes belong to it. ``initialised`` False:
    reading a byte before the kernel wrote it is a fault. ``dtype`` only words messages.
    """

    name: str
    bytes: Bytes
    base_address: int
    valid: npt.NDArray[np.bool_] | None = None
    initialised: bool = True
    dtype: DType | None = None


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

    def gather(self, offsets: Ints, nbytes: int, dense: bool) -> Bytes:
        """``nbytes`` from each offset: shape (lanes, nbytes)."""
        return _gather(self.data, self.words, offsets, nbytes, dense, self.word_aligned)

    def scatter(self, offsets: Ints, values: Bytes, dense: bool) -> None:
        """Writes ``values`` (lanes, nbytes); of equal offsets the last lane wins."""
        _scatter(self.data, offsets, values, dense, self.word_aligned)
        if self.written is not None:
            flags = np.ones(values.shape, np.uint8)
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


@dataclass(slots=True, eq=False)
class Memory:
    """What the two memories share: the checks, the report, the access itself."""

    geometry: Geometry
    faults: FaultLog
    sites: Sequence[Site]
    atomic_sites: Bools
    clocks: Clocks | None

    def read(self, window: Window, offsets: Ints, nbytes: int, lanes: Lanes, site: Site) -> Bytes:
        """Checked bytes at in-bounds offsets: (lanes, nbytes)."""
        dense = is_dense(offsets, nbytes)
        unwritten = window.unwritten(offsets, nbytes, dense)
        if unwritten is not None:
            at = np.flatnonzero(unwritten)
            what = f"reads {nbytes} bytes of `{window.name}` that nobody has written"
            self.report("sim/unwritten-read", what, site, lanes, at, window, int(offsets[at[0]]))
        if window.shadow is not None and self.clocks is not None:
            shadow = window.shadow
            chosen, threads = shadow.select(
                offsets + window.shadow_offset if window.shadow_offset else offsets,
                nbytes, lanes.threads, dense,
            )  # fmt: skip
            stamp = self._stamp_per(threads, lanes)
            shadow.read(chosen, threads, stamp, site.index, self.clocks, self._race(window, site))
        return window.gather(offsets, nbytes, dense)

    def write(self, window: Window, offsets: Ints, values: Bytes, lanes: Lanes, site: Site) -> None:
        """Checked store of (lanes, nbytes) at in-bounds offsets."""
        nbytes = values.shape[1]
        dense = is_dense(offsets, nbytes)
        self._watch_write(window, offsets, nbytes, lanes, site, dense)
        window.scatter(offsets, values, dense)

    def _watch_write(
        self, window: Window, offsets: Ints, nbytes: int, lanes: Lanes, site: Site, dense: bool
    ) -> None:
        if window.shadow is None or self.clocks is None:
            return
        chosen, threads = window.shadow.select(
            offsets + window.shadow_offset if window.shadow_offset else offsets,
            nbytes, lanes.threads, dense,
        )  # fmt: skip
        window.shadow.write(
            chosen,
            threads,
            self._stamp_per(threads, lanes),
            site.index,
            self.clocks,
            self._race(window, site),
            self.atomic_sites,
        )

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
        unwritten = window.unwritten(offsets, nbytes, False)
        if unwritten is not None:
            bad = np.flatnonzero(unwritten)
            what = f"reads {nbytes} bytes of `{window.name}` that nobody has written"
            self.report("sim/unwritten-read", what, site, lanes, bad, window, int(offsets[bad[0]]))
        self._watch_write(window, offsets, nbytes, lanes, site, False)
        old = np.zeros((offsets.size, nbytes), np.uint8)
        for i, offset in enumerate(offsets.tolist()):
            old[i] = window.data[offset : offset + nbytes]
            position = i if at is None else int(at[i])
            window.data[offset : offset + nbytes] = change(position, old[i])
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
    ) -> None:
        """A fault of the lanes ``at``; the first is the example."""
        if self.faults.known(code, site.span, site.what, at.size):
            return
        thread = int(lanes.threads[at[0]])
        notes = [("where", self.geometry.describe_thread(thread))]
        if window is not None:
            notes.append(("address", self.describe(window, offset)))
        self.faults.add(code, f"`{site.what}` {what}", site.span, tuple(notes), site.what, at.size)

    def describe(self, window: Window, offset: int) -> str:
        """``byte 64 (element 16) of `S``` ."""
        raise NotImplementedError

    def _stamp_per(self, threads: Ints, lanes: Lanes) -> Any:
        if np.ndim(lanes.stamp) == 0 or threads.size == lanes.threads.size:
            return lanes.stamp
        return np.repeat(lanes.stamp, threads.size // lanes.threads.size)

    def _race(self, window: Window, site: Site) -> Any:
        def race(granule: int, thread: int, earlier: int, site_index: int, times: int) -> None:
            other = self.sites[site_index]
            if self.faults.known("sim/race", site.span, other.span, times):
                return
            assert window.shadow is not None
            size = window.shadow.granule_bytes
            offset = granule * size - window.shadow_offset
            self.faults.add(
                "sim/race",
                f"two threads touch the same {size} bytes of `{window.name}`, one of them "
                "writing, and nothing orders the two accesses",
                site.span,
                (
                    ("where", f"{self.geometry.describe_thread(thread)} {site.verb} here"),
                    ("other", f"{self.geometry.describe_thread(earlier)} {other.verb} at {place(other.span)}"),
                    ("address", self.describe(window, offset)),
                    ("help", _race_help(thread, earlier, self.geometry)),
                ),
                other.span,
                times,
            )  # fmt: skip

        return race


def _race_help(thread: int, earlier: int, geometry: Geometry) -> str:
    if thread // geometry.slots != earlier // geometry.slots:
        return "nothing but the end of the launch orders accesses of different CTAs"
    if thread // 32 == earlier // 32:
        return "lanes of one warp need T.cuda.warp_sync() or a wider barrier between the accesses"
    return "put T.cuda.cta_sync() between the accesses"


def _element(dtype: DType | None, offset: int) -> str:
    if dtype is None or dtype.bits % 8:
        return ""
    return f" (element {offset // dtype.bytes} of type {dtype})"


# --- global memory


class GlobalMemory(Memory):
    """The launch's buffers. Overlapping ones share one shadow and one written map."""

    def __init__(
        self,
        buffers: Sequence[GlobalBuffer],
        written_names: frozenset[str] | None,
        geometry: Geometry,
        faults: FaultLog,
        sites: Sequence[Site],
        atomic_sites: Bools,
        thread_type: Any,
        hazards: bool,
    ) -> None:
        """``written_names``: the buffers the program can write; None: any."""
        super().__init__(geometry, faults, sites, atomic_sites, None)
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.windows: dict[str, Window] = {}
        self.shadows: list[Shadow] = []
        ordered = sorted(buffers, key=lambda b: b.base_address)
        for group in _overlapping(ordered):
            self._add_group(group, written_names, thread_type, hazards)
        self.by_address = ordered
        self.bases = np.array([b.base_address for b in ordered], np.int64)

    def _add_group(
        self,
        group: list[GlobalBuffer],
        written_names: frozenset[str] | None,
        thread_type: Any,
        hazards: bool,
    ) -> None:
        start = group[0].base_address // MAX_GRANULE_BYTES * MAX_GRANULE_BYTES
        end = max(b.base_address + b.bytes.size for b in group)
        # A race needs a write: memory that the program cannot write is not watched.
        watched = written_names is None or any(b.name in written_names for b in group)
        shadow = Shadow(end - start, thread_type) if hazards and watched else None
        if shadow is not None:
            self.shadows.append(shadow)
        written: npt.NDArray[np.bool_] | None = None
        if not all(b.initialised for b in group):
            written = np.zeros(end - start, np.bool_)
        for buffer in group:
            offset = buffer.base_address - start
            part = None if written is None else written[offset : offset + buffer.bytes.size]
            if part is not None and buffer.initialised:
                part[:] = True
            self.windows[buffer.name] = Window(
                buffer.name, buffer.bytes, part, shadow, offset,
                buffer.base_address % MAX_GRANULE_BYTES == 0, buffer.dtype,
            )  # fmt: skip

    def describe(self, window: Window, offset: int) -> str:
        address = self.buffers[window.name].base_address + offset
        where = f"byte {offset}{_element(window.dtype, offset)} of `{window.name}`"
        return f"{where}, address 0x{address:x}"

    def load(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Bytes:
        """(lanes, nbytes) at flat addresses; zeros where the access is faulty."""
        out: Bytes | None = None
        for window, at, offsets in self._locate(addresses, nbytes, lanes, site, name):
            part = _take(lanes, at)
            read = self.read(window, offsets, nbytes, part, site)
            if at is None:
                return read
            if out is None:
                out = np.zeros((addresses.size, nbytes), np.uint8)
            out[at] = read
        return out if out is not None else np.zeros((addresses.size, nbytes), np.uint8)

    def store(
        self, addresses: Ints, values: Bytes, lanes: Lanes, site: Site, name: str | None
    ) -> None:
        """Stores (lanes, nbytes) at flat addresses; faulty lanes store nothing."""
        nbytes = values.shape[1]
        for window, at, offsets in self._locate(addresses, nbytes, lanes, site, name):
            chosen = values if at is None else values[at]
            self.write(window, offsets, chosen, _take(lanes, at), site)

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
        for window, at, offsets in self._locate(addresses, nbytes, lanes, site, name):
            part = _take(lanes, at)
            old = self.read_modify_write(window, offsets, nbytes, change, at, part, site)
            out[slice(None) if at is None else at] = old
        return out

    def _locate(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> list[tuple[Window, Ints | None, Ints]]:
        """Per buffer touched: its window, the lanes (None: all) and their offsets."""
        wrong = self.misaligned(addresses, nbytes, lanes, site)
        at = None if wrong is None else np.flatnonzero(~wrong)
        if name is not None:
            return self._in_buffer(self.buffers[name], addresses, nbytes, lanes, site, at)
        # An address without a known buffer: whichever buffer holds it.
        found: list[tuple[Window, Ints | None, Ints]] = []
        at = np.arange(addresses.size) if at is None else at
        index = np.searchsorted(self.bases, addresses[at], side="right") - 1
        for which in np.unique(index).tolist():
            part = at[index == which]
            if which < 0:
                self._no_buffer(addresses, nbytes, lanes, site, part)
            else:
                buffer = self.by_address[which]
                found += self._in_buffer(buffer, addresses, nbytes, lanes, site, part)
        return found

    def _in_buffer(
        self,
        buffer: GlobalBuffer,
        addresses: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        at: Ints | None,
    ) -> list[tuple[Window, Ints | None, Ints]]:
        offsets = (addresses if at is None else addresses[at]) - buffer.base_address
        bad = offsets.view(np.uint64) > np.uint64(max(buffer.bytes.size - nbytes, 0))
        if buffer.bytes.size < nbytes:
            bad[:] = True
        if bad.any():
            self._out_of_bounds(buffer, offsets, nbytes, lanes, site, at, bad)
            at = np.flatnonzero(~bad) if at is None else at[~bad]
            offsets = offsets[~bad]
        if buffer.valid is not None and offsets.size:
            whole = buffer.valid[offsets[:, None] + np.arange(nbytes)]
            inside = np.asarray(whole.all(axis=1))
            if not inside.all():
                self._in_gap(buffer, offsets, nbytes, lanes, site, at, ~inside)
                at = np.flatnonzero(inside) if at is None else at[inside]
                offsets = offsets[inside]
        return [(self.windows[buffer.name], at, offsets)] if offsets.size else []

    def _out_of_bounds(
        self,
        buffer: GlobalBuffer,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        at: Ints | None,
        bad: Bools,
    ) -> None:
        wrong = np.flatnonzero(bad)
        offset = int(offsets[wrong[0]])
        what = (
            f"{site.verb} bytes [{offset}, {offset + nbytes}) of `{buffer.name}`, which has "
            f"{buffer.bytes.size} bytes"
        )
        window = self.windows[buffer.name]
        self.report("sim/out-of-bounds", what, site, lanes, _original(at, wrong), window, offset)

    def _in_gap(
        self,
        buffer: GlobalBuffer,
        offsets: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        at: Ints | None,
        bad: Bools,
    ) -> None:
        wrong = np.flatnonzero(bad)
        offset = int(offsets[wrong[0]])
        what = (
            f"{site.verb} {nbytes} bytes between the elements of `{buffer.name}`: its strides "
            "leave them to nobody"
        )
        window = self.windows[buffer.name]
        self.report("sim/out-of-bounds", what, site, lanes, _original(at, wrong), window, offset)

    def _no_buffer(self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, at: Ints) -> None:
        address = int(addresses[at[0]])
        what = f"{site.verb} {nbytes} bytes at address 0x{address:x}, which no tensor holds"
        self.report("sim/out-of-bounds", what, site, lanes, at)


def _overlapping(ordered: Sequence[GlobalBuffer]) -> list[list[GlobalBuffer]]:
    groups: list[list[GlobalBuffer]] = []
    end = -1
    for buffer in ordered:
        if not groups or buffer.base_address >= end:
            groups.append([])
        groups[-1].append(buffer)
        end = max(end, buffer.base_address + buffer.bytes.size)
    return groups


def _take(lanes: Lanes, at: Ints | None) -> Lanes:
    if at is None:
        return lanes
    stamp = lanes.stamp if np.ndim(lanes.stamp) == 0 else lanes.stamp[at]
    return Lanes(lanes.threads[at], lanes.cta[at], stamp)


def _original(at: Ints | None, positions: Ints) -> Ints:
    return positions if at is None else at[positions]


# --- shared memory


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


class SharedMemory(Memory):
    """The shared windows of all CTAs of a batch, side by side in one array."""

    def __init__(
        self,
        buffers: dict[str, SharedBuffer],
        ctas: int,
        geometry: Geometry,
        faults: FaultLog,
        sites: Sequence[Site],
        atomic_sites: Bools,
        thread_type: Any,
        hazards: bool,
    ) -> None:
        super().__init__(geometry, faults, sites, atomic_sites, None)
        self.buffers = buffers
        end = max((b.offset_bytes + b.nbytes for b in buffers.values()), default=0)
        self.window_bytes = -(-end // MAX_GRANULE_BYTES) * MAX_GRANULE_BYTES
        total = self.window_bytes * ctas
        shadow = Shadow(total, thread_type) if hazards else None
        self.window = Window(
            "shared", np.zeros(total, np.uint8), np.zeros(total, np.bool_), shadow, 0, True
        )
        self.owned = np.zeros(self.window_bytes, np.bool_)
        for buffer in buffers.values():
            self.owned[buffer.offset_bytes : buffer.offset_bytes + buffer.nbytes] = True

    def describe(self, window: Window, offset: int) -> str:
        offset %= self.window_bytes
        for buffer in self.buffers.values():
            inside = offset - buffer.offset_bytes
            if 0 <= inside < buffer.nbytes:
                return f"byte {inside}{_element(buffer.dtype, inside)} of `{buffer.name}`"
        return f"shared offset {offset}"

    def load(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Bytes:
        """(lanes, nbytes) at flat window offsets; zeros where the access is faulty."""
        at = self._locate(addresses, nbytes, lanes, site, name)
        if at is None:
            offsets = addresses + lanes.cta * self.window_bytes
            return self.read(self._named(name), offsets, nbytes, lanes, site)
        out = np.zeros((addresses.size, nbytes), np.uint8)
        if at.size:
            part = _take(lanes, at)
            offsets = addresses[at] + part.cta * self.window_bytes
            out[at] = self.read(self._named(name), offsets, nbytes, part, site)
        return out

    def store(
        self, addresses: Ints, values: Bytes, lanes: Lanes, site: Site, name: str | None
    ) -> None:
        """Stores (lanes, nbytes) at flat window offsets; faulty lanes store nothing."""
        at = self._locate(addresses, values.shape[1], lanes, site, name)
        if at is not None:
            if not at.size:
                return
            addresses, values, lanes = addresses[at], values[at], _take(lanes, at)
        offsets = addresses + lanes.cta * self.window_bytes
        self.write(self._named(name), offsets, values, lanes, site)

    def update(
        self,
        addresses: Ints,
        nbytes: int,
        change: Callable[[int, Bytes], Bytes],
        lanes: Lanes,
        site: Site,
        name: str | None,
    ) -> Bytes:
        """Atomic read-modify-writes at flat window offsets: the old bytes."""
        out = np.zeros((addresses.size, nbytes), np.uint8)
        at = self._locate(addresses, nbytes, lanes, site, name)
        part = _take(lanes, at)
        offsets = (addresses if at is None else addresses[at]) + part.cta * self.window_bytes
        if offsets.size:
            old = self.read_modify_write(self._named(name), offsets, nbytes, change, at, part, site)
            out[slice(None) if at is None else at] = old
        return out

    def _named(self, name: str | None) -> Window:
        self.window.name = name or "shared"
        return self.window

    def _locate(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Ints | None:
        """The lanes whose access is sound; None: all of them."""
        wrong = self.misaligned(addresses, nbytes, lanes, site)
        outside = self._outside(addresses, nbytes, lanes, site, name)
        if wrong is None and outside is None:
            return None
        bad = wrong if outside is None else outside if wrong is None else wrong | outside
        assert bad is not None
        return np.flatnonzero(~bad)

    def _outside(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Bools | None:
        if name is not None:
            buffer = self.buffers[name]
            start, size = buffer.offset_bytes, buffer.nbytes
            bad = (addresses < start) | (addresses > start + size - nbytes)
        else:
            bad = (addresses < 0) | (addresses > self.window_bytes - nbytes)
            at = np.flatnonzero(~bad)
            owned = self.owned[addresses[at][:, None] + np.arange(nbytes)].all(axis=1)
            bad[at[~owned]] = True
        if not bad.any():
            return None
        wrong = np.flatnonzero(bad)
        first = int(addresses[wrong[0]])
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
