"""Host expressions compute what Python computes."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilejit import dtypes
from tilejit.errors import LaunchError
from tilejit.ir import nodes as ir
from tilejit.runtime.hostexpr import compile_function, wrap

A, B = ir.Var("a", ir.INT64), ir.Var("b", ir.INT64)
OPS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "mod": operator.mod, "bitand": operator.and_, "bitor": operator.or_, "bitxor": operator.xor,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq,
    "ne": operator.ne, "min": min, "max": max, "truediv": operator.truediv,
}  # fmt: skip
ints = st.integers(-(10**6), 10**6)


@pytest.mark.parametrize("op", OPS)
@given(a=ints, b=ints.filter(bool))
def test_binary(op: str, a: int, b: int) -> None:
    assert compile_function(ir.Binary(op, A, B, ir.INT64), ("a", "b"))(a, b) == OPS[op](a, b)


@given(a=ints)
def test_unary_select_and_cast(a: int) -> None:
    def value(expr: ir.Expr) -> object:
        return compile_function(expr, ("a",))(a)

    zero = ir.Const(0, ir.INT64)
    assert value(ir.Unary("neg", A, ir.INT64)) == -a
    assert value(ir.Unary("abs", A, ir.INT64)) == abs(a)
    assert value(ir.Unary("invert", A, ir.INT64)) == ~a
    assert value(ir.Select(ir.Binary("lt", A, zero, ir.BOOL), zero, A, ir.INT64)) == max(a, 0)
    assert value(ir.Cast(A, ir.ScalarType(dtypes.int8))) == (a + 128) % 256 - 128
    assert value(ir.Cast(A, ir.ScalarType(dtypes.uint16))) == a % 65536
    assert value(ir.Cast(A, ir.BOOL)) == bool(a)


def test_nesting_needs_no_precedence() -> None:
    inner = ir.Binary("sub", A, B, ir.INT64)
    expr = ir.Binary("mul", inner, ir.Binary("sub", B, inner, ir.INT64), ir.INT64)
    assert compile_function(expr, ("a", "b"))(7, 3) == (7 - 3) * (3 - (7 - 3))


@pytest.mark.parametrize(
    ("value", "bits", "signed", "expected"),
    [
        (127, 8, True, 127),
        (128, 8, True, -128),
        (-129, 8, True, 127),
        (256, 8, False, 0),
        (-1, 32, False, 2**32 - 1),
    ],
)
def test_wrap(value: int, bits: int, signed: bool, expected: int) -> None:
    assert wrap(value, bits, signed) == expected


def test_what_only_a_device_knows_is_refused() -> None:
    with pytest.raises(LaunchError, match="HardwareId"):
        compile_function(ir.HardwareId("tid.x"), ())
    with pytest.raises(LaunchError, match="Var"):
        compile_function(A, ("b",))
