"""The steps of ``tutorials/07_mma_gemm.py`` against ``torch.mm``, one case per step.

C = A @ B^T of float16 matrices of random normal data, float32 accumulation. Interleaved: the steps
are compared with each other through the product that each is timed beside.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks import harness
from tilejit.testing import timing

TUTORIALS = Path(__file__).parent.parent / "tutorials"

TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 3e-3}
"""Of the norm; rounding the result alone gives 2e-4 and 1.7e-3."""


def tutorial(stem: str) -> ModuleType:
    """A tutorial, imported for its kernels: a script whose name is no module's."""
    name = f"tutorials.{stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TUTORIALS / f"{stem}.py")
        assert spec is not None and spec.loader is not None
        # Kernels and dataclasses find their module by its name while it is executed.
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def case(
    step: str, kernel: Any, plan: Any, size: int, dtype: torch.dtype, device: str = "cuda"
) -> harness.Case:
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty(size, size, device=device, dtype=dtype)
    expected = a.float() @ b.float().t()

    def check(run: Callable[[], Any]) -> str | None:
        return harness.left_in(run, out, expected, TOLERANCE[dtype])

    contenders: timing.Contenders = {
        "cublas": partial(torch.mm, a, b.t(), out=out),
        "tilejit": partial(kernel, a, b, out, plan),
    }
    return harness.Case(
        step,
        3 * out.numel() * out.element_size(),
        contenders,
        {name: partial(check, run) for name, run in contenders.items()},
        flops=2 * size**3,
    )


def steps(
    stem: str, dtype: torch.dtype, protocols: dict[str, timing.TimeBy]
) -> Iterator[dict[str, Any]]:
    """Rows of every step of a tutorial's ``LADDER``."""
    module = tutorial(stem)
    resources = harness.Resources(module.__name__)
    for step, (kernel, plan) in module.LADDER.items():
        made = case(step, kernel, plan, module.SIZE, dtype)
        yield from harness.compare_flops(made, "cublas", protocols)
        yield from resources.rows(made.name)
        del made
        torch.cuda.empty_cache()


def run() -> Iterator[dict[str, Any]]:
    yield from steps("07_mma_gemm", torch.float16, {"interleaved": timing.interleaved})
