"""Shared memory: one window of 32-bit offsets per CTA, those of a batch side by side.

Not here: the checks both memories share (``memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilejit.dtypes import DType
from tilejit.sim.faults import Site
from tilejit.sim.geometry import Bools, Ints
from tilejit.sim.hazards import MAX_GRANULE_BYTES
from tilejit.sim.memory import Bytes, Lanes, Memory, Watch, Window, element_text, taken

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
        self.owned = np.zeros(self.window_bytes, np.bool_)
        for buffer in buffers.values():
            self.owned[buffer.offset_bytes : buffer.offset_bytes + buffer.nbytes] = True

    def describe(self, window: Window, offset: int) -> str:
        offset %= self.window_bytes
        for buffer in self.buffers.values():
            inside = offset - buffer.offset_bytes
            if 0 <= inside < buffer.nbytes:
                return f"byte {inside}{element_text(buffer.dtype, inside)} of `{buffer.name}`"
        return f"shared offset {offset}"

    def load(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Bytes:
        """(lanes, nbytes) at flat window offsets; zeros where the access is faulty."""
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
        """Stores (lanes, nbytes) at flat window offsets; faulty lanes store nothing."""
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
        """Atomic read-modify-writes at flat window offsets: the old bytes."""
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
        outside = self._outside(addresses, nbytes, lanes, site, name)
        if wrong is None and outside is None:
            return None, addresses + lanes.cta * self.window_bytes
        bad = wrong if outside is None else outside if wrong is None else wrong | outside
        assert bad is not None
        at = np.flatnonzero(~bad)
        return at, addresses[at] + lanes.cta[at] * self.window_bytes

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
