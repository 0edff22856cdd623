"""Python's operators on kernel values: compile-time by Python itself, run-time by typed ``ir``.

The one place where literals meet types (``dtypes.literal_type``) and types meet types
(``dtypes.promote``). A bool counts as an integer in arithmetic, as in Python. ``//`` and ``%``
floor. ``/`` of integers gives float32 (float64 if one of them is a float64).

Not here: short circuits (``logic``), attribute and subscript access.
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Callable
from typing import Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import (
    any_runtime,
    children,
    describe,
    dtype_of,
    is_number,
    is_numeric,
    is_record,
    is_runtime,
    is_scalar,
    rebuild,
    same,
    unpacking,
)
from tilejit.ir import build
from tilejit.ir import nodes as ir

PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow,
    "shl": operator.lshift, "shr": operator.rshift, "bitand": operator.and_,
    "bitor": operator.or_, "bitxor": operator.xor, "matmul": operator.matmul,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
}  # fmt: skip

PYTHON_UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg, "pos": operator.pos, "invert": operator.invert,
}  # fmt: skip

SYMBOLS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "shl": "<<", "shr": ">>", "bitand": "&", "bitor": "|", "bitxor": "^", "matmul": "@",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
BITWISE = ("bitand", "bitor", "bitxor")
SHIFTS = ("shl", "shr")
MAX_CONSTANT_BITS = 1 << 16
MAX_POWER = 64


def python_call(
    lw: Lowering, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Run Python at compile time; what it raises becomes a diagnostic."""
    try:
        return function(*args, **kwargs)
    except RecursionError:
        raise
    except Exception as error:
        lw.refuse("constant", f"{what} fails at compile time: {type(error).__name__}: {error}")


def const(lw: Lowering, value: bool | int | float, dtype: DType) -> ir.Const:
    """A typed literal; a value that ``dtype`` cannot hold is refused, never wrapped silently."""
    if dtype.is_integer:
        if isinstance(value, float):
            lw.refuse("literal", f"the literal {value!r} is not an integer; {dtype} is")
        low, high = dtypes.integer_range(dtype)
        if not low <= int(value) <= high:
            lw.refuse("literal", f"the literal {value} does not fit {dtype} [{low}, {high}]")
    return build.const(value, dtype, span=lw.here())


def typed(lw: Lowering, value: Any, other: DType | None = None) -> Any:
    """``value`` as a typed scalar; an untyped literal takes the type it has beside ``other``."""
    if is_scalar(value):
        return value
    if is_number(value):
        try:
            dtype = dtypes.literal_type(value, other)
        except ValueError as error:
            lw.refuse("literal", str(error))
        return const(lw, value, dtype)
    lw.refuse("type", f"a number is needed here, got {describe(value)}")


def cast(lw: Lowering, value: Any, dtype: DType) -> Any:
    """``value`` converted to ``dtype`` (documented conversion rules of ``ir.nodes.Cast``)."""
    if is_number(value):
        return _cast_literal(lw, value, dtype)
    if not is_scalar(value):
        lw.refuse("type", f"only scalars can be converted to {dtype}, got {describe(value)}")
    if isinstance(value.type, ir.PointerType):
        return _cast_pointer(lw, value, dtype)
    return build.cast(value, dtype, span=lw.here())


def _cast_literal(lw: Lowering, value: bool | int | float, dtype: DType) -> Any:
    if dtype.is_integer and isinstance(value, float):
        if value != int(value) if value == value and abs(value) != float("inf") else True:
            lw.refuse(
                "literal", f"the literal {value!r} is not an integer",
                help=f"write the {dtype} value you mean",
            )  # fmt: skip
        value = int(value)
    if dtype.kind == "bool":
        return build.const(bool(value), dtype, span=lw.here())
    return const(lw, value, dtype)


def _cast_pointer(lw: Lowering, value: Any, dtype: DType) -> Any:
    wanted = pointer_dtype(value.type)
    if dtype not in (wanted, dtypes.uint64):
        lw.refuse("type", f"a {value.type} is an address: cast it to {wanted}, not {dtype}")
    bits = ir.Bitcast(value, ir.ScalarType(wanted), span=lw.here())
    return bits if dtype == wanted else build.cast(bits, dtype, span=lw.here())


def pointer_dtype(kind: ir.PointerType) -> DType:
    """The integer an address is: 32-bit in shared memory and TMEM, 64-bit elsewhere."""
    return dtypes.uint32 if kind.space in ("shared", "tmem") else dtypes.uint64


def refuse_pointer(lw: Lowering, value: Any, what: str) -> None:
    """An address is no operand of ``what``."""
    if is_scalar(value) and isinstance(value.type, ir.PointerType):
        step = "T.ptx.addr(pointer, bytes)"
        if value.type.space == "tmem":
            step = "T.cuda.get_tmem_addr(pointer, lanes, columns)"
        lw.refuse(
            "pointer-arithmetic", f"{what} does not take a {value.type}",
            help=f"use ptr_to([i, j]) of the element you mean, or {step}",
        )  # fmt: skip


def common(lw: Lowering, a: Any, b: Any, what: str) -> tuple[Any, Any]:
    """Both operands in their common type."""
    for side in (a, b):
        if not (is_number(side) or is_scalar(side)):
            message = f"{what} takes numbers, got {describe(side)}"
            if isinstance(side, tuple) and side and all(map(_is_size, side)):
                names = ["M", "N", *(f"K{i}" for i in range(len(side) - 2))]
                pattern = unpacking(names if len(side) > 1 else ["N"])
                lw.refuse("type", message, help=f"unpack it: {pattern} = X.shape")
            lw.refuse("type", message)
        refuse_pointer(lw, side, what)
    a, b = _typed_pair(lw, a, b)
    try:
        dtype = dtypes.promote(dtype_of(a), dtype_of(b))
    except ValueError as error:
        lw.refuse("type", str(error))
    if dtype not in dtypes.ARITHMETIC:
        lw.refuse("type", f"{what}: no arithmetic on {dtype}; cast it first")
    return build.cast(a, dtype, span=lw.here()), build.cast(b, dtype, span=lw.here())


def _is_size(value: Any) -> bool:
    """What a shape holds: an integer, or a run-time size."""
    integral = is_scalar(value) and is_numeric(value) and dtype_of(value).is_integer
    return isinstance(value, int) or integral


def alike(lw: Lowering, a: Any, b: Any, what: str) -> tuple[Any, Any]:
    """Two values of which a run-time condition chooses one: their numbers in common types, part by
    part. Parts that are not numbers stay as they are."""
    left, right = children(a), children(b)
    if left is not None and right is not None:
        if type(a) is not type(b) or len(left) != len(right):
            return a, b
        pairs = [(x, y) if same(x, y) else alike(lw, x, y, what) for x, y in zip(left, right)]
        return rebuild(a, tuple(x for x, _ in pairs)), rebuild(b, tuple(y for _, y in pairs))
    if not (is_numeric(a) and is_numeric(b)):
        return a, b
    a, b = _typed_pair(lw, a, b)
    return (a, b) if a.type == b.type else common(lw, a, b, what)


def _typed_pair(lw: Lowering, a: Any, b: Any) -> tuple[Any, Any]:
    """Both as typed scalars; a literal takes the type it has beside the other."""
    a_type = dtype_of(a) if is_scalar(a) else None
    b_type = dtype_of(b) if is_scalar(b) else None
    return typed(lw, a, b_type), typed(lw, b, a_type)


def integer(lw: Lowering, value: Any) -> Any:
    """Python's bool is an integer in arithmetic."""
    if isinstance(value, bool):
        return int(value)
    if is_scalar(value) and value.type == ir.BOOL:
        return build.cast(value, dtypes.int32, span=lw.here())
    return value


def binary(lw: Lowering, op: str, a: Any, b: Any) -> Any:
    """``a op b`` with Python's meaning."""
    if not is_runtime(a) and not is_runtime(b):
        if any_runtime(a) or any_runtime(b):
            return _of_parts(lw, op, a, b)
        return _compile_time(lw, op, a, b)
    if op in COMPARISONS:
        return compare(lw, op, a, b)
    what = f"`{SYMBOLS[op]}`"
    if op == "matmul":
        lw.refuse("operator", "`@` has no meaning in kernels", help="apply an mma instruction")
    if op == "pow":
        return _power(lw, a, b)
    if op in SHIFTS:
        return _shift(lw, op, a, b, what)
    if op not in BITWISE and _both_bool(a, b):
        a, b = integer(lw, a), integer(lw, b)
    a, b = common(lw, a, b, what)
    dtype = dtype_of(a)
    if op in BITWISE and dtype.is_float:
        lw.refuse("type", f"{what} takes integers or bools, got {dtype}")
    if op == "truediv" and not dtype.is_float:
        a, b = (build.cast(x, dtypes.float32, span=lw.here()) for x in (a, b))
    if op in ("floordiv", "mod", "truediv") and isinstance(b, ir.Const) and b.value == 0:
        if not dtype.is_float:
            lw.refuse("zero-division", f"{what} by zero")
    return getattr(build, op)(a, b, span=lw.here())


def _both_bool(a: Any, b: Any) -> bool:
    return all(isinstance(x, bool) or (is_scalar(x) and x.type == ir.BOOL) for x in (a, b))


def _compile_time(lw: Lowering, op: str, a: Any, b: Any) -> Any:
    if op in ("pow", "shl") and all(isinstance(x, int) for x in (a, b)):
        growth = b * (a.bit_length() if op == "pow" else 1)
        if growth > MAX_CONSTANT_BITS:
            lw.refuse("constant", f"{a} {SYMBOLS[op]} {b} has more than {MAX_CONSTANT_BITS} bits")
    return python_call(lw, f"`{SYMBOLS[op]}`", PYTHON[op], a, b)


def _of_parts(lw: Lowering, op: str, a: Any, b: Any) -> Any:
    """An operator on containers with run-time parts: equal part by part, or put together.

    Python's own ``==`` would compare the expressions, not what they will be.
    """
    if op in ("eq", "ne"):
        equal = _equal_parts(lw, a, b)
        return equal if op == "eq" else unary(lw, "not", equal)
    sequences = [isinstance(x, tuple | list) for x in (a, b)]
    if (op == "add" and all(sequences)) or (op == "mul" and any(sequences)):
        return _compile_time(lw, op, a, b)
    lw.refuse(
        "type", f"`{SYMBOLS[op]}` does not take {describe(a)} and {describe(b)} with run-time parts",
        help="write it for their parts",
    )  # fmt: skip


def _equal_parts(lw: Lowering, a: Any, b: Any) -> Any:
    left, right = children(a), children(b)
    if left is None and right is None:
        return binary(lw, "eq", a, b) if is_runtime(a) or is_runtime(b) else same(a, b) or a == b
    if left is None or right is None or not _comparable(lw, a, b) or len(left) != len(right):
        return False
    if is_record(a):
        compared = [f.compare for f in dataclasses.fields(a)]
        left, right = (tuple(itertools.compress(x, compared)) for x in (left, right))
    equal: Any = True
    for x, y in zip(left, right):
        one = _equal_parts(lw, x, y)
        if one is False:
            return False
        if one is not True:
            equal = one if equal is True else build.and_(equal, one, span=lw.here())
    return equal


def _comparable(lw: Lowering, a: Any, b: Any) -> bool:
    """Whether two containers are equal when their parts are; if not, they differ."""
    known: tuple[Any, ...] = (tuple.__eq__, list.__eq__, slice.__eq__)
    for x in (a, b):
        custom = type(x).__eq__ not in known
        if custom and not (is_record(x) and type(x).__eq__.__code__.co_filename == "<string>"):
            lw.refuse(
                "type", f"{describe(x)} has its own `==`, which run-time parts cannot take",
                help="compare the parts",
            )  # fmt: skip
    if is_record(a) or is_record(b):
        return type(a) is type(b)
    return any(isinstance(a, k) and isinstance(b, k) for k in (tuple, list, slice))


def _shift(lw: Lowering, op: str, a: Any, b: Any, what: str) -> Any:
    a, b = typed(lw, integer(lw, a)), typed(lw, integer(lw, b))
    for side in (a, b):
        refuse_pointer(lw, side, what)
        if not dtype_of(side).is_integer:
            lw.refuse("type", f"{what} takes integers, got {side.type}")
    if isinstance(b, ir.Const) and not 0 <= b.value < dtype_of(a).bits:
        lw.refuse("shift", f"shift of a {a.type} by {b.value}", help="a count is 0 to bits - 1")
    return getattr(build, op)(a, b, span=lw.here())


def _power(lw: Lowering, a: Any, b: Any) -> Any:
    a, b = integer(lw, a), integer(lw, b)
    refuse_pointer(lw, a, "`**`")
    exponent = b.value if isinstance(b, ir.Const) else b
    if isinstance(exponent, int) and is_scalar(a) and dtype_of(a).is_integer:
        if not 0 <= exponent <= MAX_POWER:
            lw.refuse(
                "power", f"an integer to the power {exponent}: exponents are 0 to {MAX_POWER}"
            )
        return _integer_power(lw, lw.keep(a, "base"), exponent)
    a, b = common(lw, a, b, "`**`")
    if not dtype_of(a).is_float:
        lw.refuse("power", "`**` with a run-time integer exponent", help="use floats or a loop")
    return ir.Call("math.pow", (a, b), a.type, span=lw.here())


def _integer_power(lw: Lowering, base: Any, exponent: int) -> Any:
    result: Any = const(lw, 1, dtype_of(base))
    while exponent:
        if exponent & 1:
            result = build.mul(result, base, span=lw.here())
        exponent >>= 1
        if exponent:
            base = lw.keep(build.mul(base, base, span=lw.here()), "square")
    return result


def compare(lw: Lowering, op: str, a: Any, b: Any) -> Any:
    """A comparison of two values, at least one of them a run-time one."""
    if op in ("eq", "ne") and not all(is_number(x) or is_scalar(x) for x in (a, b)):
        if any(x is None for x in (a, b)):
            return op == "ne"
        lw.refuse(
            "type", f"cannot compare {describe(a)} with {describe(b)}",
            help="compare elements, or their shapes and dtypes",
        )  # fmt: skip
    pointers = [is_scalar(x) and isinstance(x.type, ir.PointerType) for x in (a, b)]
    if all(pointers):
        a, b = (cast(lw, x, pointer_dtype(x.type)) for x in (a, b))
    if is_number(a) or is_number(b):
        folded = _literal_out_of_range(op, a, b)
        if folded is not None:
            return folded
    a, b = common(lw, a, b, f"`{SYMBOLS[op]}`")
    return getattr(build, op)(a, b, span=lw.here())


def _literal_out_of_range(op: str, a: Any, b: Any) -> bool | None:
    """An integer against a literal its type cannot hold: Python's answer is known."""
    literal, other, flipped = (a, b, True) if is_number(a) else (b, a, False)
    if isinstance(literal, bool) or not isinstance(literal, int) or not is_scalar(other):
        return None
    if isinstance(other.type, ir.PointerType) or not dtype_of(other).is_integer:
        return None
    low, high = dtypes.integer_range(dtype_of(other))
    if low <= literal <= high:
        return None
    stand_in = low if literal > high else high  # any value of the type is on one side of it
    pair = (literal, stand_in) if flipped else (stand_in, literal)
    return bool(PYTHON[op](*pair))


def truth(lw: Lowering, value: Any) -> Any:
    """``bool(value)``: a Python bool, or a run-time bool."""
    if is_scalar(value):
        if isinstance(value, ir.Const):
            return bool(value.value)
        if isinstance(value.type, ir.PointerType):
            return True
        return build.cast(value, dtypes.bool_, span=lw.here())
    if isinstance(value, ir.View | ir.Region):
        lw.refuse(
            "tensor-truth", f"{describe(value)} has no truth value",
            help="test an element, or `x is not None` for an optional tensor",
        )  # fmt: skip
    return python_call(lw, "bool()", bool, value)


def unary(lw: Lowering, op: str, value: Any) -> Any:
    """``-x``, ``+x``, ``~x`` or ``not x``."""
    if op == "not":
        decided = truth(lw, value)
        return not decided if isinstance(decided, bool) else build.not_(decided, span=lw.here())
    if not is_runtime(value):
        return python_call(lw, "a unary operator", PYTHON_UNARY[op], value)
    if not is_scalar(value) or isinstance(value.type, ir.PointerType):
        lw.refuse("type", f"unary operators take numbers, got {describe(value)}")
    value = integer(lw, value)
    if op == "pos":
        return value
    if op == "invert" and dtype_of(value).is_float:
        lw.refuse("type", f"`~` takes integers, got {value.type}")
    return build.neg(value, span=lw.here()) if op == "neg" else build.invert(value, span=lw.here())


def select(lw: Lowering, condition: Any, if_true: Any, if_false: Any, what: str) -> Any:
    """``if_true if condition else if_false`` of scalars, both evaluated."""
    if_true, if_false = alike(lw, if_true, if_false, what)
    return build.select(condition, if_true, if_false, span=lw.here())
