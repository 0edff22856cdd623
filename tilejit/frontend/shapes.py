"""The *shape* of a carried value: which of its leaves are run-time variables, of which type.

A leaf is a scalar of a dtype (``weak`` while only literals gave it: literals are typed lazily), or
fixed (a compile-time value that every path agrees on). Tuples and records carry leaf by leaf.

Not here: declaring and assigning the variables (``carry``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.frontend.values import children, describe, function_name, is_number, is_scalar, same
from tilejit.ir import nodes as ir


class ShapeConflict(Exception):
    """Two values cannot be one variable; the message says which and why, ``help`` what to do where
    giving them one type is not the answer."""

    help: str | None = None


@dataclass(frozen=True)
class Leaf:
    """A scalar variable. ``literal``: the value that gave a weak type."""

    type: ir.ScalarType | ir.PointerType
    weak: bool = False
    literal: bool | int | float | None = None


@dataclass(frozen=True)
class Fixed:
    value: Any


@dataclass(frozen=True)
class Parts:
    """A tuple, list or record; ``example`` says of which kind."""

    items: tuple[Shape, ...]
    example: Any


Shape: TypeAlias = Leaf | Fixed | Parts


def shape_of(value: Any) -> Shape:
    if is_number(value):
        return Leaf(ir.ScalarType(dtypes.literal_type(value, None)), True, value)
    if is_scalar(value):
        return Leaf(value.type)
    parts = children(value)
    if parts is not None and not isinstance(value, slice):
        return Parts(tuple(shape_of(part) for part in parts), value)
    return Fixed(value)


def unify(a: Shape, b: Shape) -> Shape:
    """The shape both fit without loss; ``ShapeConflict`` when there is none."""
    if isinstance(a, Fixed) and isinstance(b, Fixed) and same(a.value, b.value):
        return a
    if isinstance(a, Parts) and isinstance(b, Parts):
        if type(a.example) is type(b.example) and len(a.items) == len(b.items):
            return Parts(tuple(unify(x, y) for x, y in zip(a.items, b.items)), a.example)
        raise ShapeConflict(f"{len(a.items)} items here, {len(b.items)} there")
    if isinstance(a, Leaf) and isinstance(b, Leaf):
        return _unify_leaves(a, b)
    conflict = ShapeConflict(f"{_describe(a)} on one path, {_describe(b)} on another")
    if any(isinstance(side, Fixed) and function_name(side.value) for side in (a, b)):
        conflict.help = "choose between what the functions give: f(x) if c else g(x)"
    raise conflict


def _unify_leaves(a: Leaf, b: Leaf) -> Leaf:
    if isinstance(a.type, ir.PointerType) or isinstance(b.type, ir.PointerType):
        if a.type == b.type:
            return a
        raise ShapeConflict(f"{_describe(a)} on one path, {_describe(b)} on another")
    if a.weak and b.weak:
        if same(a.literal, b.literal):
            return a
        common = dtypes.promote(a.type.dtype, b.type.dtype)
        literal = b.literal if common == b.type.dtype else a.literal
        return Leaf(ir.ScalarType(common), True, literal)
    if a.weak or b.weak:
        weak, strong = (a, b) if a.weak else (b, a)
        assert weak.literal is not None and isinstance(strong.type, ir.ScalarType)
        try:
            taken = dtypes.literal_type(weak.literal, strong.type.dtype)
        except ValueError as error:
            raise ShapeConflict(str(error)) from None
        if taken == strong.type.dtype:
            return strong
        common_type = lossless(taken, strong.type.dtype)
    else:
        common_type = lossless(a.type.dtype, b.type.dtype)
    if common_type is None:
        raise ShapeConflict(f"{_describe(a)} on one path, {_describe(b)} on another")
    return Leaf(ir.ScalarType(common_type))


def lossless(a: DType, b: DType) -> DType | None:
    """The one of the two types that holds every value of both, if there is one."""
    for wide, narrow in ((a, b), (b, a)):
        if holds(wide, narrow):
            return wide
    return None


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of ``narrow`` is a value of ``wide``."""
    if wide == narrow:
        return True
    if narrow.kind == "bool":
        return wide.kind != "bool"
    if wide.kind == "bool":
        return False
    if wide.is_integer and narrow.is_integer:
        low, high = dtypes.integer_range(wide)
        narrow_low, narrow_high = dtypes.integer_range(narrow)
        return low <= narrow_low and narrow_high <= high
    if wide.is_float and narrow.is_integer:
        magnitude = narrow.bits - (narrow.kind == "int")
        return magnitude <= wide.mantissa_bits + 1 and wide.exponent_bits >= 8
    if wide.is_float and narrow.is_float:
        return (
            wide.exponent_bits >= narrow.exponent_bits
            and wide.mantissa_bits >= narrow.mantissa_bits
        )
    return False


def _describe(shape: Shape) -> str:
    match shape:
        case Leaf():
            return f"{shape.type} literal {shape.literal}" if shape.weak else str(shape.type)
        case Fixed():
            return describe(shape.value)
        case Parts():
            return f"a {type(shape.example).__name__} of {len(shape.items)}"


def fits(shape: Shape, value: Any) -> bool:
    """Whether ``value`` can be assigned to variables of ``shape`` as they are."""
    try:
        wanted = unify(shape, shape_of(value))
    except ShapeConflict:
        return False
    return _same_types(wanted, shape)


def _same_types(a: Shape, b: Shape) -> bool:
    if isinstance(a, Leaf) and isinstance(b, Leaf):
        return a.type == b.type
    if isinstance(a, Parts) and isinstance(b, Parts):
        return len(a.items) == len(b.items) and all(map(_same_types, a.items, b.items))
    return isinstance(a, Fixed) and isinstance(b, Fixed)


def refreshed(shape: Shape, now: Shape) -> Shape:
    """``shape``, its fixed leaves as they are in this pass (names of variables may have moved)."""
    if isinstance(shape, Fixed) and isinstance(now, Fixed) and type(shape.value) is type(now.value):
        return now
    if isinstance(shape, Parts) and isinstance(now, Parts) and len(shape.items) == len(now.items):
        return Parts(tuple(map(refreshed, shape.items, now.items)), now.example)
    return shape
