"""How long calls take: protocols for comparing several, and one call alone.

Interleaved: in every round each contender of a case runs a block of calls between two CUDA events,
in rotating order, behind one more that does not count, after a warm-up. The figure is the median over rounds, the spread its quartiles.

Sustained: each contender alone, until the card's clock has settled under its load, then measured;
all of them forwards, then backwards. Matrix kernels hold the card at its power limit, where the one
that spends less energy runs at the higher clock: interleaving would have them share one clock and
hide that. So the ratio to quote for them is the sustained one.

By the host's clock: sustained, but over blocks of calls whose last result is waited for, so that a
contender may work on a stream that torch's events do not see. Each block ends with an idle card for
tens of microseconds, for every contender alike.

In graphs: interleaved, a block of calls being a CUDA graph. What the host does for a launch, which
hides kernels of a few microseconds, is left out.

Alone (``do_bench``): single calls, each with a second-level cache that holds nothing of the last one's.

Every figure is in seconds. Not here: what is compared and told (``report``), tuning (``tune``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import torch

from tilejit.errors import TileError, fault
from tilejit.testing.card import Card

EVENTS = "CUDA events"
HOST = "host clock"


@dataclass
class Timing:
    """Seconds per call: median and, by default, quartiles; the card's clock and power meanwhile,
    where they were sampled. ``samples``: all of them, where they were kept. ``clock``: what measured."""

    median: float
    low: float
    high: float
    sm_mhz: float | None = None
    watts: float | None = None
    clock: str = field(default=EVENTS, compare=False)
    samples: tuple[float, ...] = field(default=(), compare=False, repr=False)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.samples) if self.samples else self.median

    @property
    def least(self) -> float:
        return min(self.samples, default=self.low)

    def __str__(self) -> str:
        unit, scale = next(
            ((u, s) for u, s in (("s", 1.0), ("ms", 1e3)) if self.median * s >= 1), ("µs", 1e6)
        )
        middle, low, high = (f"{x * scale:.4g}" for x in (self.median, self.low, self.high))
        return f"{middle} {unit} (quartiles {low} to {high}; {self.clock})"


Call = Callable[[], Any]
Contenders = dict[str, Call]
"""What each contender runs, by its name."""

TimeBy = Callable[[Contenders], dict[str, Timing]]

Clock = Callable[[Call, int, int], list[float]]
"""Runs a number of calls a number of times without a pause: seconds per call of each time."""


def by_events(run: Call, calls: int, blocks: int = 1) -> list[float]:
    """The card's own clock, on torch's current stream."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(blocks + 1)]
    run()  # so that the card is busy while the host prepares the first call that counts
    events[0].record()
    for event in events[1:]:
        for _ in range(calls):
            run()
        event.record()
    events[-1].synchronize()
    return [a.elapsed_time(b) * 1e-3 / calls for a, b in pairwise(events)]


def by_host_clock(run: Call, calls: int, blocks: int = 1) -> list[float]:
    """The host's clock, until the last result of each block is there. Needs no GPU."""
    values = []
    for _ in range(blocks):
        start = time.perf_counter()
        for _ in range(calls):
            result = run()
        if hasattr(result, "block_until_ready"):  # JAX
            result.block_until_ready()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        values.append((time.perf_counter() - start) / calls)
    return values


_NAMES: dict[Clock, str] = {by_events: EVENTS, by_host_clock: HOST}


def default_clock() -> Clock:
    return by_events if torch.cuda.is_available() else by_host_clock


# --- several contenders


def interleaved(
    contenders: Contenders,
    rounds: int = 15,
    block_seconds: float = 4e-3,
    clock: Clock = by_events,
) -> dict[str, Timing]:
    """Median seconds per call of each contender, all sharing the same clock conditions."""
    calls = {name: _calls_for(run, block_seconds, clock) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name] += clock(contenders[name], calls[name], 1)
    return {name: _named(summarise(values), clock) for name, values in samples.items()}


def graphed(contenders: Contenders, calls: int = 20) -> dict[str, Timing]:
    """``interleaved`` of CUDA graphs of ``calls`` calls each; seconds are those of one call."""
    graphs = {name: _graph(run, calls) for name, run in contenders.items()}
    timings = interleaved({name: graph.replay for name, graph in graphs.items()})
    return {name: _of_one(timing, calls) for name, timing in timings.items()}


def _of_one(block: Timing, calls: int) -> Timing:
    return replace(
        block,
        median=block.median / calls,
        low=block.low / calls,
        high=block.high / calls,
        samples=tuple(seconds / calls for seconds in block.samples),
    )


def _graph(run: Call, calls: int) -> torch.cuda.CUDAGraph:
    run()  # what is done once, such as loading a module, may not happen in a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph


def sustained(
    contenders: Contenders,
    settle_seconds: float = 0.7,
    measure_seconds: float = 0.7,
) -> dict[str, Timing]:
    """Median seconds per call of each contender alone, after ``settle_seconds`` under its own load."""
    return _each_alone(contenders, settle_seconds, measure_seconds, by_events)


def sustained_by_host(
    contenders: Contenders,
    settle_seconds: float = 0.4,
    measure_seconds: float = 0.4,
) -> dict[str, Timing]:
    """``sustained`` by the host's clock, for contenders on whatever stream."""
    return _each_alone(contenders, settle_seconds, measure_seconds, by_host_clock)


def _each_alone(
    contenders: Contenders, settle_seconds: float, measure_seconds: float, clock: Clock
) -> dict[str, Timing]:
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with Card() as card:
        for name in names + names[::-1]:
            run = contenders[name]
            seconds = _settled(run, settle_seconds, clock)
            start = time.perf_counter()
            samples[name] += clock(run, max(1, round(measure_seconds / _BLOCKS / seconds)), _BLOCKS)
            measured[name].append((start, time.perf_counter()))
    timings: dict[str, Timing] = {}
    for name, values in samples.items():
        timing = _named(summarise(values), clock)
        seen = card.during(measured[name])
        timings[name] = replace(timing, sm_mhz=seen.get("sm_mhz"), watts=seen.get("watts"))
    return timings


_LEAST_SECONDS = 1e-7
"""Python makes no call in less; events and coarse clocks say 0 of what they cannot resolve."""

_BLOCKS = 8
"""Parts of a sustained measurement, for its spread. They follow each other without a pause."""


def _settled(run: Call, settle_seconds: float, clock: Clock) -> float:
    """Seconds per call after ``settle_seconds`` of them."""
    calls = _calls_for(run, min(settle_seconds, 0.02), clock)
    end = time.perf_counter() + settle_seconds
    (seconds,) = clock(run, calls, 1)
    while time.perf_counter() < end:
        (seconds,) = clock(run, calls, 1)
    return max(seconds, _LEAST_SECONDS)


def _calls_for(run: Call, block_seconds: float, clock: Clock) -> int:
    clock(run, 3, 1)
    (seconds,) = clock(run, 5, 1)
    return max(1, int(block_seconds / max(seconds, _LEAST_SECONDS)))


def summarise(values: Sequence[float], quantiles: tuple[float, float] = (0.25, 0.75)) -> Timing:
    """Median and two quantiles of samples in seconds; quartiles unless ``quantiles`` says otherwise."""
    if len(values) == 1:
        return Timing(*(values[0],) * 3, samples=tuple(values))
    low, high = (_quantile(sorted(values), q) for q in quantiles)
    return Timing(statistics.median(values), low, high, samples=tuple(values))


def _quantile(ordered: Sequence[float], q: float) -> float:
    """As ``statistics.quantiles`` has it by default, for any ``q``, but never beyond the samples."""
    at = min(max(q * (len(ordered) + 1) - 1, 0.0), len(ordered) - 1.0)
    below = min(int(at), len(ordered) - 2)
    return ordered[below] + (at - below) * (ordered[below + 1] - ordered[below])


def _named(timing: Timing, clock: Clock) -> Timing:
    return replace(timing, clock=_NAMES.get(clock, timing.clock))


def wall(run: Call, calls: int, rounds: int = 15) -> Timing:
    """Seconds of host time per call; the queue is drained between rounds, outside the clock."""
    values = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        values.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return replace(summarise(values), clock=HOST)


# --- one call alone

_LEAST_CALLS, _MOST_CALLS = 5, 10_000
_FLUSHED_CACHES = 2
"""The cache is emptied by writing this many times its size: its replacement is not strictly the oldest."""


def do_bench(
    fn: Call,
    warmup_ms: float = 25.0,
    rep_ms: float = 100.0,
    quantiles: tuple[float, float] = (0.25, 0.75),
    grad_to_none: Sequence[torch.Tensor] | None = None,
    device: Literal["cuda", "cpu"] | None = None,
) -> Timing:
    """Seconds of one call of ``fn``, with nothing of the last call in the second-level cache.

    ``fn`` runs for about ``warmup_ms``, then for about ``rep_ms`` (at least 5 calls of each), every call
    between two CUDA events. ``quantiles``: which ones ``low`` and ``high`` are. ``grad_to_none``: tensors
    whose gradients are dropped before each call. ``device``: "cpu" takes the host's clock, the default
    where there is no GPU; ``Timing.clock`` says which it was.

    For who comes from ``triton.testing.do_bench``: the result is in seconds, not milliseconds, and has
    ``median``, ``mean``, ``least``, ``low``, ``high`` and ``samples`` instead of a return mode.
    """
    low, high = quantiles
    if not 0 <= low <= high <= 1:
        raise wrong("quantiles", f"{quantiles}", "two numbers from 0 to 1, ascending")
    if device not in (None, "cuda", "cpu"):
        raise wrong("device", repr(device), "'cuda', 'cpu' or None")
    on_gpu = torch.cuda.is_available() if device is None else device == "cuda"
    each = _each_by_events if on_gpu else _each_by_host_clock
    leaves = tuple(grad_to_none or ())

    def prepare() -> None:
        for leaf in leaves:
            leaf.grad = None

    prepare()
    fn()  # compiles and loads
    estimate = max(statistics.median(each(fn, prepare, _LEAST_CALLS)), 1e-9)
    each(fn, prepare, _calls_within(warmup_ms, estimate))
    samples = each(fn, prepare, _calls_within(rep_ms, estimate))
    return replace(summarise(samples, quantiles), clock=EVENTS if on_gpu else HOST)


def wrong(what: str, found: str, expected: str) -> TileError:
    return fault(TileError, "testing/benchmark", f"{what} is {found}, expected {expected}")


def do_bench_graph(
    fn: Call,
    rep_ms: float = 100.0,
    quantiles: tuple[float, float] = (0.25, 0.75),
    grad_to_none: Sequence[torch.Tensor] | None = None,
) -> Timing:
    """Seconds of one call of ``fn`` within a CUDA graph: without what the host does for a launch.

    A graph holds as many calls as take about 2 ms and is replayed for about ``rep_ms``. Calls follow
    each other, so that operands smaller than the second-level cache are found there.
    """
    for leaf in grad_to_none or ():
        leaf.grad = None
    calls = min(_calls_within(2.0, do_bench(fn, 5.0, 20.0).median), 1000)
    graph = _graph(fn, calls)
    seconds = max(by_events(graph.replay, 1)[0], 1e-9)
    replays = _calls_within(rep_ms, seconds)
    return _of_one(summarise(by_events(graph.replay, 1, replays), quantiles), calls)


def _calls_within(milliseconds: float, seconds: float) -> int:
    return min(max(_LEAST_CALLS, int(milliseconds * 1e-3 / seconds)), _MOST_CALLS)


def _each_by_events(fn: Call, prepare: Call, calls: int) -> list[float]:
    device = torch.cuda.current_device()
    nbytes = _FLUSHED_CACHES * int(torch.cuda.get_device_properties(device).L2_cache_size)
    flushed = torch.empty(nbytes, dtype=torch.int8, device="cuda")  # goes when this returns
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for start, end in events:
        prepare()
        flushed.zero_()
        start.record()
        fn()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e-3 for start, end in events]


def _each_by_host_clock(fn: Call, prepare: Call, calls: int) -> list[float]:
    values = []
    for _ in range(calls):
        prepare()
        start = time.perf_counter()
        fn()
        values.append(time.perf_counter() - start)
    return values
