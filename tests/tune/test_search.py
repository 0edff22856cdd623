"""The search over configs, with a measurer whose times are invented: seeded noise, drift, outliers, failures."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilejit.errors import TileError
from tilejit.tune import search as searching
from tilejit.tune.search import ConfigFailed, Interval, Progress, Trial, arrived, interval, search

LEAST_SECONDS = 1e-4


@dataclass
class Fake:
    """Costs in seconds. Noise: a log-normal factor per sample, one per round that all share (drift), and
    outliers that are up to three times as long."""

    costs: Sequence[float]
    seed: int = 0
    noise: float = 0.01
    drift: float = 0.03
    outliers: float = 0.05
    cold: float = 4.0
    outputs: Sequence[Any] | None = None
    reference: Any = None
    broken: dict[int, str] = field(default_factory=dict)
    breaks_at: dict[int, int] = field(default_factory=dict)
    """Candidate: how many calls of ``sample`` it survives."""
    calls: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def add(self, candidate: int, variant: Any) -> None:
        raise AssertionError("the search adds nothing")

    def trial(self, candidate: int) -> Trial:
        if candidate in self.broken:
            raise ConfigFailed(self.broken[candidate], candidate)
        factor = self.random.uniform(1, self.cold)
        return Trial(self.costs[candidate] * factor, candidate)

    def differs(self, candidate: int, other: int | None) -> str | None:
        if self.outputs is None:
            return None
        mine = self.outputs[candidate]
        its = self.reference if other is None else self.outputs[other]
        return None if mine == its else f"C[0] is {mine}, expected {its}"

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        self.calls.append(tuple(candidates))
        for candidate in candidates:
            left = self.breaks_at.get(candidate)
            if left == 0:
                raise ConfigFailed("an illegal address", candidate)
            if left is not None:
                self.breaks_at[candidate] = left - 1
        shared = np.exp(self.random.normal(0, self.drift, rounds))
        return {c: list(self.costs[c] * shared * self._noise(rounds)) for c in candidates}

    def _noise(self, rounds: int) -> Any:
        usual = np.exp(self.random.normal(0, self.noise, rounds))
        late = self.random.random(rounds) < self.outliers
        return usual * np.where(late, self.random.uniform(1, 3, rounds), 1)

    def close(self) -> None:
        pass


def run(fake: Fake, **options: Any) -> searching.Outcome:
    count = len(fake.costs)
    return search(fake, arrived(range(count)), count, **options)


# --- intervals


def coverage(count: int, width: Interval, ordered: list[float]) -> float:
    """P(the true median lies between the interval's ends), from the binomial's definition."""
    low, high = ordered.index(width.low) + 1, ordered.index(width.high) + 1
    return sum(math.comb(count, k) for k in range(low, high)) / 2**count


@pytest.mark.parametrize("count", [6, 7, 10, 21, 60, 200])
def test_an_interval_is_the_narrowest_with_95_percent(count: int) -> None:
    ordered = [float(x) for x in range(count)]
    found = interval(ordered[::-1])
    assert found.median == (count - 1) / 2 and found.samples == count
    assert coverage(count, found, ordered) >= 0.95
    rank = ordered.index(found.low)
    narrower = Interval(found.median, ordered[rank + 1], ordered[count - rank - 2], count)
    assert coverage(count, narrower, ordered) < 0.95


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_bound_nothing(count: int) -> None:
    found = interval([1.0] * count)
    assert (found.low, found.high) == (0.0, math.inf) and found.median == 1


def test_an_interval_covers_the_median_of_any_noise() -> None:
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        found = interval(list(random.exponential(1.0, 15)))
        covered += found.low <= math.log(2) <= found.high
    assert covered >= 0.93 * 400


# --- what is picked


def landscape(random: np.random.Generator, count: int) -> list[float]:
    """Costs as tuning meets them: several close to the best, a long tail."""
    return list(LEAST_SECONDS * (1 + random.exponential(0.25, count)))


@pytest.mark.parametrize("count", [2, 7, 24, 96])
def test_the_pick_is_within_2_percent_of_the_best(count: int) -> None:
    runs, wrong, samples, seeds = 150 if count < 96 else 40, 0, 0, np.random.default_rng(count)
    for seed in range(runs):
        fake = Fake(landscape(seeds, count), seed, noise=0.015)
        outcome = run(fake)
        assert outcome.best is not None
        wrong += fake.costs[outcome.best] > 1.02 * min(fake.costs)
        samples += outcome.samples
    assert wrong <= 0.01 * runs
    exhaustive = runs * count * searching.FINAL_ROUNDS
    if count >= 24:
        assert samples < 0.5 * exhaustive


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 20), st.floats(1.25, 20))
def test_a_slow_one_never_wins(seed: int, count: int, times: float) -> None:
    """Not even when outliers hit the fast ones' first runs."""
    costs = [LEAST_SECONDS * times] * count
    fast = seed % count
    costs[fast] = LEAST_SECONDS
    fake = Fake(costs, seed, noise=0.02, outliers=0.1, cold=6)
    assert run(fake).best == fast


def test_equal_candidates_go_to_the_preferred() -> None:
    costs = [LEAST_SECONDS * x for x in (1.0, 1.5, 1.0, 1.0)]
    outcome = run(Fake(costs, noise=0.002), prefer=lambda c: -c)
    assert outcome.best == 3 and set(outcome.tied) == {0, 2}
    assert run(Fake(costs, noise=0.002)).best == 0


def test_the_same_measurements_give_the_same_outcome() -> None:
    costs = landscape(np.random.default_rng(3), 12)
    first, second = run(Fake(costs, 7)), run(Fake(costs, 7))
    assert (first.best, first.measured) == (second.best, second.measured)


def test_the_hopeless_are_sampled_never_and_the_slow_seldom() -> None:
    costs = [1e-3, 1.01e-3, 1e-3 * 100, *[2e-3] * 9]
    fake = Fake(costs, noise=0.005)
    outcome = run(fake)
    assert outcome.best in (0, 1)
    assert "times the best's" in outcome.dropped[2] and 2 not in outcome.measured
    sampled = [c for call in fake.calls for c in call]
    assert 2 not in sampled and max(map(sampled.count, range(3, 12))) < sampled.count(0)


def test_a_cold_first_run_of_microseconds_drops_nobody() -> None:
    class ColdFirst(Fake):
        def trial(self, candidate: int) -> Trial:
            return Trial(500e-6 if candidate == 0 else 6e-6, candidate)

    outcome = run(ColdFirst([5e-6, 6e-6, 7e-6]))
    assert outcome.best == 0 and not outcome.dropped


def test_the_finals_may_overturn_the_halving() -> None:
    """Among many, one config is flattered; in pairs it is not."""

    class Flattered(Fake):
        def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
            taken = super().sample(candidates, rounds)
            if len(candidates) > 2 and 0 in taken:
                taken[0] = [0.93 * seconds for seconds in taken[0]]
            return taken

    outcome = run(Flattered([1.05e-4, 1e-4, 1.04e-4], noise=0.05))
    assert outcome.best == 1 and not outcome.tied


# --- outputs


def test_with_a_reference_every_wrong_one_is_out() -> None:
    fake = Fake([4e-4, 1e-4, 2e-4, 1e-4], outputs="axbx", reference="a")
    outcome = run(fake, reference=True)
    assert outcome.best == 0 and outcome.failed.keys() == {1, 2, 3}
    assert outcome.failed[2] == "wrong output: C[0] is b, expected a"


@pytest.mark.parametrize("order", ["aabx", "xaab", "bxaa"])
def test_without_one_the_largest_group_stays(order: str) -> None:
    """Even if those of another are faster."""
    fake = Fake([{"a": 4e-4, "b": 1e-4, "x": 1e-5}[o] for o in order], outputs=order)
    outcome = run(fake)
    assert outcome.best is not None and order[outcome.best] == "a"
    assert {order[c] for c in outcome.failed} == {"b", "x"}
    assert "its output is not that of 2 other configs: C[0] is" in min(outcome.failed.values())


def test_a_tie_between_outputs_asks_for_a_reference() -> None:
    with pytest.raises(TileError) as caught:
        run(Fake([1e-4] * 5, outputs="abbax"))
    assert caught.value.codes == ("tune/outputs-differ",)
    message = str(caught.value)
    assert "2 groups of 2" in message and "(#0, #3; #1, #2)" in message and "reference=" in message


# --- failures


def test_failures_keep_their_reason() -> None:
    fake = Fake([1e-4, 2e-4, 2.01e-4], broken={0: "ran past 10 s"}, breaks_at={1: 1})
    outcome = run(fake)
    assert outcome.best == 2
    assert outcome.failed == {0: "ran past 10 s", 1: "an illegal address"}


@pytest.mark.parametrize("survives", range(4))
def test_one_that_breaks_at_any_time_leaves_the_others(survives: int) -> None:
    fake = Fake([1e-4, 1.01e-4, 1.02e-4], noise=0.03, breaks_at={0: survives})
    outcome = run(fake)
    assert outcome.best in (1, 2) and outcome.failed == {0: "an illegal address"}
    assert 0 not in outcome.measured


def test_none_left() -> None:
    outcome = run(Fake([1e-4, 1e-4], broken={0: "spills", 1: "hangs"}))
    assert outcome.best is None and outcome.failed == {0: "spills", 1: "hangs"}


def test_one_alone_is_measured_too() -> None:
    outcome = run(Fake([1e-4]))
    assert outcome.best == 0 and outcome.measured[0].samples == searching.FIRST_ROUNDS


# --- arrivals, budget, progress


class Watched(Fake):
    """Says when it first sampled, so that what still compiles can wait for that."""

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        self.sampled.set()
        return super().sample(candidates, rounds)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sampled = threading.Event()


def run_late(fake: Watched) -> searching.Outcome:
    """The last candidate compiles until a heat of the others has taken place."""
    arrivals: searching.Arrivals = queue.SimpleQueue()
    count = len(fake.costs)

    def compile_() -> None:
        for candidate in range(count - 1):
            arrivals.put(candidate)
        if fake.sampled.wait(30):
            arrivals.put(count - 1)
        arrivals.put(None)

    thread = threading.Thread(target=compile_)
    thread.start()
    outcome = search(fake, arrivals, count)
    thread.join()
    return outcome


def test_what_is_ready_is_benchmarked_while_the_rest_compiles() -> None:
    fake = Watched([2e-4, 3e-4, 1e-4], noise=0.005)
    outcome = run_late(fake)
    assert outcome.best == 2 and set(fake.calls[0]) == {0, 1}
    assert outcome.measured.keys() == {0, 1, 2}


def test_a_heat_compares_only_what_agrees() -> None:
    """Wrong configs that do nothing must not drive the right ones out before they are found out."""
    outcome = run_late(Watched([1e-6, 1e-6, 1e-4, 1e-4, 3e-4], outputs="xyaaa"))
    assert outcome.best in (2, 3) and outcome.failed.keys() == {0, 1}


def test_a_budget_ends_the_search_with_the_best_so_far() -> None:
    now = 0.0

    class Slow(Fake):
        def trial(self, candidate: int) -> Trial:
            nonlocal now
            now += 1
            return super().trial(candidate)

    outcome = run(Slow([3e-4, 1e-4, 2e-4, 1e-5], cold=1), budget_s=2.5, clock=lambda: now)
    assert outcome.best == 1
    assert outcome.unmeasured.keys() == {0, 2, 3} and "budget" in outcome.unmeasured[3]
    assert outcome.seconds == 3


def test_a_budget_of_nothing_still_runs_one() -> None:
    outcome = run(Fake([1e-4, 1e-4], broken={0: "spills"}), budget_s=0.0)
    assert outcome.best == 1


def test_progress_tells_stage_and_best() -> None:
    told: list[Progress] = []
    outcome = run(Fake([3e-4, 1e-4, 2e-4]), progress=told.append)
    trials = [p for p in told if p.stage == "trials"]
    assert [(p.done, p.total) for p in trials] == [(1, 3), (2, 3), (3, 3)]
    assert told[-1].best == outcome.best
    assert told[-1].best_seconds == pytest.approx(1e-4, rel=0.2)


# --- everyone


def test_an_exhaustive_search_samples_all_as_often() -> None:
    costs = [1e-3, 1.02e-3, 1e-1, *[2e-3] * 9]
    fake = Fake(costs, noise=0.005)
    outcome = run(fake, exhaustive=True)
    assert outcome.best == 0 and not outcome.dropped and set(outcome.measured) == set(range(12))
    assert {known.samples for known in outcome.measured.values()} == {searching.FINAL_ROUNDS}
    assert set(fake.calls) == {tuple(range(12))}


def test_an_exhaustive_search_ends_with_its_budget_and_without_what_breaks() -> None:
    ticks = iter(range(100))
    fake = Fake([1e-4, 1.1e-4, 1.2e-4], breaks_at={0: 1})
    outcome = run(fake, exhaustive=True, budget_s=8.0, clock=lambda: next(ticks))
    assert outcome.best == 1 and outcome.failed == {0: "an illegal address"}
    assert outcome.measured[1].samples < searching.FINAL_ROUNDS
    nobody = run(Fake([1e-4], broken={0: "hangs"}), exhaustive=True)
    assert nobody.best is None
