"""Values of dtypes from their bits, and back.

Decoding is exact. Encoding rounds once, whatever the width of the values it is given. Every other
part of the simulator goes through these two functions.

Not here: conversions with PTX modifiers (``convert``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.sim.numeric.formats import (
    BF16,
    BY_DTYPE,
    F16,
    UE8M0,
    WORDS,
    Bits,
    FloatFormat,
    Values,
)
from tilejit.sim.numeric.rounding import as_mode, round_to, scale_exponents

_NATIVE: dict[str, Any] = {
    "float32": np.float32, "float64": np.float64,
    **{f"{s}int{n}": np.dtype(f"{s}int{n}").type for s in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip


def to_value(bits: Bits, dtype: DType) -> Values:
    """The values of an array of unsigned words that hold one element each.

    Integers, float32 and float64 give arrays of their numpy type, bool is true for any nonzero
    word, and the other floats give float32, exactly. Sub-byte types read the low bits of a byte.
    """
    if dtype.kind == "bool":
        truth: Values = bits != 0
        return truth
    native = _NATIVE.get(dtype.name)
    if native is not None:
        return bits.astype(WORDS[max(dtype.bits, 8)], copy=False).view(native)
    return decoded(bits, BY_DTYPE[dtype.name])


def decoded(bits: Bits, fmt: FloatFormat) -> Values:
    """float32 values of codes of a format of at most 16 bits; bits past its own do not count."""
    if fmt is F16:
        return bits.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)
    if fmt is BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    table = decoding_table(fmt)
    values: Values = table[bits & np.uint8(len(table) - 1)]
    return values


@cache
def decoding_table(fmt: FloatFormat) -> Values:
    """float32 value of every code of a format of at most 8 bits."""
    codes = np.arange(1 << fmt.bits)
    negative = (codes & fmt.sign_code) != 0
    magnitude = codes & fmt.magnitude_code
    field, mantissa = magnitude >> fmt.mantissa_bits, magnitude & ((1 << fmt.mantissa_bits) - 1)
    if fmt is UE8M0:
        values = np.ldexp(1.0, codes - fmt.bias)
    else:
        significand = np.where(field > 0, mantissa + (1 << fmt.mantissa_bits), mantissa)
        values = np.ldexp(
            significand.astype(np.float64), np.maximum(field, 1) - 1 + fmt.least_exponent
        )
    if fmt.has_infinity:
        values = np.where(magnitude == fmt.infinity_code, np.inf, values)
    if fmt.nan_code:
        past = fmt.infinity_code if fmt.has_infinity else fmt.max_code
        values = np.where(magnitude > past, np.nan, values)
    table = np.where(negative, -values, values).astype(np.float32)
    table.setflags(write=False)
    return table


def to_bits(values: Values, dtype: DType, rounding: str = "rn") -> Bits:
    """Unsigned words holding ``values`` converted to ``dtype``: one rounding, canonical NaN.

    Floats: past the largest finite value IEEE overflow (infinity in ``rn``); float8_e4m3fn has no
    infinity and gives NaN; the six- and four-bit floats have neither and saturate, NaN giving +max.
    float8_e8m0fnu encodes magnitudes: the sign is dropped and zero is the smallest exponent.
    Integers: integer values wrap modulo 2**bits; floating-point values truncate and saturate, NaN
    gives 0. ``rounding`` (rn, rna, rz, rm, rp) applies to floats. A value that already has the
    dtype's own numpy type keeps its bits, NaN payloads included.
    """
    given = np.asarray(values)
    values = np.atleast_1d(given)
    return _encoded(values, dtype, rounding).reshape(given.shape)


def _encoded(values: Values, dtype: DType, rounding: str) -> Bits:
    word = WORDS[max(dtype.bits, 8)]
    if dtype.kind == "bool":
        truth: Bits = (values != 0).astype(np.uint8)
        return truth
    if dtype.is_integer:
        return _integer_bits(values, dtype)
    own = np.float16 if dtype == dtypes.float16 else _NATIVE.get(dtype.name)
    # numpy reads a missing type as float64, hence the first half.
    if own is not None and values.dtype == own:
        return values.view(word)
    with np.errstate(all="ignore"):
        return _float_bits(values, BY_DTYPE[dtype.name], rounding)


def _integer_bits(values: Values, dtype: DType) -> Bits:
    word = WORDS[max(dtype.bits, 8)]
    if values.dtype.kind != "f":
        return values.astype(word)
    low, high = dtypes.integer_range(dtype)
    with np.errstate(all="ignore"):
        whole = np.trunc(values.astype(np.float64))
        inside = (whole >= low) & (whole < float(high + 1))
        safe = np.where(inside, whole, 0.0).astype(_NATIVE[dtype.name])
        clamped = np.where(whole > 0, high, np.where(whole < 0, low, 0))
    return np.where(inside, safe, clamped.astype(_NATIVE[dtype.name])).view(word)


def _float_bits(values: Values, fmt: FloatFormat, rounding: str) -> Bits:
    mode = as_mode(rounding)
    if values.dtype == np.float32 and fmt is BF16 and mode == "rn":
        return bfloat16_nearest(values.view(np.uint32))
    wide = values.astype(np.float64)
    if fmt is UE8M0:
        return scale_exponents(wide, mode)
    return round_to(wide, fmt, mode)


def bfloat16_nearest(bits: Bits) -> Bits:
    """bfloat16 codes of float32 codes: nearest, ties to even."""
    last = (bits >> np.uint32(16)) & np.uint32(1)
    rounded: Bits = ((bits + (np.uint32(0x7FFF) + last)) >> np.uint32(16)).astype(np.uint16)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    if nan.any():
        rounded = np.where(nan, np.uint16(0x7FFF), rounded)
    return rounded
