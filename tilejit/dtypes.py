"""Scalar types, their bit containers, and the one promotion table.

The frontend, the emitter, the simulator and the docs all read this table; there is no second one.
A *bit container* is the unsigned integer of the same width: the contract's b8, b16, b32, b64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["bool", "int", "uint", "float"]


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """A scalar type, one object each. ``bits`` is the storage width; sub-byte types pack into bytes."""

    name: str
    kind: Kind
    bits: int
    exponent_bits: int = 0
    mantissa_bits: int = 0

    @property
    def bytes(self) -> int:
        """Storage bytes of one element; sub-byte types raise ``ValueError``."""
        if self.bits % 8:
            raise ValueError(f"{self.name} occupies {self.bits} bits, not whole bytes")
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def is_signed(self) -> bool:
        return self.kind in ("int", "float")

    def __call__(self, value: Any) -> Any:
        """In a kernel ``T.uint32(x)`` converts ``x``; outside it is an error that says so."""
        raise TypeError(f"T.{self.name}(x) converts inside a kernel only; here use an argument")

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, a pickled one too, is the type itself."""
        return dtype, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"dtypes.{self.name}"


bool_ = DType("bool", "bool", 8)
int8, int16, int32, int64 = (DType(f"int{n}", "int", n) for n in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (DType(f"uint{n}", "uint", n) for n in (8, 16, 32, 64))
float16 = DType("float16", "float", 16, 5, 10)
bfloat16 = DType("bfloat16", "float", 16, 8, 7)
float32 = DType("float32", "float", 32, 8, 23)
float64 = DType("float64", "float", 64, 11, 52)
float8_e4m3fn = DType("float8_e4m3fn", "float", 8, 4, 3)
float8_e5m2 = DType("float8_e5m2", "float", 8, 5, 2)
float8_e8m0fnu = DType("float8_e8m0fnu", "float", 8, 8, 0)
float6_e2m3fn = DType("float6_e2m3fn", "float", 6, 2, 3)
float6_e3m2fn = DType("float6_e3m2fn", "float", 6, 3, 2)
float4_e2m1fn = DType("float4_e2m1fn", "float", 4, 2, 1)

ALL: tuple[DType, ...] = (
    bool_,
    *(int8, int16, int32, int64),
    *(uint8, uint16, uint32, uint64),
    *(float16, bfloat16, float32, float64),
    *(float8_e4m3fn, float8_e5m2, float8_e8m0fnu),
    *(float6_e2m3fn, float6_e3m2fn, float4_e2m1fn),
)
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}

ARITHMETIC: tuple[DType, ...] = ALL[:13]
"""Types that scalar expressions compute with; the narrower floats exist as storage and formats."""


def dtype(name: str | DType) -> DType:
    """The type called ``name``; ``ValueError`` lists the known names."""
    if isinstance(name, DType):
        return name
    try:
        return BY_NAME[name]
    except KeyError:
        raise ValueError(f"unknown dtype {name!r}; known: {', '.join(BY_NAME)}") from None


def container(bits: int) -> DType:
    """The unsigned bit container of 8, 16, 32 or 64 bits."""
    return {8: uint8, 16: uint16, 32: uint32, 64: uint64}[bits]


def promote(a: DType, b: DType) -> DType:
    """The common type of a binary operation on two typed scalars.

    bool < integers < floats. Two integers give the wider; at equal width unsigned wins. An integer
    with a float gives the float. float16 with bfloat16 gives float32. Untyped Python literals do
    not take part: they adopt the other operand's type (``literal_type``).
    """
    if a == b:
        return a
    if a not in ARITHMETIC or b not in ARITHMETIC:
        raise ValueError(f"no arithmetic between {a} and {b}; cast one of them first")
    if a.kind == "bool":
        return b
    if b.kind == "bool":
        return a
    if a.is_float and b.is_float:
        if a.bits == b.bits:
            return float32
        return a if a.bits > b.bits else b
    if a.is_float or b.is_float:
        return a if a.is_float else b
    if a.bits == b.bits:
        return a if a.kind == "uint" else b
    return a if a.bits > b.bits else b


def literal_type(value: bool | int | float, other: DType | None) -> DType:
    """The type an untyped literal takes beside an operand of type ``other`` (None: on its own).

    On its own an int is int32 when it fits, else int64, else uint64; a float is float32. Beside a
    typed operand it adopts that type when it can hold the value's kind: a float literal beside an
    integer gives float32. ``ValueError`` when an integer literal does not fit the adopted type.
    """
    if isinstance(value, bool):
        return bool_ if other is None else other
    if other is not None and other.kind == "bool":
        other = None
    if isinstance(value, int):
        if other is not None and other.is_float:
            return other
        if other is not None and other.is_integer:
            low, high = integer_range(other)
            if not low <= value <= high:
                raise ValueError(f"literal {value} does not fit {other} [{low}, {high}]")
            return other
        for candidate in (int32, int64, uint64):
            low, high = integer_range(candidate)
            if low <= value <= high:
                return candidate
        raise ValueError(f"literal {value} does not fit 64 bits")
    return other if other is not None and other.is_float else float32


def integer_range(d: DType) -> tuple[int, int]:
    """Inclusive range of an integer or bool type."""
    found = _INTEGER_RANGES.get(d.name)
    if found is None:
        raise ValueError(f"{d} is not an integer type")
    return found


def _range_of(d: DType) -> tuple[int, int]:
    if d.kind == "bool":
        return 0, 1
    if d.kind == "uint":
        return 0, (1 << d.bits) - 1
    return -(1 << (d.bits - 1)), (1 << (d.bits - 1)) - 1


_INTEGER_RANGES = {d.name: _range_of(d) for d in ALL if not d.is_float}
