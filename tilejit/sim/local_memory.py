"""Local memory: ``local`` buffers addressed in bytes, by ``ld.local`` and ``st.local``.

A lane's local memory is its own, so a buffer's register file holds its bytes too. An address is an
offset in its buffer, which must be known. Checked as other memory: alignment, bounds, unwritten
bytes; there are no races.

Not here: register files (``registers``), the other memories (``memory``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, Bools
from tilejit.sim.memory import WORDS

if TYPE_CHECKING:
    from tilejit.sim.cohort import Array, Cohort

Bytes: TypeAlias = npt.NDArray[np.uint8]
WIDEST_BYTES = 8
"""Widest register: wider accesses are several."""


def load(c: Cohort, addresses: Array, nbytes: int, site: Site, name: str) -> Bytes:
    """``nbytes`` per lane: (warps, 32, nbytes). Inactive and faulty lanes give zeros."""
    file = c.files[name]
    offsets, sound = _located(c, addresses, nbytes, site, name)
    step = min(nbytes, WIDEST_BYTES)
    parts = []
    missing = np.zeros(sound.shape, np.bool_)
    for first in range(0, nbytes, step):
        bits, unwritten = file.gather((offsets + first) // file.unit_bytes, step, sound)
        if unwritten is not None:
            missing |= unwritten
        bits = np.where(sound, bits, WORDS[step](0))
        parts.append(np.ascontiguousarray(bits).view(np.uint8).reshape(c.warps, LANES, step))
    if missing.any():
        what = f"`{site.what}` reads {nbytes} bytes of `{name}` that nobody has written"
        c.batch.lane_fault(c, "sim/unwritten-read", what, site.span, missing, site.what)
    return np.concatenate(parts, axis=-1)


def store(c: Cohort, addresses: Array, values: Bytes, site: Site, name: str) -> None:
    """Stores (warps, 32, nbytes) from the active lanes; two axes of size one broadcast."""
    file = c.files[name]
    nbytes = values.shape[-1]
    offsets, sound = _located(c, addresses, nbytes, site, name)
    step = min(nbytes, WIDEST_BYTES)
    whole = np.broadcast_to(values, (c.warps, LANES, nbytes))
    for first in range(0, nbytes, step):
        word: Any = np.ascontiguousarray(whole[..., first : first + step]).view(WORDS[step])
        file.scatter((offsets + first) // file.unit_bytes, word[..., 0], sound)


def _located(
    c: Cohort, addresses: Array, nbytes: int, site: Site, name: str
) -> tuple[Array, Bools]:
    """Offsets of all lanes, zero where the access is not sound, and the lanes where it is."""
    offsets = np.broadcast_to(addresses, (c.warps, LANES))
    active = c.mask_array()
    file = c.files[name]
    size = len(file.data) * file.unit_bytes
    odd = active & (offsets % nbytes != 0)
    outside = active & ((offsets < 0) | (offsets > size - nbytes))
    if odd.any():
        what = f"`{site.what}` {site.verb} {nbytes} bytes at byte {offsets[odd][0]} of `{name}`"
        c.batch.lane_fault(c, "sim/misaligned", what, site.span, odd, site.what)
    if outside.any():
        start = int(offsets[outside][0])
        what = (
            f"`{site.what}` {site.verb} bytes [{start}, {start + nbytes}) of `{name}`, which has "
            f"{size} bytes"
        )
        c.batch.lane_fault(c, "sim/out-of-bounds", what, site.span, outside, site.what)
    sound = active & ~odd & ~outside
    return np.where(sound, offsets, 0), sound
