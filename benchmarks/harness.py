"""Timing and reporting shared by the benchmarks.

Contenders of one case are interleaved: in every round each runs a block of calls between two CUDA
events, in rotating order, after a warm-up. The figure is the median over rounds, the spread its
quartiles. A contender that fails its correctness check is reported and not timed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass
class Timing:
    """Seconds per call."""

    median: float
    low: float
    high: float


@dataclass
class Case:
    """One comparison: a name, bytes moved (read + written once), and contenders."""

    name: str
    moved_bytes: int
    contenders: dict[str, Callable[[], Any]]
    checks: dict[str, Callable[[], str | None]] = field(default_factory=dict)


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
    contenders: dict[str, Callable[[], Any]], rounds: int = 15, block_seconds: float = 4e-3
) -> dict[str, Timing]:
    """Median seconds per call of each contender, all sharing the same clock conditions."""
    calls = {name: _calls_for(run, block_seconds) for name, run in contenders.items()}
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            samples[name].append(_block(contenders[name], calls[name]))
    return {name: summarise(values) for name, values in samples.items()}


def _calls_for(run: Callable[[], Any], block_seconds: float) -> int:
    for _ in range(3):
        run()
    return max(1, int(block_seconds / _block(run, 5)))


def _block(run: Callable[[], Any], calls: int) -> float:
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(calls):
        run()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) * 1e-3 / calls


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


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> str | None:
    """None if ||actual - expected|| / ||expected|| is within ``tolerance`` (NaN never passes)."""
    actual, expected = actual.double(), expected.double()
    error = ((actual - expected).norm() / expected.norm()).item()
    return None if error <= tolerance else f"relative error {error:.3g} over {tolerance:.3g}"


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
    try:
        import triton

        facts["triton"] = triton.__version__
    except ImportError:
        facts["triton"] = "absent"
    return facts


def save(name: str, rows: list[dict[str, Any]]) -> Path:
    """``benchmarks/results/<name>.json`` with the environment beside the rows."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
    return path
