"""Floating-point min and max.

PTX ISA: a NaN operand is ignored, two give the canonical NaN (f64: the second, made quiet);
``.NaN`` makes any NaN operand give it; -0 is less than +0. ``.xorsign.abs`` compares magnitudes and gives the result the exclusive or
of the operands' signs; ``.abs`` (three inputs) compares and gives magnitudes.

Codes are compared as integers whose order is the numbers' order. Not here: integers (``integer``).
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from tilejit.sim.numeric.arithmetic import Operation
from tilejit.sim.numeric.formats import (
    BY_PTX_TYPE,
    F64,
    Bits,
    FloatFormat,
    flushed,
    is_nan,
    quiet_code,
)
from tilejit.sim.numeric.instruction import Instruction


def build(ins: Instruction) -> Operation:
    """The element operation of a float min or max of two or three operands."""
    fmt = BY_PTX_TYPE[ins.type.removesuffix("x2")]
    choose = np.minimum if ins.mnemonic == "min" else np.maximum
    propagate = ins.has("NaN")

    def pair(a: Bits, b: Bits) -> Bits:
        result = _from_order(choose(_order(a, fmt), _order(b, fmt)), fmt)
        nan_a, nan_b = is_nan(a, fmt), is_nan(b, fmt)
        if not (nan_a.any() or nan_b.any()):
            return result
        result = np.where(nan_a, b, np.where(nan_b, a, result))
        none = (nan_a | nan_b) if propagate else (nan_a & nan_b)
        given = b | quiet_code(fmt) if fmt is F64 else fmt.word(fmt.nan_code)
        return np.where(none, given, result)

    def run(*operands: Bits) -> Bits:
        given = [flushed(x, fmt) for x in operands] if ins.has("ftz") else list(operands)
        signs = given
        if ins.has("abs"):
            given = [x & fmt.word(fmt.magnitude_code) for x in given]
        result = reduce(pair, given)
        return _xorsigned(result, signs, fmt) if ins.has("xorsign") else result

    return run


def _xorsigned(result: Bits, operands: list[Bits], fmt: FloatFormat) -> Bits:
    signed = result | ((operands[0] ^ operands[1]) & fmt.word(fmt.sign_code))
    return np.where(is_nan(result, fmt), result, signed)


def _order(bits: Bits, fmt: FloatFormat) -> Bits:
    """Signed integers in the order of the numbers: negative codes count downwards."""
    signed = bits.view(np.dtype(f"i{fmt.bits // 8}"))
    number = signed.dtype.type
    # The shift spreads the sign: all bits but the top one of negative codes are inverted.
    exchanged: Bits = ((signed >> number(fmt.bits - 1)) & number(fmt.magnitude_code)) ^ signed
    return exchanged


def _from_order(keys: Bits, fmt: FloatFormat) -> Bits:
    """The codes that ``_order`` gave the keys of: the same exchange again."""
    return _order(keys.view(fmt.word), fmt).view(fmt.word)
