"""Integer arithmetic: add, sub, mul, mad, div, rem, min, max, abs, neg, sad, dp4a.

Two's complement, wrapping, unless ``.sat``. ``div`` truncates towards zero and ``rem`` has the
dividend's sign. PTX leaves division by zero unspecified; here, as on sm_90, quotient and remainder
have all bits set, and inactive lanes may hold anything.
Not here: bit operations (``bitwise``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilejit.ptx.forms import TYPE_BITS
from tilejit.sim.numeric.arithmetic import Operation
from tilejit.sim.numeric.formats import WORDS, Bits
from tilejit.sim.numeric.instruction import Instruction


def unsigned_type(ptx_type: str) -> type[np.unsignedinteger[Any]]:
    """The numpy type of a register of ``ptx_type`` (one element of a packed integer type)."""
    return WORDS[TYPE_BITS[ptx_type.removesuffix("x2")]]


def is_signed(ptx_type: str) -> bool:
    return ptx_type.startswith("s")


def signed(bits: Bits) -> Bits:
    """The same bits as two's complement integers."""
    return bits.view(np.dtype(f"i{bits.dtype.itemsize}"))


def typed(bits: Bits, ptx_type: str) -> Bits:
    """Register bits as the integers that ``ptx_type`` says they are."""
    return signed(bits) if is_signed(ptx_type) else bits


def magnitude(bits: Bits) -> Bits:
    """Unsigned absolute values of two's complement bits."""
    return np.where(signed(bits) < 0, ~bits + bits.dtype.type(1), bits)


def build(ins: Instruction) -> Operation:
    """The element operation of an integer instruction."""
    name = ins.mnemonic
    simple = _SIMPLE.get(name)
    if simple is not None:
        return _add_saturated(name) if ins.has("sat") else simple
    if name in ("mul", "mad"):
        return _multiply(ins)
    return {
        "div": _divide, "rem": _remainder, "min": _extremum, "max": _extremum, "sad": _sad,
        "abs": lambda _: magnitude, "dp4a": _dot,
    }[name](ins)  # fmt: skip


_SIMPLE: dict[str, Operation] = {"add": np.add, "sub": np.subtract, "neg": np.negative}


def _clamped(wide: Bits) -> Bits:
    """int64 values clamped to s32."""
    return np.clip(wide, -(2**31), 2**31 - 1).astype(np.int32).view(np.uint32)


def _add_saturated(name: str) -> Operation:
    plain = np.add if name == "add" else np.subtract
    return lambda a, b: _clamped(plain(signed(a).astype(np.int64), signed(b).astype(np.int64)))


# --- products


def _multiply(ins: Instruction) -> Operation:
    part, kind = ins.rest[0], ins.type
    product: Operation = {
        "lo": lambda a, b: a * b,
        "hi": lambda a, b: _high(a, b, kind),
        "wide": lambda a, b: _wide(a, b, kind),
    }[part]
    if ins.mnemonic == "mul":
        return product
    if ins.has("sat"):
        return lambda a, b, c: _clamped(
            signed(product(a, b)).astype(np.int64) + signed(c).astype(np.int64)
        )
    return lambda a, b, c: product(a, b) + c


def _wide(a: Bits, b: Bits, kind: str) -> Bits:
    """The full product, twice as wide."""
    size = 2 * a.dtype.itemsize
    kind_of = np.dtype(f"{'i' if is_signed(kind) else 'u'}{size}")
    product: Bits = typed(a, kind).astype(kind_of) * typed(b, kind).astype(kind_of)
    return product.view(np.dtype(f"u{size}"))


def _high(a: Bits, b: Bits, kind: str) -> Bits:
    if a.dtype.itemsize < 8:
        bits = 8 * a.dtype.itemsize
        full = _wide(a, b, kind)
        top: Bits = (full >> full.dtype.type(bits)).astype(a.dtype)
        return top
    high = _high_of_words(a, b)
    if is_signed(kind):
        zero = np.uint64(0)
        high = high - np.where(signed(a) < 0, b, zero) - np.where(signed(b) < 0, a, zero)
    return high


def _high_of_words(a: Bits, b: Bits) -> Bits:
    """High 64 bits of the product of uint64 arrays, by 32-bit halves."""
    low_mask, half = np.uint64(0xFFFF_FFFF), np.uint64(32)
    a0, a1, b0, b1 = a & low_mask, a >> half, b & low_mask, b >> half
    middle = a1 * b0 + ((a0 * b0) >> half)
    other = a0 * b1 + (middle & low_mask)
    high: Bits = a1 * b1 + (middle >> half) + (other >> half)
    return high


# --- quotients


def _quotient(a: Bits, b: Bits) -> Bits:
    zero = b == 0
    quotient: Bits = a // np.where(zero, b.dtype.type(1), b)
    return np.where(zero, ~b.dtype.type(0), quotient)


def _divide(ins: Instruction) -> Operation:
    if not is_signed(ins.type):
        return _quotient

    def run(a: Bits, b: Bits) -> Bits:
        quotient = _quotient(magnitude(a), magnitude(b))
        opposite = ((signed(a) < 0) != (signed(b) < 0)) & (b != 0)
        return np.where(opposite, ~quotient + quotient.dtype.type(1), quotient)

    return run


def _remainder(ins: Instruction) -> Operation:
    divide = _divide(ins)
    return lambda a, b: np.where(b == 0, ~b.dtype.type(0), a - divide(a, b) * b)


# --- the rest


def _extremum(ins: Instruction) -> Operation:
    choose: Callable[..., Bits] = np.minimum if ins.mnemonic == "min" else np.maximum
    kind, relu = ins.type, ins.has("relu")

    def run(a: Bits, b: Bits) -> Bits:
        result = choose(typed(a, kind), typed(b, kind))
        if relu:
            result = np.maximum(result, result.dtype.type(0))
        return result.view(a.dtype)

    return run


def _sad(ins: Instruction) -> Operation:
    def run(a: Bits, b: Bits, c: Bits) -> Bits:
        larger = typed(a, ins.type) > typed(b, ins.type)
        return c + np.where(larger, a - b, b - a)

    return run


def _dot(ins: Instruction) -> Operation:
    """Four byte products added to ``c``; each operand's bytes have its own signedness."""
    kind_a, kind_b = ins.types

    def run(a: Bits, b: Bits, c: Bits) -> Bits:
        total = c.copy()
        for byte in range(4):
            total = total + _byte(a, byte, kind_a) * _byte(b, byte, kind_b)
        return total

    return run


def _byte(word: Bits, index: int, kind: str) -> Bits:
    """Byte ``index`` extended to 32 bits."""
    byte = (word >> np.uint32(8 * index)).astype(np.uint8)
    return (byte.view(np.int8) if is_signed(kind) else byte).astype(np.int32).view(np.uint32)
