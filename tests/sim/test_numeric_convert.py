"""``cvt`` and ``mov``: exhaustive over 16-bit sources, fractions elsewhere, packed layouts by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim import numeric_oracle as oracle
from tests.sim.numeric_oracle import SPECS, decode, encode
from tests.sim.test_numeric_float import codes, form, run
from tilejit.ptx.spelling import lookup
from tilejit.sim import numeric

INTEGERS = tuple(f"{s}{n}" for s in "us" for n in (8, 16, 32, 64))


def bounds(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def masked(value: int, kind: str) -> int:
    return value & (1 << int(kind[1:])) - 1


# --- float to integer


def expected_integer(value: oracle.Value, kind: str, mode: str, source: str) -> int:
    low, high = bounds(kind)
    if value == "nan":
        return 1 << int(kind[1:]) - 1 if source == "f64" or kind[1:] == "64" else 0
    if value in ("inf", "-inf"):
        return masked(high if value == "inf" else low, kind)
    whole = oracle.to_integral(oracle.number(value), mode)
    return masked(min(max(whole, low), high), kind)


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("source", ["f16", "bf16"])
def test_every_half_to_integers(kind: str, source: str) -> None:
    if source == "bf16" and kind in ("u8", "s8"):
        return  # no such instruction
    bits = np.arange(0, 1 << 16, 7, dtype=np.uint16)
    for mode in ("rni", "rzi", "rmi", "rpi"):
        expected = [
            expected_integer(decode(int(c), SPECS[source]), kind, mode, source) for c in bits
        ]
        assert run(f"cvt.{mode}.{kind}.{source}", bits) == expected


@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_to_integers(source: str) -> None:
    spec = SPECS[source]

    @settings(max_examples=100, deadline=None)
    @given(codes(spec), st.sampled_from(INTEGERS), st.sampled_from(["rni", "rzi", "rmi", "rpi"]))
    def check(a: int, kind: str, mode: str) -> None:
        expected = expected_integer(decode(a, spec), kind, mode, source)
        assert run(f"cvt.{mode}.{kind}.{source}", a)[0] == expected, (kind, mode, hex(a))

    check()


def test_ranges_end_exactly() -> None:
    below, at = 0x4EFFFFFF, 0x4F000000
    assert run("cvt.rzi.s32.f32", [below, at, 0xCF000000, 0xCF000001]) == [
        0x7FFFFF80, 0x7FFFFFFF, 0x80000000, 0x80000000,
    ]  # fmt: skip
    assert run("cvt.rzi.u64.f32", [0x5F7FFFFF, 0x5F800000]) == [0xFFFFFF0000000000, (1 << 64) - 1]
    assert run("cvt.rmi.u8.f32", [0xBF000000, 0x437F8000]) == [0, 255]
    assert run("cvt.rzi.s32.f32", 0x7FC00000) == [0]
    assert run("cvt.rzi.s64.f32", 0x7FC00000) == [1 << 63]
    assert run("cvt.rzi.s32.f64", 0x7FF8 << 48) == [1 << 31]
    assert run("cvt.rpi.ftz.s32.f32", 1) == [0]
    assert run("cvt.rpi.s32.f32", 1) == [1]


# --- integer to anything


@pytest.mark.parametrize("to", ["f16", "f32", "f64", "bf16"])
def test_integers_to_floats(to: str) -> None:
    @settings(max_examples=150, deadline=None)
    @given(
        st.sampled_from(INTEGERS[1:4] + INTEGERS[5:]), st.integers(0, 63), st.integers(0, 2**64 - 1)
    )
    def check(kind: str, shift: int, raw: int) -> None:
        value = masked(raw >> shift, kind)
        number = oracle.signed(value, int(kind[1:])) if kind[0] == "s" else value
        for mode in ("rn", "rz", "rm", "rp"):
            expected = encode(Fraction(number), SPECS[to], mode)
            assert run(f"cvt.{mode}.{to}.{kind}", value)[0] == expected, (kind, mode, number)

    check()


def test_large_integers_round_once() -> None:
    assert run("cvt.rn.f32.u64", (1 << 24) + 1 << 39 | 1) == [
        encode(Fraction((1 << 24) + 2 << 39), SPECS["f32"])
    ]
    assert run("cvt.rp.f32.s64", (1 << 63) - 1) == [0x5F000000]
    assert run("cvt.rz.f32.s64", (1 << 63) - 1) == [0x5EFFFFFF]
    assert run("cvt.rn.f16.u32", [65519, 65520]) == [0x7BFF, 0x7C00]
    assert run("cvt.rn.sat.f32.s32", [5, (1 << 32) - 5]) == [0x3F800000, 0]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.integers(0, 2**64 - 1))
def test_integers_to_integers(to: str, source: str, raw: int) -> None:
    bits = masked(raw, source)
    value = oracle.signed(bits, int(source[1:])) if source[0] == "s" else bits
    assert run(f"cvt.{to}.{source}", bits)[0] == masked(value, to)
    low, high = bounds(to)
    if low > bounds(source)[0] or high < bounds(source)[1]:
        assert run(f"cvt.sat.{to}.{source}", bits)[0] == masked(min(max(value, low), high), to)


def test_pack_clamps_and_places() -> None:
    a, b = 70000, (1 << 32) - 70000
    assert run("cvt.pack.sat.s16.s32", a, b) == [0x7FFF8000]
    assert run("cvt.pack.sat.u16.s32", a, b) == [0xFFFF0000]
    assert run("cvt.pack.sat.u8.s32.b32", 300, 5, 0xAABBCCDD) == [0xCCDDFF05]
    assert run("cvt.pack.sat.s8.s32.b32", 300, b, 0) == [0x7F80]


# --- float to float


@pytest.mark.parametrize(
    "to,source", [("f32", "f16"), ("f64", "f16"), ("f32", "bf16"), ("f64", "bf16")]
)
def test_widening_is_exact(to: str, source: str) -> None:
    bits = np.arange(0, 1 << 16, 5, dtype=np.uint16)
    number = bits[(bits & 0x7FFF) <= (0x7C00 if source == "f16" else 0x7F80)]
    expected = [encode(decode(int(c), SPECS[source]), SPECS[to]) for c in number]
    assert run(f"cvt.{to}.{source}", number) == expected


@pytest.mark.parametrize("to,source", [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64"), ("bf16", "f16"), ("f16", "bf16")])  # fmt: skip
def test_narrowing_in_every_mode(to: str, source: str) -> None:
    spec = SPECS[source]

    @settings(max_examples=150, deadline=None)
    @given(codes(spec))
    def check(a: int) -> None:
        if decode(a, spec) == "nan":
            return
        for mode in ("rn", "rz", "rm", "rp"):
            expected = encode(decode(a, spec), SPECS[to], mode)
            assert run(f"cvt.{mode}.{to}.{source}", a)[0] == expected, (mode, hex(a))

    check()


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_rounding_to_integral_values(kind: str) -> None:
    spec = SPECS[kind]

    @settings(max_examples=100, deadline=None)
    @given(codes(spec), st.sampled_from(["rni", "rzi", "rmi", "rpi"]))
    def check(a: int, mode: str) -> None:
        value = decode(a, spec)
        if not isinstance(value, Fraction):
            return
        whole: oracle.Value = Fraction(oracle.to_integral(value, mode))
        if not whole and value < 0:
            whole = "-0"
        assert run(f"cvt.{mode}.{kind}.{kind}", a)[0] == encode(whole, spec)

    check()


def test_nans_of_conversions() -> None:
    """As seen on sm_90: canonical between the short types, kept and made quiet to and from f64."""
    assert run("cvt.f32.f16", 0xFC01) == [0x7FFFFFFF]
    assert run("cvt.rn.f16.f32", 0xFF800001) == [0x7FFF]
    assert run("cvt.f32.bf16", 0xFF81) == [0xFF810000]
    assert run("cvt.f64.f32", 0xFF800001) == [0xFFF8000020000000]
    assert run("cvt.ftz.f64.f32", 0xFF800001) == [0x7FFFFFFFE0000000]
    assert run("cvt.rn.f32.f64", 0xFFF0000000000001) == [0xFFC00000]
    assert run("cvt.rn.f16.f64", 0xFFF8534A0DB6FE60) == [0xFE14]
    assert run("cvt.sat.f64.f32", 0x7F800001) == [0]


def test_satfinite_and_relu() -> None:
    infinity, nan, minus_one = 0x7F800000, 0x7FC00000, 0xBF800000
    sources = [infinity, infinity | 1 << 31, nan, minus_one, 0x47800000]
    assert run("cvt.rn.satfinite.f16.f32", sources) == [0x7BFF, 0xFBFF, 0x7FFF, 0xBC00, 0x7BFF]
    assert run("cvt.rn.relu.bf16.f32", sources) == [0x7F80, 0, 0x7FFF, 0, 0x4780]
    assert run("cvt.rn.relu.satfinite.bf16.f32", sources) == [0x7F7F, 0, 0x7FFF, 0, 0x4780]


def test_tf32() -> None:
    tie, even = 0x3F801000, 0x3F803000
    assert run("cvt.rna.tf32.f32", [tie, tie - 1, tie | 1 << 31]) == [
        0x3F802000,
        0x3F800000,
        0xBF802000,
    ]
    assert run("cvt.rn.tf32.f32", [tie, even, 0x7F7FFFFF, 0xFFC00001]) == [
        0x3F800000, 0x3F804000, 0x7F800000, 0x7FFFE000,
    ]  # fmt: skip
    assert run("cvt.rz.relu.tf32.f32", [tie, tie | 1 << 31]) == [0x3F800000, 0]
    assert run("cvt.rna.satfinite.tf32.f32", [0x7F7FFFFF, 0xFF800000]) == [0x7F7FE000, 0xFF7FE000]


def test_ftz_flushes_f32_sides_only() -> None:
    assert run("cvt.ftz.f32.f16", 1) == [0x33800000]
    assert run("cvt.rn.ftz.f32.f64", encode(Fraction(2) ** -130, SPECS["f64"])) == [0]
    assert run("cvt.ftz.f64.f32", 0x80000001) == [1 << 63]
    assert run("cvt.ftz.f32.bf16", 1) == [0]


# --- packed


def test_first_source_is_the_high_half() -> None:
    one, two = 0x3F800000, 0x40000000
    assert run("cvt.rn.f16x2.f32", one, two) == [0x3C004000]
    assert run("cvt.rz.bf16x2.f32", one, two) == [0x3F804000]
    assert run("cvt.rn.satfinite.e4m3x2.f32", one, two) == [0x3840]
    assert run("cvt.rn.satfinite.e2m3x2.f32", one, two) == [0x0810]
    assert run("cvt.rn.satfinite.e2m1x2.f32", one, two) == [0x24]
    assert run("cvt.rz.ue8m0x2.f32", one, two) == [0x7F80]


FORMATS = {"e4m3": "e4m3x2", "e5m2": "e5m2x2", "e2m3": "e2m3x2", "e3m2": "e3m2x2", "e2m1": "e2m1x2"}
STRIDE = {"e4m3": 8, "e5m2": 8, "e2m3": 8, "e3m2": 8, "e2m1": 4}


@pytest.mark.parametrize("name", FORMATS)
def test_narrow_formats_from_f32(name: str) -> None:
    spec, f32 = SPECS[name], SPECS["f32"]

    @settings(max_examples=200, deadline=None)
    @given(codes(f32), codes(f32), st.booleans())
    def check(a: int, b: int, relu: bool) -> None:
        parts = []
        for code in (a, b):
            value = decode(code, f32)
            if relu and value != "nan" and oracle.is_negative(value):
                value = Fraction(0)
            parts.append(encode(value, spec, saturate=True))
        got = run(f"cvt.rn.satfinite{'.relu' * relu}.{FORMATS[name]}.f32", a, b)[0]
        assert got == parts[0] << STRIDE[name] | parts[1], (hex(a), hex(b))

    check()


@pytest.mark.parametrize("name", FORMATS)
def test_narrow_formats_to_f16x2(name: str) -> None:
    """Every code in both halves."""
    spec, stride = SPECS[name], STRIDE[name]
    every = np.arange(1 << spec.bits)
    register = every << stride | every[::-1]
    got = np.array(run(f"cvt.rn.f16x2.{FORMATS[name]}", register))
    expected = np.array([encode(decode(int(c), spec), SPECS["f16"]) for c in every])
    np.testing.assert_array_equal(got >> 16, expected)
    np.testing.assert_array_equal(got & 0xFFFF, expected[::-1])


def test_every_f16_to_fp8() -> None:
    every = np.arange(1 << 16, dtype=np.uint32)
    values = [decode(int(c), SPECS["f16"]) for c in every]
    for name in ("e4m3", "e5m2"):
        got = np.array(run(f"cvt.rn.satfinite.{FORMATS[name]}.f16x2", every << 16 | every[::-1]))
        expected = np.array([encode(v, SPECS[name], saturate=True) for v in values])
        np.testing.assert_array_equal(got >> 8, expected)
        np.testing.assert_array_equal(got & 0xFF, expected[::-1])


def test_special_values_of_narrow_formats() -> None:
    infinity, nan = 0x7F800000, 0xFFC00000
    assert run("cvt.rn.satfinite.e4m3x2.f32", infinity, nan) == [0x7E7F]
    assert run("cvt.rn.satfinite.e5m2x2.f32", infinity | 1 << 31, nan) == [0xFB7F]
    assert run("cvt.rn.satfinite.e2m1x2.f32", infinity | 1 << 31, nan) == [0xF7]
    assert run("cvt.rn.satfinite.e3m2x2.f32", 0xC1F00000, nan) == [0x3F1F]


def test_scale_exponents() -> None:
    one_and_half, infinity, nan = 0x3FC00000, 0x7F800000, 0x7FC00000
    assert run("cvt.rz.ue8m0x2.f32", one_and_half, infinity) == [0x7FFF]
    assert run("cvt.rp.satfinite.ue8m0x2.f32", one_and_half, infinity) == [0x80FE]
    assert run("cvt.rp.ue8m0x2.bf16x2", 0x3FC0_FF80) == [0x80FF]
    assert run("cvt.rz.satfinite.ue8m0x2.bf16x2", 0x0001_7FC0) == [0x00FF]
    assert run("cvt.rp.ue8m0x2.f32", 0x00400000, 0x00400001) == [0x0001]
    assert run("cvt.rn.bf16x2.ue8m0x2", [0x7F80, 0x00FF]) == [0x3F804000, 0x00407FFF]
    assert run("cvt.rz.ue8m0x2.f32", nan, 0) == [0xFF00]


# --- mov


def test_mov_packs_the_first_register_lowest() -> None:
    pair = next(f for f in lookup("mov.b64") if f.operands[1].lanes == 2)
    parts = [np.array([0x11111111], np.uint32), np.array([0x22222222], np.uint32)]
    assert numeric.compute(pair, parts)[0].tolist() == [0x2222222211111111]
    four = next(f for f in lookup("mov.b64") if f.operands[0].lanes == 4)
    out = numeric.compute(four, [np.array([0x4444333322221111], np.uint64)])
    assert [int(x[0]) for x in out] == [0x1111, 0x2222, 0x3333, 0x4444]
    assert all(x.dtype == np.uint16 for x in out)
    with pytest.raises(numeric.Unmodelled):
        numeric.compute(form("mov.b128"), [np.zeros(1, np.uint64)] * 2)
