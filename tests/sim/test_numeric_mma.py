"""Tensor-core arithmetic against the model's text in exact fractions, one element of D at a time.

The oracle knows the codes (``numeric_oracle``) and the sentences at the top of ``numeric.mma``; it
shares nothing with the implementation. What a GPU answers is asked by ``mma_probe``.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.sim.numeric_oracle import SPECS, Spec, Value, decode
from tilejit.ptx.forms import Form
from tilejit.ptx.spelling import forms_of_family, lookup
from tilejit.sim.numeric import mma
from tilejit.sim.numeric.formats import BF16, E4M3, F16, F32, TF32, FloatFormat
from tilejit.sim.numeric.mma import Accumulator

TF32_SPEC = Spec(8, 10, "ieee", 0x7FFFFFFF >> 13)


# --- the oracle


def exponent_of(value: Fraction) -> int:
    """2**e ≤ |value| < 2**(e + 1)."""
    top = value.numerator.bit_length() - value.denominator.bit_length()
    magnitude = abs(value)
    return top if Fraction(2) ** top <= magnitude else top - 1


def operand_exponent(value: Fraction, spec: Spec) -> int:
    return max(exponent_of(value), 1 - spec.bias)


def cut(value: Fraction, unit: Fraction) -> Fraction:
    return math.trunc(value / unit) * unit


def infinity_or_nan(a: list[Value], b: list[Value], c: Value) -> str | None:
    """The result where an infinity or a NaN is among the operands."""
    signs = set()
    for x, y in [*zip(a, b), (c, Fraction(1))]:
        zero = {0, "-0"}
        if "nan" in (x, y) or (x in ("inf", "-inf") and y in zero):
            return "nan"
        if y in ("inf", "-inf") and x in zero:
            return "nan"
        if x in ("inf", "-inf") or y in ("inf", "-inf"):
            signs.add(negative(x) != negative(y))
    if not signs:
        return None
    return "nan" if len(signs) == 2 else "-inf" if signs.pop() else "inf"


def negative(value: Value) -> bool:
    return value.startswith("-") if isinstance(value, str) else value < 0


def rounded(total: Fraction, model: Accumulator, spec: Spec) -> Value:
    if not total:
        return Fraction(0)
    unit = Fraction(2) ** (operand_exponent(total, spec) - model.result_bits)
    if model.rounding == "rz":
        result = cut(total, unit)
        past = Fraction(2) ** (spec.bias + 1)
    else:
        result = round(total / unit) * unit  # Python rounds halves to even
        past = spec.largest + 1
    if abs(result) >= past:
        return "-inf" if result < 0 else "inf"
    return result  # a zero is +0: so an H200 answered


def block(
    a: list[Value], b: list[Value], c: Value, specs: tuple[Spec, Spec, Spec], model: Accumulator
) -> Value:
    special = infinity_or_nan(a, b, c)
    if special is not None:
        return special
    terms: list[tuple[Fraction, int]] = []
    for x, y in zip(a, b):
        if isinstance(x, Fraction) and isinstance(y, Fraction) and x and y:
            terms.append((x * y, operand_exponent(x, specs[0]) + operand_exponent(y, specs[1])))
    if isinstance(c, Fraction) and c:
        terms.append((c, operand_exponent(c, specs[2])))
    largest = max([model.least_exponent, *(e for _, e in terms)])
    unit = Fraction(2) ** (largest - model.fraction_bits)
    return rounded(sum((cut(t, unit) for t, _ in terms), Fraction(0)), model, specs[2])


def dot(
    a: list[Value], b: list[Value], c: Value, specs: tuple[Spec, Spec, Spec], model: Accumulator
) -> Value:
    for start in range(0, len(a), model.block_elems):
        part = slice(start, start + model.block_elems)
        c = block(a[part], b[part], c, specs, model)
    return c


def as_float(value: Value) -> float:
    return float(value)


# --- inputs


def codes(fmt: FloatFormat, shape: tuple[int, ...], kind: str, rng: np.random.Generator):
    """Codes of a format: spread over all exponents, near one another, subnormal, near the root of what
    a least normal number cuts to (its effect is a zero of the other sign), or with infinities and NaN."""
    word = np.dtype(f"u{fmt.bits // 8}")
    if kind in ("any", "special"):
        found = rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint64)
        if kind == "any":
            infinite = (found & fmt.exponent_code) == fmt.exponent_code
            found = np.where(infinite, found & ~np.uint64(1 << fmt.mantissa_bits), found)
    else:
        spread = {"near": 2, "far": 14, "tiny": 6, "edge": 4}[kind]
        base = {"tiny": 3, "edge": 3 * fmt.bias // 8}.get(kind, fmt.bias)
        field = np.clip(base + rng.integers(-spread, spread + 1, shape), 0, 2 * fmt.bias)
        found = field.astype(np.uint64) << np.uint64(fmt.mantissa_bits)
        found |= rng.integers(0, 1 << fmt.mantissa_bits, shape, dtype=np.uint64)
        found |= rng.integers(0, 2, shape, dtype=np.uint64) << np.uint64(fmt.bits - 1)
        found = np.where(rng.random(shape) < 0.1, np.uint64(0), found)
    return found.astype(word)


SPEC_OF = {"tf32": TF32_SPEC, **SPECS}


def decoded_codes(array: np.ndarray, fmt: FloatFormat) -> list[Value]:
    shift = 13 if fmt is TF32 else 0
    return [decode(int(c) >> shift, SPEC_OF[fmt.name]) for c in array.reshape(-1)]


def words(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view("<u4")


KINDS = ("near", "far", "tiny", "edge", "any", "special")
MODELS = [
    pytest.param(F16, F32, mma.SM_90["f16", "f32"], id="f16"),
    pytest.param(BF16, F32, mma.SM_90["bf16", "f32"], id="bf16"),
    pytest.param(TF32, F32, mma.SM_90["tf32", "f32"], id="tf32"),
    pytest.param(F16, F16, mma.SM_90["f16", "f16"], id="f16 to f16"),
    pytest.param(E4M3, F32, Accumulator(16, 13, "rz", 13), id="e4m3, 13 bits"),
    pytest.param(F16, F32, Accumulator(4, 23, "rz", 23, -126), id="f16 in fours"),
    pytest.param(BF16, F32, Accumulator(8, 24, "rz", 23, -300), id="bf16 without a floor"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("given", "result", "model"), MODELS)
def test_accumulation_is_the_model(
    given: FloatFormat, result: FloatFormat, model: Accumulator, kind: str
) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    m, n, k = 6, 6, 16
    a, b = codes(given, (m, k), kind, rng), codes(given, (n, k), kind, rng)
    c = codes(result, (m, n), kind, rng)
    if kind == "near":  # cancel what the products add up to, all but a few bits
        exact = mma.accumulate(
            *(mma.unpacked(words(x), f) for x, f in ((a, given), (b, given))),
            np.zeros((m, n)), (given, given, result), model,
        )  # fmt: skip
        c[::2] = mma.packed(-exact * (1 + 2.0**-9), result).view(c.dtype)[::2]
    if kind == "edge":  # the floor of exponents shows only where C has none
        c[::2] = 0
    values = [mma.unpacked(words(x), f) for x, f in ((a, given), (b, given), (c, result))]
    got = mma.accumulate(*values, (given, given, result), model)
    specs = SPEC_OF[given.name], SPEC_OF[given.name], SPEC_OF[result.name]
    left, right = (np.array(decoded_codes(x, given), object).reshape(x.shape) for x in (a, b))
    addend = np.array(decoded_codes(c, result), object).reshape(m, n)
    expected = np.array(
        [[as_float(dot(list(left[i]), list(right[j]), addend[i, j], specs, model))
          for j in range(n)] for i in range(m)]
    )  # fmt: skip
    assert np.array_equal(got, expected, equal_nan=True), got - expected
    numbers = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))
    cases = {"near": np.isfinite(expected), "special": ~np.isfinite(expected)}
    assert cases.get(kind, np.isfinite(expected)).any()


@pytest.mark.parametrize("spread", [1, 4, 12])
def test_both_ways_of_adding_agree(monkeypatch: pytest.MonkeyPatch, spread: int) -> None:
    """Where no bit is cut one matrix product does; it gives what aligning term by term gives."""
    rng = np.random.default_rng(spread)
    shape = (3, 16, 16)
    a, b = (rng.integers(-8, 9, shape) * 2.0 ** rng.integers(0, spread, shape) for _ in range(2))
    c = rng.integers(-99, 99, shape).astype(np.float64)
    model, formats = mma.SM_90["f16", "f32"], (F16, F16, F32)
    taken = []
    original = mma._nothing_cut
    monkeypatch.setattr(
        mma, "_nothing_cut", lambda *given: taken.append(original(*given)) or taken[-1]
    )
    got = mma.accumulate(a, b, c, formats, model)
    monkeypatch.setattr(mma, "_nothing_cut", lambda *given: False)
    assert np.array_equal(got, mma.accumulate(a, b, c, formats, model))
    assert taken == [spread < 12]


# --- whole instructions


def random_words(form: Form, rng: np.random.Generator, warps: int) -> list[np.ndarray]:
    rows = int(form.modifiers[2][1:].split("n")[0])
    found = []
    for spec, height in zip(form.operands[1:], (rows, 8, rows)):
        width = spec.lanes * 32 // height
        bits = rng.integers(0, 1 << spec.bits, (warps, height, width), dtype=np.uint64)
        found.append(bits.astype(f"u{spec.bits // 8}"))
    return found


@pytest.mark.parametrize("form", forms_of_family("mma_sync"), ids=lambda f: f.spelling[17:])
def test_every_form_computes(form: Form) -> None:
    a, b, c = random_words(form, np.random.default_rng(1), 2)
    result = mma.multiply_accumulate(form, a, b, c)
    assert result.shape == c.shape and result.dtype == c.dtype
    one = mma.multiply_accumulate(form, a[1], b[1], c[1])
    assert np.array_equal(one, result[1])


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("kinds", ["s8.s8", "s8.u8", "u8.s8", "u8.u8"])
def test_integers(kinds: str, saturate: bool) -> None:
    name = f"mma.sync.aligned.m16n8k32.row.col.{'satfinite.' * saturate}s32.{kinds}.s32"
    (form,) = lookup(name)
    rng = np.random.default_rng(5)
    a, b, c = random_words(form, rng, 3)
    c[0] = np.where(rng.random(c[0].shape) < 0.5, 0x7FFFFFF0, 0x80000010)
    got = mma.multiply_accumulate(form, a, b, c).view(np.int32)
    types = [np.int8 if kind == "s8" else np.uint8 for kind in kinds.split(".")]
    for w, i, j in np.ndindex(3, 16, 8):
        left, right = a[w, i].view(types[0]).tolist(), b[w, j].view(types[1]).tolist()
        total = int(c.view(np.int32)[w, i, j]) + sum(x * y for x, y in zip(left, right))
        if saturate:
            wanted = min(max(total, -(2**31)), 2**31 - 1)
        else:
            wanted = (total + 2**31) % 2**32 - 2**31
        assert got[w, i, j] == wanted


def test_double_is_fused_in_the_order_of_k() -> None:
    (form,) = lookup("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64")
    rng = np.random.default_rng(3)
    a, b, c = (rng.standard_normal((1, r, w)) for r, w in ((16, 8), (8, 8), (16, 8)))
    got = mma.multiply_accumulate(form, *(x.view(np.uint64) for x in (a, b, c))).view(np.float64)
    for i, j in np.ndindex(16, 8):
        total = Fraction(c[0, i, j])
        for k in range(8):
            total = Fraction(float(Fraction(a[0, i, k]) * Fraction(b[0, j, k]) + total))
        assert got[0, i, j] == float(total)


@pytest.mark.parametrize("result", ["f32", "f16"])
def test_eight_bit_floats_go_through_f16_and_add_c_last(result: str) -> None:
    """The machine code for sm_90: HMMA on bytes 0, 1 of each word, HMMA on bytes 2, 3, then an add."""
    (form,) = lookup(f"mma.sync.aligned.m16n8k32.row.col.{result}.e4m3.e5m2.{result}")
    rng = np.random.default_rng(9)
    a, b, c = random_words(form, rng, 1)
    a &= np.uint32(0xBFBFBFBF)  # no NaN in e4m3, no infinity in e5m2
    b &= np.uint32(0xBFBFBFBF)
    fmt = {"f32": F32, "f16": F16}[result]
    c = words(codes(fmt, (1, 16, 8), "near", rng))
    got = mma.unpacked(mma.multiply_accumulate(form, a, b, c), fmt)[0]
    model, spec = mma.SM_90["f16", result], SPECS[result]
    for i, j in np.ndindex(16, 8):
        left = [decode(x, SPECS["e4m3"]) for x in a[0, i].view(np.uint8).tolist()]
        right = [decode(x, SPECS["e5m2"]) for x in b[0, j].view(np.uint8).tolist()]
        total: Value = Fraction(0)
        for part in (0, 2):
            chosen = [k for k in range(32) if k % 4 in (part, part + 1)]
            total = dot(
                [left[k] for k in chosen], [right[k] for k in chosen], total,
                (SPECS["f16"], SPECS["f16"], spec), model,
            )  # fmt: skip
        native = np.float32 if result == "f32" else np.float16
        addend = mma.unpacked(c, fmt)[0, i, j].astype(native)
        assert got[i, j] == native(as_float(total)) + addend


def test_tf32_ignores_the_low_bits_of_its_word() -> None:
    (form,) = lookup("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    rng = np.random.default_rng(4)
    shapes = ((1, 16, 8), (1, 8, 8), (1, 16, 8))
    a, b, c = (codes(F32, shape, "far", rng) for shape in shapes)
    plain = mma.multiply_accumulate(form, a & ~np.uint32(0x1FFF), b & ~np.uint32(0x1FFF), c)
    assert np.array_equal(mma.multiply_accumulate(form, a, b, c), plain)


def test_nans() -> None:
    """The canonical one; of f64 the operand's own, made quiet: so an H200 answered."""
    addend = {"f32": 0xFF812345, "f16": 0xFC01FE05, "f64": 0x7FF0 << 48 | 7}
    nan = {"f32": 0x7FFFFFFF, "f16": 0x7FFF7FFF, "f64": 0x7FF8 << 48 | 7}
    for form in forms_of_family("mma_sync"):
        result = form.modifiers[-1]
        if result == "s32":
            continue
        a, b, c = random_words(form, np.random.default_rng(2), 1)
        c = np.full_like(c, addend[result])
        got = mma.multiply_accumulate(form, a, b, c)
        assert (got == nan[result]).all(), form.spelling


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_nan_factor_of_f64_is_passed_on(which: str) -> None:
    (form,) = lookup("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64")
    one = np.float64(1).view(np.uint64)
    words = {"a": np.full((1, 8, 4), one), "b": np.full((1, 8, 4), one)}
    words[which][0, 3, 2] = np.uint64(0x7FF0 << 48 | 9)
    got = mma.multiply_accumulate(form, words["a"], words["b"], np.zeros((1, 8, 8), np.uint64))[0]
    nan = got == np.uint64(0x7FF8 << 48 | 9)
    assert nan.sum() == 8
    assert nan[3].all() if which == "a" else nan[:, 3].all()
