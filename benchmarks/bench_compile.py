"""Compile times: cold (empty cache), first launch from the disk cache, and the front half (frontend +
check + emission) alone.

Each figure is a fresh process, forked from one that has imported torch and not touched CUDA: importing
tilejit or Triton counts, importing torch does not. Triton's are measured the same way.
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPEATS = 5

_FORKING = """
import json, os, sys, time
import torch

def measure(peer, what):
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    a = torch.randn(1 << 20, device="cuda"); b = torch.randn_like(a); c = torch.empty_like(a)
    y = torch.empty_like(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    if peer == "tilejit":
        from tilejit.kernels.add import add
        from tilejit.kernels.softmax import softmax
    else:
        from benchmarks.triton_peers import add, softmax
    add(a, b, c) if what == "add" else softmax(x, y)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    right = torch.allclose(c, a + b) if what == "add" else torch.allclose(
        y.float(), torch.softmax(x.float(), -1), atol=1e-3)
    return {"seconds": seconds, "right": bool(right)}

for line in sys.stdin:
    job = json.loads(line)
    if os.fork() == 0:
        os.environ.update(job["environment"])
        try:
            result = measure(job["peer"], job["what"])
        except BaseException as error:
            result = {"seconds": 0.0, "right": False, "error": repr(error)}
        print(json.dumps(result), flush=True)
        os._exit(0)
    os.wait()
"""


class Forker:
    """The process that has imported torch; one fork per measurement."""

    def __init__(self) -> None:
        environment = {**os.environ, "CUDA_CACHE_DISABLE": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _FORKING], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def seconds(self, peer: str, what: str, cache: Path) -> float:
        folders = {
            "TILEJIT_CACHE_DIR": str(cache / "tilejit"),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        job = {"peer": peer, "what": what, "environment": folders}
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        if not result["right"]:
            raise AssertionError(f"{peer} {what}: {result.get('error', 'wrong result')}")
        seconds: float = result["seconds"]
        return seconds


def front_half_seconds() -> float:
    """Median of frontend + check + emission for the softmax of a (256, 4096) bfloat16 matrix."""
    import torch

    from tilejit import pipeline
    from tilejit.kernels import rows, softmax

    x = torch.empty(256, 4096, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    plan = rows.plan_for("softmax", x, y)
    variant = softmax.softmax_rows.check(x, y, plan)
    steps = pipeline.STEPS
    values = []
    for _ in range(11):
        start = time.perf_counter()
        steps.emit(steps.check(steps.lower(variant.source, variant.signature, ())))
        values.append(time.perf_counter() - start)
    return statistics.median(values)


def run() -> list[dict[str, Any]]:
    # An installed package has its bytecode; a checkout that was never imported has not.
    compileall.compile_dir(str(Path(__file__).parent.parent / "tilejit"), quiet=1)
    rows: list[dict[str, Any]] = []
    forker = Forker()
    for what in ("softmax", "add"):
        samples: dict[tuple[str, str], list[float]] = {}
        for _ in range(REPEATS):
            for peer in ("tilejit", "triton"):
                with tempfile.TemporaryDirectory() as folder:
                    for state in ("cold", "disk cache"):
                        seconds = forker.seconds(peer, what, Path(folder))
                        samples.setdefault((peer, state), []).append(seconds)
        for state in ("cold", "disk cache"):
            medians = {
                peer: statistics.median(samples[peer, state]) for peer in ("tilejit", "triton")
            }
            ratio = medians["tilejit"] / medians["triton"]
            rows.append(
                {
                    "kernel": what, "state": state, "of_triton": round(ratio, 3),
                    **{f"{peer}_ms": round(value * 1e3, 1) for peer, value in medians.items()},
                }
            )  # fmt: skip
            print(
                f"{what:8s} {state:10s} tilejit {medians['tilejit'] * 1e3:7.1f} ms   triton "
                f"{medians['triton'] * 1e3:7.1f} ms   ratio {ratio:.2f}  (imports included)",
                flush=True,
            )
    front = front_half_seconds()
    rows.append(
        {"kernel": "softmax", "state": "frontend + check + emission", "ms": round(front * 1e3, 2)}
    )
    print(f"softmax  frontend + check + emission {front * 1e3:.1f} ms")
    return rows
