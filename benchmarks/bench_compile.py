"""Compile times: cold (empty cache), first launch from the disk cache, and the front half (frontend +
check + emission) alone.

Each figure is a fresh process, forked from one that has imported torch and not touched CUDA: importing
tilejit or Triton counts, importing torch does not. Triton's are measured the same way; its matrix
products are one configuration each, not a search over several. ``matmul``: by mma.sync, against Triton's
plain product; ``matmul_tma``: by TMA and wgmma, against its persistent TMA product.
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
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from tilejit import T, jit, pipeline
from tilejit.runtime.variant import Variant

REPEATS = 3
KERNELS = ("softmax", "add", "matmul", "matmul_tma")
PEERS = ("tilejit", "triton")
STATES = ("cold", "disk cache")

_FORKING = """
import json, os, sys, time
import torch

def measure(peer, what):
    x = torch.randn(256, 4096, device="cuda", dtype=torch.bfloat16)
    a = torch.randn(1 << 20, device="cuda"); b = torch.randn_like(a); c = torch.empty_like(a)
    y = torch.empty_like(x)
    m = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16); n = torch.randn_like(m)
    p = torch.empty_like(m)
    torch.cuda.synchronize()
    start = time.perf_counter()
    if what == "matmul":
        if peer == "tilejit":
            from tilejit.kernels.matmul_mma import matmul
            matmul(m, n, out=p)
        else:
            from benchmarks.triton_peers import matmul_untuned
            matmul_untuned(m, n, p)
    elif what == "matmul_tma":
        if peer == "tilejit":
            from tilejit.kernels.matmul import matmul
            matmul(m, n, out=p)
        else:
            from benchmarks.triton_peers import matmul_tma_untuned
            matmul_tma_untuned(m, n, p)
    else:
        if peer == "tilejit":
            from tilejit.kernels.add import add
            from tilejit.kernels.softmax import softmax
        else:
            from benchmarks.triton_peers import add, softmax
        add(a, b, c) if what == "add" else softmax(x, y)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    if what.startswith("matmul"):
        expected = m.float() @ n.float()
        right = (p.float() - expected).norm() < 3e-3 * expected.norm()
    elif what == "add":
        right = torch.allclose(c, a + b)
    else:
        right = torch.allclose(y.float(), torch.softmax(x.float(), -1), atol=1e-3)
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
    status = os.wait()[1]
    if status:
        error = f"the process died, wait status {status}"
        print(json.dumps({"right": False, "error": error}), flush=True)
"""


class Forker:
    """The process that has imported torch; one fork per measurement."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", **(environment or {})}
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


STEPS = ("lower", "check", "emit")


def front_half(variant: Variant) -> dict[str, float]:
    """Median milliseconds of frontend, check and emission for what ``variant`` is specialised to,
    and of the three together."""
    samples: list[tuple[float, ...]] = []
    for _ in range(11):
        times = [time.perf_counter()]
        lowered = variant.steps.lower(variant.source, variant.signature, variant.options)
        times.append(time.perf_counter())
        checked = variant.steps.check(lowered)
        times.append(time.perf_counter())
        pipeline.STEPS.emit(checked)
        times.append(time.perf_counter())
        samples.append((*(b - a for a, b in pairwise(times)), times[-1] - times[0]))
    medians = [round(statistics.median(column) * 1e3, 2) for column in zip(*samples)]
    return {"ms": medians[-1], **{f"{s}_ms": ms for s, ms in zip(STEPS, medians)}}


def softmax_variant() -> Variant:
    """The softmax of a (256, 4096) bfloat16 matrix."""
    from tilejit.kernels import rows, softmax

    x = torch.empty(256, 4096, dtype=torch.bfloat16)
    y = torch.empty_like(x)
    return softmax.softmax_rows.check(x, y, rows.plan_for("softmax", x, y))


def matmul_variant() -> Variant:
    """The product of two K-major 4096 x 4096 bfloat16 matrices, as a plain call specialises it."""
    from tilejit.kernels import matmul_mma

    x = torch.empty(4096, 4096 // 8, 8, dtype=torch.bfloat16)
    plan = matmul_mma.plan_matmul(4096, 4096, 4096, 8, True, True)
    return matmul_mma.matmul_tiles.check(x, x, None, x, plan, None)


def matmul_tma_variant() -> Variant:
    """The same product by TMA and wgmma."""
    from tilejit.kernels import matmul

    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    plan = matmul.plan_matmul(4096, 4096, 4096, True, True, sms=132)
    return matmul.matmul_tma.check(x, x, None, torch.empty_like(x), plan, None)


@jit(target="sm_100a")
def tcgen05_repeats(X: T.Tensor(("N",), "float32")):
    """2 x 2 repeats of 128 x 128 x 16 along M and N, four along K: tensor cores alone."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    layout = T.cuda.tcgen05_shared_layout((256, 64), "float16")
    a = T.alloc_shared((256, 64), "float16", layout=layout, align=1024)
    b = T.alloc_shared((256, 64), "float16", layout=layout, align=1024)
    slot = T.alloc_shared((1,), "uint32", align=16)
    shape = (2, 2, 128, 128)
    d = T.cuda.decl_tmem(
        slot[0], shape, "float32",
        layout=T.cuda.tmem_mma_operand_layout("D", shape, "float32", M=128, cta_group=1),
    )  # fmt: skip
    if T.cuda.linear_thread_id() == 0:
        T.cuda.tile.apply(
            T.ptx["tcgen05.mma.cta_group::1.kind::f16"],
            d,
            a.view(2, 128, 4, 16).permute(0, 2, 1, 3),
            b.view(2, 128, 4, 16).permute(0, 2, 1, 3),
            instruction_shape=(128, 128, 16),
        )


def tcgen05_repeats_variant() -> Variant:
    return tcgen05_repeats.check(torch.empty(4))


def matmul_tcgen05_variant() -> Variant:
    """The product of ``matmul_variant`` by tcgen05, on sm_100a."""
    from tilejit.kernels import matmul_tcgen05

    x = torch.empty(4096, 4096, dtype=torch.bfloat16)
    plan = matmul_tcgen05.plan_matmul(4096, 4096, True, True, sms=148)
    return matmul_tcgen05.matmul_tcgen05.check(
        x, x, None, torch.empty_like(x), plan, None, target="sm_100a"
    )


FRONT_HALVES = {
    "softmax": softmax_variant,
    "matmul": matmul_variant,
    "matmul_tma": matmul_tma_variant,
    "tcgen05_repeats": tcgen05_repeats_variant,
    "matmul_tcgen05": matmul_tcgen05_variant,
}

FRONT_HALF_AT_MOST_MS = {"matmul_tma": 150, "tcgen05_repeats": 150}
"""Meant to be the most that it takes."""


def run() -> Iterator[dict[str, Any]]:
    # An installed package has its bytecode; a checkout that was never imported has not.
    compileall.compile_dir(str(Path(__file__).parent.parent / "tilejit"), quiet=1)
    forker = Forker()
    for what in KERNELS:
        yield from against_triton(forker, what)
    for what, make in FRONT_HALVES.items():
        state = "frontend + check + emission"
        try:
            row: dict[str, Any] = front_half(make())
        except Exception as error:
            yield {"kernel": what, "failed": f"{state}: {type(error).__name__}: {error}"}
            print(f"{what:10s} {state} FAILED {error}", flush=True)
            continue
        if what in FRONT_HALF_AT_MOST_MS:
            row["at_most_ms"] = FRONT_HALF_AT_MOST_MS[what]
        yield {"kernel": what, "state": state, **row}
        parts = " + ".join(f"{row[f'{step}_ms']:.1f}" for step in STEPS)
        print(f"{what:10s} {state} {parts} = {row['ms']:.1f} ms", flush=True)


def against_triton(forker: Forker, what: str) -> Iterator[dict[str, Any]]:
    """Median milliseconds of each peer and state; a peer that fails is reported, the other timed."""
    samples: dict[tuple[str, str], list[float]] = {}
    failures: dict[str, str] = {}
    for _ in range(REPEATS):
        for peer in (p for p in PEERS if p not in failures):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    for state in STATES:
                        seconds = forker.seconds(peer, what, Path(folder))
                        samples.setdefault((peer, state), []).append(seconds)
                except AssertionError as error:
                    failures[peer] = str(error)
    for state in STATES:
        medians = {
            f"{peer}_ms": round(statistics.median(samples[peer, state]) * 1e3, 1)
            for peer in PEERS
            if peer not in failures
        }
        if len(medians) == len(PEERS):
            medians["of_triton"] = round(medians["tilejit_ms"] / medians["triton_ms"], 3)
        if medians:
            yield {"kernel": what, "state": state, **medians}
            figures = "   ".join(f"{name} {value}" for name, value in medians.items())
            print(f"{what:10s} {state:10s} {figures}  (imports included)", flush=True)
    for peer, problem in failures.items():
        yield {"kernel": what, "contender": peer, "failed": problem}
        print(f"{what:10s} FAILED {problem}", flush=True)
