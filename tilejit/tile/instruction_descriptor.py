"""Instruction descriptors of tcgen05.mma: what an instruction computes, in 32 bits.

They say what the opcode leaves open: M and N, formats, majors, signs, and for block scales the byte of a
column that each scale matrix starts at. A tile call knows all of it at compile time.

Source: PTX ISA, "instruction descriptor" (tables of the dense, mxf8f6f4 and mxf4 kinds). Not here: which
combinations are legal, and the codes of formats (``ptx.tcgen05_shapes``), matrix descriptors
(``tile.descriptor``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from tilejit.ptx.tcgen05_shapes import Accumulator, Format, Kind, ScaleFormat

LONG_DEPTH = 96
"""The K that the top bit of packed 4-bit kinds says; they have 64 without it."""
MAX_SHIFTS = (0, 8, 16, 32)
"""How far a zero-column mask may shift B's columns, by the code of a dense kind's two top bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What the bits say. ``scale``: None without block scales. ``sfa_byte``, ``sfb_byte``: of a 32-bit
    column, where the scale factors of a row start. ``long``: K is ``LONG_DEPTH``."""

    m: int
    n: int
    a: Format
    b: Format
    d: Accumulator
    scale: ScaleFormat | None = None
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False
    saturate: bool = False
    max_shift: int = 0
    sfa_byte: int = 0
    sfb_byte: int = 0
    long: bool = False


def encode(what: Instruction) -> int:
    """The bits of a legal instruction that is not sparse."""
    bits = (
        what.a.code << 7 | what.b.code << 10 | what.negate_a << 13 | what.negate_b << 14
        | what.transpose_a << 15 | what.transpose_b << 16 | what.n >> 3 << 17 | what.m >> 4 << 24
    )  # fmt: skip
    if what.scale is None:
        shift = MAX_SHIFTS.index(what.max_shift)
        return bits | what.saturate << 3 | what.d.code << 4 | shift << 30
    return bits | what.sfb_byte << 4 | what.scale.code << 23 | what.sfa_byte << 29 | what.long << 31


_COMMON = 0x3FF << 7 | 0x3F << 17
_SATURATE = 1 << 3
_DENSE = _COMMON | _SATURATE | 3 << 4 | 0x1F << 24 | 3 << 30
_SCALED = _COMMON | 3 << 4 | 1 << 23 | 3 << 27 | 3 << 29
_LONG = 1 << 31


def decode(kind: Kind, bits: int) -> Instruction | None:
    """What the bits say to an instruction of a kind; None where they say nothing: a reserved bit, a
    sparse A, or a code that stands for no format."""
    long = any(s.k == LONG_DEPTH for s in kind.shapes)
    known = (_SCALED | (_LONG if long else 0)) if kind.scales else _DENSE
    if not kind.saturates:
        known &= ~_SATURATE
    a, b = (_with_code(kind.formats, bits >> at & 7) for at in (7, 10))
    d = kind.accumulators[0] if kind.scales else _with_code(kind.accumulators, bits >> 4 & 3)
    scale = _with_code([f for s in kind.scales for f in s.formats], bits >> 23 & 1)
    if bits & ~known or a is None or b is None or d is None or (kind.scales and scale is None):
        return None
    found = Instruction(
        m=(bits >> 24 & 0x1F) << 4, n=(bits >> 17 & 0x3F) << 3, a=a, b=b, d=d,
        negate_a=bool(bits >> 13 & 1), negate_b=bool(bits >> 14 & 1),
        transpose_a=bool(bits >> 15 & 1), transpose_b=bool(bits >> 16 & 1),
    )  # fmt: skip
    if scale is None:
        return replace(found, saturate=bool(bits >> 3 & 1), max_shift=MAX_SHIFTS[bits >> 30])
    return replace(
        found, m=(bits >> 27 & 3) << 7, scale=scale, sfa_byte=bits >> 29 & 3,
        sfb_byte=bits >> 4 & 3, long=bool(bits >> 31),
    )  # fmt: skip


_Coded = TypeVar("_Coded", Format, Accumulator, ScaleFormat)


def _with_code(among: Iterable[_Coded], code: int) -> _Coded | None:
    return next((one for one in among if one.code == code), None)
