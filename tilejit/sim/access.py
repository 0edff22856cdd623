"""Memory accesses of a cohort: addresses of lanes in, bytes of lanes out.

Holds the program's sites (each load, store and instruction operand with its source line) and knows
where every buffer is.

Not here: the checks (``memory``), who orders what (``hazards``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.errors import Span
from tilejit.sim import local_memory
from tilejit.sim.batch import hardware_id
from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, RANK_SHIFT
from tilejit.sim.global_memory import GlobalBuffer, GlobalMemory
from tilejit.sim.shared_memory import SharedBuffer, SharedMemory

if TYPE_CHECKING:
    from tilejit.sim.cohort import Array, Cohort

Bytes: TypeAlias = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Accesses:
    """Where the program's buffers are, and the sites compiled so far; ``writers``: those that may write a
    buffer, by name (None: any).

    ``stored``: names of global buffers the program can write; None once an address without a known
    buffer is written through. ``fences`` and ``communicates``: has it fences (or acquire and
    release accesses), has it strong accesses? ``asynchronous``: has it any that an mbarrier or a bulk group
    completes? ``tensor_memory``: has it any of that?
    """

    buffers: Mapping[str, GlobalBuffer]
    shared: Mapping[str, SharedBuffer]
    sites: list[Site] = field(default_factory=list)
    writers: dict[str | None, list[Site]] = field(default_factory=dict)
    stored: set[str] | None = field(default_factory=set)
    fences: bool = False
    communicates: bool = False
    asynchronous: bool = False
    tensor_memory: bool = False

    @property
    def ordered_by_memory(self) -> bool:
        """Can threads order their accesses through memory?"""
        return self.fences and self.communicates

    def site(
        self,
        verb: str,
        what: str,
        span: Span | None,
        strong: bool = False,
        asynchronous: bool = False,
    ) -> Site:
        remote = "shared::cluster" in what.split(".")
        found = Site(len(self.sites), verb, what, span, strong, asynchronous, remote)
        self.communicates |= strong
        self.sites.append(found)
        return found

    def base(self, name: str) -> int:
        """Address of a buffer: 64-bit in global space, an offset in the window in shared space (see
        ``own_window``); an address in local space counts from the buffer itself."""
        if name not in self.shared and name not in self.buffers:
            return 0
        if name in self.shared:
            return self.shared[name].offset_bytes
        return self.buffers[name].base_address

    def extent(self, name: str) -> tuple[int, int]:
        """First address and bytes of a global or shared buffer."""
        shared = self.shared.get(name)
        return self.base(name), shared.nbytes if shared else self.buffers[name].bytes.size

    def will_store(self, name: str | None, space: str, site: Site) -> None:
        """Compile time: a write to this buffer (None: to any) follows."""
        self.writers.setdefault(name, []).append(site)
        if space != "global":
            return
        if name is None:
            self.stored = None
        elif self.stored is not None:
            self.stored.add(name)


def own_window(c: Cohort) -> Array:
    """What the shared addresses of a warp's own CTA begin at: int64, (warps, 1) or one for all."""
    return hardware_id(c, "cluster_ctarank").astype(np.int64) << RANK_SHIFT


def memory_of(c: Cohort, space: str) -> GlobalMemory | SharedMemory:
    return c.batch.shared if space == "shared" else c.batch.global_memory


def load(
    c: Cohort, addresses: Array, nbytes: int, site: Site, space: str, name: str | None
) -> Bytes:
    """``nbytes`` per lane: (warps, 32, nbytes). Inactive and faulty lanes give zeros."""
    if space == "local":
        assert name is not None
        return local_memory.load(c, addresses, nbytes, site, name)
    flat = np.ascontiguousarray(c.flat(addresses))
    if not flat.size:
        return np.zeros((c.warps, LANES, nbytes), np.uint8)
    data = memory_of(c, space).load(flat, nbytes, c.lanes(), site, name)
    if c.mask is None:
        return data.reshape(c.warps, LANES, nbytes)
    out = np.zeros((c.warps, LANES, nbytes), np.uint8)
    out[c.mask] = data
    return out


def store(
    c: Cohort, addresses: Array, values: Bytes, site: Site, space: str, name: str | None
) -> None:
    """Stores (warps, 32, nbytes) from the active lanes; two axes of size one broadcast."""
    if space == "local":
        assert name is not None
        local_memory.store(c, addresses, values, site, name)
        return
    flat = np.ascontiguousarray(c.flat(addresses))
    if not flat.size:
        return
    nbytes = values.shape[-1]
    whole = np.broadcast_to(values, (c.warps, LANES, nbytes))
    data = whole.reshape(-1, nbytes) if c.mask is None else whole[c.mask]
    memory_of(c, space).store(flat, data, c.lanes(), site, name)


def words(data: Bytes, word: Any) -> Array:
    """The last axis' bytes as one unsigned word."""
    whole: Array = np.ascontiguousarray(data).view(word)
    return whole[..., 0]


def as_bytes(bits: Array) -> Bytes:
    """Words as a last axis of bytes."""
    whole = np.ascontiguousarray(bits)
    return whole.view(np.uint8).reshape(*whole.shape, whole.dtype.itemsize)


def update(
    c: Cohort,
    addresses: Array,
    nbytes: int,
    change: Callable[[tuple[int, int], Bytes], Bytes],
    site: Site,
    space: str,
    name: str | None,
) -> Bytes:
    """One read-modify-write per active lane, lane after lane: the old bytes, (warps, 32, nbytes)."""
    out = np.zeros((c.warps, LANES, nbytes), np.uint8)
    flat = np.ascontiguousarray(c.flat(addresses))
    if not flat.size:
        return out
    row, lane = np.nonzero(c.mask_array())

    def changed(position: int, old: Bytes) -> Bytes:
        return change((int(row[position]), int(lane[position])), old)

    out[row, lane] = memory_of(c, space).update(flat, nbytes, changed, c.lanes(), site, name)
    return out
