"""Sums that meet in global memory, on the simulator and the GPU: in the order of the parts, to the bit."""

from __future__ import annotations

import pytest
import torch

from tilejit import T, jit, simulation
from tilejit.lib import split_sums

VECTORS = 6


@jit
def met(
    X: T.Tensor(("PARTS", "GROUPS", VECTORS, 128, 4), "float32", align=16),
    Y: T.Tensor(("GROUPS", VECTORS, 128, 4), "float32", align=16),
    SLOTS: T.Tensor(("OTHERS", "GROUPS", VECTORS, 128, 4), "float32", align=16),
    FLAGS: T.Tensor(("OTHERS", "GROUPS"), "int32"),
):
    """Y = the sum of X over the parts, of which CTA ``part`` has one."""
    PARTS, GROUPS, _, _, _ = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=PARTS, block=128 * GROUPS))
    part, group = T.cuda.block_idx("x"), T.cuda.warpgroup_id()
    thread = T.cuda.thread_in_warpgroup()
    sums = T.alloc_local((VECTORS, 4), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], sums, X.sub[part, group, :, thread, :])
    if part < PARTS - 1:
        T.assume(part < PARTS - 1)
        split_sums.put(SLOTS.sub[part, group], FLAGS.ptr_to([part, group]), sums, 1 + group)
    else:
        for other in range(PARTS - 1):
            split_sums.add(SLOTS.sub[other, group], FLAGS.ptr_to([other, group]), sums, 1 + group)
        T.cuda.tile.apply(T.ptx["st.global.v4.b32"], Y.sub[group, :, thread, :], sums)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_parts_meet(device: str, parts: int, groups: int) -> None:
    generator = torch.Generator().manual_seed(parts)
    x = torch.randn(parts, groups, VECTORS, 128, 4, generator=generator)
    expected = x[-1]
    for part in x[:-1]:
        expected = expected + part
    slots = torch.empty(parts - 1, groups, VECTORS, 128, 4, device=device)
    flags = torch.zeros(parts - 1, groups, dtype=torch.int32, device=device)
    for seed in range(6):
        slots.fill_(float("nan"))
        y = torch.full((groups, VECTORS, 128, 4), float("nan"), device=device)
        with simulation(seed=seed):
            met(x.to(device), y, slots, flags)
        assert torch.equal(y.cpu(), expected)
        assert not flags.any()
