"""Affine values against numpy, and what contexts of growing facts remember of proofs.

Not here: facts of whole kernels (``test_facts``), soundness by running (``test_soundness``).
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from tilejit.tile.affine import (
    HUGE,
    Affine,
    Context,
    Number,
    Symbol,
    Threads,
    ends,
    magnitude,
    of_symbol,
    settle,
)

THREADS = 64
EVERY = np.ones(THREADS, dtype=np.bool_)


def context() -> Context:
    return Context(Threads(1, THREADS), EVERY)


def number(chance: random.Random) -> Number:
    """An int, or an array that may agree at its ends."""
    if chance.random() < 0.5:
        return chance.randint(-5, 5)
    values = np.array([chance.randint(-5, 5) for _ in range(THREADS)], dtype=np.int64)
    values[-1] = values[0]
    return settle(values)


def value_of(affine: Affine, assignment: dict[Symbol, int]) -> np.ndarray:
    total = np.zeros(THREADS, dtype=np.int64) + affine.const
    for symbol, coefficient in affine.terms.items():
        total = total + coefficient * assignment[symbol]
    return total


def test_settled_only_where_every_thread_agrees() -> None:
    inside = np.zeros(THREADS, dtype=np.int64)
    inside[5] = 1
    assert settle(inside) is inside
    assert settle(np.full(THREADS, 7, dtype=np.int64)) == 7
    assert ends(inside) == (0, 1)
    assert magnitude(np.array([-9, 3], dtype=np.int64)) == 9


@pytest.mark.parametrize("seed", range(40))
def test_arithmetic(seed: int) -> None:
    chance = random.Random(seed)
    symbols = [Symbol(n, -9, 9) for n in "xyz"]
    assignment = {s: chance.randint(-9, 9) for s in symbols}

    def random_value() -> Affine:
        terms = {s: number(chance) for s in symbols if chance.random() < 0.7}
        return Affine(number(chance), {s: c for s, c in terms.items() if not _is_zero(c)})

    a, b, factor = random_value(), random_value(), number(chance)
    x, y = value_of(a, assignment), value_of(b, assignment)
    for made, wanted in (
        (a + b, x + y), (a - b, x - y), (-a, -x), (a.scaled(factor), x * factor), (a - 3, x - 3),
    ):  # fmt: skip
        assert np.array_equal(value_of(made, assignment), wanted)
        assert all(not _is_zero(c) for c in made.terms.values())
        settled = [made.const, *made.terms.values()]
        assert all(isinstance(n, int) or n.min() < n.max() for n in settled)
    assert (a - b).key() == (a + -b).key()


def _is_zero(value: Number) -> bool:
    return isinstance(value, int) and value == 0


def test_arrays_do_not_overflow() -> None:
    wide = Affine(np.array([0, HUGE - 1], dtype=np.int64))
    with pytest.raises(OverflowError):
        wide + wide
    with pytest.raises(OverflowError):
        wide.scaled(2)
    with pytest.raises(OverflowError):
        wide - 1


@pytest.mark.parametrize("seed", range(40))
def test_facts_one_by_one_prove_what_they_prove_together(seed: int) -> None:
    """Proofs in between leave their traces in the contexts; the answers do not depend on them."""
    chance = random.Random(seed)
    symbols = [Symbol(f"s{i}", -100, 100) for i in range(4)]

    def random_value() -> Affine:
        terms = {s: chance.choice([-2, -1, 1, 3]) for s in chance.sample(symbols, 2)}
        const: Number = chance.randint(-40, 60)
        if chance.random() < 0.3:
            const = const + np.arange(THREADS, dtype=np.int64) % 7
        return Affine(const, terms)

    facts = [random_value() for _ in range(6)]
    wanted = [random_value() for _ in range(12)]
    grown = context()
    for count in range(len(facts) + 1):
        fresh = context().assuming(facts[:count])
        for value in (*wanted, *(w + 9 for w in wanted), *(w - 9 for w in wanted)):
            alone = context().assuming(facts[:count])
            assert grown.prove_nonnegative(value) == alone.prove_nonnegative(value)
            assert fresh.prove_nonnegative(value, 2) == alone.prove_nonnegative(value, 2)
        grown = grown.assuming(facts[count : count + 1])


def test_a_failed_proof_is_not_sought_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (of_symbol(Symbol(n, -100, 100)) for n in "xy")
    at = context().assuming((x - y, y - 10))
    sought = 0
    follows = Context._follows

    def counted(*args: object) -> bool:
        nonlocal sought
        sought += 1
        return follows(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Context, "_follows", counted)
    assert not at.prove_nonnegative(x - 11)
    assert sought
    sought = 0
    assert not at.prove_nonnegative(x - 12)
    assert not at.prove_nonnegative(x - 11, 2)
    assert not sought
    # With more to go by, a greater constant, or another set of threads it is sought.
    assert at.prove_nonnegative(x - 10)
    assert at.assuming((y - 11,)).prove_nonnegative(x - 11)
    per_thread = Affine(np.where(np.arange(THREADS) < 8, -10, -11), x.terms)
    assert not at.prove_nonnegative(per_thread)
    assert at.narrowed(np.arange(THREADS) < 8).prove_nonnegative(per_thread)
