"""Rounding exact values to a format, once, in any mode; and sums that keep what rounding needs.

A value on its way to a narrow format travels as a float64 that was *rounded to odd*: when the exact
value is not a float64, the neighbour whose last bit is 1. Any later rounding to 51 or fewer bits
then sees on which side of every boundary the exact value lay, so it is as if done once (Boldo and
Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").

Modes: ``rn`` nearest, ties to even; ``rna`` nearest, ties away; ``rz`` to zero; ``rm`` down; ``rp``
up. Not here: results in float64 itself (``double``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tilejit.sim.numeric.formats import UE8M0, Bits, FloatFormat, Values

Mode: TypeAlias = Literal["rn", "rna", "rz", "rm", "rp"]
MODES: frozenset[str] = frozenset({"rn", "rna", "rz", "rm", "rp"})

U64 = np.uint64
_MANTISSA = U64((1 << 52) - 1)
_HIDDEN = U64(1 << 52)
_INFINITY = U64(0x7FF << 52)
_MAGNITUDE = U64((1 << 63) - 1)


def as_mode(text: str) -> Mode:
    """``text`` as a rounding mode; ``ValueError`` when it is none."""
    if text not in MODES:
        raise ValueError(f"{text!r} is not a rounding mode: {', '.join(sorted(MODES))}")
    return cast(Mode, text)


# --- float64 rounded to odd


def nudged(value: Values, toward: Values) -> Values:
    """``value``, or where ``toward`` is nonzero and the last bit is 0 the neighbour on that side.

    ``value`` is a float64 or float32 array nearest to an exact value, ``toward`` has the sign of
    what is missing; the result is the exact value rounded to odd. A zero that misses something
    needs its sign to say on which side.
    """
    bits = value.view(np.dtype(f"i{value.dtype.itemsize}"))
    inexact = (toward != 0) & (bits & 1 == 0) & np.isfinite(value)
    if not inexact.any():
        return value
    outward = ((toward < 0) == np.signbit(value)).astype(bits.dtype) * 2 - 1
    return np.where(inexact, bits + outward, bits).view(value.dtype)


def sum_error(a: Values, b: Values, total: Values) -> Values:
    """The exact ``a + b - total`` for ``total = a + b`` rounded to nearest (Knuth's TwoSum)."""
    virtual = total - a
    error: Values = (a - (total - virtual)) + (b - virtual)
    return error


def sum_to_odd(a: Values, b: Values) -> Values:
    """``a + b`` of float64 arrays, rounded to odd. Sums must not overflow float64."""
    total = a + b
    return nudged(total, sum_error(a, b, total))


# --- to codes of a format


def scale_exponents(wide: Values, mode: Mode, *, saturate: bool = False) -> Bits:
    """ue8m0 codes of float64 magnitudes: powers of two, the sign dropped, zero the smallest.

    A tie goes up. Past 2**127, and for infinity: NaN (0xff), with ``saturate`` 2**127. From the
    host versions in cuda_fp8.hpp, which hardware replaces by ``cvt.{rz,rp}.ue8m0x2``.
    """
    magnitude = np.abs(wide)
    fraction, exponent = np.frexp(magnitude)
    up = {"rp": fraction > 0.5, "rn": fraction >= 0.75, "rna": fraction >= 0.75}.get(mode)
    code = exponent.astype(np.int64) + 126
    if up is not None:
        code += up & (magnitude > 2.0**-127)
    code = np.where(magnitude == 0, 0, np.maximum(code, 0))
    over = (code > UE8M0.max_code) | np.isinf(wide)
    code = np.where(over, UE8M0.max_code if saturate else UE8M0.nan_code, code)
    return np.where(np.isnan(wide), UE8M0.nan_code, code).astype(np.uint8)


def round_to(wide: Values, fmt: FloatFormat, mode: Mode, *, saturate: bool = False) -> Bits:
    """Codes of ``fmt`` nearest to a float64 array in ``mode``; the array may be rounded to odd.

    NaN gives the canonical NaN, or +max in formats without NaN. Past the largest finite value:
    with ``saturate`` (``.satfinite``) the largest finite value of that sign, infinities included;
    else infinity as IEEE 754 rounds; formats without infinity give NaN, and without NaN the largest.
    """
    bits = np.asarray(wide, np.float64).view(U64)
    magnitude = bits & _MAGNITUDE
    negative = bits != magnitude
    field = np.maximum(magnitude >> U64(52), U64(1)).astype(np.int64)
    significand = np.where(magnitude < _HIDDEN, magnitude, (magnitude & _MANTISSA) | _HIDDEN)
    code = _round_significand(significand, field - 1075, field - 1023, negative, fmt, mode)
    code = _overflowed(code, magnitude == _INFINITY, negative, fmt, mode, saturate)
    if fmt.signed:
        code |= np.where(negative, U64(fmt.sign_code), U64(0))
    nan = magnitude > _INFINITY
    if nan.any():
        code[nan] = fmt.max_code if fmt.nan_code == 0 else fmt.nan_code
    return code.astype(fmt.word)


def round_integer(
    magnitude: Bits, negative: npt.NDArray[np.bool_], fmt: FloatFormat, mode: Mode
) -> Bits:
    """Codes of ``fmt`` for integers given as uint64 magnitudes and signs. Zero is +0."""
    filled = magnitude.copy()
    for step in (1, 2, 4, 8, 16, 32):
        filled |= filled >> U64(step)
    length = np.bitwise_count(filled).astype(np.int64)
    # Zero has no top bit: an exponent below every format's makes its code 0.
    leading = np.where(length == 0, -2000, length - 1)
    code = _round_significand(magnitude, np.zeros_like(length), leading, negative, fmt, mode)
    code = _overflowed(code, np.zeros_like(negative), negative, fmt, mode, saturate=False)
    code |= np.where(negative & (magnitude != 0), U64(fmt.sign_code), U64(0))
    return code.astype(fmt.word)


def _round_significand(
    significand: Bits,
    exponent: npt.NDArray[np.int64],
    leading: npt.NDArray[np.int64],
    negative: npt.NDArray[np.bool_],
    fmt: FloatFormat,
    mode: Mode,
) -> Bits:
    """Magnitude codes of ``significand * 2**exponent``, not bounded by the format's largest.

    ``leading`` is the exponent of the top bit. A carry out of the mantissa lands in the exponent
    field by itself, because codes count in order.
    """
    quantum = np.maximum(leading - fmt.mantissa_bits, fmt.least_exponent)
    shift = np.clip(quantum - exponent, -63, 62)
    right = np.maximum(shift, 0).astype(U64)
    kept = np.where(
        shift < 0, significand << np.maximum(-shift, 0).astype(U64), significand >> right
    )
    rest = np.where(shift > 0, significand & ((U64(1) << right) - U64(1)), U64(0))
    kept += _rounds_up(kept, rest, right, negative, mode)
    code: Bits = ((quantum - fmt.least_exponent).astype(U64) << U64(fmt.mantissa_bits)) + kept
    return code


def _rounds_up(
    kept: Bits, rest: Bits, shift: Bits, negative: npt.NDArray[np.bool_], mode: Mode
) -> Bits:
    if mode == "rz":
        return np.zeros_like(kept)
    up: Bits
    if mode in ("rm", "rp"):
        up = (rest != 0) & (negative == (mode == "rm"))
        return up.astype(U64)
    # Half of the last place; with shift 0 the rest is 0, below any half.
    half = U64(1) << np.maximum(shift, U64(1)) - U64(1)
    tie_up = ((kept & U64(1)) == 1) | (mode == "rna")
    up = (rest > half) | ((rest == half) & tie_up)
    return up.astype(U64)


def _overflowed(
    code: Bits,
    infinite: npt.NDArray[np.bool_],
    negative: npt.NDArray[np.bool_],
    fmt: FloatFormat,
    mode: Mode,
    saturate: bool,
) -> Bits:
    over = infinite | (code > U64(fmt.max_code))
    if not over.any():
        return code
    if saturate or (not fmt.has_infinity and fmt.nan_code == 0):
        return np.where(over, U64(fmt.max_code), code)
    if not fmt.has_infinity:
        return np.where(over, U64(fmt.nan_code & fmt.magnitude_code), code)
    if mode in ("rn", "rna"):
        return np.where(over, U64(fmt.infinity_code), code)
    finite = over & ~infinite & ((negative != (mode == "rm")) | (mode == "rz"))
    return np.where(finite, U64(fmt.max_code), np.where(over, U64(fmt.infinity_code), code))
