"""Index expressions as linear forms: constants, known divisors, exact division.

Index arithmetic is taken not to wrap: an index that does is out of every buffer's bounds. Arithmetic
in unsigned types wraps on purpose, so only its power-of-two divisors and differences are used.

Not here: ranges of values (the checker's facts).
"""

from __future__ import annotations

import math

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ir import build
from tilejit.ir.nodes import Binary, Cast, Const, Expr, ScalarType, Select

Terms = dict[Expr, int]
"""Factor of every opaque integer expression."""


def linear(expr: Expr, *, through_unsigned: bool = False) -> tuple[Terms, int]:
    """``expr`` as (terms, constant): sum of factor × term, plus the constant."""
    terms: Terms = {}
    constant = _collect(expr, 1, terms, through_unsigned)
    if 0 in terms.values():
        terms = {term: factor for term, factor in terms.items() if factor}
    return terms, constant


def _collect(expr: Expr, factor: int, terms: Terms, through_unsigned: bool) -> int:
    """Adds ``factor`` × ``expr`` to ``terms``; what of it is constant is returned."""
    if isinstance(expr, Const):
        if not isinstance(expr.value, float):
            return int(expr.value) * factor
    elif isinstance(expr, Cast):
        if _keeps_value(expr, through_unsigned):
            return _collect(expr.operand, factor, terms, through_unsigned)
    elif isinstance(expr, Binary):
        if expr.op in ("add", "sub"):
            second = factor if expr.op == "add" else -factor
            return _collect(expr.lhs, factor, terms, through_unsigned) + _collect(
                expr.rhs, second, terms, through_unsigned
            )
        scaled = _scaled(expr)
        if scaled is not None:
            inner, by = scaled
            return _collect(inner, factor * by, terms, through_unsigned)
    terms[expr] = terms.get(expr, 0) + factor
    return 0


def _scaled(expr: Binary) -> tuple[Expr, int] | None:
    """(x, c) where ``expr`` is written as x · c or x << c."""
    match expr.op:
        case "mul":
            for inner, by in ((expr.lhs, expr.rhs), (expr.rhs, expr.lhs)):
                if isinstance(by, Const) and isinstance(by.value, int):
                    return inner, by.value
        case "shl":
            by = expr.rhs
            if isinstance(by, Const) and isinstance(by.value, int) and 0 <= by.value < 63:
                return expr.lhs, 1 << by.value
    return None


def _keeps_value(cast: Cast, through_unsigned: bool) -> bool:
    """Whether a conversion is between integers and not narrowing."""
    source = cast.operand.type
    if not isinstance(source, ScalarType) or not source.dtype.is_integer:
        return False
    if not cast.type.dtype.is_integer or cast.type.dtype.bits < source.dtype.bits:
        return False
    return through_unsigned or source.dtype.is_signed


def divisor(expr: Expr) -> int:
    """A number that divides every value of ``expr``: at least 1, or 0 for the constant 0."""
    form, wrapping = linear(expr), linear(expr, through_unsigned=True)
    exact = _divisor_of(*form)
    if wrapping == form or exact == 0:
        return exact
    return math.lcm(exact, _power_of_two(_divisor_of(*wrapping)) or 1)


def _divisor_of(terms: Terms, constant: int) -> int:
    result = abs(constant)
    for term, factor in terms.items():
        result = math.gcd(result, abs(factor) * _opaque_divisor(term))
    return result


def _opaque_divisor(term: Expr) -> int:
    match term:
        case Binary(op="bitand", lhs=lhs, rhs=Const(value=int(mask))) if mask:
            return max(mask & -mask, _power_of_two(divisor(lhs)))
        case Binary(op="mod", lhs=lhs, rhs=rhs):
            return math.gcd(divisor(lhs), divisor(rhs)) or 1
        case Binary(op="floordiv", lhs=lhs, rhs=Const(value=int(by))) if by > 0:
            known = divisor(lhs)
            return known // by if known and known % by == 0 else 1
        case Binary(op="mul", lhs=lhs, rhs=rhs):
            return divisor(lhs) * divisor(rhs) or 1
        case Binary(op="min" | "max", lhs=lhs, rhs=rhs):
            return math.gcd(divisor(lhs), divisor(rhs)) or 1
        case Select(if_true=lhs, if_false=rhs):
            return math.gcd(divisor(lhs), divisor(rhs)) or 1
        case Cast(operand=operand) if _keeps_value(term, True):
            return _power_of_two(divisor(operand)) or 1
    return 1


def _power_of_two(value: int) -> int:
    return value & -value


def difference(a: Expr | int, b: Expr | int) -> int | None:
    """``a - b`` when it is a number whatever the unknowns are."""
    terms, constant = linear(build.index(a), through_unsigned=True)
    taken, less = linear(build.index(b), through_unsigned=True)
    for term, factor in taken.items():
        terms[term] = terms.get(term, 0) - factor
    return None if any(terms.values()) else constant - less


def total(terms: Terms, constant: int, dtype: DType = dtypes.int64) -> Expr:
    """The expression of a linear form in ``dtype``, modulo 2**bits."""
    result: Expr = build.const(0, dtype)
    for term, factor in terms.items():
        part = build.mul(build.cast(term, dtype), build.const(factor, dtype))
        result = build.add(result, part)
    return build.add(result, build.const(constant, dtype))


def index_floordiv(expr: Expr | int, by: int) -> Expr:
    """``expr // by`` in int64, with the terms that ``by`` divides taken out of the division."""
    index = build.index(expr)
    terms, constant = linear(index)
    whole = {t: f // by for t, f in terms.items() if f % by == 0}
    rest = {t: f for t, f in terms.items() if f % by}
    if not rest:
        return total(whole, constant // by)
    common = math.gcd(by, constant, *rest.values())
    if not whole and common == 1:
        return build.floordiv(index, build.index(by))
    out, left = divmod(constant, by)
    inside = total({t: f // common for t, f in rest.items()}, left // common)
    quotient = build.floordiv(inside, build.index(by // common))
    return build.index_add(build.index_add(total(whole, 0), quotient), out)


def index_mod(expr: Expr | int, by: int) -> Expr:
    """``expr % by`` in int64, without the terms that ``by`` divides."""
    index = build.index(expr)
    terms, constant = linear(index)
    rest = {t: f for t, f in terms.items() if f % by}
    if not rest:
        return build.index(constant % by)
    common = math.gcd(by, constant, *rest.values())
    if len(rest) == len(terms) and common == 1:
        return build.mod(index, build.index(by))
    inside = total({t: f // common for t, f in rest.items()}, constant % by // common)
    return build.index_mul(build.mod(inside, build.index(by // common)), common)


def exact_quotient(expr: Expr, by: int) -> Expr | None:
    """``expr / by`` in int64 when ``by`` provably divides it, else None."""
    if divisor(expr) % by:
        return None
    return index_floordiv(expr, by)
