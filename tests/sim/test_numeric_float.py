"""Floating-point instructions against fractions, and the ISA's special cases one by one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim import numeric_oracle as oracle
from tests.sim.numeric_oracle import SPECS, Spec, Value, decode, encode
from tilejit.ptx.forms import Form
from tilejit.ptx.spelling import lookup
from tilejit.sim import numeric

WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
MODES = ("rn", "rz", "rm", "rp")


def form(spelling: str, operands: int | None = None) -> Form:
    return next(f for f in lookup(spelling) if operands in (None, len(f.operands)))


def run(spelling: str, *inputs: Any, operands: int | None = None) -> list[int]:
    """The first written register, as ints; inputs are ints or lists of them."""
    chosen = form(spelling, operands)
    read = [s for s in chosen.operands if "r" in s.direction for _ in range(s.lanes)]
    arrays = [np.atleast_1d(np.array(x, dtype=WORDS[max(s.bits, 8)])) for s, x in zip(read, inputs)]
    values: list[int] = numeric.compute(chosen, arrays)[0].tolist()
    return values


def codes(spec: Spec) -> st.SearchStrategy[int]:
    """Codes with a liking for the ends, few-bit mantissas and exponents near one another."""
    mantissa, fields = spec.mantissa, (1 << spec.exponent) - 1
    edge = st.sampled_from(
        [0, 1, (1 << mantissa) - 1, 1 << mantissa, (1 << mantissa) + 1, (fields << mantissa) - 1,
         fields << mantissa, (fields << mantissa) + 1, (fields + 1 << mantissa) - 1,
         spec.bias << mantissa, (spec.bias << mantissa) - 1, (spec.bias << mantissa) + 1]
    )  # fmt: skip
    field = st.one_of(st.integers(max(0, spec.bias - 14), spec.bias + 14), st.integers(0, fields))
    part = st.one_of(
        st.integers(0, (1 << mantissa) - 1),
        st.integers(0, mantissa).map(lambda n: (1 << mantissa) - 1 >> n << n),
        st.integers(0, mantissa - 1).map(lambda n: 1 << n),
    )
    plain = st.tuples(field, part).map(lambda p: p[0] << mantissa | p[1])
    sign = st.sampled_from([0, 1 << spec.bits - 1])
    return st.tuples(st.one_of(edge, plain, plain), sign).map(lambda p: p[0] | p[1])


# --- arithmetic

BINARY: dict[str, Callable[[Value, Value, str], Value]] = {
    "add": oracle.add,
    "sub": lambda a, b, mode: oracle.add(a, oracle.negated(b), mode),
    "mul": lambda a, b, mode: oracle.multiply(a, b),
    "div": lambda a, b, mode: oracle.divide(a, b),
}


def same(got: int, expected: int, spec: Spec) -> bool:
    """Equal codes; f64 NaNs are compared as NaNs, their payloads have tests of their own."""
    if spec.bits == 64 and decode(expected, spec) == "nan":
        return decode(got, spec) == "nan"
    return got == expected


def check_binary(name: str, kind: str, a: int, b: int) -> None:
    spec = SPECS[kind]
    modes = MODES if kind in ("f32", "f64") else ("rn",)
    for mode in modes:
        value = BINARY[name](decode(a, spec), decode(b, spec), mode)
        expected = encode(value, spec, mode)
        got = run(f"{name}.{mode}.{kind}", a, b)[0]
        assert same(got, expected, spec), (mode, hex(a), hex(b), hex(got), hex(expected))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_binary_in_every_mode(name: str, kind: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(codes(SPECS[kind]), codes(SPECS[kind]))
    def check(a: int, b: int) -> None:
        check_binary(name, kind, a, b)

    check()


@pytest.mark.parametrize("name", ["add", "sub", "mul"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_binary_of_halves(name: str, kind: str) -> None:
    @settings(max_examples=200, deadline=None)
    @given(codes(SPECS[kind]), codes(SPECS[kind]))
    def check(a: int, b: int) -> None:
        check_binary(name, kind, a, b)

    check()


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
def test_fma_rounds_once(kind: str) -> None:
    spec = SPECS[kind]

    @settings(max_examples=250, deadline=None)
    @given(codes(spec), codes(spec), codes(spec), st.booleans())
    def check(a: int, b: int, c: int, cancel: bool) -> None:
        if cancel:
            product = oracle.multiply(decode(a, spec), decode(b, spec))
            c = encode(oracle.negated(product), spec)
        for mode in MODES if kind in ("f32", "f64") else ("rn",):
            product = oracle.multiply(decode(a, spec), decode(b, spec))
            expected = encode(oracle.add(product, decode(c, spec), mode), spec, mode)
            got = run(f"fma.{mode}.{kind}", a, b, c)[0]
            assert same(got, expected, spec), (mode, hex(a), hex(b), hex(c), hex(got))

    check()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_rcp_and_sqrt_in_every_mode(kind: str) -> None:
    spec = SPECS[kind]

    @settings(max_examples=150, deadline=None)
    @given(codes(spec))
    def check(a: int) -> None:
        for mode in MODES:
            value = decode(a, spec)
            inverse = encode(oracle.divide(Fraction(1), value), spec, mode)
            assert same(run(f"rcp.{mode}.{kind}", a)[0], inverse, spec), (mode, hex(a))
            root = encode(oracle.square_root(value), spec, mode)
            assert same(run(f"sqrt.{mode}.{kind}", a)[0], root, spec), (mode, hex(a))

    check()


@pytest.mark.parametrize("narrow", ["f16", "bf16"])
def test_mixed_precision(narrow: str) -> None:
    small, wide = SPECS[narrow], SPECS["f32"]

    @settings(max_examples=100, deadline=None)
    @given(codes(small), codes(small), codes(wide))
    def check(a: int, b: int, c: int) -> None:
        for mode in MODES:
            total = oracle.add(decode(a, small), decode(c, wide), mode)
            assert run(f"add.{mode}.f32.{narrow}", a, c)[0] == encode(total, wide, mode)
            product = oracle.multiply(decode(a, small), decode(b, small))
            total = oracle.add(product, decode(c, wide), mode)
            assert run(f"fma.{mode}.f32.{narrow}", a, b, c)[0] == encode(total, wide, mode)

    check()


@settings(max_examples=200, deadline=None)
@given(codes(SPECS["f32"]), codes(SPECS["f32"]), codes(SPECS["f32"]))
def test_ftz_flushes_operands_and_results(a: int, b: int, c: int) -> None:
    spec = SPECS["f32"]
    unbounded = Spec(11, 23, "ieee")
    x, y, z = (oracle.flush(decode(v, spec), spec) for v in (a, b, c))
    for mode in MODES:
        exact = oracle.add(oracle.multiply(x, y), z, mode)
        expected = encode(exact, spec, mode)
        if isinstance(exact, Fraction) and exact:
            # Too small is decided by the value rounded with room below.
            rounded = decode(encode(exact, unbounded, mode), unbounded)
            if isinstance(rounded, Fraction) and abs(rounded) < Fraction(2) ** -126:
                expected &= 0x80000000
        assert run(f"fma.{mode}.ftz.f32", a, b, c)[0] == expected, (mode, hex(a), hex(b), hex(c))


def test_f64_fma_at_a_tie_that_is_none() -> None:
    """2**-113 below the middle of two float64: the low parts must be added rounding to odd."""
    a, b = (float(np.ldexp(1 + 2.0**-30, -53)), 1 - 2.0**-30)
    c = 1 + 2.0**-52
    bits = [int(np.float64(x).view(np.uint64)) for x in (a, b, c)]
    assert run("fma.rn.f64", *bits) == [0x3FF0000000000001]
    assert run("fma.rp.f64", *bits) == [0x3FF0000000000002]


def test_f64_fma_ties_between_subnormals() -> None:
    half, other = (encode(Fraction(2) ** e, SPECS["f64"]) for e in (-537, -538))
    three = encode(Fraction(3, 1 << 537), SPECS["f64"])
    above = half + 1
    assert run("fma.rn.f64", [half, three, above], [other] * 3, [0] * 3) == [0, 2, 1]
    assert run("fma.rp.f64", half, other, 0) == [1]
    assert run("mul.rz.f64", three, other) == [1]


# --- special cases

ONE, NAN, QUIET = 0x3F800000, 0x7FFFFFFF, 0x7FC00001
TINY, LEAST = 0x00000001, 0x00800000


def test_nan_results_are_canonical() -> None:
    assert run("add.rn.f32", [QUIET, 0xFFFFFFFF, 0x7F800000], [ONE, ONE, 0xFF800000]) == [NAN] * 3
    assert run("mul.rz.f32", 0x7F800000, 0) == [NAN]
    assert run("sqrt.rn.f32", 0xBF800000) == [NAN]
    assert run("add.f16", 0xFE01, 0x3C00) == [0x7FFF]
    assert run("fma.rn.bf16", 0x7F80, 0x0000, 0x3F80) == [0x7FFF]


def test_f64_nan_keeps_a_payload() -> None:
    first, second, third = 0x7FF0000000000001, 0xFFF8000000000002, 0x7FF8000000000003
    quiet = first | 1 << 51
    assert run("add.rn.f64", first, 0) == [quiet]
    assert run("mul.rz.f64", first, second) == [second]
    assert run("div.rn.f64", first, second) == [quiet]
    assert run("fma.rn.f64", first, second, third) == [second]
    assert run("fma.rn.f64", first, 0, third) == [third]
    assert run("sub.rn.f64", 0x7FF0 << 48, 0x7FF0 << 48) == [0xFFF8 << 48]


def test_zeros_have_ieee_signs() -> None:
    minus = 0x80000000
    assert run("add.rn.f32", [ONE, minus, 0], [ONE | minus, minus, minus]) == [0, minus, 0]
    assert run("add.rm.f32", [ONE, minus, 0], [ONE | minus, minus, minus]) == [minus, minus, minus]
    assert run("fma.rm.f32", ONE, ONE, ONE | minus) == [minus]
    assert run("sqrt.rp.f32", minus) == [minus]


def test_sat_clamps_to_zero_and_one() -> None:
    values = [0x40000000, ONE, 0x3F000000, 0x80000000, 0xBF800000, QUIET, 0x7F800000, TINY]
    expected = [ONE, ONE, 0x3F000000, 0, 0, 0, ONE, TINY]
    assert run("mul.sat.f32", values, [ONE] * 8) == expected
    assert run("add.sat.f16", [0x4000, 0xBC00, 0x7E00], [0, 0, 0]) == [0x3C00, 0, 0]


def test_relu_keeps_nan() -> None:
    assert run("fma.rn.relu.f16", [0xBC00, 0x8001, 0x7C01], [0x3C00] * 3, [0x8000] * 3) == [
        0,
        0,
        0x7FFF,
    ]


def test_out_of_bounds_nan_gives_zero() -> None:
    factors = [0x7FF7, 0xFFF7, 0x3C00, 0x7FF6, 0x3C00]
    others = [0x3C00, 0x3C00, 0x7FF7, 0x3C00, 0x3C00]
    addends = [0x3C00, 0x3C00, 0x3C00, 0x3C00, 0x7FF7]
    assert run("fma.rn.oob.f16", factors, others, addends) == [0, 0, 0, 0x7FFF, 0x7FFF]


def test_flushing_at_the_least_normal_number() -> None:
    """2**-126 (1 - 2**-24) would round up in f32 but is flushed; 2**-126 (1 - 2**-46) is not."""
    assert run("mul.rn.f32", 0x3F7FFFFF, LEAST) == [LEAST]
    assert run("mul.rn.ftz.f32", 0x3F7FFFFF, LEAST) == [0]
    above, below = 0x21800001, 0x1E7FFFFE
    assert run("mul.rn.ftz.f32", above, below) == [LEAST]
    assert run("mul.rp.ftz.f32", above, below) == [LEAST]
    assert run("mul.rz.ftz.f32", above, below) == [0]
    assert run("mul.rp.ftz.f32", above | 1 << 31, below) == [1 << 31]
    assert run("add.ftz.f32", [TINY, TINY | 1 << 31], [0, 1 << 31]) == [0, 1 << 31]


def test_directed_overflow_stops_at_the_largest() -> None:
    big = 0x7F7FFFFF
    for mode, positive, negative in (
        ("rn", 0x7F800000, 0xFF800000), ("rz", big, big | 1 << 31),
        ("rm", big, 0xFF800000), ("rp", 0x7F800000, big | 1 << 31),
    ):  # fmt: skip
        assert run(f"mul.{mode}.f32", [big, big | 1 << 31], [big, big]) == [positive, negative]


# --- min and max


def test_min_max_of_zeros_and_nans() -> None:
    plus, minus = 0, 0x80000000
    assert run("min.f32", [plus, minus], [minus, plus]) == [minus, minus]
    assert run("max.f32", [plus, minus], [minus, plus]) == [plus, plus]
    assert run("max.f32", [QUIET, ONE, QUIET], [ONE, QUIET, QUIET]) == [ONE, ONE, NAN]
    assert run("min.NaN.f32", [QUIET, ONE, ONE], [ONE, QUIET, minus]) == [NAN, NAN, minus]
    assert run("max.f64", 0x7FF0000000000001, 0xFFF0000000000002) == [0xFFF8000000000002]


def test_xorsign_and_three_inputs() -> None:
    two, minus = 0x40000000, 0x80000000
    assert run("max.xorsign.abs.f32", [ONE | minus, ONE | minus], [two, two | minus]) == [
        two | minus,
        two,
    ]
    assert run("min.f32", ONE, two, minus, operands=4) == [minus]
    assert run("max.abs.f32", ONE, two | minus, minus, operands=4) == [two]
    assert run("max.NaN.f32", ONE, QUIET, two, operands=4) == [NAN]
    assert run("max.f32", QUIET, QUIET, two, operands=4) == [two]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_min_max_against_values(kind: str) -> None:
    spec = SPECS[kind]

    @settings(max_examples=100, deadline=None)
    @given(codes(spec), codes(spec))
    def check(a: int, b: int) -> None:
        x, y = decode(a, spec), decode(b, spec)
        if "nan" in (x, y):
            return
        ordered = sorted((a, b), key=lambda c: _rank(decode(c, spec)))
        assert [run(f"min.{kind}", a, b)[0], run(f"max.{kind}", a, b)[0]] == ordered

    check()


def _rank(value: Value) -> tuple[Fraction, int]:
    huge = Fraction(2) ** 2000
    if isinstance(value, Fraction):
        return value, 1
    return {"inf": (huge, 0), "-inf": (-huge, 0), "-0": (Fraction(0), 0)}[value]


# --- packed and unary forms


@pytest.mark.parametrize(
    "name", ["add.rn.f16x2", "mul.rn.bf16x2", "max.NaN.f16x2", "add.ftz.f16x2"]
)
def test_packed_is_two_elements(name: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 1 << 32, (2, 500), dtype=np.uint64).astype(np.uint32)
    scalar = name.removesuffix("x2")
    whole = np.array(run(name, a, b), np.uint32)
    low = run(scalar, a & 0xFFFF, b & 0xFFFF)
    high = run(scalar, a >> 16, b >> 16)
    np.testing.assert_array_equal(whole & 0xFFFF, low)
    np.testing.assert_array_equal(whole >> 16, high)


@pytest.mark.parametrize("name", ["fma.rz.ftz", "fma.rn", "fma.rp"])
def test_f32x2_is_two_elements(name: str) -> None:
    rng = np.random.default_rng(4)
    parts = rng.standard_normal((3, 2, 200)).astype(np.float32).view(np.uint32)
    joined = [p[0].astype(np.uint64) | p[1].astype(np.uint64) << np.uint64(32) for p in parts]
    whole = np.array(run(f"{name}.f32x2", *joined), np.uint64)
    np.testing.assert_array_equal(
        whole & np.uint64(0xFFFFFFFF), run(f"{name}.f32", *(p[0] for p in parts))
    )
    np.testing.assert_array_equal(
        whole >> np.uint64(32), run(f"{name}.f32", *(p[1] for p in parts))
    )


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_abs_and_neg_of_every_half(kind: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    nan = (bits & 0x7FFF) > (0x7C00 if kind == "f16" else 0x7F80)
    np.testing.assert_array_equal(run(f"abs.{kind}", bits), np.where(nan, 0x7FFF, bits & 0x7FFF))
    np.testing.assert_array_equal(run(f"neg.{kind}", bits), np.where(nan, 0x7FFF, bits ^ 0x8000))


# --- approximations: special values, and the documented error


def test_special_values_of_approximations() -> None:
    infinity, minus = 0x7F800000, 1 << 31
    assert run("ex2.approx.f32", [0, minus, infinity, infinity | minus, QUIET]) == [
        ONE,
        ONE,
        infinity,
        0,
        NAN,
    ]
    assert run("lg2.approx.f32", [0, minus, ONE, infinity, ONE | minus]) == [
        infinity | minus, infinity | minus, 0, infinity, NAN,
    ]  # fmt: skip
    assert run("lg2.approx.ftz.f32", TINY) == [infinity | minus]
    assert run("rcp.approx.f32", [0, minus, infinity]) == [infinity, infinity | minus, 0]
    assert run("rsqrt.approx.f32", [0, minus, infinity, ONE | minus]) == [
        infinity,
        infinity | minus,
        0,
        NAN,
    ]
    assert run("tanh.approx.f32", [infinity, infinity | minus, minus]) == [ONE, ONE | minus, minus]
    assert run("sin.approx.f32", [0, minus, infinity]) == [0, minus, NAN]
    assert run("div.approx.f32", [ONE, infinity, minus], [0x7F000000] * 3) != [ONE] * 3
    assert run("div.approx.f32", [ONE, infinity, minus], [0x7E800001] * 3) == [0, NAN, minus]
    assert run("div.full.f32", ONE, 0x7E800000) == [0x00800000]


def test_gross_f64_approximations_have_empty_low_words() -> None:
    third = run("rcp.approx.ftz.f64", 0x4008_0000_1234_5678)[0]
    assert third & 0xFFFFFFFF == 0
    assert abs(np.array([third], np.uint64).view(np.float64)[0] - 1 / 3) < 1e-6
    assert run("rsqrt.approx.ftz.f64", 0xBFF0 << 48) == [0x7FFFFFFF_00000000]


@pytest.mark.parametrize("kind,bound", [("f16", 2.0**-9.9), ("bf16", 2.0**-7)])
def test_ex2_of_every_half(kind: str, bound: float) -> None:
    spec = SPECS[kind]
    bits = np.arange(1 << 16, dtype=np.uint16)
    numbers = bits[(bits & 0x7FFF) < (0x7C00 if kind == "f16" else 0x7F80)]
    name = "ex2.approx.f16" if kind == "f16" else "ex2.approx.ftz.bf16"
    got = np.array([float(oracle.number(decode(c, spec))) for c in run(name, numbers)])
    exact = np.array([float(oracle.number(decode(int(c), spec))) for c in numbers])
    with np.errstate(over="ignore"):
        exact = np.exp2(exact)
    normal = (exact > 2.0 ** (1 - spec.bias)) & (exact < float(spec.largest))
    assert np.max(np.abs(got[normal] / exact[normal] - 1)) <= bound


# --- the interface


def test_shapes_broadcast() -> None:
    f = form("add.rn.f32")
    one = np.full((1, 1), ONE, np.uint32)
    assert numeric.compute(f, [one, np.zeros((4, 32), np.uint32)])[0].shape == (4, 32)
    assert numeric.compute(f, [np.uint32(ONE), np.uint32(0)])[0].shape == ()
    packed = numeric.compute(form("add.f16x2"), [one, np.zeros((2, 32), np.uint32)])
    assert packed[0].shape == (2, 32) and packed[0].dtype == np.uint32


def test_what_is_not_modelled_says_so() -> None:
    with pytest.raises(numeric.Unmodelled, match=r"cvt\.rs\.f16x2\.f32"):
        numeric.compute(form("cvt.rs.f16x2.f32"), [np.zeros(1, np.uint32)] * 3)
    with pytest.raises(ValueError, match=r"add\.rn\.f32 reads 2 registers, given 1"):
        numeric.compute(form("add.rn.f32"), [np.zeros(1, np.uint32)])
