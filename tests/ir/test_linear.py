"""Linear forms: divisors divide, quotients are exact, differences do not depend on the unknowns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.ir.arithmetic import evaluate, expressions
from tilejit import dtypes
from tilejit.ir import build, linear, nodes

SMALL = st.fixed_dictionaries({n: st.integers(-1000, 1000) for n in ("i", "j", "k")})
INDEX = expressions(dtypes.int32, 6)
"""Small enough not to wrap: eight leaves up to 1000 by constants up to 6."""


def no_wrap(e: nodes.Expr, values: dict[str, int]) -> bool:
    """Whether 64-bit and 32-bit arithmetic agree."""
    wide = build.cast(e, dtypes.int64)
    return abs(exact(wide, values)) < 2**31


def exact(e: nodes.Expr, values: dict[str, int]) -> int:
    match e:
        case nodes.Cast(operand=operand):
            return exact(operand, values)
        case nodes.Binary(op="mul" | "add" | "sub" as op):
            a, b = exact(e.lhs, values), exact(e.rhs, values)
            found = {"mul": a * b, "add": a + b, "sub": a - b}[op]
            return found if abs(found) < 2**31 else 2**40
    return evaluate(e, values)


@given(INDEX, st.integers(1, 64), SMALL)
def test_division_and_remainder(e, by, values) -> None:
    if no_wrap(e, values):
        value = evaluate(e, values)
        assert evaluate(linear.index_floordiv(e, by), values) == value // by
        assert evaluate(linear.index_mod(e, by), values) == value % by


@given(INDEX, SMALL)
def test_divisors_divide(e, values) -> None:
    if no_wrap(e, values):
        known = linear.divisor(build.index(e))
        value = evaluate(e, values)
        assert value == 0 if known == 0 else value % known == 0


@given(INDEX, SMALL)
def test_linear_form_is_the_expression(e, values) -> None:
    if no_wrap(e, values):
        terms, constant = linear.linear(build.index(e))
        assert evaluate(linear.total(terms, constant), values) == evaluate(e, values)


def i32(name: str) -> nodes.Var:
    return nodes.Var(name, nodes.INT32)


def c(value: int, dtype: dtypes.DType = dtypes.int32) -> nodes.Const:
    return build.const(value, dtype)


def test_known_divisors() -> None:
    x = i32("x")
    u = nodes.Var("u", nodes.UINT32)
    assert linear.divisor(build.index(build.mul(x, c(16)))) == 16
    assert linear.divisor(build.index(build.add(build.mul(x, c(16)), c(8)))) == 8
    assert linear.divisor(build.index(build.bitand(x, c(~3)))) == 4
    assert linear.divisor(build.index(build.shl(x, c(3)))) == 8
    assert linear.divisor(build.index(build.mul(build.floordiv(x, c(6)), c(6)))) == 6
    assert linear.divisor(build.index(build.mod(build.mul(x, c(8)), c(12)))) == 4
    assert linear.divisor(build.index(0)) == 0
    # Unsigned arithmetic wraps at 2**32, which keeps powers of two only.
    assert linear.divisor(build.index(build.mul(u, c(12, dtypes.uint32)))) == 4


def test_differences() -> None:
    x, y = i32("x"), i32("y")
    assert linear.difference(build.add(x, c(4)), x) == 4
    assert linear.difference(build.mul(build.add(x, c(1)), c(8)), build.mul(x, c(8))) == 8
    assert linear.difference(12, 4) == 8
    assert linear.difference(x, y) is None
    half = build.cast(
        build.mul(nodes.Var("f", nodes.FLOAT32), build.const(0.5, dtypes.float32)), dtypes.int32
    )
    assert linear.difference(build.add(half, c(3)), half) == 3


def test_quotients_only_where_exact() -> None:
    x = i32("x")
    assert linear.exact_quotient(build.mul(x, c(6)), 2) == build.index_mul(x, 3)
    assert linear.exact_quotient(build.mul(x, c(3)), 2) is None
    assert linear.exact_quotient(build.bitand(x, c(~1)), 2) is not None


def test_division_folds_what_it_can() -> None:
    k = i32("k")
    wide = build.index(k)
    step = build.mul(k, c(16))
    assert linear.index_floordiv(step, 64) == build.floordiv(wide, build.index(4))
    assert linear.index_mod(step, 64) == build.index_mul(build.mod(wide, build.index(4)), 16)
    assert linear.index_floordiv(build.mul(k, c(64)), 64) == wide
    assert linear.index_mod(build.mul(k, c(64)), 64) == build.index(0)
