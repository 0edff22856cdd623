"""The model orders obvious pairs of kernels rightly, and what it says is no time."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilejit import T, jit
from tilejit.runtime.variant import Variant
from tilejit.target import TARGETS
from tilejit.tile.work import ARITHMETIC, ISSUE, L1, L2, Work
from tilejit.tune.model import LATENCY_CYCLES, RATES, RESOURCES, Estimate, estimate, of_work

BLOCK = 256


@jit
def copy(x: T.Tensor(("V", "WIDTH")), y: T.Tensor(("V", "WIDTH")), PER_THREAD: T.constexpr):
    """PER_THREAD loads of WIDTH elements at a time, one after another."""
    V, WIDTH = x.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=V // (BLOCK * PER_THREAD), block=BLOCK))
    a = T.alloc_local((WIDTH,), "float32", layout="default")
    first = T.cuda.block_idx("x") * (BLOCK * PER_THREAD) + T.cuda.thread_idx("x")
    suffix = f".v{WIDTH}" if WIDTH > 1 else ""
    for part in range(PER_THREAD):
        index = first + part * BLOCK
        if index < V:
            T.cuda.tile.apply(T.ptx[f"ld.global{suffix}.b32"], a, x.sub[index, :])
            T.cuda.tile.apply(T.ptx[f"st.global{suffix}.b32"], y.sub[index, :], a)


def copying(width: int, per_thread: int) -> Estimate:
    x = torch.zeros(1 << 22).view(-1, width)
    variant = copy.compile(x, x.clone(), per_thread, target="sm_90a")
    return estimate(variant, {}, (len(x) // (BLOCK * per_thread), 1, 1))


def test_wide_loads_cost_less_than_scalar_ones() -> None:
    costs = [copying(width, 4 // width).cost for width in (1, 2, 4)]
    assert costs == sorted(costs, reverse=True) and costs[0] > 1.5 * costs[2]


def test_few_busy_sms_cost_more_than_many() -> None:
    assert copying(4, 64).cost > 1.2 * copying(4, 4).cost


@jit
def many_live(x: T.Tensor((BLOCK, 64)), y: T.Tensor((BLOCK, 64)), rounds: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=BLOCK))
    i = T.cuda.thread_idx("x")
    a = T.alloc_local((64,), "float32", layout="default")
    for k in T.unroll(64):
        a[k] = x[i, k]
    for again in range(rounds):
        for k in T.unroll(64):
            a[k] = a[k] * a[(k + 1) % 64] + a[(k + 7) % 64]
    for k in T.unroll(64):
        y[i, k] = a[k]


def test_spills_cost() -> None:
    x = torch.zeros(BLOCK, 64)
    roomy = many_live.compile(x, x.clone(), 1, target="sm_90a")
    with pytest.warns(match="spill"):
        tight = many_live[T.cuda.LaunchConfig(max_registers_per_thread=32)].compile(
            x, x.clone(), 1, target="sm_90a"
        )
    assert roomy.stats.spill_bytes == 0 < tight.stats.spill_bytes
    for rounds in (1, 100):
        costs = [estimate(v, {"rounds": rounds}, (4096, 1, 1)).cost for v in (roomy, tight)]
        assert costs[0] < costs[1], rounds


def test_more_rounds_cost_more_and_unknown_ones_are_said() -> None:
    x = torch.zeros(BLOCK, 64)
    variant = many_live.compile(x, x.clone(), 1, target="sm_90a")
    costs = [estimate(variant, {"rounds": n}, (1000, 1, 1)) for n in (10, 1000)]
    assert costs[0].cost < costs[1].cost and not costs[0].assumed
    unknown = estimate(variant, {}, (1000, 1, 1))
    assert len(unknown.assumed) == 1 and "rounds of the loop of line" in str(unknown)


# --- the formula, on invented work


def stats(**changes: Any) -> Any:
    usual = {
        "blocks_per_sm": 2, "spill_bytes": 0, "threads": 128, "shared_bytes": 1 << 15, "occupancy": 0.5,
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **changes})


H100 = RATES[90]


def cost(amounts: dict[str, float], ctas: int, **changes: Any) -> float:
    return of_work(Work(amounts), stats(**changes), ctas, H100).cost


def test_waves_are_whole() -> None:
    work = {ISSUE: 4000.0}
    wave = 2 * H100.sms
    assert cost(work, wave) == 2000 and cost(work, wave // 2) == 1000 and cost(work, 1) == 1000
    assert cost(work, wave + 1) == 3000 and cost(work, 3 * wave) == 6000


def test_the_busiest_resource_is_named_and_the_others_count_an_eighth() -> None:
    amounts = {ISSUE: 4.0 * 8, L1: 400.0, L2: 40.0 * 200, "tensor_16": 4096.0 * 304}
    wanted = {L1: 400 + (8 + 200 + 304) / 8, "tensor_16": 304 + (8 + 200) / 8, L2: 200 + 8 / 8}
    for name, expected in wanted.items():
        found = of_work(Work(amounts), stats(blocks_per_sm=1), H100.sms, H100)
        assert found.limit == RESOURCES.get(name, "tensor cores") and found.waves == 1
        assert found.cost == expected
        del amounts[name]


def test_latency_is_the_same_for_however_many_are_resident() -> None:
    work = Work({}, waits=3, copied_bytes=5 << 15)
    for ctas in (1, 2 * H100.sms):
        found = of_work(work, stats(), ctas, H100)
        assert found.cost == 8 * LATENCY_CYCLES and found.limit == RESOURCES["latency"]


def test_occupancy_pays_where_latency_rules() -> None:
    work = Work({}, waits=10)
    costs = [of_work(work, stats(blocks_per_sm=n), 8 * H100.sms, H100).cost for n in (1, 2, 8)]
    assert costs == [8 * 6000, 4 * 6000, 6000]


def test_what_does_not_fit_costs_everything() -> None:
    assert cost({ISSUE: 1.0}, 1, blocks_per_sm=0) == math.inf


def test_every_target_has_rates_for_every_resource() -> None:
    matrices = [f"tensor_{kind}" for kind in ("16", "tf32", "8", "4", "1", "64")]
    for target in TARGETS.values():
        rates = RATES[target.sm]
        assert all(rates.of(name) > 0 for name in (ISSUE, L1, L2, *ARITHMETIC, *matrices))


def test_an_estimate_is_no_number() -> None:
    found = of_work(Work({ISSUE: 4.0}), stats(), 1, H100)
    assert str(found).startswith("estimated cost 1, limited by issue slots")
    with pytest.raises(TypeError):
        float(found)  # type: ignore[arg-type]


def test_no_gpu_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> Any:
        raise AssertionError("the driver was asked")

    monkeypatch.setattr("tilejit.runtime.driver.get", refuse, raising=False)
    x = torch.zeros(BLOCK, 64)
    variant: Variant = many_live.compile(x, x.clone(), 1, target="sm_100a")
    assert estimate(variant, {"rounds": 2}, (8, 1, 1)).cost > 0
