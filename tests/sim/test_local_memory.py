"""Local buffers addressed by ``ld.local`` and ``st.local``: bytes, mixed widths, and faults."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import tilejit as tile
from tilejit import T
from tilejit.errors import SimulationFault, Unsimulated


@tile.jit
def shuffle_bytes(X: T.Tensor((32, 4), "uint32"), Y: T.Tensor((32, 16), "uint8")):
    """Words stored by scalar code, read back as bytes at an address that depends on the thread."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    m = T.alloc_local((4,), "uint32", layout="default", align=16)
    for i in T.unroll(4):
        m[i] = X[t, i]
    r = T.alloc_local((16, 1), "uint8", layout="default")
    T.cuda.tile.apply(T.ptx["ld.local.b8"], r, m.view("uint8").view(16, 1))
    for i in T.unroll(16):
        Y[t, i] = r[i, 0]


def test_words_read_back_as_bytes() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, (32, 4), dtype=np.uint64).astype(np.uint32)
    out = torch.zeros(32, 16, dtype=torch.uint8)
    shuffle_bytes(torch.from_numpy(x), out)
    assert (out.numpy() == x.view(np.uint8)).all()


@tile.jit
def at_own_place(X: T.Tensor((32,), "uint64"), Y: T.Tensor((32, 2), "uint64"), shift: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    m = T.alloc_local((64,), "uint64", layout="default", align=16)
    r = T.alloc_local((2,), "uint64", layout="default")
    r[0] = X[t]
    r[1] = X[t] + 1
    p = T.alloc_local((2,), "uint64", layout="default")
    T.cuda.tile.apply(T.ptx["st.local.v2.b64"], m.sub[2 * t : 2 * t + 2], r)
    T.cuda.tile.apply(
        T.ptx["ld.local.v2.b64"], p, m.sub[2 * ((t + shift) % 32) : 2 * ((t + shift) % 32) + 2]
    )
    Y[t, 0] = p[0]
    Y[t, 1] = p[1]


def test_an_address_of_its_own_in_every_lane() -> None:
    x = torch.arange(32, dtype=torch.int64).view(torch.uint64)
    out = torch.zeros(32, 2, dtype=torch.int64).view(torch.uint64)
    at_own_place(x, out, 0)
    assert (out.view(torch.int64) == torch.stack([torch.arange(32), torch.arange(1, 33)], 1)).all()


def test_unwritten_local_bytes_are_reported() -> None:
    """Another lane's slot holds what *this* lane wrote there: nothing. Memory is private."""
    x = torch.arange(32, dtype=torch.int64).view(torch.uint64)
    with pytest.raises(SimulationFault, match=re.escape("`m` that nobody has written")) as caught:
        at_own_place(x, torch.zeros(32, 2, dtype=torch.int64).view(torch.uint64), 1)
    assert caught.value.codes[0] == "sim/unwritten-read"


@tile.jit
def through_pointers(X: T.Tensor((32,), "int32"), Y: T.Tensor((32,), "uint32"), how: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    m = T.alloc_local((4,), "uint32", layout="default", align=16)
    for i in T.unroll(4):
        m[i] = 10 * i
    r = T.alloc_local((2,), "uint32", layout="default")
    if how == "raw":
        T.ptx["ld.local.b32"](r[0], m.ptr_to([X[t]]))
    elif how == "vector":
        T.ptx["ld.local.v2.b32"]((r[0], r[1]), m.ptr_to([X[t]]))
    else:
        q = T.alloc_local((1,), "uint64", layout="default")
        q[0] = T.cast(m.ptr_to([0]), "uint64")
        T.ptx["ld.local.b32"](r[0], m.ptr_to([0]))
    Y[t] = r[0]


def test_raw_loads_at_run_time_addresses() -> None:
    x = torch.arange(32, dtype=torch.int32) % 4
    out = torch.zeros(32, dtype=torch.uint32)
    through_pointers(x, out, "raw")
    assert (out.view(torch.int32) == x * 10).all()


@pytest.mark.parametrize(("how", "index", "code"), [
    ("raw", 4, "sim/out-of-bounds"), ("raw", -1, "sim/out-of-bounds"), ("vector", 1, "sim/misaligned"),
    ("vector", 4, "sim/out-of-bounds"),
])  # fmt: skip
def test_faults_of_local_addresses(how: str, index: int, code: str) -> None:
    x = torch.full((32,), index, dtype=torch.int32)
    with pytest.raises(SimulationFault) as caught:
        through_pointers(x, torch.zeros(32, dtype=torch.uint32), how)
    assert code in caught.value.codes


def test_local_addresses_are_no_numbers() -> None:
    with pytest.raises(Unsimulated, match="local"):
        through_pointers(
            torch.zeros(32, dtype=torch.int32), torch.zeros(32, dtype=torch.uint32), "number"
        )
