"""Seconds the simulator takes, hazards on: a vector add of 2**20 elements, a 256 x 4096 softmax."""

from __future__ import annotations

import time
from typing import Any

import torch

from tilejit.kernels import add, softmax


def run() -> list[dict[str, Any]]:
    a, b = torch.randn(1 << 20), torch.randn(1 << 20)
    x = torch.randn(256, 4096).bfloat16()
    rows = []
    for name, call, expected in (
        ("vector add 2**20 float32", lambda: add.add(a, b), a + b),
        ("softmax 256 x 4096 bfloat16", lambda: softmax.softmax(x), torch.softmax(x.float(), -1)),
    ):
        call()
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        error = ((result.float() - expected).norm() / expected.norm()).item()
        if not error < 5e-3:
            raise AssertionError(f"{name}: relative error {error}")
        rows.append({"case": name, "seconds": round(seconds, 3), "relative_error": error})
        print(f"simulator: {name:30s} {seconds:6.2f} s")
    return rows
