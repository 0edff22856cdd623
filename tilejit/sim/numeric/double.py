"""Double-precision arithmetic in all four rounding modes, and the fused multiply-add.

To nearest, numpy's operations are IEEE's. The other modes take the nearest result and the sign of
what it is off by, from error-free transformations where no intermediate can underflow or overflow,
and from exact integers elsewhere (slower, rare). NaN results are left to the caller.

Not here: narrower types, which go through float64 (``arithmetic``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.sim.numeric.formats import Values
from tilejit.sim.numeric.rounding import Mode, nudged, sum_error

Bools: TypeAlias = npt.NDArray[np.bool_]
Exact: TypeAlias = Callable[..., float]

_SPLITTER = float((1 << 27) + 1)
_SAFE_LOW, _SAFE_HIGH = 2.0**-400, 2.0**400
"""Factors and dividends between these (or zero) keep every error term normal."""


def add(a: Values, b: Values, mode: Mode) -> Values:
    """``a + b``."""
    total = a + b
    if mode == "rn":
        return total
    total = _signed_zero(total, (a == -b) & ~np.isnan(total), a, b, mode)
    error = sum_error(a, b, total)
    overflow = np.isinf(total) & np.isfinite(a) & np.isfinite(b)
    # An overflowed sum is too large in magnitude; its computed error is NaN.
    return _directed(total, np.where(overflow, -total, np.nan_to_num(error)), mode, overflow)


def multiply(a: Values, b: Values, mode: Mode) -> Values:
    """``a * b``."""
    product = a * b
    if mode == "rn":
        return product
    _, error = _product(a, b)
    directed = _directed(product, error, mode)
    return _where_unsafe(directed, _multiply_exactly, mode, ~(_safe(a) & _safe(b)), a, b)


def divide(a: Values, b: Values, mode: Mode) -> Values:
    """``a / b``; dividing by zero gives infinity, 0/0 NaN."""
    quotient = a / b
    if mode == "rn":
        return quotient
    high, low = _product(quotient, b)
    rest = (a - high) - low
    directed = _directed(quotient, rest * np.sign(b), mode)
    plain = _safe(a) & _safe(b) & (b != 0)
    return _where_unsafe(directed, _divide_exactly, mode, ~plain, a, b)


def square_root(a: Values, mode: Mode) -> Values:
    """Square root; of negative numbers NaN, of -0 -0."""
    root = np.sqrt(a)
    if mode == "rn":
        return root
    high, low = _product(root, root)
    directed = _directed(root, (a - high) - low, mode)
    return _where_unsafe(directed, _root_exactly, mode, ~_safe(a), a)


def fused(a: Values, b: Values, c: Values, mode: Mode) -> Values:
    """``a * b + c`` rounded once."""
    plain = _safe(a) & _safe(b) & _safe(c)
    if mode != "rn":
        plain = np.zeros_like(plain)
    result = np.zeros(plain.shape)
    if plain.any():
        result = _fused_nearest(a, b, c)
    return _where_unsafe(result, _fused_exactly, mode, ~plain, a, b, c)


def _fused_nearest(a: Values, b: Values, c: Values) -> Values:
    """Boldo and Melquiond's algorithm: the two low parts are added rounding to odd."""
    product, product_error = _product(a, b)
    low = c + product_error
    low_error = sum_error(c, product_error, low)
    high = product + low
    high_error = sum_error(product, low, high)
    tail = low_error + high_error
    result = high + nudged(tail, sum_error(low_error, high_error, tail))
    # An exact zero has the sign that the plain sum gives it.
    return np.where(result == 0, product + c, result)


# --- error-free pieces


def _split(a: Values) -> tuple[Values, Values]:
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high


def _product(a: Values, b: Values) -> tuple[Values, Values]:
    """``a * b`` to nearest and what it is off by (Dekker); wrong where ``_safe`` does not hold."""
    product = a * b
    (ah, al), (bh, bl) = _split(a), _split(b)
    return product, al * bl - (((product - ah * bh) - al * bh) - ah * bl)


def _safe(a: Values) -> Bools:
    magnitude = np.abs(a)
    inside: Bools = ((magnitude >= _SAFE_LOW) & (magnitude <= _SAFE_HIGH)) | (a == 0)
    return inside


def _directed(
    nearest: Values, missing: Values, mode: Mode, overflow: Bools | None = None
) -> Values:
    """``nearest`` moved one step when the mode lies on the side of what is missing."""
    down = (nearest > 0) if mode == "rz" else np.full_like(nearest, mode == "rm", np.bool_)
    finite = np.isfinite(nearest) if overflow is None else np.isfinite(nearest) | overflow
    below = finite & (missing < 0) & down
    above = finite & (missing > 0) & ~down
    result = np.where(below, np.nextafter(nearest, -np.inf), nearest)
    return np.where(above, np.nextafter(nearest, np.inf), result)


def _signed_zero(total: Values, cancels: Bools, a: Values, b: Values, mode: Mode) -> Values:
    """x - x is +0, but -0 rounding down; (-0) + (-0) stays -0."""
    if mode != "rm":
        return total
    both_plus = (a == 0) & (b == 0) & ~np.signbit(a) & ~np.signbit(b)
    return np.where(cancels & ~both_plus & (total == 0), -0.0, total)


# --- exact integers


def _where_unsafe(
    result: Values, exactly: Exact, mode: Mode, unsafe: Bools, *operands: Values
) -> Values:
    """``result`` with the elements where ``unsafe`` recomputed one by one."""
    if not unsafe.any():
        return result
    unsafe = np.broadcast_to(unsafe, result.shape)
    chosen = [np.broadcast_to(x, result.shape)[unsafe].tolist() for x in operands]
    result = result.copy()
    result[unsafe] = [exactly(mode, *values) for values in zip(*chosen)]
    return result


def _parts(x: float) -> tuple[int, int]:
    """Integers m, e with x = m * 2**e."""
    fraction, exponent = math.frexp(x)
    return int(math.ldexp(fraction, 53)), exponent - 53


def rounded(numerator: int, exponent: int, sticky: bool, mode: Mode) -> float:
    """``numerator * 2**exponent``, slightly more in magnitude if ``sticky``, as a float64.

    A sticky numerator must have at least 55 bits.
    """
    negative, magnitude = numerator < 0, abs(numerator)
    quantum = max(exponent + magnitude.bit_length() - 53, -1074)
    shift = quantum - exponent
    if shift <= 0:
        kept, rest, half = magnitude << -shift, 0, 1
    else:
        kept, rest, half = magnitude >> shift, magnitude & ((1 << shift) - 1), 1 << (shift - 1)
    inexact = rest != 0 or sticky
    if mode == "rn":
        up = rest > half or (rest == half and (sticky or kept & 1 == 1))
    else:
        up = inexact and mode == ("rm" if negative else "rp")
    kept += up
    largest = ((1 << 53) - 1, 971)
    if kept.bit_length() + quantum > 1024:
        to_infinity = mode == "rn" or mode == ("rm" if negative else "rp")
        value = math.inf if to_infinity else math.ldexp(*largest)
    else:
        value = math.ldexp(kept, quantum)
    return -value if negative else value


def _multiply_exactly(mode: Mode, a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return a * b
    (ma, ea), (mb, eb) = _parts(a), _parts(b)
    return rounded(ma * mb, ea + eb, False, mode)


def _divide_exactly(mode: Mode, a: float, b: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)) or a == 0 or b == 0:
        return float(np.float64(a) / np.float64(b))
    (ma, ea), (mb, eb) = _parts(a), _parts(b)
    quotient, rest = divmod(abs(ma) << 120, abs(mb))
    sign = -1 if (ma < 0) != (mb < 0) else 1
    return rounded(sign * quotient, ea - eb - 120, rest != 0, mode)


def _root_exactly(mode: Mode, a: float) -> float:
    if not math.isfinite(a) or a <= 0:
        return float(np.sqrt(np.float64(a)))
    mantissa, exponent = _parts(a)
    scaled, exponent = mantissa << (120 + exponent % 2), exponent - exponent % 2 - 120
    root = math.isqrt(scaled)
    return rounded(root, exponent // 2, root * root != scaled, mode)


def _fused_exactly(mode: Mode, a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b)):
        return a * b + c
    if not math.isfinite(c):
        return c
    (ma, ea), (mb, eb), (mc, ec) = _parts(a), _parts(b), _parts(c)
    product, exponent = ma * mb, ea + eb
    least = min(exponent, ec)
    total = (product << (exponent - least)) + (mc << (ec - least))
    if total:
        return rounded(total, least, False, mode)
    negative_product = (math.copysign(1, a) < 0) != (math.copysign(1, b) < 0)
    negative_addend = math.copysign(1, c) < 0
    if negative_product == negative_addend and product == 0 and mc == 0:
        return -0.0 if negative_addend else 0.0
    return -0.0 if mode == "rm" else 0.0
