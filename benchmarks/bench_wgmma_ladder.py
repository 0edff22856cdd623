"""The steps of ``tutorials/10_wgmma_gemm.py`` against ``torch.mm``, one case per step.

C = A @ B^T of bfloat16 matrices of random normal data, float32 accumulation. Sustained: the last steps
hold the card at its power limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks import bench_ladder
from tilejit.testing import timing


def run() -> Iterator[dict[str, Any]]:
    yield from bench_ladder.steps("10_wgmma_gemm", torch.bfloat16, {"sustained": timing.sustained})
