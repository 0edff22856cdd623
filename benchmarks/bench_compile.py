"""Compile times: cold (empty cache, fresh process, torch already imported), first launch from the
disk cache in a fresh process, and the front half (frontend + check + emission) alone.

Each figure is a fresh process running ``_child``; Triton's are measured the same way.
"""

from __future__ import annotations

import compileall
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPEATS = 3

_CHILD = """
import json, sys, time
import torch
x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
a = torch.randn(1 << 20, device="cuda"); b = torch.randn_like(a); c = torch.empty_like(a)
y = torch.empty_like(x)
torch.cuda.synchronize()
peer, what = sys.argv[1:3]
start = time.perf_counter()
if peer == "tilejit":
    from tilejit.kernels.add import add
    from tilejit.kernels.softmax import softmax
else:
    from benchmarks.triton_peers import add, softmax
imported = time.perf_counter()
if what == "add":
    add(a, b, c)
else:
    softmax(x, y)
torch.cuda.synchronize()
done = time.perf_counter()
right = torch.allclose(c, a + b) if what == "add" else torch.allclose(y.float(), torch.softmax(x.float(), -1), atol=1e-3)
print(json.dumps({"import": imported - start, "first": done - imported, "right": bool(right)}))
"""


def _child(peer: str, what: str, cache: Path) -> dict[str, float]:
    environment = {
        **os.environ,
        "TILEJIT_CACHE_DIR": str(cache / "tilejit"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
        "CUDA_CACHE_DISABLE": "1",
    }
    command = [sys.executable, "-c", _CHILD, peer, what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if not result["right"]:
        raise AssertionError(f"{peer} {what}: wrong result")
    return result


def front_half_seconds() -> float:
    """Median of frontend + check + emission for the softmax of a (256, 4096) bfloat16 matrix."""
    import torch

    from tilejit import pipeline
    from tilejit.kernels import rows, softmax

    x = torch.empty(256, 4096, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    plan = rows.plan_for("softmax", x, y)
    values = []
    for _ in range(11):
        variant = softmax.softmax_rows.check(x, y, plan)
        before = sum(pipeline.timings.get(step, 0.0) for step in ("lower", "check", "emit"))
        pipeline.STEPS.emit(
            pipeline.STEPS.check(pipeline.STEPS.lower(variant.source, variant.signature, ()))
        )
        after = sum(pipeline.timings.get(step, 0.0) for step in ("lower", "check", "emit"))
        values.append(after - before)
    return statistics.median(values)


def run() -> list[dict[str, Any]]:
    # An installed package has its bytecode; a checkout that was never imported has not.
    compileall.compile_dir(str(Path(__file__).parent.parent / "tilejit"), quiet=1)
    rows: list[dict[str, Any]] = []
    for what in ("add", "softmax"):
        samples: dict[tuple[str, str], list[float]] = {}
        for _ in range(REPEATS):
            for peer in ("tilejit", "triton"):
                with tempfile.TemporaryDirectory() as folder:
                    for state in ("cold", "disk cache"):
                        result = _child(peer, what, Path(folder))
                        total = result["first"] + result["import"]
                        samples.setdefault((peer, state), []).append(total)
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
                f"{medians['triton'] * 1e3:7.1f} ms   ratio {ratio:.2f}  (peer's import included)"
            )
    front = front_half_seconds()
    rows.append(
        {"kernel": "softmax", "state": "frontend+check+emission", "ms": round(front * 1e3, 2)}
    )
    print(f"softmax  frontend + check + emission {front * 1e3:.1f} ms")
    return rows
