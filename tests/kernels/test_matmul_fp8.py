"""The product of scaled 8-bit floats against float64, on the simulator and the GPU: the same cases."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

import tilejit as tile
from tilejit import simulation
from tilejit.kernels import matmul_fp8 as module
from tilejit.kernels.matmul_fp8 import Fp8Plan, matmul_fp8
from tilejit.target import Target

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROW, BLOCK, COLUMN = 0, 128, 1
"""Forms of scales, as ``Fp8Plan.b_columns``."""

TOLERANCE = {torch.float32: 8e-4, torch.float16: 9e-4, torch.bfloat16: 3e-3}
"""Of the norm: what 13 bits of a running sum leave (5.4e-4 at K = 1040 on an H200), and rounding the
result."""


@pytest.fixture(autouse=True)
def _on_this(request: pytest.FixtureRequest) -> None:
    if "device" in request.fixturenames and request.getfixturevalue("device") == "cuda":
        if not Target.of_capability(*torch.cuda.get_device_capability()).supports("sm_90a"):
            pytest.skip("wgmma needs sm_90a")


class Problem:
    """Operands, scales of a form and the product in float64. ``pitch``: elements of K from row to row."""

    def __init__(
        self,
        size: tuple[int, int, int],
        form: int,
        device: str,
        dtypes: tuple[torch.dtype, torch.dtype] = (E4M3, E4M3),
        pitch: int | None = None,
    ):
        m, n, k = size
        pitch = pitch or -(-k // 16) * 16
        generator = torch.Generator().manual_seed(m * 7919 + n * 31 + k)

        def rows(count: int, dtype: torch.dtype) -> torch.Tensor:
            values = torch.randn(count, pitch, generator=generator).to(dtype)
            return values.to(device)[:, :k]

        def scales(*shape: int) -> torch.Tensor:
            return torch.exp2(torch.randint(-3, 4, shape, generator=generator).float()).to(device)

        self.a, self.b = rows(m, dtypes[0]), rows(n, dtypes[1]).t()
        slices = -(-k // 128)
        if form == ROW:
            self.a_scale, self.b_scale = scales(m, 1), scales(1, n)
        else:
            self.a_scale, self.b_scale = scales(m, slices), scales(slices, -(-n // form))
        self.form, self.k, self.n = form, k, n

    @property
    def expected(self) -> torch.Tensor:
        """By repeating the scales over the elements that they are of."""
        along_k = self.k if self.form == ROW else 128
        a = self.a.double() * self.a_scale.repeat_interleave(along_k, 1)[:, : self.k]
        wide = self.b_scale.repeat_interleave(along_k, 0)[: self.k]
        b = self.b.double() * wide.repeat_interleave(max(1, self.form), 1)[:, : self.n]
        return a @ b

    def multiplied(self, **options: Any) -> torch.Tensor:
        return matmul_fp8(self.a, self.b, self.a_scale, self.b_scale, **options)


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """By the norm, and every element by its own: a wrong tile of a large result is small in the norm."""
    difference = (actual.double() - expected).abs()
    tolerance = TOLERANCE[actual.dtype]
    assert difference.norm() <= tolerance * expected.norm()
    # Scales differ between rows and columns: so does what an element's neighbours say of it.
    rows, columns = expected.square().mean(1, keepdim=True), expected.square().mean(0, keepdim=True)
    spread = (rows * columns / expected.square().mean()).sqrt()
    assert (difference <= 8 * tolerance * (expected.abs() + 4 * spread)).all()


def result(m: int, n: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """NaN, in rows that start at multiples of 16 bytes."""
    pitch = -(-n // 8) * 8
    return torch.full((m, pitch), float("nan"), device=device).to(dtype)[:, :n]


FORMS = pytest.mark.parametrize("form", [ROW, BLOCK, COLUMN], ids=["row", "block", "column"])


@FORMS
@pytest.mark.parametrize(
    "size",
    [(1, 8, 16), (1, 136, 32), (17, 1, 144), (64, 64, 128), (70, 200, 400), (129, 65, 257)],
    ids=str,
)
def test_sizes(device: str, size: tuple[int, int, int], form: int) -> None:
    problem = Problem(size, form, device)
    out = result(*size[:2], torch.bfloat16, device)
    assert problem.multiplied(out=out) is out
    assert_near(out, problem.expected)


@pytest.mark.parametrize("dtypes", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_types_of_operands(device: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    problem = Problem((20, 24, 160), ROW, device, dtypes)
    assert_near(problem.multiplied(), problem.expected)


@FORMS
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_types_of_results(device: str, dtype: torch.dtype, form: int) -> None:
    problem = Problem((30, 72, 272), form, device)
    given = problem.multiplied(out_dtype=dtype)
    assert given.dtype == dtype
    assert_near(given, problem.expected)
    out = result(30, 72, dtype, device)
    assert problem.multiplied(out=out) is out
    assert torch.equal(out, given)


SMALL = Fp8Plan(64, 64, stages=2, consumers=1, slabs=1, slabs_at_once=1, sms=2)
PLANS = {
    "two CTAs, many tiles": SMALL,
    "two consumers": replace(SMALL, tile_m=128, consumers=2),
    "three consumers": replace(SMALL, tile_m=192, consumers=3, stages=3),
    "two blocks, a group in flight": replace(SMALL, tile_m=128, stages=3, in_flight=1),
    "snake, several slabs": replace(SMALL, tile_n=192, slabs=3, slabs_at_once=1, snake=True, group_m=1),
    "slabs at once": replace(SMALL, tile_n=128, slabs=2, slabs_at_once=2, group_m=2),
}  # fmt: skip
UNITS = {
    "one unit": replace(SMALL, unit_n=64),
    "units of columns": replace(SMALL, tile_n=192, unit_n=96, slabs=3, slabs_at_once=3),
    "units of rows": replace(SMALL, tile_m=256, consumers=2, unit_n=64),
    "units that are less than a block of B": replace(SMALL, tile_n=128, unit_n=32, stages=3),
}


def run_plan(problem: Problem, out: torch.Tensor, plan: Fp8Plan) -> None:
    module.matmul_scaled(
        problem.a, problem.b.t(), problem.a_scale.t(), problem.b_scale, out,
        replace(plan, b_columns=problem.form),
    )  # fmt: skip


@pytest.mark.parametrize("plan", [*PLANS.values(), *UNITS.values()], ids=[*PLANS, *UNITS])
def test_plans_with_scales_per_row(device: str, plan: Fp8Plan) -> None:
    problem = Problem((266, 200, 400), ROW, device)
    out = result(266, 200, torch.bfloat16, device)
    run_plan(problem, out, plan)
    assert_near(out, problem.expected)


@pytest.mark.parametrize("form", [BLOCK, COLUMN], ids=["block", "column"])
@pytest.mark.parametrize("plan", UNITS.values(), ids=UNITS)
def test_plans_with_scales_per_slice(device: str, plan: Fp8Plan, form: int) -> None:
    """Results in float32 of scales that differ by powers of two: a wrong one shows anywhere."""
    problem = Problem((150, 384, 304), form, device)
    out = result(150, 384, torch.float32, device)
    run_plan(problem, out, plan)
    assert_near(out, problem.expected)


@pytest.mark.parametrize("seed", range(3))
@FORMS
def test_any_order_of_warps_and_copies(form: int, seed: int) -> None:
    problem = Problem((130, 130, 400), form, "cpu")
    out = result(130, 130, torch.bfloat16, "cpu")
    plan = replace(SMALL, tile_m=128, consumers=2, unit_n=64 if form else 0)
    with tile.simulation(seed=seed):
        run_plan(problem, out, plan)
    assert_near(out, problem.expected)


def test_promotion_keeps_what_fast_accumulation_loses(device: str) -> None:
    """A sum that starts large: 14 bits of it have no room for ones."""
    a = torch.ones(1, 1024, device=device)
    a[0, 0] = 256.0
    b = torch.ones(1024, 8, device=device)
    b[0] = 256.0
    scales = torch.ones(1, 1, device=device), torch.ones(1, 8, device=device)
    b = b.t().contiguous().to(E4M3).t()

    def total(fast: bool) -> float:
        found = matmul_fp8(a.to(E4M3), b, *scales, out_dtype=torch.float32, fast_accum=fast)
        return float(found[0, 0])

    exact = 256.0 * 256 + 1023
    assert total(False) >= exact - 127
    assert total(True) < exact - 512


def test_infinities_and_nans_stay_in_their_rows_and_columns(device: str) -> None:
    problem = Problem((19, 24, 48), ROW, device, (E5M2, E4M3))
    problem.a[18, 47] = float("inf")
    problem.b[47, 23] = float("nan")
    finite = torch.isfinite(problem.multiplied())
    assert finite[:18, :23].all() and not finite[18].any() and not finite[:, 23].any()


@FORMS
def test_parts_of_larger_matrices(device: str, form: int) -> None:
    """Rows further apart than they are long, scales in either order of storage."""
    problem = Problem((24, 40, 144), form, device, pitch=208)
    problem.a_scale = problem.a_scale.t().contiguous().t()
    problem.b_scale = problem.b_scale.t().contiguous().t()
    whole = torch.full((24, 64), 7.0, dtype=torch.bfloat16, device=device)
    assert_near(problem.multiplied(out=whole[:, 8:48]), problem.expected)
    assert (whole[:, :8] == 7).all() and (whole[:, 48:] == 7).all()


def test_one_scale_for_all(device: str) -> None:
    problem = Problem((20, 24, 144), ROW, device)
    problem.a_scale = torch.tensor(0.25, device=device).expand(20, 1)
    problem.b_scale = torch.tensor(2.0, device=device).expand(1, 24)
    assert_near(problem.multiplied(), problem.expected)


def test_one_variant_serves_any_number_of_rows(device: str) -> None:
    before = set(module.matmul_scaled.variants)
    for m in (33, 34, 61):
        problem = Problem((m, 80, 144), BLOCK, device)
        assert_near(problem.multiplied(), problem.expected)
    assert len(set(module.matmul_scaled.variants) - before) == 1


def test_nothing_to_sum_and_no_result(device: str) -> None:
    problem = Problem((5, 24, 16), ROW, device)
    a, b = problem.a[:, :0], problem.b[:0]
    out = result(5, 24, torch.bfloat16, device)
    assert (matmul_fp8(a, b, problem.a_scale, problem.b_scale, out=out) == 0).all()
    odd = torch.full((5, 7), float("nan"), device=device)
    assert (matmul_fp8(a, b[:, :7], problem.a_scale, problem.b_scale[:, :7], out=odd) == 0).all()
    assert matmul_fp8(problem.a[:0], problem.b, problem.a_scale[:0], problem.b_scale).shape == (
        0,
        24,
    )


def test_what_is_no_product_is_refused(device: str) -> None:
    problem = Problem((16, 32, 256), BLOCK, device)
    a, b, sa, sb = problem.a, problem.b, problem.a_scale, problem.b_scale
    rows, columns = torch.ones(16, 1, device=device), torch.ones(1, 32, device=device)
    wide = torch.zeros(16, 64, device=device, dtype=torch.bfloat16)
    odd = Problem((16, 32, 24), ROW, device, pitch=24)
    shared = torch.zeros(64, 256, device=device, dtype=torch.uint8)
    apart = (
        "rows of a start 0 bytes past a multiple of 16 and lie 24 bytes apart.*K a multiple of 16"
    )
    cases: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: matmul_fp8(a[0], b, sa, sb), "a is a matrix"),
        (lambda: matmul_fp8(a, b.float(), sa, sb), "b is torch.float32, expected torch.float8_e4m3fn or"),
        (lambda: matmul_fp8(a, b[:128], sa, sb), "one K"),
        (lambda: matmul_fp8(a.tolist(), b, sa, sb), "a is list"),
        (lambda: matmul_fp8(a, b, sa, 1.0), "b_scale is float"),
        (lambda: matmul_fp8(a, b, sa.half(), sb), "a_scale is torch.float16"),
        (lambda: matmul_fp8(a, b, sa, sb.to("meta")), "b_scale is on meta"),
        (lambda: matmul_fp8(a, b, rows, sb), r"have shapes \(16, 1\) and \(2, 1\), expected"),
        (lambda: matmul_fp8(a, b, sa, columns), r"have shapes \(16, 2\) and \(1, 32\), expected"),
        (lambda: matmul_fp8(a, b.contiguous(), sa, sb), "elements of b's columns lie 32 apart"),
        (lambda: matmul_fp8(a.t().contiguous().t(), b, sa, sb), "elements of a's rows lie 16 apart"),
        (lambda: odd.multiplied(), apart),
        (lambda: matmul_fp8(a[:, 8:136], b[:128], rows, columns), "rows of a start 8 bytes past"),
        (lambda: matmul_fp8(a[:, :128], b[8:136], rows, columns), "columns of b start 8 bytes past"),
        (lambda: matmul_fp8(a, b[:, :5], rows, columns[:, :5]), "rows of out .* lie 10 bytes.*N a multiple of 8"),
        (lambda: problem.multiplied(out_dtype=torch.float64), "out_dtype is torch.float64"),
        (lambda: problem.multiplied(out=wide[:, :32], out_dtype=torch.float16), "and out_dtype"),
        (lambda: problem.multiplied(out=wide), r"out has shape \(16, 64\), expected \(16, 32\)"),
        (lambda: problem.multiplied(out=wide[:, ::2]), "elements of out's rows lie 2 apart"),
        (lambda: problem.multiplied(out=torch.zeros(32, 16, device=device).t()), "elements of out's rows lie 16 apart"),
        (lambda: problem.multiplied(out=[0]), "out is list"),
        (lambda: problem.multiplied(out_dtype="float16"), "out_dtype is 'float16', expected torch.bfloat16"),
        (lambda: problem.multiplied(fast_accum="no"), "fast_accum is 'no', expected True or False"),
        (lambda: problem.multiplied(fast_accum=1), "fast_accum is 1, expected True or False"),
        (lambda: problem.multiplied(out=wide[:1, :32].expand(16, 32)), "rows of out overlap"),
        (lambda: matmul_fp8(shared[:16].view(E4M3), b, sa, sb, out=shared.view(torch.bfloat16)[:16, :32]), "share memory with a"),
    )  # fmt: skip
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()


def test_a_single_row_has_no_longer_one() -> None:
    problem = Problem((1, 8, 24), ROW, "cpu", pitch=24)
    with pytest.raises(ValueError, match="K a multiple of 16$"):
        problem.multiplied()


def test_what_is_no_plan_is_refused() -> None:
    for wrong, message in (
        ({"tile_m": 64}, "32 x 256"),
        ({"stages": 0}, "stages is 0, expected a positive integer"),
        ({"in_flight": 1, "stages": 1}, "1 stage and 1 wgmma group"),
        ({"snake": "no"}, "snake is 'no', expected True or False"),
        ({"in_flight": True}, "True wgmma groups in flight"),
        ({"unit_n": 128.0}, "units of 128.0 columns"),
        ({"unit_n": 64, "b_columns": True}, "b_columns is True, expected 0, 1 or 128"),
        ({"unit_n": 96}, "units of 96 columns, .* divides tile_n = 256"),
        ({"unit_n": 64, "b_columns": 64}, "b_columns is 64, expected 0, 1 or 128"),
        ({"b_columns": 128}, "unit_n is 0"),
        ({"unit_n": 64, "in_flight": 1}, "expected 0: units wait for each other"),
    ):
        with pytest.raises(ValueError, match=message):
            Fp8Plan(**wrong)  # type: ignore[arg-type]
    Fp8Plan(unit_n=64, b_columns=128)


def test_a_gpu_without_wgmma_is_refused() -> None:
    ones = torch.ones(16, 16).to(E4M3)
    scales = torch.ones(16, 1)
    with simulation(target="sm_100a"):
        with pytest.raises(ValueError, match="cpu has compute capability 10.0, expected 9.0"):
            matmul_fp8(ones, ones.t(), scales, scales.t())
    with simulation(target="sm_90"):
        with pytest.raises(ValueError, match="9.0 without what sm_90a adds to sm_90, expected 9.0"):
            matmul_fp8(ones, ones.t(), scales, scales.t())
    assert matmul_fp8(ones, ones.t(), scales, scales.t()).eq(16).all()


# --- what is chosen and what it uses


def test_plans_are_chosen_from_a_few_for_any_number_of_rows() -> None:
    for promote, form in ((False, ROW), (True, ROW), (True, BLOCK), (True, COLUMN)):
        plans = {module.plan_matmul(m, 4096, promote, form, 132) for m in range(1, 9000, 7)}
        assert len(plans) <= 5
        assert all(plan.b_columns == form and bool(plan.unit_n) == promote for plan in plans)


def test_large_products_take_large_tiles() -> None:
    fast = module.plan_matmul(8192, 8192, False, ROW, 132)
    assert fast.tile_m * fast.tile_n >= 128 * 256
    block = module.plan_matmul(8192, 8192, True, BLOCK, 132)
    assert block.tile_m * block.tile_n >= 128 * 256
    assert module.plan_matmul(16, 4096, True, BLOCK, 132).tile_m == 64


def test_a_repeated_call_is_not_checked_again() -> None:
    problem = Problem((5, 8, 16), ROW, "cpu")
    problem.multiplied()
    before = module._prepared.cache_info()
    problem.multiplied()
    after = module._prepared.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


def arguments(plan: Fp8Plan, size: int, dtype: torch.dtype) -> list[Any]:
    """Of ``matmul_scaled``, for square matrices; their elements are never touched."""
    slices, columns = (-(-size // 128), -(-size // plan.b_columns)) if plan.b_columns else (1, size)
    return [
        torch.empty(size, size, dtype=E4M3), torch.empty(size, size, dtype=E4M3),
        torch.empty(size, slices).t(), torch.empty(slices, columns),
        torch.empty(size, size, dtype=dtype), plan,
    ]  # fmt: skip


IN_USE = [
    *(shape for shape, _ in module._SHAPES),
    *(shape for shape, _ in module._PROMOTING_SHAPES),
    *(replace(shape, b_columns=BLOCK) for shape, _ in module._PROMOTING_SHAPES),
    *(
        replace(shape, b_columns=COLUMN)
        for shape, _ in module._PROMOTING_SHAPES
        if shape.tile_n <= 128
    ),
]


@pytest.mark.parametrize("plan", IN_USE, ids=str)
def test_what_the_plans_in_use_compile_to(plan: Fp8Plan) -> None:
    """Sums stay in registers and the tensor cores are not waited for between instructions of a group.
    Ragged, which takes the most registers."""
    compiled = module.matmul_scaled.compile(*arguments(plan, 4080, torch.bfloat16), target="sm_90a")
    assert (compiled.stats.spill_bytes, compiled.stats.local_bytes) == (0, 0)
    assert not compiled.warnings
    products = re.findall(r"QGMMA\.\S+ [^;]*;", compiled.sass)
    blocks = plan.blocks_m * (plan.tile_n // plan.unit_n if plan.unit_n else 1)
    waiting = [line for line in products if "gsb0" in line]
    assert len(products) == 4 * blocks
    assert len(waiting) == (blocks if plan.unit_n else 1)


@pytest.mark.parametrize("plan", IN_USE, ids=str)
def test_no_bank_conflicts(plan: Fp8Plan) -> None:
    given = arguments(plan, 4096, torch.bfloat16)
    banks = module.matmul_scaled.check(*given, target="sm_90a").banks
    assert banks and not [b for b in banks if b.conflicted or b.unknown]


def test_no_register_spills_of_float32_results() -> None:
    for plan in (IN_USE[0], IN_USE[1], replace(module._PROMOTING_SHAPES[0][0], b_columns=BLOCK)):
        given = arguments(plan, 4080, torch.float32)
        stats = module.matmul_scaled.compile(*given, target="sm_90a").stats
        assert (stats.spill_bytes, stats.local_bytes) == (0, 0)


# --- large, on the GPU only


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("fast", [True, False])
@FORMS
@pytest.mark.parametrize(
    "size", [(4096, 4096, 4096), (4100, 4104, 4112), (1000, 3000, 2000), (64, 8200, 8192)], ids=str
)
def test_large(device: str, size: tuple[int, int, int], form: int, fast: bool) -> None:
    problem = Problem(size, form, device)
    out = result(*size[:2], torch.bfloat16, device)
    assert_near(problem.multiplied(out=out, fast_accum=fast), problem.expected)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("plan", IN_USE, ids=str)
def test_the_plans_in_use(device: str, plan: Fp8Plan) -> None:
    problem = Problem((1030, 1032, 1040), plan.b_columns, device)
    out = result(1030, 1032, torch.float32, device)
    module.matmul_scaled(problem.a, problem.b.t(), problem.a_scale.t(), problem.b_scale, out, plan)
    assert_near(out, problem.expected)
