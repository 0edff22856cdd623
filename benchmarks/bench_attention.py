"""bfloat16 attention against torch's own: flash (the baseline), cuDNN, and Triton's as in its tutorial.

16384 tokens a batch, 2048 channels, sequences of 8192: 16 heads of 128 or 32 of 64. Operations are
counted as usual, 4 B H S S D, and half of that for a causal mask. The reference is float32
arithmetic on the first and the last head; the rest of the result must at least have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks import harness
from tilejit.testing import timing

BATCH_TOKENS = 16384
CHANNELS = 2048
TOKENS = 8192
HEADS = ((128, False), (128, True), (64, False), (64, True))
"""Channels of a head, and whether the mask is causal."""

TOLERANCE = 8e-3
"""Of the norm: probabilities are rounded to bfloat16 before they meet V, and so is the result."""

PROTOCOLS: dict[str, timing.TimeBy] = {
    "sustained": partial(timing.sustained, settle_seconds=0.35, measure_seconds=0.35),
    "interleaved": timing.interleaved,
}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Attention of (heads, S, D) in float32."""
    scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill_(later, float("-inf"))
    return torch.softmax(scores, -1) @ v.float()


def some_heads(x: torch.Tensor) -> torch.Tensor:
    """The first and the last head of (B, H, S, D), as (2, S, D)."""
    return torch.stack((x[0, 0], x[-1, -1]))


def backend(
    which: SDPBackend, causal: bool, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    with sdpa_kernel(which):
        return scaled_dot_product_attention(q, k, v, is_causal=causal)


def contenders(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: bool
) -> timing.Contenders:
    """Each fills ``out`` or returns the result."""

    def tilejit() -> Any:
        from tilejit.kernels import attention_mma

        return attention_mma.attention(q, k, v, causal=causal, out=out)

    def triton() -> Any:
        from benchmarks import triton_peers

        triton_peers.attention(q, k, v, out, causal)

    return {
        "torch flash": partial(backend, SDPBackend.FLASH_ATTENTION, causal, q, k, v),
        "tilejit": tilejit,
        "triton": triton,
        "torch cudnn": partial(backend, SDPBackend.CUDNN_ATTENTION, causal, q, k, v),
    }


def case(width: int, causal: bool, device: str = "cuda") -> harness.Case:
    shape = (BATCH_TOKENS // TOKENS, CHANNELS // width, TOKENS, width)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3))
    out = torch.empty_like(q)
    expected = reference(some_heads(q), some_heads(k), some_heads(v), causal)

    def check(run: Callable[[], Any]) -> str | None:
        result = harness.result_of(run, out)
        if not bool(torch.isfinite(result).all()):
            return "not every element was written, or some are not finite"
        heads_seen = some_heads(result)
        far = harness.close(heads_seen, expected, TOLERANCE)
        return far or harness.close_elements(heads_seen, expected)

    runs = contenders(q, k, v, out, causal)
    return harness.Case(
        f"D={width} S={TOKENS}{' causal' if causal else ''}",
        4 * q.numel() * q.element_size(),
        runs,
        {name: partial(check, run) for name, run in runs.items()},
        flops=4 * q.numel() * TOKENS // (2 if causal else 1),
    )


def run() -> Iterator[dict[str, Any]]:
    resources = harness.Resources("tilejit.kernels.attention_mma")
    for width, causal in HEADS:
        made = case(width, causal)
        yield from harness.compare_flops(made, "torch flash", PROTOCOLS)
        yield from resources.rows(made.name)
        del made
        torch.cuda.empty_cache()
