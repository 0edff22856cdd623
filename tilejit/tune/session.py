"""One tuning of one call: from its configs to a report.

A thread lowers the configs in order, and each that may work is checked and compiled beside that. The search
begins when the first has been checked, for the tensors that it reads and writes, with what is compiled
by then. Should a later one access others, the measuring begins anew, for both. Without a GPU the same
candidates are compiled and ranked by the model.
Not here: when a tuning takes place and what becomes of its result (``autotune``).
"""

from __future__ import annotations

import contextvars
import datetime
import queue
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
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
from tilejit.tune.search import Arrivals, Outcome, Progress, Trial, search

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
    exhaustive: bool = False
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
    """Candidates on their way from the configs to what measures them: ``arrivals`` are the numbers of those
    that it has been given, then None. A thread lowers; the compiler's threads tell what became of it."""

    def __init__(self, pruning: Pruning, compiler: compiling.Threads):
        self.pruning = pruning
        self.arrivals: Arrivals = queue.SimpleQueue()
        self.candidates: dict[int, Candidate] = {}
        self.failed: dict[int, str] = {}
        self.compiled: list[int] = []
        self.seconds = 0.0
        self._compiler = compiler
        self._start = time.monotonic()
        self._lock = threading.RLock()
        self._measure: _Covered | None = None
        self._unsettled = 1
        """Candidates being compiled, and the lowering of more."""
        self._begun, self._over = threading.Event(), threading.Event()
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(
            target=contextvars.copy_context().run, args=(self._lower,), name="tilejit-lower"
        )
        self._thread.start()

    def begun(self) -> bool:
        """Waits until a candidate has been checked; False: none works."""
        self._begun.wait()
        self.raise_errors()
        return bool(self.candidates)

    def wait(self) -> None:
        """Until all are compiled."""
        self._over.wait()
        self.raise_errors()

    def raise_errors(self) -> None:
        """What the lowering met with that is no config's fault."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Nothing more is lowered, or told of what is being compiled."""
        self._stopped = True
        self._thread.join()

    def accessed(self) -> _Accessed:
        """By the candidates that are known to work by now."""
        with self._lock:
            known = (next(iter(self.candidates)), *self.compiled)
        return _Accessed.by([self.candidates[number].variant for number in known])

    def feed(self, measure: _Covered | None) -> None:
        """Gives it all that is ready, and from now on each that becomes ready. None: nobody."""
        with self._lock:
            self.arrivals = queue.SimpleQueue()
            self._measure = measure
            for number in self.compiled:
                self._hand_over(number)
            self._tell_end()

    # --- in the thread that lowers

    def _lower(self) -> None:
        try:
            for candidate in self.pruning.programs():
                if self._stopped:
                    break
                self._submit(candidate)
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()
            self._settle()

    def _submit(self, candidate: Candidate) -> None:
        """The first is checked here: measuring gets ready while it compiles."""
        if not self._begun.is_set() and not self._keeps_contracts(candidate):
            return
        with self._lock:
            self.candidates[candidate.number] = candidate
            self._unsettled += 1
        self._begun.set()
        self._compiler.submit(candidate.variant).add_done_callback(
            partial(self._done, candidate.number)
        )

    def _keeps_contracts(self, candidate: Candidate) -> bool:
        try:
            _ = candidate.variant.written
        except TileError as error:
            self.pruning.rule_out(candidate.number, error)
            return False
        return True

    # --- in any thread

    def _done(self, number: int, compiled: Future[None]) -> None:
        if compiled.cancelled() or self._stopped:
            return
        error = compiled.exception()
        with self._lock:
            if error is None:
                self.seconds = time.monotonic() - self._start
                self.compiled.append(number)
                self._hand_over(number)
            elif isinstance(error, compiling.ContractsBroken):
                self.pruning.rule_out(number, error.error)
            else:
                self.failed[number] = _why(error)
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            self._unsettled -= 1
            self._tell_end()
        if not self._unsettled:
            self._over.set()

    def _hand_over(self, number: int) -> None:
        if self._measure is None:
            return
        candidate = self.candidates[number]
        try:
            self._measure.add(number, candidate.variant, candidate.grid)
        except Exception as error:  # a future's callback: nobody else would hear of it
            self.failed[number] = _why(error)
        else:
            self.arrivals.put(number)

    def _tell_end(self) -> None:
        if not self._unsettled and self._measure is not None:
            self.arrivals.put(None)


def _why(error: BaseException) -> str:
    if isinstance(error, TileError):
        return reason_of(error)
    if isinstance(error, compiling.NotCompiled):
        return str(error)
    return f"{type(error).__name__}: {error}"


@contextmanager
def _compiling(task: Task, share: Container[int]) -> Iterator[_Compilation]:
    """The candidates, on their way. Leaving drops what is not begun."""
    pruning = task.pruning(share)
    compiler = compiling.compiler(len(pruning.considered))
    compilation = _Compilation(pruning, compiler)
    try:
        yield compilation
    finally:
        compilation.stop()
        compiler.close()


# --- with a GPU


def measured(task: Task, share: Sequence[int]) -> Report:
    """The report of a search among the configs at the positions of ``share``; ``chosen`` is None when none works."""
    start = time.monotonic()
    kernel, labels = task.call.kernel.__name__, lambda n: repr(task.configs[n])
    outcome, notes = _NOTHING_RAN, tuple[str, ...]()
    with (
        shown(task.settings.progress, kernel, labels) as show,
        _compiling(task, share) as compilation,
    ):
        if compilation.begun():
            outcome, notes = _searched(task, compilation, start, show)
        compilation.raise_errors()
    return _report(task, share, compilation, outcome, notes)


def _searched(
    task: Task, compilation: _Compilation, start: float, show: Callable[[Progress], None]
) -> tuple[Outcome, tuple[str, ...]]:
    """What the search found, and notes about how it was measured."""
    budget_s = task.settings.budget_s
    while True:
        accessed = compilation.accessed()
        measure = _Covered(_measure(task, accessed), accessed, compilation.raise_errors)
        try:
            compilation.feed(measure)
            outcome = search(
                measure,
                compilation.arrivals,
                len(compilation.pruning.considered),
                reference=task.settings.reference is not None,
                prefer=lambda number: _appetite(compilation.candidates[number]),
                exhaustive=task.settings.exhaustive,
                budget_s=None
                if budget_s is None
                else max(0.0, budget_s - time.monotonic() + start),
                progress=show,
            )
            return outcome, measure.measure.notes
        except _Widened:
            continue
        finally:
            compilation.feed(None)
            measure.close()


@dataclass(frozen=True)
class _Accessed:
    """Tensors that some candidate may write, and read. ``anything``: see ``Variant.follows_addresses``."""

    written: frozenset[str]
    read: frozenset[str]
    anything: bool

    @staticmethod
    def by(variants: Sequence[Variant]) -> _Accessed:
        return _Accessed(
            frozenset[str]().union(*(v.written for v in variants)),
            frozenset[str]().union(*(v.read for v in variants)),
            any(v.follows_addresses for v in variants),
        )

    def covers(self, variant: Variant) -> bool:
        if self.anything:
            return True
        within = variant.written <= self.written and variant.read <= self.read
        return within and not variant.follows_addresses


class _Widened(Exception):
    """A candidate accesses more than what measures was made for."""


@dataclass(frozen=True)
class _Covered:
    """A ``search.Measure`` that runs only what it was made for. ``look``: raises what is to end the search."""

    measure: Measurement
    accessed: _Accessed
    look: Callable[[], None]
    _beyond: set[int] = field(default_factory=set)

    def add(
        self, candidate: int, variant: Variant, grid: tuple[int, int, int] | None = None
    ) -> None:
        if self.accessed.covers(variant):
            self.measure.add(candidate, variant, grid)
        else:
            self._beyond.add(candidate)

    def trial(self, candidate: int) -> Trial:
        self.look()
        if candidate in self._beyond:
            raise _Widened
        return self.measure.trial(candidate)

    def differs(self, candidate: int, other: int | None) -> str | None:
        return self.measure.differs(candidate, other)

    def sample(self, candidates: Sequence[int], rounds: int) -> dict[int, list[float]]:
        return self.measure.sample(candidates, rounds)

    def close(self) -> None:
        self.measure.close()


_NOTHING_RAN = Outcome(None, {}, {}, {}, {}, (), 0, 0, 0.0)


def _measure(task: Task, accessed: _Accessed) -> Measurement:
    from tilejit.tune import measuring  # with torch, which decorating a kernel does not need

    call, settings = task.call, task.settings
    return measuring.measure(
        [p.name for p in call.kernel.params],
        call.values,
        device=call.device,
        written=accessed.written,
        read=accessed.read,
        follows_addresses=accessed.anything,
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
    outcome: Outcome,
    notes: Sequence[str],
) -> Report:
    failed = {**compilation.failed, **outcome.failed}
    rows = []
    for number, config in enumerate(task.configs):
        candidate = compilation.candidates.get(number)
        uses = _uses(candidate) if number in compilation.compiled and candidate else None
        row = _row(number, config, compilation.pruning.reasons, failed, outcome, uses)
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
    with _compiling(task, share) as compilation:
        compilation.wait()
        rows = tuple(
            _estimated_row(task, number, config, compilation)
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


def _estimated_row(task: Task, number: int, config: Config, compilation: _Compilation) -> Row:
    label, reasons = repr(config), compilation.pruning.reasons
    if number in reasons:
        return Row(label, "pruned", reasons[number])
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
