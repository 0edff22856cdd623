"""Tensor memory in generated text: a tensor is a variable with its address, addresses are 32-bit sums."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from tilejit import T, dtypes, jit
from tilejit.ir.signature import TensorArg

OUT = TensorArg(dtypes.uint32, (128,), (1,), 16)
SHIFT = "tcgen05.shift.cta_group::1.down"


@jit
def raw(out: T.Tensor((128,), "uint32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    slot = T.alloc_shared((1,), "uint32")
    warp, t = T.cuda.warp_id(), T.cuda.thread_idx("x")
    if warp == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), 64)
        T.ptx["tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned"]()
    T.cuda.cta_sync()
    d = T.cuda.decl_tmem(slot[0], (128, 32), "float32", layout="(128,32):(1@TLane,1@TCol)")
    late = T.cuda.get_tmem_addr(d.ptr_to(), 0, 32)
    e = T.cuda.decl_tmem(late, (128, 32), "float16", layout="(128,32):(1@TLane,2@TCol)")
    if t == 0:
        T.ptx[SHIFT](d.ptr_to([32, 8]))
        T.ptx[SHIFT](e.sub[:, 4:].ptr_to([0, n]))
        T.ptx[SHIFT](late)
    for i in T.unroll(2):
        f = T.cuda.decl_tmem(d.ptr_to([0, 8 * i]), (8,), "uint32", layout="(8):(1@TCol)")
        if t == 0:
            T.ptx[SHIFT](f.ptr_to([4]))
    T.cuda.cta_sync()
    out[t] = T.cast(d.ptr_to([64, 1]), "uint32")
    if warp == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](d.ptr_to([0, 0]), 64)


@pytest.fixture(params=["sm_100a", "sm_103a"])
def text(request: pytest.FixtureRequest) -> str:
    """Assembled by NVRTC."""
    variant = raw.compile(OUT, 3, target=request.param)
    assert variant.cubin
    return str(variant.cuda)


def operands(text: str, instruction: str) -> list[tuple[str, str]]:
    """The bracket (or register) and the first input of every such instruction."""
    found = re.findall(
        rf'{re.escape(instruction)} (\S*?)[;,].*? : "r"\(((?:[^"]|\n)*?)\)(?:,|[ );])', text
    )
    return [(bracket, value) for bracket, value in found]


def test_a_tensor_is_a_variable_with_its_address(text: str) -> None:
    assert "const u32 d_ = (*(const u32*)(tj_smem + 0));" in text
    assert "const u32 late_ = (d_ + 32u);" in text and "const u32 e_ = late_;" in text
    assert re.findall(r"const u32 f(?:_\d)?_ = (.*);", text) == ["d_", "(d_ + 8u)"]
    assert f"(d_ + {(64 << 16) + 1}u)" in text


def test_known_parts_of_addresses_are_immediates(text: str) -> None:
    (first, by_n, late, *rounds) = operands(text, SHIFT)
    assert first == (f"[%0+{(32 << 16) + 8}]", "d_")
    assert by_n[0] == "[%0]" and by_n[1].startswith("(e_ + (u32)") and "n_" in by_n[1]
    assert late == ("[%0]", "late_")
    assert [bracket for bracket, _ in rounds] == ["[%0+4]", "[%0+4]"]
    assert operands(text, "tcgen05.dealloc.cta_group::1.sync.aligned.b32") == [("%0", "d_")]


@jit
def addresses(out: T.Tensor((5, 128), "uint32"), base: T.uint32, n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    slot = T.alloc_shared((1,), "uint32")
    if t == 0:
        slot[0] = base
    T.cuda.cta_sync()
    d = T.cuda.decl_tmem(slot[0], (128, 32), "float32", layout="(128,32):(1@TLane,1@TCol)")
    mine = T.cuda.get_tmem_addr(d.ptr_to(), t // 32 * 32, n)
    at = d.ptr_to([1, 2])
    for i in range(n):
        e = T.cuda.decl_tmem(
            T.cuda.get_tmem_addr(mine, 0, -i), (8,), "uint16", layout="(8):(1@TCol)"
        )
        at = e.ptr_to([4])
        out[3, t] = T.cast(d.sub[32:, 2 * i : 2 * i + 4].ptr_to([1, t % 4]), "uint32")
    out[0, t] = mine
    out[1, t] = T.cast(d.ptr_to([64, 31]), "uint32")
    out[2, t] = T.cast(at, "uint32")
    out[4, t] = T.cast(d.view("bfloat16").ptr_to([127, 62]), "uint32")


@pytest.mark.parametrize("base", [0, (3 << 16) + 256])
def test_addresses_are_sums_of_lanes_and_columns(device: str, base: int) -> None:
    out = torch.zeros((5, 128), dtype=torch.uint32, device=device)
    addresses(out, base, 3)
    t = np.arange(128, dtype=np.int64)
    mine = base + (t // 32 * 32 << 16) + 3
    expected = [mine, np.full(128, base + (64 << 16) + 31), mine - 2 + 2]
    expected += [base + (33 << 16) + 4 + t % 4, np.full(128, base + (127 << 16) + 31)]
    assert (out.cpu().numpy().astype(np.int64) == np.stack(expected)).all()
    addresses(out, base, 0)
    assert int(out[2, 0]) == base + (1 << 16) + 2
