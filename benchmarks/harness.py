"""Timing and reporting shared by the benchmarks.

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

A contender that fails its correctness check is reported and not timed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilejit import JitFunction
from tilejit.runtime.variant import Variant

RESULTS = Path(__file__).parent / "results"


@dataclass
class Timing:
    """Seconds per call; the card's clock and power meanwhile, where they were sampled."""

    median: float
    low: float
    high: float
    sm_mhz: float | None = None
    watts: float | None = None


Contenders = dict[str, Callable[[], Any]]
"""What each contender runs, by its name."""

TimeBy = Callable[[Contenders], dict[str, Timing]]


@dataclass
class Case:
    """One comparison: a name, bytes moved (read + written once), and contenders.

    ``flops``: the floating-point operations of one call, where they are what bounds it.
    ``targets``: by protocol, the least ratio to the baseline that tilejit is meant to reach.
    """

    name: str
    moved_bytes: int
    contenders: Contenders
    checks: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    flops: int = 0
    targets: dict[str, float] = field(default_factory=dict)


def check_all(case: Case) -> dict[str, str]:
    """Failures by contender; an empty dict when everything is right."""
    failures = {}
    for name, check in case.checks.items():
        try:
            problem = check()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        if problem:
            failures[name] = problem
    return failures


def time_interleaved(
    contenders: Contenders, rounds: int = 15, block_seconds: float = 4e-3
) -> dict[str, Timing]:
    """Median seconds per call of each contender, all sharing the same clock conditions."""
    calls = {name: _calls_for(run, block_seconds) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name] += _by_events(contenders[name], calls[name])
    return {name: summarise(values) for name, values in samples.items()}


def time_graphed(contenders: Contenders, calls: int = 20) -> dict[str, Timing]:
    """``time_interleaved`` of CUDA graphs of ``calls`` calls each; seconds are those of one call."""
    graphs = {name: _graph(run, calls) for name, run in contenders.items()}
    timings = time_interleaved({name: graph.replay for name, graph in graphs.items()})
    return {n: Timing(t.median / calls, t.low / calls, t.high / calls) for n, t in timings.items()}


def _graph(run: Callable[[], Any], calls: int) -> torch.cuda.CUDAGraph:
    run()  # what is done once, such as loading a module, may not happen in a capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    return graph


def time_sustained(
    contenders: Contenders,
    settle_seconds: float = 0.7,
    measure_seconds: float = 0.7,
) -> dict[str, Timing]:
    """Median seconds per call of each contender alone, after ``settle_seconds`` under its own load."""
    return _each_alone(contenders, settle_seconds, measure_seconds, _by_events)


def time_by_host(
    contenders: Contenders,
    settle_seconds: float = 0.4,
    measure_seconds: float = 0.4,
) -> dict[str, Timing]:
    """``time_sustained`` by the host's clock, for contenders on whatever stream."""
    return _each_alone(contenders, settle_seconds, measure_seconds, _by_host_clock)


Clock = Callable[[Callable[[], Any], int, int], list[float]]
"""Runs a number of calls a number of times without a pause: seconds per call of each time."""


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
    return {
        name: replace(summarise(values), **card.during(measured[name]))
        for name, values in samples.items()
    }


_BLOCKS = 8
"""Parts of a sustained measurement, for its spread. They follow each other without a pause."""


def _settled(run: Callable[[], Any], settle_seconds: float, clock: Clock) -> float:
    """Seconds per call after ``settle_seconds`` of them."""
    calls = _calls_for(run, min(settle_seconds, 0.02), clock)
    end = time.perf_counter() + settle_seconds
    (seconds,) = clock(run, calls, 1)
    while time.perf_counter() < end:
        (seconds,) = clock(run, calls, 1)
    return seconds


def _by_events(run: Callable[[], Any], calls: int, blocks: int = 1) -> list[float]:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(blocks + 1)]
    run()  # so that the card is busy while the host prepares the first call that counts
    events[0].record()
    for event in events[1:]:
        for _ in range(calls):
            run()
        event.record()
    events[-1].synchronize()
    return [a.elapsed_time(b) * 1e-3 / calls for a, b in pairwise(events)]


def _by_host_clock(run: Callable[[], Any], calls: int, blocks: int = 1) -> list[float]:
    values = []
    for _ in range(blocks):
        start = time.perf_counter()
        for _ in range(calls):
            result = run()
        if hasattr(result, "block_until_ready"):  # JAX
            result.block_until_ready()
        torch.cuda.synchronize()
        values.append((time.perf_counter() - start) / calls)
    return values


def _calls_for(run: Callable[[], Any], block_seconds: float, clock: Clock = _by_events) -> int:
    clock(run, 3, 1)
    (seconds,) = clock(run, 5, 1)
    return max(1, int(block_seconds / seconds))


class Card:
    """The card's clock and power while this is entered, as nvidia-smi tells them from time to time.
    Where it does not answer there are none."""

    PERIOD_MS = 50

    def __enter__(self) -> Card:
        self._samples: list[tuple[float, float, float]] = []
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                ["nvidia-smi", *_this_card(), "--query-gpu=clocks.sm,power.draw.instant",
                 "--format=csv,noheader,nounits", f"--loop-ms={self.PERIOD_MS}"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        except OSError:
            return self
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            try:
                mhz, watts = map(float, line.split(","))
            except ValueError:
                continue  # an error message, or a figure that this card does not have
            self._samples.append((time.perf_counter(), mhz, watts))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def during(self, intervals: list[tuple[float, float]]) -> dict[str, float]:
        """Median clock and power of the samples within ``intervals`` of the host's clock."""
        found = [
            (mhz, watts)
            for at, mhz, watts in self._samples
            if any(start <= at <= end for start, end in intervals)
        ]
        if not found:
            return {}
        mhz, watts = (statistics.median(column) for column in zip(*found))
        return {"sm_mhz": mhz, "watts": watts}


def _this_card() -> list[str]:
    """nvidia-smi's option for the current device; its own numbers know no CUDA_VISIBLE_DEVICES."""
    if not torch.cuda.is_available():
        return []
    return [f"--id=GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"]


def summarise(values: list[float]) -> Timing:
    low, median, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return Timing(median, low, high)


def wall(run: Callable[[], Any], calls: int, rounds: int = 15) -> Timing:
    """Seconds of host time per call; the queue is drained between rounds, outside the clock."""
    values = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        values.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return summarise(values)


def result_of(run: Callable[[], Any], out: torch.Tensor) -> torch.Tensor:
    """What ``run`` returns, or else leaves in ``out``, where nothing but NaN was before."""
    out.fill_(float("nan"))
    result = run()
    return out if result is None else result


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> str | None:
    """None if ||actual - expected|| / ||expected|| is within ``tolerance`` (NaN never passes)."""
    actual, expected = actual.double(), expected.double()
    error = ((actual - expected).norm() / expected.norm()).item()
    return None if error <= tolerance else f"relative error {error:.3g} over {tolerance:.3g}"


def close_elements(actual: torch.Tensor, expected: torch.Tensor) -> str | None:
    """None if every element is near its expected value (NaN never is). The norm of a large result
    hides a tile that is wrong; this does not.

    Near: within a tenth of the expected root mean square plus 2**-6 of the value, about 20 times
    the rounding of a bfloat16 result.
    """
    actual, expected = actual.float(), expected.float()
    allowed = expected.abs() * 2.0**-6 + 0.1 * expected.square().mean().sqrt()
    wrong = int(((actual - expected).abs() <= allowed).logical_not().sum())
    return f"{wrong} of {expected.numel()} elements are wrong" if wrong else None


def left_in(
    run: Callable[[], Any], out: torch.Tensor, expected: torch.Tensor, tolerance: float
) -> str | None:
    """None if ``run`` leaves in ``out``, where nothing but NaN was before, what is expected: as a
    whole and in every element."""
    result_of(run, out)
    return close(out, expected, tolerance) or close_elements(out, expected)


def compare_flops(case: Case, baseline: str, protocols: dict[str, TimeBy]) -> list[dict[str, Any]]:
    """Check the contenders, time the good ones by each protocol; rows with TFLOP/s and the ratio to
    ``baseline`` (absent where that failed). Anything that raises becomes a row and is not fatal."""
    failures = check_all(case)
    good = {n: r for n, r in case.contenders.items() if n not in failures}
    rows: list[dict[str, Any]] = []
    for protocol, time_by in protocols.items() if good else ():
        try:
            timings = time_by(good)
        except Exception as error:
            failures[f"{protocol} timing"] = f"{type(error).__name__}: {error}"
            continue
        for name, timing in timings.items():
            row = _flops_row(case, timing, timings.get(baseline))
            if name == "tilejit" and protocol in case.targets:
                row["target"] = case.targets[protocol]
            rows.append({"case": case.name, "protocol": protocol, "contender": name, **row})
            ratio = "-" if row["of_baseline"] is None else f"{row['of_baseline']:.3f}"
            print(
                f"{case.name:32s} {protocol:11s} {name:14s} {ratio:>6s} of {baseline} "
                f"{row['tflop_per_s']:7.1f} TFLOP/s{_card_says(timing)}",
                flush=True,
            )
    for name, problem in failures.items():
        rows.append({"case": case.name, "contender": name, "failed": problem})
        first_line = problem.partition("\n")[0]
        print(f"{case.name:32s} {name:14s} FAILED {first_line}", flush=True)
    return rows


def _card_says(timing: Timing) -> str:
    return "" if timing.sm_mhz is None else f"  {timing.sm_mhz:4.0f} MHz {timing.watts:4.0f} W"


def _flops_row(case: Case, timing: Timing, base: Timing | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "of_baseline": None if base is None else round(base.median / timing.median, 4),
        "tflop_per_s": round(case.flops / timing.median / 1e12, 1),
        "median_us": round(timing.median * 1e6, 2),
        "quartiles_us": [round(timing.low * 1e6, 2), round(timing.high * 1e6, 2)],
    }
    if timing.sm_mhz is not None:
        row |= {"sm_mhz": timing.sm_mhz, "watts": timing.watts}
    return row


def kernels_of(module: ModuleType) -> dict[str, JitFunction]:
    """The module's own kernels that have been specialised, by name."""
    kernels = {n: k for n, k in vars(module).items() if isinstance(k, JitFunction)}
    return {n: k for n, k in kernels.items() if k.variants and k.__module__ == module.__name__}


class Resources:
    """What the variants of a module's kernels use: registers, spills, shared memory, occupancy.

    Each is told once, with the case that built it; later cases may use it too.
    """

    def __init__(self, module: str):
        self.module = module
        self._told: set[Variant] = set()

    def rows(self, case: str) -> Iterator[dict[str, Any]]:
        module = sys.modules.get(self.module)
        for name, kernel in kernels_of(module).items() if module else ():
            for variant in kernel.variants:
                if variant.compiled and variant not in self._told:
                    self._told.add(variant)
                    stats = variant.stats
                    uses = {key: getattr(stats, key) for key in _USED}
                    warnings = [w.message for w in variant.warnings]
                    told = ", ".join(f"{key} {value}" for key, value in uses.items())
                    print(f"{case:32s} {name}: {told}", *warnings, sep="\n  ", flush=True)
                    said = {"uses": {"kernel": name, **uses}, "warnings": warnings}
                    yield {"case": case, "contender": "tilejit", **said}


_USED = ("registers", "spill_bytes", "local_bytes", "shared_bytes", "threads", "blocks_per_sm")


def environment() -> dict[str, str]:
    import datetime

    query = "driver_version,clocks.sm,power.draw"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    driver, clock, power = subprocess.run(command, capture_output=True, text=True).stdout.split(",")
    facts = {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "driver": driver.strip(),
        "torch": torch.__version__,
        "sm_clock": clock.strip(),
        "power": power.strip(),
    }
    for peer in ("triton", "jax"):
        try:
            facts[peer] = metadata.version(peer)
        except metadata.PackageNotFoundError:
            facts[peer] = "absent"
    return facts


def save(name: str, rows: list[dict[str, Any]], ended_by: str | None = None) -> Path:
    """``benchmarks/results/<name>.json`` with the environment beside the rows, and what ended the
    run early, if anything did."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    content: dict[str, Any] = {"environment": environment(), "rows": rows}
    if ended_by is not None:
        content["ended_by"] = ended_by
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path
