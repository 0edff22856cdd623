"""What a tensor copy moves: the pieces of a box in global memory and in its image, from the map's numbers.

Source: PTX ISA "tensors", contract "tensor memory accelerator transfers". Not here: moving the bytes
(``sim.transfers``), the swizzle (``ir.tensor_map``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilejit.ir import tensor_map
from tilejit.ir.tensor_map import FORMATS, TensorMap
from tilejit.tile.affine import IntArray
from tilejit.tile.family import NO_SOURCE

CHUNK_ELEMS_PADDED = 16
"""float4 elements in 16 bytes of a padded image."""


@dataclass(frozen=True, slots=True, eq=False)
class Boxed:
    """The pieces of one box, innermost fastest: ``sources``, addresses in global memory, -1 where a
    piece lies outside the tensor; ``offsets``, bytes from the box's origin in shared memory, before
    the swizzle; ``nbytes`` of each piece; ``payload_bytes`` of all, gaps between rows not counted."""

    sources: IntArray
    offsets: IntArray
    nbytes: int
    payload_bytes: int


def boxed(map_: TensorMap, coords: tuple[int, ...], gathers: bool) -> Boxed:
    """Where the pieces of a box lie. ``coords``, innermost first; of a gather the column and the rows."""
    address, sizes, steps = map_.known()
    places = _coordinates(map_, coords, gathers)
    extents, strides = list(sizes), [FORMATS[map_.format].bits, *(8 * s for s in steps)]
    if map_.interleave:
        # The channels of a slice are a dimension of their own, inside all others.
        slice_bits = 8 * tensor_map.INTERLEAVE_BYTES[map_.interleave]
        channels = slice_bits // strides[0]
        places.insert(0, np.arange(channels))
        extents.insert(0, channels)
        strides.insert(1, slice_bits)
    return _pieces(map_, address, places, extents, strides)


def _coordinates(map_: TensorMap, coords: tuple[int, ...], gathers: bool) -> list[IntArray]:
    """Along each dimension, where the elements of the box lie."""
    if gathers:
        return [coords[0] + np.arange(map_.box[0]), np.array(coords[1:], np.int64)]
    places = [
        start + step * np.arange(count, dtype=np.int64)
        for start, step, count in zip(coords, map_.element_strides, map_.taken())
    ]
    if map_.interleave:
        places[-2] = places[-2][:1]  # one slice of channels, whatever the box says
    return places


def _pieces(
    map_: TensorMap,
    start: int,
    places: list[IntArray],
    extents: list[int],
    strides_bits: list[int],
) -> Boxed:
    """Pieces as large as one address can stand for: 16 bytes of shared memory, or one element where
    the tensor's edge cuts those."""
    bits, padded = strides_bits[0], map_.format == tensor_map.PADDED
    elems = CHUNK_ELEMS_PADDED if padded else 8 * tensor_map.CHUNK_BYTES // bits
    if extents[0] % elems and not padded:
        elems = 1
    inside, address = np.ones((), np.bool_), np.zeros((), np.int64)
    for at, extent, stride in zip([places[0][::elems], *places[1:]], extents, strides_bits):
        # A new axis in front: the innermost dimension is the last.
        shape = (-1,) + (1,) * inside.ndim
        inside = inside & ((at >= 0) & (at < extent)).reshape(shape)
        address = address + (at * stride).reshape(shape)
    sources = np.where(inside, start + address // 8, NO_SOURCE).reshape(-1)
    nbytes = elems * bits // 8
    slot = tensor_map.CHUNK_BYTES if padded else nbytes
    per_row = len(places[0]) // elems
    pitch = tensor_map.row_pitch_bytes(per_row * slot, map_.swizzle, map_.interleave)
    row, piece = np.divmod(np.arange(sources.size, dtype=np.int64), per_row)
    offsets = row * pitch + piece * slot
    return Boxed(sources, offsets, nbytes, sources.size * nbytes)


def fill(map_: TensorMap, nbytes: int) -> npt.NDArray[np.uint8]:
    """What a piece outside the tensor becomes: zeros, or the format's canonical NaN."""
    if not map_.oob_fill:
        return np.zeros(nbytes, np.uint8)
    element = np.full(FORMATS[map_.format].bits // 8, 0xFF, np.uint8)
    element[-1] = 0x7F
    return np.tile(element, nbytes // element.size)
