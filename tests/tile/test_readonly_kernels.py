"""Stores of every kind to tensors whose elements share addresses, beside a run-time size."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tilejit import T


@tile.jit
def by_tile(Y: T.Tensor((T.dynamic("M"), "N"), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=Y.shape[0], block=32))
    r = T.alloc_local((1, 1), "float32", layout="default")
    r[0, 0] = 1.0
    t = T.cuda.thread_idx("x")
    row = Y.sub[T.cuda.block_idx("x"), t : t + 1]
    T.cuda.tile.apply(T.ptx["st.global.b32"], row.view(1, 1), r)


@tile.jit
def by_element(Y: T.Tensor((T.dynamic("M"), "N"), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=Y.shape[0], block=32))
    Y[T.cuda.block_idx("x"), T.cuda.thread_idx("x")] = 1.0


@tile.jit
def by_pointer(Y: T.Tensor((T.dynamic("M"), "N"), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=Y.shape[0], block=32))
    place = Y.ptr_to([T.cuda.block_idx("x"), T.cuda.thread_idx("x")])
    T.ptx.st.global_.b32(place, T.uint32(1))


TENSORS = {
    "broadcast": (torch.zeros(1, 32).expand(4, 32), False),
    "overlapping rows": (torch.zeros(400).as_strided((4, 32), (16, 1)), False),
    "touching rows": (torch.zeros(4, 32), True),
    "padded rows": (torch.zeros(4, 64)[:, :32], True),
    "one row": (torch.zeros(32).expand(1, 32), True),
    "columns": (torch.zeros(32, 4).t(), True),
}


@pytest.mark.parametrize("kernel", [by_tile, by_element, by_pointer], ids=lambda k: k.__name__)
@pytest.mark.parametrize("name", TENSORS)
def test_stores_beside_a_runtime_size(kernel: Any, name: str) -> None:
    tensor, legal = TENSORS[name]
    if legal:
        kernel.check(tensor)
        return
    with pytest.raises(tile.ContractError, match="tile/read-only"):
        kernel.check(tensor)
