"""``mov``: copies, and packing and unpacking of register groups, first register lowest.

Not here: 128-bit registers, which no numpy type holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilejit.sim.numeric.formats import Bits
from tilejit.sim.numeric.instruction import Instruction


def build(ins: Instruction) -> Callable[[list[Bits]], list[Bits]]:
    """From the registers read to the registers written."""
    destination, source = ins.form.operands
    if "b128" in (destination.type, source.type):
        raise ins.unmodelled()
    if destination.lanes == source.lanes:
        return lambda inputs: inputs
    if source.lanes > 1:
        return lambda inputs: [_packed(inputs, source.bits, destination.bits)]
    return lambda inputs: _unpacked(inputs[0], destination.bits, destination.lanes)


def _packed(parts: list[Bits], part_bits: int, bits: int) -> Bits:
    word = np.dtype(f"u{bits // 8}").type
    result = parts[0].astype(word)
    for index, part in enumerate(parts[1:], 1):
        result = result | (part.astype(word) << word(index * part_bits))
    return result


def _unpacked(whole: Bits, part_bits: int, lanes: int) -> list[Bits]:
    part = np.dtype(f"u{part_bits // 8}")
    word = whole.dtype.type
    return [(whole >> word(index * part_bits)).astype(part) for index in range(lanes)]
