"""The end of a matrix product against torch: sums of known values to a matrix that clips them, on the
simulator and the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.lib.hopper import need_hopper
from tilejit import T, jit, simulation
from tilejit.errors import TileError
from tilejit.lib import activations, epilogue

BARRIER = 1
UNTOUCHED = 77.0


@jit
def ended(
    SUMS: T.Tensor(("ROWS", "COLUMNS"), "float32"), bias: T.Tensor(("N",)) | None,
    C: T.Tensor((T.dynamic("M"), "N")), D: T.Tensor((T.dynamic("M"), "N")),
    activation: T.constexpr, first_row: T.int32, first_slab: T.int32, slabs: T.constexpr,
    at_once: T.constexpr,
):  # fmt: skip
    """C from (first_row, 64 * first_slab) on = what a warpgroup with these sums makes of them; then D of
    twice the sums, while the buffer is in use."""
    ROWS, COLUMNS = SUMS.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    buffer = T.alloc_shared(
        (slabs, 64, 64), C.dtype, align=1024,
        layout=T.cuda.mma_shared_layout((slabs, 64, 64), C.dtype),
    )  # fmt: skip
    own_bias = None
    if bias is not None:
        own_bias = T.alloc_shared((COLUMNS,), "float32", layout="default", align=16)
    sums = T.alloc_local((ROWS // 64, COLUMNS // 8, 2, 2), "float32", layout="default")
    warp, lane = T.cuda.warp_in_warpgroup(), T.cuda.lane_id()
    for turn in T.unroll(2):
        for block in T.unroll(ROWS // 64):
            for eighth in T.unroll(COLUMNS // 8):
                for half in T.unroll(2):
                    for j in T.unroll(2):
                        row = block * 64 + warp * 16 + half * 8 + lane // 4
                        column = eighth * 8 + lane % 4 * 2 + j
                        sums[block, eighth, half, j] = SUMS[row, column] * (turn + 1)
        epilogue.store(
            (C, D)[turn], buffer, sums, bias, own_bias, activation, first_row, first_slab * 64,
            BARRIER, at_once,
        )  # fmt: skip
    epilogue.finish()


def check(
    device: str,
    sums: torch.Tensor,
    d: torch.Tensor,
    expected: Callable[[torch.Tensor], torch.Tensor],
    at: tuple[int, int] = (0, 0),
    bias: torch.Tensor | None = None,
    activation: Any = None,
    slabs: int = 2,
    at_once: int = 2,
) -> None:
    """``expected``: of the sums, as the result ``d`` and another one like it should be."""
    need_hopper(device)
    for seed in range(2):
        c = torch.empty_strided(d.shape, d.stride(), dtype=d.dtype, device=device)
        for result in (c, d):
            result.fill_(UNTOUCHED)
        with simulation(seed=seed):
            ended(sums.to(device), bias, c, d, activation, at[0], at[1] // 64, slabs, at_once)
        assert torch.equal(c.cpu().float(), expected(sums))
        assert torch.equal(d.cpu().float(), expected(2 * sums))


def sums_of(rows: int, columns: int) -> torch.Tensor:
    """Exact in bfloat16, also twice as large."""
    generator = torch.Generator().manual_seed(rows * 31 + columns)
    return torch.randint(-60, 61, (rows, columns), generator=generator).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("columns", "slabs", "at_once"),
    [(64, 1, 1), (128, 1, 1), (128, 2, 1), (192, 3, 3), (192, 2, 2), (192, 2, 1), (256, 4, 2)],
)
def test_slabs_of_a_buffer(
    device: str, columns: int, slabs: int, at_once: int, dtype: torch.dtype
) -> None:
    d = torch.empty(64, columns, dtype=dtype, device=device)
    check(device, sums_of(64, columns), d, lambda sums: sums, slabs=slabs, at_once=at_once)


@pytest.mark.parametrize("at", [(0, 0), (64, 64), (128, 192), (192, 0)])
def test_what_lies_beyond_the_matrix_is_not_stored(device: str, at: tuple[int, int]) -> None:
    whole = torch.full((150, 216), UNTOUCHED, dtype=torch.bfloat16, device=device)

    def clipped(sums: torch.Tensor) -> torch.Tensor:
        expected = torch.full((320, 320), UNTOUCHED)
        expected[at[0] : at[0] + 128, at[1] : at[1] + 128] = sums
        return expected[:150, :200]

    check(device, sums_of(128, 128), whole[:, 8:208], clipped, at)
    assert (whole[:, :8] == UNTOUCHED).all() and (whole[:, 208:] == UNTOUCHED).all()


@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bias_then_activation(device: str, bias_dtype: torch.dtype) -> None:
    bias = torch.arange(-50, 50).to(bias_dtype).to(device)
    d = torch.empty(40, 104, dtype=torch.float16, device=device)[:, :100]
    check(
        device, sums_of(64, 128), d,
        lambda sums: torch.relu(sums[:40, :100] + bias.cpu().float()),
        bias=bias, activation=activations.relu,
    )  # fmt: skip


@jit
def without_own_bias(C, bias, at_once: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    shape = (2, 64, 1024 // C.dtype.bits)
    layout = T.cuda.mma_shared_layout(shape, C.dtype)
    buffer = T.alloc_shared(shape, C.dtype, align=1024, layout=layout)
    sums = T.alloc_local((1, 8, 2, 2), "float32", layout="default")
    epilogue.store(C, buffer, sums, bias, None, None, 0, 0, BARRIER, at_once)


@pytest.mark.parametrize(
    ("biased", "at_once", "message"),
    [(True, 1, "a bias needs own_bias"), (False, 0, "whole number of batches"), (False, 3, "whole number of batches")],
)  # fmt: skip
def test_what_does_not_fit_together(biased: bool, at_once: int, message: str) -> None:
    c = torch.zeros(64, 64, dtype=torch.bfloat16)
    with pytest.raises(TileError, match=message):
        without_own_bias.check(c, torch.zeros(64) if biased else None, at_once, target="sm_90a")
    with pytest.raises(TileError, match="a bias is for slabs of 64 columns"):
        without_own_bias.check(c.float(), torch.zeros(64), 1, target="sm_90a")
