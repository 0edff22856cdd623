"""Approximate instructions, by stand-ins well inside the errors that the PTX ISA allows.

Hardware's tables are not public, so results here are the float64 library function (or the correctly
rounded operation) rounded once to the type; the ISA's bounds are 2**-22 relative or a few ulp (f32),
2**-9.9 (ex2.f16), 2**-7 (bf16), 2**-11 (tanh.f32). Compare against hardware with those bounds.
What the ISA fixes is exact: special values, ftz, NaN, and these three:

* ``div.approx``: for a divisor past 2**126 in magnitude the result is a zero of the quotient's
  sign, or NaN for an infinite dividend.
* ``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64`` read the high words of their inputs and give
  results whose low word is zero.
* ``sin``, ``cos`` of an infinity are NaN.

Not here: correctly rounded div, rcp and sqrt (``arithmetic``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilejit.sim.numeric.arithmetic import Operation, canonical, narrowed, widened
from tilejit.sim.numeric.formats import BY_PTX_TYPE, F64, Bits, FloatFormat, Values, flushed
from tilejit.sim.numeric.instruction import Instruction

_LARGE_DIVISOR = 2.0**126
_HIGH_WORD = np.uint64(0xFFFF_FFFF_0000_0000)


def _rsqrt(x: Values) -> Values:
    inverse: Values = 1.0 / np.sqrt(x)
    return inverse


_FUNCTIONS: dict[str, Callable[..., Values]] = {
    "ex2": np.exp2, "lg2": np.log2, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
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
        bits = canonical(flushed(bits, fmt) if flush else bits, fmt)
        return bits & _HIGH_WORD if gross else bits

    return run


def _rounded(wide: Values, fmt: FloatFormat) -> Bits:
    return wide.view(np.uint64) if fmt is F64 else narrowed(wide, fmt, "rn")


def _divide_by_reciprocal(a: Values, b: Values) -> Values:
    quotient: Values = a / b
    large = (np.abs(b) > _LARGE_DIVISOR) & np.isfinite(b)
    if not large.any():
        return quotient
    zero = np.where(np.isinf(a), np.nan, np.copysign(0.0, np.sign(a) * np.sign(b)))
    return np.where(large & ~np.isnan(a), zero, quotient)
