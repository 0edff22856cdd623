"""How codes of matrix elements lie in shared and tensor memory for ``tcgen05``, and what ``tcgen05.cp``
makes of compressed ones.

4- and 6-bit floats of kinds f8f6f4 and mxf8f6f4 take as much room as 8-bit ones. In shared memory 16 of
them, packed without gaps from the lowest bit of the first byte on, fill the front of 16 bytes; padding
the rest. In tensor memory each has a byte: two zero bits, then six bits of which a 4-bit float takes the
upper four. Kinds mxf4 and mxf4nvf4 pack two 4-bit floats in a byte, the lower bits first, everywhere.

Source: PTX ISA 9.7.16.9.1 and 9.7.16.10.4. Not here: which byte belongs to which row (the families).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.numeric.formats import BY_PTX_TYPE, WORDS
from tilejit.sim.numeric.mma import Words
from tilejit.sim.numeric.tcgen05_mma import Kind

Bytes: TypeAlias = npt.NDArray[np.uint8]

BLOCK_ELEMS = 16
"""4-, 6- or 8-bit floats in 16 bytes of shared memory, but for kinds mxf4 and mxf4nvf4."""

_CONTAINER_BITS = 6
"""Of a byte in tensor memory: those that a 4- or 6-bit float may take."""

Compressed: TypeAlias = Literal["b4x16_p64", "b6x16_p32"]


def decompressed(source: Compressed, blocks: Bytes) -> Bytes:
    """Blocks of shared memory, shape (…, 16), as ``tcgen05.cp….b8x16.source`` writes them."""
    bits = {"b4x16_p64": 4, "b6x16_p32": 6}[source]
    return _fields(blocks, bits)[..., :BLOCK_ELEMS] << np.uint8(_CONTAINER_BITS - bits)


def codes_in_shared(kind: Kind, type_: str, blocks: Bytes) -> Words:
    """Codes of PTX type ``type_`` in blocks of 16 bytes: shape (…, 16) to (…, elements)."""
    bits = _bits(type_)
    if bits >= 8:
        return _words(blocks, bits)
    codes = _fields(blocks, bits)
    return codes if _dense(kind) else codes[..., :BLOCK_ELEMS]


def codes_in_tensor_memory(kind: Kind, type_: str, cells: npt.NDArray[np.uint32]) -> Words:
    """Codes of PTX type ``type_`` in rows of cells: shape (…, cells) to (…, elements)."""
    bits = _bits(type_)
    if bits >= 8:
        return _words(cells, bits)
    single = _words(cells, 8)
    if _dense(kind):
        return _fields(single, bits)
    shifted: Words = single >> np.uint8(_CONTAINER_BITS - bits)
    return shifted & np.uint8((1 << bits) - 1)


def _dense(kind: Kind) -> bool:
    return kind in ("mxf4", "mxf4nvf4")


def _bits(type_: str) -> int:
    return 8 if type_ in ("s8", "u8") else BY_PTX_TYPE[type_].bits


def _words(memory: npt.NDArray[Any], bits: int) -> Words:
    words: Words = np.ascontiguousarray(memory).view(WORDS[bits])
    return words


def _fields(memory: Bytes, bits: int) -> Bytes:
    """The bits of each row, cut into fields of ``bits``, the lowest first; a rest is left out."""
    single = np.unpackbits(np.ascontiguousarray(memory), axis=-1, bitorder="little")
    count = single.shape[-1] // bits
    fields = single[..., : count * bits].reshape(*single.shape[:-1], count, bits)
    return np.packbits(fields, axis=-1, bitorder="little")[..., 0]
