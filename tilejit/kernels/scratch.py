"""Memory that kernels need beside their operands, kept from launch to launch.

Launches on one stream follow one another, so that they may share it. Zeros are zero at first: a kernel that
counts on them leaves zeros. A CUDA graph may be replayed on any stream: it has memory of its own, of which
each replay clears the zeros. A stream is its handle: a handle that stands for several at a time
(``cudaStreamPerThread``) is not one.

Not here: what a kernel keeps there.
"""

from __future__ import annotations

from functools import lru_cache

from tilejit.kernels import operands

KEPT = 16
"""Tensors that are kept, of the shapes, streams and devices used last."""


def zeros(shape: tuple[int, ...], dtype, device):
    """A tensor for launches on the current stream of ``device``: the same for equal arguments."""
    return _kept(_zeros, shape, dtype, device)


def empty(shape: tuple[int, ...], dtype, device):
    """The same with anything in it, which costs a graph's replay nothing."""
    return _kept(_empty, shape, dtype, device)


def _zeros(shape: tuple[int, ...], dtype, device):
    import torch

    return torch.zeros(shape, dtype=dtype, device=device)


def _empty(shape: tuple[int, ...], dtype, device):
    import torch

    return torch.empty(shape, dtype=dtype, device=device)


def _kept(make, shape: tuple[int, ...], dtype, device):
    import torch

    if device.type != "cuda":
        return make(shape, dtype, device)
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            return make(shape, dtype, device)
        return _of_stream(make, shape, dtype, device, torch.cuda.current_stream().cuda_stream)


@lru_cache(KEPT)
def _of_stream(make, shape: tuple[int, ...], dtype, device, stream: int):
    """``ValueError`` for what only stands for a tensor, which would outlive the mode that it comes from."""
    made = make(shape, dtype, device)
    if not operands.has_memory(made):
        raise ValueError(
            f"torch gives a {type(made).__name__} without memory, where a kernel needs {shape} {dtype}: kernels "
            "do not run under torch.func, torch.export or a FakeTensorMode"
        )
    return made
