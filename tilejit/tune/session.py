"""One tuning of one call: from its configs to a report.

Every config is lowered and checked, in order; each that may work is compiled beside that. When all are
checked it is known which tensors may be written, and the search begins with what is compiled by then.
Without a GPU the same candidates are compiled and ranked by the model.
Not here: when a tuning takes place and what becomes of its result (``autotune``).
"""

from __future__ import annotations

import datetime
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilejit import ScalarArg, TensorArg
from tilejit.dtypes import DType
from tilejit.errors import TileError, TuneError, fault
from tilejit.runtime import hostexpr
from tilejit.runtime import plan as plans
from tilejit.runtime.variant import Variant
from tilejit.tune import compiling, model
from tilejit.tune.config import Config
from tilejit.tune.key import Bucket, Key
from tilejit.tune.progress import shown
from tilejit.tune.prune import Call, Candidate, Heuristics, Prune, Pruning, reason_of
from tilejit.tune.report import Report, Row, Uses
from tilejit.tune.search import Arrivals, Outcome, Progress, search

if TYPE_CHECKING:
    from tilejit.tune.measuring import Measurement


@dataclass(frozen=True)
class Settings:
    """The options of ``tile.autotune`` beside the configs."""

    key: tuple[str, ...] = ()
    prune: Prune | None = None
    heuristics: Heuristics = field(default_factory=dict)
    bucket: Bucket | None = None
    reference: Callable[..., Any] | None = None
    tolerance: float | None = None
    timeout_s: float | None = 10.0
    budget_s: float | None = None
    group: Any = None
    progress: bool | None = None
    store: bool = True


@dataclass(frozen=True)
class Task:
    """A call that is to be tuned."""

    call: Call
    key: Key
    configs: tuple[Config, ...]
    heuristics: Heuristics
    settings: Settings

    def pruning(self, share: Container[int]) -> Pruning:
        return Pruning(
            self.call, self.configs, self.heuristics, self.settings.prune, share.__contains__
        )


# --- compiling


class _Compilation:
    """Candidates being compiled, on their way to what measures them: ``arrivals`` are the numbers of those that
    it has been given, then None."""

    def __init__(self) -> None:
        self.arrivals: Arrivals = queue.SimpleQueue()
        self.candidates: dict[int, Candidate] = {}
        self.failed: dict[int, str] = {}
        self.compiled: list[int] = []
        self.seconds = 0.0
        self._start = time.monotonic()
        self._lock = threading.Lock()
        self._measure: Measurement | None = None
        self._submitted: int | None = None

    def submit(self, pruning: Pruning, executor: Executor) -> None:
        """Checks all configs and has those compiled that may work."""
        compiling.compile_all(
            self._noted(pruning), executor, ready=self._ready, failed=self._failed
        )
        with self._lock:
            self._submitted = len(self.candidates)

    def _noted(self, pruning: Pruning) -> Iterator[tuple[int, Variant]]:
        for candidate in pruning.candidates():
            self.candidates[candidate.number] = candidate
            yield candidate.number, candidate.variant

    def feed(self, measure: Measurement) -> None:
        """Gives it all that is ready, and from now on each that becomes ready."""
        with self._lock:
            self._measure = measure
            for number in self.compiled:
                self._hand_over(number)
            self._end()

    def _ready(self, number: int, _variant: Variant) -> None:
        with self._lock:
            self.seconds = time.monotonic() - self._start
            self.compiled.append(number)
            self._hand_over(number)
            self._end()

    def _failed(self, number: int, reason: str) -> None:
        with self._lock:
            self.failed[number] = reason
            self._end()

    def _hand_over(self, number: int) -> None:
        if self._measure is not None:
            candidate = self.candidates[number]
            self._measure.add(number, candidate.variant, candidate.grid)
            self.arrivals.put(number)

    def _end(self) -> None:
        over = len(self.compiled) + len(self.failed) == self._submitted
        if over and self._measure is not None:
            self.arrivals.put(None)


@contextmanager
def _compiled(
    task: Task, share: Container[int]
) -> Iterator[tuple[_Compilation, Pruning, Executor]]:
    """The candidates, all checked; leaving waits for what is being compiled and drops what is not begun."""
    compilation, pruning = _Compilation(), task.pruning(share)
    executor = compiling.threads()
    try:
        compilation.submit(pruning, executor)
        yield compilation, pruning, executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


# --- with a GPU


def measured(task: Task, share: Sequence[int]) -> Report:
    """The report of a search among the configs at the positions of ``share``; ``chosen`` is None when none works."""
    start = time.monotonic()
    kernel, labels = task.call.kernel.__name__, lambda n: repr(task.configs[n])
    with (
        shown(task.settings.progress, kernel, labels) as show,
        _compiled(task, share) as (compilation, pruning, _),
    ):
        if not compilation.candidates:
            return _report(task, share, compilation, pruning, _NOTHING_RAN, ())
        measure = _measure(task, [c.variant for c in compilation.candidates.values()])
        try:
            compilation.feed(measure)
            outcome = _searched(task, compilation, measure, time.monotonic() - start, show)
            notes = measure.notes
        finally:
            measure.close()
    return _report(task, share, compilation, pruning, outcome, notes)


def _searched(
    task: Task,
    compilation: _Compilation,
    measure: Measurement,
    spent_s: float,
    show: Callable[[Progress], None],
) -> Outcome:
    budget_s = task.settings.budget_s
    return search(
        measure,
        compilation.arrivals,
        len(compilation.candidates),
        reference=task.settings.reference is not None,
        prefer=lambda number: _appetite(compilation.candidates[number]),
        budget_s=None if budget_s is None else max(0.0, budget_s - spent_s),
        progress=show,
    )


_NOTHING_RAN = Outcome(None, {}, {}, {}, {}, (), 0, 0, 0.0)


def _measure(task: Task, variants: Sequence[Variant]) -> Measurement:
    from tilejit.tune import measuring  # with torch, which decorating a kernel does not need

    call, settings = task.call, task.settings
    return measuring.measure(
        [p.name for p in call.kernel.params],
        call.values,
        device=call.device,
        written=frozenset[str]().union(*(v.written for v in variants)),
        read=frozenset[str]().union(*(v.read for v in variants)),
        follows_addresses=any(v.follows_addresses for v in variants),
        reference=settings.reference,
        tolerance=settings.tolerance,
        timeout_s=settings.timeout_s,
    )


def _appetite(candidate: Candidate) -> tuple[int, int, int]:
    """Sorts configs that are equally fast: who leaves more of an SM to others goes first, then the earlier."""
    stats = candidate.variant.stats
    return stats.shared_bytes, stats.registers * stats.threads, candidate.number


def _report(
    task: Task,
    share: Container[int],
    compilation: _Compilation,
    pruning: Pruning,
    outcome: Outcome,
    notes: Sequence[str],
) -> Report:
    failed = {**compilation.failed, **outcome.failed}
    rows = []
    for number, config in enumerate(task.configs):
        candidate = compilation.candidates.get(number)
        uses = _uses(candidate) if number in compilation.compiled and candidate else None
        row = _row(number, config, pruning.reasons, failed, outcome, uses)
        rows.append(row if number in share else Row(repr(config), "not measured", _OTHER_RANK))
    chosen = None if outcome.best is None else compilation.candidates[outcome.best].variant
    warned = () if chosen is None else chosen.warnings
    return Report(
        kernel=task.key.facts["kernel"],
        key=task.key.facts,
        device=task.key.device,
        source="measured",
        rows=tuple(rows),
        chosen=outcome.best,
        tied=outcome.tied,
        compile_seconds=compilation.seconds,
        measure_seconds=outcome.seconds,
        compiled=len(compilation.compiled),
        benchmarked=outcome.trials,
        date=_now(),
        notes=(*notes, *(f"the compiler, of the chosen config: {w.message}" for w in warned)),
    )


_OTHER_RANK = "left to another rank"


def _row(
    number: int,
    config: Config,
    pruned: Mapping[int, str],
    failed: Mapping[int, str],
    outcome: Outcome,
    uses: Uses | None,
) -> Row:
    label = repr(config)
    if number in pruned:
        return Row(label, "pruned", pruned[number])
    if number in failed:
        return Row(label, "failed", failed[number], uses=uses)
    if number in outcome.dropped:
        return Row(label, "dropped", outcome.dropped[number], uses=uses)
    found = outcome.measured.get(number)
    if found is None:
        why = outcome.unmeasured.get(number, "the time budget was used up before it was compiled")
        return Row(label, "not measured", why, uses=uses)
    return Row(label, "measured", seconds=found, uses=uses)


def _uses(candidate: Candidate) -> Uses:
    stats = candidate.variant.stats
    return Uses(stats.registers, stats.spill_bytes, stats.shared_bytes, stats.occupancy)


def _now() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


# --- without


def estimated(task: Task, share: Container[int]) -> Report:
    """The model's ranking of the configs at the positions of ``share``."""
    with _compiled(task, share) as (compilation, pruning, executor):
        executor.shutdown(wait=True)
        rows = tuple(
            _estimated_row(task, number, config, compilation, pruning)
            if number in share
            else Row(repr(config), "not measured", _OTHER_RANK)
            for number, config in enumerate(task.configs)
        )
    costs = {n: row.estimate.cost for n, row in enumerate(rows) if row.estimate is not None}
    order = sorted(costs, key=lambda n: (costs[n], _appetite(compilation.candidates[n])))
    return Report(
        kernel=task.key.facts["kernel"],
        key=task.key.facts,
        device=f"{task.call.target} (no GPU)",
        source="estimated by the model",
        rows=rows,
        chosen=order[0] if order else None,
        compile_seconds=compilation.seconds,
        compiled=len(compilation.compiled),
        date=_now(),
    )


def _estimated_row(
    task: Task, number: int, config: Config, compilation: _Compilation, pruning: Pruning
) -> Row:
    label = repr(config)
    if number in pruning.reasons:
        return Row(label, "pruned", pruning.reasons[number])
    if number in compilation.failed:
        return Row(label, "failed", compilation.failed[number])
    candidate = compilation.candidates[number]
    try:
        scalars, grid = _launch(task.call, candidate)
    except TileError as error:
        return Row(label, "failed", reason_of(error), uses=_uses(candidate))
    estimate = model.estimate(candidate.variant, scalars, grid)
    return Row(label, "estimated", uses=_uses(candidate), estimate=estimate)


def _launch(call: Call, candidate: Candidate) -> tuple[dict[str, Any], tuple[int, int, int]]:
    """The launch's numbers by the kernel's names, and its grid."""
    names = [p.name for p in call.kernel.params]
    values = [_Sizes.of(n, candidate.applied.keywords.get(n)) for n in names]
    known = [
        p
        for p in plans.launch_params(candidate.variant.function, names)
        if not isinstance(values[p.arg], ScalarArg | DType)
    ]
    scalars = plans.by_name(known, values)[1]
    exprs = candidate.variant.function.launch.grid
    if candidate.grid is not None:
        return scalars, candidate.grid
    if exprs is None:
        raise fault(
            TuneError, "tune/no-grid", f"{call.kernel.__name__} does not say its grid",
            help="tune k[grid]",
        )  # fmt: skip
    missing = next((n for e in exprs for n in hostexpr.variables(e) if n not in scalars), None)
    if missing is not None:
        raise _unknown(missing)
    return scalars, plans.evaluate_grid(exprs, scalars)


@dataclass(frozen=True)
class _Sizes:
    """A tensor that is only described, as far as a launch looks at it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def stride(self) -> tuple[int, ...]:
        return self.strides

    @staticmethod
    def of(name: str, value: Any) -> Any:
        """A described tensor with its sizes; any other value as it is."""
        if not isinstance(value, TensorArg):
            return value
        if None in value.shape or None in value.strides:
            raise _unknown(name)
        return _Sizes(
            tuple(int(n) for n in value.shape if n is not None),
            tuple(int(s) for s in value.strides if s is not None),
        )


def _unknown(name: str) -> TileError:
    return fault(
        TuneError,
        "tune/unknown-size",
        f"{name!r} has a size or value that is not known, and the model needs the whole launch",
        help="describe it with all its sizes, TensorArg(dtype, (4096, 64), (64, 1), 16), or pass a tensor",
    )


# --- nothing works


def none_left(call: Call, configs: Sequence[Config], reasons: Mapping[int, str]) -> TileError:
    """Every config with its reason."""
    lines = [f"({configs[n]!r}): {reason}" for n, reason in sorted(reasons.items())]
    return fault(
        TuneError,
        "tune/none-left",
        f"none of the {len(configs)} configs of {call.kernel.__name__} works for this call\n"
        + "\n".join(f"     {line}" for line in lines),
        help="the reasons are above; k.kernel with one config's values shows its whole message",
    )
