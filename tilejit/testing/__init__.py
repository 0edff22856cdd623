"""Timing and comparing calls: ``do_bench`` for one, ``Benchmark`` and ``perf_report`` for several at many
sizes, ``ceiling`` for what the machine could do at best.

Everything is in seconds, bytes per second and floating-point operations per second, unless a name says
another unit. Loaded when first used; needs torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.testing.agreement import difference
    from tilejit.testing.ceilings import Ceiling, ceiling
    from tilejit.testing.report import Benchmark, PerfReport, Results, perf_report
    from tilejit.testing.timing import Timing, do_bench, do_bench_graph

_HOME = {
    "difference": "agreement",
    **dict.fromkeys(("Ceiling", "ceiling"), "ceilings"),
    **dict.fromkeys(("Benchmark", "PerfReport", "Results", "perf_report"), "report"),
    **dict.fromkeys(("Timing", "do_bench", "do_bench_graph"), "timing"),
}

__all__ = [
    "Benchmark",
    "Ceiling",
    "PerfReport",
    "Results",
    "Timing",
    "ceiling",
    "difference",
    "do_bench",
    "do_bench_graph",
    "perf_report",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tilejit.testing' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tilejit.testing.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
