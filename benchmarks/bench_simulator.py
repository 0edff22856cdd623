"""Seconds the simulator takes, hazards on: a vector add of 2**20 elements, a 256 x 4096 softmax, a
256 x 256 x 256 matrix product, and a 128 x 128 x 64 one through tensor memory (sm_100a)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import harness

TOLERANCE = 5e-3


def vector_add() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    from tilejit.kernels import add

    a, b = torch.randn(1 << 20), torch.randn(1 << 20)
    return lambda: add.add(a, b), a + b


def row_softmax() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    from tilejit.kernels import softmax

    x = torch.randn(256, 4096).bfloat16()
    return lambda: softmax.softmax(x), torch.softmax(x.float(), -1)


def matmul() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    from tilejit.kernels import matmul_mma

    a, b = torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16()
    return lambda: matmul_mma.matmul(a, b), a.float() @ b.float()


def blackwell_tile() -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    from tilejit import simulation
    from tilejit.kernels import matmul_tcgen05

    a, b = torch.randn(128, 64).half(), torch.randn(128, 64).half()
    out = torch.empty(128, 128, dtype=torch.float16)
    plan = matmul_tcgen05.TcgenPlan(tile_n=128, stages=2)

    def call() -> torch.Tensor:
        with simulation(target="sm_100a"):
            matmul_tcgen05.matmul_tcgen05(a, b, None, out, plan, None)
        return out

    return call, a.float() @ b.float().t()


CASES = {
    "vector add 2**20 float32": vector_add,
    "softmax 256 x 4096 bfloat16": row_softmax,
    "matmul_mma 256 x 256 x 256 bfloat16": matmul,
    "matmul_tcgen05 128 x 128 x 64 float16": blackwell_tile,
}


def one(make: Callable[[], tuple[Callable[[], torch.Tensor], torch.Tensor]]) -> dict[str, Any]:
    """Seconds of a second call (the first also lowers and checks) and the result's error; or why
    there are none."""
    try:
        call, expected = make()
        call()
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    problem = harness.close(result, expected, TOLERANCE)
    if problem is not None:
        return {"failed": problem}
    relative = ((result.float() - expected).norm() / expected.norm()).item()
    return {"seconds": round(seconds, 3), "relative_error": relative}


def run() -> list[dict[str, Any]]:
    rows = []
    for name, make in CASES.items():
        row = {"case": name, **one(make)}
        rows.append(row)
        told = f"FAILED {row['failed']}" if "failed" in row else f"{row['seconds']:6.2f} s"
        print(f"simulator: {name:36s} {told}", flush=True)
    return rows
