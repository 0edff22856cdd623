"""Floating-point and integer semantics in exact fractions and Python integers.

Written from IEEE 754, the OCP 8-bit and MX specifications and the PTX ISA; knows nothing of the
implementation. Values are ``Fraction``, or the strings ``inf``, ``-inf``, ``nan``, ``-0``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import TypeAlias

Value: TypeAlias = Fraction | str


@dataclass(frozen=True)
class Spec:
    """Exponent bits, mantissa bits, whether the top exponent holds infinity and NaNs (``ieee``),
    one NaN at the very top (``fn``) or only numbers (``finite``); the canonical NaN."""

    exponent: int
    mantissa: int
    top: str
    nan: int = 0

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent - 1) - 1

    @property
    def largest(self) -> Fraction:
        code = (1 << (self.bits - 1)) - 1
        if self.top == "fn":
            code -= 1
        if self.top == "ieee":
            code = ((1 << self.exponent) - 1 << self.mantissa) - 1
        value = decode(code, self)
        assert isinstance(value, Fraction)
        return value


SPECS = {
    "f64": Spec(11, 52, "ieee", 0xFFF8 << 48),
    "f32": Spec(8, 23, "ieee", 0x7FFFFFFF),
    "f16": Spec(5, 10, "ieee", 0x7FFF),
    "bf16": Spec(8, 7, "ieee", 0x7FFF),
    "e5m2": Spec(5, 2, "ieee", 0x7F),
    "e4m3": Spec(4, 3, "fn", 0x7F),
    "e3m2": Spec(3, 2, "finite"),
    "e2m3": Spec(2, 3, "finite"),
    "e2m1": Spec(2, 1, "finite"),
}


def decode(code: int, spec: Spec) -> Value:
    sign = code >> (spec.bits - 1)
    field = code >> spec.mantissa & (1 << spec.exponent) - 1
    fraction = code & (1 << spec.mantissa) - 1
    if field == (1 << spec.exponent) - 1:
        if spec.top == "ieee":
            return "nan" if fraction else ("-inf" if sign else "inf")
        if spec.top == "fn" and fraction == (1 << spec.mantissa) - 1:
            return "nan"
    if field:
        value = (1 + Fraction(fraction, 1 << spec.mantissa)) * Fraction(2) ** (field - spec.bias)
    else:
        value = Fraction(fraction, 1 << spec.mantissa) * Fraction(2) ** (1 - spec.bias)
    if sign and not value:
        return "-0"
    return -value if sign else value


def _exponent(x: Fraction) -> int:
    """floor(log2(x)) of a positive fraction."""
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    return guess if Fraction(2) ** guess <= x else guess - 1


def encode(value: Value, spec: Spec, mode: str = "rn", *, saturate: bool = False) -> int:
    """The code of a value, rounded once. A zero that was rounded keeps the value's sign."""
    sign_bit = 1 << (spec.bits - 1)
    if value == "nan":
        return spec.nan if spec.nan else sign_bit - 1
    if value == "-0":
        return sign_bit
    if isinstance(value, str):
        return (sign_bit if value[0] == "-" else 0) | _overflow(spec, "rn", saturate, False)
    negative, size = value < 0, abs(value)
    sign = sign_bit if negative else 0
    if not size:
        return 0
    exponent = max(_exponent(size), 1 - spec.bias)
    quantum = Fraction(2) ** (exponent - spec.mantissa)
    steps, rest = divmod(size, quantum)
    steps = int(steps)
    if rest:
        half = quantum / 2
        up = {
            "rn": rest > half or (rest == half and steps % 2 == 1),
            "rna": rest >= half,
            "rz": False,
            "rm": negative,
            "rp": not negative,
        }[mode]
        steps += up
    if steps * quantum > spec.largest:
        return sign | _overflow(spec, mode, saturate, negative)
    if steps >= 2 << spec.mantissa:
        steps //= 2
        exponent += 1
    if steps < 1 << spec.mantissa:
        return sign | steps
    return sign | (exponent + spec.bias << spec.mantissa) + steps - (1 << spec.mantissa)


def _overflow(spec: Spec, mode: str, saturate: bool, negative: bool) -> int:
    top = (1 << (spec.bits - 1)) - 1
    infinity = ((1 << spec.exponent) - 1) << spec.mantissa
    if spec.top == "finite":
        return top
    if spec.top == "fn":
        return top - 1 if saturate else top
    stays = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
    return infinity - 1 if saturate or stays else infinity


def number(value: Value) -> Fraction:
    return value if isinstance(value, Fraction) else Fraction(0)


def is_negative(value: Value) -> bool:
    return value < 0 if isinstance(value, Fraction) else value[0] == "-"


def is_infinite(value: Value) -> bool:
    return value in ("inf", "-inf")


def is_zero(value: Value) -> bool:
    return value in ("-0", Fraction(0))


def negated(value: Value) -> Value:
    if isinstance(value, Fraction):
        return -value if value else "-0"
    return {"inf": "-inf", "-inf": "inf", "-0": Fraction(0), "nan": "nan"}[value]


def add(a: Value, b: Value, mode: str) -> Value:
    if "nan" in (a, b):
        return "nan"
    if is_infinite(a) or is_infinite(b):
        if is_infinite(a) and is_infinite(b):
            return a if a == b else "nan"
        return a if is_infinite(a) else b
    if is_zero(a) and is_zero(b) and a == b:
        return a
    total = number(a) + number(b)
    if total:
        return total
    return "-0" if mode == "rm" else total


def multiply(a: Value, b: Value) -> Value:
    if "nan" in (a, b):
        return "nan"
    negative = is_negative(a) != is_negative(b)
    if is_infinite(a) or is_infinite(b):
        if is_zero(a) or is_zero(b):
            return "nan"
        return "-inf" if negative else "inf"
    product = number(a) * number(b)
    return "-0" if not product and negative else product


def divide(a: Value, b: Value) -> Value:
    if "nan" in (a, b) or (is_zero(a) and is_zero(b)) or (is_infinite(a) and is_infinite(b)):
        return "nan"
    negative = is_negative(a) != is_negative(b)
    if is_infinite(a) or is_zero(b):
        return "-inf" if negative else "inf"
    if is_infinite(b) or is_zero(a):
        return "-0" if negative else Fraction(0)
    return number(a) / number(b)


def square_root(a: Value) -> Value:
    """Exact where rational, else between the right neighbours: 200 bits and a little more."""
    if a in ("nan", "inf", "-0") or is_zero(a):
        return a
    if is_negative(a):
        return "nan"
    x = number(a)
    scale = 4**700
    whole = x.numerator * scale * x.denominator
    root = isqrt(whole)
    result = Fraction(root, x.denominator * 2**700)
    return result if root * root == whole else result + Fraction(1, x.denominator * 2**702)


def flush(value: Value, spec: Spec) -> Value:
    if isinstance(value, Fraction) and 0 < abs(value) < Fraction(2) ** (1 - spec.bias):
        return "-0" if value < 0 else Fraction(0)
    return value


def to_integral(x: Fraction, mode: str) -> int:
    floor = x.numerator // x.denominator
    rest = x - floor
    if mode == "rni":
        return floor + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1))
    if mode == "rzi":
        return floor + (x < 0 and rest != 0)
    return floor + (mode == "rpi" and rest != 0)


def signed(code: int, bits: int) -> int:
    return code - (1 << bits) if code >> (bits - 1) else code
