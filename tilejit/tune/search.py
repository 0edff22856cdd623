"""Which of many configs is the fastest: trials, halving, finals. What measures is somebody else's.

1. *Trial.* Every candidate runs once on fresh copies as soon as it is compiled, while others compile; its outputs
   are compared with the reference's or, without one, with each other: the largest group that agrees stays.
   While nothing new is ready, what has had its trial is sampled together with the best whose outputs agree
   with its own (a *heat*), and who is clearly slower goes. At the end so does what took ``HOPELESS`` times as
   long as the best and too long to be sampled often.
2. *Halving.* All that are left are sampled in interleaved rounds. After each the worse half by median goes, but
   for those whose 95 % interval touches the best's, until ``FINALISTS`` are left or ``HALVINGS`` were done.
   ``exhaustive``: nobody goes, all are sampled as often as finalists may be, and the finals are left out.
3. *Finals.* The best meets each other finalist in interleaved pairs, until the interval of the median ratio does
   not hold 1, is narrower than ``TIE``, or ``FINAL_ROUNDS`` were spent. A tie goes to the candidate that
   ``prefer`` puts first.

Samples that were not taken in one call are never compared: clocks drift. Intervals are order statistics
(``interval``): they suppose nothing about the noise. What a candidate fails with is kept, the others go on.

Not here: measuring (``bench``, ``isolated``), compiling (``autotune``), several ranks (``ranks``).
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, Protocol, TypeAlias

from tilejit.errors import TileError, TuneError, fault

CONFIDENCE = 0.95
HOPELESS = 8.0
HOPELESS_SECONDS = 1e-3
"""A first run so many times slower than the best's, and this long, is no noise of a cold start."""
FIRST_ROUNDS = 6
"""The least number of samples whose range is a 95 % interval of the median."""
FINALISTS = 4
HALVINGS = 4
FINAL_STEP_ROUNDS = 10
FINAL_ROUNDS = 60
TIE = 0.01
"""Two candidates whose median ratio is known to lie within this width around 1 are equally fast."""

Stage: TypeAlias = Literal["trials", "halving", "finals"]


class ConfigFailed(Exception):
    """This candidate is out, for this reason; the others go on."""

    def __init__(self, reason: str, candidate: int):
        super().__init__(f"candidate {candidate}: {reason}")
        self.reason = reason
        self.candidate = candidate


@dataclass(frozen=True, slots=True)
class Trial:
    """A first run. ``outputs`` is the measurer's, and what its ``differs`` compares."""

    seconds: float
    outputs: Any


class Measure(Protocol):
    """What runs candidates. They are numbers: positions in the list of configs."""

    def add(self, candidate: int, variant: Any) -> None:
        """Hands over a compiled candidate, before its trial, from any thread."""

    def trial(self, candidate: int) -> Trial:
        """One run on fresh copies of the arguments, pure outputs poisoned. Raises ``ConfigFailed``."""

    def differs(self, candidate: int, other: int | None) -> str | None:
        """How the trial's outputs differ from ``other``'s, or from the reference's (None); None: they agree."""

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        """Seconds per call of each candidate in each round, interleaved. Raises ``ConfigFailed`` when one of them fails."""

    def close(self) -> None:
        """Gives back what it holds."""


# --- statistics


@dataclass(frozen=True, slots=True)
class Interval:
    """The median of ``samples`` numbers, and where the true one lies with at least 95 % confidence."""

    median: float
    low: float
    high: float
    samples: int

    def touches(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high

    @property
    def plus_minus(self) -> float:
        """The larger distance from the median to an end."""
        return max(self.high - self.median, self.median - self.low)


def interval(samples: Sequence[float]) -> Interval:
    """By order statistics: between the k-th smallest and the k-th largest, with the largest k for which a
    binomial of one half leaves no more than 5 % outside. Fewer than 6 samples bound nothing."""
    ordered = sorted(samples)
    count = len(ordered)
    half = count // 2
    middle = ordered[half] if count % 2 else (ordered[half - 1] + ordered[half]) / 2
    rank = _rank(count)
    if rank == 0:
        return Interval(middle, 0.0, math.inf, count)
    return Interval(middle, ordered[rank - 1], ordered[count - rank], count)


@lru_cache(maxsize=1024)
def _rank(count: int) -> int:
    """The largest k with P(Binomial(count, 1/2) < k) ≤ 2.5 %."""
    outside = (1 - CONFIDENCE) / 2 * 2**count
    below, rank = 0, 0
    while below + math.comb(count, rank) <= outside:
        below += math.comb(count, rank)
        rank += 1
    return rank


# --- what comes out


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress bar shows. ``best_seconds``: per call, or of the first run while there is only that."""

    stage: Stage
    done: int
    total: int
    best: int | None
    best_seconds: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """``best`` is None when every candidate failed. ``measured``: seconds per call; a candidate that was dropped
    has the samples it was dropped by. ``dropped``: after its first run, with the reason. ``tied``: finalists
    that are as fast as the best as far as was measured."""

    best: int | None
    measured: dict[int, Interval]
    failed: dict[int, str]
    dropped: dict[int, str]
    unmeasured: dict[int, str]
    tied: tuple[int, ...]
    trials: int
    samples: int
    seconds: float


Arrivals: TypeAlias = "queue.SimpleQueue[int | None]"
"""Candidates as they become ready; None ends them."""


def arrived(candidates: Sequence[int]) -> Arrivals:
    """A queue in which all of them are ready."""
    ready: Arrivals = queue.SimpleQueue()
    for candidate in candidates:
        ready.put(candidate)
    ready.put(None)
    return ready


def search(
    measure: Measure,
    arrivals: Arrivals,
    total: int,
    *,
    reference: bool = False,
    prefer: Callable[[int], Any] = lambda candidate: candidate,
    budget_s: float | None = None,
    exhaustive: bool = False,
    progress: Callable[[Progress], None] = lambda progress: None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """The fastest of ``total`` candidates that arrive.

    ``reference``: the measurer has right outputs to compare with. ``prefer``: sorts candidates that are equally
    fast. ``budget_s``: after so many seconds the best so far is taken, as soon as there is one.
    ``exhaustive``: none is dropped for being slow, and all are sampled ``FINAL_ROUNDS`` times. Raises
    ``TuneError`` (``tune/outputs-differ``) when no group of agreeing outputs is the largest.
    """
    return _Search(
        measure, arrivals, total, reference, prefer, budget_s, exhaustive, progress, clock
    ).run()


@dataclass(slots=True)
class _Search:
    measure: Measure
    arrivals: Arrivals
    total: int
    reference: bool
    prefer: Callable[[int], Any]
    budget_s: float | None
    exhaustive: bool
    progress: Callable[[Progress], None]
    clock: Callable[[], float]
    start: float = 0.0
    alive: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    """Had a trial and no heat yet."""
    first_run: dict[int, float] = field(default_factory=dict)
    groups: list[list[int]] = field(default_factory=list)
    """Candidates whose outputs agree with the first of their group's."""
    samples: dict[int, list[float]] = field(default_factory=dict)
    """Of the halving and the finals; of the heat, for those that have no others."""
    failed: dict[int, str] = field(default_factory=dict)
    dropped: dict[int, str] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    taken: int = 0

    def run(self) -> Outcome:
        self.start = self.clock()
        self._trials()
        self._keep_largest_group()
        if self.exhaustive:
            best, tied = self._everyone()
        else:
            self._drop_hopeless()
            self._halving()
            best, tied = self._finals()
        return self._outcome(best, tied)

    def _outcome(self, best: int | None, tied: tuple[int, ...]) -> Outcome:
        out = self.failed.keys() | self.dropped.keys()
        measured = {c: interval(s) for c, s in self.samples.items() if s and c not in out}
        left = {
            c: "the time budget was used up before it was measured"
            for c in sorted(self.seen - out - measured.keys())
            if c != best
        }
        return Outcome(
            best, measured, self.failed, self.dropped, left, tied,
            len(self.first_run), self.taken, self.clock() - self.start,
        )  # fmt: skip

    def _spent(self) -> bool:
        """Is the budget used up? Not before something has run."""
        return self._left_s() == 0 and bool(self.alive)

    def _left_s(self) -> float | None:
        if self.budget_s is None:
            return None
        return max(0.0, self.budget_s - (self.clock() - self.start))

    def _tell(self, stage: Stage, done: int, total: int) -> None:
        best = min(self.alive, key=self._speed, default=None)
        seconds = None if best is None else self._speed(best)[1]
        self.progress(Progress(stage, done, total, best, seconds))

    def _speed(self, candidate: int) -> tuple[bool, float]:
        """Sorts candidates: those with samples before those with a first run only."""
        known = self.samples.get(candidate)
        if known:
            return False, interval(known).median
        return True, self.first_run[candidate]

    def _fail(self, candidate: int, reason: str) -> None:
        self.failed[candidate] = reason
        self._remove(candidate)

    def _remove(self, candidate: int) -> None:
        for some in (self.alive, self.fresh, *self.groups):
            if candidate in some:
                some.remove(candidate)

    # --- trials

    def _trials(self) -> None:
        while not self._spent():
            candidate = self._next()
            if candidate is None:
                break
            self._trial(candidate)
            self._tell("trials", len(self.seen), self.total)
        self._drain()

    def _next(self) -> int | None:
        """The next candidate; heats take place until there is one. None: there are no more."""
        while True:
            try:
                candidate = self.arrivals.get_nowait()
            except queue.Empty:
                if not self.exhaustive and self._heat():
                    continue
                try:
                    left = self._left_s() if self.alive else None
                    candidate = self.arrivals.get(timeout=left)
                except queue.Empty:
                    return None
            if candidate is not None:
                self.seen.add(candidate)
            return candidate

    def _drain(self) -> None:
        """Candidates that became ready too late are known by name."""
        while True:
            try:
                candidate = self.arrivals.get_nowait()
            except queue.Empty:
                return
            if candidate is not None:
                self.seen.add(candidate)

    def _trial(self, candidate: int) -> None:
        try:
            trial = self.measure.trial(candidate)
            self.first_run[candidate] = trial.seconds
            self._compare(candidate)
        except ConfigFailed as failure:
            self._fail(failure.candidate, failure.reason)

    def _compare(self, candidate: int) -> None:
        """Finds the candidate's group; the largest are tried first."""
        if self.reference:
            difference = self.measure.differs(candidate, None)
            if difference is not None:
                raise ConfigFailed(f"wrong output: {difference}", candidate)
        else:
            self._join_group(candidate)
        self.alive.append(candidate)
        self.fresh.append(candidate)

    def _join_group(self, candidate: int) -> None:
        for group in sorted(filter(None, self.groups), key=len, reverse=True):
            if self.measure.differs(candidate, group[0]) is None:
                group.append(candidate)
                return
        self.groups.append([candidate])

    def _drop_hopeless(self) -> None:
        least = min((self.first_run[c] for c in self.alive), default=0.0)
        for candidate in [c for c in self.alive if not self.samples.get(c)]:
            seconds = self.first_run[candidate]
            if seconds > HOPELESS_SECONDS and seconds > HOPELESS * least:
                times = f"{seconds / least:.1f} times" if least else "longer than"
                self.dropped[candidate] = f"its first run took {times} the best's"
                self._retire(candidate)

    def _heat(self) -> bool:
        """Samples what had a trial, beside the best of the same outputs, and drops what is clearly slower.
        False: there is nothing to compare. Outputs that may turn out wrong drop no others."""
        for group in self.groups if not self.reference else [self.alive]:
            alive = [c for c in group if c in self.alive]
            new = [c for c in alive if c in self.fresh]
            if not new or len(alive) < 2:
                continue
            best = min(alive, key=self._speed)
            self.fresh = [c for c in self.fresh if c not in new]
            taken = self._sample([best, *(c for c in new if c != best)], FIRST_ROUNDS)
            self.samples.update(taken)
            self._drop_slower(taken)
            return True
        return False

    def _drop_slower(self, taken: dict[int, list[float]]) -> None:
        """Of one call's candidates the worse half goes, but for those whose interval touches the best's."""
        known = {c: interval(s) for c, s in taken.items() if c in self.alive}
        ordered = sorted(known, key=lambda c: (known[c].median, c))
        for position, candidate in enumerate(ordered):
            if 2 * position >= len(ordered) and not known[candidate].touches(known[ordered[0]]):
                self._retire(candidate)

    def _retire(self, candidate: int) -> None:
        """Out of the race; its outputs still count for its group."""
        for some in (self.alive, self.fresh):
            if candidate in some:
                some.remove(candidate)

    # --- outputs

    def _keep_largest_group(self) -> None:
        groups = sorted(filter(None, self.groups), key=len, reverse=True)
        if len(groups) < 2:
            return
        if len(groups[0]) == len(groups[1]):
            raise self._outputs_differ(groups)
        for group in groups[1:]:
            first = group[0]
            difference = self.measure.differs(first, groups[0][0])
            for candidate in list(group):
                self.dropped.pop(candidate, None)
                self._fail(
                    candidate,
                    f"its output is not that of {len(groups[0])} other configs: {difference}",
                )

    def _outputs_differ(self, groups: list[list[int]]) -> TileError:
        size = len(groups[0])
        tied = [g for g in groups if len(g) == size]
        difference = self.measure.differs(tied[1][0], tied[0][0])
        named = "; ".join(", ".join(f"#{c}" for c in sorted(group)) for group in tied)
        return fault(
            TuneError,
            "tune/outputs-differ",
            f"configs give different outputs and none are in the majority: {len(tied)} groups of {size} "
            f"agree within themselves ({named}); {difference}",
            help="give reference=: a function of the same arguments that returns, or writes, the right outputs",
        )

    # --- halving

    def _halving(self) -> None:
        rounds, common = FIRST_ROUNDS, dict[int, list[float]]()
        for turn in range(HALVINGS):
            if len(self.alive) < 2 or (turn and len(self.alive) <= FINALISTS) or self._spent():
                break
            for candidate, samples in self._sample(list(self.alive), rounds).items():
                common.setdefault(candidate, []).extend(samples)
                self.samples[candidate] = common[candidate]
            self._drop_slower({c: common[c] for c in self.alive})
            self._tell("halving", turn + 1, HALVINGS)
            rounds += FIRST_ROUNDS // 2

    def _sample(self, candidates: list[int], rounds: int) -> dict[int, list[float]]:
        """Samples of those that do not fail."""
        while candidates:
            try:
                taken = self.measure.sample(candidates, rounds)
            except ConfigFailed as failure:
                self._fail(failure.candidate, failure.reason)
                candidates = [c for c in candidates if c != failure.candidate]
                continue
            self.taken += sum(map(len, taken.values()))
            return taken
        return {}

    # --- everyone

    def _everyone(self) -> tuple[int | None, tuple[int, ...]]:
        """The least median of all, in rounds that all took part in, and who is within ``TIE`` of it."""
        steps = FINAL_ROUNDS // FINAL_STEP_ROUNDS
        for step in range(steps):
            if self._spent() and step:
                break
            for candidate, samples in self._sample(list(self.alive), FINAL_STEP_ROUNDS).items():
                self.samples.setdefault(candidate, []).extend(samples)
            self._tell("halving", step + 1, steps)
        medians = {c: interval(self.samples[c]).median for c in self.alive if self.samples.get(c)}
        if not medians:
            return None, ()
        least = min(medians.values())
        close = [c for c, median in medians.items() if median < (1 + TIE) * least]
        chosen = min(close, key=self.prefer)
        return chosen, tuple(c for c in close if c != chosen)

    # --- finals

    def _finals(self) -> tuple[int | None, tuple[int, ...]]:
        """The winner and who ties with it. When a finalist fails the finals begin again without it."""
        finalists = sorted(self.alive, key=lambda c: (*self._speed(c), c))[:FINALISTS]
        if not finalists:
            return None, ()
        best, *others = finalists
        if not others and not self.samples.get(best) and not self._spent():
            self.samples.update(self._sample([best], FIRST_ROUNDS))
        tied: list[int] = []
        for position, other in enumerate(others):
            verdict = self._duel(best, other)
            if verdict == "tie":
                tied.append(other)
            elif verdict == "slower":
                best, tied = other, []
            if best not in self.alive or other not in self.alive:
                break
            self._tell("finals", position + 1, len(others))
        if any(c not in self.alive for c in finalists):
            return self._finals()
        chosen = min([best, *tied], key=self.prefer)
        return chosen, tuple(c for c in (best, *tied) if c != chosen)

    def _duel(self, best: int, other: int) -> Literal["faster", "slower", "tie"]:
        """Is ``best`` faster than ``other``? By the median of their ratios in each round."""
        ratios: list[float] = []
        while len(ratios) < FINAL_ROUNDS and not self._spent():
            taken = self._sample([best, other], FINAL_STEP_ROUNDS)
            if len(taken) < 2:
                break
            for candidate, samples in taken.items():
                self.samples.setdefault(candidate, []).extend(samples)
            ratios += [b / a for a, b in zip(taken[best], taken[other])]
            known = interval(ratios)
            if known.low > 1:
                return "faster"
            if known.high < 1:
                return "slower"
            if known.high - known.low < TIE:
                return "tie"
        return self._undecided(best, other, ratios)

    def _undecided(
        self, best: int, other: int, ratios: list[float]
    ) -> Literal["faster", "slower", "tie"]:
        """What is closer than ``TIE`` is a tie, else the median says it."""
        known = interval(ratios).median if ratios else None
        if known is None:
            mine, others = self.samples.get(best), self.samples.get(other)
            if not mine or not others:
                return "faster"
            known = interval(others).median / interval(mine).median
        if abs(known - 1) < TIE:
            return "tie"
        return "faster" if known > 1 else "slower"
