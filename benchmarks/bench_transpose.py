"""Transposes against torch, torch.compile and a device copy of the same bytes.

The odd sizes have no vector of more than one element; they show what the guarded path costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from benchmarks import bench_rows, harness
from tilejit.kernels import transpose
from tilejit.testing import timing

SHAPES = (
    (torch.bfloat16, 16384, 16384),
    (torch.float32, 16384, 16384),
    (torch.bfloat16, 4096, 65536),
    (torch.bfloat16, 65536, 4096),
    (torch.bfloat16, 16383, 16383),
    (torch.float32, 16383, 16383),
)


def case(dtype: torch.dtype, rows: int, columns: int, device: str = "cuda") -> harness.Case:
    x = torch.randn(rows, columns, device=device).to(dtype)
    out = torch.empty(columns, rows, device=device, dtype=dtype)
    expected = x.t().contiguous()
    compiled = torch.compile(lambda x: x.t().contiguous())

    def check(run: Callable[[], Any]) -> str | None:
        same = torch.equal(harness.result_of(run, out), expected)
        return None if same else "not the transpose, bit by bit"

    runs: timing.Contenders = {
        "tilejit": lambda: transpose.transpose(x, out),
        "torch": lambda: out.copy_(x.t()),
        "torch.compile": lambda: compiled(x),
    }
    return harness.Case(
        f"transpose {str(dtype).removeprefix('torch.')} {rows} x {columns}",
        2 * x.numel() * x.element_size(),
        {"copy": lambda: out.view(rows, columns).copy_(x), **runs},
        {name: partial(check, run) for name, run in runs.items()},
    )


def run() -> Iterator[dict[str, Any]]:
    for shape in SHAPES:
        made = case(*shape)
        yield from bench_rows.against_copy(made, made.moved_bytes)
        del made
        torch.cuda.empty_cache()
