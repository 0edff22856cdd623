"""``setmaxnreg`` by what the program alone tells: directions, the sum, what wgmma holds."""

from __future__ import annotations

from typing import Any

import pytest

import tilejit as tile
from tilejit import T
from tilejit.errors import ContractError

CODE = "tile/register-budget"


@tile.jit
def roles(
    n: T.int32, WARPGROUPS: T.constexpr, FIRST: T.constexpr, OTHERS: T.constexpr,
    N: T.constexpr, GUARDED: T.constexpr, CAP: T.constexpr,
):  # fmt: skip
    """Warpgroup 0 changes to each of ``FIRST``, the others to each of ``OTHERS``; they multiply."""
    T.device_entry(
        launch=T.cuda.LaunchConfig(grid=1, block=128 * WARPGROUPS, max_registers_per_thread=CAP)
    )
    a = T.alloc_shared(
        (64, 64), "bfloat16", align=1024, layout=T.cuda.wgmma_shared_layout((64, 64), "bfloat16")
    )
    b = T.alloc_shared(
        (256, 64), "bfloat16", align=1024, layout=T.cuda.wgmma_shared_layout((256, 64), "bfloat16")
    )
    if T.cuda.warpgroup_id() == 0:
        for word, count in FIRST:
            T.ptx[f"setmaxnreg.{word}.sync.aligned.u32"](count)
    else:
        if not GUARDED or n > 0:
            for word, count in OTHERS:
                T.ptx[f"setmaxnreg.{word}.sync.aligned.u32"](count)
        if N > 0:
            d = T.alloc_local(
                (1, 1, 64, N), "float32", layout=T.cuda.wgmma_fragment_layout(N, (1, 1))
            )
            for _ in range(n):
                T.ptx["wgmma.fence.sync.aligned"]()
                T.cuda.tile.apply(
                    T.ptx[f"wgmma.mma_async.sync.aligned.m64n{N}k16.f32.bf16.bf16"], d,
                    a.view(1, 64, 4, 16).permute(0, 2, 1, 3),
                    b.view(1, N, 4, 16).permute(0, 2, 1, 3), scope="warpgroup",
                )  # fmt: skip
                T.ptx["wgmma.commit_group.sync.aligned"]()
                T.ptx["wgmma.wait_group.sync.aligned"](0)


def found(
    first: Any, others: Any, warpgroups: int = 3, n: int = 0, guarded: bool = False, cap: Any = None
) -> str:
    """The report's text; empty for a kernel that keeps its contracts."""
    try:
        roles.check(3, warpgroups, first, others, n, guarded, cap, target="sm_90a")
    except ContractError as error:
        assert {d.code for d in error.diagnostics} == {CODE}
        return str(error)
    return ""


DEC, INC = (("dec", 24),), (("inc", 240),)


@pytest.mark.parametrize(
    ("first", "others", "warpgroups"),
    [(DEC, INC, 3), ((("dec", 40),), (("inc", 232),), 3), ((("dec", 24), ("inc", 32)), (("inc", 232),), 3),
     ((("dec", 56),), (("inc", 256),), 2), ((("dec", 32),), (("inc", 160),), 4), ((), (), 3)],
)  # fmt: skip
def test_what_holds_is_accepted(first: Any, others: Any, warpgroups: int) -> None:
    assert found(first, others, warpgroups) == ""


def test_more_than_the_cta_has() -> None:
    """384 threads start with 168 registers each."""
    text = found(DEC, (("inc", 248),))
    assert "to have 24, 248, 248 registers for each thread, 66560 in all" in text
    assert "the CTA has 64512, 168 for each of 384 threads" in text
    assert "168, 240, 240" in found((), INC)
    assert "waits for ever" in found(DEC, INC, cap=128)


def test_the_wrong_direction() -> None:
    assert "setmaxnreg.dec to 176 registers, but a thread of warp 0 has 168" in found(
        (("dec", 176),), ()
    )
    assert "setmaxnreg.inc to 160 registers, but a thread of warp 4 has 168" in found(
        (), (("inc", 160),)
    )
    assert "setmaxnreg.dec to 40 registers, but a thread of warp 0 has 24" in found(
        (*DEC, ("dec", 40)), ()
    )


def test_what_a_run_time_guard_decides_is_left_to_the_simulator() -> None:
    assert found(DEC, (("inc", 248),), guarded=True) == ""


def test_accumulators_fit_what_their_warpgroup_has() -> None:
    assert found(DEC, INC, n=256) == ""
    text = found((), (("dec", 144),), n=256)
    assert "holds 128 accumulators and about 24 other registers; a thread of warp 4 has 144" in text
    assert found((), (("dec", 152),), n=256) == ""
