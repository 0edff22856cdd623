"""``cvt``: integers, floats of every width, and the packed narrow formats.

Rules of the PTX ISA that this file holds:

* Float to integer saturates. NaN gives 0, or the top bit alone when the source is f64 or the
  destination has 64 bits.
* ``.ftz`` flushes f32 sources and results only, and no source of an f16 result: rounded up, a
  subnormal f32 gives the least f16 (seen on sm_90). ``.sat`` to a float clamps to [0, 1].
* A NaN between f64 and another type keeps sign and payload and becomes quiet, but with ``.ftz`` an
  f32 one is canonical first; bf16 to f32 and ``cvt.f32.f32`` without rounding copy NaNs; elsewhere
  the result is the canonical NaN. In tf32 only ``rna`` keeps payloads (all seen on sm_90).
* ``.satfinite`` turns anything past the largest finite value into it; NaN stays NaN, and becomes
  +max in the six- and four-bit formats, which have none. ``.relu`` makes negatives +0.
* Packed results hold the first source in the high part.

Not here: random rounding (``.rs``), which is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ptx.forms import TYPE_BITS
from tilejit.sim.numeric.arithmetic import (
    Operation,
    canonical,
    narrowed,
    rectified,
    saturated,
    widened,
)
from tilejit.sim.numeric.codec import bfloat16_nearest
from tilejit.sim.numeric.formats import (
    BF16,
    BY_PTX_TYPE,
    F16,
    F32,
    F64,
    TF32,
    UE8M0,
    Bits,
    FloatFormat,
    Values,
    flushed,
    is_nan,
    quiet_code,
)
from tilejit.sim.numeric.instruction import Instruction
from tilejit.sim.numeric.integer import is_signed, magnitude, signed, typed, unsigned_type
from tilejit.sim.numeric.rounding import Mode, round_integer, round_to, scale_exponents

_INTEGRAL: dict[str, Callable[..., Values]] = {
    "rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil,
}  # fmt: skip

_PAIR_WORDS: dict[int, type[np.unsignedinteger[Any]]] = {4: np.uint8, 8: np.uint16, 16: np.uint32}
"""The register of a pair, by the distance of its elements in bits."""


def build(ins: Instruction) -> Operation:
    """The operation of a ``cvt`` on whole registers."""
    if "rs" in ins.rest:
        raise ins.unmodelled()
    if "pack" in ins.rest:
        return _pack(ins)
    to, source = ins.types[-2:]
    if to.endswith("x2"):
        return _to_packed(ins, to, source)
    if to == "tf32":
        return _to_tf32(ins)
    from_float, to_float = source in BY_PTX_TYPE, to in BY_PTX_TYPE
    if from_float and to_float:
        return _float_to_float(ins, BY_PTX_TYPE[to], BY_PTX_TYPE[source])
    if from_float:
        return _float_to_integer(ins, to, BY_PTX_TYPE[source])
    if to_float:
        return _integer_to_float(ins, BY_PTX_TYPE[to], source)
    return _integer_to_integer(ins, to, source)


# --- integers


def _integer_type(ptx_type: str) -> DType:
    name = f"{'int' if is_signed(ptx_type) else 'uint'}{TYPE_BITS[ptx_type]}"
    return dtypes.BY_NAME[name]


def _clamped(values: Bits, low: int, high: int) -> Bits:
    """Integers clamped, without leaving their type."""
    limits = np.iinfo(values.dtype)
    return np.clip(values, max(low, int(limits.min)), min(high, int(limits.max)))


def _integer_to_integer(ins: Instruction, to: str, source: str) -> Operation:
    word, low_word = unsigned_type(to), unsigned_type(source)
    low, high = dtypes.integer_range(_integer_type(to))

    def run(a: Bits) -> Bits:
        values = typed(a.astype(low_word, copy=False), source)
        return (_clamped(values, low, high) if ins.has("sat") else values).astype(word)

    return run


def _pack(ins: Instruction) -> Operation:
    """``cvt.pack``: two clamped integers side by side, above them the low part of ``c``."""
    to = ins.types[0]
    bits = TYPE_BITS[to]
    low, high = dtypes.integer_range(_integer_type(to))
    mask = np.uint32((1 << bits) - 1)

    def run(a: Bits, b: Bits, c: Bits | None = None) -> Bits:
        pair = [_clamped(signed(x), low, high).view(np.uint32) & mask for x in (a, b)]
        packed: Bits = (pair[0] << np.uint32(bits)) | pair[1]
        return packed if c is None else packed | (c << np.uint32(2 * bits))

    return run


def _float_to_integer(ins: Instruction, to: str, fmt: FloatFormat) -> Operation:
    integral, kind = _INTEGRAL[ins.rest[0]], _integer_type(to)
    word = unsigned_type(to)
    low, high = dtypes.integer_range(kind)
    above = float(high + 1)
    native = np.dtype(kind.name)
    nan_code = 1 << (kind.bits - 1) if fmt is F64 or kind.bits == 64 else 0
    flush = ins.has("ftz") and fmt is F32

    def run(a: Bits) -> Bits:
        values = integral(widened(flushed(a, fmt) if flush else a, fmt))
        inside = (values >= low) & (values < above)
        result = np.where(inside, values, 0.0).astype(native).view(word)
        if inside.all():
            return result
        result = np.where(values >= above, native.type(high).view(word), result)
        result = np.where(values < low, native.type(low).view(word), result)
        return np.where(np.isnan(values), word(nan_code), result)

    return run


def _integer_to_float(ins: Instruction, fmt: FloatFormat, source: str) -> Operation:
    mode, low_word = ins.mode, unsigned_type(source)

    def run(a: Bits) -> Bits:
        bits = a.astype(low_word, copy=False)
        values = typed(bits, source)
        if mode == "rn" and fmt in (F32, F64):
            code = values.astype(np.float32 if fmt is F32 else np.float64).view(fmt.word)
        else:
            negative = values < 0
            size = (magnitude(bits) if is_signed(source) else bits).astype(np.uint64)
            code = round_integer(size, np.asarray(negative), fmt, mode)
        return saturated(code, fmt) if ins.has("sat") else code

    return run


# --- floats


def _float_to_float(ins: Instruction, to: FloatFormat, source: FloatFormat) -> Operation:
    integral = next((_INTEGRAL[m] for m in ins.rest if m in _INTEGRAL), None)
    flush = ins.has("ftz")
    flush_in, flush_out = flush and source is F32 and to is not F16, flush and to is F32
    mode = ins.mode
    plain = integral is None and not flush and to in (F32, F64)
    keeps_nan = F64 in (to, source) or (plain and source in (to, BF16))
    quiet = (to is not source and F64 in (to, source)) or integral is not None

    def run(a: Bits) -> Bits:
        bits = flushed(a, source) if flush_in else a
        if integral is not None:
            bits = narrowed_any(integral(widened(bits, source)), to, "rn")
        elif to is not source:
            bits = _converted(bits, to, source, mode, ins.has("satfinite"))
        if keeps_nan:
            given = canonical(a, source) if flush and source is F32 else a
            bits = _kept_nan(bits, given, to, source, quiet=quiet)
        else:
            bits = canonical(bits, to)
        if flush_out:
            bits = flushed(bits, to)
        if ins.has("sat"):
            bits = saturated(bits, to)
        return rectified(bits, to) if ins.has("relu") else bits

    return run


def _converted(
    bits: Bits, to: FloatFormat, source: FloatFormat, mode: Mode, saturate: bool
) -> Bits:
    if mode == "rn" and not saturate and source is F32 and to is BF16:
        return bfloat16_nearest(bits)
    wide = widened(bits, source)
    if saturate:
        return round_to(wide, to, mode, saturate=True)
    return narrowed_any(wide, to, mode)


def narrowed_any(wide: Values, fmt: FloatFormat, mode: Mode) -> Bits:
    """As ``narrowed``, with f64 among the formats: its values are there already."""
    return wide.view(np.uint64) if fmt is F64 else narrowed(wide, fmt, mode)


def _kept_nan(
    bits: Bits, given: Bits, to: FloatFormat, source: FloatFormat, *, quiet: bool
) -> Bits:
    """``bits`` with each NaN replaced by the source's: its sign and the payload's high bits."""
    nan = is_nan(given, source)
    if not nan.any():
        return bits
    wide = given.astype(np.uint64)
    sign = np.where(wide & np.uint64(source.sign_code), np.uint64(to.sign_code), np.uint64(0))
    payload = wide & np.uint64((1 << source.mantissa_bits) - 1)
    by = to.mantissa_bits - source.mantissa_bits
    payload = payload << np.uint64(by) if by >= 0 else payload >> np.uint64(-by)
    code = sign | np.uint64(to.exponent_code) | payload
    if quiet:
        code |= np.uint64(quiet_code(to))
    return np.where(nan, code.astype(to.word), bits)


def _to_tf32(ins: Instruction) -> Operation:
    """f32 with 10 mantissa bits; the 13 low bits of the register are 0."""
    mode = ins.mode

    def run(a: Bits) -> Bits:
        bits = _tf32(a, mode, ins.has("satfinite"))
        if not ins.has("relu"):
            return bits
        # Only rn and rz have relu, and their NaN has no sign.
        return np.where(bits >> np.uint32(31), np.uint32(0), bits)

    return run


def _tf32(bits: Bits, mode: Mode, saturate: bool) -> Bits:
    """Codes count in order, so rounding adds to the code and clears the low bits.

    rn and rz have one NaN; rna cuts a NaN's payload, and its saturation steps one code down from
    anything past the largest number, NaNs included.
    """
    word, low = np.uint32, np.uint32(0x1FFF)
    if mode == "rz":
        rounded = bits & ~low
    else:
        last = (bits >> word(13)) & word(1)
        half = word(0x1000) if mode == "rna" else word(0xFFF) + last
        rounded = (bits + half) & ~low
    special = (bits & word(0x7F80_0000)) == word(0x7F80_0000)
    rounded = np.where(special, bits & ~low, rounded)
    if saturate:
        past = (rounded & word(0x7FFF_FFFF)) >= word(0x7F80_0000)
        rounded = np.where(past, rounded - word(0x2000), rounded)
    if mode == "rna":
        return rounded
    return np.where(is_nan(bits, F32), word(TF32.nan_code), rounded)


# --- packed pairs


def _to_packed(ins: Instruction, to: str, source: str) -> Operation:
    fmt, given = (BY_PTX_TYPE[t.removesuffix("x2")] for t in (to, source))
    convert = _element(ins, fmt, given)
    if given is F32:
        return lambda a, b: _joined(convert(a), convert(b), fmt)

    def run(register: Bits) -> Bits:
        bits, word = _stride_bits(given), register.dtype.type
        code = word((1 << given.bits) - 1)
        high, low = (x.astype(given.word) for x in (register >> word(bits) & code, register & code))
        return _joined(convert(high), convert(low), fmt)

    return run


def _element(ins: Instruction, fmt: FloatFormat, source: FloatFormat) -> Callable[[Bits], Bits]:
    """Codes of one element of the source to codes of one of the result."""
    mode, saturate = ins.mode, ins.has("satfinite")
    if fmt is UE8M0:
        return lambda x: scale_exponents(widened(x, source), mode, saturate=saturate)

    def convert(codes: Bits) -> Bits:
        bits = _converted(codes, fmt, source, mode, saturate)
        if not saturate:
            bits = canonical(bits, fmt)
        return rectified(bits, fmt) if ins.has("relu") else bits

    return convert


def _stride_bits(fmt: FloatFormat) -> int:
    """Distance of the two elements: six-bit codes sit in bytes."""
    return 8 if fmt.bits == 6 else fmt.bits


def _joined(high: Bits, low: Bits, fmt: FloatFormat) -> Bits:
    bits = _stride_bits(fmt)
    word = _PAIR_WORDS[bits]
    pair: Bits = (high.astype(word) << word(bits)) | low.astype(word)
    return pair
