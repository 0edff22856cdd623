"""Descriptors of tcgen05 against the hardware's address formulas, written here a second time: 4-bit to
32-bit elements, both majors, 32-byte atoms, the bits of every descriptor.

A family of the test's own takes the place of one that a spelling belongs to, so that any atom can be
asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.tile.kit import apply, buffer, kernel, op, whole
from tests.tile.test_descriptor import BASES, evaluate
from tilejit import T, dtypes, layout
from tilejit.families import FAMILIES
from tilejit.ir import nodes, views
from tilejit.tile import contracts, descriptor
from tilejit.tile.checker import check, diagnose
from tilejit.tile.family import Family, Issue, Let, Registers, Value

ALL = (None, None, None)
SPELLING = "tcgen05.cp.cta_group::1.128x256b"
SWIZZLES = {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}
"""Bits 61 to 63, by mode."""

# --- the hardware, from the PTX ISA's formulas


def walk(bits: int, rows: int, depth: int, width: int, major: str) -> np.ndarray:
    """Bit addresses of a matrix's (M or N, K) elements of ``width`` bits."""
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    mode = next(mode for mode, code in SWIZZLES.items() if code == bits >> 61)
    reserved = bits & ~(0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 61)
    assert reserved == 1 << 46, "a version, no base offset, a relative LDO"
    pitch, group = (128, 4) if mode == 4 else (16 << mode, 8)
    mn, k = np.arange(rows)[:, None], np.arange(depth)[None, :]
    along, across = (k * width, mn) if major == "k" else (mn * width, k)
    if major == "mn" and mode == 0:
        leading, stride = stride, leading
    inside = across // group * stride + across % group * pitch + along // (8 * pitch) * leading
    address = start + inside + along % (8 * pitch) // 8
    if mode == 4:
        address = address ^ ((address >> 2) & 0b1100000)
    else:
        address = address ^ (address >> 7 & (1 << mode) - 1) << 4
    return address * 8 + along % 8


# --- a family that makes the descriptors of any matrix


@dataclass(frozen=True)
class Matrix:
    """An operand ``(*repeat, rows, depth)`` and what is known of its rows."""

    view: nodes.View | nodes.Region
    rows: int
    depth: int
    major: Any
    modes: tuple[int, ...]


def family(matrix: Matrix) -> Family:
    def examine(call: Any, report: Any) -> None:
        laid = contracts.shaped(call, call.operands[0], (matrix.rows, matrix.depth), report)
        if laid is not None:
            descriptor.extract(call, laid, matrix.major, report, matrix.modes)

    def bind(call: Any) -> list[Any]:
        found = call.walk_of(0).findings.descriptors[matrix.major]
        steps, values = descriptor.sm_100_descriptors(call, found)
        return [*steps, *(Issue(call.forms[0], (Registers((Value(v),)),)) for v in values)]

    return Family(
        name="tcgen05_cp", params=(), check=examine, bind=bind, execute=lambda issue, machine: None,
        simulated="no", contract="docs/contract/tcgen05_cp.md",
    )  # fmt: skip


def function(matrix: Matrix) -> nodes.Function:
    return kernel(apply(SPELLING, matrix.view), target="sm_100a")


def descriptors(matrix: Matrix) -> list[int]:
    families = {**FAMILIES, "tcgen05_cp": family(matrix)}
    ((_, steps),) = check(function(matrix), families).calls()
    known: dict[str, int] = {}
    found = []
    for step in steps:
        if isinstance(step, Let):
            known[step.var.name] = evaluate(step.value, known)
        else:
            assert isinstance(step, Issue)
            (item,) = step.operands[0].items
            found.append(evaluate(item.expr, known))
    return found


def message(matrix: Matrix) -> str:
    families = {**FAMILIES, "tcgen05_cp": family(matrix)}
    return "\n".join(d.render() for d in diagnose(function(matrix), families))


# --- operands


def panels(rows: int, columns: int, dtype: str, mode: int) -> layout.Layout:
    """Rows cut into panels of a mode's row, which lie one after another."""
    bits = dtypes.dtype(dtype).bits
    panel = (1024 if mode == 4 else 128 << mode) // bits
    iters = (
        layout.Iter(rows, panel), layout.Iter(columns // panel, rows * panel), layout.Iter(panel, 1),
    )  # fmt: skip
    tile = layout.TileLayout(tuple(i for i in iters if i.extent > 1))
    if mode == 4:
        return layout.ComposeLayout((256 // bits).bit_length() - 1, 2, 2, tile)
    per_element = (128 // bits).bit_length() - 1
    return layout.ComposeLayout(per_element, mode, 3, tile) if mode else tile


def shared(rows: int, columns: int, dtype: str, mode: int, align: int = 1024) -> nodes.View:
    laid = panels(rows, columns, dtype, mode)
    kind = nodes.TensorType((rows, columns), dtypes.dtype(dtype), laid, "shared", align)
    return whole(nodes.Var("a", kind))


def matrices(view: nodes.View, rows: int, depth: int, major: str) -> nodes.View:
    """(row blocks, K steps, rows, depth) of a tile whose rows run along ``major``."""
    if major == "k":
        m, k = view.shape
        return views.permute(
            views.reshape(view, (m // rows, rows, k // depth, depth)), (0, 2, 1, 3)
        )
    k, m = view.shape
    return views.permute(views.reshape(view, (k // depth, depth, m // rows, rows)), (2, 0, 3, 1))


def expected(view: nodes.View) -> np.ndarray:
    """Bit addresses of a view's elements, from its layout."""
    assert isinstance(view.offset_elems, nodes.Const)
    laid = view.layout
    tile = laid.tile if isinstance(laid, layout.ComposeLayout) else laid
    assert tile is not None
    places = tile.positions(view.shape)["m"] + int(view.offset_elems.value)
    if isinstance(laid, layout.ComposeLayout):
        places = laid.swizzle(places)
    return 8 * BASES["a"] + places * view.dtype.bits


def agree(found: list[int], view: nodes.View, major: str) -> None:
    addresses = expected(view)
    *repeats, rows, depth = view.shape
    for number, at in enumerate(np.ndindex(*repeats)):
        walked = walk(found[number], rows, depth, view.dtype.bits, major)
        assert np.array_equal(walked, addresses[at]), at


DEPTHS = {
    "float4_e2m1fn": 64, "uint8": 32, "float8_e4m3fn": 32, "float16": 16, "bfloat16": 16, "float32": 8,
}  # fmt: skip
CASES = [
    (dtype, mode, major)
    for dtype in DEPTHS
    for mode in range(5)
    for major in ("k", "mn")
    if (dtype == "float32" and major == "mn") == (mode == 4)
    if dtype != "float4_e2m1fn" or major == "k"
]


@pytest.mark.parametrize(("dtype", "mode", "major"), CASES)
@pytest.mark.parametrize("rows", [32, 64, 128])
def test_every_mode_walks_the_layout(dtype: str, mode: int, major: str, rows: int) -> None:
    depth = DEPTHS[dtype]
    bits = dtypes.dtype(dtype).bits
    columns = max(4 * depth, 1024 // bits) if major == "k" else 2 * max(rows, 1024 // bits)
    tile = (
        shared(2 * rows, columns, dtype, mode)
        if major == "k"
        else shared(4 * depth, columns, dtype, mode)
    )
    view = matrices(tile, rows, depth, major)
    if major == "mn" and rows * bits < 128 << (3 if mode == 4 else mode):
        view = matrices(tile, columns // 2, depth, major)
    modes = descriptor.modes_of(bits, major)
    assert mode in modes
    *_, found_rows, found_depth = view.shape
    found = descriptors(Matrix(view, found_rows, found_depth, major, modes))
    assert len(found) == int(np.prod(view.shape[:-2]))
    assert {bits >> 61 for bits in found} == {SWIZZLES[mode]}
    agree(found, view, major)


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("swizzle", [None, 0, 32, 64, 128])
@pytest.mark.parametrize("dtype", DEPTHS)
def test_the_helpers_tiles_are_walked(dtype: str, swizzle: int | None, major: Any) -> None:
    bits, depth = dtypes.dtype(dtype).bits, DEPTHS[dtype]
    if major == "mn" and (bits == 4 or bits == 32 and swizzle not in (None, 128)):
        with pytest.raises(layout.LayoutError):
            T.cuda.tcgen05_shared_layout((32, 256), dtype, swizzle, major=major)
        return
    shape = (128, 2048 // bits) if major == "k" else (2 * depth, 256)
    laid = T.cuda.tcgen05_shared_layout(shape, dtype, swizzle, major=major)
    kind = nodes.TensorType(shape, dtypes.dtype(dtype), laid, "shared", 1024)
    view = matrices(whole(nodes.Var("a", kind)), 128, depth, major)
    agree(
        descriptors(Matrix(view, 128, depth, major, descriptor.modes_of(bits, major))), view, major
    )


def test_modes_of_operands() -> None:
    assert descriptor.modes_of(32, "mn") == (4,)
    assert descriptor.modes_of(32, "k") == descriptor.modes_of(16, "mn") == (0, 1, 2, 3)


def test_the_worked_encodings() -> None:
    """bf16 of 64 columns, K-major, as DeepGEMM encodes it; a float32 MN-major tile by hand."""
    view = matrices(shared(128, 64, "bfloat16", 3), 128, 16, "k")
    first, second, *_ = descriptors(Matrix(view, 128, 16, "k", descriptor.MODES))
    assert first == 2 << 61 | 1 << 46 | 1024 // 16 << 32 | 1 << 16 | BASES["a"] >> 4
    assert second - first == 2
    # Eight K rows of 128 bytes in groups of four, panels of 32 columns and 16 rows.
    view = matrices(shared(16, 64, "float32", 4), 64, 8, "mn")
    first, second = descriptors(Matrix(view, 64, 8, "mn", (4,)))
    assert first == 1 << 61 | 1 << 46 | 512 // 16 << 32 | 2048 // 16 << 16 | BASES["a"] >> 4
    assert second - first == 1024 // 16


def test_4_bit_rows_start_where_their_bytes_do() -> None:
    """Columns 64 on of a row of 256 4-bit elements: 32 bytes on."""
    tile = shared(128, 256, "float4_e2m1fn", 3)
    part = views.sub(tile, (ALL, (64, 128, None)))
    view = views.reshape(part, (1, 128, 64))
    (found,) = descriptors(Matrix(view, 128, 64, "k", descriptor.MODES))
    assert found & 0x3FFF == (BASES["a"] + 32) >> 4
    agree([found], view, "k")


def four_bit_rows(start: int, notation: str, *shape: int) -> nodes.View:
    flat = whole(buffer("a", (16384,), "float4_e2m1fn", "shared", align=1024))
    return views.with_layout(
        views.sub(flat, ((start, 16384, None),)), shape, layout.parse(notation)
    )


@pytest.mark.parametrize(
    ("start", "notation", "rows", "words"),
    [
        (0, "(1,8,64):(0,65,1)", 8, "element (1, 0) lies 32.5 bytes after the first, expected 16"),
        (0, "(1,16,64):(0,65,1)", 16, "SDO would be 260 bytes, expected a multiple of 16"),
        (8, "(1,8,64):(0,64,1)", 8, "4 bytes above a multiple of 16"),
        (1, "(1,8,64):(0,64,1)", 8, "4 bits above a multiple of 16"),
    ],
)
def test_4_bit_faults_are_told_in_bytes(start: int, notation: str, rows: int, words: str) -> None:
    view = four_bit_rows(start, notation, 1, rows, 64)
    assert words in message(Matrix(view, rows, 64, "k", descriptor.MODES))


def test_the_reason_of_wide_atoms_is_told() -> None:
    view = matrices(shared(16, 64, "float32", 3), 64, 8, "mn")
    shown = message(Matrix(view, 64, 8, "mn", (4,)))
    assert "no matrix descriptor walks this MN-major operand" in shown
    assert "128-byte swizzle of 32-byte atoms: " in shown
    assert "no swizzle: " not in shown and "128-byte swizzle: " not in shown


def test_wide_atoms_repeat_every_512_bytes() -> None:
    view = matrices(shared(16, 64, "float32", 4, align=512), 64, 8, "mn")
    agree(descriptors(Matrix(view, 64, 8, "mn", (4,))), view, "mn")
    view = matrices(shared(16, 64, "float32", 4, align=256), 64, 8, "mn")
    shown = message(Matrix(view, 64, 8, "mn", (4,)))
    assert "a is aligned to 256 bytes, expected 512: 4 rows of 128 bytes" in shown


def test_4_bit_tiles_are_aligned_to_the_period() -> None:
    view = matrices(shared(128, 256, "float4_e2m1fn", 3, align=512), 128, 64, "k")
    shown = message(Matrix(view, 128, 64, "k", descriptor.MODES))
    assert "a is aligned to 512 bytes, expected 1024: 8 rows of 128 bytes" in shown
    assert "its swizzle repeats every 1024 bytes (8 rows of 128 bytes)" in shown


def test_wide_atoms_are_not_a_mode_of_others() -> None:
    """Their swizzle shows in a tile of eight rows: no other mode walks it."""
    view = matrices(shared(8, 64, "float16", 4), 64, 8, "mn")
    shown = message(Matrix(view, 64, 8, "mn", descriptor.MODES))
    assert "tcgen05_cp/descriptor" in shown and "of 32-byte atoms" not in shown


@pytest.mark.parametrize("k", [4, 8])
def test_a_run_time_start_keeps_its_phase(k: int) -> None:
    """K rows chosen at run time: in the layout's own mode the start is encoded before the swizzle."""
    row = nodes.Var("row", nodes.INT32)
    tile = shared(32, 64, "float32", 4)
    part = nodes.Region(views.reshape(views.permute(tile, (1, 0)), (1, 64, 32)), (
        nodes.Const(0, nodes.INT32), nodes.Const(0, nodes.INT32), op("mul", row, k),
    ), (1, 64, 8))  # fmt: skip
    matrix = Matrix(part, 64, 8, "mn", (4,))
    first, last, step = (nodes.Const(v, nodes.INT32) for v in (0, 24 // k, 1))
    body = apply(SPELLING, part)
    f = kernel(nodes.For(row, first, last, step, (body,)), target="sm_100a")
    *_, (_, steps) = check(f, {**FAMILIES, "tcgen05_cp": family(matrix)}).calls()
    for number in range(24 // k):
        known = {"row": number}
        for found in steps:
            if isinstance(found, Let):
                known[found.var.name] = evaluate(found.value, known)
            else:
                value = evaluate(found.operands[0].items[0].expr, known)
        fixed = views.sub(tile, ((number * k, number * k + 8, None), ALL))
        agree([value], views.reshape(views.permute(fixed, (1, 0)), (1, 64, 8)), "mn")


# --- decoding


def test_fields_of_a_descriptor() -> None:
    bits = 4 << 61 | 1 << 46 | 0x123 << 32 | 0x45 << 16 | 0x1678
    fields = descriptor.sm_100_fields(bits)
    assert fields == (0x16780, 0x450, 0x1230, 2)


@pytest.mark.parametrize("bit", [14, 15, 30, 31, 46, 47, 48, 49, 51, 52, 53, 60])
def test_other_bits_are_not_understood(bit: int) -> None:
    assert descriptor.sm_100_fields(1 << 46 ^ 1 << bit) is None


@pytest.mark.parametrize("code", range(8))
def test_swizzle_codes(code: int) -> None:
    fields = descriptor.sm_100_fields(code << 61 | 1 << 46)
    modes = [mode for mode, known in SWIZZLES.items() if known == code]
    assert (fields is None and not modes) or (fields is not None and [fields.mode] == modes)


@pytest.mark.parametrize(
    ("mode", "major"), [(0, "k"), (1, "k"), (2, "k"), (3, "k"), (0, "mn"), (3, "mn"), (4, "mn")]
)
def test_chunks_of_a_descriptor(mode: int, major: Any) -> None:
    """What ``execute`` reads: 16 bytes at the address of every chunk's first element."""
    bits = SWIZZLES[mode] << 61 | 1 << 46 | 0x80 << 32 | 0x40 << 16 | 0x240
    fields = descriptor.sm_100_fields(bits)
    assert fields is not None
    found = descriptor.chunk_addresses(fields, (64, 8), 32, major)
    addresses = walk(bits, 64, 8, 32, major) // 8
    firsts = addresses[:, ::4] if major == "k" else addresses[::4].T
    assert np.array_equal(found, firsts)
