"""Arithmetic of ``tcgen05.mma`` against the model's text in exact fractions, formats against other
libraries' tables, packing against strings of bits.

The oracle knows the codes (``numeric_oracle``) and the sentences at the top of ``numeric.mma`` and
``numeric.tcgen05_mma``. Nothing here has been compared with a GPU.
"""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.sim.numeric_oracle import SPECS, Spec, Value, decode
from tests.sim.test_numeric_mma import (
    SPEC_OF,
    as_float,
    codes,
    cut,
    decoded_codes,
    dot,
    infinity_or_nan,
    operand_exponent,
    rounded,
)
from tilejit import dtypes
from tilejit.sim.numeric import mma, packing, to_value
from tilejit.sim.numeric.formats import BY_PTX_TYPE
from tilejit.sim.numeric.mma import Accumulator
from tilejit.sim.numeric.tcgen05_mma import BlockScales, Kind, tensor_core_multiply_accumulate

# --- formats

TABLES = {
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "ue8m0": ml_dtypes.float8_e8m0fnu,
}
TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "ue8m0": torch.float8_e8m0fnu,
}


def all_codes(type_: str) -> np.ndarray:
    return np.arange(1 << BY_PTX_TYPE[type_].bits, dtype=np.uint8)


def assert_same_values(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize("type_", TABLES)
def test_every_code_is_what_ml_dtypes_says(type_: str) -> None:
    given = all_codes(type_)
    expected = given.view(TABLES[type_]).astype(np.float64)
    assert_same_values(mma.valued(given, BY_PTX_TYPE[type_]), expected)
    dtype = dtypes.BY_NAME[np.dtype(TABLES[type_]).name]
    assert_same_values(to_value(given, dtype).astype(np.float64), expected)


@pytest.mark.parametrize("type_", TORCH)
def test_every_code_is_what_torch_says(type_: str) -> None:
    given = all_codes(type_)
    expected = torch.from_numpy(given).view(TORCH[type_]).to(torch.float64).numpy()
    assert_same_values(mma.valued(given, BY_PTX_TYPE[type_]), expected)


def test_ue4m3_is_e4m3_whatever_the_sign_bit() -> None:
    given = np.arange(256, dtype=np.uint8)
    expected = (given & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    assert np.isnan(expected).sum() == 2
    assert_same_values(mma.valued(given, BY_PTX_TYPE["ue4m3"]), expected)


def test_tf32_is_the_upper_19_bits_of_f32() -> None:
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << 32, 4096, dtype=np.uint32)
    words = words[(words & 0x7F800000) != 0x7F800000]
    kept = (words >> 13 << 13).view(np.float32).astype(np.float64)
    assert_same_values(mma.valued(words, BY_PTX_TYPE["tf32"]), kept)


# --- what the tests ask


def ask(
    kind: Kind, types: str, a: np.ndarray, b: np.ndarray, d: np.ndarray | None, **more: object
) -> np.ndarray:
    result, left, right = types.split(".")
    got = tensor_core_multiply_accumulate(kind, (result, left, right), a, b, d, **more)
    assert got.dtype == np.uint32 and got.shape == (len(a), len(b))
    return got


def valued(cells: np.ndarray, type_: str) -> np.ndarray:
    return cells.astype(np.uint16).view(np.float16) if type_ == "f16" else cells.view(np.float32)


def draw(type_: str, shape: tuple[int, ...], what: str, rng: np.random.Generator) -> np.ndarray:
    """Codes: of narrow types all alike, without infinities and NaNs unless ``what`` is special."""
    fmt = BY_PTX_TYPE[type_]
    if fmt.bits > 8:
        return codes(fmt, shape, what, rng)
    chosen = all_codes(type_)
    if what != "special":
        chosen = chosen[np.isfinite(mma.valued(chosen, fmt))]
    found = rng.choice(chosen, shape)
    return np.where(rng.random(shape) < 0.1, np.uint8(0), found)


def fractions(given: np.ndarray, type_: str) -> np.ndarray:
    found = np.empty(given.shape, object)
    found.reshape(-1)[:] = decoded_codes(given, BY_PTX_TYPE[type_])
    return found


def assert_cells(got: np.ndarray, expected: list[list[Value]], type_: str) -> None:
    """Also the sign of zero, and which NaN."""
    wanted = np.array([[as_float(x) for x in row] for row in expected])
    nan = {"f32": 0x7FFFFFFF, "f16": 0x7FFF}[type_]
    assert_same_values(valued(got, type_).astype(np.float64), wanted)
    assert (got[np.isnan(wanted)] == nan).all()


# --- kinds without scale factors

WHOLE = {"f16": 16, "tf32": 8, "f8f6f4": 32, "mxf8f6f4": 32}
"""K of an instruction, all of it added at once."""
PLAIN = [
    ("f16", "f32.f16.f16"), ("f16", "f16.f16.f16"), ("f16", "f32.bf16.bf16"),
    ("tf32", "f32.tf32.tf32"),
    ("f8f6f4", "f32.e4m3.e5m2"), ("f8f6f4", "f16.e5m2.e4m3"), ("f8f6f4", "f32.e2m3.e3m2"),
    ("f8f6f4", "f16.e3m2.e2m3"), ("f8f6f4", "f32.e2m1.e4m3"), ("f8f6f4", "f32.e5m2.e2m1"),
]  # fmt: skip


def model_of(result: str, fraction_bits: int = 25) -> Accumulator:
    if result == "f16":
        return Accumulator(64, fraction_bits, "rn", 10, -133)
    return Accumulator(64, fraction_bits, "rz", 23, -133)


@pytest.mark.parametrize("what", ["near", "far", "tiny", "edge", "special"])
@pytest.mark.parametrize(("kind", "types"), PLAIN)
def test_products_are_cut_below_the_largest(kind: Kind, types: str, what: str) -> None:
    result, left, right = types.split(".")
    rng = np.random.default_rng((len(types), ord(types[-3]), ord(what[0])))
    m, n, k = 9, 9, WHOLE[kind]
    a, b = draw(left, (m, k), what, rng), draw(right, (n, k), what, rng)
    before = draw(result, (m, n), what, rng)
    if what == "near":  # cancel what the products add up to, all but a few bits
        exact = valued(ask(kind, types, a, b, None), result)
        before[::2] = (-exact * (1 + 2.0**-8)).astype(exact.dtype).view(before.dtype)[::2]
    if what == "edge":  # the floor of exponents shows only where D has none
        before[:] = 0
    got = ask(kind, types, a, b, before.astype(np.uint32))
    x, y, z = (fractions(g, t) for g, t in ((a, left), (b, right), (before, result)))
    specs = SPEC_OF[left], SPEC_OF[right], SPEC_OF[result]
    expected = [
        [dot(list(x[i]), list(y[j]), z[i, j], specs, model_of(result)) for j in range(n)]
        for i in range(m)
    ]
    assert_cells(got, expected, result)


def test_bits_below_the_25th_are_cut_and_the_sum_is_truncated() -> None:
    """By hand: beside 2**12 a term of 2**-14 is nothing; of 2**-13 it counts, but not in the f32 sum."""
    a = np.zeros((1, 16), np.float16)
    b = np.ones((1, 16), np.float16)
    a[0, :3] = 2.0**12, -(2.0**-14), 0
    before = np.zeros((1, 1), np.uint32)
    assert valued(ask("f16", "f32.f16.f16", a.view("u2"), b.view("u2"), before), "f32") == 2**12
    a[0, :3] = 2.0**12, -(2.0**-13), 0
    below = np.nextafter(np.float32(2**12), np.float32(0))
    assert valued(ask("f16", "f32.f16.f16", a.view("u2"), b.view("u2"), before), "f32") == below
    a[0, :3] = 2.0**12, 2.0**-12, 2.0**-13
    assert valued(ask("f16", "f32.f16.f16", a.view("u2"), b.view("u2"), before), "f32") == 2**12


@pytest.mark.parametrize(("small", "expected"), [(-157, 0), (-159, 1), (-161, 1)])
def test_the_largest_exponent_counts_as_133_below_at_least(small: int, expected: int) -> None:
    """2**-149, the least f32, minus a term that counts from 2**(-133 - 25) on."""
    a, b = (np.zeros((1, 16), np.uint16) for _ in range(2))
    a[0, :2] = 127 - 75 << 7, 127 - 80 << 7  # 2**-75 and 2**-80 of bf16
    b[0, :2] = 127 - 74 << 7, 127 + small + 80 << 7
    b[0, 1] |= 0x8000
    assert ask("f16", "f32.bf16.bf16", a, b, None) == expected


def test_f8f6f4_keeps_more_than_hopper() -> None:
    """wgmma drops what is 2**-14 of the largest; here all of f32 is kept."""
    one = np.full((1, 32), 0x38, np.uint8)
    a = np.zeros((1, 32), np.uint8)
    a[0, :2] = 0x38, 0x01  # 1 and 2**-9 of e4m3
    b = one.copy()
    b[0, 1] = 0x01
    got = valued(ask("f8f6f4", "f32.e4m3.e4m3", a, b, None), "f32")
    assert got == 1 + 2.0**-18


def test_no_d_is_a_d_of_zeros() -> None:
    rng = np.random.default_rng(2)
    a, b = draw("e4m3", (4, 32), "far", rng), draw("e5m2", (6, 32), "far", rng)
    none = ask("f8f6f4", "f32.e4m3.e5m2", a, b, None)
    assert np.array_equal(none, ask("f8f6f4", "f32.e4m3.e5m2", a, b, np.zeros((4, 6), np.uint32)))
    bytes_ = rng.integers(0, 256, (2, 4, 32), dtype=np.uint8)
    none = ask("i8", "s32.s8.u8", *bytes_, None)
    assert np.array_equal(none, ask("i8", "s32.s8.u8", *bytes_, np.zeros((4, 4), np.uint32)))


def test_the_high_half_of_a_cell_of_f16_is_not_read() -> None:
    rng = np.random.default_rng(3)
    a, b, d = (draw("f16", shape, "near", rng) for shape in ((4, 16), (4, 16), (4, 4)))
    plain = ask("f16", "f16.f16.f16", a, b, d.astype(np.uint32))
    high = rng.integers(0, 1 << 16, (4, 4), dtype=np.uint32) << 16
    assert np.array_equal(ask("f16", "f16.f16.f16", a, b, d | high), plain)
    assert (plain >> 16 == 0).all() and plain.any()


@pytest.mark.parametrize("negated", [(True, False), (False, True), (True, True)])
def test_negation_is_of_the_factors(negated: tuple[bool, bool]) -> None:
    rng = np.random.default_rng(4)
    a, b, d = (
        draw(t, s, "near", rng) for t, s in (("bf16", (4, 16)), ("bf16", (4, 16)), ("f32", (4, 4)))
    )
    options = {"negate_a": negated[0], "negate_b": negated[1]}
    got = ask("f16", "f32.bf16.bf16", a, b, d, **options)
    flipped = a ^ np.uint16(0x8000 if negated.count(True) == 1 else 0)
    assert np.array_equal(got, ask("f16", "f32.bf16.bf16", flipped, b, d))
    assert np.array_equal(got, ask("f16", "f32.bf16.bf16", a, b, d)) == all(negated)


def test_a_sum_past_the_largest_is_infinite() -> None:
    big = np.full((1, 32), 0x7E, np.uint8)  # 448 of e4m3: 32 squares are past f16 and far below f32
    assert ask("f8f6f4", "f16.e4m3.e4m3", big, big, None) == 0x7C00
    assert valued(ask("f8f6f4", "f32.e4m3.e4m3", big, big, None), "f32") == 32 * 448**2


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("types", ["s32.s8.s8", "s32.s8.u8", "s32.u8.s8", "s32.u8.u8"])
def test_integers_are_exact(types: str, saturate: bool) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(0, 256, (rows, 32), dtype=np.uint8) for rows in (4, 6))
    d = np.where(rng.random((4, 6)) < 0.5, 0x7FFF_FF00, 0x8000_0100).astype(np.uint32)
    got = ask("i8", types, a, b, d, saturate=saturate).view(np.int32)
    left, right = (
        x.view(np.int8 if kind == "s8" else np.uint8).tolist()
        for x, kind in zip((a, b), types.split(".")[1:])
    )
    clamped = 0
    for i, j in np.ndindex(4, 6):
        total = int(d.view(np.int32)[i, j]) + sum(x * y for x, y in zip(left[i], right[j]))
        wanted = min(max(total, -(2**31)), 2**31 - 1)
        clamped += wanted != total
        assert got[i, j] == (wanted if saturate else (total + 2**31) % 2**32 - 2**31)
    assert clamped


# --- kinds with scale factors


def scale_value(code: int, type_: str) -> tuple[Value, int]:
    """A scale factor and its exponent, 0 for zero and NaN."""
    if type_ == "ue8m0":
        return ("nan", 0) if code == 255 else (Fraction(2) ** (code - 127), code - 127)
    value = decode(code & 0x7F, SPECS["e4m3"])
    number = isinstance(value, Fraction) and value
    return value, operand_exponent(value, SPECS["e4m3"]) if number else 0


Factors = list[tuple[Value, int]]


def scaled(
    a: list[Value],
    b: list[Value],
    c: Value,
    factors: tuple[Factors, Factors],
    specs: tuple[Spec, Spec],
    group: int,
) -> Value:
    """Terms of ``group`` products; of one product each, the products' own exponents count, too."""
    special = infinity_or_nan(a, b, c)
    if "nan" in [x for x, _ in factors[0] + factors[1]]:
        special = "nan"
    if special is not None:
        return special
    block = len(a) // len(factors[0])
    products = [
        x * y if isinstance(x, Fraction) and isinstance(y, Fraction) else Fraction(0)
        for x, y in zip(a, b)
    ]
    terms: list[tuple[Fraction, int]] = []
    for start in range(0, len(a), group):
        (u, p), (v, q) = (side[start // block] for side in factors)
        term = sum(products[start : start + group]) * u * v
        exponent = p + q
        if group == 1 and term:
            exponent += sum(operand_exponent(x, s) for x, s in zip((a[start], b[start]), specs))
        if term:
            terms.append((term, exponent))
    if isinstance(c, Fraction) and c:
        terms.append((c, operand_exponent(c, SPECS["f32"])))
    model = model_of("f32", 25 if group == 1 else 35)
    largest = max([model.least_exponent, *(e for _, e in terms)])
    unit = Fraction(2) ** (largest - model.fraction_bits)
    return rounded(sum((cut(t, unit) for t, _ in terms), Fraction(0)), model, SPECS["f32"])


def draw_scales(
    type_: str, shape: tuple[int, ...], what: str, rng: np.random.Generator
) -> np.ndarray:
    if what == "special":
        return np.where(rng.random(shape) < 0.1, np.uint8(255), np.uint8(130))
    if type_ == "ue4m3":
        return rng.integers(0, 0x7F, shape, dtype=np.uint8)
    if what == "ends":
        return rng.choice(np.array([0, 1, 126, 128, 253, 254], np.uint8), shape)
    if what == "edge":  # two of them take a product to where f32 ends
        return rng.integers(51, 57, shape, dtype=np.uint8)
    spread = {"near": 3, "far": 14}[what]
    return (127 + rng.integers(-spread, spread + 1, shape)).astype(np.uint8)


SCALED = [
    ("mxf8f6f4", "f32.e4m3.e4m3", "ue8m0", 32, 1), ("mxf8f6f4", "f32.e5m2.e3m2", "ue8m0", 32, 1),
    ("mxf8f6f4", "f32.e2m1.e2m3", "ue8m0", 32, 1),
    ("mxf4", "f32.e2m1.e2m1", "ue8m0", 64, 2), ("mxf4", "f32.e2m1.e2m1", "ue8m0", 96, 3),
    ("mxf4nvf4", "f32.e2m1.e2m1", "ue8m0", 64, 2), ("mxf4nvf4", "f32.e2m1.e2m1", "ue4m3", 64, 4),
    ("mxf4nvf4", "f32.e2m1.e2m1", "ue4m3", 96, 6),
]  # fmt: skip


@pytest.mark.parametrize("what", ["near", "far", "edge", "ends", "special"])
@pytest.mark.parametrize(("kind", "types", "scale", "k", "blocks"), SCALED)
def test_scale_factors(kind: Kind, types: str, scale: str, k: int, blocks: int, what: str) -> None:
    _, left, right = types.split(".")
    rng = np.random.default_rng((k, blocks, ord(types[4]), ord(what[0])))
    m, n = 6, 7
    a, b = draw(left, (m, k), what, rng), draw(right, (n, k), what, rng)
    scales = BlockScales(scale, *(draw_scales(scale, (rows, blocks), what, rng) for rows in (m, n)))
    before = draw("f32", (m, n), "special" if what == "special" else "far", rng)
    if what == "near":
        exact = valued(ask(kind, types, a, b, None, scales=scales), "f32")
        before[::2] = (-exact * np.float32(1 + 2.0**-12)).view(np.uint32)[::2]
    if what in ("edge", "ends"):  # the far ends of scale factors show only beside a small D
        before[1:] = 0
    got = ask(kind, types, a, b, before, scales=scales)
    x, y, z = (fractions(g, t) for g, t in ((a, left), (b, right), (before, "f32")))
    factors = [
        [[scale_value(int(code), scale) for code in row] for row in side]
        for side in (scales.a, scales.b)
    ]
    specs = SPECS[left], SPECS[right]
    group = 1 if kind == "mxf8f6f4" else 16
    expected = [
        [
            scaled(list(x[i]), list(y[j]), z[i, j], (factors[0][i], factors[1][j]), specs, group)
            for j in range(n)
        ]
        for i in range(m)
    ]
    assert_cells(got, expected, "f32")
    numbers = np.isfinite(valued(got, "f32"))
    assert numbers.any()
    assert not numbers.all() or what in ("near", "far", "edge") or scale == "ue4m3"


MINUS_ONE = np.full((1, 1), np.float32(-1).view(np.uint32))


def two_groups(first: list[int], second: list[int], codes_: tuple[int, int], d: np.ndarray | None):
    """Codes of A in the groups at 0 and 32, scale factors 2**codes_; B is ones."""
    a = np.zeros((1, 64), np.uint8)
    a[0, : len(first)], a[0, 32 : 32 + len(second)] = first, second
    scales = BlockScales("ue8m0", np.array([codes_]).astype(np.uint8) + np.uint8(127),
                         np.full((1, 2), 127, np.uint8))  # fmt: skip
    b = np.full((1, 64), 0b0010, np.uint8)
    return valued(ask("mxf4", "f32.e2m1.e2m1", a, b, d, scales=scales), "f32")


def test_the_36th_bit_of_a_term_is_cut() -> None:
    """Below the largest exponent, here that of D and of a term that cancels it."""
    one = 0b0010
    assert two_groups([one], [one], (0, -35), MINUS_ONE) == 2.0**-35
    assert two_groups([one], [one], (0, -36), MINUS_ONE) == 0


def test_the_smallest_scale_factor_has_its_own_exponent() -> None:
    """2**-127 times 2**127 is 1, of exponent 0: a term of 2**-35 beside it is kept."""
    a = np.zeros((1, 64), np.uint8)
    a[0, [0, 32]] = 0b0010
    scales = BlockScales("ue8m0", *(np.array([x], np.uint8) for x in ([0, 92], [254, 127])))
    b = np.full((1, 64), 0b0010, np.uint8)
    got = valued(ask("mxf4", "f32.e2m1.e2m1", a, b, MINUS_ONE, scales=scales), "f32")
    assert got == 2.0**-35


def test_sixteen_products_are_one_term() -> None:
    """Wherever in the group: 2**-36 twice is 2**-35, and 0.5 beside 4 - 4 is all there is."""
    second = [0] * 16
    second[0] = second[15] = 0b0010
    assert two_groups([0b0010], second, (0, -36), MINUS_ONE) == 2.0**-35
    assert two_groups([0b0110, 0b1110, 0b0001], [], (0, 0), None) == 0.5


def test_a_term_of_zero_has_no_exponent() -> None:
    """1 - 1 with a scale factor of 2**60 cuts nothing; without the -1 it would."""
    assert two_groups([0b0010, 0b1010], [0b0010], (60, 0), None) == 1
    d = np.full((1, 1), np.float32(-(2.0**60)).view(np.uint32))
    assert two_groups([0b0010], [0b0010], (60, 0), d) == 0


def test_one_scale_factor_is_of_one_block_of_one_row() -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(0, 16, (rows, 64), dtype=np.uint8) for rows in (3, 5))
    plain = BlockScales("ue4m3", np.full((3, 4), 0x38, np.uint8), np.full((5, 4), 0x38, np.uint8))
    base = valued(ask("mxf4nvf4", "f32.e2m1.e2m1", a, b, None, scales=plain), "f32")
    left, right = (mma.valued(x, BY_PTX_TYPE["e2m1"]) for x in (a, b))
    for side, row, block in (("a", 1, 2), ("b", 4, 0)):
        factors = {"a": plain.a.copy(), "b": plain.b.copy()}
        factors[side][row, block] = 0x40  # 2
        got = valued(ask("mxf4nvf4", "f32.e2m1.e2m1", a, b, None,
                         scales=BlockScales("ue4m3", **factors)), "f32")  # fmt: skip
        part = slice(16 * block, 16 * block + 16)
        more = left[:, part] @ right[:, part].T
        touched = np.zeros_like(more)
        touched[(row, slice(None)) if side == "a" else (slice(None), row)] = 1
        assert np.array_equal(got, base + more * touched) and (more * touched).any()


SMALL = {
    "f16": [0x0000, 0x3C00, 0xBC00, 0x4000], "bf16": [0, 0x3F80, 0xBF80, 0x4000],
    "tf32": [0, 0x3F800000, 0xBF800000, 0x40000000],
    "e4m3": [0, 0x38, 0xB8, 0x40], "e5m2": [0, 0x3C, 0xBC, 0x40], "e2m3": [0, 8, 40, 16],
    "e3m2": [0, 12, 44, 16], "e2m1": [0, 2, 10, 4],
}  # fmt: skip
"""Codes of 0, 1, -1 and 2."""


@pytest.mark.parametrize("kind_types_k", [*((k, t, WHOLE[k]) for k, t in PLAIN),
                                          ("mxf8f6f4", "f32.e4m3.e2m1", 32), ("mxf4", "f32.e2m1.e2m1", 64)],
                         ids=lambda x: f"{x[0]} {x[1]}")  # fmt: skip
def test_small_integers_are_exact_in_full_tiles(kind_types_k: tuple[Kind, str, int]) -> None:
    kind, types, k = kind_types_k
    result, left, right = types.split(".")
    rng = np.random.default_rng(7)
    m, n = 128, 256
    values = np.array([0, 1, -1, 2])
    picks = [rng.integers(0, 4, (rows, k)) for rows in (m, n)]
    given = [
        np.array(SMALL[t]).astype(BY_PTX_TYPE[t].word)[p] for p, t in zip(picks, (left, right))
    ]
    start = rng.integers(-9, 9, (m, n)).astype(np.float16 if result == "f16" else np.float32)
    d = start.view("u2" if result == "f16" else "u4").astype(np.uint32)
    scales = None
    if kind.startswith("mx"):
        one = [np.full((rows, max(k // 32, 1)), 127, np.uint8) for rows in (m, n)]
        scales = BlockScales("ue8m0", *one)
    got = valued(ask(kind, types, *given, d, scales=scales), result)
    assert np.array_equal(got, start + values[picks[0]] @ values[picks[1]].T)


# --- how codes lie in memory


def bit_string(codes_: list[int], bits: int) -> str:
    """As written on paper: the last code first, each with its highest bit first."""
    return "".join(f"{code:0{bits}b}" for code in reversed(codes_))


def as_block(codes_: list[int], bits: int) -> list[int]:
    """16 bytes: the codes without gaps, then ones, which nobody may read."""
    text = bit_string(codes_, bits).rjust(128, "1")
    return [int(text[end - 8 : end], 2) for end in range(128, 0, -8)]


def blocks_of_all_codes(bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Every code at every position: the codes (n, 16), and the blocks that hold them."""
    found = [[(start + 5 * i) % (1 << bits) for i in range(16)] for start in range(1 << bits)]
    return np.array(found, np.uint8), np.array([as_block(row, bits) for row in found], np.uint8)


@pytest.mark.parametrize(("source", "bits", "low"), [("b4x16_p64", 4, 2), ("b6x16_p32", 6, 0)])
def test_decompression(source: packing.Compressed, bits: int, low: int) -> None:
    expected, blocks = blocks_of_all_codes(bits)
    got = packing.decompressed(source, blocks)
    assert got.dtype == np.uint8 and got.shape == blocks.shape
    for row, codes_ in zip(got.tolist(), expected.tolist()):
        assert [f"{byte:08b}" for byte in row] == [
            "00" + f"{code:0{bits}b}" + "0" * low for code in codes_
        ]


@pytest.mark.parametrize(("type_", "source"), [("e2m1", "b4x16_p64"), ("e2m3", "b6x16_p32"),
                                               ("e3m2", "b6x16_p32")])  # fmt: skip
@pytest.mark.parametrize("kind", ["f8f6f4", "mxf8f6f4"])
def test_narrow_floats_in_containers(kind: Kind, type_: str, source: packing.Compressed) -> None:
    """In shared memory, and as ``tcgen05.cp`` brings them to tensor memory."""
    expected, blocks = blocks_of_all_codes(BY_PTX_TYPE[type_].bits)
    assert np.array_equal(packing.codes_in_shared(kind, type_, blocks), expected)
    cells = packing.decompressed(source, blocks).view("<u4")
    assert np.array_equal(packing.codes_in_tensor_memory(kind, type_, cells), expected)
    outside = np.uint32(0xC3C3C3C3 if type_ == "e2m1" else 0xC0C0C0C0)
    assert np.array_equal(packing.codes_in_tensor_memory(kind, type_, cells | outside), expected)


@pytest.mark.parametrize("kind", ["mxf4", "mxf4nvf4"])
def test_two_floats_in_a_byte(kind: Kind) -> None:
    expected = np.array(
        [[(start + 3 * i) % 16 for i in range(32)] for start in range(16)], np.uint8
    )
    blocks = (expected[:, ::2] | expected[:, 1::2] << 4).astype(np.uint8)
    assert np.array_equal(packing.codes_in_shared(kind, "e2m1", blocks), expected)
    cells = blocks.view("<u4")
    assert np.array_equal(packing.codes_in_tensor_memory(kind, "e2m1", cells), expected)


@pytest.mark.parametrize(
    ("kind", "type_", "word"),
    [("f16", "bf16", "<u2"), ("tf32", "tf32", "<u4"), ("f8f6f4", "e5m2", "u1"), ("i8", "s8", "u1")],
)
def test_whole_words(kind: Kind, type_: str, word: str) -> None:
    blocks = np.random.default_rng(8).integers(0, 256, (2, 5, 16), dtype=np.uint8)
    assert np.array_equal(packing.codes_in_shared(kind, type_, blocks), blocks.view(word))
    cells = blocks.view("<u4")
    assert np.array_equal(packing.codes_in_tensor_memory(kind, type_, cells), blocks.view(word))
