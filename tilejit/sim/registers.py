"""Register files: the ``local`` buffers of a cohort, as bits, with a record of what was written.

A file is kept as units of one width (the narrowest the program reads or writes it in). Wider
registers span several units, low bits first. Arrays are never changed in place, so a value read
from a register stays what it was when the register is overwritten.

Not here: which slot an operand names (``machine``), scalar values (``scalar``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.geometry import LANES, Bools, Ints
from tilejit.sim.memory import WORDS

Bits: TypeAlias = npt.NDArray[Any]
"""Broadcastable to (warps, 32)."""
Mask: TypeAlias = npt.NDArray[np.bool_] | None
"""Lanes, broadcastable to (warps, 32); None is all of them."""


def pick(array: Bits, rows: Ints) -> Bits:
    """Some warps' part of an array; arrays of one row hold for all warps."""
    return array if array.shape[0] == 1 else array[rows]


def stack(parts: Sequence[Bits], warps: Sequence[int]) -> Bits:
    """One array for several groups of warps, one after another."""
    first = parts[0]
    if first.shape[0] == 1 and all(
        part is first or (part.shape == first.shape and bool((part == first).all()))
        for part in parts[1:]
    ):
        return first
    width = max(part.shape[1] for part in parts)
    whole = np.empty((sum(warps), width), np.result_type(*{part.dtype for part in parts}))
    start = 0
    for part, count in zip(parts, warps):
        whole[start : start + count] = part
        start += count
    return whole


class RegisterFile:
    """``units`` registers of ``unit_bytes`` for each lane of ``warps`` warps.

    ``written[unit]``: the lanes that have written it; None: all.
    """

    def __init__(self, unit_bytes: int, units: int, warps: int) -> None:
        nothing = np.zeros((1, 1), WORDS[unit_bytes])
        nobody = np.zeros((1, 1), np.bool_)
        self.unit_bytes = unit_bytes
        self.warps = warps
        self.data: list[Bits] = [nothing] * units
        self.written: list[Mask] = [nobody] * units

    def read(self, first: int, nbytes: int, mask: Mask) -> tuple[Bits, Mask]:
        """Bits of the register at unit ``first`` and the active lanes that read it unwritten."""
        count = nbytes // self.unit_bytes
        missing: Mask = None
        for unit in range(first, first + count):
            written = self.written[unit]
            if written is not None:
                lanes = ~written if mask is None else mask & ~written
                if lanes.any():
                    missing = lanes if missing is None else missing | lanes
        if count == 1:
            return self.data[first], missing
        word = WORDS[nbytes]
        bits = self.data[first].astype(word)
        for i in range(1, count):
            bits = bits | self.data[first + i].astype(word) << word(8 * self.unit_bytes * i)
        return bits, missing

    def write(self, first: int, bits: Bits, mask: Mask) -> None:
        """Writes a register of ``bits``' width at unit ``first`` in the lanes of ``mask``."""
        count = bits.dtype.itemsize // self.unit_bytes
        for i in range(count):
            part = bits
            if count > 1:
                shift = bits.dtype.type(8 * self.unit_bytes * i)
                part = (bits >> shift).astype(WORDS[self.unit_bytes])
            unit = first + i
            if mask is None:
                self.data[unit], self.written[unit] = part, None
                continue
            self.data[unit] = np.where(mask, part, self.data[unit])
            written = self.written[unit]
            if written is not None:
                self.written[unit] = written | mask

    def forget(self, first: int, nbytes: int, mask: Bools) -> None:
        """The lanes' registers hold undefined bits from here on."""
        for unit in range(first, first + nbytes // self.unit_bytes):
            written = self.written[unit]
            self.written[unit] = ~mask if written is None else written & ~mask

    def gather(self, units: Ints, nbytes: int, mask: Mask) -> tuple[Bits, Mask]:
        """As ``read``, at a unit of its own in every lane; units are in range."""
        data, written = self._stacked()
        units = np.broadcast_to(units, (self.warps, LANES))
        row, lane = np.arange(self.warps)[:, None], np.arange(LANES)
        word = WORDS[nbytes]
        bits = np.zeros((self.warps, LANES), word)
        missing = np.zeros((self.warps, LANES), np.bool_)
        for i in range(nbytes // self.unit_bytes):
            bits |= data[units + i, row, lane].astype(word) << word(8 * self.unit_bytes * i)
            missing |= ~written[units + i, row, lane]
        if mask is not None:
            missing &= mask
        return bits, missing if missing.any() else None

    def scatter(self, units: Ints, bits: Bits, mask: Mask) -> None:
        """As ``write``, at a unit of its own in every lane."""
        shape = (self.warps, LANES)
        data, written = self._stacked()
        chosen = np.broadcast_to(np.True_ if mask is None else mask, shape)
        row, lane = np.nonzero(chosen)
        units = np.broadcast_to(units, shape)[chosen]
        bits = np.broadcast_to(bits, shape)[chosen]
        for i in range(bits.dtype.itemsize // self.unit_bytes):
            part = bits if i == 0 else bits >> bits.dtype.type(8 * self.unit_bytes * i)
            data[units + i, row, lane] = part.astype(data.dtype)
            written[units + i, row, lane] = True
        self.data, self.written = list(data), list(written)

    def _stacked(self) -> tuple[Bits, Bools]:
        shape = (self.warps, LANES)
        data = np.stack([np.broadcast_to(part, shape) for part in self.data])
        flags = [np.True_ if w is None else w for w in self.written]
        return data, np.stack([np.broadcast_to(flag, shape) for flag in flags])

    def select(self, rows: Ints) -> RegisterFile:
        """The registers of some of the warps."""
        part = RegisterFile(self.unit_bytes, 0, rows.size)
        part.data = [pick(array, rows) for array in self.data]
        part.written = [None if w is None else pick(w, rows) for w in self.written]
        return part

    @staticmethod
    def joined(files: Sequence[RegisterFile]) -> RegisterFile:
        """The registers of several groups of warps, one after another."""
        warps = [file.warps for file in files]
        whole = RegisterFile(files[0].unit_bytes, 0, sum(warps))
        whole.data = [stack(parts, warps) for parts in zip(*(file.data for file in files))]
        everyone = np.ones((1, 1), np.bool_)
        for masks in zip(*(file.written for file in files)):
            if all(mask is None for mask in masks):
                whole.written.append(None)
            else:
                whole.written.append(
                    stack([everyone if mask is None else mask for mask in masks], warps)
                )
        return whole
