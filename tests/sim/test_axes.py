"""An index outside its axis is a fault even where the address it gives is inside the buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilejit as tile
from tilejit import T


@tile.jit
def load(X: T.Tensor(("M", "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):
    M, _ = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    if t < M - 1:
        total = 0.0
        for j in range(last + 1):
            total += X[t, j]
        Y[t] = total


@tile.jit
def row(X: T.Tensor((T.dynamic("M"), "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    x = X.sub[1, :]
    Y[0] = x[last - 8 + 8]


@tile.jit
def store(X: T.Tensor(("M", T.dynamic("N")), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    X[0, last] = 1.0


@tile.jit
def shared(X: T.Tensor(("M", "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    s = T.alloc_shared((4, 8), "float32", layout="default")
    s[0, last] = 1.0


@tile.jit
def negative(X: T.Tensor(("M", "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    Y[0] = X[2, 7 - last]


@pytest.mark.parametrize("kernel", [load, row, store, shared, negative], ids=lambda k: k.__name__)
def test_the_nearest_index_outside_an_axis(kernel: Callable[..., Any]) -> None:
    x, y = torch.ones(4, 8), torch.zeros(4)
    kernel(x, y, 7)
    where = "axis 0" if kernel is row else "axis 1"
    with pytest.raises(
        tile.TileError, match=rf"index (8|-1) of {where} of `\w`, whose extent is 8"
    ):
        kernel(x, y, 8)
