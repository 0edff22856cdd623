"""One rank of ``test_ranks``: plays every scenario in the order in which all ranks do, and prints what came of
each as a line of JSON. Not a test itself: it is started once per rank.

    python -m tests.tune.ranks_process BACKEND RANK SIZE RENDEZVOUS_FILE
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from tests.tune.test_search import Fake
from tilejit.errors import TileError
from tilejit.tune.model import Estimate
from tilejit.tune.ranks import tune_together
from tilejit.tune.report import Report, Row
from tilejit.tune.search import arrived, search

COSTS = [5e-4, 3e-4, 1.02e-4, 1e-4, 6e-4, 1.03e-4, 2e-4]


class Tuner:
    """Measures by a fake that knows every config's cost. ``broken``: configs that fail on this rank."""

    def __init__(self, costs: Sequence[float], broken: dict[int, str] | None = None):
        self.costs, self.broken = costs, broken or {}
        self.asked: list[list[int]] = []

    def __call__(self, positions: Sequence[int]) -> Report:
        self.asked.append(list(positions))
        fake = Fake(self.costs, noise=0.003, cold=1, broken=self.broken)
        outcome = search(fake, arrived(positions), len(positions))
        rows = [Row(f"BLOCK={p}", "not measured") for p in range(len(self.costs))]
        for position in positions:
            if position in outcome.failed:
                rows[position] = Row(f"BLOCK={position}", "failed", outcome.failed[position])
            else:
                seconds = outcome.measured[position]
                rows[position] = Row(f"BLOCK={position}", "measured", seconds=seconds)
        return Report(
            kernel="k", key={}, device="fake", source="measured", rows=tuple(rows),
            chosen=outcome.best, compiled=len(positions), benchmarked=outcome.trials,
        )  # fmt: skip


def by_model(positions: Sequence[int]) -> Report:
    rows = [Row(f"BLOCK={p}", "not measured") for p in range(len(COSTS))]
    for p in positions:
        rows[p] = Row(f"BLOCK={p}", "estimated", estimate=Estimate(COSTS[p] * 1e9, "latency", 1, 1))
    chosen = min(positions, key=lambda p: COSTS[p])
    return Report(
        kernel="k", key={}, device="sm_90a", source="estimated by the model", rows=tuple(rows),
        chosen=chosen,
    )  # fmt: skip


def told(scenario: str, play: Callable[[], Report], tuner: Tuner | None = None) -> None:
    try:
        report = play()
    except TileError as error:
        result: dict[str, Any] = {"codes": list(error.codes), "error": str(error)}
    except ZeroDivisionError as error:
        result = {"own": str(error)}
    else:
        result = {
            "chosen": report.chosen, "statuses": [r.status for r in report.rows],
            "compiled": report.compiled, "benchmarked": report.benchmarked,
            "notes": list(report.notes), "source": report.source,
        }  # fmt: skip
    if tuner is not None:
        result["asked"] = tuner.asked
    print(json.dumps({"scenario": scenario, **result}), flush=True)


def main(backend: str, rank: int, size: int, rendezvous: str) -> None:
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    count = len(COSTS)

    tuner = Tuner(COSTS)
    told("all", lambda: tune_together(True, "same", count, tuner), tuner)

    tuner = Tuner(COSTS, {p: "spills" for p in range(count) if p % size == 1})
    told("one share is broken", lambda: tune_together(True, "same", count, tuner), tuner)

    tuner = Tuner(COSTS, dict.fromkeys(range(count), "hangs"))
    told("all are broken", lambda: tune_together(True, "same", count, tuner))

    # On rank 0's GPU what the others found best does not run.
    tuner = Tuner(COSTS, {3: "no memory", 2: "no memory", 5: "no memory"} if rank == 0 else None)
    told("finalists fail", lambda: tune_together(True, "same", count, tuner), tuner)

    told("by the model", lambda: tune_together(True, "same", count, by_model))

    known = Tuner(COSTS)(range(count)) if rank == size - 1 else None
    tuner = Tuner(COSTS)
    told("known by the last", lambda: tune_together(True, "same", count, tuner, known), tuner)

    tuner = Tuner(COSTS)
    key = "other" if rank == 0 else "same"
    told("another key", lambda: tune_together(True, key, count, tuner), tuner)

    def fails(positions: Sequence[int]) -> Report:
        if rank == size - 1:
            raise ZeroDivisionError("no such luck")
        return Tuner(COSTS)(positions)

    told("one fails", lambda: tune_together(True, "same", count, fails))

    pair = dist.new_group([size - 2, size - 1])
    tuner = Tuner(COSTS)
    told("the last two", lambda: tune_together(pair, "same", count, tuner), tuner)

    def dies(positions: Sequence[int]) -> Report:
        if rank == size - 1:
            sys.stdout.flush()
            os._exit(7)
        return Tuner(COSTS)(positions)

    if backend == "gloo":  # NCCL's watchdog ends the process itself
        told("one dies", lambda: tune_together(True, "same", count, dies))
        os._exit(0)  # the group has no end with a member missing
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
