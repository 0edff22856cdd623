"""Floating-point add, sub, mul, fma, div, rcp, sqrt and neg, abs: correctly rounded.

f32 and narrower types compute in float64: products of two are exact there, sums are as good as exact
by rounding to odd, quotients and roots by float64's width, and one rounding to the result type
follows. Nearest f32 and f64 operations are numpy's own. Mixed forms (``add.f32.f16``) widen first, which is exact.

NaN: any NaN result of f32, f16 and bf16 is the canonical NaN (``formats``). An f64 result is a NaN
operand made quiet: of two, the second (of ``div``, the first); of ``fma``'s, b before c before a.
Order of the modifiers' effects: inputs flushed (ftz), one rounding, output flushed, then sat or
relu. A result is flushed when the exact value, rounded as if exponents had no lower end, is below
the least normal number: 2**-126 * (1 - 2**-24) is, though f32 would round it up. NaN selection and
flushing are as seen on sm_90.
Not here: approximations (``approximate``), min and max (``extrema``), conversions (``convert``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from tilejit.sim.numeric import double
from tilejit.sim.numeric.codec import bfloat16_nearest, decoded
from tilejit.sim.numeric.formats import (
    BF16,
    BY_PTX_TYPE,
    F16,
    F32,
    F64,
    Bits,
    FloatFormat,
    Values,
    flushed,
    is_nan,
    quiet_code,
)
from tilejit.sim.numeric.instruction import Instruction
from tilejit.sim.numeric.rounding import Mode, nudged, round_to, sum_to_odd

Operation: TypeAlias = Callable[..., Bits]
"""Codes of the operands to codes of the result, one element each."""

OUT_OF_BOUNDS_NAN = 0x7FF7
"""The f16 and bf16 code that ``fma.oob`` takes for an out-of-bounds element (found on sm_90)."""

_NATIVE = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def widened(bits: Bits, fmt: FloatFormat) -> Values:
    """Exact float64 values of codes of any format."""
    native = _NATIVE.get(fmt.name)
    values = decoded(bits, fmt) if native is None else bits.view(native)
    return values.astype(np.float64)


def canonical(bits: Bits, fmt: FloatFormat) -> Bits:
    """``bits`` with every NaN replaced by the canonical one."""
    nan = is_nan(bits, fmt)
    if not nan.any():
        return bits
    return np.where(nan, fmt.word(fmt.nan_code), bits)


def propagated(bits: Bits, operands: Sequence[Bits], fmt: FloatFormat = F64) -> Bits:
    """``bits``, and where an operand is NaN the last such operand, made quiet."""
    for operand in operands:
        nan = is_nan(operand, fmt)
        if nan.any():
            bits = np.where(nan, operand | quiet_code(fmt), bits)
    return bits


def saturated(bits: Bits, fmt: FloatFormat) -> Bits:
    """``.sat``: clamped to [+0, 1]; NaN and negative numbers give +0."""
    word = fmt.word
    low = (bits > word(fmt.infinity_code)) | is_nan(bits, fmt)
    return np.where(low, word(0), np.minimum(bits, word(fmt.one_code)))


def rectified(bits: Bits, fmt: FloatFormat) -> Bits:
    """``.relu``: negative results give +0, NaN the canonical NaN."""
    word = fmt.word
    positive = np.where((bits & word(fmt.sign_code)) != 0, word(0), bits)
    return np.where(is_nan(bits, fmt), word(fmt.nan_code), positive)


def build(ins: Instruction) -> Operation:
    """The element operation of an add, sub, mul, fma, div, rcp or sqrt of floats."""
    result = BY_PTX_TYPE[ins.types[0].removesuffix("x2")]
    if result is F64:
        return _double(ins)
    narrow = BY_PTX_TYPE[ins.type.removesuffix("x2")]
    exact = _exact(ins, narrow, result)
    core = _quick(ins, result) if narrow is result else None
    if core is None:
        core = _rounding(exact, result, ins.mode)
    if ins.has("ftz"):
        core = _flushing(core, exact, result, ins.mode)
    finish: list[Callable[[Bits, FloatFormat], Bits]] = [canonical]
    if ins.has("sat"):
        finish.append(saturated)
    if ins.has("relu"):
        finish.append(rectified)
    run = _finished(core, finish, result)
    return _out_of_bounds(run, narrow) if ins.has("oob") else run


def _finished(
    core: Operation, steps: list[Callable[[Bits, FloatFormat], Bits]], fmt: FloatFormat
) -> Operation:
    def run(*operands: Bits) -> Bits:
        bits = core(*operands)
        for step in steps:
            bits = step(bits, fmt)
        return bits

    return run


_CLEAR_OF_SUBNORMALS = 20
"""Exponents that lift the least normal number to where no rounding meets a subnormal."""


def _flushing(
    core: Operation, exact: Callable[..., Values], fmt: FloatFormat, mode: Mode
) -> Operation:
    """``core`` with flushed operands and result."""
    word = fmt.word
    least = word(1 << fmt.mantissa_bits)
    lifted_least = word((1 + _CLEAR_OF_SUBNORMALS) << fmt.mantissa_bits)
    magnitude = word(fmt.magnitude_code)

    def run(*operands: Bits) -> Bits:
        given = [flushed(x, fmt) for x in operands]
        bits = flushed(core(*given), fmt)
        perhaps = (bits & magnitude) == least
        if not perhaps.any():
            return bits
        lifted = round_to(np.ldexp(exact(*given), _CLEAR_OF_SUBNORMALS), fmt, mode)
        below = perhaps & ((lifted & magnitude) < lifted_least)
        return np.where(below, bits & word(fmt.sign_code), bits)

    return run


def _out_of_bounds(run: Operation, fmt: FloatFormat) -> Operation:
    """``.oob``: +0 where a factor is the out-of-bounds NaN of either sign."""
    word = fmt.word
    magnitude, mark = word(fmt.magnitude_code), word(OUT_OF_BOUNDS_NAN)

    def guarded(a: Bits, b: Bits, c: Bits) -> Bits:
        marked = ((a & magnitude) == mark) | ((b & magnitude) == mark)
        return np.where(marked, word(0), run(a, b, c))

    return guarded


# --- numpy's own operations


def _quick(ins: Instruction, fmt: FloatFormat) -> Operation | None:
    """Nearest f32, f16 and bf16 operations that numpy rounds once."""
    function: Callable[..., Values] | None = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        "sqrt": np.sqrt, "rcp": np.reciprocal,
    }.get(ins.mnemonic)  # fmt: skip
    if function is None or ins.mode != "rn" or fmt is F64:
        return None
    if fmt is BF16:
        # As for F16 below; sums alone, because products can underflow float32.
        return _bfloat16_sum(function) if ins.mnemonic in ("add", "sub") else None
    plain, kind = function, _NATIVE[fmt.name]
    if fmt is F16:
        # float32 holds more than 2 * 11 + 2 bits, so rounding twice is rounding once.
        return lambda *x: (
            plain(*(v.view(np.float16).astype(np.float32) for v in x))
            .astype(np.float16)
            .view(np.uint16)
        )
    return lambda *x: plain(*(v.view(kind) for v in x)).view(fmt.word)


def _bfloat16_sum(function: Callable[..., Values]) -> Operation:
    return lambda *x: bfloat16_nearest(function(*(decoded(v, BF16) for v in x)).view(np.uint32))


# --- float64 rounded to odd, then rounded


def _exact(ins: Instruction, narrow: FloatFormat, result: FloatFormat) -> Callable[..., Values]:
    """Codes of the operands to a float64 that any rounding takes for the exact result."""
    mode, wide = ins.mode, _WIDE[ins.mnemonic]
    formats = _operand_formats(ins, narrow, result)
    return lambda *x: wide(*(widened(bits, fmt) for bits, fmt in zip(x, formats)), mode)


def _rounding(exact: Callable[..., Values], fmt: FloatFormat, mode: Mode) -> Operation:
    return lambda *x: narrowed(exact(*x), fmt, mode)


def _double(ins: Instruction) -> Operation:
    mode, function = ins.mode, _DOUBLE[ins.mnemonic]
    order = {"fma": (0, 2, 1), "div": (1, 0), "rcp": (0,), "sqrt": (0,)}.get(ins.mnemonic, (0, 1))

    def run(*operands: Bits) -> Bits:
        result = function(*(x.view(np.float64) for x in operands), mode).view(np.uint64)
        nan = is_nan(result, F64)
        if not nan.any():
            return result
        result = np.where(nan, np.uint64(F64.nan_code), result)
        return propagated(result, [operands[i] for i in order])

    return run


def _operand_formats(
    ins: Instruction, narrow: FloatFormat, result: FloatFormat
) -> tuple[FloatFormat, ...]:
    """Mixed forms take the narrow type everywhere but in the addend, the last operand."""
    count = {"rcp": 1, "sqrt": 1, "fma": 3}.get(ins.mnemonic, 2)
    return (*(narrow,) * (count - 1), result)


def narrowed(wide: Values, fmt: FloatFormat, mode: Mode) -> Bits:
    """Codes of a float64 array (perhaps rounded to odd) rounded to f32, f16 or bf16."""
    if mode == "rn" and fmt is F32:
        return wide.astype(np.float32).view(np.uint32)
    if mode == "rn" and fmt is F16:
        return wide.astype(np.float16).view(np.uint16)
    if mode == "rn" and fmt is BF16:
        single = wide.astype(np.float32)
        return bfloat16_nearest(nudged(single, wide - single).view(np.uint32))
    return round_to(wide, fmt, mode)


def _add(a: Values, b: Values, mode: Mode) -> Values:
    total = sum_to_odd(a, b)
    if mode != "rm":
        return total
    cancels = (total == 0) & ~((a == 0) & ~np.signbit(a) & (b == 0) & ~np.signbit(b))
    return np.where(cancels, -0.0, total)


def _subtract(a: Values, b: Values, mode: Mode) -> Values:
    return _add(a, -b, mode)


def _multiply(a: Values, b: Values, mode: Mode) -> Values:
    product: Values = a * b
    return product


def _fused(a: Values, b: Values, c: Values, mode: Mode) -> Values:
    return _add(a * b, c, mode)


def _divide(a: Values, b: Values, mode: Mode) -> Values:
    """Nearest in float64 is as good as exact: a quotient of 24-bit numbers that is not a 25-bit
    number (where rounding decides) is at least 2**-49 of itself away from one."""
    quotient: Values = a / b
    return quotient


def _reciprocal(a: Values, mode: Mode) -> Values:
    return _divide(np.ones_like(a), a, mode)


def _root(a: Values, mode: Mode) -> Values:
    """As for quotients; a root that is not a 25-bit number stays 2**-51 of itself away."""
    root: Values = np.sqrt(a)
    return root


_WIDE: dict[str, Callable[..., Values]] = {
    "add": _add, "sub": _subtract, "mul": _multiply, "fma": _fused,
    "div": _divide, "rcp": _reciprocal, "sqrt": _root,
}  # fmt: skip
_DOUBLE: dict[str, Callable[..., Values]] = {
    "add": double.add,
    "sub": lambda a, b, mode: double.add(a, -b, mode),
    "mul": double.multiply,
    "fma": double.fused,
    "div": double.divide,
    "rcp": lambda a, mode: double.divide(np.ones_like(a), a, mode),
    "sqrt": double.square_root,
}


# --- neg and abs


def build_sign(ins: Instruction) -> Operation:
    """``neg`` and ``abs``: the sign bit; with ftz subnormals become zero. An f64 NaN keeps its
    sign and becomes quiet, the others' are canonical."""
    fmt = BY_PTX_TYPE[ins.type.removesuffix("x2")]
    sign = fmt.word(fmt.sign_code)
    flush = ins.has("ftz")
    absolute = ins.mnemonic == "abs"

    def run(a: Bits) -> Bits:
        bits = flushed(a, fmt) if flush else a
        result = bits & ~sign if absolute else bits ^ sign
        return propagated(result, [a]) if fmt is F64 else canonical(result, fmt)

    return run
