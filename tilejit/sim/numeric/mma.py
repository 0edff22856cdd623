"""What a tensor core computes: D = A·B + C, whoever holds the matrices.

Integers are exact. f64 is fused multiply-adds in the order of k. Everything else follows one model,
whose numbers are ``Accumulator``: the products of a block of k are exact; they and the addend are
aligned to the largest exponent among them, cut (towards zero) to a fixed number of fraction bits, and
added without further rounding; the sum is rounded to the accumulator's type and is the addend of the
next block. An exponent is that of the operands before multiplication: a product in [2, 4) keeps it.
A sum past the largest finite value is infinite, a zero is +0, every NaN is the canonical one.

After Fasi et al. (PeerJ CS 7:e330), Khattak and Mikaitis (arXiv 2512.07004) and Xie et al. (arXiv
2511.10909); tests/sim/mma_probe.py asks a GPU which numbers are its own. Not here: which lane holds
which element (families), sparsity, ``tcgen05`` and block scales (``numeric.tcgen05_mma``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit.ptx.forms import Form
from tilejit.sim.numeric import double
from tilejit.sim.numeric.arithmetic import propagated
from tilejit.sim.numeric.codec import decoded
from tilejit.sim.numeric.formats import (
    BY_PTX_TYPE,
    F16,
    F32,
    F64,
    TF32,
    FloatFormat,
    Values,
)

Words = npt.NDArray[Any]
"""Registers' unsigned words, shape (…, rows, words of a row)."""

# --- the model's numbers


@dataclass(frozen=True, slots=True)
class Accumulator:
    """``block_elems``: products added at once. ``fraction_bits``: kept of each term, below the
    largest exponent, which counts as ``least_exponent`` at least. ``rounding``: of a block's sum, to
    ``result_bits`` of mantissa."""

    block_elems: int
    fraction_bits: int
    rounding: Literal["rn", "rz"]
    result_bits: int
    least_exponent: int = -133


_HALF = Accumulator(16, 25, "rz", 23)
_HALF_TO_HALF = Accumulator(16, 25, "rn", 10)

SM_90: dict[tuple[str, str], Accumulator] = {
    ("f16", "f32"): _HALF,
    ("bf16", "f32"): _HALF,
    ("tf32", "f32"): Accumulator(8, 25, "rz", 23),
    ("f16", "f16"): _HALF_TO_HALF,
}
"""``mma.sync`` on Hopper, by A's type and the accumulator's. 8-bit floats go through f16."""

SM_90_WARPGROUP: dict[tuple[str, str], Accumulator] = {
    **SM_90,
    **{(a, "f32"): Accumulator(32, 13, "rz", 13) for a in ("e4m3", "e5m2")},
    **{(a, "f16"): Accumulator(32, 13, "rn", 10) for a in ("e4m3", "e5m2")},
}
"""``wgmma`` on Hopper, whose unit for 8-bit floats keeps 13 bits. tests/sim/wgmma_probe.py compares."""

# --- floating point

_NATIVE = {"f32": np.float32, "f16": np.float16}
"""numpy's own types round float64 once, to nearest."""


def accumulate(
    a: Values,
    b: Values,
    c: Values,
    formats: tuple[FloatFormat, FloatFormat, FloatFormat],
    model: Accumulator,
) -> Values:
    """``a (…, M, K)`` times ``b (…, N, K)`` plus ``c (…, M, N)``, as float64 values of C's format.

    ``formats``: of A, B and C. All arrays are float64 and hold values of these formats.
    """
    with np.errstate(all="ignore"):
        for start in range(0, a.shape[-1], model.block_elems):
            block = slice(start, start + model.block_elems)
            sides = a[..., block], b[..., block], c
            parts = [exponents(x, f) for x, f in zip(sides, formats)]
            c = block_sum(sides, parts, formats[2], model)
    return c


Exponents: TypeAlias = npt.NDArray[np.int16]

NO_EXPONENT = -(1 << 12)
"""Of a zero: below every exponent, and twice it still is an int16."""


def exponents(values: Values, fmt: FloatFormat) -> Exponents:
    """Of the leading bit; of subnormals that of the least normal number."""
    leading = np.frexp(values)[1] - 1
    least = fmt.least_exponent + fmt.mantissa_bits
    found = np.where(values == 0, NO_EXPONENT, np.maximum(leading, least))
    return found.astype(np.int16)


def block_sum(
    values: tuple[Values, Values, Values],
    parts: list[Exponents],
    result: FloatFormat,
    model: Accumulator,
) -> Values:
    """One block's products and the addend: ``values`` of A, B, C and what counts as their exponents."""
    a, b, c = values
    if _nothing_cut(values, parts, model):
        total = np.matmul(a, np.swapaxes(b, -1, -2)) + c
        return rounded(total, result, model)
    # k comes first, so that numpy adds whole matrices.
    left, right = (np.moveaxis(x, -1, 0)[..., :, None] for x in (a, parts[0]))
    up, down = (np.moveaxis(x, -1, 0)[..., None, :] for x in (b, parts[1]))
    largest = np.maximum((right + down).max(axis=0), parts[2])
    return rounded(cut_sum(left * up, c, largest, model), result, model)


def _nothing_cut(
    values: tuple[Values, Values, Values],
    parts: list[Exponents],
    model: Accumulator,
) -> bool:
    """Whether no term of any sum can lose a bit, whatever the pairing: then the sum is exact, and
    float64 adds it exactly too (fraction_bits + 2 + bits of the count are fewer than 53)."""
    top = [int(e.max(initial=NO_EXPONENT)) for e in parts]
    last = [_last_exponent(v) for v in values]
    largest = max(top[0] + top[1], top[2], model.least_exponent)
    return min(last[0] + last[1], last[2]) >= largest - model.fraction_bits


def _last_exponent(values: Values) -> int:
    """Exponent of the lowest bit that is set in any of the values; far down if one is not finite."""
    magnitude = np.abs(values)
    fraction, exponent = np.frexp(magnitude)
    if not np.isfinite(magnitude).all():
        return NO_EXPONENT
    digits = np.ldexp(fraction, 24).astype(np.int64)
    lowest = np.frexp((digits & -digits).astype(np.float64))[1] - 1
    found = np.where(digits == 0, -NO_EXPONENT, lowest + exponent - 24)
    return int(found.min(initial=-NO_EXPONENT))


def cut_sum(terms: Values, c: Values, largest: Exponents, model: Accumulator) -> Values:
    """The sum along the first axis of ``terms``, and ``c``, cut to ``fraction_bits`` below the largest
    exponent of each element of D. Infinities and NaNs go through on their own. Overwrites ``terms``.
    """
    floor = np.maximum(largest, np.int16(model.least_exponent))
    unit = np.ldexp(1.0, floor - np.int16(model.fraction_bits))
    per_unit = 1.0 / unit
    terms *= per_unit
    np.trunc(terms, out=terms)
    total: Values = (terms.sum(axis=0) + np.trunc(c * per_unit)) * unit
    return total


def rounded(total: Values, fmt: FloatFormat, model: Accumulator) -> Values:
    """A block's sum in the accumulator's type; ``result_bits`` are fewer than the type's on units
    that keep less. A zero is +0, even below a negative sum too small for the type."""
    if model.rounding == "rn":
        return total.astype(_NATIVE[fmt.name]).astype(np.float64) + 0.0
    exponents = np.maximum(np.frexp(total)[1] - 1, 1 - fmt.bias)
    unit = np.ldexp(1.0, exponents - model.result_bits)
    kept = np.where(np.isfinite(total), np.trunc(total / unit) * unit, total) + 0.0
    return np.where(np.abs(kept) >= 2.0 ** (fmt.bias + 1), np.copysign(np.inf, kept), kept)


# --- an instruction


def multiply_accumulate(form: Form, a: Words, b: Words, c: Words) -> Words:
    """D's words from A's ``(…, M, words)``, B's ``(…, N, words)`` and C's ``(…, M, words)``."""
    return _compiled(form)(a, b, c)


def warpgroup_multiply_accumulate(
    types: tuple[str, str, str],
    a: Words,
    b: Words,
    c: Words,
    *,
    saturate: bool = False,
    negate: bool = False,
) -> Words:
    """As ``multiply_accumulate`` for ``wgmma``. ``types``: D's, A's and B's. ``negate``: C - A·B."""
    result, kind, other = types
    if kind == "b1":
        return integers(_bits(a), _bits(b), c, False)
    if result == "s32":
        return integers(_bytes(a, kind), _bytes(b, other), c, saturate)
    formats = BY_PTX_TYPE[kind], BY_PTX_TYPE[other], BY_PTX_TYPE[result]
    left, right, addend = (unpacked(words, fmt) for words, fmt in zip((a, b, c), formats))
    if negate:
        left = -left
    total = accumulate(left, right, addend, formats, SM_90_WARPGROUP[kind, result])
    return packed(total, formats[2])


@cache
def _compiled(form: Form) -> Callable[[Words, Words, Words], Words]:
    result, a, b, _ = form.modifiers[-4:]
    if result == "s32":
        saturate = "satfinite" in form.modifiers
        return lambda x, y, z: integers(_bytes(x, a), _bytes(y, b), z, saturate)
    if result == "f64":
        return _doubles
    formats = BY_PTX_TYPE[a], BY_PTX_TYPE[b], BY_PTX_TYPE[result]

    def run(x: Words, y: Words, z: Words) -> Words:
        left, right, addend = (unpacked(words, fmt) for words, fmt in zip((x, y, z), formats))
        if formats[0].bits == 8:
            total = through_half(left, right, addend, formats[2])
        else:
            total = accumulate(left, right, addend, formats, SM_90[a, result])
        return packed(total, formats[2])

    return run


def through_half(a: Values, b: Values, c: Values, result: FloatFormat) -> Values:
    """8-bit floats on sm_90, whose ``mma.sync`` has no unit for them (the machine code shows it): as
    f16, the first two bytes of every word, then the last two, starting from zero; C is added at the
    end by an ordinary addition, to nearest."""
    model = SM_90["f16", result.name]
    total = np.zeros_like(c)
    for half in (slice(0, 2), slice(2, 4)):
        left, right = (x.reshape(*x.shape[:-1], -1, 4)[..., half] for x in (a, b))
        rows, columns = (x.reshape(*x.shape[:-2], -1) for x in (left, right))
        total = accumulate(rows, columns, total, (F16, F16, result), model)
    native = _NATIVE[result.name]
    with np.errstate(all="ignore"):
        added: Values = (total.astype(native) + c.astype(native)).astype(np.float64)
    return added


def unpacked(words: Words, fmt: FloatFormat) -> Values:
    """The values in rows of 32-bit words, the lowest bits first, as float64. tf32 ignores the low
    bits of its word."""
    return valued(np.ascontiguousarray(words, dtype="<u4").view(fmt.word), fmt)


def valued(codes: Words, fmt: FloatFormat) -> Values:
    """float64 values of an array of codes, one each."""
    given = codes.astype(fmt.word, copy=False)
    if fmt is TF32:
        given = given & np.uint32(_TF32_MASK)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        if fmt in (TF32, F32):
            return given.view(np.float32).astype(np.float64)
        return decoded(given, fmt).astype(np.float64)


_TF32_MASK = (1 << 32) - (1 << (F32.mantissa_bits - TF32.mantissa_bits))


def packed(values: Values, fmt: FloatFormat) -> Words:
    """Rows of words that hold values of f32 or f16, which they have exactly; NaN is canonical."""
    whole: Words = np.ascontiguousarray(coded(values, fmt)).view("<u4")
    return whole


def coded(values: Values, fmt: FloatFormat) -> Words:
    """An array of codes, one each, as ``packed`` says."""
    codes = values.astype(_NATIVE[fmt.name]).view(fmt.word)
    return np.where(np.isnan(values), fmt.word(fmt.nan_code), codes)


def _bytes(words: Words, kind: str) -> Values:
    return np.ascontiguousarray(words, dtype="<u4").view(np.int8 if kind == "s8" else np.uint8)


def _bits(words: Words) -> Values:
    """The single bits of rows of words: their products count where both are one."""
    return np.unpackbits(np.ascontiguousarray(words, dtype="<u4").view(np.uint8), axis=-1)


def integers(a: Values, b: Values, c: Words, saturate: bool) -> Words:
    """Exact, then modulo 2**32 or clamped. A float64 holds every sum of products."""
    products = np.matmul(a.astype(np.float64), np.swapaxes(b, -1, -2).astype(np.float64))
    addend = np.ascontiguousarray(c, dtype=np.uint32).view(np.int32)
    total = products.astype(np.int64) + addend
    if saturate:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    words: Words = total.astype(np.uint32)
    return words


def _doubles(a: Words, b: Words, c: Words) -> Words:
    """One fused multiply-add to nearest for each k, from the first on."""
    left, right, total = (np.ascontiguousarray(x, dtype=np.uint64) for x in (a, b, c))
    for k in range(left.shape[-1]):
        total = _fused(left[..., :, None, k], right[..., None, :, k], total)
    return total


def _fused(a: Words, b: Words, c: Words) -> Words:
    """``fma.rn.f64``; of NaN operands one is passed on, as there."""
    with np.errstate(all="ignore"):
        result = double.fused(a.view(np.float64), b.view(np.float64), c.view(np.float64), "rn")
    bits: Words = np.where(np.isnan(result), np.uint64(F64.nan_code), result.view(np.uint64))
    if not np.isnan(result).any():
        return bits
    return propagated(bits, [np.broadcast_to(x, bits.shape) for x in (a, c, b)])
