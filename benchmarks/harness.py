"""What the benchmarks share: cases and their checks, rows of results, what kernels use.

A contender that fails its correctness check is reported and not timed.
Not here: how contenders are timed (``tilejit.testing.timing``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tilejit import JitFunction
from tilejit.runtime.variant import Variant
from tilejit.testing import timing

RESULTS = Path(__file__).parent / "results"


@dataclass
class Case:
    """One comparison: a name, bytes moved (read + written once), and contenders.

    ``flops``: the floating-point operations of one call, where they are what bounds it.
    ``targets``: by protocol, the least ratio to the baseline that tilejit is meant to reach.
    """

    name: str
    moved_bytes: int
    contenders: timing.Contenders
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


def compare_flops(
    case: Case, baseline: str, protocols: dict[str, timing.TimeBy]
) -> list[dict[str, Any]]:
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
        for name, timed in timings.items():
            row = _flops_row(case, timed, timings.get(baseline))
            if name == "tilejit" and protocol in case.targets:
                row["target"] = case.targets[protocol]
            rows.append({"case": case.name, "protocol": protocol, "contender": name, **row})
            ratio = "-" if row["of_baseline"] is None else f"{row['of_baseline']:.3f}"
            print(
                f"{case.name:32s} {protocol:11s} {name:14s} {ratio:>6s} of {baseline} "
                f"{row['tflop_per_s']:7.1f} TFLOP/s{_card_says(timed)}",
                flush=True,
            )
    for name, problem in failures.items():
        rows.append({"case": case.name, "contender": name, "failed": problem})
        first_line = problem.partition("\n")[0]
        print(f"{case.name:32s} {name:14s} FAILED {first_line}", flush=True)
    return rows


def _card_says(timed: timing.Timing) -> str:
    return "" if timed.sm_mhz is None else f"  {timed.sm_mhz:4.0f} MHz {timed.watts:4.0f} W"


def _flops_row(case: Case, timed: timing.Timing, base: timing.Timing | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "of_baseline": None if base is None else round(base.median / timed.median, 4),
        "tflop_per_s": round(case.flops / timed.median / 1e12, 1),
        "median_us": round(timed.median * 1e6, 2),
        "quartiles_us": [round(timed.low * 1e6, 2), round(timed.high * 1e6, 2)],
    }
    if timed.sm_mhz is not None:
        row |= {"sm_mhz": timed.sm_mhz, "watts": timed.watts}
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
