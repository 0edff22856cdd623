"""The Triton kernels that the benchmarks compare with, in the shape of Triton's own tutorials."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add(a, b, c, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(c + offsets, tl.load(a + offsets, mask) + tl.load(b + offsets, mask), mask)


def add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    n = a.numel()
    _add[(triton.cdiv(n, 1024),)](a, b, out, n, BLOCK=1024)


@triton.jit
def _softmax(x, y, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + row * stride + offsets, mask, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    value = value / tl.sum(value, 0)
    tl.store(y + row * stride + offsets, value.to(y.dtype.element_ty), mask)


def softmax(x: torch.Tensor, out: torch.Tensor) -> None:
    m, n = x.shape
    if n > WIDEST_ROW:
        _softmax_chunks[(m,)](x, out, x.stride(0), n, CHUNK=_CHUNK, num_warps=_warps(_CHUNK))
        return
    block = triton.next_power_of_2(n)
    _softmax[(m,)](x, out, x.stride(0), n, BLOCK=block, num_warps=_warps(block))


@triton.jit
def _rms_norm(x, w, y, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + row * stride + offsets, mask, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / n + eps)
    weight = tl.load(w + offsets, mask, other=0.0).to(tl.float32)
    tl.store(y + row * stride + offsets, (value * scale * weight).to(y.dtype.element_ty), mask)


def rms_norm(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, eps: float) -> None:
    m, n = x.shape
    if n > WIDEST_ROW:
        _rms_norm_chunks[(m,)](
            x, w, out, x.stride(0), n, eps, CHUNK=_CHUNK, num_warps=_warps(_CHUNK)
        )
        return
    block = triton.next_power_of_2(n)
    _rms_norm[(m,)](x, w, out, x.stride(0), n, eps, BLOCK=block, num_warps=_warps(block))


@triton.jit
def _layer_norm(x, w, b, y, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < n
    value = tl.load(x + row * stride + offsets, mask, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / n
    centered = tl.where(mask, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centered * centered, 0) / n + eps)
    weight = tl.load(w + offsets, mask, other=0.0).to(tl.float32)
    bias = tl.load(b + offsets, mask, other=0.0).to(tl.float32)
    value = centered * scale * weight + bias
    tl.store(y + row * stride + offsets, value.to(y.dtype.element_ty), mask)


def layer_norm(
    x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, out: torch.Tensor, eps: float
) -> None:
    m, n = x.shape
    if n > WIDEST_ROW:
        _layer_norm_chunks[(m,)](
            x, w, b, out, x.stride(0), n, eps, CHUNK=_CHUNK, num_warps=_warps(_CHUNK)
        )
        return
    block = triton.next_power_of_2(n)
    _layer_norm[(m,)](x, w, b, out, x.stride(0), n, eps, BLOCK=block, num_warps=_warps(block))


def _warps(block: int) -> int:
    return min(32, max(4, block // 512))


# Rows that are too long for one program's registers go in chunks, as in Triton's tutorial 05.
WIDEST_ROW = 1 << 16
_CHUNK = 1 << 13


@triton.jit
def _softmax_chunks(x, y, stride, n, CHUNK: tl.constexpr):
    x += tl.program_id(0).to(tl.int64) * stride
    y += tl.program_id(0).to(tl.int64) * stride
    top = tl.full((CHUNK,), -float("inf"), tl.float32)
    total = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        value = tl.load(x + offsets, offsets < n, other=-float("inf")).to(tl.float32)
        new_top = tl.maximum(top, value)
        total = total * tl.exp(top - new_top) + tl.exp(value - new_top)
        top = new_top
    highest = tl.max(top, 0)
    scale = 1.0 / tl.sum(total * tl.exp(top - highest), 0)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        value = tl.load(x + offsets, offsets < n, other=0.0).to(tl.float32)
        tl.store(y + offsets, (tl.exp(value - highest) * scale).to(y.dtype.element_ty), offsets < n)


@triton.jit
def _rms_norm_chunks(x, w, y, stride, n, eps, CHUNK: tl.constexpr):
    x += tl.program_id(0).to(tl.int64) * stride
    y += tl.program_id(0).to(tl.int64) * stride
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        value = tl.load(x + offsets, offsets < n, other=0.0).to(tl.float32)
        squares += value * value
    scale = tl.rsqrt(tl.sum(squares, 0) / n + eps)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        value = tl.load(x + offsets, offsets < n, other=0.0).to(tl.float32)
        weight = tl.load(w + offsets, offsets < n, other=0.0).to(tl.float32)
        tl.store(y + offsets, (value * scale * weight).to(y.dtype.element_ty), offsets < n)


@triton.jit
def _layer_norm_chunks(x, w, b, y, stride, n, eps, CHUNK: tl.constexpr):
    x += tl.program_id(0).to(tl.int64) * stride
    y += tl.program_id(0).to(tl.int64) * stride
    sums = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        sums += tl.load(x + offsets, offsets < n, other=0.0).to(tl.float32)
    mean = tl.sum(sums, 0) / n
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        value = tl.load(x + offsets, offsets < n, other=0.0).to(tl.float32)
        centered = tl.where(offsets < n, value - mean, 0.0)
        squares += centered * centered
    scale = tl.rsqrt(tl.sum(squares, 0) / n + eps)
    for start in range(0, n, CHUNK):
        offsets = start + tl.arange(0, CHUNK)
        value = tl.load(x + offsets, offsets < n, other=0.0).to(tl.float32)
        weight = tl.load(w + offsets, offsets < n, other=0.0).to(tl.float32)
        bias = tl.load(b + offsets, offsets < n, other=0.0).to(tl.float32)
        value = (value - mean) * scale * weight + bias
        tl.store(y + offsets, value.to(y.dtype.element_ty), offsets < n)


# Large tiles for large products, and one that gives a small product enough CTAs.
_MATMUL_CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64}, num_warps=warps, num_stages=stages)
    for m, n, warps, stages in (
        (128, 256, 8, 3), (128, 256, 8, 4), (256, 128, 8, 3), (128, 128, 4, 4), (64, 64, 4, 4),
    )
]  # fmt: skip


@triton.jit
def _matmul(
    a, b, c, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr = 8,
):  # fmt: skip
    # Tiles in groups of GROUP_M rows, so that CTAs that run together share operands in L2.
    tiles_n = tl.cdiv(N, BLOCK_N)
    group, place = tl.program_id(0) // (GROUP_M * tiles_n), tl.program_id(0) % (GROUP_M * tiles_n)
    group_rows = min(tl.cdiv(M, BLOCK_M) - group * GROUP_M, GROUP_M)
    tile_m, tile_n = group * GROUP_M + place % group_rows, place // group_rows
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_tile = a + (rows % M)[:, None] * stride_am + k[None, :] * stride_ak
    b_tile = b + k[:, None] * stride_bk + (columns % N)[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = K - step * BLOCK_K
        total = tl.dot(
            tl.load(a_tile, mask=k[None, :] < left, other=0.0),
            tl.load(b_tile, mask=k[:, None] < left, other=0.0),
            total,
        )
        a_tile += BLOCK_K * stride_ak
        b_tile += BLOCK_K * stride_bk
    mask = (rows[:, None] < M) & (columns[None, :] < N)
    target = c + rows[:, None] * stride_cm + columns[None, :]
    tl.store(target, total.to(c.dtype.element_ty), mask)


_matmul_tuned = triton.autotune(
    configs=_MATMUL_CONFIGS, key=["M", "N", "K", "stride_ak", "stride_bk"]
)(_matmul)


def matmul(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    def grid(chosen):
        return (
            triton.cdiv(a.shape[0], chosen["BLOCK_M"]) * triton.cdiv(b.shape[1], chosen["BLOCK_N"]),
        )

    _matmul_tuned[grid](
        a, b, out, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), out.stride(0)
    )


def matmul_untuned(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """The first configuration alone: what a user compiles who does not tune."""
    grid = (triton.cdiv(a.shape[0], 128) * triton.cdiv(b.shape[1], 256),)
    _matmul[grid](
        a, b, out, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), out.stride(0),
        BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=3,
    )  # fmt: skip


@triton.jit
def _attention_tiles(
    total, weights, top, q, k_rows, v_rows, rows, base, first, last, scale,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The keys ``first`` to ``last`` of one head join the running maximum, sum and result."""
    for start in tl.range(first, last, BLOCK_N):
        scores = tl.dot(q, k_rows.load([base + start, 0]).T)
        if MASKED:
            seen = rows[:, None] >= start + tl.arange(0, BLOCK_N)[None, :]
            scores = tl.where(seen, scores, -1.0e6)
        new_top = tl.maximum(top, tl.max(scores, 1) * scale)
        p = tl.exp2(scores * scale - new_top[:, None])
        kept = tl.exp2(top - new_top)
        v = v_rows.load([base + start, 0])
        total = tl.dot(p.to(v.dtype), v, total * kept[:, None])
        weights = weights * kept + tl.sum(p, 1)
        top = new_top
    return total, weights, top


@triton.jit
def _attention(
    q_rows, k_rows, v_rows, out_rows, S, scale, D: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    base = tl.program_id(1) * S
    block = tl.program_id(0) * BLOCK_M
    q = q_rows.load([base + block, 0])
    rows = block + tl.arange(0, BLOCK_M)
    total = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    weights = tl.zeros((BLOCK_M,), dtype=tl.float32)
    top = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    total, weights, top = _attention_tiles(
        total, weights, top, q, k_rows, v_rows, rows, base, 0, block if CAUSAL else S, scale,
        BLOCK_N, False,
    )  # fmt: skip
    if CAUSAL:
        total, weights, top = _attention_tiles(
            total, weights, top, q, k_rows, v_rows, rows, base, block, block + BLOCK_M, scale,
            BLOCK_N, True,
        )  # fmt: skip
    out_rows.store([base + block, 0], (total / weights[:, None]).to(out_rows.dtype))


def _set_boxes(arguments):
    """The tensor descriptors' boxes, which depend on the configuration that is tried."""
    for name, rows in (("q_rows", "BLOCK_M"), ("k_rows", "BLOCK_N"), ("v_rows", "BLOCK_N"), ("out_rows", "BLOCK_M")):  # fmt: skip
        arguments[name].block_shape = [arguments[rows], arguments["D"]]


_attention_tuned = triton.autotune(
    configs=[
        triton.Config(
            {"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages, pre_hook=_set_boxes
        )
        for m, n, warps, stages in (
            (128, 128, 8, 2),
            (128, 128, 8, 3),
            (128, 64, 8, 3),
            (64, 64, 4, 3),
        )
    ],
    key=["S", "D", "CAUSAL"],
)(_attention)


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: bool
) -> None:
    """Contiguous (B, H, S, D), S a multiple of 128."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    batch, heads, tokens, width = q.shape
    rows = [TensorDescriptor.from_tensor(x.view(-1, width), [128, width]) for x in (q, k, v, out)]

    def grid(chosen):
        return (tokens // chosen["BLOCK_M"], batch * heads)

    scale = width**-0.5 * 1.4426950408889634  # log2(e): exponentials are powers of two
    _attention_tuned[grid](*rows, tokens, scale, D=width, CAUSAL=causal)


@triton.jit
def nop(a, b, c, n, x, y):
    pass


@triton.jit
def nop16(a0, a1, a2, a3, a4, a5, a6, a7, s0, s1, s2, s3, s4, s5, s6, s7):
    pass


# The persistent TMA product of Triton's tutorial 09. Its loop is pipelined, not warp-specialised: for
# sm_90, Triton 3.6 leaves a loop with ``warp_specialize=True`` as it is (8 warps), or fails (4 warps).


@triton.jit
def _grouped(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    group, place = tile // (GROUP_M * tiles_n), tile % (GROUP_M * tiles_n)
    group_rows = min(tiles_m - group * GROUP_M, GROUP_M)
    return group * GROUP_M + place % group_rows, place // group_rows


@triton.jit
def _matmul_tma(
    a_rows, b_rows, c_rows, M, N, K, SMS: tl.constexpr, B_K_MAJOR: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, HALVES: tl.constexpr,
    GROUP_M: tl.constexpr = 8,
):  # fmt: skip
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # The epilogue counts its tiles itself, so that it does not hang on the next tile's loads.
    stored = tl.program_id(0) - SMS
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, SMS, flatten=True):
        tile_m, tile_n = _grouped(tile, tiles_m, tiles_n, GROUP_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            a = a_rows.load([tile_m * BLOCK_M, step * BLOCK_K])
            if B_K_MAJOR:
                b = b_rows.load([tile_n * BLOCK_N, step * BLOCK_K]).T
            else:
                b = b_rows.load([step * BLOCK_K, tile_n * BLOCK_N])
            total = tl.dot(a, b, total)
        stored += SMS
        tile_m, tile_n = _grouped(stored, tiles_m, tiles_n, GROUP_M)
        row, column = tile_m * BLOCK_M, tile_n * BLOCK_N
        if HALVES:
            halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c_rows.store([row, column], left.to(c_rows.dtype))
            c_rows.store([row, column + BLOCK_N // 2], right.to(c_rows.dtype))
        else:
            c_rows.store([row, column], total.to(c_rows.dtype))


def _set_matmul_boxes(arguments):
    """As ``_set_boxes``."""
    m, n, k = (arguments[f"BLOCK_{axis}"] for axis in "MNK")
    arguments["a_rows"].block_shape = [m, k]
    arguments["b_rows"].block_shape = [n, k] if arguments["B_K_MAJOR"] else [k, n]
    arguments["c_rows"].block_shape = [m, n // 2 if arguments["HALVES"] else n]


# ``HALVES`` of the result through shared memory leave room for a stage more.
_MATMUL_TMA_CONFIGS = [
    triton.Config(
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "HALVES": halves},
        num_warps=warps, num_stages=stages, pre_hook=_set_matmul_boxes,
    )
    for m, n, halves, warps, stages in (
        (128, 256, True, 8, 3), (128, 256, True, 8, 4), (128, 256, False, 8, 3),
        (128, 128, False, 4, 4), (128, 128, False, 8, 4), (64, 128, False, 4, 4),
    )
]  # fmt: skip

_matmul_tma_tuned = triton.autotune(
    configs=_MATMUL_TMA_CONFIGS, key=["M", "N", "K", "B_K_MAJOR"]
)(_matmul_tma)  # fmt: skip
_matmul_tma_untuned = triton.autotune(configs=_MATMUL_TMA_CONFIGS[:1], key=[])(_matmul_tma)

# As many as ``bench_tune`` gives tilejit.
_24_CONFIGS = [
    triton.Config(
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "HALVES": halves, "GROUP_M": group},
        num_warps=warps, num_stages=stages, pre_hook=_set_matmul_boxes,
    )
    for m, n, halves, warps in ((128, 256, True, 8), (128, 128, False, 4), (128, 128, False, 8), (64, 128, False, 4))
    for stages in (3, 4)
    for group in (4, 8, 16)
]  # fmt: skip
matmul_tma_24_tuned = triton.autotune(configs=_24_CONFIGS, key=["M", "N", "K", "B_K_MAJOR"])(
    _matmul_tma
)


def _launch_matmul_tma(kernel, a, b, out):
    from triton.tools.tensor_descriptor import TensorDescriptor

    k_major = b.stride(0) == 1
    # The configuration's hook sets the boxes.
    rows = [TensorDescriptor.from_tensor(x, [64, 64]) for x in (a, b.t() if k_major else b, out)]
    (m, k), n = a.shape, b.shape[1]
    sms = torch.cuda.get_device_properties(a.device).multi_processor_count

    def grid(chosen):
        return (min(sms, triton.cdiv(m, chosen["BLOCK_M"]) * triton.cdiv(n, chosen["BLOCK_N"])),)

    kernel[grid](*rows, m, n, k, SMS=sms, B_K_MAJOR=k_major)


def matmul_tma(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Rows, of ``b`` or else its columns, start at multiples of 16 bytes."""
    _launch_matmul_tma(_matmul_tma_tuned, a, b, out)


def matmul_tma_24(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """Chosen among 24 configurations by its first call."""
    _launch_matmul_tma(matmul_tma_24_tuned, a, b, out)


def matmul_tma_untuned(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """The first configuration alone: what a user compiles who does not tune."""
    _launch_matmul_tma(_matmul_tma_untuned, a, b, out)
