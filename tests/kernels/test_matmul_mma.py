"""The mma.sync matrix product against float64, on the simulator and the GPU: the same cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tilejit import T, jit
from tilejit.kernels import matmul_mma
from tilejit.kernels.devices import Device
from tilejit.kernels.matmul_mma import MatmulPlan, matmul
from tilejit.kernels.operands import facts_of
from tilejit.lib import activations
from tilejit.target import Target

TOLERANCE = {torch.float16: 4e-4, torch.bfloat16: 3e-3}
"""Of the norm: rounding the result alone gives 2.1e-4 and 1.7e-3."""

MAJORS = [(True, True), (True, False), (False, True), (False, False)]
SIZES = [
    (1, 1, 1), (1, 7, 15), (7, 1, 8), (8, 130, 17), (15, 64, 65), (17, 65, 130), (64, 64, 64),
    (65, 8, 257), (130, 257, 7), (257, 15, 64), (40, 136, 200), (66, 66, 66), (36, 68, 100),
]  # fmt: skip


def random_matrix(
    height: int, width: int, dtype: torch.dtype, device: str, row_major: bool = True
) -> torch.Tensor:
    """The same values in either order of storage."""
    generator = torch.Generator().manual_seed(height * 7919 + width)
    values = torch.randn(height, width, generator=generator).to(dtype).to(device)
    return values if row_major else values.t().contiguous().t()


def operands(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    device: str,
    majors: tuple[bool, bool] = (True, True),
) -> tuple[torch.Tensor, torch.Tensor]:
    """``majors``: whether A's and B's rows run along K."""
    a = random_matrix(m, k, dtype, device, row_major=majors[0])
    return a, random_matrix(k, n, dtype, device, row_major=not majors[1])


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """By the norm, and every element by its own: a wrong tile of a large result is small in the norm."""
    difference = (actual.double() - expected).abs()
    tolerance = TOLERANCE[actual.dtype]
    assert difference.norm() <= tolerance * expected.norm()
    spread = expected.square().mean().sqrt()
    assert (difference <= 4 * tolerance * (expected.abs() + spread)).all()


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes_and_majors(
    device: str, size: tuple[int, int, int], majors: tuple[bool, bool]
) -> None:
    dtype = torch.bfloat16 if sum(size) % 2 else torch.float16
    a, b = operands(*size, dtype, device, majors)
    out = torch.full((size[0], size[1]), float("nan"), dtype=dtype, device=device)
    assert matmul(a, b, out=out) is out
    assert_near(out, a.double() @ b.double())


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_many_slices_of_k(device: str, dtype: torch.dtype) -> None:
    """More slices than stages: every buffer of the ring is used again."""
    a, b = operands(33, 40, 64 * 9 + 8, dtype, device)
    assert_near(matmul(a, b), a.double() @ b.double())


SMALL_PLANS = [
    MatmulPlan(32, 64, 32, 1, 2, stages=2),
    MatmulPlan(32, 64, 32, 2, 2, stages=3, group_m=2),
    MatmulPlan(64, 32, 64, 2, 1, stages=2, copy_steps=3, group_m=1),
    MatmulPlan(64, 64, 32, 2, 2, stages=4, group_m=3),
]


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("plan", SMALL_PLANS, ids=lambda p: f"{p.tile_m}x{p.tile_n}x{p.tile_k}")
def test_plans(device: str, plan: MatmulPlan, majors: tuple[bool, bool]) -> None:
    """Other tiles, counts of stages and orders of tiles than the ones chosen for small matrices."""
    m, n, k = 256, 96, 160
    a, b = operands(m, n, k, torch.bfloat16, device, majors)
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)
    plan = replace(plan, a_k_major=majors[0], b_k_major=majors[1], whole_m=True)
    a_rows, b_rows = a if majors[0] else a.t(), b.t() if majors[1] else b
    matmul_mma.matmul_tiles(
        a_rows.unflatten(1, (-1, 8)), b_rows.unflatten(1, (-1, 8)), None, out.unflatten(1, (-1, 8)),
        plan, None,
    )  # fmt: skip
    assert_near(out, a.double() @ b.double())


@pytest.mark.parametrize("shape", [shape for shape, _ in matmul_mma._SHAPES], ids=str)
def test_the_plans_in_use(device: str, shape: MatmulPlan) -> None:
    """One tile of each, ragged in M: what only larger matrices would choose."""
    m, n, k = shape.tile_m - 3, shape.tile_n, shape.tile_k * 2
    a, b = operands(m, n, k, torch.bfloat16, device)
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device=device)
    matmul_mma.matmul_tiles(
        a.unflatten(1, (-1, 8)), b.t().unflatten(1, (-1, 8)), None, out.unflatten(1, (-1, 8)),
        replace(shape, stages=2), None,
    )  # fmt: skip
    assert_near(out, a.double() @ b.double())


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.nn.functional.relu,
    "gelu": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.bfloat16, None], ids=str)
def test_bias_and_activation(device: str, name: str, bias_dtype: torch.dtype | None) -> None:
    a, b = operands(37, 72, 64, torch.bfloat16, device)
    expected = a.double() @ b.double()
    bias = None
    if bias_dtype is not None:
        bias = random_matrix(1, 72, bias_dtype, device)[0] * 8
        expected = expected + bias.double()
    assert_near(matmul(a, b, bias=bias, activation=name), ACTIVATIONS[name](expected))


@jit
def scaled(x: T.float32) -> T.float32:  # type: ignore[valid-type]
    return x * 0.25 + 1.0


def test_activation_of_ones_own(device: str) -> None:
    a, b = operands(16, 24, 32, torch.float16, device)
    assert_near(matmul(a, b, activation=scaled), a.double() @ b.double() * 0.25 + 1.0)


def test_activations_of_large_values(device: str) -> None:
    """exp overflows to infinity where the result is 0, and tanh saturates."""
    a = torch.tensor([[-200.0], [200.0], [-30.0], [0.0]], device=device, dtype=torch.bfloat16)
    b = torch.ones(1, 8, device=device, dtype=torch.bfloat16)
    for name, function in ACTIVATIONS.items():
        expected = function(a.double() @ b.double())
        torch.testing.assert_close(
            matmul(a, b, activation=name).double(), expected, rtol=1e-2, atol=1e-6
        )


def test_relu_keeps_nans(device: str) -> None:
    inf, nan = float("inf"), float("nan")
    a = torch.zeros(2, 1, device=device, dtype=torch.bfloat16)
    b = torch.zeros(1, 8, device=device, dtype=torch.bfloat16)
    bias = torch.tensor([nan, inf, -inf, 1e30, -1e30, 0.0, 2.0, -2.0], device=device)
    out = matmul(a, b, bias=bias, activation="relu").float()
    expected = torch.relu(bias).bfloat16().float().expand(2, 8)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_infinities_and_nans_stay_in_their_rows_and_columns(device: str) -> None:
    """What lies beyond the matrix is never multiplied: zeros times infinity would be NaN."""
    a, b = operands(19, 21, 20, torch.float16, device)
    a[18, 19], b[3, 20] = float("inf"), float("nan")
    out = matmul(a, b)
    finite = torch.isfinite(out)
    assert finite[:18, :20].all() and not finite[18].any() and not finite[:, 20].any()


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("start", [0, 1, 2, 4, 8])
def test_parts_of_larger_matrices(device: str, start: int, majors: tuple[bool, bool]) -> None:
    """Rows further apart than they are long, which start at 2, 4, 8 or 16 bytes."""
    m, n, k = 24, 40, 48
    a, b = operands(m + 16, n + 16, k + 16, torch.bfloat16, device, majors)
    a, b = a[3 : 3 + m, start : start + k], b[start : start + k, 8 : 8 + n]
    whole = torch.full((m, n + 16), 7.0, dtype=torch.bfloat16, device=device)
    out = matmul(a, b, out=whole[:, start : start + n])
    assert_near(out, a.double() @ b.double())
    assert (whole[:, :start] == 7).all() and (whole[:, start + n :] == 7).all()


def test_broadcast_rows(device: str) -> None:
    a = random_matrix(1, 32, torch.float16, device).expand(20, 32)
    b = random_matrix(24, 1, torch.float16, device).expand(24, 32).t()
    assert_near(matmul(a, b), a.double() @ b.double())


def test_one_variant_serves_any_number_of_rows(device: str) -> None:
    before = set(matmul_mma.matmul_tiles.variants)
    for m in (33, 34, 35, 67):
        a, b = operands(m, 48, 80, torch.float16, device)
        assert_near(matmul(a, b), a.double() @ b.double())
    assert len(set(matmul_mma.matmul_tiles.variants) - before) == 1


def test_tiles_are_chosen_from_a_few_for_any_number_of_rows() -> None:
    b = torch.empty(64, 4096, dtype=torch.float16)
    b_facts = facts_of("b", b)
    plans = set()
    for m in range(1, 9000, 7):
        a = torch.empty(m, 64, dtype=torch.float16)
        call = matmul_mma._prepared(facts_of("a", a), b_facts, None, None, "sm_90a")
        assert call is not None
        plans.add(call.plan)
    assert len(plans) <= 2 * len(matmul_mma._SHAPES)


def test_a_repeated_call_is_not_checked_again() -> None:
    a, b = operands(5, 8, 16, torch.float16, "cpu")
    matmul(a, b)
    before = matmul_mma._prepared.cache_info()
    matmul(a.clone(), b)
    after = matmul_mma._prepared.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def test_no_product_to_sum_over(device: str) -> None:
    """K is 0: zeros, then the bias and the activation."""
    a, b = operands(5, 24, 16, torch.float16, device)
    a, b = a[:, :0], b[:0]
    bias = random_matrix(1, 24, torch.float16, device)[0]
    assert (matmul(a, b) == 0).all()
    whole = torch.full((5, 32), 7.0, dtype=torch.float16, device=device)
    out = matmul(a, b, bias=bias, activation="relu", out=whole[:, 8:])
    assert torch.equal(out, torch.relu(bias).expand(5, 24))
    assert (whole[:, :8] == 7).all()
    assert matmul(a[:0], b, bias=bias).shape == (0, 24)


def test_a_result_beside_its_operands_in_one_matrix(device: str) -> None:
    """Rows of different lengths between one another share no memory."""
    whole = random_matrix(16, 40 + 16 + 16, torch.float16, device)
    b = random_matrix(40, 16, torch.float16, device)
    a, bias = whole[:, :40], whole[0, 56:]
    expected = a.double() @ b.double() + bias.double()
    assert_near(matmul(a, b, bias=bias, out=whole[:, 40:56]), expected)


def test_rows_far_apart(device: str) -> None:
    """Offsets in bits, of as many rows as memory holds, do not overflow in proofs."""
    pitch = 1 << 24
    memory = torch.empty(pitch + 32, dtype=torch.float16, device=device)
    a = memory.as_strided((2, 32), (pitch, 1))
    found, b = operands(2, 8, 32, torch.float16, device)
    a.copy_(found)
    assert_near(matmul(a, b), found.double() @ b.double())


def test_empty_results(device: str) -> None:
    a, b = operands(4, 8, 16, torch.float16, device)
    assert matmul(a[:0], b).shape == (0, 8)
    assert matmul(a, b[:, :0]).shape == (4, 0)


def test_what_is_no_product_is_refused(device: str) -> None:
    a, b = operands(8, 16, 24, torch.bfloat16, device)
    bias = torch.zeros(16, device=device)
    both = torch.zeros(64, 64, device=device, dtype=torch.bfloat16)
    cases: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: matmul(a[0], b), "a is a matrix"),
        (lambda: matmul(a, b[0]), "b is a matrix"),
        (lambda: matmul(a.float(), b.float()), "float16 or bfloat16, got torch.float32"),
        (lambda: matmul(a, b.half()), "one dtype"),
        (lambda: matmul(a, b[:8]), "one K"),
        (lambda: matmul(a[:, :0], b), "one K"),
        (lambda: matmul(a.tolist(), b), "a is list, expected a dense torch.Tensor"),
        (lambda: matmul(a, b.float().cpu().numpy()), "b is ndarray"),
        (lambda: matmul(a.to_sparse(), b), "a is a tensor of layout torch.sparse_coo"),
        (lambda: matmul(a, b, bias=1.0), "bias is float"),
        (lambda: matmul(a, b.to("meta")), "b is on meta, expected .*, where a is"),
        (lambda: matmul(a, b, bias=bias.to("meta")), "bias is on meta"),
        (lambda: matmul(a, b[:, :1].expand(24, (1 << 30) + 1)), "at most 1073741824"),
        (lambda: matmul(a, b, activation=3), "activation is 3, expected"),
        (lambda: matmul(both[::2, ::2], both[:32, :16]), "neither the rows nor the columns of a"),
        (lambda: matmul(both[:16, :32], both[::2, ::2]), "neither the rows nor the columns of b"),
        (lambda: matmul(a, b, bias=bias[:8]), "bias is torch.float32 of shape"),
        (lambda: matmul(a, b, bias=bias.half()), "bias is torch.float16"),
        (lambda: matmul(a, b, activation="tanh"), "expected 'relu', 'gelu', 'silu'"),
        (lambda: matmul(a, b, out=both[:8, :8]), "out is torch.bfloat16 of shape"),
        (lambda: matmul(a, b, out=torch.zeros(8, 16, device=device)), "out is torch.float32"),
        (lambda: matmul(a, b, out=both[:16, :8].t()), "lie 64 apart"),
        (lambda: matmul(a, b, out=both[:1, :16].expand(8, 16)), "rows of out overlap"),
        (lambda: matmul(both, both, out=both), "share memory with a"),
        (lambda: matmul(a, both[:24, :16], out=both[8:16, :16]), "share memory with b"),
        (lambda: matmul(a, b, bias=both[0, :16], out=both[:8, :16]), "share memory with bias"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


# --- what is chosen and what it uses


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("elems", [1, 2, 4, 8])
@pytest.mark.parametrize(
    "size", [(1, 1, 1), (64, 4096, 128), (4096, 4096, 4096), (8192, 512, 30000)]
)
@pytest.mark.parametrize(
    "gpu",
    [Device(), Device(108, 80, 164 * 1024), Device(128, 89, 100 * 1024)],
)
def test_a_plan_fits_the_device(
    size: tuple[int, int, int], elems: int, majors: tuple[bool, bool], gpu: Device
) -> None:
    plan = matmul_mma.plan_matmul(*size, elems, *majors, gpu)
    assert plan.whole_m == (size[0] % plan.tile_m == 0)
    assert 2 <= plan.stages <= max(2, -(-size[2] // plan.tile_k))
    assert (2 * plan.shared_elems + 1024) * plan.min_blocks <= gpu.shared_bytes_per_sm


def arguments(
    shape: MatmulPlan,
    elems: int,
    majors: tuple[bool, bool],
    size: int,
    target: str,
    **epilogue: Any,
) -> list[Any]:
    """Of ``matmul_tiles``, for matrices of about ``size`` in vectors of ``elems``, with the plan as it
    fits the target."""

    def rows_of_vectors(height: int, width: int) -> torch.Tensor:
        return torch.empty(height, width // elems, elems, dtype=torch.bfloat16)

    m, n, k = size, size + elems, size + 2 * elems
    per_sm = Target.parse(target).limits.smem_per_sm_bytes
    fitted = matmul_mma._fitted(shape, k, Device(shared_bytes_per_sm=per_sm))
    assert fitted is not None
    plan = replace(fitted, a_k_major=majors[0], b_k_major=majors[1], whole_m=m % shape.tile_m == 0)
    return [
        rows_of_vectors(*((m, k) if majors[0] else (k, m))),
        rows_of_vectors(*((n, k) if majors[1] else (k, n))),
        epilogue.get("bias"), rows_of_vectors(m, n), plan, epilogue.get("activation"),
    ]  # fmt: skip


def compiled(*given: Any, target: str, **epilogue: Any) -> Any:
    arguments_ = arguments(*given, target, **epilogue)
    return matmul_mma.matmul_tiles.compile(*arguments_, target=target)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("shape", [s for s, _ in matmul_mma._SHAPES], ids=str)
def test_no_register_spills(shape: MatmulPlan, majors: tuple[bool, bool], target: str) -> None:
    """Ragged in all three sizes, which takes the most registers; the sums stay in registers."""
    stats = compiled(shape, 8, majors, 1000, target=target).stats
    assert (stats.spill_bytes, stats.local_bytes) == (0, 0)


def test_no_register_spills_with_an_epilogue() -> None:
    bias = torch.empty(1008)
    for shape, _ in matmul_mma._SHAPES[:3]:
        found = compiled(
            shape, 8, (True, True), 1000, target="sm_90a", bias=bias, activation=activations.gelu
        )
        assert (found.stats.spill_bytes, found.stats.local_bytes) == (0, 0)


@pytest.mark.parametrize("majors", MAJORS[::3], ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("elems", [1, 2, 4])
def test_no_register_spills_of_short_vectors(elems: int, majors: tuple[bool, bool]) -> None:
    rated = matmul_mma._SHAPES_OF_ELEMENTS if elems == 1 else matmul_mma._SHAPES_OF_SHORT_VECTORS
    for shape, _ in rated:
        stats = compiled(shape, elems, majors, 1000 + elems, target="sm_90a").stats
        assert (stats.spill_bytes, stats.local_bytes) == (0, 0)


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
def test_no_bank_conflicts(majors: tuple[bool, bool]) -> None:
    for shape, _ in matmul_mma._SHAPES:
        given = arguments(shape, 8, majors, 1024, "sm_90a")
        banks = matmul_mma.matmul_tiles.check(*given, target="sm_90a").banks
        assert banks and not [b for b in banks if b.conflicted or b.unknown]


# --- large, on the GPU only


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize(
    "size",
    [
        (4096, 4096, 4096),
        (4097, 4095, 4099),
        (1000, 3000, 2000),
        (257, 8200, 136),
        (2050, 1028, 516),
    ],
    ids=str,
)
def test_large(device: str, size: tuple[int, int, int], majors: tuple[bool, bool]) -> None:
    a, b = operands(*size, torch.bfloat16, device, majors)
    out = torch.full((size[0], size[1]), float("nan"), dtype=torch.bfloat16, device=device)
    assert_near(matmul(a, b, out=out), a.double() @ b.double())
