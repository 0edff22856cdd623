"""How many instructions are counted, against counts made by hand, and the work that they amount to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from tests.kernels import test_matmul_fp8 as fp8
from tilejit import T, jit
from tilejit.runtime.variant import Variant
from tilejit.tile.issue_counts import IssueCount, issue_counts, trips
from tilejit.tile.work import work

THREADS = 64


def counts(variant: Variant) -> list[IssueCount]:
    return list(issue_counts(variant.checked))


def found(variant: Variant, spelling: str) -> list[IssueCount]:
    return [c for c in counts(variant) if c.spelling == spelling]


@jit
def looped(x: T.Tensor(("N",)), y: T.Tensor(("N",)), rounds: T.int32, extra: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    i = T.cuda.thread_idx("x")
    a = T.alloc_local((4,), "float32", layout="default")
    load = T.ptx["ld.global.b32"]
    for step in range(3):
        for part in T.unroll(4):
            T.cuda.tile.apply(load, a.sub[part].view(1), x.sub[i].view(1))
        for again in range(0, rounds, 2):
            T.cuda.tile.apply(T.ptx["st.global.b32"], y.sub[i].view(1), a.sub[0].view(1))
    if i < 32:
        for other in range(i, extra, THREADS):
            y[i] = a[0]
    if rounds > 7:
        T.cuda.tile.apply(load, a.sub[1].view(1), x.sub[i].view(1))
    while rounds > 9:
        T.ptx["add.f32"](a[0], a[0], a[1])
        rounds = rounds - 1


@pytest.fixture(scope="module")
def loops() -> Variant:
    x = torch.zeros(THREADS)
    return looped.check(x, x.clone(), 5, 200, target="sm_90a")


@jit
def scattered(
    x: T.Tensor((THREADS,)), at: T.Tensor((THREADS,), "int32"), ends: T.Tensor((2,), "int32")
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    for step in range(ends[0], ends[1]):
        x[at[step]] = 1.0


def test_what_an_index_and_the_ends_of_a_loop_load_counts() -> None:
    x, whole = torch.zeros(THREADS), torch.zeros(THREADS, dtype=torch.int32)
    loads = found(scattered.check(x, whole, whole[:2], target="sm_90a"), "ld.global.b32")
    assert [(load.per_pass, len(load.loops)) for load in loads] == [(1, 0), (1, 0), (1, 1)]


def test_unrolled_copies_are_one_place_and_known_loops_multiply(loops: Variant) -> None:
    first = found(loops, "ld.global.b32")[0]
    assert (first.per_pass, first.per_thread_count, str(first)) == (4, 12, "12")
    assert (first.unit, first.units, first.threads, first.warps) == ("thread", THREADS, 64, 2)
    assert first.span is not None and not first.at_most


def test_a_loop_that_depends_on_the_launch_is_an_expression_of_it(loops: Variant) -> None:
    (store,) = [c for c in found(loops, "st.global.b32") if c.form is not None]
    assert store.per_thread_count is None
    assert str(store).startswith("3 × (") and "rounds" in str(store)
    for rounds, passes in ((5, 3), (4, 2), (0, 0), (-3, 0)):
        assert trips(store.loops, {"rounds": rounds}) == 3 * passes


def test_scalar_accesses_count_for_the_first_thread(loops: Variant) -> None:
    (store,) = [c for c in found(loops, "st.global.b32") if c.form is None]
    assert store.at_most and store.per_thread_count == 4  # 0, 64, 128 and 192


def test_guards_and_while_loops_are_said(loops: Variant) -> None:
    guarded = found(loops, "ld.global.b32")[-1]
    assert (str(guarded), guarded.per_thread_count) == ("at most 1", 1)
    (add,) = found(loops, "add.f32")
    assert add.per_thread_count is None and add.at_most
    assert "1 × rounds of the while loop of line" in str(add)


@jit
def collective(
    x: T.Tensor((128, 8), "float16", align=16), y: T.Tensor((128, 8), "float16", align=16)
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    s = T.alloc_shared((128, 8), "float16", layout="default", align=16)
    r = T.alloc_local((8,), "float16", layout="default")
    i = T.cuda.thread_idx("x")
    for part in range(8):
        s[i, part] = x[i, part]
    T.cuda.cta_sync()
    if T.cuda.warp_id() == 1:
        if T.cuda.elect_sync():
            T.cuda.tile.apply(
                T.ptx["ld.shared.v4.b32"], r.view("uint32"), s.sub[i, :].view("uint32")
            )
    y[i, 0] = r[0]


def test_who_issues() -> None:
    x = torch.zeros(128, 8, dtype=torch.float16)
    variant = collective.check(x, x.clone(), target="sm_90a")
    (load,) = found(variant, "ld.shared.v4.b32")
    assert (load.threads, load.warps, load.units) == (1, 1, 1)
    (barrier,) = found(variant, "cuda.cta_sync")
    assert (barrier.threads, barrier.warps) == (128, 4)
    (elect,) = found(variant, "cuda.elect_sync")
    assert (elect.unit, elect.units) == ("warp", 4)


def test_a_product_of_warpgroups() -> None:
    """FP8: the operations of all products are those of the tile, ragged or not."""
    plan = fp8.IN_USE[0]
    variant = fp8.module.matmul_scaled.check(
        *fp8.arguments(plan, 4096, torch.bfloat16), target="sm_90a"
    )
    products = [c for c in counts(variant) if c.spelling.startswith("wgmma.mma_async")]
    assert products and {c.unit for c in products} == {"warpgroup"}
    sizes = {"nctaid.x": 132, **sizes_of(variant, 4096)}
    done = work(variant.checked, sizes)
    tiles = -(-(4096 // plan.tile_m) * (4096 // plan.tile_n) // 132)
    assert done.amounts["tensor_8"] == 2 * plan.tile_m * plan.tile_n * 4096 * tiles
    assert not done.unknown
    copied = (plan.tile_m + plan.tile_n) * 4096 * tiles
    assert copied <= done.copied_bytes <= 1.1 * copied


def sizes_of(variant: Variant, extent: int) -> Mapping[str, int]:
    """Every size of the kernel's parameters that a launch gives."""
    return {p.name: extent for p in variant.function.params if str(p.type).startswith("int")}
