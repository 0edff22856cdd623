"""The TMA and tcgen05 matrix product against float64, on the simulator and the GPU: the same cases."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.test_matmul_mma import ACTIVATIONS, MAJORS, assert_near, operands, random_matrix
from tests.lib.blackwell import TARGETS, blackwell
from tilejit import simulation
from tilejit.kernels import matmul as public
from tilejit.kernels import matmul_tcgen05 as module
from tilejit.kernels import products
from tilejit.kernels.matmul_tcgen05 import TcgenPlan, matmul_tcgen05, plan_matmul

ONE = TcgenPlan(tile_n=64, stages=2, group_m=2, slabs=1, sms=2)
"""Several tiles per CTA for matrices that the simulator is quick with."""
PAIR = replace(ONE, ctas=2, tile_n=128, sms=4)
PLANS = {"one CTA": ONE, "a pair": PAIR}


def product(
    a: torch.Tensor, b: torch.Tensor, plan: TcgenPlan, *, bias: Any = None, activation: Any = None
) -> torch.Tensor:
    """a @ b with this plan, over a poisoned result."""
    out = torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=a.dtype, device=a.device)
    a_rows = a if plan.a_k_major else a.t()
    b_rows = b.t() if plan.b_k_major else b
    matmul_tcgen05(a_rows, b_rows, bias, out, plan, activation)
    return out


def check(
    device: str,
    size: tuple[int, int, int],
    plan: TcgenPlan,
    dtype: torch.dtype = torch.bfloat16,
    seeds: int = 1,
) -> None:
    for seed in range(seeds):
        with blackwell(device, seed=seed):
            a, b = operands(*size, dtype, device, (plan.a_k_major, plan.b_k_major))
            assert_near(product(a, b, plan), a.double() @ b.double())


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("size", [(128, 64, 64), (8, 8, 8), (72, 136, 72), (264, 72, 136)], ids=str)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_sizes_and_majors(
    device: str, size: tuple[int, int, int], majors: tuple[bool, bool], plan: TcgenPlan
) -> None:
    dtype = torch.bfloat16 if sum(size) % 16 else torch.float16
    check(device, size, replace(plan, a_k_major=majors[0], b_k_major=majors[1]), dtype)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_many_tiles_in_any_order(device: str, plan: TcgenPlan) -> None:
    """More tiles than accumulators and more slices than stages, under many schedules."""
    check(device, (520, 200, 200), plan, seeds=4 if device == "cpu" else 1)


@pytest.mark.parametrize("tile_n", [64, 128, 192, 256])
@pytest.mark.parametrize("ctas", [1, 2])
def test_widths(device: str, ctas: int, tile_n: int) -> None:
    plan = TcgenPlan(tile_n=tile_n, ctas=ctas, stages=2, sms=ctas)
    check(device, (128 * ctas, tile_n + 8, 72), plan)


@pytest.mark.parametrize("accumulators", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 3])
def test_one_accumulator_and_one_stage_are_enough(
    device: str, accumulators: int, stages: int
) -> None:
    check(device, (400, 64, 200), replace(ONE, accumulators=accumulators, stages=stages))


@pytest.mark.parametrize("order", ["snake", "hilbert"])
def test_orders(device: str, order: str) -> None:
    check(device, (520, 200, 64), replace(ONE, order=order, slabs=2))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_bias_and_activation(device: str, activation: str | None, plan: TcgenPlan) -> None:
    function = products.activation_of(activation)
    with blackwell(device):
        a, b = operands(136, 136, 72, torch.float16, device, (True, True))
        bias = random_matrix(1, 136, torch.float32, device)[0]
        exact = ACTIVATIONS[activation](a.double() @ b.double() + bias.double())
        assert_near(product(a, b, plan, bias=bias, activation=function), exact)


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("size", [(72, 136, 72), (37, 24, 40), (33, 41, 65)], ids=str)
def test_plain_calls(device: str, size: tuple[int, int, int], majors: tuple[bool, bool]) -> None:
    """With the plan that is chosen, on this target by the same call as on Hopper."""
    before = len(matmul_tcgen05.variants)
    with blackwell(device):
        a, b = operands(*size, torch.float16, device, majors)
        out = torch.full(size[:2], float("nan"), dtype=torch.float16, device=device)
        assert public.matmul(a, b, out=out) is out
        assert_near(out, a.double() @ b.double())
    odd = any(n % 8 for n in size[1:]) or (size[0] % 8 and not majors[0])
    assert odd or len(matmul_tcgen05.variants) > before


def test_the_device_chooses() -> None:
    a = torch.ones(128, 64, dtype=torch.float16)
    before = len(matmul_tcgen05.variants), len(public.matmul_tma.variants)
    with blackwell("cpu"):
        assert public.matmul(a, a.t()).eq(64).all()
    between = len(matmul_tcgen05.variants), len(public.matmul_tma.variants)
    assert between == (before[0] + 1, before[1])
    assert public.matmul(a, a.t()).eq(64).all()
    assert (len(matmul_tcgen05.variants), len(public.matmul_tma.variants)) == (
        between[0],
        between[1] + 1,
    )


@pytest.mark.parametrize("target", ["sm_90", "sm_100", "sm_103", "sm_110"])
def test_a_target_without_a_generations_own_instructions_is_left_to_mma(target: str) -> None:
    a = torch.ones(128, 64, dtype=torch.float16)
    with simulation(target=target):
        assert public.matmul(a, a.t()).eq(64).all()


# --- plans


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize(
    "size", [(1, 8), (128, 8192), (1024, 1024), (4096, 4096), (8448, 8448)], ids=str
)
def test_a_plan_fits(size: tuple[int, int], majors: tuple[bool, bool]) -> None:
    plan = plan_matmul(*size, *majors, 148)
    assert (plan.a_k_major, plan.b_k_major, plan.sms) == (*majors, 148)
    assert plan.stages >= 4 and plan.columns <= 512


def test_large_products_are_computed_by_pairs() -> None:
    plan = plan_matmul(8192, 8192, True, True, 148)
    assert (plan.ctas, plan.tile_n, plan.accumulators) == (2, 256, 2)
    assert plan_matmul(128, 8192, True, True, 148).ctas == 1


def test_a_single_sm_runs_no_pair() -> None:
    assert plan_matmul(8192, 8192, True, True, 1).ctas == 1


def test_what_no_plan_has() -> None:
    for wrong, message in (
        ({"tile_n": 96}, "96 columns, expected one of"),
        ({"tile_n": 0}, "tile_n is 0, expected a positive integer"),
        ({"ctas": 3}, "3 CTAs compute a tile"),
        ({"accumulators": 3}, "3 accumulators of 256 columns, expected at most 512"),
        ({"ctas": 2, "tile_n": 64, "b_k_major": False}, "32 columns of B, expected whole panels"),
        ({"order": "spiral"}, "order is 'spiral'"),
        ({"a_k_major": 1}, "a_k_major is 1, expected True or False"),
        ({"ctas": 2, "sms": 1}, "1 SMs run no pair of CTAs at a time, expected at least 2"),
        ({"order": "hilbert", "group_m": 3}, "over 3 rows, expected a power of two"),
    ):
        with pytest.raises(ValueError, match=message):
            TcgenPlan(**wrong)  # type: ignore[arg-type]


# --- what the compiler makes of it


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(2, 256), (1, 256), (1, 64)], ids=str)
@pytest.mark.parametrize("extra", ["plain", "bias and gelu", "MN-major"])
def test_full_size_has_no_spills(shape: tuple[int, int], extra: str, target: str) -> None:
    majors = {"a_k_major": False, "b_k_major": False} if extra == "MN-major" else {}
    plan = replace(module._SHAPES[shape], **majors)  # type: ignore[arg-type]
    a = torch.empty(4096, 4096, dtype=torch.bfloat16)
    bias = torch.empty(4096) if extra == "bias and gelu" else None
    activation = products.activation_of("gelu") if bias is not None else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built = matmul_tcgen05.compile(a, a, bias, a, plan, activation, target=target)
    assert built.stats.spill_bytes == 0 and built.stats.registers <= 168
    tensor_cores = [line for line in built.sass.splitlines() if "UTCHMMA" in line]
    assert len(tensor_cores) == 4 and all(
        ("2CTA" in line) == (plan.ctas == 2) for line in tensor_cores
    )
