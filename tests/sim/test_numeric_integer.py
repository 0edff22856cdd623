"""Integer, bit and predicate instructions against Python integers and the ISA's pseudo-code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.numeric_oracle import SPECS, decode, is_infinite, number, signed
from tests.sim.test_numeric_float import codes, form, run
from tilejit.sim import numeric

KINDS = tuple(f"{s}{n}" for s in "us" for n in (16, 32, 64))


def words(bits: int) -> st.SearchStrategy[int]:
    top = 1 << bits - 1
    edges = st.sampled_from([0, 1, 2, top - 1, top, top + 1, 2 * top - 1, 2 * top - 2])
    return st.one_of(edges, st.integers(0, 40), st.integers(0, 2 * top - 1))


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


OPERATIONS: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul.lo": lambda a, b, bits: a * b,
    "mul.hi": lambda a, b, bits: a * b >> bits,
    "min": lambda a, b, bits: min(a, b),
    "max": lambda a, b, bits: max(a, b),
    "div": lambda a, b, bits: truncated(a, b) if b else -1,
    "rem": lambda a, b, bits: a - truncated(a, b) * b if b else -1,
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_operands(name: str, kind: str) -> None:
    bits = int(kind[1:])

    @settings(max_examples=60, deadline=None)
    @given(words(bits), words(bits))
    def check(a: int, b: int) -> None:
        x, y = (signed(v, bits) if kind[0] == "s" else v for v in (a, b))
        expected = OPERATIONS[name](x, y, bits) & (1 << bits) - 1
        assert run(f"{name}.{kind}", a, b)[0] == expected, (hex(a), hex(b))

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_multiply_add(kind: str) -> None:
    bits = int(kind[1:])

    @settings(max_examples=60, deadline=None)
    @given(words(bits), words(bits), words(min(2 * bits, 64)))
    def check(a: int, b: int, c: int) -> None:
        x, y = (signed(v, bits) if kind[0] == "s" else v for v in (a, b))
        mask = (1 << bits) - 1
        assert run(f"mad.lo.{kind}", a, b, c & mask)[0] == (x * y + c) & mask
        assert run(f"mad.hi.{kind}", a, b, c & mask)[0] == ((x * y >> bits) + c) & mask
        if bits < 64:
            assert run(f"mul.wide.{kind}", a, b)[0] == x * y & (1 << 2 * bits) - 1
            assert run(f"mad.wide.{kind}", a, b, c)[0] == (x * y + c) & (1 << 2 * bits) - 1
        assert run(f"sad.{kind}", a, b, c & mask)[0] == (abs(x - y) + c) & mask

    check()


def test_saturation_and_halves() -> None:
    top, bottom = 0x7FFFFFFF, 0x80000000
    assert run("add.sat.s32", [top, bottom, 5], [1, 0xFFFFFFFF, 6]) == [top, bottom, 11]
    assert run("sub.sat.s32", [bottom, top], [1, 0xFFFFFFFF]) == [bottom, top]
    assert run("mad.hi.sat.s32", top, top, top) == [top]
    assert run("add.u16x2", 0xFFFF0001, 0x00020003) == [0x00010004]
    assert run("max.s16x2", 0xFFFF0001, 0x00028000) == [0x00020001]
    assert run("min.relu.s16x2", 0xFFFF0003, 0x00020002) == [0x00000002]
    assert run("max.relu.s32", 0xFFFFFFF0, 0xFFFFFFFF) == [0]


def test_division_never_raises() -> None:
    """Inactive lanes may hold zeros and the one overflowing pair."""
    assert run("div.s32", [0x80000000, 7, 0], [0xFFFFFFFF, 0, 0]) == [
        0x80000000,
        0xFFFFFFFF,
        0xFFFFFFFF,
    ]
    assert run("rem.s32", [0x80000000, 7], [0xFFFFFFFF, 0]) == [0, 0xFFFFFFFF]


def test_abs_neg_of_the_least() -> None:
    assert run("abs.s32", [0x80000000, 0xFFFFFFFF]) == [0x80000000, 1]
    assert run("neg.s64", [1 << 63, 1]) == [1 << 63, (1 << 64) - 1]


@settings(max_examples=100, deadline=None)
@given(words(32), words(32), words(32))
def test_dot_products(a: int, b: int, c: int) -> None:
    for ka in "us":
        for kb in "us":
            total = c
            for i in range(4):
                x, y = a >> 8 * i & 255, b >> 8 * i & 255
                total += (signed(x, 8) if ka == "s" else x) * (signed(y, 8) if kb == "s" else y)
            assert run(f"dp4a.{ka}32.{kb}32", a, b, c)[0] == total & 0xFFFFFFFF


# --- bits


@settings(max_examples=100, deadline=None)
@given(words(32), words(32), words(32), st.integers(0, 255))
def test_lop3_is_its_table(a: int, b: int, c: int, table: int) -> None:
    expected = sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32)
    )
    assert run("lop3.b32", a, b, c, table)[0] == expected


@settings(max_examples=150, deadline=None)
@given(words(64), st.integers(0, 80), st.sampled_from([16, 32, 64]))
def test_shifts_clamp(raw: int, amount: int, bits: int) -> None:
    a = raw & (1 << bits) - 1
    assert run(f"shl.b{bits}", a, amount)[0] == a << amount & (1 << bits) - 1
    assert run(f"shr.u{bits}", a, amount)[0] == a >> amount
    assert run(f"shr.s{bits}", a, amount)[0] == signed(a, bits) >> amount & (1 << bits) - 1


@settings(max_examples=100, deadline=None)
@given(words(32), words(32), st.integers(0, 70))
def test_funnel_shifts(a: int, b: int, amount: int) -> None:
    both = b << 32 | a
    for mode, n in (("wrap", amount % 32), ("clamp", min(amount, 32))):
        assert run(f"shf.l.{mode}.b32", a, b, amount)[0] == (both << n) >> 32 & 0xFFFFFFFF
        assert run(f"shf.r.{mode}.b32", a, b, amount)[0] == both >> n & 0xFFFFFFFF


def test_permutes() -> None:
    a, b = 0x33221100, 0x77665544
    assert run("prmt.b32", a, b, 0x7531) == [0x77553311]
    assert run("prmt.b32", 0x00008000, b, 0x8999) == [0x00FFFFFF]
    expected = {
        "f4e": [0x33221100, 0x44332211, 0x55443322, 0x66554433],
        "b4e": [0x55667700, 0x66770011, 0x77001122, 0x00112233],
        "rc8": [0x00000000, 0x11111111, 0x22222222, 0x33333333],
        "ecl": [0x33221100, 0x33221111, 0x33222222, 0x33333333],
        "ecr": [0x00000000, 0x11111100, 0x22221100, 0x33221100],
        "rc16": [0x11001100, 0x33223322, 0x11001100, 0x33223322],
    }
    for mode, results in expected.items():
        assert run(f"prmt.b32.{mode}", [a] * 4, [b] * 4, [0, 1, 2, 3]) == results


@settings(max_examples=100, deadline=None)
@given(words(64), st.sampled_from([32, 64]))
def test_counts(raw: int, bits: int) -> None:
    a = raw & (1 << bits) - 1
    assert run(f"popc.b{bits}", a)[0] == a.bit_count()
    assert run(f"clz.b{bits}", a)[0] == bits - a.bit_length()
    assert run(f"brev.b{bits}", a)[0] == int(f"{a:0{bits}b}"[::-1], 2)
    for kind, value in (("u", a), ("s", a ^ (1 << bits) - 1 if a >> bits - 1 else a)):
        position = value.bit_length() - 1
        none = 0xFFFFFFFF
        assert run(f"bfind.{kind}{bits}", a)[0] == (position if value else none)
        assert run(f"bfind.shiftamt.{kind}{bits}", a)[0] == (bits - 1 - position if value else none)


@settings(max_examples=150, deadline=None)
@given(words(64), words(64), st.integers(0, 300), st.integers(0, 300), st.sampled_from([32, 64]))
def test_fields(x: int, y: int, start: int, length: int, bits: int) -> None:
    a, b = x & (1 << bits) - 1, y & (1 << bits) - 1
    position, count = start & 255, length & 255
    field = inserted = 0
    for i in range(bits):
        inside = i < count and position + i < bits
        field |= (a >> position + i & 1 if inside else 0) << i
    sign = a >> min(position + count - 1, bits - 1) & 1 if count else 0
    extended = field
    for i in range(bits):
        if not (i < count and position + i < bits):
            extended |= sign << i
    inserted = b
    for i in range(count):
        if position + i < bits:
            inserted = inserted & ~(1 << position + i) | (a >> i & 1) << position + i
    assert run(f"bfe.u{bits}", a, start, length)[0] == field
    assert run(f"bfe.s{bits}", a, start, length)[0] == extended
    assert run(f"bfi.b{bits}", a, b, start, length)[0] == inserted


@settings(max_examples=100, deadline=None)
@given(words(32), st.integers(0, 70), st.integers(0, 70))
def test_masks_and_extensions(a: int, start: int, length: int) -> None:
    for mode, limit in (("clamp", lambda n: min(n, 32)), ("wrap", lambda n: n % 32)):
        first, count = limit(start), limit(length)
        assert run(f"bmsk.{mode}.b32", start, length)[0] == ((1 << count) - 1) << first & 0xFFFFFFFF
        low = a & (1 << count) - 1
        assert run(f"szext.{mode}.u32", a, length)[0] == low
        expected = signed(low, count) & 0xFFFFFFFF if count else 0
        assert run(f"szext.{mode}.s32", a, length)[0] == expected


def test_copysign_takes_the_sign_of_the_first() -> None:
    assert run("copysign.f32", 0x80000000, 0x3F800000) == [0xBF800000]
    assert run("copysign.f64", 0, 0xBFF0 << 48) == [0x3FF0 << 48]


# --- predicates


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
def test_float_comparisons(kind: str) -> None:
    spec = SPECS[kind]
    tests: dict[str, Callable[[float, float], bool]] = {
        "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
        "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y,
    }  # fmt: skip

    @settings(max_examples=60, deadline=None)
    @given(codes(spec), codes(spec))
    def check(a: int, b: int) -> None:
        x, y = (
            float(v) if is_infinite(v) else number(v) for v in (decode(a, spec), decode(b, spec))
        )
        unordered = "nan" in (decode(a, spec), decode(b, spec))
        for name, test in tests.items():
            assert run(f"setp.{name}.{kind}", a, b) == [not unordered and test(x, y)]
            assert run(f"setp.{name}u.{kind}", a, b) == [unordered or test(x, y)]
        assert run(f"setp.nan.{kind}", a, b) == [unordered]
        assert run(f"setp.num.{kind}", a, b) == [not unordered]

    check()


def test_integer_comparisons_and_selection() -> None:
    minus = 0xFFFFFFFF
    assert run("setp.lt.s32", [minus, 1], [1, minus]) == [1, 0]
    assert run("setp.lt.u32", [minus, 1], [1, minus]) == [0, 1]
    assert run("setp.hs.u32", [minus, 1], [1, 1]) == [1, 1]
    assert run("setp.eq.ftz.f32", 1, 0) == [1]
    assert run("selp.b32", [1, 1], [2, 2], [1, 0]) == [1, 2]
    assert run("and.pred", [1, 1], [1, 0]) == [1, 0]
    assert run("not.pred", [1, 0]) == [0, 1]
    assert run("cnot.b32", [0, 5]) == [1, 0]


def test_packed_comparison_gives_the_low_half_first() -> None:
    two = form("setp.lt.f16x2")
    out = numeric.compute(
        two, [np.array([0x3C004000], np.uint32), np.array([0x40003C00], np.uint32)]
    )
    assert [int(x[0]) for x in out] == [0, 1]


def test_testp() -> None:
    values = [0, 1, 0x00800000, 0x7F800000, 0x7FC00000, 0x80000000]
    expected = {
        "finite": [1, 1, 1, 0, 0, 1], "infinite": [0, 0, 0, 1, 0, 0], "number": [1, 1, 1, 1, 0, 1],
        "notanumber": [0, 0, 0, 0, 1, 0], "normal": [1, 0, 1, 0, 0, 1], "subnormal": [0, 1, 0, 0, 0, 0],
    }  # fmt: skip
    for name, results in expected.items():
        assert run(f"testp.{name}.f32", values) == results
