"""Approximate instructions, by stand-ins well inside the errors that the PTX ISA allows.

Hardware's tables are not public, so results here are the float64 library function (or the correctly
rounded operation) rounded once to the type; the ISA's bounds are 2**-22 relative or a few ulp (f32),
2**-9.9 (ex2.f16), 2**-7 (bf16), 2**-11 (tanh.f32). Compare against hardware with those bounds.
What the ISA fixes is exact: special values, ftz, NaN, and these three:

* ``div.approx``: for a divisor past 2**126 in magnitude the result is a zero of the quotient's
  sign, or NaN for an infinite dividend.
* ``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64`` read the high words of their inputs and give
  results whose low word is zero.
* ``sin`` and ``cos`` take turns: the operand times 1/(2 pi) in f32, rounded towards zero; a product
  below the least normal number counts as 0. So large operands lose their fraction, as on hardware.
  Infinities give NaN.

Not here: correctly rounded div, rcp and sqrt (``arithmetic``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilejit.sim.numeric.arithmetic import (
    Operation,
    canonical,
    narrowed,
    propagated,
    widened,
)
from tilejit.sim.numeric.formats import (
    BY_PTX_TYPE,
    F32,
    F64,
    Bits,
    FloatFormat,
    Values,
    flushed,
    is_nan,
)
from tilejit.sim.numeric.instruction import Instruction
from tilejit.sim.numeric.rounding import round_to

_LARGE_DIVISOR = 2.0**126
_HIGH_WORD = np.uint64(0xFFFF_FFFF_0000_0000)
_GROSS_NAN = np.uint64(0x7FFF_FFFF_0000_0000)


def _rsqrt(x: Values) -> Values:
    inverse: Values = 1.0 / np.sqrt(x)
    return inverse


_INVERSE_TURN = float(np.float32(1.0 / (2.0 * np.pi)))


def _divide_by_reciprocal(a: Values, b: Values) -> Values:
    quotient: Values = a / b
    large = (np.abs(b) > _LARGE_DIVISOR) & np.isfinite(b)
    if not large.any():
        return quotient
    negative = np.signbit(a) != np.signbit(b)
    zero = np.where(np.isinf(a), np.nan, np.where(negative, -0.0, 0.0))
    return np.where(large & ~np.isnan(a), zero, quotient)


def _turns(x: Values) -> Values:
    """``x / (2 pi)`` as sin and cos see it; float64 values that f32 holds."""
    bits = round_to(x * _INVERSE_TURN, F32, "rz")
    return widened(flushed(bits, F32), F32)


def _sine(x: Values) -> Values:
    turns = _turns(x)
    fraction = turns - np.rint(turns)
    # An exact multiple of a turn is a zero of the operand's sign.
    return np.where(fraction == 0, np.copysign(0.0, x), np.sin(2.0 * np.pi * fraction))


def _cosine(x: Values) -> Values:
    turns = _turns(x)
    cosine: Values = np.cos(2.0 * np.pi * (turns - np.rint(turns)))
    return cosine


_FUNCTIONS: dict[str, Callable[..., Values]] = {
    "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh, "sin": _sine, "cos": _cosine,
    "rsqrt": _rsqrt, "sqrt": np.sqrt, "rcp": lambda x: 1.0 / x, "div": np.divide,
}  # fmt: skip


def build(ins: Instruction) -> Operation:
    """The element operation of an ``.approx`` or ``.full`` instruction."""
    fmt = BY_PTX_TYPE[ins.type.removesuffix("x2")]
    flush = ins.has("ftz")
    gross = flush and fmt is F64
    function = _FUNCTIONS[ins.mnemonic]
    if ins.mnemonic == "div" and ins.has("approx"):
        function = _divide_by_reciprocal

    def run(*operands: Bits) -> Bits:
        given = [flushed(x, fmt) for x in operands] if flush else operands
        if gross:
            given = [x & _HIGH_WORD for x in given]
        bits = _rounded(function(*(widened(x, fmt) for x in given)), fmt)
        bits = flushed(bits, fmt) if flush else bits
        if gross:
            return np.where(is_nan(bits, fmt), _GROSS_NAN, bits & _HIGH_WORD)
        bits = canonical(bits, fmt)
        return propagated(bits, operands) if fmt is F64 else bits

    return run


def _rounded(wide: Values, fmt: FloatFormat) -> Bits:
    return wide.view(np.uint64) if fmt is F64 else narrowed(wide, fmt, "rn")
