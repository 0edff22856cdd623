"""Memory that kernels need beside their operands, kept from launch to launch and zero at first.

Launches on one stream follow one another, so that they may share it; a kernel that counts on zeros leaves
zeros. A CUDA graph may be replayed on any stream: it has its own, zeroed by each replay.

Not here: what a kernel keeps there.
"""

from __future__ import annotations

from functools import lru_cache

KEPT = 16
"""Tensors that are kept, of the shapes, streams and devices used last."""


@lru_cache(KEPT)
def _of_stream(device, stream: int, shape: tuple[int, ...], dtype):
    import torch

    return torch.zeros(shape, dtype=dtype, device=device)


def kept(shape: tuple[int, ...], dtype, device):
    """A tensor for launches on the current stream of ``device``: the same for equal arguments."""
    import torch

    if device.type != "cuda":
        return torch.zeros(shape, dtype=dtype, device=device)
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            return torch.zeros(shape, dtype=dtype, device=device)
        return _of_stream(device, torch.cuda.current_stream().cuda_stream, shape, dtype)
