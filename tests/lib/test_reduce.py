"""Warp and CTA reductions against torch, on the simulator and the GPU."""

from __future__ import annotations

import pytest
import torch

from tilejit import T, jit
from tilejit.lib import reduce

COMBINE = {"add": reduce.add, "maximum": reduce.maximum, "minimum": reduce.minimum}
TORCH = {"add": torch.sum, "maximum": torch.amax, "minimum": torch.amin}


@jit
def reduce_groups(
    X: T.Tensor(("N",)), Y: T.Tensor(("N",)), combine: T.constexpr, width: T.constexpr
):
    """Y[i] = the combination of X over the aligned group of ``width`` threads that holds i."""
    (N,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=N))
    scratch = None
    if width > 32:
        scratch = T.alloc_shared((N // 32,), X.dtype, layout="default")
    t = T.cuda.thread_idx("x")
    Y[t] = reduce.threads(X[t], combine, scratch, width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("combine", sorted(COMBINE))
@pytest.mark.parametrize("width", [1, 2, 8, 32, 64, 256, 1024])
def test_groups_of_threads(device: str, width: int, combine: str, dtype: torch.dtype) -> None:
    threads = max(128, width)
    x = torch.arange(threads).mul(37).remainder(101).sub(50).to(dtype).to(device)
    y = torch.zeros_like(x)
    reduce_groups(x, y, COMBINE[combine], width)
    expected = TORCH[combine](x.view(-1, width), 1).to(dtype)
    assert torch.equal(y.view(-1, width), expected[:, None].expand(-1, width))


def test_a_nan_is_ignored_by_maximum_as_by_ptx(device: str) -> None:
    x = torch.full((128,), float("nan"), device=device)
    x[5] = -3.0
    y = torch.zeros_like(x)
    reduce_groups(x, y, reduce.maximum, 128)
    assert (y == -3.0).all()
