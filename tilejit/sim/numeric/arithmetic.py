"""Floating-point add, sub, mul, fma, div, rcp, sqrt and neg, abs: correctly rounded.

f32 and narrower types compute in float64: products of two are exact there, sums, quotients and
roots are made exact by rounding to odd, and one rounding to the result type follows. Nearest f32
and f64 operations are numpy's own. Mixed forms (``add.f32.f16``) widen first, which is exact.

NaN: any NaN result of f32, f16 and bf16 is the canonical NaN (``formats``).
Order of the modifiers' effects: inputs flushed (ftz), one rounding, output flushed, then sat or relu.
Not here: approximations (``approximate``), min and max (``extrema``), conversions (``convert``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from tilejit.sim.numeric import double
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
)
from tilejit.sim.numeric.instruction import Instruction
from tilejit.sim.numeric.rounding import Mode, nudged, round_to, sum_to_odd

Operation: TypeAlias = Callable[..., Bits]
"""Codes of the operands to codes of the result, one element each."""

_NATIVE = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def widened(bits: Bits, fmt: FloatFormat) -> Values:
    """Exact float64 values of f16, bf16, f32 or f64 codes."""
    if fmt is BF16:
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    return bits.view(_NATIVE[fmt.name]).astype(np.float64)


def canonical(bits: Bits, fmt: FloatFormat) -> Bits:
    """``bits`` with every NaN replaced by the canonical one."""
    nan = is_nan(bits, fmt)
    if not nan.any():
        return bits
    return np.where(nan, fmt.word(fmt.nan_code or 0), bits)


def saturated(bits: Bits, fmt: FloatFormat) -> Bits:
    """``.sat``: clamped to [+0, 1]; NaN and negative numbers give +0."""
    word = fmt.word
    low = (bits > word(fmt.infinity_code)) | is_nan(bits, fmt)
    return np.where(low, word(0), np.minimum(bits, word(fmt.one_code)))


def rectified(bits: Bits, fmt: FloatFormat) -> Bits:
    """``.relu``: negative results give +0, NaN the canonical NaN."""
    word = fmt.word
    positive = np.where((bits & word(fmt.sign_code)) != 0, word(0), bits)
    return np.where(is_nan(bits, fmt), word(fmt.nan_code or 0), positive)


def build(ins: Instruction) -> Operation:
    """The element operation of an add, sub, mul, fma, div, rcp or sqrt of floats."""
    result = BY_PTX_TYPE[ins.types[0].removesuffix("x2")]
    narrow = BY_PTX_TYPE[ins.type.removesuffix("x2")]
    core = _quick(ins, result) if narrow is result else None
    if core is None:
        core = _general(ins, narrow, result)
    return _with_flags(core, ins, narrow, result)


def _with_flags(
    core: Operation, ins: Instruction, narrow: FloatFormat, result: FloatFormat
) -> Operation:
    """``core`` between flushing inputs and finishing the output."""
    finish: list[Callable[[Bits, FloatFormat], Bits]] = [canonical]
    if ins.has("ftz"):
        finish.append(flushed)
    if ins.has("sat"):
        finish.append(saturated)
    if ins.has("relu"):
        finish.append(rectified)
    flush = ins.has("ftz")

    def run(*operands: Bits) -> Bits:
        given = [flushed(x, narrow) for x in operands] if flush else operands
        bits = core(*given)
        for step in finish:
            bits = step(bits, result)
        return bits

    return _out_of_bounds(run, narrow) if ins.has("oob") else run


def _out_of_bounds(run: Operation, fmt: FloatFormat) -> Operation:
    """``.oob``: +0 where a factor or the addend is the out-of-bounds NaN, all bits set."""
    mark = fmt.word(fmt.magnitude_code | fmt.sign_code)

    def guarded(a: Bits, b: Bits, c: Bits) -> Bits:
        return np.where((a == mark) | (b == mark) | (c == mark), fmt.word(0), run(a, b, c))

    return guarded


# --- numpy's own operations


def _quick(ins: Instruction, fmt: FloatFormat) -> Operation | None:
    """Nearest f32, f64 and f16 operations that numpy rounds once."""
    function: Callable[..., Values] | None = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
        "sqrt": np.sqrt, "rcp": np.reciprocal,
    }.get(ins.mnemonic)  # fmt: skip
    if function is None or ins.mode != "rn" or fmt not in (F32, F64, F16):
        return None
    plain, kind = function, _NATIVE[fmt.name]
    if fmt is F16:
        # float32 holds more than 2 * 11 + 2 bits, so rounding twice is rounding once.
        return lambda *x: (
            plain(*(v.view(np.float16).astype(np.float32) for v in x))
            .astype(np.float16)
            .view(np.uint16)
        )
    return lambda *x: plain(*(v.view(kind) for v in x)).view(fmt.word)


# --- float64 rounded to odd, then rounded


def _general(ins: Instruction, narrow: FloatFormat, result: FloatFormat) -> Operation:
    mode = ins.mode
    formats = _operand_formats(ins, narrow, result)
    if result is F64:
        exact = _DOUBLE[ins.mnemonic]
        return lambda *x: exact(*(v.view(np.float64) for v in x), mode).view(np.uint64)
    wide = _WIDE[ins.mnemonic]

    def run(*operands: Bits) -> Bits:
        values = [widened(bits, fmt) for bits, fmt in zip(operands, formats)]
        return narrowed(wide(*values, mode), result, mode)

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
    """The quotient cut to 28 bits makes an exact product, and so shows the sign of the rest."""
    quotient = _cut(a / b, 25)
    rest = a - quotient * b
    rest = np.where(np.isfinite(quotient) & np.isfinite(b) & (b != 0), rest * np.sign(b), 0.0)
    return nudged(quotient, rest)


def _reciprocal(a: Values, mode: Mode) -> Values:
    return _divide(np.ones_like(a), a, mode)


def _root(a: Values, mode: Mode) -> Values:
    root = _cut(np.sqrt(a), 27)
    return nudged(root, a - root * root)


def _cut(value: Values, low_bits: int) -> Values:
    """The value with that many low mantissa bits cleared."""
    return (value.view(np.uint64) & np.uint64(-(1 << low_bits) % (1 << 64))).view(np.float64)


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
    """``neg`` and ``abs``: the sign bit; with ftz subnormals become zero. NaN: canonical."""
    fmt = BY_PTX_TYPE[ins.type.removesuffix("x2")]
    sign = fmt.word(fmt.sign_code)
    flush = ins.has("ftz")
    absolute = ins.mnemonic == "abs"

    def run(a: Bits) -> Bits:
        bits = flushed(a, fmt) if flush else a
        return canonical(bits & ~sign if absolute else bits ^ sign, fmt)

    return run
