"""Shared buffers of four-bit elements: two in a byte, moved as bytes or words of any view."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.sim.written import kernel
from tilejit import T, dtypes, jit
from tilejit.errors import ContractError, SyntaxUnsupported
from tilejit.ir.signature import TensorArg

BYTES = TensorArg(dtypes.uint8, (128, 64), (64, 1), 16)
LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
SWIZZLED = "swizzle(5,2,3) o (128,128):(128,1)"
"""Rows of 64 bytes, their 16-byte chunks swizzled as a tensor map's swizzle 2 does."""


@jit
def through_boxes(
    X: T.Tensor((128, 64), "uint8"),
    Y: T.Tensor((128, 64), "uint8"),
    Z: T.Tensor((128, 64), "uint8"),
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((128, 128), "float4_e2m1fn", layout=SWIZZLED, align=1024)
    bar = T.alloc_shared((1,), "uint64", align=8)
    packed = s.view("uint8")
    T.static_assert(packed.shape == (128, 64))
    T.static_assert(packed.view("float4_e2m1fn").layout == s.layout)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), 1)
        T.ptx["fence.proxy.async.shared::cta"]()
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](bar.ptr_to([0]), 128 * 64)
        T.cuda.tile.apply(
            T.ptx[LOAD], packed, X, box=(128, 64), coords=(0, 0), mbar=bar.ptr_to([0]), swizzle=2
        )
    T.cuda.cta_sync()
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    for i in range(64):
        r = T.alloc_local((1,), "uint8", layout="default")
        T.ptx["ld.shared.b8"](r[0], s.ptr_to([t, 2 * i]))
        Z[t, i] = r[0]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(T.ptx[STORE], Y, packed, box=(128, 64), coords=(0, 0), swizzle=2)
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def test_boxes_of_packed_bytes(device: str) -> None:
    x = torch.randint(0, 256, (128, 64), dtype=torch.uint8).to(device)
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    through_boxes(x, y, z)
    assert torch.equal(x, y) and torch.equal(x, z)


@jit
def by_words(X: T.Tensor((128, 16), "uint32"), Y: T.Tensor((64, 128), "uint8")):
    """Rows 64 on of a buffer, written as words and read as the bytes of one element pair."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((128, 128), "float4_e2m1fn", layout="default")
    r = T.alloc_local((4,), "uint32", layout="default")
    for i in T.unroll(4):
        for j in T.unroll(4):
            r[j] = X[t, 4 * i + j]
        T.cuda.tile.apply(
            T.ptx["st.shared.v4.b32"], s.sub[t, 32 * i : 32 * i + 32].view("uint32"), r
        )
    T.cuda.cta_sync()
    q = T.alloc_local((8,), "float4_e2m1fn", layout="default")
    for row in range(64):
        T.cuda.tile.apply(
            T.ptx["ld.shared.b32"],
            q.view("uint32"),
            s.sub[64 + row, t // 8 * 8 : t // 8 * 8 + 8].view("uint32"),
        )
        Y[row, t] = q.view("uint8")[t % 8 // 2] >> T.uint8(t % 2 * 4) & T.uint8(15)


def test_words_of_packed_elements(device: str) -> None:
    x = torch.randint(0, 1 << 31, (128, 16), dtype=torch.int64).to(torch.uint32)
    y = torch.zeros((64, 128), dtype=torch.uint8, device=device)
    by_words(x.to(device), y)
    packed = x.numpy().view(np.uint8)[64:]
    expected = np.stack([packed & 15, packed >> 4], axis=-1).reshape(64, 128)
    assert np.array_equal(y.cpu().numpy(), expected)


@pytest.mark.parametrize(
    "line, error, message",
    [
        ("x = s[t, 0]", SyntaxUnsupported, "packed and have no address"),
        ("s[t, 0] = 1.0", SyntaxUnsupported, "packed and have no address"),
        ("T.ptx['ld.shared.b8'](b[0], s.ptr_to([t, 1]))", SyntaxUnsupported, "2 in a byte, and this one is not"),
        ("T.ptx['ld.shared.b8'](b[0], s.ptr_to([0, t]))", SyntaxUnsupported, "2 in a byte, and this one is not"),
        ("x = s.sub[0, t : t + 8].view('uint8')", SyntaxUnsupported, "not known to be whole uint8"),
        ("x = s.sub[0, 0:3].view('uint8')", SyntaxUnsupported, "do not fill whole uint8"),
        (f"if t == 0:\n        T.cuda.tile.apply(T.ptx['{LOAD}'], s, X, box=(128, 64), coords=(0, 0), mbar=bar.ptr_to([0]))",
         ContractError, "expected uint8 in shared memory"),
    ],
)  # fmt: skip
def test_what_has_no_address(line: str, error: type[Exception], message: str) -> None:
    text = f"""def k(X):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((128, 128), "float4_e2m1fn", layout="default", align=1024)
    b = T.alloc_local((1,), "uint8", layout="default")
    bar = T.alloc_shared((1,), "uint64", align=8)
    {line}
"""
    made: Any = kernel(text)
    with pytest.raises(error, match=message):
        made.check(BYTES, target="sm_90a")


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_they_assemble(target: str) -> None:
    words = TensorArg(dtypes.uint32, (128, 16), (16, 1), 16)
    nibbles = TensorArg(dtypes.uint8, (64, 128), (128, 1), 16)
    assert through_boxes.compile(BYTES, BYTES, BYTES, target=target).cubin
    assert by_words.compile(words, nibbles, target=target).cubin
