"""Layouts for tcgen05: tensor memory against the PTX ISA's data paths as formulas for single elements,
shared tiles against the walk of a matrix descriptor, what is refused, use in kernels.
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
from tilejit.ir.script import print_function
from tilejit.layout import Iter, Layout, LayoutError, TileLayout, find_collision, parse

# --- data paths: PTX ISA 9.7.16.10.5.1 to .7, as (lane, column) of element (r, c) of N columns

Cell = Callable[[int, int, int], tuple[int, int]]

DATAPATHS: dict[str, tuple[int, Cell]] = {
    "A": (128, lambda r, c, n: (r, c)),
    "B": (64, lambda r, c, n: (r + (64 if c >= n // 2 else 0), c % (n // 2))),
    "C": (64, lambda r, c, n: (r // 16 * 32 + r % 16, c)),
    "D": (128, lambda r, c, n: (r, c)),
    "E": (64, lambda r, c, n: (r + (64 if c >= n // 2 else 0), c % (n // 2))),
    "F": (64, lambda r, c, n: (r // 16 * 32 + r % 16, c)),
    "G": (32, lambda r, c, n: (r + 32 * (c // (n // 4)), c % (n // 4))),
}


def cells(layout: TileLayout, shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Lanes and columns, in elements; nothing is anywhere else."""
    found = layout.positions(shape)
    assert set(found) <= {"TLane", "TCol", "m"} and not found["m"].any()
    return found.get("TLane", np.zeros(shape, np.int64)), found.get(
        "TCol", np.zeros(shape, np.int64)
    )


@pytest.mark.parametrize("letter", DATAPATHS)
@pytest.mark.parametrize("n", [16, 64, 256])
def test_datapaths_are_the_isas(letter: Any, n: int) -> None:
    rows, cell = DATAPATHS[letter]
    for half in (0, 1) if letter in "CF" else (0,):
        layout = T.cuda.tmem_datapath_layout(letter, rows, n, half)
        lanes, columns = cells(layout, (rows, n))
        for r, c in itertools.product(range(rows), range(n)):
            lane, column = cell(r, c, n)
            assert (lanes[r, c], columns[r, c]) == (lane + 16 * half, column)
        assert find_collision(layout, (rows, n)) is None


def test_the_notation() -> None:
    assert T.cuda.tmem_datapath_layout("D", 128, 64) == parse("(128,64):(1@TLane,1@TCol)")
    assert T.cuda.tmem_datapath_layout("E", 64, 64) == parse("(64,2,32):(1@TLane,64@TLane,1@TCol)")
    assert T.cuda.tmem_datapath_layout("F", 64, 8, 1) == parse(
        "(4,16,8):(32@TLane,1@TLane,1@TCol) + 16@TLane"
    )


# --- accumulators

INSTRUCTIONS = [
    # M, CTA group, .ws, letter
    (64, 1, False, "F"),
    (128, 1, False, "D"),
    (128, 2, False, "B"),
    (256, 2, False, "A"),
    (64, 1, True, "E"),
    (128, 1, True, "D"),
]


@pytest.mark.parametrize(("m", "group", "ws", "letter"), INSTRUCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_accumulators(m: int, group: int, ws: bool, letter: str, dtype: str) -> None:
    """Elements of D have a cell of their own: every other TCol of a 16-bit type."""
    rows, cell = DATAPATHS[letter]
    n, step = 32, 2 if dtype == "float16" else 1
    layout = T.cuda.tmem_mma_operand_layout(
        "D", (2, 3, rows, n), dtype, M=m, cta_group=group, ws=ws
    )
    lanes, columns = cells(layout, (6, rows, n))
    width = n // 2 if letter in "BE" else n
    for repeat, r, c in itertools.product(range(6), range(rows), range(n)):
        lane, column = cell(r, c, n)
        assert lanes[repeat, r, c] == lane
        assert columns[repeat, r, c] == (repeat * width + column) * step
    assert layout.replica == ()
    if step == 1 and letter != "A":
        one = T.cuda.tmem_mma_operand_layout("D", (rows, n), dtype, M=m, cta_group=group, ws=ws)
        assert one == T.cuda.tmem_datapath_layout(letter, rows, n)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("m", "group", "ws"), [(64, 1, True), (128, 2, False)])
def test_columns_of_several_instructions(m: int, group: int, ws: bool, dtype: str) -> None:
    """A flat D of s instructions of 2·n columns is their D side by side."""
    s, n = 3, 32
    flat = T.cuda.tmem_mma_operand_layout(
        "D", (64, s * 2 * n), dtype, M=m, cta_group=group, ws=ws, group=(s, 2, n)
    )
    apart = T.cuda.tmem_mma_operand_layout("D", (s, 64, 2 * n), dtype, M=m, cta_group=group, ws=ws)
    for found, wanted in zip(cells(flat, (64, s, 2 * n)), cells(apart, (s, 64, 2 * n))):
        assert (found.transpose(1, 0, 2) == wanted).all()


# --- A in tensor memory


@pytest.mark.parametrize(
    ("m", "group", "ws", "letter"), [i for i in INSTRUCTIONS if i[3] not in "BE"]
)
@pytest.mark.parametrize(("dtype", "k"), [("float16", 16), ("float32", 8), ("uint8", 32)])
def test_a_lies_in_the_lanes_of_d(
    m: int, group: int, ws: bool, letter: str, dtype: str, k: int
) -> None:
    """Rows in the lanes of the accumulator, elements packed; M=64 uses half the lanes of both."""
    rows, cell = DATAPATHS[letter]
    layout = T.cuda.tmem_mma_operand_layout(
        "A", (1, 3, rows, k), dtype, M=m, cta_group=group, ws=ws
    )
    lanes, columns = cells(layout, (3, rows, k))
    for repeat, r, c in itertools.product(range(3), range(rows), range(k)):
        assert lanes[repeat, r, c] == cell(r, 0, k)[0]
        assert columns[repeat, r, c] == repeat * k + c
    assert layout.replica == ()


def test_a_of_two_ctas_is_there_twice() -> None:
    """M=128 of two CTAs: both halves of the columns of D find all 64 rows of A."""
    layout = T.cuda.tmem_mma_operand_layout("A", (2, 64, 16), "bfloat16", M=128, cta_group=2)
    assert layout == parse("(2,64,16):(16@TCol,1@TLane,1@TCol) + R[2:64@TLane]")


def test_a_of_ws_has_two_banks() -> None:
    layout = T.cuda.tmem_mma_operand_layout(
        "A", (1, 4, 2, 64, 16), "float16", M=64, cta_group=1, ws=True
    )
    lanes, columns = cells(layout, (4, 2, 64, 16))
    step, bank, r, k = np.ogrid[:4, :2, :64, :16]
    assert (lanes == 64 * bank + r).all()
    assert (columns == 16 * step + k).all()
    assert layout.replica == ()


def test_packed_a_of_four_bits() -> None:
    layout = T.cuda.tmem_mma_operand_layout("A", (2, 128, 64), "float4_e2m1fn", M=128, cta_group=1)
    assert layout == parse("(2,128,64):(64@TCol,1@TLane,1@TCol)")


# --- scale factors


@pytest.mark.parametrize(
    ("operand", "m", "group", "rows"),
    [
        ("SFA", 128, 1, 128), ("SFA", 256, 2, 128), ("SFA", 128, 2, 64),
        ("SFB", 128, 1, 8), ("SFB", 128, 1, 32), ("SFB", 256, 2, 96),
    ],
)  # fmt: skip
@pytest.mark.parametrize("factors", [1, 2, 4])
def test_scale_factors(operand: Any, m: int, group: int, rows: int, factors: int) -> None:
    """Factor f of row r: lane r%32 of all slabs, byte 4·(r//32) + f."""
    layout = T.cuda.tmem_mma_operand_layout(
        operand, (rows, factors), "float8_e8m0fnu", M=m, cta_group=group
    )
    lanes, columns = cells(layout, (rows, factors))
    r, f = np.ogrid[:rows, :factors]
    assert (lanes == r % 32).all()
    assert (columns == 4 * (r // 32) + f).all()
    assert layout.replica == (Iter(4, 32, "TLane"),)
    assert find_collision(layout, (rows, factors)) is None


@pytest.mark.parametrize("rows", [16, 32, 48, 64, 128, 256])
@pytest.mark.parametrize("factors", [1, 2, 4])
def test_halves_of_scale_factors(rows: int, factors: int) -> None:
    """M=128 of two CTAs: the halves of SFB's rows in slabs 0 and 1, and in 2 and 3."""
    layout = T.cuda.tmem_mma_operand_layout("SFB", (rows, factors), "uint8", M=128, cta_group=2)
    lanes, columns = cells(layout, (rows, factors))
    r, f = np.ogrid[:rows, :factors]
    inside = r % (rows // 2)
    assert (lanes == 64 * (r // (rows // 2)) + inside % 32).all()
    assert (columns == 4 * (inside // 32) + f).all()
    assert layout.replica == (Iter(2, 32, "TLane"),)
    assert find_collision(layout, (rows, factors)) is None


@pytest.mark.parametrize("factors", [1, 2, 4])
def test_scale_factors_of_k_share_cells(factors: int) -> None:
    """The factors of 4 · 32 rows for 4 bytes of K, then the next 4: as 32x128b copies bring them."""
    repeats, steps, rows = 2, 8, 128
    shape = (repeats, steps, rows, factors)
    layout = T.cuda.tmem_mma_operand_layout("SFA", shape, "uint8", M=128, cta_group=1)
    lanes, columns = cells(layout, shape)
    mn, k, r, f = np.ogrid[:repeats, :steps, :rows, :factors]
    along_k = k * factors + f
    groups = steps * factors // 4
    assert (lanes == r % 32).all()
    assert (columns == 16 * (mn * groups + along_k // 4) + 4 * (r // 32) + along_k % 4).all()
    assert find_collision(layout, shape) is None


@pytest.mark.parametrize(("steps", "shared"), [(1, 1), (2, 2), (3, 1), (6, 2), (8, 4)])
def test_as_many_steps_share_a_cell_as_divide(steps: int, shared: int) -> None:
    shape = (steps, 64, 1)
    layout = T.cuda.tmem_mma_operand_layout("SFB", shape, "uint8", M=128, cta_group=1)
    _, columns = cells(layout, shape)
    k = np.arange(steps)
    assert (columns[:, 0, 0] == 8 * (k // shared) + k % shared).all()
    assert find_collision(layout, shape) is None


# --- shared tiles: the walk of a descriptor, in bits, written from the contract


def walk_bits(
    shape: tuple[int, int], bits: int, mode: int, group_bytes: int, chunk_bytes: int
) -> np.ndarray[Any, Any]:
    """Bit address of (row, column): rows of 16 << mode bytes in groups of eight, then swizzled."""
    row, column = np.ogrid[: shape[0], : shape[1]]
    row_bits = 128 << mode
    at = (
        row // 8 * group_bytes * 8
        + row % 8 * row_bits
        + column * bits // row_bits * chunk_bytes * 8
        + column * bits % row_bits
    )
    return at ^ (at >> 10 & (1 << mode) - 1) << 7


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("dtype", ["float16", "uint8", "float32", "float4_e2m1fn"])
def test_shared_tiles_are_descriptors_walks(mode: int, dtype: str) -> None:
    bits = {"float16": 16, "uint8": 8, "float32": 32, "float4_e2m1fn": 4}[dtype]
    row_bytes = 16 << mode
    rows, columns = 24, 2 * row_bytes * 8 // bits
    swizzle = row_bytes if mode else 0
    layout = T.cuda.tcgen05_shared_layout((rows, columns), dtype, swizzle)
    found = layout.positions((rows, columns))["m"] * bits
    expected = walk_bits((rows, columns), bits, mode, 8 * row_bytes, rows * row_bytes)
    assert (found == expected).all()
    staged = T.cuda.tcgen05_shared_layout((2, rows, columns), dtype, swizzle)
    assert find_collision(staged, (2, rows, columns)) is None
    assert staged.span() == 2 * rows * columns
    if bits in (8, 16):
        assert T.cuda.tcgen05_shared_layout((rows, columns), dtype, swizzle, major="mn") == layout
        assert T.cuda.wgmma_shared_layout((rows, columns), dtype, swizzle) == layout


@pytest.mark.parametrize("swizzle", [None, 128])
def test_mn_major_words_are_permuted_by_32_bytes(swizzle: int | None) -> None:
    """Mode 4: groups of four K rows of 128 bytes, offset ^ ((offset >> 2) & 96)."""
    k, mn = 16, 96
    layout = T.cuda.tcgen05_shared_layout((k, mn), "float32", swizzle, major="mn")
    row, column = np.ogrid[:k, :mn]
    at = row // 4 * 512 + row % 4 * 128 + column * 4 // 128 * (k * 128) + column * 4 % 128
    assert (layout.positions((k, mn))["m"] * 4 == (at ^ at >> 2 & 96)).all()
    assert find_collision(layout, (k, mn)) is None
    assert layout.span() == k * mn


def test_the_widest_swizzle_that_divides_a_row() -> None:
    for columns, swizzle in ((64, 128), (32, 64), (16, 32), (8, 0), (24, 0), (96, 64)):
        assert T.cuda.tcgen05_shared_layout((8, columns), "bfloat16") == (
            T.cuda.tcgen05_shared_layout((8, columns), "bfloat16", swizzle)
        )


# --- what cannot be

D, A, SFA, SFB = (
    lambda shape, dtype="float32", m=128, g=1, _operand=operand, **more: (
        T.cuda.tmem_mma_operand_layout(_operand, shape, dtype, M=m, cta_group=g, **more)
    )
    for operand in ("D", "A", "SFA", "SFB")
)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T.cuda.tmem_datapath_layout("H", 64, 8), "one of A to G, got 'H'"),
        (lambda: T.cuda.tmem_datapath_layout("F", 128, 8), r"layout F \(M=64 without .ws\) has 64 rows, got 128"),
        (lambda: T.cuda.tmem_datapath_layout("D", 128, 0), "columns are positive integers"),
        (lambda: T.cuda.tmem_datapath_layout("B", 64, 9), "9 columns, expected a multiple of 2"),
        (lambda: T.cuda.tmem_datapath_layout("G", 32, 66), "66 columns, expected a multiple of 4"),
        (lambda: T.cuda.tmem_datapath_layout("D", 128, 8, 1), "only C and F have an upper half"),
        (lambda: T.cuda.tmem_datapath_layout("F", 64, 8, 2), "sub_slab is 0 or 1, got 2"),
        (lambda: T.cuda.tmem_mma_operand_layout("B", (64, 8), "float16", M=64, cta_group=1), "'D', 'A', 'SFA' or 'SFB', got 'B'"),
        (lambda: D((128, 64), sparse=True), "sparse A .* is no tile instruction"),
        (lambda: D((32, 64), m=32, ws=True), r'layout G, whose D is T.cuda.tmem_datapath_layout\("G", 32, N\)'),
        (lambda: D((32, 64), m=32), "no tcgen05.mma has M=32 with cta_group=1"),
        (lambda: D((128, 64), m=256), "M=128 or 256 of two"),
        (lambda: D((64, 64), m=64, g=2), "no tcgen05.mma has M=64 with cta_group=2"),
        (lambda: D((128, 64), m=256, g=2, ws=True), "M=256 with cta_group=2 and .ws"),
        (lambda: D((128, 64), m=64), "D of M=64 without .ws has 64 rows in a CTA, got 128"),
        (lambda: D((64, 2, 32), m=64, ws=True), "64 rows in a CTA, got 2: its atom is the last axes"),
        (lambda: D((128,)), r"\(\*repeats, \*atom\) with the atom \(m, N\)"),
        (lambda: D((128, 64), "uint8"), "D has elements of 16 or 32 bits, got uint8"),
        (lambda: D((5, 128, 128)), "D needs 640 columns of tensor memory, which has 512: 5 × 128"),
        (lambda: D((2, 128, 257), "float16"), "needs 514 columns"),
        (lambda: D((128, 64), group=(1, 2, 32)), "group= cuts the columns of D in layouts B .* got D in layout D"),
        (lambda: D((64, 64), m=64, ws=True, group=(2, 2, 32)), r"expected \(s, 2, n\) with s·2·n = 64"),
        (lambda: A((64, 16), "float16", m=64, ws=True), r"the atom \(2, 64, K\) with M=64 and .ws"),
        (lambda: A((4, 64, 16), "float16", m=64, ws=True), r"ends in \(2, 64, K\), got \(4, 64, 16\)"),
        (lambda: A((128, 32), "float6_e2m3fn"), "got float6_e2m3fn: values of 6 bits lie in containers, uint8"),
        (lambda: A((128, 15), "float16"), "15 elements of 16 bits, expected whole cells of 32 bits"),
        (lambda: A((64, 16), "float16", m=64, ws=True, group=(1, 2, 8)), "got A in layout E"),
        (lambda: SFA((64, 1), "uint8", m=64), "SFA with M=64: block scaling has M=128"),
        (lambda: SFB((64, 1), "uint8", ws=True), "SFB with M=128 and .ws: block scaling"),
        (lambda: SFA((64, 1), "uint8"), "a row for every row of A in a CTA, 128, got 64"),
        (lambda: SFB((64, 3), "uint8"), "1, 2 or 4 factors in a row .* got 3"),
        (lambda: SFB((40, 1), "uint8"), "lay out 64 rows and use the first 40"),
        (lambda: SFB((80, 1), "uint8", g=2), "halves of 40, .* expected up to 64 rows or a multiple"),
        (lambda: SFB((33, 1), "uint8", g=2), "a half of its rows for each half of D's columns, got 33"),
        (lambda: SFB((64, 1), "float16"), "SFB has elements of 8 bits, got float16"),
        (lambda: T.cuda.tcgen05_shared_layout((8, 64), "float16", major="m"), "major is 'k' or 'mn', got 'm'"),
        (lambda: T.cuda.tcgen05_shared_layout((8, 64), "float64"), "4, 8, 16 or 32 bits, got float64 with 64"),
        (lambda: T.cuda.tcgen05_shared_layout((8, 64), "float6_e3m2fn"), "they lie in containers, uint8"),
        (lambda: T.cuda.tcgen05_shared_layout((8, 64), "float4_e2m1fn", major="mn"), "float4_e2m1fn is K-major only"),
        (lambda: T.cuda.tcgen05_shared_layout((8, 32), "float32", 64, major="mn"), "within 128 bytes, 32 bytes at a time, got 64"),
        (lambda: T.cuda.tcgen05_shared_layout((8, 16), "float32", major="mn"), "64 bytes, expected a multiple of 128"),
        (lambda: T.cuda.tcgen05_shared_layout((12, 64), "float16"), "12 rows, expected a multiple of 8"),
        (lambda: T.cuda.tcgen05_shared_layout(None, "float16"), "extents of a shared tile are positive integers, got None"),
        (lambda: T.cuda.tcgen05_ld_layout("16x64b", 4, 2.5), "repeats are positive integers, got 2.5"),
        (lambda: D(64), r"the atom \(m, N\), got \(64,\)"),
    ],
)  # fmt: skip
def test_refused(make: Callable[[], Layout], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        make()


# --- in kernels


@tile.jit
def accumulator(Y: T.Tensor((1,), "float32"), ROWS: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    words = T.alloc_shared(
        (8, 32),
        "float32",
        align=512,
        layout=T.cuda.tcgen05_shared_layout((8, 32), Y.dtype, major="mn"),
    )
    d = T.cuda.decl_tmem(
        T.uint32(0),
        (2, ROWS, 64),
        Y.dtype,
        layout=T.cuda.tmem_mma_operand_layout("D", (2, ROWS, 64), Y.dtype, M=64, cta_group=1),
    )
    words[0, 0] = Y[0]


def test_a_kernel_makes_the_same_layouts() -> None:
    text = print_function(accumulator.check(torch.zeros(1), 64, target="sm_100a").function)
    assert "(2,4,16,64):(64@TCol,32@TLane,1@TLane,1@TCol)" in text
    assert "swizzle(3,2,2)" in text


def test_a_kernel_says_why() -> None:
    with pytest.raises(
        SyntaxUnsupported, match="D of M=64 without .ws has 64 rows in a CTA, got 128"
    ):
        accumulator.check(torch.zeros(1), 128, target="sm_100a")


@tile.jit
def laid_out_by_a_run_time_number(n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.alloc_local((4,), "uint32", layout=T.cuda.tcgen05_ld_layout("32x32b", num=n))


def test_numbers_of_layouts_are_known_when_compiling() -> None:
    with pytest.raises(
        SyntaxUnsupported, match="tcgen05_ld_layout computes a layout .* given a run-time int32"
    ):
        laid_out_by_a_run_time_number.check(4, target="sm_100a")
