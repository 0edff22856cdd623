"""Scalar operations on arrays against Python's own numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilejit import dtypes
from tilejit.sim import scalar

INTS = [dtypes.BY_NAME[f"{s}int{n}"] for s in ("", "u") for n in (8, 16, 32, 64)]


def values(dtype: dtypes.DType, *items: float) -> np.ndarray:
    return np.array([items]).astype(scalar.value_type(dtype))


def wrap(value: int, dtype: dtypes.DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "int" and value >> (dtype.bits - 1) else value


@given(st.sampled_from(INTS), st.integers(-(2**63), 2**63), st.integers(-(2**63), 2**63))
def test_integers_wrap_and_floor(dtype: dtypes.DType, a: int, b: int) -> None:
    a, b = wrap(a, dtype), wrap(b, dtype)
    python = {
        "add": a + b, "sub": a - b, "mul": a * b, "bitxor": a ^ b, "min": min(a, b), "max": max(a, b),
    }  # fmt: skip
    if b:
        python |= {"floordiv": a // b, "mod": a % b}
    x, y = (np.array([[v]], scalar.value_type(dtype)) for v in (a, b))
    for op, expected in python.items():
        with np.errstate(all="ignore"):
            got = scalar.binary(op, dtype)(x, y)
        assert got.dtype == x.dtype and got.item() == wrap(expected, dtype), op


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shift_counts_past_the_width(dtype: dtypes.DType) -> None:
    low, high = dtypes.integer_range(dtype)
    for a in (low, high, 1):
        for count in (0, 1, dtype.bits - 1, dtype.bits, 100):
            x, n = np.array([[a]], scalar.value_type(dtype)), np.array([[count]], np.int32)
            assert scalar.binary("shl", dtype)(x, n).item() == wrap(a << count, dtype)
            assert scalar.binary("shr", dtype)(x, n).item() == a >> count


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_float_to_integer_truncates_and_saturates(dtype: dtypes.DType) -> None:
    low, high = dtypes.integer_range(dtype)
    convert = scalar.cast(dtypes.float64, dtype)
    cases = {2.7: 2, -0.7: 0, 1e30: high, -1e30: low, math.inf: high, -math.inf: low, math.nan: 0}
    with np.errstate(all="ignore"):
        got = convert(np.array([list(cases)]))
    assert got[0].tolist() == list(cases.values())
    assert convert(np.array([[float(high + 1), float(low)]]))[0].tolist() == [high, low]


def test_minimum_ignores_nan_and_orders_zeros() -> None:
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float64):
        low, high = scalar.binary("min", dtype), scalar.binary("max", dtype)
        a, b = values(dtype, math.nan, 1, -0.0, 0.0, -2), values(dtype, 2, math.nan, 0.0, -0.0, -1)
        assert low(a, b)[0].tolist() == [2, 1, 0, 0, -2]
        assert np.signbit(low(a, b))[0, 2:4].all() and not np.signbit(high(a, b))[0, 2:4].any()
        assert low(a, b).dtype == a.dtype


@given(st.floats(width=16), st.floats(width=16))
def test_half_computes_in_single_and_rounds(a: float, b: float) -> None:
    x, y = values(dtypes.float16, a), values(dtypes.float16, b)
    with np.errstate(all="ignore"):
        for op, function in (("add", np.add), ("mul", np.multiply), ("truediv", np.divide)):
            got = scalar.binary(op, dtypes.float16)(x, y)
            expected = function(x.astype(np.float32), y.astype(np.float32)).astype(np.float16)
            assert got.dtype == np.float16 and np.array_equal(got, expected, equal_nan=True)


@given(*[st.floats(width=32, allow_nan=False, allow_infinity=False)] * 3)
def test_fma_rounds_once(a: float, b: float, c: float) -> None:
    from fractions import Fraction

    exact = Fraction(a) * Fraction(b) + Fraction(c)
    fma = scalar.named("math.fma", dtypes.float32)
    with np.errstate(all="ignore"):
        got = fma(*(values(dtypes.float32, v) for v in (a, b, c))).item()
    if exact == 0 or abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
        return
    if not math.isfinite(got):
        pytest.fail(f"fma({a}, {b}, {c}) = {got}")
    # No float32 lies nearer to the exact value.
    with np.errstate(all="ignore"):
        near = [np.nextafter(np.float32(got), np.float32(way)) for way in (-np.inf, np.inf)]
    distance = abs(Fraction(got) - exact)
    assert all(abs(Fraction(float(v)) - exact) >= distance for v in near if np.isfinite(v))


def test_bit_operations() -> None:
    x = np.array([[0, 1, -1, 6]], np.int32)
    assert scalar.named("bits.popc", dtypes.int32)(x)[0].tolist() == [0, 1, 32, 2]
    assert scalar.named("bits.clz", dtypes.int32)(x)[0].tolist() == [32, 31, 0, 29]
    reversed_ = scalar.named("bits.brev", dtypes.int32)(x)
    expected = [int(f"{v & 0xFFFFFFFF:032b}"[::-1], 2) for v in (0, 1, -1, 6)]
    assert (reversed_.view(np.uint32))[0].tolist() == expected


@pytest.mark.parametrize(
    "dtype", [dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2], ids=str
)
def test_narrow_floats_round_after_each_operation(dtype: dtypes.DType) -> None:
    a = scalar.rounded(np.array([[1.0, 1.5, 3.0]], np.float32), dtype)
    third = scalar.binary("truediv", dtype)(a, scalar.rounded(np.float32([[3.0]]), dtype))
    assert third.dtype == np.float32
    assert np.array_equal(third, scalar.rounded(third, dtype))
    back = scalar.to_value(scalar.to_bits(third, dtype), dtype)
    assert np.array_equal(back, third)
