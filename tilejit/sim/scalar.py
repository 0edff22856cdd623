"""What scalar operations do to arrays of values: one value per (warp, lane), broadcastable.

Values of a dtype are numpy arrays of ``value_type(dtype)``: bool, the integer types, float16,
float32, float64; bfloat16 and the narrower floats are float32 arrays that hold only representable
values. Integers wrap, ``//`` and ``%`` floor, floats round to their type after each operation
(16-bit floats compute in float32), min and max ignore a NaN, casts truncate and saturate.

The ``math`` operations are computed in float64 and rounded: correctly rounded up to the rare double
rounding, where hardware's are approximations of the accuracy that ``ir.ops`` states.

Not here: instruction semantics (families' ``execute``), evaluating expressions (``expr``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ir.nodes import BinaryOp, UnaryOp
from tilejit.sim import numeric

Array: TypeAlias = npt.NDArray[Any]
Function: TypeAlias = Callable[..., Array]

_VALUE_TYPES: dict[str, Any] = {
    "bool": np.bool_, "float16": np.float16, "float32": np.float32, "float64": np.float64,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}").type for sign in ("", "u") for bits in (8, 16, 32, 64)},
}  # fmt: skip
_WORD_TYPES: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def value_type(dtype: DType) -> Any:
    """The numpy type that holds values of ``dtype``."""
    return _VALUE_TYPES.get(dtype.name, np.float32)


def native(dtype: DType) -> bool:
    """Do values of ``dtype`` have their own bits in memory?"""
    return dtype.name in _VALUE_TYPES


def to_bits(values: Array, dtype: DType) -> Array:
    """Unsigned words holding the bits of ``values``; sub-byte types sit in the low bits of a byte."""
    if dtype.kind == "bool":
        return values.astype(np.uint8)
    if native(dtype):
        return np.ascontiguousarray(values).view(_WORD_TYPES[dtype.bits])
    return numeric.to_bits(values, dtype)


def to_value(bits: Array, dtype: DType) -> Array:
    """The values of unsigned words; inverse of ``to_bits``. A bool is true for any nonzero byte."""
    if dtype.kind == "bool":
        return np.asarray(bits != 0)
    if native(dtype):
        return np.ascontiguousarray(bits).view(value_type(dtype))
    return numeric.to_value(bits, dtype)


def rounded(values: Array, dtype: DType) -> Array:
    """Floating-point ``values`` (float32 or float64) rounded to ``dtype``."""
    if native(dtype):
        return values.astype(value_type(dtype), copy=False)
    return numeric.to_value(numeric.to_bits(values, dtype), dtype)


# --- casts


def cast(source: DType, target: DType) -> Function:
    """Numeric conversion of values of ``source``."""
    if source == target:
        return lambda x: x
    if target.kind == "bool":
        return lambda x: x != 0
    if target.is_float:
        if native(target):
            kind = value_type(target)
            return lambda x: x.astype(kind)
        wide = np.float64 if source.bits > 32 else np.float32
        return lambda x: rounded(x.astype(wide), target)
    kind = value_type(target)
    if not source.is_float:
        return lambda x: x.astype(kind)
    return _float_to_integer(target)


def _float_to_integer(target: DType) -> Function:
    low, high = dtypes.integer_range(target)
    kind = value_type(target)
    # The first float64 beyond the range: 2**63 and 2**64 are exact, so the comparison is exact too.
    above = float(high + 1)

    def convert(x: Array) -> Array:
        wide = np.trunc(x.astype(np.float64))
        inside = (wide >= low) & (wide < above)
        if inside.all():
            return wide.astype(kind)
        result = np.where(inside, wide, 0).astype(kind)
        result[wide >= above] = high
        result[wide < low] = low
        return result

    return convert


def bitcast(source: DType, target: DType) -> Function:
    """The same bits as another type of the same width."""
    return lambda x: to_value(to_bits(x, source), target)


# --- arithmetic

_PLAIN: dict[str, Function] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
}  # fmt: skip
_COMPARE: dict[str, Function] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


def binary(op: BinaryOp, dtype: DType) -> Function:
    """``op`` on two arrays of values of ``dtype``."""
    if op in _COMPARE:
        return _COMPARE[op]
    if op in ("shl", "shr"):
        return _shift(op, dtype)
    if op in ("min", "max"):
        return _extremum(op, dtype)
    if dtype.is_float:
        return _float_binary(op, dtype)
    if op == "floordiv":
        return lambda a, b: np.floor_divide(a, b)
    if op == "mod":
        return lambda a, b: np.remainder(a, b)
    if dtype.kind == "bool":
        return {"add": np.logical_or, "mul": np.logical_and, "sub": np.logical_xor}.get(
            op, _PLAIN[op]
        )
    return _PLAIN[op]


def _float_binary(op: BinaryOp, dtype: DType) -> Function:
    plain = {"floordiv": _float_floordiv, "mod": _float_mod}.get(op) or _PLAIN[op]
    if dtype in (dtypes.float32, dtypes.float64):
        return plain

    def narrow(a: Array, b: Array) -> Array:
        wide = plain(a.astype(np.float32, copy=False), b.astype(np.float32, copy=False))
        return rounded(wide, dtype)

    return narrow


def _float_floordiv(a: Array, b: Array) -> Array:
    result: Array = np.floor_divide(a, b)
    return result


def _float_mod(a: Array, b: Array) -> Array:
    result: Array = np.remainder(a, b)
    return result


def _shift(op: BinaryOp, dtype: DType) -> Function:
    """Counts of the width or more shift everything out, as PTX ``shl`` and ``shr`` do."""
    kind = value_type(dtype)
    clamp = dtype.bits - 1

    def left(a: Array, b: Array) -> Array:
        out = (b < 0) | (b > clamp)
        return np.asarray(np.where(out, kind(0), a << np.where(out, 0, b).astype(kind)))

    def right(a: Array, b: Array) -> Array:
        out = (b < 0) | (b > clamp)
        if dtype.kind == "uint":
            return np.asarray(np.where(out, kind(0), a >> np.where(out, 0, b).astype(kind)))
        shifted: Array = a >> np.where(out, clamp, b).astype(kind)
        return shifted

    return left if op == "shl" else right


def _extremum(op: BinaryOp, dtype: DType) -> Function:
    if not dtype.is_float:
        return np.minimum if op == "min" else np.maximum
    choose = np.fmin if op == "min" else np.fmax
    # PTX orders -0 below +0; equal zeros must not depend on the operands' order.
    zeros: Function = np.bitwise_or if op == "min" else np.bitwise_and
    word = _WORD_TYPES[8 * np.dtype(value_type(dtype)).itemsize]

    def extremum(a: Array, b: Array) -> Array:
        result: Array = choose(a, b)
        tie = (a == 0) & (b == 0)
        if tie.any():
            a, b = (np.ascontiguousarray(x).view(word) for x in (a, b))
            signed = zeros(a, b).view(result.dtype)
            result = np.where(tie, signed, result)
        return result

    return extremum


def unary(op: UnaryOp, dtype: DType) -> Function:
    """``op`` on an array of values of ``dtype``."""
    if op == "not":
        return np.logical_not
    if op == "invert":
        return np.invert
    if op == "abs":
        return np.absolute
    if dtype.kind == "bool":
        return lambda x: x
    return np.negative


# --- named operations


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _rsqrt(x: Array) -> Array:
    result: Array = 1.0 / np.sqrt(x)
    return result


_MATH: dict[str, Function] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "sqrt": np.sqrt,
    "rsqrt": _rsqrt, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "erf": _erf,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint, "pow": np.power,
}  # fmt: skip


def named(op: str, dtype: DType) -> Function | None:
    """A pure operation of ``ir.ops`` on values of ``dtype``; None if there is no such one."""
    room, _, name = op.partition(".")
    if room == "bits":
        return {"popc": _popc, "clz": _clz, "brev": _brev}.get(name)
    if room != "math":
        return None
    if name in ("isnan", "isinf"):
        return np.isnan if name == "isnan" else np.isinf
    if name == "fma":
        return _fma(dtype)
    function = _MATH.get(name)
    if function is None:
        return None
    return lambda *x: rounded(function(*(v.astype(np.float64) for v in x)), dtype)


def _fma(dtype: DType) -> Function:
    """a * b + c with one rounding. The float64 product of two float32 is exact; the sum is made
    round-to-odd, so that rounding it to the narrower type is the one rounding that shows."""
    if dtype == dtypes.float64:
        return _fma_float64

    def fma(a: Array, b: Array, c: Array) -> Array:
        product = a.astype(np.float64) * b.astype(np.float64)
        addend = c.astype(np.float64)
        total = product + addend
        virtual = total - product
        error = (product - (total - virtual)) + (addend - virtual)
        bits = total.view(np.int64)
        odd = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
        toward = np.where((error > 0) == (total > 0), 1, -1)
        total = np.where(odd, bits + toward, bits).view(np.float64)
        return rounded(total, dtype)

    return fma


def _fma_float64(a: Array, b: Array, c: Array) -> Array:
    from fractions import Fraction

    def one(x: float, y: float, z: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
            return x * y + z
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact == 0:
            return x * y + z
        try:
            return float(exact)
        except OverflowError:
            return math.copysign(math.inf, exact)

    return np.asarray(np.vectorize(one, otypes=[np.float64])(a, b, c))


def _popc(x: Array) -> Array:
    return np.bitwise_count(_unsigned(x)).astype(np.int32)


def _unsigned(x: Array) -> Array:
    return np.ascontiguousarray(x).view(_WORD_TYPES[8 * x.dtype.itemsize])


def _clz(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    filled = _unsigned(x).copy()
    step = 1
    while step < bits:
        filled |= filled >> x.dtype.type(step).view(filled.dtype)
        step *= 2
    return (bits - np.bitwise_count(filled)).astype(np.int32)


def _brev(x: Array) -> Array:
    word = _unsigned(x)
    in_bytes = word.view(np.uint8).reshape(*word.shape, x.dtype.itemsize)[..., ::-1]
    bits = np.unpackbits(in_bytes, axis=-1, bitorder="little")[..., ::-1]
    # Bytes were reversed and, inside each, bits: pack again in the byte order of the machine.
    packed = np.packbits(bits.reshape(*bits.shape[:-1], -1, 8), axis=-1, bitorder="little")
    flat = packed.reshape(*word.shape, x.dtype.itemsize)[..., ::-1]
    return np.ascontiguousarray(flat).view(word.dtype).reshape(word.shape).view(x.dtype)
