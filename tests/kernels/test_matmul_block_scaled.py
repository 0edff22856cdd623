"""The product of block-scaled matrices against float64, on the simulator and the GPU: the same cases."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.lib.blackwell import TARGETS, blackwell
from tilejit import simulation
from tilejit.kernels import matmul_block_scaled as module
from tilejit.kernels.matmul_block_scaled import BlockScaledPlan, matmul_block_scaled, scale_layout

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
E8M0, PAIRS = torch.float8_e8m0fnu, torch.float4_e2m1fn_x2
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
FORMATS = ("mxfp8", "mxfp4", "nvfp4")
BLOCK = {"mxfp8": 32, "mxfp4": 32, "nvfp4": 16}
SLICE = {"mxfp8": 128, "mxfp4": 256, "nvfp4": 256}
"""Elements along K."""

TOLERANCE = {torch.float32: 1e-5, torch.float16: 6e-4, torch.bfloat16: 5e-3}
"""Of an element's size: rounding the result, and what a running sum in float32 loses."""


def image_of(factors: np.ndarray, padding: int) -> np.ndarray:
    """By the formula of cuBLAS's layout, factor by factor: rows beyond the last are ``padding``, factors
    beyond the last zeros."""
    rows, count = factors.shape
    down, along = -(-rows // 128), -(-count // 4)
    image = np.zeros((down * along, 512), np.uint8)
    for r in range(down * 128):
        for f in range(count):
            tile_, place = r // 128 * along + f // 4, r % 32 * 16 + r % 128 // 32 * 4 + f % 4
            image[tile_, place] = factors[r, f] if r < rows else padding
    return image.reshape(-1)


class Side:
    """One operand, (rows, K) of codes; its float64 values, and torch's views of it and of its factors.
    ``pitch_bytes``: from row to row."""

    def __init__(
        self,
        format: str,
        rows: int,
        k: int,
        rng: np.random.Generator,
        dtype: torch.dtype,
        device: str,
        pitch_bytes: int | None = None,
    ):
        row_bytes = k if format == "mxfp8" else k // 2
        pitch_bytes = pitch_bytes or -(-row_bytes // 16) * 16
        if format == "mxfp8":
            self.tensor = torch.from_numpy(rng.normal(size=(rows, pitch_bytes))).to(dtype)
            self.tensor = self.tensor.to(device)[:, :row_bytes]
            values = self.tensor.double().cpu().numpy()
        else:
            codes = rng.integers(0, 16, (rows, 2 * pitch_bytes), np.uint8)
            pairs = codes[:, ::2] | codes[:, 1::2] << 4
            self.tensor = torch.from_numpy(pairs).view(dtype).to(device)[:, :row_bytes]
            values = (np.where(codes & 8, -1, 1) * E2M1[codes & 7])[:, :k]
        count = -(-k // BLOCK[format])
        if format == "nvfp4":
            # Powers of two and other numbers, subnormal ones among them; 0x7F is NaN.
            self.factors, nan = rng.integers(1, 0x48, (rows, count), np.uint8), 0x7F
            scales = torch.from_numpy(self.factors).view(E4M3).double().numpy()
        else:
            self.factors, nan = rng.integers(118, 128, (rows, count), np.uint8), 0xFF
            scales = 2.0 ** (self.factors.astype(np.float64) - 127)
        self.values = torch.from_numpy(values * scales.repeat(BLOCK[format], 1)[:, :k])
        self.scale = torch.from_numpy(image_of(self.factors, nan)).to(device)
        self.scale = self.scale.view(E4M3 if format == "nvfp4" else E8M0)


class Problem:
    def __init__(
        self,
        format: str,
        size: tuple[int, int, int],
        device: str = "cpu",
        dtypes: tuple[torch.dtype, torch.dtype] | None = None,
        pitch_bytes: int | None = None,
    ):
        m, n, k = size
        rng = np.random.default_rng(m * 7919 + n * 31 + k)
        types = dtypes or ((E4M3, E4M3) if format == "mxfp8" else (PAIRS, PAIRS))
        self.a = Side(format, m, k, rng, types[0], device, pitch_bytes)
        self.b = Side(format, n, k, rng, types[1], device, pitch_bytes)
        self.size, self.device = size, device

    @property
    def expected(self) -> torch.Tensor:
        return self.a.values @ self.b.values.t()

    def result(self, dtype: torch.dtype) -> torch.Tensor:
        """NaN, in rows that start at multiples of 16 bytes."""
        m, n, _ = self.size
        whole = torch.full((m, -(-n // 8) * 8), float("nan"), dtype=dtype, device=self.device)
        return whole[:, :n]

    def multiplied(self, **options: Any) -> torch.Tensor:
        a, b = self.a, self.b
        return matmul_block_scaled(a.tensor, b.tensor.t(), a.scale, b.scale, **options)

    def by(self, plan: BlockScaledPlan, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        out = self.result(dtype)
        (m, n, k), groups = self.size, 4 * BLOCK[plan.format]
        images = [
            side.scale.view(torch.uint32).view(-(-rows // 128), -(-k // groups), 128)
            for side, rows in ((self.a, m), (self.b, n))
        ]
        rows = [side.tensor for side in (self.a, self.b)]
        if plan.format != "mxfp8":
            rows = [r.view(torch.uint8) for r in rows]
        module.matmul_scaled_blocks(*rows, *images, out, plan)
        return out


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Every element by its own size or by what its row's and column's say of it."""
    difference = (actual.double().cpu() - expected).abs()
    rows, columns = expected.square().mean(1, keepdim=True), expected.square().mean(0, keepdim=True)
    spread = (rows * columns / expected.square().mean()).sqrt()
    assert (difference <= TOLERANCE[actual.dtype] * (expected.abs() + spread)).all()


def check(device: str, size: tuple[int, int, int], plan: BlockScaledPlan, seeds: int = 1) -> None:
    problem = Problem(plan.format, size, device)
    for seed in range(seeds):
        with blackwell(device, seed=seed):
            assert_near(problem.by(plan), problem.expected)


ONE = BlockScaledPlan(format="mxfp8", tile_n=64, stages=2, group_m=2, slabs=1, sms=2)
"""Several tiles per CTA for matrices that the simulator is quick with."""
PAIR = replace(ONE, ctas=2, tile_n=128, sms=4)
PLANS = {"one CTA": ONE, "a pair": PAIR}
with_plans = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
with_formats = pytest.mark.parametrize("format", FORMATS)


@with_plans
@with_formats
@pytest.mark.parametrize(
    "size,slices",
    [((128, 64), "one"), ((2, 8), "part"), ((70, 137), "and a part"), ((260, 72), "and a block")],
    ids=str,
)
def test_sizes(
    device: str, size: tuple[int, int], slices: str, format: str, plan: BlockScaledPlan
) -> None:
    """K of parts of a slice: of an instruction, of a block, of an image of scale factors."""
    whole, block = SLICE[format], BLOCK[format]
    k = {
        "part": 2 * block + 8,
        "one": whole,
        "and a part": whole + 72,
        "and a block": 2 * whole + 32,
    }
    check(device, (*size, k[slices]), replace(plan, format=format))


@with_plans
@with_formats
def test_many_tiles_in_any_order(device: str, format: str, plan: BlockScaledPlan) -> None:
    """More tiles than accumulators and more slices than stages, under many schedules."""
    size = (264, 136 * plan.ctas, 3 * SLICE[format] + 16)
    check(device, size, replace(plan, format=format), seeds=2 if device == "cpu" else 1)


@with_formats
@pytest.mark.parametrize("tile_n", [64, 128, 192, 256])
@pytest.mark.parametrize("ctas", [1, 2])
def test_widths(device: str, ctas: int, tile_n: int, format: str) -> None:
    """Three tiles along N, of which the second may begin in the middle of an image of scale factors."""
    plan = BlockScaledPlan(
        format=format,
        tile_n=tile_n,
        stages=2,
        accumulators=1 if tile_n == 256 else 2,
        ctas=ctas,
        sms=ctas,
    )
    check(device, (72, 2 * tile_n + 8, SLICE[format] + 32), plan)


@pytest.mark.parametrize(
    "stages,scale_slots,accumulators", [(1, 1, 1), (2, 1, 2), (4, 3, 3), (4, 1, 1), (4, 2, 2)]
)
@pytest.mark.parametrize("ctas", [1, 2])
def test_stages_and_slots(
    device: str, ctas: int, stages: int, scale_slots: int, accumulators: int
) -> None:
    """A copy of scale factors waits for the products that read its slot before."""
    plan = replace(
        ONE, ctas=ctas, stages=stages, scale_slots=scale_slots, accumulators=accumulators,
        sms=2 * ctas, format="nvfp4",
    )  # fmt: skip
    check(device, (260, 72, 4 * 256 + 32), plan)


@pytest.mark.parametrize("order", ["snake", "hilbert"])
def test_orders(device: str, order: str) -> None:
    check(device, (520, 200, 64), replace(ONE, order=order, slabs=2))


# --- calls


@with_formats
@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
def test_types_of_results(device: str, dtype: torch.dtype, format: str) -> None:
    problem = Problem(format, (36, 72, 288), device)
    with blackwell(device):
        given = problem.multiplied(out_dtype=dtype)
        out = problem.result(dtype)
        assert problem.multiplied(out=out) is out
    assert given.dtype == dtype
    assert_near(given, problem.expected)
    assert torch.equal(out, given)


@pytest.mark.parametrize("dtypes", [(E4M3, E5M2), (E5M2, E4M3), (E5M2, E5M2)], ids=str)
def test_types_of_8_bits(device: str, dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    problem = Problem("mxfp8", (20, 24, 160), device, dtypes)
    with blackwell(device):
        assert_near(problem.multiplied(), problem.expected)


@with_formats
def test_bytes_stand_for_types_that_torch_may_lack(device: str, format: str) -> None:
    problem = Problem(format, (20, 24, 160), device)
    a, b = problem.a, problem.b
    with blackwell(device):
        expected = problem.multiplied()
        operands = [s.tensor if format == "mxfp8" else s.tensor.view(torch.uint8) for s in (a, b)]
        scales = [s.scale if format == "nvfp4" else s.scale.view(torch.uint8) for s in (a, b)]
        found = matmul_block_scaled(operands[0], operands[1].t(), *scales)
    assert torch.equal(found, expected)
    assert_near(found, problem.expected)


@with_formats
def test_parts_of_larger_matrices(device: str, format: str) -> None:
    """Rows further apart than they are long; scale factors in two dimensions."""
    problem = Problem(format, (24, 40, 160), device, pitch_bytes=208)
    problem.a.scale = problem.a.scale.view(128, -1)
    whole = torch.full((24, 64), 7.0, dtype=torch.bfloat16, device=device)
    with blackwell(device):
        assert_near(problem.multiplied(out=whole[:, 8:48]), problem.expected)
    assert (whole[:, :8] == 7).all() and (whole[:, 48:] == 7).all()


def test_one_variant_serves_any_number_of_rows(device: str) -> None:
    before = set(module.matmul_scaled_blocks.variants)
    with blackwell(device):
        for m in (33, 34, 161):
            problem = Problem("mxfp4", (m, 80, 160), device)
            assert_near(problem.multiplied(), problem.expected)
    assert len(set(module.matmul_scaled_blocks.variants) - before) == 1


def test_nothing_to_sum_and_no_result(device: str) -> None:
    problem = Problem("mxfp8", (5, 24, 32), device)
    a, b = problem.a.tensor, problem.b.tensor.t()
    none = torch.empty(0, dtype=E8M0, device=device)
    out = problem.result(torch.bfloat16)
    with blackwell(device):
        assert (matmul_block_scaled(a[:, :0], b[:0], none, none, out=out) == 0).all()
        assert matmul_block_scaled(a[:0], b, none, problem.b.scale).shape == (0, 24)


def test_nans_stay_in_their_rows_and_columns(device: str) -> None:
    """As NaN factors do."""
    problem = Problem("mxfp8", (19, 24, 160), device)
    a_scale, b_scale = (s.scale.view(torch.uint8).clone() for s in (problem.a, problem.b))
    a_scale[18 * 16] = 0xFF
    b_scale[512 + 23 * 16] = 0xFF
    with blackwell(device):
        found = matmul_block_scaled(
            problem.a.tensor, problem.b.tensor.t(), a_scale, b_scale, out_dtype=torch.float32
        )
    finite = torch.isfinite(found)
    assert finite[:18, :23].all() and not finite[18].any() and not finite[:, 23].any()


@pytest.mark.parametrize("shape", [(1, 1), (32, 4), (128, 8), (129, 3), (300, 9)], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, E8M0, E4M3], ids=str)
def test_layout_of_factors(shape: tuple[int, int], dtype: torch.dtype) -> None:
    factors = np.random.default_rng(shape[0]).integers(0, 255, shape, np.uint8)
    found = scale_layout(torch.from_numpy(factors).view(dtype))
    assert found.dtype == dtype
    assert np.array_equal(found.view(torch.uint8).numpy(), image_of(factors, 0))


def test_factors_that_are_no_rows() -> None:
    for wrong in (torch.zeros(4, dtype=torch.uint8), torch.zeros(4, 4)):
        with pytest.raises(ValueError, match=r"scales is torch.* expected \(rows, K / block\) of"):
            scale_layout(wrong)


def test_what_is_no_product_is_refused(device: str) -> None:
    eights, fours = Problem("mxfp8", (16, 32, 256), device), Problem("nvfp4", (16, 32, 256), device)
    a, b, sa, sb = eights.a.tensor, eights.b.tensor.t(), eights.a.scale, eights.b.scale
    p, q, sp, sq = fours.a.tensor, fours.b.tensor.t(), fours.a.scale, fours.b.scale
    call = matmul_block_scaled
    wide = torch.zeros(16, 64, device=device, dtype=torch.bfloat16)
    odd = Problem("mxfp8", (16, 32, 24), device, pitch_bytes=24)
    odd_pairs = Problem("mxfp4", (16, 32, 48), device, pitch_bytes=24)
    late = torch.zeros(sa.numel() + 1, dtype=torch.uint8, device=device)[1:]
    turned = sa.view(32, -1).t()
    shared = torch.zeros(64, 256, device=device, dtype=torch.uint8)
    cases: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: call(a[0], b, sa, sb), "a is a matrix"),
        (lambda: call(a, b[:128], sa, sb), "one K"),
        (lambda: call(a.tolist(), b, sa, sb), "a is list"),
        (lambda: call(a, b, sa, 1.0), "b_scale is float"),
        (lambda: call(a.bfloat16(), b, sa, sb), "a and b are bfloat16 and float8_e4m3fn, a_scale"),
        (lambda: call(a, b, sa.float(), sb), "a_scale and b_scale float32 and float8_e8m0fnu, exp"),
        (lambda: call(a, b, sa.view(E4M3), sb.view(E4M3)), "mxfp8: float8_e4m3fn or float8_e5m2 with"),
        (lambda: call(a, q[:128], sa, sb), "one K|a and b are float8_e4m3fn and float4_e2m1fn_x2"),
        (lambda: call(p, q, sp, sq.view(E8M0)), "a_scale and b_scale float8_e4m3fn and float8_e8m0fnu"),
        (lambda: call(p, q, sp.view(E8M0), sq.view(E8M0)), "is 2048 factors, expected 1024"),
        (lambda: call(a, b, sa, sb.to("meta")), "b_scale is on meta"),
        (lambda: call(a, b, sa[:-1], sb), r"a_scale has shape \(1023,\), .* expected 1024: for each 128 of 16 rows of a"),
        (lambda: call(a, b, sa, sb[:512]), r"512 factors, expected 1024: .* columns of b.* each 128 of 256 elements"),
        (lambda: call(a, b, late.view(E8M0), sb), "starts 1 bytes past a multiple of 16"),
        (lambda: call(a, b, turned, sb), "a_scale has strides .* expected adjacent elements"),
        (lambda: call(a, b.contiguous(), sa, sb), "elements of b's columns lie 32 apart"),
        (lambda: call(a.t().contiguous().t(), b, sa, sb), "elements of a's rows lie 16 apart"),
        (lambda: odd.multiplied(), "rows of a .* lie 24 bytes apart, .*K a multiple of 16, or"),
        (lambda: odd_pairs.multiplied(), "rows of a .* lie 24 bytes apart, .*K a multiple of 32, or"),
        (lambda: eights.multiplied(out_dtype=torch.float64), "out_dtype is torch.float64"),
        (lambda: eights.multiplied(out=wide[:, :32], out_dtype=torch.float16), "and out_dtype"),
        (lambda: eights.multiplied(out=wide), r"out has shape \(16, 64\), expected \(16, 32\)"),
        (lambda: eights.multiplied(out=wide[:, ::2]), "elements of out's rows lie 2 apart"),
        (lambda: eights.multiplied(out=wide[:, 4:36]), "rows of out start 8 bytes past"),
        (lambda: call(shared[:16].view(E4M3), b, sa, sb, out=shared.view(torch.bfloat16)[:16, :32]), "share memory with a"),
    )  # fmt: skip
    with blackwell(device):
        for wrong, message in cases:
            with pytest.raises(ValueError, match=message):
                wrong()


def test_a_target_without_tensor_memory_is_refused() -> None:
    problem = Problem("mxfp8", (16, 32, 64))
    message = r'cpu has compute capability 9.0, expected 10.0, .*simulation\(target="sm_100a"\)'
    with simulation(target="sm_90a"), pytest.raises(ValueError, match=message):
        problem.multiplied()


def test_a_repeated_call_is_not_checked_again() -> None:
    problem = Problem("mxfp8", (5, 8, 32))
    with blackwell("cpu"):
        problem.multiplied()
        before = module._prepared.cache_info()
        problem.multiplied()
        after = module._prepared.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


# --- plans


def test_what_no_plan_has() -> None:
    for wrong, message in (
        ({"format": "fp8"}, "format is 'fp8', expected mxfp8, mxfp4, nvfp4"),
        ({"tile_n": 96}, "96 columns, expected one of"),
        ({"tile_n": 0}, "tile_n is 0, expected a positive integer"),
        ({"ctas": 3}, "3 CTAs compute a tile"),
        (
            {"scale_slots": 5},
            "5 slots for scale factors, expected at most one for each of 4 stages",
        ),
        ({"scale_slots": 3}, "2 accumulators of 192 columns and 3 slots of 48 for .* at most 512"),
        ({"tile_n": 256}, "2 accumulators of 256 columns"),
        ({"order": "spiral"}, "order is 'spiral'"),
    ):
        with pytest.raises(ValueError, match=message):
            BlockScaledPlan(**{"format": "nvfp4", **wrong})


IN_USE = [shape for format in FORMATS for shape in module._SHAPES[format]]


@with_formats
def test_plans_are_chosen_from_a_few_for_any_number_of_rows(format: str) -> None:
    found = [module.plan_matmul(format, m, 4096, 4096, 148) for m in range(1, 9000, 7)]
    assert all(replace(plan, sms=IN_USE[0].sms) in IN_USE for plan in found)
    assert module.plan_matmul(format, 8192, 8192, 8192, 148).tile_n >= 192
    assert module.plan_matmul(format, 16, 4096, 8192, 148).tile_n == 64
    assert module.plan_matmul(format, 16, 4096, 8192, 1).ctas == 1


# --- what the compiler makes of it


def arguments(plan: BlockScaledPlan, dtype: torch.dtype, size: int = 4096) -> list[Any]:
    """Of the kernel, for square matrices whose elements are never touched."""
    bits = 8 if plan.format == "mxfp8" else 4
    stored = E4M3 if bits == 8 else torch.uint8
    rows = torch.empty(size, size * bits // 8, dtype=stored)
    images = torch.empty(size // 128, size // BLOCK[plan.format] // 4, 128, dtype=torch.uint32)
    return [rows, rows, images, images, torch.empty(size, size, dtype=dtype), plan]


INSTRUCTION = {"mxfp8": "UTCQMMA", "mxfp4": "UTCOMMA", "nvfp4": "UTCOMMA"}


@pytest.mark.parametrize(
    "plan,target",
    [(plan, TARGETS[0]) for plan in IN_USE] + [(p, TARGETS[1]) for p in IN_USE if p.tile_n == 192],
    ids=lambda p: p if isinstance(p, str) else f"{p.format}-{p.ctas}x{p.tile_n}",
)
def test_full_size_has_no_spills(
    plan: BlockScaledPlan, target: str, record_property: Callable[[str, object], None]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = arguments(plan, torch.bfloat16)
        built = module.matmul_scaled_blocks.compile(*given, target=target)
    record_property("registers", built.stats.registers)
    assert (built.stats.spill_bytes, built.stats.local_bytes) == (0, 0)
    assert built.stats.registers <= 168 and not built.warnings
    lines = built.sass.splitlines()
    products = [line for line in lines if INSTRUCTION[plan.format] in line]
    copies = [line for line in lines if "UTCCP" in line and "4x32dp128bit" in line]
    assert len(products) == module.STEPS
    assert len(copies) == plan.of_format.factors * (1 + plan.b_images)
    assert all(("2CTA" in line) == (plan.ctas == 2) for line in (*products, *copies))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("plan", IN_USE[:2], ids=lambda p: f"{p.format}-{p.ctas}x{p.tile_n}")
def test_no_bank_conflicts(plan: BlockScaledPlan, dtype: torch.dtype) -> None:
    banks = module.matmul_scaled_blocks.check(*arguments(plan, dtype), target=TARGETS[0]).banks
    assert banks and not [b for b in banks if b.conflicted or b.unknown]
