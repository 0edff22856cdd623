"""The values the checker computes with: exact per-thread numbers plus affine symbols.

An ``Affine`` is ``const + Σ coefficient · symbol``. ``const`` and coefficients are Python ints when
all threads agree, else int64 arrays over the cluster's threads (CTA rank major). A ``Symbol``
stands for one unknown integer with a range, a congruence and a uniformity level. A ``Context``
holds what is known at one program point: which threads are there, and inequalities.

Arithmetic here is on mathematical integers; wrapping at a type's width is the interpreter's business
(``tile.facts``). Not here: expressions, statements, regions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Number: TypeAlias = int | IntArray
Truth: TypeAlias = bool | BoolArray

THREAD, WARP, WARPGROUP, CTA, CLUSTER, GRID = range(6)
"""Uniformity levels: the value is one and the same for all threads of such a unit."""
LEVEL_NAMES = ("thread", "warp", "warpgroup", "cta", "cluster", "grid")
UNIT_THREADS = {WARP: 32, WARPGROUP: 128}

HUGE = 1 << 61
"""Bounds saturate here, so that int64 arrays of bounds cannot overflow."""

NAME_CHARS = 200
"""A symbol's name says what it was made of, up to this length."""

_serial = count()


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one symbol: by its declaration, or by a context beyond that."""

    lo: int
    hi: int
    mod: int
    rem: int


class Symbol:
    """An unknown integer. Identity is equality. ``lo`` and ``hi`` are inclusive.

    The value is ≡ ``rem`` modulo ``mod`` (``mod`` 1: nothing known). ``attained``: both ends of the
    range occur in some launch, so a violation at an end is a real counter-example. ``modulo_of``:
    this symbol is (affine) % (constant).
    """

    __slots__ = (
        "attained", "declared", "hi", "level", "lo", "mod", "modulo_of", "name", "rem", "serial",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        lo: int,
        hi: int,
        *,
        mod: int = 1,
        rem: int = 0,
        level: int = THREAD,
        attained: bool = False,
        modulo_of: tuple[Affine, int] | None = None,
    ) -> None:
        self.name = name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}…"
        self.lo = lo
        self.hi = hi
        self.mod = mod
        self.rem = rem
        self.level = level
        self.attained = attained
        self.modulo_of = modulo_of
        self.declared = Known(lo, hi, mod, rem)
        self.serial = next(_serial)

    def __repr__(self) -> str:
        return f"Symbol({self.name}, {self.lo}..{self.hi}, ≡{self.rem} mod {self.mod})"


def settle(value: Number) -> Number:
    """A Python int where the array's entries agree."""
    if isinstance(value, int):
        return value
    first = int(value.item(0))
    # Most arrays that differ somewhere differ at their ends, which is quick to see.
    if value.item(-1) != first or not bool((value == first).all()):
        return value
    return first


def is_zero(value: Number) -> bool:
    return isinstance(value, int) and value == 0


def magnitude(value: Number) -> int:
    return abs(value) if isinstance(value, int) else max(-_least(value), _greatest(value))


def _least(values: IntArray) -> int:
    """Quicker than ``min``, as ``argmin`` does not go through numpy's reductions."""
    return int(values.item(values.argmin()))


def _greatest(values: IntArray) -> int:
    return int(values.item(values.argmax()))


def _product(a: Number, b: Number) -> Number:
    """``a * b``; OverflowError where an int64 array could not hold it."""
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if magnitude(a) * magnitude(b) >= HUGE:
        raise OverflowError
    return a * b


def _sum(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if is_zero(a) or is_zero(b):
        return b if is_zero(a) else a
    if magnitude(a) + magnitude(b) >= HUGE:
        raise OverflowError
    return a + b if isinstance(a, int) or isinstance(b, int) else settle(a + b)


def _multiple(value: Number, factor: int) -> Number:
    """``_product`` with a factor other than 0: what differs by thread does so still."""
    if not isinstance(value, int) and magnitude(value) * abs(factor) >= HUGE:
        raise OverflowError
    return value * factor


@dataclass(slots=True, eq=False)
class Affine:
    """``const + Σ coefficient · symbol``. Never changed once made; not declared frozen, because that
    takes twice as long and a proof makes thousands."""

    const: Number = 0
    terms: dict[Symbol, Number] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """No symbol: the value of every thread is known."""
        return not self.terms

    @property
    def constant(self) -> int | None:
        """The one known value of all threads, else None."""
        return self.const if not self.terms and isinstance(self.const, int) else None

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(_sum(self.const, other), self.terms)
        if not other.terms:
            if is_zero(other.const):
                return self
            return Affine(_sum(self.const, other.const), self.terms)
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            _add_term(terms, symbol, coefficient)
        return Affine(_sum(self.const, other.const), terms)

    def __neg__(self) -> Affine:
        return self.scaled(-1)

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(_sum(self.const, -other), self.terms)
        terms = dict(self.terms)
        for symbol, coefficient in other.terms.items():
            _add_term(terms, symbol, -coefficient)
        return Affine(_sum(self.const, -other.const), terms)

    def scaled(self, factor: Number) -> Affine:
        if isinstance(factor, int):
            if factor == 0:
                return Affine()
            if factor == 1:
                return self
            terms = {s: _multiple(c, factor) for s, c in self.terms.items()}
            return Affine(_multiple(self.const, factor), terms)
        return Affine(
            settle(_product(self.const, factor)),
            {s: settle(_product(c, factor)) for s, c in self.terms.items()},
        )

    def key(self) -> tuple[object, ...]:
        """Hashable identity of the value."""
        terms = [(s.serial, _number_key(c)) for s, c in self.terms.items()]
        terms.sort()  # by serial, which no two have in common
        return (_number_key(self.const), *terms)

    def at(self, thread: int) -> Affine:
        """The value of one thread."""

        def pick(value: Number) -> int:
            return value if isinstance(value, int) else int(value[thread])

        terms = {s: pick(c) for s, c in self.terms.items()}
        return Affine(pick(self.const), {s: c for s, c in terms.items() if c})

    def __str__(self) -> str:
        parts = []
        for symbol, coefficient in self.terms.items():
            if not isinstance(coefficient, int):
                parts.append(f"[per thread]*{symbol.name}")
            elif coefficient == 1:
                parts.append(symbol.name)
            else:
                parts.append(f"{coefficient}*{symbol.name}")
        if not isinstance(self.const, int):
            parts.append(f"[{int(self.const.min())}..{int(self.const.max())} by thread]")
        elif self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")


def _number_key(value: Number) -> int | bytes:
    return value if isinstance(value, int) else value.tobytes()


def _add_term(terms: dict[Symbol, Number], symbol: Symbol, coefficient: Number) -> None:
    total = _sum(terms.get(symbol, 0), coefficient)
    if is_zero(total):
        del terms[symbol]
    else:
        terms[symbol] = total


def of_symbol(symbol: Symbol) -> Affine:
    return Affine(0, {symbol: 1})


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of one cluster (one CTA without a cluster): ``ctas`` × ``per_cta``, x fastest."""

    ctas: int
    per_cta: int

    @property
    def total(self) -> int:
        return self.ctas * self.per_cta

    def unit_ids(self, level: int) -> IntArray:
        """For every thread, the number of the unit of this level it belongs to."""
        return _unit_ids(self, level)

    def array_level(self, values: npt.NDArray[np.generic], mask: BoolArray) -> int:
        """The widest unit in which all threads of the mask agree."""
        # The threads of a unit are consecutive: neighbours that differ tell it all.
        present = np.flatnonzero(mask)
        chosen = values[present]
        changes = np.flatnonzero(chosen[1:] != chosen[:-1])
        if changes.size == 0:
            return GRID
        before, after = present[changes], present[changes + 1]
        for level in (CTA, WARPGROUP, WARP):
            units = self.unit_ids(level)
            if bool((units[before] != units[after]).all()):
                return level
        return THREAD


@lru_cache(maxsize=256)
def _unit_ids(threads: Threads, level: int) -> IntArray:
    thread = np.arange(threads.total, dtype=np.int64)
    cta, tid = thread // threads.per_cta, thread % threads.per_cta
    if level == CTA:
        return cta
    if level in UNIT_THREADS:
        size = UNIT_THREADS[level]
        return cta * -(-threads.per_cta // size) + tid // size
    return thread if level == THREAD else np.zeros_like(thread)


MAX_ATTEMPTS = 4000
"""Sums of facts that one proof may try: some tenths of a second."""


class _SearchEnded(Exception):
    """A proof has tried as much as it may."""


Index: TypeAlias = "dict[Symbol, tuple[tuple[int, int, Affine], ...]]"
"""By symbol, (number, coefficient, fact) of every fact with it, all threads of one coefficient."""


def _indexed(index: Index, first: int, facts: Sequence[Affine]) -> Index:
    """``index`` with more facts, numbered from ``first`` on."""
    grown = dict(index)
    for number, fact in enumerate(facts, first):
        for symbol, coefficient in fact.terms.items():
            if isinstance(coefficient, int):
                grown[symbol] = (*grown.get(symbol, ()), (number, coefficient, fact))
    return grown


def _without(value: Affine, coefficient: int, fact: Affine, other: int) -> Affine:
    """What must be ≥ 0 for ``value`` to be, by ``fact`` ≥ 0, without the symbol that has these
    coefficients of one sign in the two."""
    shared = math.gcd(other, coefficient)
    k, j = abs(other) // shared, abs(coefficient) // shared
    # value ≥ 0 exactly when k·value ≥ -(k-1), on integers.
    least = value if k == 1 else value.scaled(k) + (k - 1)
    terms = dict(least.terms)
    for symbol, factor in fact.terms.items():
        _add_term(terms, symbol, _multiple(factor, -j))
    return Affine(_sum(least.const, _multiple(fact.const, -j)), terms)


def _identity(value: Affine) -> tuple[object, ...]:
    """``key`` for the time that the symbols live: in no order, which takes long to make."""
    try:
        return (_number_key(value.const), frozenset(value.terms.items()))
    except TypeError:  # an array has no hash
        return value.key()


@dataclass(frozen=True, slots=True)
class Context:
    """One program point: the threads that may be there and what holds for each of them.

    ``mask`` marks the threads; ``level`` is the uniformity of the run-time guards passed on the way
    (GRID: none): within a unit of that level either all threads of the mask are there or none.
    ``elected``: an ``elect_sync`` guard leaves one unspecified lane of each warp of the mask.
    Every ``fact`` is ≥ 0. ``guards`` are the spans of run-time guards, for messages. Contexts of the
    same facts share ``index``, the facts by symbol, made by the first proof, and ``unproved``: by the
    terms of a value, the masks, numbers of facts and constants with which a proof was sought in vain.
    """

    threads: Threads
    mask: BoolArray
    level: int = GRID
    elected: bool = False
    facts: tuple[Affine, ...] = ()
    known: dict[Symbol, Known] = field(default_factory=dict)
    guards: tuple[object, ...] = ()
    index: Index = field(default_factory=dict)
    unproved: dict[tuple[object, ...], list[tuple[BoolArray, int, Number]]] = field(
        default_factory=dict
    )

    @property
    def dead(self) -> bool:
        return not bool(self.mask.any())

    def of(self, symbol: Symbol) -> Known:
        return self.known.get(symbol) or symbol.declared

    # --- ranges

    def bounds(self, value: Affine) -> tuple[Number, Number]:
        """Inclusive range, saturated at ±HUGE; per thread where the value is."""
        lo: Number = value.const
        hi: Number = value.const
        for symbol, coefficient in value.terms.items():
            known = self.of(symbol)
            low, high = _scaled_range(coefficient, known)
            lo, hi = _saturated(lo, low), _saturated(hi, high)
        return lo, hi

    def range(self, value: Affine) -> tuple[int, int]:
        """Inclusive range over all threads of the mask."""
        lo, hi = self.bounds(value)
        return self.least(lo), -self.least(-hi)

    def enclosure(self, value: Affine) -> tuple[int, int]:
        """Inclusive range over all threads, those outside the mask included: quicker than ``range``,
        and not saturated."""
        low, high = ends(value.const)
        for symbol, coefficient in value.terms.items():
            known = self.of(symbol)
            if isinstance(coefficient, int):
                corners = [coefficient * known.lo, coefficient * known.hi]
            else:
                sides = (known.lo, known.hi)
                corners = [end * side for end in ends(coefficient) for side in sides]
            low, high = low + min(corners), high + max(corners)
        return low, high

    def least(self, values: Number) -> int:
        """Smallest value among the threads of the mask."""
        if isinstance(values, int):
            return values
        present = values[self.mask]
        return _least(present) if present.size else 0

    # --- congruence

    def congruence(self, value: Affine) -> tuple[int, Number]:
        """(m, r): the value is ≡ r (per thread) modulo m; m 0: it equals r."""
        mod = 0
        rem: Number = value.const
        for symbol, coefficient in value.terms.items():
            known = self.of(symbol)
            mod = math.gcd(mod, _common_factor(coefficient) * known.mod)
            if known.rem:
                rem = rem + coefficient * known.rem
        return mod, rem if mod == 0 else rem % mod

    def divisible(self, value: Affine, divisor: int) -> bool:
        """Proved to be a multiple of ``divisor`` for every thread of the mask."""
        if divisor <= 1:
            return True
        mod, rem = self.congruence(value)
        if mod % divisor:
            return False
        left = rem % divisor
        return left == 0 if isinstance(left, int) else not bool(left[self.mask].any())

    # --- levels

    def uniformity(self, value: Affine) -> int:
        level = GRID
        for symbol, coefficient in value.terms.items():
            level = min(level, symbol.level)
            if not isinstance(coefficient, int):
                level = min(level, self.threads.array_level(coefficient, self.mask))
        if not isinstance(value.const, int):
            level = min(level, self.threads.array_level(value.const, self.mask))
        return level

    # --- proofs

    def prove_nonnegative(self, value: Affine, depth: int = 4) -> bool:
        """True when ``value`` ≥ 0 for every thread of the mask follows from ranges and at most
        ``depth`` facts. Few facts are tried before many, and no more than ``MAX_ATTEMPTS`` sums."""
        if value.exact:
            return self.least(value.const) >= 0
        terms = value.key()[1:]
        attempts = self.unproved.setdefault(terms, [])
        for mask, facts, const in attempts:
            # Every step of a proof keeps the order of its values: what could not be proved of a
            # greater one cannot be of this.
            if mask is self.mask and facts >= depth and not bool(np.any(value.const > const)):
                return False
        try:
            if self._follows(value, depth):
                return True
        except (OverflowError, _SearchEnded):
            return False
        attempts.append((self.mask, depth, value.const))
        return False

    def _follows(self, value: Affine, depth: int) -> bool:
        """Whether subtracting at most ``depth`` facts leaves what ranges show to be ≥ 0."""
        value = self._with_slack(value)
        if self._low(value) >= 0:
            return True
        rests: list[tuple[Affine, frozenset[int]]] = [(value, frozenset())]
        tried = 0
        for _ in range(depth):
            # The same facts in another order mostly leave the same rest.
            seen: set[tuple[object, ...]] = set()
            further: list[tuple[Affine, frozenset[int]]] = []
            for rest, used in rests:
                for less, now in self._eliminated(rest, used):
                    attempt = (now, _identity(less))
                    if attempt in seen:
                        continue
                    seen.add(attempt)
                    tried += 1
                    if tried > MAX_ATTEMPTS:
                        raise _SearchEnded
                    try:
                        less = self._with_slack(less)
                        if self._low(less) >= 0:
                            return True
                    except OverflowError:
                        continue
                    further.append((less, now))
            rests = further
        return False

    def _eliminated(
        self, value: Affine, used: frozenset[int]
    ) -> Iterator[tuple[Affine, frozenset[int]]]:
        """What is left of ``value`` by each fact that takes a symbol out of it, and the numbers of the
        facts subtracted so far (``used``) and then."""
        for symbol, coefficient in value.terms.items():
            if not isinstance(coefficient, int):
                continue
            for number, other, fact in self._about(symbol):
                # value·k - fact·j eliminates the symbol when both coefficients have one sign.
                if (other > 0) != (coefficient > 0) or number in used:
                    continue
                try:
                    rest = _without(value, coefficient, fact, other)
                except OverflowError:
                    continue  # of another fact the numbers may be smaller
                yield rest, used | {number}

    def _low(self, value: Affine) -> int:
        """The least that ``value`` can be for a thread of the mask, as far as ranges tell."""
        low = 0
        for symbol, coefficient in value.terms.items():
            if not isinstance(coefficient, int):
                return self.least(self.bounds(value)[0])
            known = self.of(symbol)
            low += coefficient * (known.lo if coefficient >= 0 else known.hi)
        return low + self.least(value.const)

    def _about(self, symbol: Symbol) -> Sequence[tuple[int, int, Affine]]:
        """The facts with ``symbol``, as in ``Index``."""
        if not self.index:
            self.index.update(_indexed({}, 0, self.facts))
        return self.index.get(symbol, ())

    def _with_slack(self, value: Affine) -> Affine:
        """A value ≡ r modulo m is ≥ 0 exactly when value + (m-1-r) is."""
        if not value.terms:
            return value
        mod = 0
        for symbol, coefficient in value.terms.items():
            mod = math.gcd(mod, _common_factor(coefficient) * self.of(symbol).mod)
            if mod == 1:
                return value
        mod, rem = self.congruence(value)
        if mod <= 1 or mod >= HUGE:
            return value
        return Affine(_sum(value.const, settle(mod - 1 - rem)), value.terms)

    # --- narrowing

    def narrowed(self, mask: Truth) -> Context:
        kept = self.mask & mask
        return replace(self, mask=kept)

    def assuming(self, facts: Iterable[Affine]) -> Context:
        """This context with more inequalities; single-symbol ones also tighten the symbol's range."""
        new = tuple(f for f in facts if f.terms)
        if not new:
            return self
        known = dict(self.known)
        for fact in new:
            if len(fact.terms) == 1:
                self._tighten(known, fact)
        # No fact is indexed before the first proof.
        index = _indexed(self.index, len(self.facts), new) if self.index else {}
        return replace(self, facts=self.facts + new, known=known, index=index, unproved={})

    def _tighten(self, known: dict[Symbol, Known], fact: Affine) -> None:
        ((symbol, coefficient),) = fact.terms.items()
        if not isinstance(coefficient, int):
            return
        now = known.get(symbol) or self.of(symbol)
        # coefficient·s ≥ -const; the weakest thread's bound holds for all of them.
        greatest = -self.least(-fact.const)
        if coefficient > 0:
            known[symbol] = replace(now, lo=max(now.lo, -(greatest // coefficient)))
        else:
            known[symbol] = replace(now, hi=min(now.hi, greatest // -coefficient))

    def congruent(self, value: Affine, mod: int, rem: int) -> Context:
        """This context knowing ``value`` ≡ ``rem`` modulo ``mod``, where it says so of one symbol."""
        if len(value.terms) != 1 or not isinstance(value.const, int) or mod <= 1:
            return self
        ((symbol, coefficient),) = value.terms.items()
        if not isinstance(coefficient, int):
            return self
        # c·s ≡ r (mod m): divide by g = gcd(c, m), then by the inverse of c/g.
        shared = math.gcd(coefficient, mod)
        wanted = (rem - value.const) % mod
        if wanted % shared:
            return self
        size = mod // shared
        if size == 1:
            return self
        residue = wanted // shared * pow(coefficient // shared, -1, size) % size
        now = self.of(symbol)
        if now.mod and size % now.mod == 0:
            return self._knowing(symbol, replace(now, mod=size, rem=residue))
        if math.gcd(now.mod, size) == 1 and now.mod:
            combined = now.mod * size
            step = (residue - now.rem) * pow(now.mod, -1, size) % size
            rest = (now.rem + now.mod * step) % combined
            return self._knowing(symbol, replace(now, mod=combined, rem=rest))
        return self

    def _knowing(self, symbol: Symbol, known: Known) -> Context:
        # The trivial fact marks the point: derived symbols are reused only where all of it holds.
        facts = self.facts + (Affine(),)
        return replace(
            self, known={**self.known, symbol: known}, facts=facts, index=dict(self.index),
            unproved={},
        )  # fmt: skip


def ends(value: Number) -> tuple[int, int]:
    """Least and greatest value among all threads."""
    return (value, value) if isinstance(value, int) else (_least(value), _greatest(value))


def _common_factor(value: Number) -> int:
    """The greatest number that divides the value of every thread."""
    return abs(value) if isinstance(value, int) else int(np.gcd.reduce(np.abs(value)))


def _scaled_range(coefficient: Number, known: Known) -> tuple[Number, Number]:
    """Range of coefficient · symbol."""
    if isinstance(coefficient, int):
        if coefficient >= 0:
            return coefficient * known.lo, coefficient * known.hi
        return coefficient * known.hi, coefficient * known.lo
    if magnitude(coefficient) * max(abs(known.lo), abs(known.hi)) >= HUGE:
        return -HUGE, HUGE
    low, high = coefficient * known.lo, coefficient * known.hi
    return np.minimum(low, high), np.maximum(low, high)


def _saturated(a: Number, b: Number) -> Number:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, int):
        a = max(-HUGE, min(HUGE, a))
    if isinstance(b, int):
        b = max(-HUGE, min(HUGE, b))
    total: IntArray = np.asarray(a + b)
    return np.minimum(np.maximum(total, -HUGE), HUGE)


# --- truth values


@dataclass(frozen=True, slots=True, eq=False)
class Cond:
    """A truth value per thread: certain where ``must``, impossible where not ``may``.

    In between it is decided at run time, alike in every unit of ``level``. ``elected``: true in one
    unspecified lane of each warp of ``may``. The lists hold for the threads where it is true
    (false): inequalities (each ≥ 0) and congruences (value, mod, rem).
    """

    may: Truth
    must: Truth
    level: int = GRID
    elected: bool = False
    when_true: tuple[Affine, ...] = ()
    when_false: tuple[Affine, ...] = ()
    congruent_true: tuple[tuple[Affine, int, int], ...] = ()
    congruent_false: tuple[tuple[Affine, int, int], ...] = ()

    @property
    def exact(self) -> bool:
        return not self.elected and bool(np.all(np.asarray(self.may) == np.asarray(self.must)))

    @property
    def always_false(self) -> bool:
        return not bool(np.any(self.may))

    @property
    def always_true(self) -> bool:
        return bool(np.all(self.must))


def exactly(truth: Truth) -> Cond:
    return Cond(truth, truth)


def unknown_truth(level: int) -> Cond:
    return Cond(True, False, level)


def negation(cond: Cond) -> Cond:
    return Cond(
        np.logical_not(cond.must),
        np.logical_not(cond.may),
        THREAD if cond.elected else cond.level,
        False,
        cond.when_false,
        cond.when_true,
        cond.congruent_false,
        cond.congruent_true,
    )


def conjunction(a: Cond, b: Cond) -> Cond:
    if a.always_false or b.always_true:
        return a
    if b.always_false or a.always_true:
        return b
    return Cond(
        np.logical_and(a.may, b.may),
        np.logical_and(a.must, b.must),
        min(_run_time_level(a), _run_time_level(b)),
        a.elected or b.elected,
        a.when_true + b.when_true,
        _either(a.when_false, b.when_false),
        a.congruent_true + b.congruent_true,
        (),
    )


def disjunction(a: Cond, b: Cond) -> Cond:
    if a.always_false or b.always_true:
        return b
    if b.always_false or a.always_true:
        return a
    both_exact = a.exact and b.exact
    level = min(_run_time_level(a), _run_time_level(b))
    if not both_exact and (a.elected or b.elected or not np.array_equal(a.may, b.may)):
        level = THREAD  # which threads are there depends on which side held
    return Cond(
        np.logical_or(a.may, b.may),
        np.logical_or(a.must, b.must),
        level,
        False,
        _either(a.when_true, b.when_true),
        a.when_false + b.when_false,
        (),
        a.congruent_false + b.congruent_false,
    )


def _either(a: tuple[Affine, ...], b: tuple[Affine, ...]) -> tuple[Affine, ...]:
    """What holds (≥ 0) where all of ``a`` or all of ``b`` does: the weaker of comparable pairs."""
    return tuple(
        x if x.const >= y.const else y
        for x in a
        for y in b
        if isinstance(x.const, int) and isinstance(y.const, int) and x.terms
        if (x - y).exact
    )


def _run_time_level(cond: Cond) -> int:
    return GRID if cond.exact else cond.level


def enter(context: Context, cond: Cond, span: object = None) -> Context:
    """The context of the code that runs where ``cond`` is true."""
    inside = context.narrowed(cond.may)
    decided = np.broadcast_to(np.asarray(cond.must), inside.mask.shape)[inside.mask]
    if not decided.all():
        level = cond.level if not decided.any() else THREAD
        inside = replace(
            inside,
            level=min(inside.level, level),
            elected=inside.elected or cond.elected,
            guards=inside.guards + ((span,) if span is not None else ()),
        )
    inside = inside.assuming(cond.when_true)
    for value, mod, rem in cond.congruent_true:
        inside = inside.congruent(value, mod, rem)
    return inside
