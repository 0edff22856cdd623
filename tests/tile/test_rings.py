"""Stage indices of a ring, in every spelling that kernels use: the checker knows their range."""

from __future__ import annotations

import pytest
import torch

import tilejit as tile
from tilejit import T

SPELLINGS = ("up", "early", "unequal", "greater", "modulo", "select", "down", "down early", "xor")


@tile.jit
def ring(X: T.Tensor((32, 4), "float32", align=16), n: T.int32, STAGES: T.constexpr, LIMIT: T.constexpr,
         SPELLING: T.constexpr):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    staged = T.alloc_shared((STAGES, 32, 4), "float32", layout="default", align=16)
    thread = T.cuda.thread_idx("x")
    r = T.alloc_local((4,), "float32", layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X.sub[thread, :])
    stage = 0
    for _ in range(n):
        T.cuda.tile.apply(T.ptx["st.shared.v4.b32"], staged.sub[stage, thread, :], r)
        if SPELLING == "up":
            stage += 1
            if stage == LIMIT:
                stage = 0
        elif SPELLING == "early":
            if stage == LIMIT - 1:
                stage = 0
            else:
                stage += 1
        elif SPELLING == "unequal":
            if stage != LIMIT - 1:
                stage += 1
            else:
                stage = 0
        elif SPELLING == "greater":
            stage += 1
            if stage >= LIMIT:
                stage = 0
        elif SPELLING == "modulo":
            stage = (stage + 1) % LIMIT
        elif SPELLING == "select":
            stage = 0 if stage + 1 == LIMIT else stage + 1
        elif SPELLING == "down":
            if stage == 0:
                stage = LIMIT
            stage -= 1
        elif SPELLING == "down early":
            if stage != 0:
                stage -= 1
            else:
                stage = LIMIT - 1
        else:
            stage ^= LIMIT - 1


def check(stages: int, limit: int, spelling: str) -> None:
    ring.check(torch.zeros(32, 4), 5, STAGES=stages, LIMIT=limit, SPELLING=spelling)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_a_ring_stays_inside(stages: int, spelling: str) -> None:
    if spelling == "xor":
        stages = 2
    check(stages, stages, spelling)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_one_stage_too_many_is_refused(stages: int, spelling: str) -> None:
    with pytest.raises(tile.ContractError) as caught:
        check(stages, stages + 1, spelling)
    assert set(caught.value.codes) == {"tile/bounds"}
