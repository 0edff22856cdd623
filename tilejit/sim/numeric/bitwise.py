"""Bit instructions: logic, shifts, permutes, counts, bit fields, copysign.

Operations follow the pseudo-code of the PTX ISA; shift amounts past the width clamp (``shl``,
``shr``) or as spelt (``shf``, ``bmsk``, ``szext``); field positions and lengths use 8 bits.
Not here: integer arithmetic (``integer``), predicates (``predicate``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilejit.sim.numeric.arithmetic import Operation
from tilejit.sim.numeric.formats import Bits
from tilejit.sim.numeric.instruction import Instruction
from tilejit.sim.numeric.integer import is_signed, signed, typed

_U32, _U64 = np.uint32, np.uint64

_LOGIC: dict[str, Operation] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


def build(ins: Instruction) -> Operation:
    """The element operation of a bit instruction."""
    name = ins.mnemonic
    if ins.type == "pred" or name in _LOGIC:
        return _LOGIC.get(name, _not_predicate)
    return _BUILDERS[name](ins)


def _not_predicate(a: Bits) -> Bits:
    flag: Bits = (a == 0).astype(np.uint8)
    return flag


# --- logic and shifts


def _lop3(ins: Instruction) -> Operation:
    """Bit i of the table is the result where the operands' bits spell i (a is the high bit)."""

    def run(a: Bits, b: Bits, c: Bits, table: Bits) -> Bits:
        zero, ones = _U32(0), ~_U32(0)
        result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), _U32)
        for index in range(8):
            chosen = np.where((table >> table.dtype.type(index)) & table.dtype.type(1), ones, zero)
            terms = [x if index >> bit & 1 else ~x for x, bit in ((a, 2), (b, 1), (c, 0))]
            result = result | (chosen.astype(_U32) & terms[0] & terms[1] & terms[2])
        return result

    return run


def _shift(ins: Instruction) -> Operation:
    left, kind = ins.mnemonic == "shl", ins.type

    def run(a: Bits, amount: Bits) -> Bits:
        width = 8 * a.dtype.itemsize
        past = amount >= width
        by = np.minimum(amount, width - 1).astype(a.dtype)
        if is_signed(kind):
            return (signed(a) >> signed(by)).view(a.dtype)
        shifted: Bits = np.where(past, a.dtype.type(0), a << by if left else a >> by)
        return shifted

    return run


def _limited(amount: Bits, ins: Instruction) -> Bits:
    """A 32-bit shift amount as uint64: at most 32 (``clamp``) or modulo 32 (``wrap``)."""
    limited = amount & _U32(31) if "wrap" in ins.rest else np.minimum(amount, _U32(32))
    return limited.astype(_U64)


def _funnel(ins: Instruction) -> Operation:
    left = "l" in ins.rest

    def run(a: Bits, b: Bits, amount: Bits) -> Bits:
        both = (b.astype(_U64) << _U64(32)) | a
        by = _limited(amount, ins)
        return ((both << by) >> _U64(32) if left else both >> by).astype(_U32)

    return run


# --- bytes

_PERMUTES: dict[str, tuple[int, ...]] = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}
"""Selectors of the four bytes, high byte first, for control values 0 to 3."""


def _permute(ins: Instruction) -> Operation:
    table = np.array(_PERMUTES[ins.rest[0]], _U32) if ins.rest else None

    def run(a: Bits, b: Bits, control: Bits) -> Bits:
        selectors = control if table is None else table[control & _U32(3)]
        both = (b.astype(_U64) << _U64(32)) | a
        result = np.zeros(both.shape, _U32)
        for byte in range(4):
            selector = (selectors >> _U32(4 * byte)) & _U32(15)
            chosen = (both >> ((selector & _U32(7)) * _U32(8)).astype(_U64)).astype(np.uint8)
            # The fourth selector bit replicates the sign of the byte instead of its value.
            spread = np.where(chosen >> np.uint8(7), np.uint8(255), np.uint8(0))
            value = np.where(selector & _U32(8), spread, chosen)
            result = result | (value.astype(_U32) << _U32(8 * byte))
        return result

    return run


# --- counts


def _smeared(a: Bits) -> Bits:
    """All bits from the highest one bit down set."""
    filled, step = a, 1
    while step < 8 * a.dtype.itemsize:
        filled = filled | (filled >> a.dtype.type(step))
        step *= 2
    return filled


def _count(ins: Instruction) -> Operation:
    if ins.mnemonic == "popc":
        return lambda a: np.bitwise_count(a).astype(_U32)
    return lambda a: (8 * a.dtype.itemsize - np.bitwise_count(_smeared(a)).astype(_U32)).astype(
        _U32
    )


def _reverse(ins: Instruction) -> Operation:
    def run(a: Bits) -> Bits:
        word = a.dtype.type
        result, step = a, 8 * a.dtype.itemsize // 2
        mask = ~word(0)
        while step:
            mask = mask ^ (mask << word(step))
            result = ((result >> word(step)) & mask) | ((result & mask) << word(step))
            step //= 2
        return result

    return run


def _find(ins: Instruction) -> Operation:
    """Position of the highest bit that is not the sign; all ones when there is none."""
    signed_type, shift_amount = is_signed(ins.type), "shiftamt" in ins.rest

    def run(a: Bits) -> Bits:
        bits = np.where(signed(a) < 0, ~a, a) if signed_type else a
        position = np.bitwise_count(_smeared(bits)).astype(np.int32) - 1
        found = 8 * a.dtype.itemsize - 1 - position if shift_amount else position
        return np.where(bits == 0, ~_U32(0), found.astype(np.int32).view(_U32))

    return run


# --- fields


def _low_bits(count: Bits, word: Any) -> Bits:
    """Masks of ``count`` (0 to the width) low bits."""
    width = 8 * np.dtype(word).itemsize
    kept = np.minimum(count, width - 1).astype(word)
    mask: Bits = np.where(count >= width, ~word(0), (word(1) << kept) - word(1))
    return mask


def _extract(ins: Instruction) -> Operation:
    kind = ins.type

    def run(a: Bits, start: Bits, length: Bits) -> Bits:
        word, width = a.dtype.type, 8 * a.dtype.itemsize
        position, count = (
            (start & _U32(255)).astype(np.int64),
            (length & _U32(255)).astype(np.int64),
        )
        moved = np.where(
            position < width, a >> np.minimum(position, width - 1).astype(word), word(0)
        )
        mask = _low_bits(np.minimum(count, np.maximum(width - position, 0)), word)
        field: Bits = moved & mask
        if is_signed(kind):
            top = np.clip(position + count - 1, 0, width - 1).astype(word)
            negative = ((a >> top) & word(1) != 0) & (count > 0)
            field = np.where(negative, field | ~mask, field)
        return field

    return run


def _insert(ins: Instruction) -> Operation:
    def run(a: Bits, b: Bits, start: Bits, length: Bits) -> Bits:
        word, width = a.dtype.type, 8 * a.dtype.itemsize
        position, count = (
            (start & _U32(255)).astype(np.int64),
            (length & _U32(255)).astype(np.int64),
        )
        by = np.minimum(position, width - 1).astype(word)
        mask = np.where(position < width, _low_bits(count, word) << by, word(0))
        merged: Bits = (b & ~mask) | ((a << by) & mask)
        return merged

    return run


def _mask(ins: Instruction) -> Operation:
    def run(start: Bits, length: Bits) -> Bits:
        return (_low_bits(_limited(length, ins), _U64) << _limited(start, ins)).astype(_U32)

    return run


def _extend(ins: Instruction) -> Operation:
    kind = ins.type

    def run(a: Bits, count: Bits) -> Bits:
        up = (32 - _limited(count, ins)).astype(_U64)
        high = (a.astype(_U64) << up).astype(_U32)
        return (typed(high, kind).astype(np.int64) >> up.astype(np.int64)).astype(_U32)

    return run


def _copysign(ins: Instruction) -> Operation:
    """The sign of the first operand on the second."""

    def run(a: Bits, b: Bits) -> Bits:
        sign = a.dtype.type(1 << (8 * a.dtype.itemsize - 1))
        signed_bits: Bits = (a & sign) | (b & ~sign)
        return signed_bits

    return run


_BUILDERS: dict[str, Callable[[Instruction], Operation]] = {
    "not": lambda ins: np.invert,
    "cnot": lambda ins: lambda a: (a == 0).astype(a.dtype),
    "lop3": _lop3, "shl": _shift, "shr": _shift, "shf": _funnel, "prmt": _permute,
    "popc": _count, "clz": _count, "brev": _reverse, "bfind": _find, "bfe": _extract,
    "bfi": _insert, "bmsk": _mask, "szext": _extend, "copysign": _copysign,
}  # fmt: skip
