"""bfloat16 matrix products against cuBLAS (``torch.mm``) and Triton's plain matmul, tuned.

C = A @ B with random normal data and float32 accumulation. ``NT``: B is the transposed view of an
(N, K) matrix, so that both operands are contiguous along K; ``NN``: both are row-major. The large
products are timed sustained and interleaved, the others interleaved only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks import harness
from tilejit.testing import timing

LARGE = (
    ("NT", 4096, 4096, 4096),
    ("NT", 8192, 8192, 8192),
    ("NN", 4096, 4096, 4096),
    ("NN", 8192, 8192, 8192),
)
"""These hold the card at its power limit."""

OTHERS = (("NT", 4097, 4095, 4099), ("NT", 512, 512, 512))
"""One without any alignment, one of a few tiles."""

TOLERANCE = 3e-3
"""Of the norm; rounding the result to bfloat16 alone gives 1.7e-3."""


def case(layout: str, m: int, n: int, k: int, device: str = "cuda") -> harness.Case:
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    b = torch.randn((n, k) if layout == "NT" else (k, n), device=device, dtype=torch.bfloat16)
    if layout == "NT":
        b = b.t()
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    expected = a.float() @ b.float()

    def tilejit() -> Any:
        from tilejit.kernels import matmul_mma

        return matmul_mma.matmul(a, b, out=out)

    def triton() -> Any:
        from benchmarks import triton_peers

        triton_peers.matmul(a, b, out)

    def check(run: Callable[[], Any]) -> str | None:
        return harness.left_in(run, out, expected, TOLERANCE)

    contenders: timing.Contenders = {
        "cublas": partial(torch.mm, a, b, out=out),
        "tilejit": tilejit,
        "triton": triton,
    }
    return harness.Case(
        f"{layout} {m} x {n} x {k}",
        2 * (m * k + k * n + m * n),
        contenders,
        {name: partial(check, run) for name, run in contenders.items()},
        flops=2 * m * n * k,
    )


def run() -> Iterator[dict[str, Any]]:
    resources = harness.Resources("tilejit.kernels.matmul_mma")
    for shape in LARGE + OTHERS:
        made = case(*shape)
        protocols: dict[str, timing.TimeBy] = {"interleaved": timing.interleaved}
        if shape in LARGE:
            protocols = {"sustained": timing.sustained, **protocols}
        yield from harness.compare_flops(made, "cublas", protocols)
        yield from resources.rows(made.name)
        del made
        torch.cuda.empty_cache()
