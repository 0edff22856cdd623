"""Typed expression constructors that fold constants.

Every constructor returns an expression equal in value to the node it is named after: identities
(``x + 0``, ``x * 1``, ``0 * x``) and constants are folded, integers wrap at their type's width and
``//`` and ``%`` floor. Operands must already have one type (``cast`` first), except shifts.

``index_*`` build int64 index arithmetic from any integers. Not here: choosing types (frontend),
index arithmetic that relies on not wrapping (``ir.linear``).
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from typing import Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Span
from tilejit.ir.nodes import (
    BOOL,
    INT64,
    Binary,
    BinaryOp,
    Bitcast,
    Cast,
    Const,
    Expr,
    PointerType,
    ScalarType,
    Select,
    Unary,
)

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


def const(value: int | float | bool, dtype: DType, *, span: Span | None = None) -> Const:
    """``value`` as a ``dtype`` literal: integers wrap, floats round to the type."""
    return Const(normal(value, dtype), scalar_type(dtype), span=span)


def scalar_type(dtype: DType) -> ScalarType:
    """The type of a scalar of ``dtype``; one object for all."""
    return _SCALAR_TYPES[dtype.name]


_SCALAR_TYPES = {dtype.name: ScalarType(dtype) for dtype in dtypes.ALL}


def normal(value: Any, dtype: DType) -> int | float | bool:
    """``value`` converted to what a variable of ``dtype`` holds."""
    if dtype.kind == "bool":
        return bool(value)
    if dtype.is_integer:
        if isinstance(value, float):
            return _saturate(value, dtype)
        return _wrap(int(value), dtype)
    if isinstance(value, int) and dtype.mantissa_bits < 52:
        return round_float(_to_odd(value), dtype)
    return round_float(float(value), dtype)


def _to_odd(value: int) -> float:
    """An integer as a float64 that rounds to any narrower type as the integer itself does: bits that
    do not fit are kept as one sticky last bit."""
    lost = max(0, abs(value).bit_length() - 53)
    kept = abs(value) >> lost
    if kept << lost != abs(value):
        kept |= 1
    return math.copysign(math.ldexp(kept, lost), value)


def _wrap(value: int, dtype: DType) -> int:
    low, high = dtypes.integer_range(dtype)
    if low <= value <= high:
        return value
    value &= (1 << dtype.bits) - 1
    if dtype.kind == "int" and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value


def _saturate(value: float, dtype: DType) -> int:
    low, high = dtypes.integer_range(dtype)
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return min(max(int(value), low), high)


def round_float(value: float, dtype: DType) -> float:
    """``value`` rounded to nearest even in a floating-point type; overflow gives infinity."""
    if math.isnan(value):
        return math.nan  # one object, so that equal constants compare equal
    if dtype == dtypes.float64 or math.isinf(value) or value == 0:
        return value
    if dtype == dtypes.float32:
        try:
            return float(struct.unpack("f", struct.pack("f", value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)
    exponent = math.frexp(value)[1] - 1
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    exponent = max(exponent, 1 - bias)
    unit = math.ldexp(1.0, exponent - dtype.mantissa_bits)
    rounded = round(value / unit) * unit
    if dtype in (dtypes.float16, dtypes.bfloat16):
        largest = math.ldexp(2.0 - math.ldexp(1.0, -dtype.mantissa_bits), bias)
        if abs(rounded) > largest:
            return math.copysign(math.inf, value)
    return rounded


def dtype_of(expr: Expr) -> DType:
    """The scalar type of an expression."""
    kind = expr.type
    assert isinstance(kind, ScalarType), kind
    return kind.dtype


def as_int(expr: Expr) -> int | None:
    """The value of an integer constant, else None."""
    if isinstance(expr, Const) and not isinstance(expr.value, float):
        return int(expr.value)
    return None


def is_const(expr: Expr, value: int | float) -> bool:
    """True for the constant ``value`` (and for -0.0 only when asked for it)."""
    return (
        isinstance(expr, Const)
        and expr.value == value
        and math.copysign(1, expr.value) == math.copysign(1, value)
    )


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod,
    "shl": operator.lshift, "shr": operator.rshift,
    "bitand": operator.and_, "bitor": operator.or_, "bitxor": operator.xor,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b,
    "min": min, "max": max,
}  # fmt: skip


def binary(op: BinaryOp, a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    """``a op b``; the result's type is bool for comparisons and logic, else ``a``'s."""
    dtype = dtype_of(a)
    result = dtypes.bool_ if op in COMPARISONS or op in ("and", "or") else dtype
    folded = _fold(op, a, b, dtype, result, span)
    if folded is not None:
        return folded
    same = _identity(op, a, b, dtype, span)
    if same is not None:
        return same
    return Binary(op, a, b, scalar_type(result), span=span)


def _fold(
    op: BinaryOp, a: Expr, b: Expr, dtype: DType, result: DType, span: Span | None
) -> Const | None:
    if not (isinstance(a, Const) and isinstance(b, Const)):
        return None
    if op in ("floordiv", "mod", "truediv") and b.value == 0:
        return None
    if op in ("shl", "shr") and not 0 <= b.value < dtype.bits:
        return None
    # Only float32 and wider fold: narrower types would need their own rounding of every operation.
    if dtype.is_float and op not in COMPARISONS:
        if dtype.bits < 32 or op in ("floordiv", "mod"):
            return None
        if math.isnan(a.value) or math.isnan(b.value):
            return None
        if op in ("min", "max") and a.value == 0 == b.value:
            return None  # -0 and +0 differ here; Python's min does not see it
        try:
            # Two float32 operands: a float64 operation rounded once more is the float32 result.
            return const(_FOLD[op](a.value, b.value), result, span=span)
        except OverflowError:
            return None
    return const(_FOLD[op](a.value, b.value), result, span=span)


def _identity(op: BinaryOp, a: Expr, b: Expr, dtype: DType, span: Span | None) -> Expr | None:
    """A simpler equal expression, for integers and bools (floats have -0 and NaN)."""
    if op == "and":
        for left, right in ((a, b), (b, a)):
            if isinstance(left, Const):
                return right if left.value else left
    if op == "or":
        for left, right in ((a, b), (b, a)):
            if isinstance(left, Const):
                return left if left.value else right
    if not dtype.is_integer:
        return None
    if isinstance(a, Const) and not isinstance(b, Const) and op in _COMMUTATIVE:
        return binary(op, b, a, span=span)
    value = as_int(b)
    if value is None:
        return None
    if value == 0:
        if op in ("add", "sub", "shl", "shr", "bitor", "bitxor"):
            return a
        if op in ("mul", "bitand"):
            return const(0, dtype)
    if value == 1:
        if op in ("mul", "floordiv"):
            return a
        if op == "mod":
            return const(0, dtype)
    return _gather(op, a, value, dtype, span)


_COMMUTATIVE = ("add", "mul", "bitand", "bitor", "bitxor")


def _gather(op: BinaryOp, a: Expr, value: int, dtype: DType, span: Span | None) -> Expr | None:
    """``(x op c) op d`` as one operation with one constant, where that is equal for every ``x``."""
    if not isinstance(a, Binary):
        return None
    inner = as_int(a.rhs)
    if inner is None:
        return None
    if op in ("add", "sub") and a.op in ("add", "sub"):
        # Wrapping addition is associative.
        moved = (inner if a.op == "add" else -inner) + (value if op == "add" else -value)
        return _moved(a.lhs, _wrap(moved, dtype), dtype, span)
    if op == "mul" and a.op == "mul":
        return mul(a.lhs, const(inner * value, dtype), span=span)
    if value <= 0 or inner <= 0:
        return None
    if op == "floordiv" and a.op == "floordiv":
        if inner * value <= dtypes.integer_range(dtype)[1]:
            return floordiv(a.lhs, const(inner * value, dtype), span=span)
    if a.op == "mod":
        if op == "floordiv" and inner <= value:
            return const(0, dtype)
        if op == "mod" and inner <= value:
            return a
        if op == "mod" and inner % value == 0:
            return mod(a.lhs, a.rhs if inner == value else const(value, dtype), span=span)
    return None


def _moved(x: Expr, by: int, dtype: DType, span: Span | None) -> Expr:
    """``x + by``, as a subtraction where that reads better."""
    if by < 0 and _wrap(-by, dtype) > 0:
        return sub(x, const(-by, dtype), span=span)
    return add(x, const(by, dtype), span=span)


def add(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("add", a, b, span=span)


def sub(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("sub", a, b, span=span)


def mul(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("mul", a, b, span=span)


def truediv(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("truediv", a, b, span=span)


def floordiv(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("floordiv", a, b, span=span)


def mod(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("mod", a, b, span=span)


def shl(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("shl", a, b, span=span)


def shr(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("shr", a, b, span=span)


def bitand(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("bitand", a, b, span=span)


def bitor(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("bitor", a, b, span=span)


def bitxor(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("bitxor", a, b, span=span)


def lt(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("lt", a, b, span=span)


def le(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("le", a, b, span=span)


def gt(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("gt", a, b, span=span)


def ge(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("ge", a, b, span=span)


def eq(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("eq", a, b, span=span)


def ne(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("ne", a, b, span=span)


def and_(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("and", a, b, span=span)


def or_(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("or", a, b, span=span)


def minimum(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("min", a, b, span=span)


def maximum(a: Expr, b: Expr, *, span: Span | None = None) -> Expr:
    return binary("max", a, b, span=span)


def not_(a: Expr, *, span: Span | None = None) -> Expr:
    """Logical negation of a bool."""
    if isinstance(a, Const):
        return const(not a.value, dtypes.bool_, span=span)
    if isinstance(a, Unary) and a.op == "not":
        return a.operand
    return Unary("not", a, BOOL, span=span)


def neg(a: Expr, *, span: Span | None = None) -> Expr:
    if isinstance(a, Const):
        return const(-a.value, dtype_of(a), span=span)
    return Unary("neg", a, ScalarType(dtype_of(a)), span=span)


def invert(a: Expr, *, span: Span | None = None) -> Expr:
    """Bitwise complement of an integer."""
    if isinstance(a, Const) and not isinstance(a.value, float):
        return const(~int(a.value), dtype_of(a), span=span)
    return Unary("invert", a, ScalarType(dtype_of(a)), span=span)


def absolute(a: Expr, *, span: Span | None = None) -> Expr:
    if isinstance(a, Const):
        return const(abs(a.value), dtype_of(a), span=span)
    return Unary("abs", a, ScalarType(dtype_of(a)), span=span)


def select(condition: Expr, if_true: Expr, if_false: Expr, *, span: Span | None = None) -> Expr:
    if isinstance(condition, Const):
        return if_true if condition.value else if_false
    if if_true == if_false:
        return if_true
    return Select(condition, if_true, if_false, if_true.type, span=span)


def cast(a: Expr, dtype: DType, *, span: Span | None = None) -> Expr:
    """Numeric conversion; the operand itself when it has the type already."""
    source = dtype_of(a)
    if source == dtype:
        return a
    if isinstance(a, Const) and (dtype in dtypes.ARITHMETIC):
        return const(a.value, dtype, span=span or a.span)
    return Cast(a, scalar_type(dtype), span=span)


def bitcast(a: Expr, type: ScalarType | PointerType, *, span: Span | None = None) -> Expr:
    if a.type == type:
        return a
    return Bitcast(a, type, span=span)


def index(value: int | Expr) -> Expr:
    """An int64 index from an int or an integer expression."""
    if isinstance(value, int):
        return Const(value, INT64)
    return cast(value, dtypes.int64)


def index_add(a: int | Expr, b: int | Expr) -> Expr:
    left, right = index(a), index(b)
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(_wrap(int(left.value + right.value), dtypes.int64), INT64)
    return add(left, right)


def index_mul(a: int | Expr, b: int | Expr) -> Expr:
    left, right = index(a), index(b)
    if isinstance(left, Const):
        left, right = right, left
    return mul(left, right)
