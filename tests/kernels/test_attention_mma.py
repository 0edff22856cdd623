"""Attention against float64 arithmetic, on the simulator and the GPU: the same cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tilejit.kernels import attention_mma
from tilejit.kernels.attention_mma import AttentionPlan, attention, plan_attention

TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Of the norm: probabilities and results are rounded to the dtype."""

Shape = tuple[int, int, int, int]


def random_tensor(shape: Shape, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).to(device)


def expected(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None = None
) -> torch.Tensor:
    """In float64; query i sees keys 0..i with ``causal``."""
    share = q.shape[1] // k.shape[1]
    wide_k, wide_v = (t.double().repeat_interleave(share, 1) for t in (k, v))
    factor = q.shape[3] ** -0.5 if scale is None else scale
    scores = q.double() @ wide_k.transpose(2, 3) * factor
    if causal:
        hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ wide_v


def assert_close(actual: torch.Tensor, wanted: torch.Tensor) -> None:
    """The norm of every row: one wrong row is not drowned by the others."""
    error = (actual.double() - wanted).norm(dim=-1)
    assert (error <= 2 * TOLERANCE[actual.dtype] * wanted.norm(dim=-1)).all()
    assert error.norm() <= TOLERANCE[actual.dtype] * wanted.norm()


def check(
    query_shape: Shape,
    key_shape: Shape,
    dtype: torch.dtype,
    device: str,
    causal: bool,
    scale: float | None = None,
) -> None:
    q = random_tensor(query_shape, dtype, device, 1)
    k = random_tensor(key_shape, dtype, device, 2)
    v = random_tensor(key_shape, dtype, device, 3)
    out = torch.full_like(q, math.nan)
    assert attention(q, k, v, causal=causal, scale=scale, out=out) is out
    assert_close(out, expected(q, k, v, causal, scale))


LENGTHS = (
    (1, 1),
    (17, 17),
    (64, 64),
    (100, 100),
    (130, 130),
    (1, 77),
    (70, 1),
    (33, 200),
    (200, 33),
)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_elems", [64, 128])
@pytest.mark.parametrize(("rows", "keys"), LENGTHS)
def test_lengths(device: str, rows: int, keys: int, head_elems: int, causal: bool) -> None:
    shape = (1, 1, rows, head_elems)
    check(shape, (1, 1, keys, head_elems), torch.bfloat16, device, causal)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_heads_that_share_keys(device: str, dtype: torch.dtype, causal: bool) -> None:
    check((2, 6, 40, 64), (2, 2, 40, 64), dtype, device, causal)
    check((2, 3, 40, 128), (2, 1, 40, 128), dtype, device, causal)


@pytest.mark.parametrize("scale", [1e-3, 0.7, 20.0])
def test_scale(device: str, scale: float) -> None:
    check((1, 1, 70, 64), (1, 1, 90, 64), torch.float16, device, False, scale)


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["gpu"], indirect=True)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_elems", [64, 128])
@pytest.mark.parametrize("length", [1000, 2048, 4095])
def test_longer_lengths(device: str, length: int, head_elems: int, causal: bool) -> None:
    shape = (2, 4, length, head_elems)
    check(shape, (2, 2, length, head_elems), torch.bfloat16, device, causal)


def test_strided_tensors(device: str) -> None:
    """Queries, keys and values of one packed tensor (B, S, 3, H, D), a result (B, S, H, D)."""
    packed = random_tensor((2, 50, 3 * 3, 64), torch.bfloat16, device, 4).view(2, 50, 3, 3, 64)
    q, k, v = packed.permute(2, 0, 3, 1, 4)
    memory = torch.full((2, 50, 3, 80), math.nan, dtype=torch.bfloat16, device=device)
    out = memory[..., 8:72].transpose(1, 2)
    attention(q, k, v, causal=True, out=out)
    assert_close(out, expected(q, k, v, True))
    assert memory[..., :8].isnan().all()
    assert memory[..., 72:].isnan().all()


def test_keys_shared_by_stride_0(device: str) -> None:
    q = random_tensor((2, 2, 40, 64), torch.bfloat16, device, 5)
    k, v = (
        random_tensor((1, 1, 70, 64), torch.bfloat16, device, s).expand(2, 2, 70, 64)
        for s in (6, 7)
    )
    assert_close(attention(q, k, v), expected(q, k, v, False))


def test_a_new_length_does_not_compile_again() -> None:
    kernel = attention_mma.attention_rows
    for length in (20, 33, 150):
        check((1, 2, length, 64), (1, 2, length, 64), torch.float16, "cpu", False)
        if length == 20:
            known = len(kernel.variants)
    assert len(kernel.variants) == known


def test_rows_of_infinite_scores(device: str) -> None:
    """Scores of +inf and only -inf give NaN, some of -inf have probability 0: as torch."""
    big = torch.finfo(torch.bfloat16).max
    q = torch.zeros(1, 1, 3, 64, dtype=torch.bfloat16)
    q[0, 0, 0, :2] = big
    q[0, 0, 1, :2] = -big
    k = torch.zeros(1, 1, 40, 64, dtype=torch.bfloat16)
    k[0, 0, :, :2] = big
    k[0, 0, 7, :2] = 0.0
    v = random_tensor((1, 1, 40, 64), torch.bfloat16, "cpu", 8)
    out = attention(q.to(device), k.to(device), v.to(device)).cpu()
    assert out[0, 0, 0].isnan().all()
    assert_close(out[:, :, 1], v[:, :, 7].double())
    assert_close(out[:, :, 2], v.double().mean(2))
    only = attention(q[:, :, 1:2].to(device), k[:, :, :7].to(device), v[:, :, :7].to(device))
    assert only.isnan().all()


def test_an_infinite_value_of_the_last_key(device: str) -> None:
    """Of a ragged tile: what lies beyond the keys is zeros, which times a probability of 0 is 0."""
    q, k, v = (random_tensor((1, 1, 50, 64), torch.float16, "cpu", s) for s in (18, 19, 20))
    v[0, 0, 49, 3] = math.inf
    out = attention(q.to(device), k.to(device), v.to(device)).cpu()
    assert (out[..., 3] == math.inf).all()
    others = torch.arange(64) != 3
    assert_close(out[..., others], expected(q, k, v, False)[..., others])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scores_as_large_as_promised(device: str, dtype: torch.dtype) -> None:
    """Scaled scores of 0.99 * 2**26, three of them equal and the largest."""
    signs = random_tensor((1, 1, 1, 64), torch.float32, "cpu", 21).sign()
    q = (signs * 2880.0).to(dtype).repeat(1, 1, 20, 1)
    k = (random_tensor((1, 1, 90, 64), torch.float32, "cpu", 22).sign() * 2880.0).to(dtype)
    k[0, 0, [2, 40, 80]] = q[0, 0, 0]
    v = random_tensor((1, 1, 90, 64), dtype, "cpu", 23)
    largest = float((q[0, 0, 0].double() ** 2).sum() / 8)
    assert 0.95 * 2**26 < largest < 2**26
    out = attention(q.to(device), k.to(device), v.to(device)).cpu()
    assert_close(out, expected(q, k, v, False))


def test_a_row_with_nan_spoils_no_other(device: str) -> None:
    q, k, v = (random_tensor((1, 1, 40, 64), torch.bfloat16, "cpu", s) for s in (9, 10, 11))
    wanted = expected(q, k, v, False)
    q[0, 0, 5, 3] = math.nan
    out = attention(q.to(device), k.to(device), v.to(device)).cpu()
    assert out[0, 0, 5].isnan().all()
    kept = torch.arange(40) != 5
    assert_close(out[:, :, kept], wanted[:, :, kept])


def test_nothing_to_do(device: str) -> None:
    keys = torch.zeros(1, 2, 8, 64, dtype=torch.float16, device=device)
    empty = torch.zeros(1, 2, 0, 64, dtype=torch.float16, device=device)
    assert attention(empty, keys, keys).shape == (1, 2, 0, 64)
    assert attention(empty, empty, empty).shape == (1, 2, 0, 64)
    for nothing in (keys[:0], keys[:, :0]):
        assert attention(nothing, nothing, nothing).shape == nothing.shape
    with pytest.raises(ValueError, match="k is torch.float16 of shape"):
        attention(keys[:0], keys, keys)


def test_a_result_beside_its_inputs_in_one_tensor(device: str) -> None:
    packed = random_tensor((1, 40, 4 * 2, 64), torch.bfloat16, device, 24).view(1, 40, 4, 2, 64)
    q, k, v, out = packed.permute(2, 0, 3, 1, 4)
    wanted = expected(q, k, v, True)
    assert_close(attention(q, k, v, causal=True, out=out), wanted)
    with pytest.raises(ValueError, match="may not share memory with v"):
        attention(q, k, v, out=packed[:, :, 2:4, :, :].flatten(2, 3)[:, :, 1:3].transpose(1, 2))


def test_a_repeated_call_is_not_checked_again() -> None:
    q = random_tensor((1, 1, 8, 64), torch.float16, "cpu", 25)
    attention(q, q, q)
    before = attention_mma._prepared.cache_info()
    attention(q.clone(), q, q)
    after = attention_mma._prepared.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)


# --- plans


def plans(head_elems: int, causal: bool) -> list[AttentionPlan]:
    """Every part of a plan away from what ``plan_attention`` chooses."""
    plan = plan_attention(head_elems, causal, *[head_elems // 8] * 4)
    return [
        replace(plan, tile_keys=128, step_keys=32, slack_log2=0.0),
        replace(plan, tile_keys=128, step_keys=128, query_rows=64),
        replace(plan, warps=8, min_blocks=1, keep_queries=True),
        replace(plan, warps=2, query_rows=32, heads_first=True),
    ]


# A plan that spills is slow, not wrong.
@pytest.mark.filterwarnings("ignore:.*spill:tilejit.pipeline.CompilerWarning")
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_elems", [64, 128])
@pytest.mark.parametrize("number", range(4))
def test_every_plan_computes_the_same(
    device: str, number: int, head_elems: int, causal: bool
) -> None:
    """Maxima rise along the keys by less and by more than the slack."""
    shape = (1, 2, 150, head_elems)
    q, k, v = (random_tensor(shape, torch.bfloat16, device, s) for s in (12, 13, 14))
    out = torch.full_like(q, math.nan)
    k *= torch.linspace(0.2, 4, 150, device=device).to(k.dtype).flip(0)[:, None]
    attention_mma.launch(q, k, v, out, 0.125, plans(head_elems, causal)[number])
    assert_close(out, expected(q, k, v, causal, 0.125))


@pytest.mark.parametrize("keys", [1, 64, 65, 128])
def test_tiles_at_their_ends(device: str, keys: int) -> None:
    """One tile, full and not, and a tile that begins at the last key."""
    q = random_tensor((1, 1, 20, 64), torch.float16, device, 15)
    k, v = (random_tensor((1, 1, keys, 64), torch.float16, device, s) for s in (16, 17))
    plan = replace(plan_attention(64, False, 8, 8, 8, 8), tile_keys=64, step_keys=32)
    out = torch.full_like(q, math.nan)
    attention_mma.launch(q, k, v, out, 0.125, plan)
    assert_close(out, expected(q, k, v, False, 0.125))


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("head_elems", [64, 128])
@pytest.mark.parametrize(
    ("target", "heads_between"),
    [(t, n) for t in ("sm_80", "sm_90a") for n in (1, 16, 0)] + [("sm_100a", 1), ("sm_100a", 16)],
)
def test_registers_do_not_spill(
    heads_between: int, head_elems: int, causal: bool, target: str
) -> None:
    flat = torch.empty(1 << 16, dtype=torch.bfloat16)
    major = int(target.removeprefix("sm_").rstrip("a")) // 10
    pitch = head_elems // 8 * heads_between
    plan = plan_attention(head_elems, causal, *[pitch] * 4, major)
    sizes = (2, 2, 1, 128, 128, *[64] * 8, 1.0)
    stats = attention_mma.attention_rows.compile(
        flat, flat, flat, flat, *sizes, plan, target=target
    ).stats
    assert (stats.spill_bytes, stats.local_bytes) == (0, 0)
    assert stats.blocks_per_sm >= plan.min_blocks
    assert not stats.bank_conflicts


# --- what is refused


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def good() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return half(1, 4, 8, 64), half(1, 2, 8, 64), half(1, 2, 8, 64)


def test_refused_inputs() -> None:
    q, k, v = good()
    with pytest.raises(ValueError, match=r"expected queries \(B, H, S, D\)"):
        attention(q[0], k[0], v[0])
    with pytest.raises(ValueError, match="expected float16 or bfloat16, got torch.float32"):
        attention(q.float(), k.float(), v.float())
    with pytest.raises(ValueError, match="expected heads of 64 or 128 elements, got 32"):
        attention(q[..., :32], k[..., :32], v[..., :32])
    with pytest.raises(ValueError, match="4 query heads do not share 3 key heads evenly"):
        attention(q, half(1, 3, 8, 64), half(1, 3, 8, 64))
    with pytest.raises(ValueError, match="8 queries and 0 keys"):
        attention(q, k[:, :, :0], v[:, :, :0])
    with pytest.raises(ValueError, match=r"v is torch.float16 of shape \(1, 2, 7, 64\)"):
        attention(q, k, v[:, :, :7])
    with pytest.raises(ValueError, match="k is torch.bfloat16"):
        attention(q, k.bfloat16(), v)
    with pytest.raises(ValueError, match="v is NoneType, expected a dense torch.Tensor"):
        attention(q, k, None)
    for causal in ("no", 1, None):
        with pytest.raises(ValueError, match="causal is .*, expected True or False"):
            attention(q, k, v, causal=causal)
    for scale in (0.0, -1.0, math.inf, math.nan, 1e-45, 3e38):
        with pytest.raises(ValueError, match="expected a positive number"):
            attention(q, k, v, scale=scale)


def test_refused_strides() -> None:
    q, k, v = good()
    with pytest.raises(ValueError, match="elements of a row of k lie 2 apart"):
        attention(q, half(1, 2, 8, 128)[..., ::2], v)
    with pytest.raises(ValueError, match="rows of v must start at multiples of 16 bytes"):
        attention(q, k, half(1, 2, 8, 68)[..., :64])
    with pytest.raises(ValueError, match="rows of q must start at multiples of 16 bytes"):
        attention(half(1, 4, 8, 72)[..., 4:68], k, v)


def test_refused_results() -> None:
    q, k, v = good()
    with pytest.raises(ValueError, match=r"out is torch.float16 of shape \(1, 4, 9, 64\)"):
        attention(q, k, v, out=half(1, 4, 9, 64))
    with pytest.raises(ValueError, match="elements of out overlap"):
        attention(q, k, v, out=half(1, 1, 8, 64).expand(1, 4, 8, 64))
    with pytest.raises(ValueError, match="may not share memory with q"):
        attention(q, k, v, out=q)
    with pytest.raises(ValueError, match="may not share memory with k"):
        attention(half(1, 2, 8, 64), k, v, out=k)
