"""Layouts for matrix instructions: every fragment against the PTX ISA's formulas for single values,
against the maps that the families check, against ldmatrix; swizzled tiles; kernels that use them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tilejit import T
from tilejit.errors import SyntaxUnsupported
from tilejit.families import mma_sync
from tilejit.layout import ComposeLayout, Layout, LayoutError, find_collision, parse, row_major
from tilejit.ptx import spelling, tables

# --- fragments: the PTX ISA's "matrix fragments for mma", as (row, column) of value i of a lane.
# g is groupID, t is threadID_in_group; B is written (column, row): (n, k).

Place = Callable[[int, int, int], tuple[int, int]]

F16_K8: dict[str, tuple[int, Place]] = {
    "A": (4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + i % 2)),
    "B": (2, lambda g, t, i: (g, t * 2 + i)),
}
F16_K16: dict[str, tuple[int, Place]] = {
    "A": (8, lambda g, t, i: (g if i in (0, 1, 4, 5) else g + 8, t * 2 + i % 2 + (8 if i >= 4 else 0))),
    "B": (4, lambda g, t, i: (g, t * 2 + i % 2 + (8 if i >= 2 else 0))),
}  # fmt: skip
B8_K16: dict[str, tuple[int, Place]] = {
    "A": (8, lambda g, t, i: (g if i < 4 else g + 8, t * 4 + i % 4)),
    "B": (4, lambda g, t, i: (g, t * 4 + i)),
}
B8_K32: dict[str, tuple[int, Place]] = {
    "A": (16, lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + i % 4 + (16 if i >= 8 else 0))),
    "B": (8, lambda g, t, i: (g, t * 4 + i % 4 + (16 if i >= 4 else 0))),
}  # fmt: skip
TF32_K4: dict[str, tuple[int, Place]] = {
    "A": (2, lambda g, t, i: (g if i == 0 else g + 8, t)),
    "B": (1, lambda g, t, i: (g, t)),
}
TF32_K8: dict[str, tuple[int, Place]] = {
    "A": (4, lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4)),
    "B": (2, lambda g, t, i: (g, t if i == 0 else t + 4)),
}
F64_K4: dict[str, tuple[int, Place]] = {
    "A": (2, lambda g, t, i: (g if i == 0 else g + 8, t)),
    "B": (1, lambda g, t, i: (g, t)),
}
F64_K16: dict[str, tuple[int, Place]] = {
    "A": (8, lambda g, t, i: (g if i % 2 == 0 else g + 8, (i * 2 if i % 2 == 0 else i * 2 - 2) + t)),
    "B": (4, lambda g, t, i: (g, t + i * 4)),
}  # fmt: skip
F64_M8: dict[str, tuple[int, Place]] = {
    "A": (1, lambda g, t, i: (g, t)),
    "B": (1, lambda g, t, i: (g, t)),
    "D": (2, lambda g, t, i: (g, t * 2 + i)),
}
ACCUMULATOR: tuple[int, Place] = (
    4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + i % 2),
)  # fmt: skip

MMA = "mma.sync.aligned"
ISA: list[tuple[str, dict[str, tuple[int, Place]], int, int]] = [
    # opcode, values of A and B, values of a register of A and B, of D and C
    ("m16n8k8", F16_K8, 2, 1),
    ("m16n8k16", F16_K16, 2, 1),
    (f"{MMA}.m16n8k8.row.col.f32.bf16.bf16.f32", F16_K8, 2, 1),
    (f"{MMA}.m16n8k16.row.col.f16.f16.f16.f16", F16_K16, 2, 2),
    (f"{MMA}.m16n8k16.row.col.s32.s8.u8.s32", B8_K16, 4, 1),
    (f"{MMA}.m16n8k32.row.col.satfinite.s32.s8.s8.s32", B8_K32, 4, 1),
    (f"{MMA}.m16n8k32.row.col.f32.e4m3.e5m2.f32", B8_K32, 4, 1),
    (f"{MMA}.m16n8k4.row.col.f32.tf32.tf32.f32", TF32_K4, 1, 1),
    (f"{MMA}.m16n8k8.row.col.f32.tf32.tf32.f32", TF32_K8, 1, 1),
    (f"{MMA}.m8n8k4.row.col.f64.f64.f64.f64", F64_M8, 1, 1),
    (f"{MMA}.m16n8k4.row.col.f64.f64.f64.f64", F64_K4, 1, 1),
    (f"{MMA}.m16n8k16.row.col.f64.f64.f64.f64", F64_K16, 1, 1),
]


@pytest.mark.parametrize(
    ("opcode", "inputs", "packed", "packed_sums"), ISA, ids=[row[0] for row in ISA]
)
def test_fragments_are_the_isas(
    opcode: str, inputs: dict[str, tuple[int, Place]], packed: int, packed_sums: int
) -> None:
    sums = inputs.get("D", ACCUMULATOR)
    for operand, (count, place) in {"D": sums, "C": sums, **inputs}.items():
        pack = packed_sums if operand in "CD" else packed
        values = {
            place(lane // 4, lane % 4, i): (lane, i) for lane in range(32) for i in range(count)
        }
        rows, columns = (max(at) + 1 for at in zip(*values))
        layout = T.cuda.mma_fragment_layout(opcode, operand, (3, 2))
        found = layout.positions((3, 2, rows, columns // pack))
        for (m, n), ((row, column), (lane, i)) in itertools.product(
            itertools.product(range(3), range(2)), values.items()
        ):
            at = (m, n, row, column // pack)
            registers = count // pack
            assert found["laneid"][at] == lane
            assert found["m"][at] == (2 * m + n) * registers + i // pack


def all_mma() -> list[str]:
    return [
        f"{row.form(choice, family).spelling}"
        for family, row in tables.rows()
        if family == "mma_sync"
        for choice in row.choices()
    ]


@pytest.mark.parametrize("opcode", all_mma())
def test_fragments_are_what_the_family_checks(opcode: str) -> None:
    maps = mma_sync.fragments(spelling.lookup(opcode)[0])
    for operand, wanted in zip("DABC", (maps.d, maps.a, maps.b, maps.d)):
        found = T.cuda.mma_fragment_layout(T.ptx[opcode], operand).positions(wanted.atom)
        lanes, slots = found["laneid"].reshape(-1), found["m"].reshape(-1)
        assert (lanes == wanted.lanes).all()
        assert (slots[wanted.elements] == np.arange(wanted.count)).all()


def test_warp_axes() -> None:
    alone = T.cuda.mma_fragment_layout("m16n8k16", "A", (4, 2))
    assert alone == parse("(4,2,2,8,2,4):(8,4,1,4@laneid,2,1@laneid)")
    grid = T.cuda.mma_fragment_layout("m16n8k16", "A", (4, 2), warps=(2, 4)).positions(
        (8, 4, 2, 16, 8)
    )
    for axis, values in alone.positions((4, 2, 16, 8)).items():
        assert (grid[axis] == values).all()
    assert (grid["warpid"] == np.arange(8).reshape(8, 1, 1, 1, 1)).all()
    group = T.cuda.ldmatrix_layout(2, 3, warps=4, warp_axis="wid_in_wg")
    assert group == parse("(4,3,2,8,4):(1@wid_in_wg,2,1,4@laneid,1@laneid)")


# --- the same registers for ldmatrix and mma


def matrix_corners(order: list[tuple[int, int]], rows: int, words: int) -> np.ndarray[Any, Any]:
    """[matrix, row, word] → flat index in an atom (rows, words), matrices at the corners ``order``."""
    row, word = np.arange(8).reshape(8, 1), np.arange(4)
    return np.stack([(r + row) * words + w + word for r, w in order])


@pytest.mark.parametrize(
    ("instruction", "operand", "order"),
    [
        ("m16n8k16", "A", [(0, 0), (8, 0), (0, 4), (8, 4)]),
        ("m16n8k8", "A", [(0, 0), (8, 0)]),
        ("m16n8k16", "B", [(0, 0), (0, 4)]),
        ("m16n8k8", "B", [(0, 0)]),
    ],
)
def test_ldmatrix_fills_fragments(
    instruction: str, operand: Any, order: list[tuple[int, int]]
) -> None:
    rows = 16 if operand == "A" else 8
    words = 8 if instruction == "m16n8k16" else 4
    fragment = T.cuda.mma_fragment_layout(instruction, operand, (3, 2))
    loaded = T.cuda.ldmatrix_layout(len(order), (3, 2))
    corners = matrix_corners(order, rows, words)
    wanted = fragment.positions((3, 2, rows * words))
    for axis, values in loaded.positions((3, 2, len(order), 8, 4)).items():
        assert (values == wanted[axis][:, :, corners]).all()


def test_ldmatrix_x4_fills_two_fragments_of_b() -> None:
    """Two k after each other: their registers follow each other."""
    wanted = T.cuda.mma_fragment_layout("m16n8k16", "B", (3, 4)).positions((3, 2, 2, 8 * 8))
    corners = matrix_corners([(0, 0), (0, 4)], 8, 8)
    for axis, values in T.cuda.ldmatrix_layout(4, (3, 2)).positions((3, 2, 2, 2, 8, 4)).items():
        assert (values == wanted[axis][..., corners]).all()


# --- shared tiles


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((8, 64), "float16", "swizzle(3,3,3) o (8,64):(64,1)"),
        ((16, 32), "bfloat16", "swizzle(3,2,3) o (16,32):(32,1)"),
        ((16, 16), T.float16, "swizzle(3,1,3) o (16,16):(16,1)"),
        ((16, 8), "float16", "(16,8):(8,1)"),
        ((8, 32), "float32", "swizzle(2,3,3) o (8,32):(32,1)"),
        ((8, 128), "int8", "swizzle(4,3,3) o (8,128):(128,1)"),
        ((8, 256), "float4_e2m1fn", "swizzle(5,3,3) o (8,256):(256,1)"),
        ((8, 16), "float64", "swizzle(1,3,3) o (8,16):(16,1)"),
        ((3, 64, 128), "float16", "swizzle(3,3,4) o (3,64,128):(8192,128,1)"),
        ((8, 192), "float16", "swizzle(3,3,3) o (8,192):(192,1)"),
        ((8, 24), "float16", "(8,24):(24,1)"),
    ],
)
def test_shared_layouts(shape: tuple[int, ...], dtype: Any, expected: str) -> None:
    layout = T.cuda.mma_shared_layout(shape, dtype)
    assert layout == parse(expected)
    assert find_collision(layout, shape) is None
    assert layout.span() == layout.size


@pytest.mark.parametrize("chunks", range(1, 41))
def test_rows_and_runs_of_chunks_have_banks_of_their_own(chunks: int) -> None:
    layout = T.cuda.mma_shared_layout((2, 24, chunks * 8), "float16")
    place = layout.positions((2, 24, chunks, 8))["m"] * 2
    assert (place == place[..., :1] + np.arange(0, 16, 2)).all()  # a chunk stays together
    row = place // (chunks * 16)
    assert (row == np.arange(48).reshape(2, 24, 1, 1)).all()  # and in its row
    group = place[..., 0] // 16 % 8
    assert (np.sort(group.reshape(2, 3, 8, chunks), axis=2) == np.arange(8).reshape(8, 1)).all()
    assert (np.sort(group.reshape(-1, 8), axis=1) == np.arange(8)).all()


@pytest.mark.parametrize("swizzle", [32, 64, 128])
def test_a_swizzle_as_wide_as_the_row_is_the_tensor_maps(swizzle: int) -> None:
    """Address bits 4 to 6 are XORed with bits 7 to 9, as many as the width has chunks."""
    layout = T.cuda.mma_shared_layout((64, swizzle), "uint8", swizzle=swizzle)
    address = np.arange(64 * swizzle)
    expected = address ^ ((address >> 7) % (swizzle // 16) << 4)
    assert (layout.positions((64 * swizzle,))["m"] == expected).all()
    assert layout == T.cuda.mma_shared_layout((64, swizzle), "uint8")


def test_a_width_of_ones_own() -> None:
    assert T.cuda.mma_shared_layout((8, 64), "float16", swizzle=0) == row_major((8, 64))
    assert T.cuda.mma_shared_layout((8, 64), "float16", swizzle=32) == ComposeLayout(
        3, 1, 3, row_major((8, 64))
    )


# --- what cannot be


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.cuda.mma_fragment_layout("m16n8k16", "X"), "'A', 'B', 'C' or 'D'"),
        (lambda: T.cuda.mma_fragment_layout("m16n8k32", "A"), "give the whole opcode"),
        (lambda: T.cuda.mma_fragment_layout(T.ptx["ld.global.b32"], "A"), "is no mma.sync"),
        (lambda: T.cuda.mma_fragment_layout("m16n8k16", "A", (4, 0)), "repeats are positive"),
        (lambda: T.cuda.mma_fragment_layout("m16n8k16", "A", warps=64), "64 warps along warpid"),
        (
            lambda: T.cuda.mma_fragment_layout("m16n8k16", "A", warps=(2, 4), warp_axis="wid_in_wg"),
            "8 warps along wid_in_wg, expected at most 4",
        ),
        (lambda: T.cuda.ldmatrix_layout(4, warp_axis="laneid"), "'warpid' or 'wid_in_wg'"),
        (lambda: T.cuda.ldmatrix_layout(3), "1, 2 or 4 matrices, not 3"),
        (lambda: T.cuda.mma_shared_layout((8,), "float16"), "rows and columns"),
        (lambda: T.cuda.mma_shared_layout((12, 64), "float16"), "12 rows, expected a multiple of 8"),
        (lambda: T.cuda.mma_shared_layout((8, 60), "float16"), "120 bytes, expected a multiple of 16"),
        (lambda: T.cuda.mma_shared_layout((8, 64), "float6_e2m3fn"), "has 6 bits"),
        (lambda: T.cuda.mma_shared_layout((8, 64), "float16", swizzle=16), "0, 32, 64 or 128"),
        (lambda: T.cuda.mma_shared_layout((8, 32), "float16", swizzle=128), "a multiple of 128"),
    ],
)  # fmt: skip
def test_refused(make: Callable[[], Layout], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make()


# --- in kernels


@tile.jit
def refused(Y: T.Tensor((1,), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    held = T.alloc_shared((12, 64), "float16", layout=T.cuda.mma_shared_layout((12, 64), "float16"))
    held[0, 0] = T.float16(Y[0])


def test_a_kernel_says_why() -> None:
    with pytest.raises(SyntaxUnsupported, match="12 rows, expected a multiple of 8"):
        refused.check(torch.zeros(1))


@tile.jit
def product(
    X: T.Tensor((64, 64), "float16", align=16),
    W: T.Tensor((64, 64), "float16", align=16),
    Y: T.Tensor((64, 64), "float32", align=8),
    MMA: T.constexpr,
):
    """Y = X · Wᵀ with four warps, 2 along rows × 2 along columns: 32 × 32 of Y each."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    xs = T.alloc_shared((64, 64), X.dtype, layout=T.cuda.mma_shared_layout(X.shape, X.dtype))
    ws = T.alloc_shared((64, 64), W.dtype, layout=T.cuda.mma_shared_layout(W.shape, W.dtype))
    for i in T.unroll(4):
        row, chunk = i * 16 + t // 8, t % 8
        for shared, tensor in ((xs, X), (ws, W)):
            T.cuda.tile.apply(
                T.ptx["cp.async.cg.shared.global"],
                shared.view(64, 8, 8).sub[row, chunk, :],
                tensor.view(64, 8, 8).sub[row, chunk, :],
                chunk_bytes=16,
            )
    T.ptx["cp.async.wait_all"]()
    T.cuda.cta_sync()
    m, n, k = 2, 4, 4
    a = T.alloc_local((m, k, 16, 8), "uint32", layout=T.cuda.mma_fragment_layout(MMA, "A", (m, k)))
    b = T.alloc_local((n, k, 8, 8), "uint32", layout=T.cuda.mma_fragment_layout(MMA, "B", (n, k)))
    d = T.alloc_local((m, n, 16, 8), "float32", layout=T.cuda.mma_fragment_layout(MMA, "D", (m, n)))
    wm, wn = T.cuda.warp_id() // 2, T.cuda.warp_id() % 2
    # Matrices in the order (m0 k0), (m8 k0), (m0 k8), (m8 k8).
    x = xs.view("uint32").view(2, m, 2, 8, k, 2, 4).permute(0, 1, 4, 5, 2, 3, 6)
    T.cuda.tile.apply(
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
        a.view(m, k, 4, 8, 4, layout=T.cuda.ldmatrix_layout(4, (m, k))),
        x.view(2, m, k, 4, 8, 4).sub[wm, :, :, :, :, :],
        scope="warp",
    )
    # Two n beside each other: (n0 k0), (n0 k8), (n8 k0), (n8 k8).
    w = ws.view("uint32").view(2, n // 2, 2, 8, k, 2, 4).permute(0, 1, 4, 2, 5, 3, 6)
    T.cuda.tile.apply(
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"],
        b.view(n // 2, 2, k, 8, 2, 4).permute(0, 2, 1, 4, 3, 5).view(n // 2, k, 4, 8, 4),
        w.view(2, n // 2, k, 4, 8, 4).sub[wn, :, :, :, :, :],
        scope="warp",
    )
    T.cuda.tile.apply(T.ptx[MMA], d, a, b, 0.0, scope="warp")
    own = d.view(m, n, 2, 2, layout="default")  # what this thread holds: rows 8 apart, columns
    y = Y.view(2, m, 2, 8, 2, n, 4, 2)
    row, pair = T.cuda.lane_id() // 4, T.cuda.lane_id() % 4
    for i in T.unroll(m):
        for j in T.unroll(n):
            for half in T.unroll(2):
                T.cuda.tile.apply(
                    T.ptx["st.global.v2.b32"],
                    y.sub[wm, i, half, row, wn, j, pair, :],
                    own.sub[i, j, half, :],
                )


def test_a_product_from_these_layouts() -> None:
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randint(-4, 5, (64, 64), generator=generator).half() for _ in range(2))
    y = torch.zeros(64, 64)
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
    product(x, w, y, mma)
    assert torch.equal(y, x.float() @ w.float().T)
    assert {b.conflict_degree for b in product.check(x, w, y, mma).banks} == {1}
