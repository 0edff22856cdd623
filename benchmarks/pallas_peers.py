"""The Pallas kernel that the benchmarks compare with: JAX's own Mosaic GPU matrix product for Hopper,
tuned over a few of its configurations.

It takes row-major operands only; tensors change hands by DLPack, without a copy. JAX works on its own
stream: whoever times it must wait for its results. Not here: the timing (``harness.time_by_host``).
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

# Read when JAX is imported; otherwise it takes three quarters of a card that torch uses, too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as hopper

TUNE_SECONDS = 6.0
"""After this no further configuration is tried for a shape, compilation included."""

_tuned: dict[tuple[int, int, int], Callable[[jax.Array, jax.Array], jax.Array]] = {}


def matmul(a: torch.Tensor, b: torch.Tensor) -> Callable[[], jax.Array]:
    """A function of ``a @ b``, in the fastest configuration for its shape. A transposed ``b`` is copied
    to row-major once, here."""
    torch.cuda.synchronize()
    left, right = (jax.dlpack.from_dlpack(x.contiguous()) for x in (a, b))
    shape = (a.shape[0], b.shape[1], a.shape[1])
    if shape not in _tuned:
        _tuned[shape] = _fastest(left, right)
    return partial(_tuned[shape], left, right)


def _fastest(left: jax.Array, right: jax.Array) -> Callable[[jax.Array, jax.Array], jax.Array]:
    end = time.perf_counter() + TUNE_SECONDS
    seconds: dict[Callable[[jax.Array, jax.Array], jax.Array], float] = {}
    problems: list[str] = []
    for config in _configurations():
        product = jax.jit(partial(_matmul, config=config))
        try:
            seconds[product] = _seconds(partial(product, left, right))
        except Exception as error:
            problems.append(f"{config}: {type(error).__name__}: {error}")
        if time.perf_counter() > end:
            break
    if not seconds:
        raise RuntimeError("no configuration works; " + "; ".join(problems))
    return min(seconds, key=seconds.__getitem__)


def _configurations() -> Iterator[Any]:
    """CTAs of 128 x 256 and 256 x 128: two warpgroups side by side or one above the other."""
    for minor in hopper.MatmulDimension:
        for side in reversed(hopper.MatmulDimension):
            yield hopper.TuningConfig(
                tile_m=128, tile_n=128, tile_k=64, max_concurrent_steps=4,
                grid_minor_dim=minor, grid_tile_width=8, wg_dimension=side,
            )  # fmt: skip


def _matmul(left: jax.Array, right: jax.Array, config: Any) -> jax.Array:
    # Some versions take a C to be added.
    added = {"c": None} if "c" in inspect.signature(hopper.matmul).parameters else {}
    product: jax.Array = hopper.matmul(left, right, config=config, **added)
    return product


def _seconds(run: Callable[[], jax.Array], calls: int = 20) -> float:
    for _ in range(2):
        run().block_until_ready()
    start = time.perf_counter()
    for _ in range(calls):
        result = run()
    result.block_until_ready()
    return (time.perf_counter() - start) / calls
