"""Folding constructors: equal in value to the operation they are named after."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ir.arithmetic import ARITHMETIC, OPERATIONS, evaluate, expressions, wrapped
from tilejit import dtypes
from tilejit.ir import build, nodes

INTEGERS = [d for d in dtypes.ARITHMETIC if d.is_integer]
VALUES = st.fixed_dictionaries({n: st.integers(-(1 << 62), 1 << 62) for n in ("i", "j", "k")})


def var(name: str, dtype: dtypes.DType = dtypes.int32) -> nodes.Var:
    return nodes.Var(name, nodes.ScalarType(dtype))


@given(st.data(), st.sampled_from(INTEGERS), VALUES)
def test_integer_folding_keeps_the_value(data, dtype, values) -> None:
    values = {n: wrapped(v, dtype) for n, v in values.items()}
    op = data.draw(st.sampled_from((*ARITHMETIC, "floordiv", "mod", "lt", "eq")))
    a = data.draw(expressions(dtype, 100))
    if op in ("floordiv", "mod"):
        b = build.const(data.draw(st.integers(1, 100)), dtype)
    else:
        b = data.draw(expressions(dtype, 100))
    exact = OPERATIONS[op](evaluate(a, values), evaluate(b, values))
    folded = build.binary(op, a, b)
    assert evaluate(folded, values) == (exact if op in ("lt", "eq") else wrapped(exact, dtype))


@pytest.mark.parametrize(
    "made, expected",
    [
        (lambda x: build.add(build.add(x, c(3)), c(4)), lambda x: build.add(x, c(7))),
        (lambda x: build.add(build.sub(x, c(3)), c(3)), lambda x: x),
        (lambda x: build.sub(build.add(x, c(3)), c(5)), lambda x: build.sub(x, c(2))),
        (lambda x: build.add(c(4), x), lambda x: build.add(x, c(4))),
        (lambda x: build.mul(build.mul(x, c(4)), c(8)), lambda x: build.mul(x, c(32))),
        (lambda x: build.mul(c(0), x), lambda x: c(0)),
        (lambda x: build.floordiv(build.floordiv(x, c(4)), c(8)), lambda x: build.floordiv(x, c(32))),
        (lambda x: build.mod(build.mod(x, c(32)), c(8)), lambda x: build.mod(x, c(8))),
        (lambda x: build.mod(build.mod(x, c(8)), c(32)), lambda x: build.mod(x, c(8))),
        (lambda x: build.floordiv(build.mod(x, c(8)), c(8)), lambda x: c(0)),
        (lambda x: build.mod(x, c(1)), lambda x: c(0)),
        (lambda x: build.shr(x, c(0)), lambda x: x),
        (lambda x: build.select(build.lt(x, c(1)), x, x), lambda x: x),
        (lambda x: build.cast(x, dtypes.int32), lambda x: x),
    ],
)  # fmt: skip
def test_constants_gather(made, expected) -> None:
    assert made(var("x")) == expected(var("x"))


def c(value: int) -> nodes.Const:
    return build.const(value, dtypes.int32)


def test_division_by_zero_stays_an_operation() -> None:
    for op in ("floordiv", "mod"):
        assert isinstance(build.binary(op, c(1), c(0)), nodes.Binary)
    one = build.const(1.0, dtypes.float32)
    assert isinstance(build.truediv(one, build.const(0.0, dtypes.float32)), nodes.Binary)


def test_integers_wrap_at_their_width() -> None:
    assert build.as_int(build.add(c(2**31 - 1), c(1))) == -(2**31)
    assert build.as_int(build.neg(build.const(1, dtypes.uint8))) == 255
    assert build.as_int(build.shl(c(1), c(31))) == -(2**31)
    assert build.as_int(build.floordiv(c(-7), c(2))) == -4
    assert build.as_int(build.mod(c(-7), c(2))) == 1


@given(st.floats(width=32), st.floats(width=32), st.sampled_from(["add", "sub", "mul", "truediv"]))
def test_float32_folding_rounds_once(a, b, op) -> None:
    made = build.binary(op, build.const(a, dtypes.float32), build.const(b, dtypes.float32))
    if not isinstance(made, nodes.Const):
        return
    with np.errstate(all="ignore"):
        x, y = np.float32(a), np.float32(b)
        expected = {"add": x + y, "sub": x - y, "mul": x * y}.get(op)
        if expected is None:
            expected = x / y
    assert np.float32(made.value).tobytes() == expected.tobytes() or math.isnan(made.value)


@given(st.floats())
def test_rounding_is_numpys(value) -> None:
    with np.errstate(all="ignore"):
        for dtype, narrow in ((dtypes.float32, np.float32), (dtypes.float16, np.float16)):
            got = np.float64(build.round_float(value, dtype))
            assert got == np.float64(narrow(value)) or math.isnan(got) and math.isnan(value)


@given(st.integers(-(2**63), 2**64 - 1) | st.integers(0, 40).map(lambda n: (1 << 63) + (1 << n)))
def test_large_integers_round_to_float32_once(value) -> None:
    narrow = np.float32(np.int64(value) if value < 2**63 else np.uint64(value))
    assert build.normal(value, dtypes.float32) == float(narrow)


def test_signed_zeros_and_nans_are_not_folded_away() -> None:
    zero, minus = build.const(0.0, dtypes.float32), build.const(-0.0, dtypes.float32)
    assert isinstance(build.minimum(zero, minus), nodes.Binary)
    x = var("x", dtypes.float32)
    assert isinstance(build.add(x, zero), nodes.Binary)
    assert isinstance(build.mul(x, zero), nodes.Binary)
    assert not build.is_const(minus, 0.0)


def test_float_to_integer_saturates() -> None:
    for value, expected in ((3e9, 2**31 - 1), (-3e9, -(2**31)), (math.nan, 0), (-1.9, -1)):
        assert (
            build.as_int(build.cast(build.const(value, dtypes.float32), dtypes.int32)) == expected
        )
    assert build.as_int(build.const(2, dtypes.bool_)) == 1
    assert build.as_int(build.const(1.5, dtypes.float32)) is None


def test_logic() -> None:
    p = nodes.Var("p", nodes.BOOL)
    true, false = build.const(True, dtypes.bool_), build.const(False, dtypes.bool_)
    assert build.and_(true, p) is p and build.or_(p, false) is p
    assert build.and_(p, false) == false and build.or_(true, p) == true
    assert build.not_(build.not_(p)) is p and build.not_(true) == false
    assert build.select(true, c(1), c(2)) == c(1)


def test_index_arithmetic_is_64_bits() -> None:
    tid = nodes.HardwareId("tid")
    made = build.index_add(build.index_mul(tid, 4), 3)
    assert build.dtype_of(made) == dtypes.int64
    assert evaluate(made, {"tid": 5}) == 23
    assert build.index_mul(4, tid) == build.index_mul(tid, 4)
