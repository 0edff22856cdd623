"""Global memory: tensors at real 64-bit addresses.

An access through a known tensor must stay inside it, whatever lies next to it; one through an
address of unknown origin may hit any tensor. Overlapping tensors share one history.

Not here: the checks both memories share (``memory``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilejit.dtypes import DType
from tilejit.sim.faults import Site
from tilejit.sim.geometry import Bools, Ints
from tilejit.sim.hazards import MAX_GRANULE_BYTES, Shadow
from tilejit.sim.memory import Bytes, Lanes, Memory, Watch, Window, element_text, original, taken


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


class GlobalMemory(Memory):
    """The launch's buffers. Overlapping ones share one shadow and one written map."""

    def __init__(
        self,
        buffers: Sequence[GlobalBuffer],
        written_names: frozenset[str] | None,
        watch: Watch,
    ) -> None:
        """``written_names``: the buffers the program can write; None: any."""
        super().__init__(watch)
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.windows: dict[str, Window] = {}
        self.shadows: list[Shadow] = []
        ordered = sorted(buffers, key=lambda b: b.base_address)
        for group in _overlapping(ordered):
            self._add_group(group, written_names)
        self.by_address = ordered
        self.bases = np.array([b.base_address for b in ordered], np.int64)

    def _add_group(self, group: list[GlobalBuffer], written_names: frozenset[str] | None) -> None:
        start = group[0].base_address // MAX_GRANULE_BYTES * MAX_GRANULE_BYTES
        end = max(b.base_address + b.bytes.size for b in group)
        # A race needs a write: memory that the program cannot write is not watched.
        watched = written_names is None or any(b.name in written_names for b in group)
        shadow = self.watch.shadow(end - start) if watched else None
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

    def forget_accesses(self) -> None:
        """Everything accessed so far happens before everything that follows."""
        for shadow in self.shadows:
            shadow.forget()

    def describe(self, window: Window, offset: int) -> str:
        address = self.buffers[window.name].base_address + offset
        where = f"byte {offset}{element_text(window.dtype, offset)} of `{window.name}`"
        return f"{where}, address 0x{address:x}"

    def load(
        self, addresses: Ints, nbytes: int, lanes: Lanes, site: Site, name: str | None
    ) -> Bytes:
        """(lanes, nbytes) at flat addresses; zeros where the access is faulty."""
        out: Bytes | None = None
        for window, at, offsets in self.locate(addresses, nbytes, lanes, site, name):
            part = taken(lanes, at)
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
        for window, at, offsets in self.locate(addresses, nbytes, lanes, site, name):
            chosen = values if at is None else values[at]
            self.write(window, offsets, chosen, taken(lanes, at), site)

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
        for window, at, offsets in self.locate(addresses, nbytes, lanes, site, name):
            part = taken(lanes, at)
            old = self.read_modify_write(window, offsets, nbytes, change, at, part, site)
            out[slice(None) if at is None else at] = old
        return out

    def locate(
        self,
        addresses: Ints,
        nbytes: int,
        lanes: Lanes,
        site: Site,
        name: str | None,
        align_bytes: int | None = None,
    ) -> list[tuple[Window, Ints | None, Ints]]:
        """Per buffer touched: its window, the lanes (None: all) and their offsets. What is not
        sound is reported and left out; ``align_bytes``: the alignment, where it is not ``nbytes``'s."""
        wrong = self.misaligned(addresses, align_bytes or nbytes, lanes, site)
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
            offset = int(offsets[bad][0])
            what = (
                f"{site.verb} bytes [{offset}, {offset + nbytes}) of `{buffer.name}`, which has "
                f"{buffer.bytes.size} bytes"
            )
            self._refuse(buffer, what, offsets, lanes, site, at, bad)
            at = np.flatnonzero(~bad) if at is None else at[~bad]
            offsets = offsets[~bad]
        if buffer.valid is not None and offsets.size:
            whole = buffer.valid[offsets[:, None] + np.arange(nbytes)]
            inside = np.asarray(whole.all(axis=1))
            if not inside.all():
                what = (
                    f"{site.verb} {nbytes} bytes between the elements of `{buffer.name}`: its "
                    "strides leave them to nobody"
                )
                self._refuse(buffer, what, offsets, lanes, site, at, ~inside)
                at = np.flatnonzero(inside) if at is None else at[inside]
                offsets = offsets[inside]
        return [(self.windows[buffer.name], at, offsets)] if offsets.size else []

    def _refuse(
        self,
        buffer: GlobalBuffer,
        what: str,
        offsets: Ints,
        lanes: Lanes,
        site: Site,
        at: Ints | None,
        bad: Bools,
    ) -> None:
        """Reports the lanes ``bad`` of the lanes ``at``."""
        wrong = np.flatnonzero(bad)
        window, offset = self.windows[buffer.name], int(offsets[wrong[0]])
        self.report("sim/out-of-bounds", what, site, lanes, original(at, wrong), window, offset)

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
