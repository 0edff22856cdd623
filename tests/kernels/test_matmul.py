"""The TMA and wgmma matrix product against float64, on the simulator and the GPU: the same cases."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.kernels.test_matmul_mma import ACTIVATIONS, MAJORS, assert_near, operands, random_matrix
from tests.lib.hopper import need_hopper
from tilejit import simulation
from tilejit.kernels import matmul as tma
from tilejit.kernels.devices import device_of
from tilejit.kernels.matmul import TmaPlan, matmul, plan_matmul
from tilejit.kernels.matmul_tcgen05 import TcgenPlan
from tilejit.kernels.operands import Facts
from tilejit.lib import activations

H200_SMS = 132

TINY = TmaPlan(
    tile_m=64, tile_n=64, consumers=1, stages=2, slabs=1, slabs_at_once=1, group_m=2, sms=2
)
"""Several tiles per CTA for matrices that the simulator is quick with."""
PAIR = replace(TINY, tile_m=128, consumers=2)


def product(
    a: torch.Tensor,
    b: torch.Tensor,
    plan: TmaPlan,
    *,
    bias: torch.Tensor | None = None,
    activation: Any = None,
    seed: int = 0,
) -> torch.Tensor:
    """a @ b with this plan, over a poisoned result and poisoned sums of parts."""
    out = torch.full((a.shape[0], b.shape[1]), float("nan"), dtype=a.dtype, device=a.device)
    partials, flags = tma.workspace(plan, a.device)
    if partials is not None:
        partials.fill_(float("nan"))
    a_rows = a if plan.a_k_major else a.t()
    b_rows = b.t() if plan.b_k_major else b
    with simulation(seed=seed):
        tma.matmul_tma(a_rows, b_rows, bias, out, plan, activation, partials, flags)
    assert flags is None or not flags.any()
    return out


def check(
    device: str, size: tuple[int, int, int], plan: TmaPlan, dtype: torch.dtype = torch.bfloat16,
    seeds: Iterable[int] = (0,),
) -> None:  # fmt: skip
    need_hopper(device)
    majors = (plan.a_k_major, plan.b_k_major)
    a, b = operands(*size, dtype, device, majors)
    for seed in seeds:
        assert_near(product(a, b, plan, seed=seed), a.double() @ b.double())


# --- sizes and operands

LEGAL = [(64, 64, 64), (8, 8, 8), (8, 8, 200), (72, 136, 72), (200, 72, 136), (136, 200, 264)]
"""Sizes that TMA can address in every order."""


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("size", LEGAL, ids=str)
def test_sizes_and_majors(
    device: str, size: tuple[int, int, int], majors: tuple[bool, bool]
) -> None:
    dtype = torch.bfloat16 if sum(size) % 16 else torch.float16
    check(device, size, replace(TINY, a_k_major=majors[0], b_k_major=majors[1]), dtype)


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("size", [(72, 136, 72), (37, 24, 40), (64, 8, 8)], ids=str)
def test_plain_calls(device: str, size: tuple[int, int, int], majors: tuple[bool, bool]) -> None:
    """With the plan that is chosen; a column-major A of 37 rows is ``matmul_mma``'s."""
    a, b = operands(*size, torch.float16, device, majors)
    out = torch.full(size[:2], float("nan"), dtype=torch.float16, device=device)
    assert matmul(a, b, out=out) is out
    assert_near(out, a.double() @ b.double())


@pytest.mark.parametrize(
    "size",
    [
        (33, 40, 65),
        (7, 9, 64),
        (16, 17, 15),
        (1, 8, 15),
        (1, 15, 8),
        (1, 7, 15),
        (3, 8, 1),
        (1, 1, 1),
    ],
    ids=str,
)
def test_what_tma_cannot_address(device: str, size: tuple[int, int, int]) -> None:
    """Of a single row, too: what it is long is its pitch."""
    before = len(tma.matmul_tma.variants)
    for majors in MAJORS:
        a, b = operands(*size, torch.bfloat16, device, majors)
        assert_near(matmul(a, b), a.double() @ b.double())
    assert len(tma.matmul_tma.variants) == before


@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize("size", [(33, 41, 65), (64, 24, 20), (72, 130, 64), (7, 9, 64)], ids=str)
def test_copies_to_where_tma_can_address(
    device: str,
    size: tuple[int, int, int],
    majors: tuple[bool, bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if ``matmul_mma`` took for ever. Nothing beside the result's rows is written."""
    need_hopper(device)
    monkeypatch.setattr(tma, "_MMA_RATE", dict.fromkeys((2, 4, 8), 1.0))
    monkeypatch.setattr(tma.matmul_mma, "matmul", None)
    tma._prepared.cache_clear()
    m, n, _ = size
    a, b = operands(*size, torch.float16, device, majors)
    room = torch.full((m, n + 3), 7.0, dtype=torch.float16, device=device)
    bias = torch.linspace(-1, 1, n, device=device)
    out = room[:, :n]
    assert matmul(a, b, bias=bias, activation="relu", out=out) is out
    assert_near(out, (a.double() @ b.double() + bias).relu())
    assert (room[:, n:] == 7.0).all()
    assert_near(matmul(a, b), a.double() @ b.double())
    tma._prepared.cache_clear()


@pytest.mark.parametrize(
    ("size", "pays"),
    [
        ((4097, 4095, 4099), True),
        ((4098, 4098, 4098), True),
        ((4100, 4100, 4100), True),
        ((4096, 4096, 4097), True),
        ((1025, 1023, 1027), False),
        ((513, 511, 513), False),
        ((1, 65537, 65537), False),
    ],
    ids=str,
)
def test_where_copies_pay(size: tuple[int, int, int], pays: bool) -> None:
    """As was measured, the last one apart, which would read B three times."""
    m, n, k = size
    a, b = (
        Facts(shape, (shape[1], 1), torch.bfloat16, torch.device("cpu"), 0)
        for shape in ((m, k), (n, k))
    )
    call = tma._prepared(a, b._replace(shape=(k, n), strides=(1, k)), None, None, None)
    assert (call is not None) == pays
    if call is not None:
        assert [rows.pitch_elems is None for rows in (call.a, call.b, call.c)] == [
            k % 8 == 0, k % 8 == 0, n % 8 == 0,
        ]  # fmt: skip


def test_the_gpu_decides_which_kernel_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        major, minor, multi_processor_count = 9, 0, 132
        shared_memory_per_block_optin = 227 * 1024

    def prepared(index: int) -> tma._Call | None:
        device = torch.device("cuda", index)
        a, b = (Facts((m, 64), (64, 1), torch.float16, device, 0) for m in (32, 64))
        return tma._prepared(a, b, None, None, None)

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)

    def plan_on(index: int) -> object:
        call = prepared(index)
        return None if call is None else type(call.plan)

    assert plan_on(61) is TmaPlan
    Properties.major = 10
    assert plan_on(62) is TcgenPlan
    Properties.major = 12
    assert plan_on(63) is None


def test_parts_of_larger_matrices(device: str) -> None:
    """Rows further apart than they are long; nothing beside them is read or written."""
    need_hopper(device)
    a, b = operands(90, 64, 128, torch.bfloat16, device)
    a.fill_(float("nan"))
    a[3:73, 16:104] = random_matrix(70, 88, torch.bfloat16, device)
    a, b = a[3:73, 16:104], b[8:96, :40]
    whole = torch.full((70, 64), 7.0, dtype=torch.bfloat16, device=device)
    assert_near(matmul(a, b, out=whole[:, 8:48]), a.double() @ b.double())
    assert (whole[:, :8] == 7).all() and (whole[:, 48:] == 7).all()


def test_a_single_row_of_any_pitch(device: str) -> None:
    a, b = operands(1, 24, 72, torch.float16, device)
    far = torch.empty(1, 1000, dtype=torch.float16, device=device)[:, :72]
    far.copy_(a)
    assert_near(matmul(far.as_strided((1, 72), (999, 1)), b), a.double() @ b.double())


@pytest.mark.parametrize("name", [None, *ACTIVATIONS])
@pytest.mark.parametrize("bias_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [64, 72])
def test_bias_and_activation(
    device: str, n: int, bias_dtype: torch.dtype, name: str | None
) -> None:
    """Columns of a tile beyond the matrix have no bias: 64 is half a tile of 128."""
    a, b = operands(37, n, 64, torch.bfloat16, device)
    bias = random_matrix(1, n, bias_dtype, device)[0] * 8
    expected = a.double() @ b.double() + bias.double()
    if name is not None:
        expected = ACTIVATIONS[name](expected)
    assert_near(matmul(a, b, bias=bias, activation=name), expected)
    need_hopper(device)
    function = None if name is None else activations.NAMED[name]
    plan = replace(TINY, tile_n=128, slabs=2, slabs_at_once=2)
    assert_near(product(a, b, plan, bias=bias, activation=function), expected)


def test_infinities_and_nans_stay_in_their_rows_and_columns(device: str) -> None:
    """What lies beyond the matrix is never multiplied: zeros times infinity would be NaN."""
    a, b = operands(19, 24, 24, torch.float16, device)
    a[18, 19], b[3, 20] = float("inf"), float("nan")
    finite = torch.isfinite(matmul(a, b))
    assert finite[:18, :20].all() and not finite[18].any() and not finite[:, 20].any()
    assert finite[:18, 21:].all()


@pytest.mark.parametrize("call", ["shape", "dtype", "shared"])
def test_what_is_no_product_is_refused(call: str) -> None:
    a, b = operands(8, 16, 24, torch.bfloat16, "cpu")
    refused: dict[str, tuple[Callable[[], Any], str]] = {
        "shape": (lambda: matmul(a, b[:8]), "one K"),
        "dtype": (lambda: matmul(a, b.half()), "one dtype"),
        "shared": (lambda: matmul(a, b, out=a[:, :16]), "share memory with a"),
    }
    run, message = refused[call]
    with pytest.raises(ValueError, match=message):
        run()


# --- plans

PLANS = {
    "one wgmma group pending": (replace(TINY, in_flight=1, stages=3), (136, 72, 328)),
    "one stage": (replace(TINY, stages=1), (72, 72, 200)),
    "two consumers": (replace(PAIR, stages=3), (200, 136, 200)),
    "three consumers": (replace(TINY, tile_m=192, consumers=3), (260, 72, 136)),
    "two blocks each": (replace(TINY, tile_m=128), (200, 72, 136)),
    "slabs one by one": (replace(TINY, tile_n=192, slabs=2, slabs_at_once=1), (72, 320, 72)),
    "slabs two by two": (replace(TINY, tile_n=256, slabs=4, slabs_at_once=2), (136, 512, 72)),
    "snake": (replace(TINY, order="snake"), (264, 200, 72)),
    "hilbert": (replace(TINY, order="hilbert", sms=3), (264, 200, 72)),
    "turns": (replace(TINY, consumers=2, ping_pong=True, stages=3), (328, 136, 200)),
    "turns, one pending": (
        replace(TINY, consumers=2, ping_pong=True, in_flight=1, tile_m=128), (520, 72, 136),
    ),
    "turns, one tile": (replace(TINY, consumers=2, ping_pong=True), (64, 64, 200)),
    "cluster over M": (replace(TINY, cluster_m=2, sms=4), (328, 136, 200)),
    "cluster over N": (replace(TINY, cluster_n=2, sms=4, tile_n=128), (136, 328, 200)),
    "cluster over M, MN-major": (
        replace(TINY, cluster_m=2, tile_n=128, b_k_major=False), (136, 136, 136),
    ),
    "cluster over N, MN-major": (
        replace(PAIR, cluster_n=2, a_k_major=False, b_k_major=False), (136, 136, 136),
    ),
    "cluster of consumers, one pending": (
        replace(PAIR, cluster_m=2, in_flight=1, stages=3), (392, 136, 264),
    ),
    "two parts of all tiles": (replace(TINY, parts=2, sms=4), (72, 64, 200)),
    "two parts after whole waves": (replace(TINY, parts=2, sms=4), (136, 136, 200)),
    "parts of one slice": (replace(TINY, parts=4, sms=4), (64, 64, 136)),
    "four parts, one pending": (replace(TINY, parts=4, in_flight=1, sms=9), (136, 72, 584)),
    "three parts, two consumers": (replace(PAIR, parts=3, sms=3), (72, 72, 520)),
    "parts that nobody has room for": (replace(TINY, parts=2, sms=4), (200, 72, 136)),
    "parts and turns": (replace(TINY, parts=2, consumers=2, ping_pong=True, sms=4), (328, 72, 200)),
    "parts and clusters": (replace(TINY, parts=2, cluster_n=2, sms=8), (200, 136, 200)),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_plans(device: str, name: str) -> None:
    plan, size = PLANS[name]
    check(device, size, plan)


@pytest.mark.parametrize(
    "name", ["two consumers", "turns", "cluster over N", "four parts, one pending", "parts and clusters"]
)  # fmt: skip
def test_orders_of_execution(name: str) -> None:
    """What warps and copies do first is the seed's: every order is right, and none is a hazard. Seed 0 is
    ``test_plans``'s."""
    plan, size = PLANS[name]
    check("cpu", size, plan, seeds=range(1, 4))


def test_equal_bits_from_equal_runs(device: str) -> None:
    """Parts are added in one order, whichever comes first."""
    need_hopper(device)
    plan = replace(TINY, parts=4, sms=4)
    a, b = operands(64, 64, 520, torch.float16, device)
    first = product(a, b, plan)
    for seed in range(1, 4):
        assert torch.equal(product(a, b, plan, seed=seed), first)


def test_what_is_no_plan_is_refused() -> None:
    for wrong, message in (
        ({"tile_m": 64}, "32 x 256"),
        ({"tile_n": 320}, "64 x 320 elements, .* at most 256 columns"),
        ({"tile_m": 512, "consumers": 4}, "4 consumers, expected at most 3"),
        ({"consumers": 0}, "consumers is 0"),
        ({"sms": 0}, "sms is 0, expected a positive integer"),
        ({"stages": 2.0}, r"stages is 2\.0"),
        ({"in_flight": 2}, "2 wgmma groups in flight"),
        ({"in_flight": True}, "True wgmma groups in flight"),
        ({"ping_pong": 1}, "ping_pong is 1, expected True or False"),
        ({"a_k_major": "no"}, "a_k_major is 'no', expected True or False"),
        ({"b_k_major": None}, "b_k_major is None"),
        ({"in_flight": 1, "stages": 1}, "1 stage and 1 wgmma group"),
        ({"slabs_at_once": 3}, "4 slabs, expected a multiple of slabs_at_once = 3"),
        ({"order": "spiral"}, "order is 'spiral', expected grouped, snake, hilbert"),
        ({"order": "hilbert", "group_m": 12}, "over 12 rows, expected a power of two"),
        (
            {"parts": 3, "sms": 2},
            "2 clusters of 1 CTAs at a time, expected one for each of 3 parts",
        ),
        ({"cluster_m": 2, "sms": 1}, "1 SMs run 0 clusters"),
        ({"tile_n": 96}, "64 x 96"),
        ({"ping_pong": True, "consumers": 1}, "1 consumers take turns"),
        ({"cluster_m": 2, "cluster_n": 2}, "2 x 2 CTAs"),
        ({"cluster_m": 2, "tile_n": 192, "b_k_major": False}, "equal parts of 192"),
    ):
        with pytest.raises(ValueError, match=message):
            TmaPlan(**wrong)  # type: ignore[arg-type]
    TmaPlan(in_flight=1, stages=2, parts=2, sms=2, order="hilbert", group_m=1)


# --- what is chosen

MEASURED = {
    (4096, 4096, 4096): (128, 256),
    (8448, 8448, 8192): (256, 192),
    (2048, 2048, 2048): (128, 256),
    (8192, 28672, 4096): (128, 256),
    (4096, 4096, 14336): (128, 256),
    (128, 8192, 8192): (64, 128),
}
"""The fastest tiles on an H200, of plans without parts (benchmarks/notes.md)."""


@pytest.mark.parametrize("size", MEASURED, ids=str)
def test_the_fastest_measured_tile_is_chosen(size: tuple[int, int, int]) -> None:
    plan = plan_matmul(*size, True, True, H200_SMS)
    assert (plan.tile_m, plan.tile_n) == MEASURED[size]


@pytest.mark.parametrize(
    ("size", "tile", "parts"),
    [
        ((8192, 8192, 8192), (256, 192), 2),  # 10 waves and 56 tiles of 132
        ((1024, 1024, 16384), (128, 128), 2),  # 64 tiles
        ((4096, 4096, 4096), (128, 256), 1),  # 3 waves and 116 tiles
        ((8448, 8448, 8192), (256, 192), 1),  # 11 waves
        ((4096, 4096, 512), (128, 256), 1),  # too short to be cut
    ],
    ids=str,
)
def test_tails_are_split_where_that_pays(
    size: tuple[int, int, int], tile: tuple[int, int], parts: int
) -> None:
    plan = plan_matmul(*size, True, True, H200_SMS)
    assert (plan.tile_m, plan.tile_n, plan.parts) == (*tile, parts)


@pytest.mark.parametrize("majors", MAJORS)
@pytest.mark.parametrize("sms", [1, 78, 132, 148])
def test_plans_are_bounded(sms: int, majors: tuple[bool, bool]) -> None:
    """In memory, and in number for any number of rows."""
    plans = set()
    for m in range(1, 20000, 61):
        plan = plan_matmul(m, 4096, 8192, *majors, sms)
        assert plan.parts == 1 or plan.split(m, 4096)
        slots = torch.Size(plan.slots_shape)
        assert 4 * slots.numel() <= 64 << 20
        plans.add(plan)
    assert len(plans) <= 4 * len(tma._SHAPES)


def test_one_variant_serves_any_number_of_rows() -> None:
    a, b = operands(200, 64, 136, torch.float16, "cpu")
    before = set(tma.matmul_tma.variants)
    for m in (33, 34, 67, 200):
        assert_near(product(a[:m], b, TINY), a[:m].double() @ b.double())
    assert len(set(tma.matmul_tma.variants) - before) <= 1


def test_a_repeated_call_is_not_checked_again() -> None:
    a, b = operands(8, 8, 16, torch.float16, "cpu")
    matmul(a, b)
    before = tma._prepared.cache_info()
    matmul(a.clone(), b)
    after = tma._prepared.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


# --- what it is compiled to


def compiled(plan: TmaPlan, size: int = 8192, **epilogue: Any) -> Any:
    """For matrices ragged in all three sizes; a warning of the compiler is an error."""
    m, n, k = size + 8, size + 16, size + 24
    a = torch.empty((m, k) if plan.a_k_major else (k, m), dtype=torch.bfloat16)
    b = torch.empty((n, k) if plan.b_k_major else (k, n), dtype=torch.bfloat16)
    c = torch.empty(m, n, dtype=torch.bfloat16)
    bias = torch.empty(n) if epilogue.get("bias") else None
    slots = (None, None)
    if plan.parts > 1:
        slots = (
            torch.empty(plan.slots_shape),
            torch.empty(plan.slots_shape[:2], dtype=torch.int32),
        )  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return tma.matmul_tma.compile(
            a, b, bias, c, plan, epilogue.get("activation"), *slots, target="sm_90a"
        )


LARGE = TmaPlan(tile_m=256, tile_n=192, slabs=3, slabs_at_once=3, group_m=8, in_flight=1)

COMPILED = {
    **{f"{s.tile_m}x{s.tile_n}": s for s, _ in tma._SHAPES},
    "parts": TmaPlan(parts=3),
    "parts of the largest": replace(LARGE, parts=2),
    "cluster": replace(LARGE, cluster_n=2),
    "cluster and parts": replace(LARGE, cluster_m=2, parts=2),
    "hilbert": TmaPlan(order="hilbert"),
    "turns": TmaPlan(tile_n=128, ping_pong=True, in_flight=1, stages=6, slabs=2, slabs_at_once=2),
    "turns of the largest": TmaPlan(
        tile_n=192, ping_pong=True, in_flight=1, stages=4, slabs=3, slabs_at_once=3, parts=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_no_register_spills_and_no_waits_between_products(name: str) -> None:
    plan = COMPILED[name]
    made = compiled(plan)
    assert (made.stats.spill_bytes, made.stats.local_bytes) == (0, 0)
    products = re.findall(r"HGMMA\.\S+ [^;]*;", made.sass)
    # One loop over K, whatever an item of work is; only the last of a group signals.
    assert len(products) == plan.blocks_m * tma.TILE_K // tma.K_STEP
    assert ["gsb0" in text for text in products] == [False] * (len(products) - 1) + [True]


@pytest.mark.parametrize("majors", MAJORS[1:], ids=lambda m: "".join("MK"[x] for x in m))
def test_no_register_spills_of_panels(majors: tuple[bool, bool]) -> None:
    for plan in (TmaPlan(), replace(LARGE, parts=2)):
        stats = compiled(replace(plan, a_k_major=majors[0], b_k_major=majors[1])).stats
        assert (stats.spill_bytes, stats.local_bytes) == (0, 0)


def test_no_register_spills_with_an_epilogue() -> None:
    for plan in (TmaPlan(), LARGE):
        stats = compiled(plan, bias=True, activation=activations.gelu).stats
        assert (stats.spill_bytes, stats.local_bytes) == (0, 0)


# --- on the GPU only


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("majors", MAJORS, ids=lambda m: "".join("MK"[x] for x in m))
@pytest.mark.parametrize(
    "size",
    [(4096, 4096, 4096), (4104, 4088, 4040), (1000, 3000, 2000), (264, 8200, 136), (512, 512, 16384)],
    ids=str,
)  # fmt: skip
def test_large(device: str, size: tuple[int, int, int], majors: tuple[bool, bool]) -> None:
    need_hopper(device)
    a, b = operands(*size, torch.bfloat16, device, majors)
    out = torch.full(size[:2], float("nan"), dtype=torch.bfloat16, device=device)
    assert_near(matmul(a, b, out=out), a.double() @ b.double())


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("name", COMPILED)
def test_large_plans(device: str, name: str) -> None:
    """Ragged in every size, and tiles left over for parts: several launches, one after another."""
    need_hopper(device)
    plan = COMPILED[name]
    workers = H200_SMS // plan.cluster
    m = plan.tile_m * plan.cluster_m * (workers + 7) - 3
    n, k = plan.tile_n * plan.cluster_n - 8, 1000
    a, b = operands(m, n, k, torch.bfloat16, device)
    first = product(a, b, plan)
    assert_near(first, a.double() @ b.double())
    for _ in range(20):
        assert torch.equal(product(a, b, plan), first)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
def test_parts_in_graphs_and_on_several_streams(device: str) -> None:
    """A graph replayed on a stream while others launch: nobody adds another's sums."""
    need_hopper(device)
    a, b = operands(512, 512, 16384, torch.bfloat16, device)
    assert (
        plan_matmul(512, 512, 16384, True, True, device_of(torch.device("cuda", 0)).sms).parts > 1
    )
    expected = matmul(a, b)
    outs = [torch.full_like(expected, float("nan")) for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        matmul(a, b, out=outs[0])
    streams = [torch.cuda.Stream() for _ in outs]
    for _ in range(10):
        for out in outs:
            out.fill_(float("nan"))
        torch.cuda.synchronize()
        with torch.cuda.stream(streams[0]):
            graph.replay()
        for stream, out in zip(streams[1:], outs[1:]):
            with torch.cuda.stream(stream):
                matmul(a, b, out=out)
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in outs)
