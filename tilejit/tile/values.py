"""What an expression is worth to the checker: ``evaluate`` maps IR expressions to abstract values.

Integers give an ``Affine``, truth values a ``Cond``, everything else an ``Opaque`` that knows only how
uniform it is. Operations that are not affine (``//``, ``%``, ``min``, products of unknowns, wrapping)
give a *derived* symbol: one per distinct operation and operands, with a range and the inequalities
that tie it to its operands.

Not here: statements and control flow (``tile.facts``); proofs (``tile.affine``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ir import nodes
from tilejit.tile.affine import (
    CTA,
    GRID,
    HUGE,
    THREAD,
    WARP,
    Affine,
    Cond,
    Context,
    Number,
    Symbol,
    conjunction,
    disjunction,
    ends,
    enter,
    exactly,
    is_zero,
    magnitude,
    negation,
    of_symbol,
    settle,
    unknown_truth,
)

MAX_EXTENT = 1 << 40
"""No tensor has a dynamic size or stride above this: it would not fit the address space."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value nothing is known of but its uniformity."""

    level: int


Value: TypeAlias = Affine | Cond | Opaque
Environment: TypeAlias = dict[str, Value]


def integer_bounds(dtype: DType) -> tuple[int, int]:
    """Range of a type; ends beyond ±HUGE are held by symbols, not by arrays."""
    return dtypes.integer_range(dtype)


@dataclass(slots=True)
class Derived:
    """The derived symbols of one function and the inequalities (each ≥ 0) that define them."""

    made: dict[tuple[object, ...], list[tuple[Context, Affine, tuple[Affine, ...]]]] = field(
        default_factory=dict
    )
    products: list[tuple[Affine, Affine, Affine]] = field(default_factory=list)
    """(a, b, symbol of a·b), for bounds of ``x // b``."""

    def get(
        self,
        key: tuple[object, ...],
        context: Context,
        make: Callable[[], tuple[Affine, tuple[Affine, ...]]],
    ) -> tuple[Affine, tuple[Affine, ...]]:
        """The symbol made for ``key`` where everything known at its making still holds, else new."""
        candidates = self.made.setdefault(key, [])
        for then, value, axioms in candidates:
            if context.facts[: len(then.facts)] == then.facts:
                if context.mask is then.mask or not bool((context.mask & ~then.mask).any()):
                    return value, axioms
        value, axioms = make()
        candidates.append((context, value, axioms))
        return value, axioms


@dataclass(slots=True)
class Evaluator:
    """Evaluates expressions at one program point. ``context`` grows by the axioms of derived
    symbols; read it back after evaluating. ``wraps``: arithmetic wraps at its type's width, as on the
    device; the host computes a grid in Python's integers."""

    context: Context
    env: Environment
    derived: Derived
    hardware: dict[str, Affine]
    wraps: bool = True
    known: dict[int, tuple[nodes.Expr, Value]] | None = None
    """Values by identity of expressions, where the program point stays the same: addresses are built
    of the same parts again and again."""

    # --- entry points

    def value(self, expr: nodes.Expr) -> Value:
        rule = _RULES.get(type(expr))
        if rule is None:
            return Opaque(GRID)
        if self.known is None:
            return rule(self, expr)
        found = self.known.get(id(expr))
        if found is None:
            found = self.known[id(expr)] = (expr, rule(self, expr))
        return found[1]

    def _var(self, expr: nodes.Var) -> Value:
        found = self.env.get(expr.name)
        if found is not None:
            return found
        # Buffers and pointer parameters are one for the grid.
        scalar = isinstance(expr.type, nodes.ScalarType)
        return self.unknown(expr.type, expr.name, THREAD if scalar else GRID)

    def _hardware_id(self, expr: nodes.HardwareId) -> Value:
        return self.hardware[expr.name]

    def _address(self, expr: nodes.Address) -> Value:
        level = self.level(self.value(expr.offset_bytes))
        if expr.type.space == "tmem":
            level = min(level, self.level(self.value(expr.buffer)))
        return Opaque(level)

    def integer(self, expr: nodes.Expr) -> Affine:
        """The value of an integer (or bool) expression."""
        return self._as_integer(self.value(expr), expr.type)

    def _as_integer(self, value: Value, type_: nodes.Type) -> Affine:
        if isinstance(value, Cond):
            return self._cond_as_integer(value)
        if isinstance(value, Opaque):
            return self._fresh(type_, "value", value.level)
        return value

    def truth(self, expr: nodes.Expr) -> Cond:
        return self._as_truth(self.value(expr))

    def _as_truth(self, value: Value) -> Cond:
        if isinstance(value, Cond):
            return value
        if isinstance(value, Affine):
            return negation(self.compare("eq", value, Affine()))
        return unknown_truth(value.level)

    def level(self, value: Value) -> int:
        """Uniformity of a value over the threads of the context."""
        if isinstance(value, Affine):
            return self.context.uniformity(value)
        if isinstance(value, Opaque):
            return value.level
        if value.elected:
            return THREAD
        level = value.level
        for side in (value.may, value.must):
            if isinstance(side, np.ndarray):
                level = min(level, self.context.threads.array_level(side, self.context.mask))
        return level

    def unknown(self, type_: nodes.Type, name: str, level: int) -> Value:
        """Any value of this type."""
        if isinstance(type_, nodes.ScalarType):
            if type_.dtype.kind == "bool":
                return unknown_truth(level)
            if type_.dtype.is_integer:
                return self._fresh(type_, name, level)
        return Opaque(level)

    def _fresh(self, type_: nodes.Type, name: str, level: int) -> Affine:
        dtype = type_.dtype if isinstance(type_, nodes.ScalarType) else dtypes.int64
        low, high = integer_bounds(dtype) if not dtype.is_float else (-HUGE, HUGE)
        return of_symbol(Symbol(name, low, high, level=level))

    # --- leaves

    def _const(self, expr: nodes.Const) -> Value:
        if isinstance(expr.value, bool) or expr.type.dtype.kind == "bool":
            return exactly(bool(expr.value))
        if expr.type.dtype.is_integer:
            return Affine(int(expr.value))
        return Opaque(GRID)

    def _load(self, expr: nodes.Load) -> Value:
        space = expr.view.space
        if space == "local":
            return self.unknown(expr.type, f"{expr.view.buffer.name}[…]", THREAD)
        level = min([GRID, *(self.level(self.value(i)) for i in expr.indices)])
        level = min(level, self.level(self.value(expr.view.offset_elems)))
        if space != "global":
            level = min(level, CTA)
        return self.unknown(expr.type, f"{expr.view.buffer.name}[…]", level)

    def _call(self, expr: nodes.Call) -> Value:
        levels = [self.level(self.value(a)) for a in expr.args]
        level = min([GRID, *levels])
        match expr.op:
            case "cuda.elect_sync":
                return Cond(self.context.mask, False, GRID, elected=True)
            case "cuda.all_sync" | "cuda.any_sync" | "cuda.ballot_sync":
                level = max(level, WARP)
            case "cuda.shfl_idx":
                # One lane's value, for the whole warp, when the lane is one for the whole warp.
                level = max(level, WARP) if levels[1] >= WARP else THREAD
            case "bits.popc" | "bits.clz":
                symbol = Symbol(expr.op, 0, 64, level=level)
                return of_symbol(symbol)
        return self.unknown(expr.type, expr.op, level)

    # --- operators

    def _unary(self, expr: nodes.Unary) -> Value:
        if expr.op == "not":
            return negation(self.truth(expr.operand))
        value = self.value(expr.operand)
        if isinstance(value, Opaque) or not expr.type.dtype.is_integer:
            return self.unknown(expr.type, expr.op, self.level(value))
        operand = self._as_integer(value, expr.operand.type)
        match expr.op:
            case "neg":
                return self._wrapped(-operand, expr.type.dtype)
            case "invert":
                return self._wrapped(-operand - 1, expr.type.dtype)
        low, high = self.context.range(operand)
        if low >= 0:
            return operand
        if high <= 0:
            return self._wrapped(-operand, expr.type.dtype)
        if operand.exact:
            size = Affine(settle(np.abs(np.asarray(operand.const))))
        else:
            size = self._between("abs", (operand,), 0, max(-low, high), f"abs({operand})")
        return self._wrapped(size, expr.type.dtype)  # the least integer is its own magnitude

    def _binary(self, expr: nodes.Binary) -> Value:
        op = expr.op
        if op == "and":
            return conjunction(self.truth(expr.lhs), self.truth(expr.rhs))
        if op == "or":
            return disjunction(self.truth(expr.lhs), self.truth(expr.rhs))
        operand_type = expr.lhs.type
        assert isinstance(operand_type, nodes.ScalarType)
        if not operand_type.dtype.is_float and expr.type.dtype.kind == "bool":
            if operand_type.dtype.kind == "bool":
                return self._compare_truths(op, self.truth(expr.lhs), self.truth(expr.rhs))
            return self.compare(op, self.integer(expr.lhs), self.integer(expr.rhs))
        left, right = self.value(expr.lhs), self.value(expr.rhs)
        if isinstance(left, Cond) and isinstance(right, Cond):
            if op == "bitand":
                return conjunction(left, right)
            if op == "bitor":
                return disjunction(left, right)
            if op == "bitxor":
                return self._compare_truths("ne", left, right)
        if operand_type.dtype.is_float or not expr.type.dtype.is_integer:
            return self.unknown(expr.type, op, min(self.level(left), self.level(right)))
        a, b = self._as_integer(left, expr.lhs.type), self._as_integer(right, expr.rhs.type)
        return self.arithmetic(op, a, b, expr.type.dtype)

    def arithmetic(self, op: str, a: Affine, b: Affine, dtype: DType) -> Affine:
        """``a op b`` on integers of one type, wrapped at its width."""
        try:
            result = self._operate(op, a, b, dtype)
            return self._wrapped(result, dtype) if self.wraps else result
        except OverflowError:
            level = min(self.context.uniformity(a), self.context.uniformity(b))
            low, high = integer_bounds(dtype)
            return of_symbol(Symbol(f"({a} {op} {b})", low, high, level=level))

    def _operate(self, op: str, a: Affine, b: Affine, dtype: DType) -> Affine:
        match op:
            case "add":
                return a + b
            case "sub":
                return a - b
            case "mul":
                return self._product(a, b)
            case "floordiv":
                return self.divided(a, b)[0]
            case "mod":
                return self.divided(a, b)[1]
            case "min":
                return self.minimum(a, b)
            case "max":
                return -self.minimum(-a, -b)
            case "shl" if b.exact:
                return self._product(a, _two_to(b.const))
            case "shr" if b.exact:
                return self.divided(a, _two_to(b.const))[0]
        return self._bitwise(op, a, b, dtype)

    def _bitwise(self, op: str, a: Affine, b: Affine, dtype: DType) -> Affine:
        if a.exact and b.exact and op in ("bitand", "bitor", "bitxor"):
            function = {
                "bitand": np.bitwise_and, "bitor": np.bitwise_or, "bitxor": np.bitwise_xor,
            }[op]  # fmt: skip
            return Affine(settle(np.asarray(function(np.asarray(a.const), np.asarray(b.const)))))
        if op == "bitand":
            for value, constant in ((a, b.constant), (b, a.constant)):
                if constant is not None and constant >= 0 and (constant & (constant + 1)) == 0:
                    return self.divided(value, Affine(constant + 1))[1]
                if constant is not None and constant < 0 and (constant & -constant) == -constant:
                    return self.divided(value, Affine(-constant))[0].scaled(-constant)
        low, high = integer_bounds(dtype)
        (a_low, a_high), (b_low, b_high) = self.context.range(a), self.context.range(b)
        if op == "bitand" and (a_low >= 0 or b_low >= 0):
            low = 0
            high = min(h for low_, h in ((a_low, a_high), (b_low, b_high)) if low_ >= 0)
        elif op in ("bitor", "bitxor") and a_low >= 0 and b_low >= 0:
            low, high = 0, (1 << max(a_high.bit_length(), b_high.bit_length())) - 1
        return self._between(op, (a, b), low, high, f"({a} {op} {b})")

    def _product(self, a: Affine, b: Affine) -> Affine:
        if a.exact:
            return b.scaled(a.const)
        if b.exact:
            return a.scaled(b.const)
        context = self.context
        (a_low, a_high), (b_low, b_high) = context.range(a), context.range(b)
        corners = [x * y for x in (a_low, a_high) for y in (b_low, b_high)]
        level = min(context.uniformity(a), context.uniformity(b))
        key = ("mul", *sorted([a.key(), b.key()], key=repr))

        def make() -> tuple[Affine, tuple[Affine, ...]]:
            (a_mod, a_rem), (b_mod, b_rem) = context.congruence(a), context.congruence(b)
            mod = 1
            if is_zero(a_rem) and is_zero(b_rem):
                mod = max(1, a_mod) * max(1, b_mod)
            symbol = Symbol(
                f"({a})*({b})", min(corners), max(corners),
                mod=mod if mod < HUGE else 1, level=level,
            )  # fmt: skip
            product = of_symbol(symbol)
            self.derived.products.append((a, b, product))
            axioms = []
            if a_low >= 1 and b_low >= 0:
                axioms.append(product - b)
            if b_low >= 1 and a_low >= 0:
                axioms.append(product - a)
            return product, tuple(axioms)

        return self._derive(key, make)

    def divided(self, a: Affine, b: Affine) -> tuple[Affine, Affine]:
        """Floor quotient and remainder. Division by what may be zero gives unknowns."""
        if b.constant is not None and b.constant > 0:
            return self._divided_by_constant(a, b.constant)
        if a.exact and b.exact and not bool((np.asarray(b.const) == 0).any()):
            x, y = np.asarray(a.const), np.asarray(b.const)
            return Affine(settle(np.asarray(x // y))), Affine(settle(np.asarray(x % y)))
        return self._divided_by_unknown(a, b)

    def _divided_by_constant(self, a: Affine, c: int) -> tuple[Affine, Affine]:
        if c == 1:
            return a, Affine()
        if a.exact:
            if isinstance(a.const, int):
                return Affine(a.const // c), Affine(a.const % c)
            return Affine(settle(a.const // c)), Affine(settle(a.const % c))
        whole = {
            s: k // c for s, k in a.terms.items() if is_zero(settle(np.asarray(k % c)))
        }  # fmt: skip
        rest = Affine(a.const % c, {s: k for s, k in a.terms.items() if s not in whole})
        quotient = Affine(settle(np.asarray(a.const // c)), {s: _int(k) for s, k in whole.items()})
        low, high = self.context.bounds(rest)
        period = settle(np.asarray(low // c))
        if bool((np.asarray(high // c) == period)[...].all()):
            return quotient + Affine(period), rest - Affine(period).scaled(c)
        inner, remainder = self._derived_division(rest, c)
        return quotient + inner, remainder

    def _derived_division(self, a: Affine, c: int) -> tuple[Affine, Affine]:
        context = self.context
        low, high = context.range(a)
        level = context.uniformity(a)

        def quotient() -> tuple[Affine, tuple[Affine, ...]]:
            q = of_symbol(Symbol(f"({a})//{c}", low // c, high // c, level=level))
            return q, (a - q.scaled(c), q.scaled(c) + (c - 1) - a)

        q = self._derive(("floordiv", a.key(), c), quotient)
        if context.divisible(a, c):
            self.context = self.context.assuming((q.scaled(c) - a,))
            return q, Affine()

        def remainder() -> tuple[Affine, tuple[Affine, ...]]:
            mod, rem = context.congruence(a)
            shared = math.gcd(mod, c)
            left = rem % shared if shared > 1 else 0
            if not isinstance(left, int):
                shared, left = 1, 0
            r = of_symbol(
                Symbol(
                    f"({a})%{c}", left, c - max(1, shared) + left, mod=max(1, shared), rem=left,
                    level=level, modulo_of=(a, c),
                )
            )  # fmt: skip
            whole = q.scaled(c) + r
            return r, (a - whole, whole - a)

        return q, self._derive(("mod", a.key(), c), remainder)

    def _divided_by_unknown(self, a: Affine, b: Affine) -> tuple[Affine, Affine]:
        context = self.context
        (a_low, a_high), (b_low, b_high) = context.range(a), context.range(b)
        level = min(context.uniformity(a), context.uniformity(b))
        positive = b_low >= 1 or context.prove_nonnegative(b - 1)
        largest = max(abs(a_low), abs(a_high)) + 1
        widest = max(abs(b_low), abs(b_high))

        def quotient() -> tuple[Affine, tuple[Affine, ...]]:
            if not positive:
                return of_symbol(Symbol(f"({a})//({b})", -largest, largest, level=level)), ()
            low = a_low if a_low < 0 else a_low // b_high
            high = a_high // max(1, b_low) if a_high >= 0 else -1
            q = of_symbol(Symbol(f"({a})//({b})", low, high, level=level))
            axioms = [a - q] if a_low >= 0 else []
            # x < count·b gives x // b < count.
            for count, divisor, product in self._factors(b):
                if divisor.key() == b.key() and context.prove_nonnegative(product - a - 1):
                    axioms.append(count - q - 1)
            return q, tuple(axioms)

        def remainder() -> tuple[Affine, tuple[Affine, ...]]:
            if not positive:
                return of_symbol(Symbol(f"({a})%({b})", -widest, widest, level=level)), ()
            r = of_symbol(Symbol(f"({a})%({b})", 0, max(0, b_high - 1), level=level))
            return r, (b - r - 1, *([a - r] if a_low >= 0 else []))

        return (
            self._derive(("floordiv", a.key(), b.key()), quotient),
            self._derive(("mod", a.key(), b.key()), remainder),
        )

    def _factors(self, b: Affine) -> list[tuple[Affine, Affine, Affine]]:
        """(count, divisor, count·divisor) of every known product with ``b``, and static multiples."""
        known = [(x, y, p) for x, y, p in self.derived.products]
        known += [(y, x, p) for x, y, p in self.derived.products]
        for fact in self.context.facts:
            for symbol, coefficient in fact.terms.items():
                if list(b.terms) == [symbol] and isinstance(coefficient, int) and coefficient > 0:
                    known.append((Affine(coefficient), b, b.scaled(coefficient)))
        return known

    def minimum(self, a: Affine, b: Affine) -> Affine:
        if a.exact and b.exact:
            return Affine(settle(np.asarray(np.minimum(a.const, b.const))))
        context = self.context
        if context.prove_nonnegative(b - a, 2):
            return a
        if context.prove_nonnegative(a - b, 2):
            return b
        (a_low, a_high), (b_low, b_high) = context.range(a), context.range(b)
        level = min(context.uniformity(a), context.uniformity(b))

        def make() -> tuple[Affine, tuple[Affine, ...]]:
            low, high = min(a_low, b_low), min(a_high, b_high)
            for floor in (1, 0):
                # Interval ends forget facts: both sides proved ≥ floor makes the minimum so.
                if low < floor and all(context.prove_nonnegative(x - floor, 2) for x in (a, b)):
                    low = floor
            mod, rem = common_congruence([(context, a), (context, b)])
            symbol = Symbol(f"min({a}, {b})", low, max(low, high), mod=mod, rem=rem, level=level)
            m = of_symbol(symbol)
            return m, (a - m, b - m)

        first, second = sorted((a.key(), b.key()), key=repr)
        return self._derive(("min", first, second), make)

    # --- comparisons

    def compare(self, op: str, a: Affine, b: Affine) -> Cond:
        try:
            match op:
                case "lt":
                    return self._at_least_zero(b - a - 1)
                case "le":
                    return self._at_least_zero(b - a)
                case "gt":
                    return self._at_least_zero(a - b - 1)
                case "ge":
                    return self._at_least_zero(a - b)
                case "eq":
                    return self._is_zero(a - b)
                case "ne":
                    return negation(self._is_zero(a - b))
        except OverflowError:
            pass
        return unknown_truth(min(self.context.uniformity(a), self.context.uniformity(b)))

    def _at_least_zero(self, difference: Affine) -> Cond:
        low, high = self.context.bounds(difference)
        may, must = np.asarray(high) >= 0, np.asarray(low) >= 0
        if (
            not difference.exact
            and not must.any()
            and self.context.prove_nonnegative(difference, 2)
        ):
            must = may = np.asarray(True)
        level = GRID if difference.exact else self.context.uniformity(difference)
        return Cond(_flat(may), _flat(must), level, False, (difference,), (-difference - 1,))

    def _is_zero(self, difference: Affine) -> Cond:
        low, high = self.context.bounds(difference)
        if difference.exact:
            return exactly(_flat(np.asarray(difference.const) == 0))
        may = (np.asarray(low) <= 0) & (np.asarray(high) >= 0)
        mod, rem = self.context.congruence(difference)
        if mod > 1:
            may = may & (np.asarray(rem % mod) == 0)
        congruent: tuple[tuple[Affine, int, int], ...] = ()
        if len(difference.terms) == 1 and isinstance(difference.const, int):
            ((symbol, coefficient),) = difference.terms.items()
            if symbol.modulo_of is not None and coefficient in (1, -1):
                value, size = symbol.modulo_of
                rest = difference.const * (-1 if coefficient == 1 else 1)
                congruent = ((value, size, rest),)
        return Cond(
            _flat(may), False, self.context.uniformity(difference), False,
            (difference, -difference), self._unequal(difference), congruent, (),
        )  # fmt: skip

    def _unequal(self, difference: Affine) -> tuple[Affine, ...]:
        """What a difference known to be ≥ 0, or ≤ 0, is where it is not 0."""
        low, high = self.context.range(difference)
        if low >= 0:
            return (difference - 1,)
        return (-difference - 1,) if high <= 0 else ()

    def _compare_truths(self, op: str, a: Cond, b: Cond) -> Cond:
        same = disjunction(conjunction(a, b), conjunction(negation(a), negation(b)))
        if op == "eq":
            return same
        if op == "ne":
            return negation(same)
        return self.compare(op, self._cond_as_integer(a), self._cond_as_integer(b))

    # --- selection and conversion

    def _select(self, expr: nodes.Select) -> Value:
        cond = self.truth(expr.condition)
        if cond.always_true:
            return self.value(expr.if_true)
        if cond.always_false:
            return self.value(expr.if_false)
        before = self.context
        self.context = yes = enter(before, cond)
        if_true = self.value(expr.if_true)
        self.context = no = enter(before, negation(cond))
        if_false = self.value(expr.if_false)
        self.context = before
        return self.join(cond, (yes, if_true), (no, if_false), expr.type, "select")

    def join(
        self,
        cond: Cond,
        a: tuple[Context, Value],
        b: tuple[Context, Value],
        type_: nodes.Type,
        name: str,
    ) -> Value:
        """The first value where ``cond`` holds, else the second; each with the context it is of."""
        (_, first), (_, second) = a, b
        if first is second:
            return first
        if isinstance(first, Cond) and isinstance(second, Cond):
            return disjunction(conjunction(cond, first), conjunction(negation(cond), second))
        level = min(self.level(cond), self.level(first), self.level(second))
        if isinstance(first, Affine) and isinstance(second, Affine):
            if first.key() == second.key():
                return first
            sizes = [magnitude(n) for v in (first, second) for n in (v.const, *v.terms.values())]
            if cond.exact and max(sizes) < HUGE:
                return _merged(np.asarray(cond.may), first, second)
            return hull([(a[0], first), (b[0], second)], name, level)
        return self.unknown(type_, name, level)

    def _cast(self, expr: nodes.Cast) -> Value:
        operand = self.value(expr.operand)
        target = expr.type.dtype
        if target.kind == "bool":
            return self._as_truth(operand)
        if not target.is_integer:
            return Opaque(self.level(operand))
        if isinstance(operand, Cond):
            return self._cond_as_integer(operand)
        if isinstance(operand, Affine):
            return self._wrapped(operand, target)
        return self.unknown(expr.type, "cast", operand.level)

    def _bitcast(self, expr: nodes.Bitcast) -> Value:
        value = self.value(expr.operand)
        if isinstance(value, Affine) and isinstance(expr.type, nodes.ScalarType):
            if expr.type.dtype.is_integer:
                return self._wrapped(value, expr.type.dtype)
        return self.unknown(expr.type, "bitcast", self.level(value))

    def _cond_as_integer(self, cond: Cond) -> Affine:
        if cond.exact:
            return Affine(settle(np.asarray(cond.may).astype(np.int64)))
        return of_symbol(Symbol("bool", 0, 1, level=self.level(cond)))

    def _wrapped(self, value: Affine, dtype: DType) -> Affine:
        """The value as the type holds it: unchanged when it provably fits."""
        low, high = dtypes.integer_range(dtype)
        if value.exact:
            return _wrap_exact(value, low, high)
        if self._fits(value, low, high):
            return value
        name = f"({value}, may wrap in {dtype.name})"
        # Wrapping keeps the low bits.
        mod, rem = self.context.congruence(value)
        mod = math.gcd(mod, 1 << dtype.bits)
        if not isinstance(rem, int):
            mod, rem = 1, 0
        return self._between(
            f"wrap {dtype.name}", (value,), low, high, name, mod=mod, rem=rem % mod
        )

    def _fits(self, value: Affine, low: int, high: int) -> bool:
        least, greatest = self.context.enclosure(value)
        if max(low, 1 - HUGE) <= least and greatest <= min(high, HUGE - 1):
            return True
        least, greatest = self.context.range(value)
        # Ranges of arrays saturate at ±HUGE: there only a plain symbol is what it is.
        (coefficient, *more) = value.terms.values()
        plain = is_zero(value.const) and not more and is_zero(settle(coefficient - 1))
        above = low <= least and (plain or least > -HUGE)
        below = greatest <= high and (plain or greatest < HUGE)
        try:
            return (above or self.context.prove_nonnegative(value - low)) and (
                below or self.context.prove_nonnegative(-value + high)
            )
        except OverflowError:
            return False

    # --- derived symbols

    def _between(
        self,
        op: str,
        operands: tuple[Affine, ...],
        low: int,
        high: int,
        name: str,
        *,
        mod: int = 1,
        rem: int = 0,
    ) -> Affine:
        level = min(self.context.uniformity(o) for o in operands)
        key = (op, *(o.key() for o in operands))
        return self._derive(
            key,
            lambda: (of_symbol(Symbol(name, low, high, mod=mod, rem=rem, level=level)), ()),
        )

    def _derive(
        self, key: tuple[object, ...], make: Callable[[], tuple[Affine, tuple[Affine, ...]]]
    ) -> Affine:
        value, axioms = self.derived.get(key, self.context, make)
        missing = [a for a in axioms if a not in self.context.facts]  # by identity
        if missing:
            self.context = self.context.assuming(missing)
        return value


def hull(values: list[tuple[Context, Affine]], name: str, level: int) -> Affine:
    """A new symbol that covers all the values, each ranged in its own context."""
    ranges = [context.range(value) for context, value in values]
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    mod, rem = common_congruence(values)
    return of_symbol(Symbol(name, low, high, mod=mod, rem=rem, level=level))


def common_congruence(values: list[tuple[Context, Affine]]) -> tuple[int, int]:
    """(mod, rem) that all the values share in every thread of their contexts; mod 1: nothing."""
    mod, first = 0, None
    for context, value in values:
        m, r = context.congruence(value)
        residues = np.asarray(r)
        residues = residues[context.mask] if residues.ndim else residues.reshape(1)
        if residues.size == 0:
            continue
        first = int(residues[0]) if first is None else first
        mod = math.gcd(mod, m, int(np.gcd.reduce(np.abs(residues - first))))
    if first is None or mod == 0 or mod >= HUGE:
        return 1, 0
    return mod, first % mod


_RULES: dict[type, Callable[[Evaluator, Any], Value]] = {
    nodes.Const: Evaluator._const,
    nodes.Var: Evaluator._var,
    nodes.HardwareId: Evaluator._hardware_id,
    nodes.Unary: Evaluator._unary,
    nodes.Binary: Evaluator._binary,
    nodes.Select: Evaluator._select,
    nodes.Cast: Evaluator._cast,
    nodes.Bitcast: Evaluator._bitcast,
    nodes.Load: Evaluator._load,
    nodes.Address: Evaluator._address,
    nodes.Call: Evaluator._call,
}


def _two_to(count: Number) -> Affine:
    """2**count; OverflowError where an int64 array could not hold it."""
    if isinstance(count, int):
        if not 0 <= count < 64:
            raise OverflowError
        return Affine(1 << count)
    if bool(((count < 0) | (count >= 61)).any()):
        raise OverflowError
    return Affine(1 << count)


def _int(value: Number) -> Number:
    return value if isinstance(value, int) else settle(value)


def _flat(values: np.ndarray) -> bool | np.ndarray:
    if values.ndim == 0:
        return bool(values)
    return values


def _wrap_exact(value: Affine, low: int, high: int) -> Affine:
    size = high - low + 1
    least, greatest = ends(value.const)
    if low <= least and greatest <= high:
        return value
    if isinstance(value.const, int) or size < HUGE:
        return Affine(settle((value.const - low) % size + low))
    return value


def _merged(chosen: np.ndarray, a: Affine, b: Affine) -> Affine:
    def pick(x: Number, y: Number) -> Number:
        return settle(np.where(chosen, np.asarray(x), np.asarray(y)).astype(np.int64))

    symbols = {**a.terms, **b.terms}
    terms = {s: pick(a.terms.get(s, 0), b.terms.get(s, 0)) for s in symbols}
    return Affine(pick(a.const, b.const), {s: c for s, c in terms.items() if not is_zero(c)})
