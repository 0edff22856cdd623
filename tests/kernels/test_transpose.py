"""Transpose against numpy on random bits, on the simulator and the GPU: the same cases."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tilejit.kernels import transpose as module
from tilejit.kernels.operands import facts_of
from tilejit.kernels.transpose import TilePlan, plan_tiles, transpose, transpose_tiles

BITS = {2: torch.int16, 4: torch.int32}
DTYPES = (
    torch.float16, torch.bfloat16, torch.int16, torch.uint16, torch.float32, torch.int32, torch.uint32,
)  # fmt: skip
VECTORS = [(2, a, b) for a in (1, 2, 4, 8) for b in (1, 2, 4, 8)] + [
    (4, a, b) for a in (1, 2, 4) for b in (1, 2, 4)
]
SHAPES = (
    (1, 1), (1, 8), (8, 1), (1, 300), (300, 1), (2, 3), (7, 5), (8, 8), (16, 24), (31, 33), (33, 64),
    (64, 33), (64, 64), (65, 63), (100, 72), (72, 100), (127, 130), (128, 128), (129, 257), (136, 264),
    (200, 6), (6, 200), (640, 24), (24, 640), (1000, 40),
)  # fmt: skip


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    """Every bit pattern can occur: NaNs with payloads and both zeros too."""
    generator = torch.Generator().manual_seed(sum(shape))
    bits = BITS[dtype.itemsize]
    limits = torch.iinfo(bits)
    x = torch.randint(limits.min, limits.max + 1, shape, generator=generator).to(bits)
    return x.view(dtype).to(device)


def bits_of(x: torch.Tensor) -> np.ndarray:
    return x.view(BITS[x.dtype.itemsize]).cpu().numpy()


def same(actual: torch.Tensor, source: torch.Tensor) -> bool:
    return np.array_equal(bits_of(actual), bits_of(source).T)


@pytest.mark.parametrize("elem_bytes", [2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_transpose(device: str, shape: tuple[int, int], elem_bytes: int) -> None:
    x = random_bits(shape, BITS[elem_bytes], device)
    out = torch.zeros((shape[1], shape[0]), dtype=x.dtype, device=device)
    assert transpose(x, out) is out
    assert same(out, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(24, 40), (33, 35)], ids=str)
def test_every_dtype_keeps_its_bits(
    device: str, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x = random_bits(shape, dtype, device)
    out = transpose(x)
    assert out.dtype == dtype and out.is_contiguous()
    assert same(out, x)


@pytest.mark.parametrize("elem_bytes", [2, 4])
@pytest.mark.parametrize("shape", [(40, 72), (41, 72), (40, 71), (41, 71)], ids=str)
@pytest.mark.parametrize("gap_elems", [1, 2, 8])
@pytest.mark.parametrize("first_elem", [0, 1, 4])
def test_rows_further_apart(
    device: str, shape: tuple[int, int], elem_bytes: int, gap_elems: int, first_elem: int
) -> None:
    """What lies between the rows of the result stays what it was."""
    m, n = shape
    dtype = BITS[elem_bytes]
    inside_x, inside_y = slice(first_elem, first_elem + n), slice(first_elem, first_elem + m)
    x = random_bits((m, first_elem + n + gap_elems), dtype, device)[:, inside_x]
    held = torch.full((n, first_elem + m + gap_elems), 7, dtype=dtype, device=device)
    transpose(x, held[:, inside_y])
    assert same(held[:, inside_y], x)
    assert (held[:, :first_elem] == 7).all() and (held[:, first_elem + m :] == 7).all()


def test_a_broadcast_row(device: str) -> None:
    row = random_bits((1, 72), torch.int16, device)
    x = row.expand(40, 72)
    assert same(transpose(x), x)


@pytest.mark.parametrize(("elem_bytes", "load_elems", "store_elems"), VECTORS)
def test_vectors_of_every_length(
    device: str, elem_bytes: int, load_elems: int, store_elems: int
) -> None:
    """Sizes that are multiples of just these vectors, beyond one tile both ways."""
    m, n = store_elems * (128 // store_elems + 3), load_elems * (128 // load_elems + 5)
    x = random_bits((m, n), BITS[elem_bytes], device)
    assert plan_used(x, transpose(x)) == plan_tiles(elem_bytes, load_elems, store_elems)
    assert same(transpose(x), x)


def plan_used(x: torch.Tensor, out: torch.Tensor) -> TilePlan:
    vectors = (module._vector_elems(facts_of("it", tensor)) for tensor in (x, out))
    return plan_tiles(x.element_size(), *vectors)


@pytest.mark.parametrize("elem_bytes", [2, 4])
@pytest.mark.parametrize("sides", [(64, 64), (128, 64), (64, 128), (128, 128), (256, 64)], ids=str)
@pytest.mark.parametrize("order_rows", [1, 2, 3, 8, 256])
def test_tiles_of_every_shape_and_order(
    device: str, elem_bytes: int, sides: tuple[int, int], order_rows: int
) -> None:
    """All tiles are visited, whatever the order of the CTAs."""
    elems = 16 // elem_bytes
    blocks = sides[0] * sides[1] // elems**2
    plan = TilePlan(elem_bytes, elems, elems, *sides, min(256, blocks), order_rows=order_rows)
    m, n = 4 * sides[0] + 8, 2 * sides[1] + 24
    x = random_bits((m, n), BITS[elem_bytes], device)
    out = torch.zeros((n, m), dtype=x.dtype, device=device)
    transpose_tiles(x.view(-1), out.view(-1), m, n, n // elems, m // elems, plan)
    assert same(out, x)


def test_one_variant_serves_all_sizes_and_pitches(device: str) -> None:
    variants = set()
    base = random_bits((300, 304), torch.float32, device)
    for x in (base[:16, :24].contiguous(), base[:40, :296], base):
        assert same(transpose(x), x)
        variants.add(id(transpose_tiles.latest))
    assert len(variants) == 1


def test_empty_matrices(device: str) -> None:
    for shape in ((0, 8), (8, 0), (0, 0)):
        out = transpose(torch.empty(shape, device=device))
        assert out.shape == (shape[1], shape[0])


def test_what_cannot_be_transposed_is_refused(device: str) -> None:
    x = random_bits((16, 24), torch.float32, device)
    out = torch.empty(24, 16, device=device)
    for call, message in (
        (lambda: transpose(x[0]), "a matrix"),
        (lambda: transpose(x[0], out), "a matrix"),
        (lambda: transpose(x.tolist()), "x is list, expected a dense torch.Tensor"),
        (lambda: transpose(x, out.to("meta")), "out is on meta"),
        (lambda: transpose(x.long()), "16 or 32 bits, got torch.int64"),
        (lambda: transpose(x.to(torch.uint8)), "16 or 32 bits, got torch.uint8"),
        (lambda: transpose(x, out.half()), "out is torch.float16"),
        (lambda: transpose(x, out[:16]), r"of shape \(16, 16\), expected torch.float32 of shape \(24, 16\)"),
        (lambda: transpose(x.t()), "lie 24 apart"),
        (lambda: transpose(x, torch.empty(16, 24, device=device).t()), "lie 24 apart"),
        (lambda: transpose(x, out[:1].expand(24, 16)), "rows of out overlap"),
        (lambda: transpose(x[:16, :16], x[:16, 8:24]), "share memory"),
        (lambda: transpose(x[:16, :16], x[:16, :16]), "share memory"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()


def test_a_result_beside_the_source_in_one_matrix(device: str) -> None:
    both = random_bits((16, 32), torch.int32, device)
    x, expected = both[:, :16], both[:, :16].clone()
    transpose(x, both[:, 16:])
    assert same(both[:, 16:], expected)


@pytest.mark.parametrize(("elem_bytes", "load_elems", "store_elems"), VECTORS)
def test_a_plan_is_whole(elem_bytes: int, load_elems: int, store_elems: int) -> None:
    plan = plan_tiles(elem_bytes, load_elems, store_elems)
    elems = plan.tile_rows * plan.tile_columns
    assert plan.loaded_blocks * plan.threads * load_elems * store_elems == elems
    assert plan.stored_vectors * plan.threads * store_elems == elems
    assert plan.threads % 32 == 0
    assert min(plan.tile_rows, plan.tile_columns) * elem_bytes >= 128, "segments of a whole line"
    shared_bytes = elems * elem_bytes
    assert plan.min_blocks * (shared_bytes + 1024) <= 227 * 1024


@pytest.mark.parametrize(("elem_bytes", "load_elems", "store_elems"), VECTORS)
def test_no_register_spills(elem_bytes: int, load_elems: int, store_elems: int) -> None:
    plan = plan_tiles(elem_bytes, load_elems, store_elems)
    x = torch.empty(4096, dtype=BITS[elem_bytes])
    y = torch.empty_like(x)
    sizes = (64, 64, 64 // load_elems, 64 // store_elems)
    stats = transpose_tiles.compile(x, y, *sizes, plan, target="sm_90a").stats
    assert (stats.spill_bytes, stats.local_bytes) == (0, 0)
    assert stats.blocks_per_sm >= plan.min_blocks


# --- banks of shared memory


def conflict_degrees(plan: TilePlan) -> set[int | None]:
    """Of all accesses of a CTA with a whole tile; None: not known."""
    m, n = plan.tile_rows, plan.tile_columns
    x = torch.empty(m * n, dtype=BITS[plan.elem_bytes])
    sizes = (m, n, n // plan.load_elems, m // plan.store_elems)
    return {b.conflict_degree for b in transpose_tiles.check(x, x.clone(), *sizes, plan).banks}


@pytest.mark.parametrize(("elem_bytes", "load_elems", "store_elems"), VECTORS)
def test_no_bank_is_asked_twice_in_a_phase(
    elem_bytes: int, load_elems: int, store_elems: int
) -> None:
    assert conflict_degrees(plan_tiles(elem_bytes, load_elems, store_elems)) == {1}


def test_it_is_the_swizzle_that_avoids_conflicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TilePlan, "swizzle", lambda plan, block_column: 0)
    plan = replace(plan_tiles(4, 4, 4), order_rows=5)  # a plan that no other test has checked
    assert max(conflict_degrees(plan), key=lambda d: d or 0) == 8
