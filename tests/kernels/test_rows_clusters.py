"""Long rows by clusters against float64 references, on the simulator and the GPU: small plans, and the
choice of the large ones."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

import tilejit as tile
from tilejit import T, jit
from tilejit.kernels import norm, row_clusters, rows, softmax
from tilejit.kernels.devices import Device
from tilejit.kernels.row_clusters import ClusterPlan
from tilejit.lib import ring
from tilejit.runtime.variant import Variant

KERNELS: tuple[rows.Kernel, ...] = ("softmax", "rms_norm", "layer_norm")
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}


@pytest.fixture
def hopper(device: str) -> str:
    """``device``, where it has clusters."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] < 9:
        pytest.skip("clusters need sm_90")
    return device


def small_plan(
    dtype: torch.dtype,
    vectors: int,
    ctas: int = 2,
    threads: int = 32,
    stage_chunks: int = 1,
    stages: int = 3,
    clusters: int = 2,
    resident: int = 0,
    teams: int = 1,
) -> ClusterPlan:
    width = vectors * 16 // dtype.itemsize
    return ClusterPlan(
        dtype.itemsize, width, ctas, threads, stage_chunks, stages, clusters, 1, resident, 0, teams
    )


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


def random_rows(height: int, width: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * 7919 + width)
    return torch.randn(height, width, generator=generator).to(dtype).to(device)


def run(
    kernel: rows.Kernel,
    x: torch.Tensor,
    plan: ClusterPlan,
    w: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
) -> torch.Tensor:
    out = torch.full_like(x, float("nan"))
    parameters = 0 if kernel == "softmax" else (w is not None) + (b is not None)
    resident = min(plan.resident, parameters)
    plan = replace(plan, resident=resident, streamed=parameters - resident)
    tickets = row_clusters.tickets_for(x)
    if kernel == "softmax":
        softmax.softmax_clusters(x, out, tickets, plan)
    else:
        norm.norm_clusters(x, out, w, b, tickets, 1e-5, kernel == "layer_norm", plan)
    assert tickets.item() == 0
    return out


def expected_of(
    kernel: rows.Kernel, x: torch.Tensor, w: torch.Tensor | None, b: torch.Tensor | None
) -> torch.Tensor:
    wide, width = x.double(), (x.shape[1],)
    w, b = (None if p is None else p.double() for p in (w, b))
    if kernel == "softmax":
        return torch.softmax(wide, -1)
    if kernel == "rms_norm":
        # Written out: torch's kernel for the GPU gives NaN beside an infinity, where the formula has 0.
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return scaled if w is None else scaled * w
    return torch.nn.functional.layer_norm(wide, width, w, b, 1e-5)


def check(
    kernel: rows.Kernel, dtype: torch.dtype, plan: ClusterPlan, height: int, device: str
) -> None:
    x = random_rows(height, plan.row_elems, dtype, device)
    w, b = random_rows(2, plan.row_elems, dtype, device)
    bias = b if kernel == "layer_norm" else None
    error = relative_error(run(kernel, x, plan, w, bias), expected_of(kernel, x, w, bias))
    assert error < TOLERANCE[dtype]


# Of 16-byte vectors: a row that comes out even, one whose tail the last CTA has less of, one whose tail
# does not reach every CTA, one that is all chunks of different stages.
CASES = [
    (torch.float32, small_plan(torch.float32, 128), 5),
    (torch.bfloat16, small_plan(torch.bfloat16, 3 * 128 + 47, 2, 64, 2, resident=1), 5),
    (torch.float16, small_plan(torch.float16, 2 * 128 + 5, 4, 32, 2, 2, clusters=1, resident=1), 3),
    (torch.float32, small_plan(torch.float32, 3 * 512 + 8, 8, 64, 2, 2, clusters=1), 3),
    (
        torch.bfloat16,
        small_plan(torch.bfloat16, 5 * 64 + 3, 1, 64, 2, 7, clusters=3, resident=1),
        7,
    ),
    (torch.float32, small_plan(torch.float32, 3 * 64 + 5, 2, 32, 2, 3, 1, 2, teams=2), 5),
    (torch.bfloat16, small_plan(torch.bfloat16, 128, 2, 32, 1, 5, 1, 2, teams=2), 6),
    (torch.float16, small_plan(torch.float16, 4 * 32 + 7, 1, 32, 2, 4, 2, 2, teams=3), 8),
]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("dtype", "plan", "height"), CASES, ids=lambda v: getattr(v, "ctas", None))
def test_small_plans(
    hopper: str, kernel: rows.Kernel, dtype: torch.dtype, plan: ClusterPlan, height: int
) -> None:
    check(kernel, dtype, plan, height, hopper)


@pytest.mark.parametrize("resident", [0, 1, 2])
@pytest.mark.parametrize("tail", [0, 9])
def test_parameters_that_stay_in_shared_memory_or_come_with_every_row(
    hopper: str, resident: int, tail: int
) -> None:
    plan = small_plan(torch.float32, 128 + tail, resident=resident)
    check("layer_norm", torch.float32, plan, 3, hopper)


def compiled_for_hopper(kernel: rows.Kernel, dtype: torch.dtype, plan: ClusterPlan) -> Variant:
    x, w = torch.empty(4, plan.row_elems, dtype=dtype), torch.empty(plan.row_elems, dtype=dtype)
    out, tickets = torch.empty_like(x), row_clusters.tickets_for(x)
    if kernel == "softmax":
        return softmax.softmax_clusters.compile(x, out, tickets, plan, target="sm_90a")
    bias = w if kernel == "layer_norm" else None
    return norm.norm_clusters.compile(
        x, out, w, bias, tickets, 1e-5, kernel == "layer_norm", plan, target="sm_90a"
    )


@pytest.mark.parametrize(
    ("kernel", "resident", "streamed"), [("softmax", 0, 0), ("rms_norm", 1, 0), ("rms_norm", 0, 1)]
)
def test_rows_leave_l2_first_and_parameters_do_not(
    kernel: rows.Kernel, resident: int, streamed: int
) -> None:
    """Rows with a tail, so that all ways in and out occur."""
    plan = replace(small_plan(torch.float32, 2 * 64 + 9, resident=resident), streamed=streamed)
    ptx = compiled_for_hopper(kernel, torch.float32, plan).ptx
    assert "createpolicy.fractional.L2::evict_first.b64" in ptx
    fetches = [line for line in ptx.splitlines() if "cp.async.bulk.shared" in line]
    stores = [line for line in ptx.splitlines() if "st.global" in line]
    plain = [line for line in fetches if ".L2::cache_hint" not in line]
    assert len(plain) < len(fetches) and bool(plain) == (kernel == "rms_norm")
    assert stores and all(".L2::cache_hint" in line for line in stores)


def test_a_bias_without_a_weight(hopper: str) -> None:
    for resident in (0, 1):
        plan = small_plan(torch.float32, 70, resident=resident)
        x = random_rows(3, plan.row_elems, torch.float32, hopper)
        b = random_rows(1, plan.row_elems, torch.float32, hopper)[0]
        expected = expected_of("layer_norm", x, None, b)
        assert relative_error(run("layer_norm", x, plan, None, b), expected) < 3e-6


@pytest.mark.parametrize("height", [1, 2, 3, 8])
def test_any_number_of_rows(hopper: str, height: int) -> None:
    check("softmax", torch.float32, small_plan(torch.float32, 64), height, hopper)


@pytest.mark.parametrize("teams", [1, 2, 3, 4])
@pytest.mark.parametrize("height", [5, 17, 18, 31])
def test_rows_that_are_drawn(hopper: str, height: int, teams: int) -> None:
    """More rows than clusters know by their number, over and over with one counter."""
    plan = small_plan(torch.float32, 70, stages=2, clusters=2, teams=teams)
    assert height == 5 or height > plan.lookahead * plan.clusters
    for _ in range(2):
        check("softmax", torch.float32, plan, height, hopper)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("kernel", KERNELS)
def test_any_order_of_draws(kernel: rows.Kernel, seed: int) -> None:
    with tile.simulation(seed=seed):
        plan = small_plan(torch.float32, 64, stages=5, clusters=3, resident=2, teams=2)
        check(kernel, torch.float32, plan, 3 * plan.lookahead + 5, "cpu")


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("kernel", KERNELS)
def test_teams_draw_in_the_order_of_their_rows(kernel: rows.Kernel, seed: int) -> None:
    """Of teams that drew before their turn, one was left waiting for a row that was not there: under three
    or four of these seeds."""
    with tile.simulation(seed=seed):
        plan = small_plan(torch.bfloat16, 128, stages=8, clusters=2, resident=2, teams=2)
        check(kernel, torch.bfloat16, plan, 21, "cpu")


@pytest.mark.parametrize("stages", range(2, 12))
@pytest.mark.parametrize("teams", [1, 2, 3, 4])
def test_rows_are_drawn_before_the_ring_wants_them(stages: int, teams: int) -> None:
    plan = small_plan(torch.float32, 3 * 64 + 9, stages=stages, teams=teams)
    assert plan.lookahead % teams == 0
    assert plan.rows_in_ring + teams <= plan.lookahead < plan.rows_in_ring + 2 * teams


RINGS = [(teams, stages) for teams in (1, 2, 3, 4) for stages in (2, 9)]
"""Of rows of three steps: what comes next in the ring is of the row after, or of the third after."""


@pytest.mark.parametrize(("teams", "stages"), RINGS)
def test_every_team_knows_its_rows_in_time(teams: int, stages: int) -> None:
    plan = small_plan(torch.float32, 2 * 64 + 9, 1, 64, 1, stages, 1, teams=teams)
    for seed in (1, 2):
        with tile.simulation(seed=seed):
            check("softmax", torch.float32, plan, 2 * plan.lookahead + 3, "cpu")


class DrawnLater(ClusterPlan):
    """Each team draws one of its rows too late."""

    @property
    def lookahead(self) -> int:
        return super().lookahead - self.teams


@pytest.mark.parametrize(("teams", "stages"), RINGS)
def test_a_row_that_is_drawn_too_late_is_reported(teams: int, stages: int) -> None:
    plan = small_plan(torch.float32, 2 * 64 + 9, 1, 64, 1, stages, 1, teams=teams)
    late = DrawnLater(**{f.name: getattr(plan, f.name) for f in fields(plan)})
    with pytest.raises(tile.SimulationFault, match=r"sim/(race|unwritten-read)"):
        check("softmax", torch.float32, late, 2 * plan.lookahead + 3, "cpu")


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", range(1, 7))
def test_any_order_gives_the_same(kernel: rows.Kernel, seed: int) -> None:
    """The simulator chooses who goes first and when bytes arrive, by the seed."""
    with tile.simulation(seed=seed):
        plan = small_plan(torch.float32, 2 * 128 + 5, 4, 32, 2, 2, 1, int(kernel != "softmax"))
        check(kernel, torch.float32, plan, 3, "cpu")


@jit
def order_lanes_alone() -> None:
    T.cuda.warp_sync()


def test_a_stage_that_is_released_without_a_fence_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refills overtook reads on an H200, in one launch of many."""
    monkeypatch.setattr(ring, "end_reads", order_lanes_alone)
    plan = small_plan(torch.float32, 192)
    with pytest.raises(tile.SimulationFault, match="sim/proxy-fence"):
        check("softmax", torch.float32, plan, 5, "cpu")


# --- numerics


@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rows_with_infinity_or_nan(hopper: str, kernel: rows.Kernel, special: float) -> None:
    plan = small_plan(torch.float32, 2 * 64 + 5)
    x = random_rows(6, plan.row_elems, torch.float32, hopper)
    for row, column in enumerate((0, 130, 257, plan.row_elems - 21, plan.row_elems - 1)):
        x[row, column] = special
    ours, theirs = run(kernel, x, plan), expected_of(kernel, x, None, None)
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.allclose(ours.double(), theirs, atol=1e-4, equal_nan=True)


def test_softmax_of_minus_infinity_alone(hopper: str) -> None:
    plan = small_plan(torch.float32, 70)
    x = torch.full((2, plan.row_elems), float("-inf"), device=hopper)
    x[1, 100] = 3.0
    out = run("softmax", x, plan)
    assert out[0].isnan().all()
    assert out[1, 100] == 1 and out[1].sum() == 1


@pytest.mark.parametrize("vectors", [64, 70])
def test_layer_norm_of_constant_rows_is_zero(hopper: str, vectors: int) -> None:
    plan = small_plan(torch.float32, vectors)
    constants = torch.tensor([[0.1], [1.0], [3.3], [1e4], [-77.7]])
    x = constants.expand(5, plan.row_elems).contiguous().to(hopper)
    assert (run("layer_norm", x, plan) == 0).all()


@pytest.mark.parametrize("vectors", [128, 140])
def test_layer_norm_of_a_large_mean_keeps_its_digits(hopper: str, vectors: int) -> None:
    plan = small_plan(torch.float32, vectors, 4)
    x = random_rows(2, plan.row_elems, torch.float32, hopper) + 4096.0
    assert (
        relative_error(run("layer_norm", x, plan), expected_of("layer_norm", x, None, None)) < 2e-3
    )


def test_layer_norm_of_means_that_differ_between_ctas(hopper: str) -> None:
    """Every warp's mean is far from the row's: the merge must carry it."""
    plan = small_plan(torch.float32, 3 * 128 + 33, 4)
    x = random_rows(2, plan.row_elems, torch.float32, hopper)
    x += torch.linspace(-300, 300, plan.row_elems, device=hopper)
    assert (
        relative_error(run("layer_norm", x, plan), expected_of("layer_norm", x, None, None)) < 1e-5
    )


# --- the choice of plans


@pytest.mark.parametrize("width", [16384, 65536, 65544, 100_000, 262144])
@pytest.mark.parametrize("elem_bytes", [2, 4])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_plan_covers_the_row_once_and_fits(
    width: int, elem_bytes: int, kernel: rows.Kernel
) -> None:
    parameters = KERNELS.index(kernel)
    plan = row_clusters.plan_clusters(kernel, width, elem_bytes, parameters, Device())
    if plan is None:
        assert width * elem_bytes <= 128 << 10
        return
    portable = row_clusters.plan_clusters(kernel, width, elem_bytes, parameters, Device(sms=114))
    assert portable is not None and portable.ctas <= 8
    owned = plan.ctas * plan.part_vectors + plan.tail_vectors
    assert owned * plan.vector_elems == width and plan.full_chunks > 0
    assert plan.tail_share <= plan.threads and plan.tail_share * plan.ctas >= plan.tail_vectors
    assert plan.words_per_thread <= row_clusters.MAX_WORDS_PER_THREAD
    assert plan.slots & (plan.slots - 1) == 0 and plan.ctas <= 16
    used_bytes = plan.shared_bytes + row_clusters.SHARED_BYTES_RESERVED
    assert used_bytes * plan.min_blocks <= row_clusters.SHARED_BYTES_PER_SM
    assert plan.stages >= 3 and plan.resident + plan.streamed == parameters
    assert plan.clusters * plan.ctas <= 132 * plan.min_blocks


@pytest.mark.parametrize("height", [1, 2, 30, 31, 2048])
def test_as_many_clusters_as_run_at_a_time(height: int) -> None:
    plan = replace(small_plan(torch.float32, 64, 4), clusters=30)
    assert plan.grid(height) == 4 * min(height, 30)


def test_what_clusters_do_not_take() -> None:
    device = Device()
    plans = [
        row_clusters.plan_clusters("rms_norm", 65536, 4, 1, replace(device, sm=80)),
        row_clusters.plan_clusters("rms_norm", 1024, 2, 1, device),
        row_clusters.plan_clusters("softmax", 65536, 2, 0, device),
        row_clusters.plan_clusters("rms_norm", 65537, 4, 1, device),
        row_clusters.plan_clusters("rms_norm", 1 << 20, 2, 1, device),
    ]
    assert plans == [None] * 5


@pytest.mark.parametrize("kernel", KERNELS)
def test_long_rows_go_to_clusters(
    hopper: str, kernel: rows.Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "softmax_rows", None)
    monkeypatch.setattr(norm, "norm_rows", None)
    x = random_rows(2, 131080, torch.bfloat16, hopper)
    w, b = random_rows(2, 131080, torch.bfloat16, hopper)
    if kernel == "softmax":
        out = softmax.softmax(x)
    elif kernel == "rms_norm":
        out = norm.rms_norm(x, w, 1e-5)
    else:
        out = norm.layer_norm(x, w, b, 1e-5)
    bias = b if kernel == "layer_norm" else None
    assert relative_error(out, expected_of(kernel, x, w, bias)) < 1.2e-2


def test_rows_of_any_pitch(hopper: str) -> None:
    """One row alone, rows with gaps, and rows that bulk copies cannot address."""
    base = random_rows(4, 32776, torch.float32, hopper)
    for x in (base[:1], base[::2, :32772], base[1:, 1:32773], base.view(-1)[3:32775].view(1, -1)):
        out = torch.full((4, 32776), 7.0, dtype=x.dtype, device=hopper)[: x.shape[0], : x.shape[1]]
        actual = norm.rms_norm(x, None, 1e-5, out)
        error = relative_error(actual, expected_of("rms_norm", x, None, None))
        assert error < TOLERANCE[torch.float32]


@pytest.mark.parametrize(
    ("dtype", "widths"),
    [
        (torch.float32, (65536, 262144)),
        (torch.bfloat16, (131072, 262144)),
    ],
    ids=("float32", "bfloat16"),
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_registers_do_not_spill(
    kernel: rows.Kernel, dtype: torch.dtype, widths: tuple[int, ...]
) -> None:
    for width in widths:
        check_registers(kernel, dtype, width)


def check_registers(kernel: rows.Kernel, dtype: torch.dtype, width: int) -> None:
    plan = row_clusters.plan_clusters(
        kernel, width, dtype.itemsize, KERNELS.index(kernel), Device()
    )
    assert plan is not None
    stats = compiled_for_hopper(kernel, dtype, plan).stats
    assert (stats.spill_bytes, stats.local_bytes) == (0, 0)
    assert stats.blocks_per_sm >= plan.min_blocks
