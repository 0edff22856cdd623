"""C++ spellings: types, literals and bit reinterpretation of scalar values.

Generated text includes no header, so the fixed-width names are our own typedefs (``PRELUDE``).
A float16 or bfloat16 scalar is kept as its 16 bits; narrower floats as a byte.

Not here: expressions (``scalars``), where values live (``registers``, ``memory``).
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ir import nodes

PRELUDE = (
    "typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;",
    "typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; "
    "typedef unsigned long long u64;",
    "typedef u16 f16; typedef u16 bf16; typedef float f32; typedef double f64;",
)

_CTYPE: dict[str, str] = {
    **{d.name: "u8" for d in dtypes.ALL},
    "bool": "bool",
    **{f"int{n}": f"i{n}" for n in (8, 16, 32, 64)},
    **{f"uint{n}": f"u{n}" for n in (8, 16, 32, 64)},
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64",
}  # fmt: skip

CONSTRAINT: dict[str, str] = {
    "i16": "h", "u16": "h", "f16": "h", "bf16": "h",
    "i32": "r", "u32": "r", "f32": "f",
    "i64": "l", "u64": "l", "f64": "d",
}  # fmt: skip
"""Inline-assembly constraint of each C++ type; 8-bit values travel in 16-bit registers."""

BITS: dict[str, int] = {
    "bool": 8, "f16": 16, "bf16": 16, "f32": 32, "f64": 64,
    **{f"{k}{n}": n for k in "iu" for n in (8, 16, 32, 64)},
}  # fmt: skip
_FLOAT_LIKE = ("f32", "f64")


def ctype(dtype: DType) -> str:
    """C++ type of a scalar of ``dtype``; floats narrower than 16 bits are bytes."""
    return _CTYPE[dtype.name]


def type_name(type_: nodes.Type) -> str:
    """C++ type of a scalar or pointer variable."""
    if isinstance(type_, nodes.PointerType):
        return pointer_ctype(type_.space)
    assert isinstance(type_, nodes.ScalarType)
    return _CTYPE[type_.dtype.name]


def pointer_ctype(space: str) -> str:
    """An address as an integer: 32 bits in shared memory and TMEM, 64 elsewhere."""
    return "u32" if space in ("shared", "tmem") else "u64"


def unsigned(bits: int) -> str:
    """The unsigned C++ type of 8, 16, 32 or 64 bits."""
    return f"u{bits}"


def bits_of(name: str) -> int:
    """Width of a C++ type of the prelude."""
    return BITS[name]


def reinterpret(text: str, source: str, target: str) -> str:
    """The same bits as another C++ type of the same width; ``text`` is a primary or a cast."""
    if source == target:
        return text
    if source == "bool" or target == "bool":
        return f"({text} != 0)" if target == "bool" else f"({target}){text}"
    if source in _FLOAT_LIKE:
        pattern = (
            f"__float_as_uint({text})" if source == "f32" else f"(u64)__double_as_longlong({text})"
        )
        return pattern if target == unsigned(bits_of(source)) else f"({target}){pattern}"
    if target == "f32":
        return f"__uint_as_float((u32){text})" if source != "u32" else f"__uint_as_float({text})"
    if target == "f64":
        return f"__longlong_as_double((i64){text})"
    if {source, target} <= {"u16", "f16", "bf16"}:
        return text
    return f"({target}){text}"


# --- literals

_SUFFIX = {"i32": "", "u32": "u", "i64": "ll", "u64": "ull"}


def literal(value: int | float | bool, dtype: DType) -> str:
    """A C++ expression of type ``ctype(dtype)`` with exactly this value."""
    if dtype.kind == "bool":
        return "true" if value else "false"
    if dtype.is_integer:
        return int_literal(int(value), ctype(dtype))
    if dtype.bits == 64:
        return _float64_literal(float(value))
    if dtype.bits == 32:
        return _float32_literal(float(value))
    return f"({ctype(dtype)}){hex(narrow_float_bits(float(value), dtype))}"


@lru_cache(maxsize=4096)
def int_literal(value: int, name: str) -> str:
    """``value`` wrapped to the width of the C++ integer type ``name``."""
    bits = bits_of(name)
    value &= (1 << bits) - 1
    if name[0] == "i" and value >> (bits - 1):
        value -= 1 << bits
    if bits < 32:
        return f"({name}){value}" if value >= 0 else f"({name})({value})"
    suffix = _SUFFIX[name]
    if value == -(1 << (bits - 1)):
        return f"(-{-value - 1}{suffix} - 1)"
    return f"{value}{suffix}" if value >= 0 else f"({value}{suffix})"


def _float64_literal(value: float) -> str:
    if math.isfinite(value):
        return f"({value!r})" if math.copysign(1.0, value) < 0 else repr(value)
    (pattern,) = struct.unpack("<q", struct.pack("<d", value))
    return f"__longlong_as_double({int_literal(pattern, 'i64')})"


def float32_bits(value: float) -> int:
    """The float32 nearest to ``value`` (ties to even), as bits."""
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", math.copysign(math.inf, value))
    return int(struct.unpack("<I", packed)[0])


def _float32_literal(value: float) -> str:
    pattern = float32_bits(value)
    (rounded,) = struct.unpack("<f", struct.pack("<I", pattern))
    if not math.isfinite(rounded):
        return f"__uint_as_float({pattern:#x}u)"
    return f"({rounded!r}f)" if pattern >> 31 else f"{rounded!r}f"


def narrow_float_bits(value: float, dtype: DType) -> int:
    """The bits of the float of ``dtype`` (at most 16 bits wide) nearest to ``value``, ties to even.

    Past the largest value: infinity, in float8_e4m3fn NaN, in narrower types the largest value.
    """
    if dtype == dtypes.float16:
        if math.isnan(value):
            return 0x7FFF
        try:
            return int(struct.unpack("<H", struct.pack("<e", value))[0])
        except OverflowError:
            return 0xFC00 if value < 0 else 0x7C00
    exponent_bits, mantissa_bits = dtype.exponent_bits, dtype.mantissa_bits
    if dtype == dtypes.float8_e8m0fnu:
        return _scale_bits(value)
    nan, largest, overflow = _SPECIAL[dtype.name]
    if math.isnan(value):
        return nan
    sign = (1 if math.copysign(1.0, value) < 0 else 0) << (exponent_bits + mantissa_bits)
    if math.isinf(value):
        return sign | overflow
    bias = (1 << (exponent_bits - 1)) - 1
    magnitude = abs(value)
    exponent = max(math.frexp(magnitude)[1] - 1, 1 - bias) if magnitude else 1 - bias
    steps = round(math.ldexp(magnitude, mantissa_bits - exponent))  # Python rounds ties to even
    pattern = ((exponent + bias - 1) << mantissa_bits) + steps
    return sign | (pattern if pattern <= largest else overflow)


_SPECIAL: dict[str, tuple[int, int, int]] = {
    "bfloat16": (0x7FFF, 0x7F7F, 0x7F80),
    "float8_e4m3fn": (0x7F, 0x7E, 0x7F),
    "float8_e5m2": (0x7F, 0x7B, 0x7C),
    "float6_e2m3fn": (0x1F, 0x1F, 0x1F),
    "float6_e3m2fn": (0x1F, 0x1F, 0x1F),
    "float4_e2m1fn": (0x7, 0x7, 0x7),
}
"""Patterns of NaN, of the largest finite value, and of what lies beyond it (without the sign)."""


def _scale_bits(value: float) -> int:
    """e8m0: a power of two, 2**(byte - 127), of the magnitude; 255 is NaN."""
    if math.isnan(value) or math.isinf(value):
        return 0xFF
    if value == 0:
        return 0
    mantissa, exponent = math.frexp(abs(value))
    above = mantissa > 0.75 or (mantissa == 0.75 and exponent % 2 == 1)
    code = exponent - 1 + above + 127
    return 0xFF if code > 254 else max(0, code)
