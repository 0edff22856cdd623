"""Views against numpy: what a view addresses is what numpy's own indexing addresses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ir.arithmetic import evaluate
from tilejit import dtypes, layout
from tilejit.ir import build, nodes, views
from tilejit.layout import LayoutError


def buffer(shape, dtype=dtypes.float32, text=None, space="global") -> nodes.Var:
    where = layout.parse(text) if text else layout.row_major(shape)
    return nodes.Var("X", nodes.TensorType(shape, dtype, where, space, 16))


def addresses(view: nodes.View) -> np.ndarray:
    """Position of every element, by the layout and the constant offset."""
    offset = build.as_int(view.offset_elems)
    assert offset is not None
    if isinstance(view.layout, layout.ComposeLayout):
        inside = view.layout.tile.positions(view.shape)["m"] + offset
        return view.layout.swizzle(inside)
    return view.layout.positions(view.shape)["m"] + offset


SLICES = st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 3))
SHAPE = (6, 4, 5)


@given(st.lists(st.one_of(st.integers(0, 3), st.just(None), SLICES), min_size=3, max_size=3))
def test_sub_is_numpy_indexing(items) -> None:
    table = np.arange(120).reshape(SHAPE)
    numpy_items, ours = [], []
    for extent, item in zip(SHAPE, items):
        if item is None:
            numpy_items.append(slice(None))
            ours.append((None, None, None))
        elif isinstance(item, int):
            numpy_items.append(item)
            ours.append(item)
        else:
            start, length, step = item
            start = min(start, extent - 1)
            stop = min(start + length, extent)
            numpy_items.append(slice(start, stop, step))
            ours.append((start, stop, step))
    found = views.sub(views.whole(buffer(SHAPE)), tuple(ours))
    expected = table[tuple(numpy_items)]
    assert found.shape == expected.shape
    assert (addresses(found).reshape(expected.shape) == expected).all()


@given(st.permutations(range(3)), st.sampled_from([(24, 5), (3, 2, 20), (120,), (2, 3, 2, 2, 5)]))
def test_permute_then_reshape(dims, shape) -> None:
    table = np.arange(120).reshape(SHAPE).transpose(dims)
    found = views.reshape(views.permute(views.whole(buffer(SHAPE)), tuple(dims)), shape)
    assert (addresses(found) == table.reshape(shape)).all()


def test_sub_of_a_reshaped_dimension_of_several_iters() -> None:
    table = np.arange(120).reshape(SHAPE).transpose(1, 0, 2).reshape(24, 5)
    view = views.reshape(views.permute(views.whole(buffer(SHAPE)), (1, 0, 2)), (24, 5))
    narrowed = views.sub(view, ((6, 18, None), (None, None, None)))
    assert (addresses(narrowed) == table[6:18]).all()
    assert (addresses(views.sub(view, (7, (None, None, None)))) == table[7]).all()
    with pytest.raises(LayoutError, match="cuts axis 0"):
        views.sub(view, ((5, 18, None), (None, None, None)))


def test_symbolic_index_moves_the_offset() -> None:
    row = nodes.HardwareId("ctaid.x")
    view = views.sub(views.whole(buffer((8, 64))), (row, (None, None, None)))
    assert view.shape == (64,)
    expected = build.index_add(build.index(0), build.index_mul(row, 64))
    assert view.offset_elems == expected


def test_symbolic_slice_needs_a_static_length() -> None:
    i = nodes.HardwareId("laneid")
    view = views.whole(buffer((64,)))
    four = build.const(4, dtypes.int32)
    assert views.sub(view, ((i, build.add(i, four), None),)).shape == (4,)
    with pytest.raises(LayoutError, match="compile-time integer"):
        views.sub(view, ((i, nodes.HardwareId("warpid"), None),))


def test_slices_stay_inside() -> None:
    view = views.whole(buffer((8,)))
    assert views.sub(view, ((0, 8, None),)).shape == (8,)
    with pytest.raises(LayoutError, match=r"\[0:9\] leaves an axis of extent 8"):
        views.sub(view, ((0, 9, None),))
    with pytest.raises(LayoutError, match="takes 0 elements"):
        views.sub(view, ((3, 3, None),))


def test_thread_axes_take_only_static_indices() -> None:
    view = views.whole(buffer((2, 32, 4), text="(2,32,4):(1@warpid,1@laneid,1)", space="local"))
    found = views.sub(view, (1, (None, None, None), (None, None, None)))
    assert isinstance(found.layout, layout.TileLayout)
    assert dict(found.layout.offset) == {"warpid": 1}
    with pytest.raises(LayoutError, match="warpid"):
        views.sub(view, (nodes.HardwareId("warpid"), (None, None, None), (None, None, None)))


@pytest.mark.parametrize("text", [None, "(4,16):(32,1)", "swizzle(3,2,3) o (4,16):(64,1)"])
def test_dtype_views_are_the_same_bytes(text) -> None:
    view = views.whole(buffer((4, 16), dtypes.float16, text))
    words = views.with_dtype(view, dtypes.uint32)
    assert words.shape == (4, 8)
    assert (addresses(words) * 2 == addresses(view)[:, ::2]).all()
    back = views.with_dtype(words, dtypes.bfloat16)
    assert (addresses(back) == addresses(view)).all()


@pytest.mark.parametrize(
    "shape, text, message",
    [
        ((4, 3), None, "do not fill whole"),
        ((4, 4), "(4,4):(1,4)", "consecutive"),
        ((4, 4), "(4,4):(5,1)", "stride 5"),
        ((4,), "(4):(1) + 1", "offset 1"),
    ],
)
def test_widening_refuses_broken_words(shape, text, message) -> None:
    with pytest.raises(LayoutError, match=message):
        views.with_dtype(views.whole(buffer(shape, dtypes.float16, text)), dtypes.uint32)


def test_widening_divides_symbolic_offsets() -> None:
    row = nodes.HardwareId("ctaid.x")
    view = views.sub(views.whole(buffer((8, 64), dtypes.float16)), (row, (None, None, None)))
    words = views.with_dtype(view, dtypes.uint32)
    assert words.offset_elems == build.index_add(build.index_mul(row, 32), build.index(0))


def test_zero_stride_broadcast() -> None:
    view = views.with_layout(views.whole(buffer((4,))), (8, 4), layout.parse("(8,4):(0,1)"))
    assert (addresses(view) == np.broadcast_to(np.arange(4), (8, 4))).all()


def test_reshape_refuses_other_sizes() -> None:
    view = views.whole(buffer((4, 6)))
    assert views.reshape(view, (-1, 3)).shape == (8, 3)
    for shape in ((5, 5), (-1, 5), (-1, -1), (0, 24)):
        with pytest.raises(LayoutError):
            views.reshape(view, shape)


def test_region_keeps_integer_axes() -> None:
    found = views.region(views.whole(buffer((4, 6))), (2, (0, 4, None)))
    assert found.extents == (1, 4)


def test_dynamic_strides_follow_their_dimension() -> None:
    stride = nodes.Var("X_stride0", nodes.INT64)
    x = buffer((4, 6), text="(4,6):(0,1)")
    view = views.permute(views.whole(x, ((0, stride),)), (1, 0))
    assert view.dynamic_strides == ((1, stride),)
    picked = views.sub(view, ((None, None, None), nodes.HardwareId("ctaid.x")))
    assert picked.dynamic_strides == ()
    assert picked.offset_elems == build.index_mul(nodes.HardwareId("ctaid.x"), stride)


def test_element_offset_applies_the_swizzle() -> None:
    x = buffer((8, 64), dtypes.float16, "swizzle(3,3,3) o (8,64):(64,1)", "shared")
    view = views.whole(x)
    for i, j in ((0, 0), (1, 0), (7, 63), (3, 9)):
        index = (build.const(i, dtypes.int32), build.const(j, dtypes.int32))
        expected = int(x.type.layout.positions((8, 64))["m"][i, j])
        assert build.as_int(views.element_offset(view, index)) == expected


# --- dimensions of several iters


def evaluated(view: nodes.View, **values: int) -> np.ndarray:
    """``addresses`` with the unknowns of the offset given."""
    offset = evaluate(view.offset_elems, values)
    where = view.layout
    assert where is not None
    tile = where.tile if isinstance(where, layout.ComposeLayout) else where
    inside = tile.positions(view.shape)["m"] + offset
    for axis, stride in view.dynamic_strides:
        steps = np.arange(view.shape[axis]) * evaluate(stride, values)
        inside = inside + steps.reshape((-1,) + (1,) * (len(view.shape) - axis - 1))
    return where.swizzle(inside) if isinstance(where, layout.ComposeLayout) else inside


ATOMS = "swizzle(3,3,3) o (16,4,64):(64,1024,1)"
"""128-byte swizzle atoms of 64 halves, four of them along the last dimension."""


@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_symbolic_steps_through_swizzle_atoms(width) -> None:
    whole = views.whole(buffer((16, 256), dtypes.float16, ATOMS, "shared"))
    k = nodes.Var("k", nodes.INT32)
    start = build.mul(k, build.const(width, dtypes.int32))
    stop = build.add(start, build.const(width, dtypes.int32))
    view = views.sub(whole, ((None, None, None), (start, stop, None)))
    assert view.shape == (16, width)
    for step in range(256 // width):
        expected = addresses(whole)[:, step * width : (step + 1) * width]
        assert (evaluated(view, k=step) == expected).all()


def test_unaligned_symbolic_slices_are_refused() -> None:
    whole = views.whole(buffer((16, 256), dtypes.float16, ATOMS, "shared"))
    k = nodes.Var("k", nodes.INT32)
    eight = build.mul(k, build.const(8, dtypes.int32))
    stop = build.add(eight, build.const(16, dtypes.int32))
    with pytest.raises(LayoutError, match="a slice of 16 from a run-time start by 1 cuts axis 1"):
        views.sub(whole, ((None, None, None), (eight, stop, None)))


@given(st.integers(0, 23), st.integers(1, 24), st.integers(1, 4))
def test_static_slices_of_two_iters_are_right_or_refused(start, length, step) -> None:
    table = np.arange(120).reshape(SHAPE).transpose(1, 0, 2).reshape(24, 5)
    view = views.reshape(views.permute(views.whole(buffer(SHAPE)), (1, 0, 2)), (24, 5))
    stop = min(start + length, 24)
    try:
        found = views.sub(view, ((start, stop, step), (None, None, None)))
    except LayoutError as error:
        assert "unevenly" in str(error)
        # Whole blocks of six, or a part of one, are never refused.
        last = start + (len(range(start, stop, step)) - 1) * step
        assert start // 6 != last // 6 and (start % 6 or stop % 6 or step > 1)
        return
    assert (addresses(found) == table[start:stop:step]).all()


@given(st.data())
def test_indices_of_several_iters(data) -> None:
    table = np.arange(120).reshape(SHAPE).transpose(1, 0, 2).reshape(24, 5)
    view = views.reshape(views.permute(views.whole(buffer(SHAPE)), (1, 0, 2)), (24, 5))
    i, j = nodes.Var("i", nodes.INT32), nodes.Var("j", nodes.INT32)
    at = {"i": data.draw(st.integers(0, 23)), "j": data.draw(st.integers(0, 4))}
    assert evaluate(views.element_offset(view, (i, j)), at) == table[at["i"], at["j"]]
    row = views.sub(view, (i, (None, None, None)))
    assert (evaluated(row, **at) == table[at["i"]]).all()


def test_reshape_joins_neighbours_before_splitting() -> None:
    view = views.reshape(views.whole(buffer((6, 4))), (8, 3))
    found = views.sub(view, ((2, 7, None), 1))
    assert (addresses(found) == np.arange(24).reshape(8, 3)[2:7, 1]).all()


def test_a_shape_across_iters_is_refused_with_both_numbers() -> None:
    view = views.reshape(views.whole(buffer((6, 4), text="(6,4):(8,1)")), (8, 3))
    with pytest.raises(LayoutError, match="extent 4 meets a dimension with 3 left"):
        views.sub(view, (0, 0))


# --- bounds


@pytest.mark.parametrize(
    "item, message",
    [
        (8, "index 8 is outside axis 0 of X of extent 8"),
        (-1, "index -1 is outside"),
        ((-3, None, None), r"slice \[-3:8\] leaves"),
        ((4, 9, None), r"slice \[4:9\] leaves"),
        ((4, 4, None), "takes 0 elements"),
        ((0, 8, 0), "step is at least 1, got 0"),
    ],
)
def test_static_bounds(item, message) -> None:
    with pytest.raises(LayoutError, match=message):
        views.sub(views.whole(buffer((8,))), (item,))
    views.sub(views.whole(buffer((8,))), (7,))
    views.sub(views.whole(buffer((8,))), ((7, 8, None),))


def test_ranks_are_checked() -> None:
    view = views.whole(buffer((4, 6)))
    with pytest.raises(LayoutError, match="1 items for 2 axes"):
        views.sub(view, (0,))
    with pytest.raises(LayoutError, match="3 items for 2 axes"):
        views.region(view, (0, 0, 0))
    with pytest.raises(LayoutError, match="not an order of 2"):
        views.permute(view, (0, 0))


def test_regions_have_no_steps() -> None:
    with pytest.raises(LayoutError, match="without steps"):
        views.region(views.whole(buffer((8,))), ((0, 8, 2),))


# --- run-time sizes and strides

M = nodes.Var("M", nodes.INT32)
STRIDE = nodes.Var("X_stride0", nodes.INT64)


def dynamic(dtype=dtypes.float16, stride: int | None = None) -> nodes.View:
    """(M, 64), rows ``stride`` apart, or a run-time number of elements."""
    where = layout.TileLayout((layout.Iter(1, stride or 0), layout.Iter(64, 1)))
    x = nodes.Var("X", nodes.TensorType((M, 64), dtype, where, "global", 16))
    return views.whole(x, () if stride else ((0, STRIDE),))


def test_a_row_of_a_dynamic_tensor() -> None:
    row = nodes.Var("i", nodes.INT32)
    for view in (dynamic(stride=64), dynamic()):
        found = views.sub(view, (row, (None, None, None)))
        assert found.shape == (64,) and found.dynamic_strides == ()
        assert evaluate(found.offset_elems, {"i": 3, "X_stride0": 64}) == 192


def test_slices_of_a_dynamic_dimension() -> None:
    view = dynamic()
    assert views.sub(view, ((None, None, None), (0, 32, None))).shape == (M, 32)
    assert views.sub(view, ((0, M, None), (None, None, None))).shape == (M, 64)
    i = nodes.Var("i", nodes.INT32)
    four = build.add(i, build.const(4, dtypes.int32))
    found = views.sub(view, ((i, four, None), (0, 64, 2)))
    assert found.shape == (4, 32) and found.layout.size == 128
    expected = (np.arange(4)[:, None] + 3) * 100 + np.arange(0, 64, 2)
    assert (evaluated(found, i=3, X_stride0=100) == expected).all()
    again = views.sub(found, ((1, 3, None), (0, 2, None)))
    assert (evaluated(again, i=3, X_stride0=100) == expected[1:3, :2]).all()
    with pytest.raises(LayoutError, match="run-time axis M needs a compile-time length"):
        views.sub(view, ((2, None, None), (None, None, None)))


def test_reshape_keeps_leading_run_time_dimensions() -> None:
    view = views.reshape(dynamic(), (M, 8, -1))
    assert view.shape == (M, 8, 8)
    found = views.sub(view, (2, 3, (None, None, None)))
    assert (evaluated(found, X_stride0=100) == 224 + np.arange(8)).all()
    with pytest.raises(LayoutError, match="the first 1"):
        views.reshape(dynamic(), (8, M, 8))
    with pytest.raises(LayoutError, match="64 elements"):
        views.reshape(dynamic(), (M, 65))


def test_narrowing_a_dynamic_tensor_stays_in_step() -> None:
    view = views.with_dtype(dynamic(dtypes.uint32, 64), dtypes.float16)
    assert view.shape == (M, 128)
    assert view.layout == layout.parse("(1,128):(128,1)")
    found = views.sub(view, (nodes.Var("i", nodes.INT32), 5))
    assert evaluate(found.offset_elems, {"i": 2}) == 261


# --- reinterpretation


def test_widening_needs_provably_whole_offsets() -> None:
    i = nodes.Var("i", nodes.INT32)
    two = build.const(2, dtypes.int32)
    view = views.whole(buffer((64,), dtypes.float16))
    aligned = build.mul(i, two)
    even = views.sub(view, ((aligned, build.add(aligned, two), None),))
    words = views.with_dtype(even, dtypes.uint32)
    assert words.shape == (1,) and evaluate(words.offset_elems, {"i": 5}) == 5
    odd = views.sub(view, ((i, build.add(i, two), None),))
    with pytest.raises(LayoutError, match="the offset of X is not known to be whole uint32"):
        views.with_dtype(odd, dtypes.uint32)
    with pytest.raises(LayoutError, match="the offset of X, 3, is not known"):
        views.with_dtype(views.sub(view, ((3, 5, None),)), dtypes.uint32)
    with pytest.raises(LayoutError, match="run-time stride of dimension 0"):
        views.with_dtype(dynamic(), dtypes.uint32)
    assert views.with_dtype(dynamic(stride=62), dtypes.uint32).shape == (M, 32)
    with pytest.raises(LayoutError, match="stride 63"):
        views.with_dtype(dynamic(stride=63), dtypes.uint32)


@pytest.mark.parametrize("narrow, wide, ratio", [
    (dtypes.float4_e2m1fn, dtypes.uint8, 2), (dtypes.float8_e4m3fn, dtypes.uint32, 4),
    (dtypes.uint8, dtypes.uint64, 8), (dtypes.float4_e2m1fn, dtypes.uint32, 8),
])  # fmt: skip
def test_widening_and_narrowing_are_inverse(narrow, wide, ratio) -> None:
    view = views.whole(buffer((4, 3, 16), narrow, "(4,3,16):(64,16,1)"))
    words = views.with_dtype(view, wide)
    assert words.shape == (4, 3, 16 // ratio)
    assert (addresses(words) * ratio == addresses(view)[..., ::ratio]).all()
    back = views.with_dtype(words, narrow)
    assert back.shape == view.shape and (addresses(back) == addresses(view)).all()


def test_widths_must_divide() -> None:
    with pytest.raises(LayoutError, match="6 bits"):
        views.with_dtype(views.whole(buffer((64,), dtypes.float6_e2m3fn)), dtypes.uint8)
    with pytest.raises(LayoutError, match="last dimension"):
        views.with_dtype(views.whole(buffer((), dtypes.float32)), dtypes.uint8)


def test_a_swizzle_unit_is_not_split() -> None:
    view = views.whole(buffer((4, 16), dtypes.uint8, "swizzle(1,2,3) o (4,16):(16,1)", "shared"))
    assert views.with_dtype(view, dtypes.uint16).layout.per_element == 0
    with pytest.raises(LayoutError, match="units of 2 uint8"):
        views.with_dtype(view, dtypes.uint32)


def test_register_views_repack_bits() -> None:
    text = "(2,32,8):(1@warpid,1@laneid,1)"
    view = views.whole(buffer((2, 32, 8), dtypes.float16, text, "local"))
    words = views.with_dtype(view, dtypes.uint32)
    assert words.layout == layout.parse("(2,32,4):(1@warpid,1@laneid,1)")
    assert views.with_dtype(words, dtypes.bfloat16).layout == view.layout


def test_layout_views_stay_inside_registers_and_shared_memory() -> None:
    text = "(2,32,4):(1@warpid,1@laneid,1)"
    view = views.whole(buffer((4,), space="local"))
    assert views.with_layout(view, (2, 32, 4), layout.parse(text)).shape == (2, 32, 4)
    with pytest.raises(LayoutError, match="needs 20 bytes of X, which has 16"):
        views.with_layout(view, (5,), layout.parse("(5)"))
    tail = views.sub(view, ((2, 4, None),))
    assert views.with_layout(tail, (2,), layout.parse("(2)")).shape == (2,)
    with pytest.raises(LayoutError, match="from element 2"):
        views.with_layout(tail, (3,), layout.parse("(3)"))
    with pytest.raises(LayoutError, match=r"layout .* has 4 elements, shape \(5,\) has 5"):
        views.with_layout(view, (5,), layout.parse("(4)"))


def test_tmem_columns_move_at_run_time_and_lanes_do_not() -> None:
    text = "(2,128,64):(64@TCol,1@TLane,1@TCol)"
    view = views.whole(buffer((2, 128, 64), text=text, space="tmem"))
    stage = nodes.Var("s", nodes.INT32)
    found = views.sub(view, (stage, (None, None, None), (None, None, None)))
    assert found.offset_elems == build.index_mul(stage, 64)
    with pytest.raises(LayoutError, match="TLane"):
        views.sub(view, (0, stage, (None, None, None)))
    halves = views.with_dtype(found, dtypes.float16)
    assert halves.layout == layout.parse("(128,128):(1@TLane,1@TCol)")
    assert halves.offset_elems == build.index_mul(stage, 128)


SCALES = "(2,32,4):(4@TCol,1@TLane,1@TCol) + R[4:32@TLane]"


def test_dtypes_of_cells_and_replicas() -> None:
    rows = views.whole(buffer((2, 32, 4), dtypes.float8_e8m0fnu, SCALES, "tmem"))
    words = views.with_dtype(rows, dtypes.uint32)
    assert words.layout == layout.parse("(2,32,1):(1@TCol,1@TLane,1@TCol) + R[4:32@TLane]")
    assert views.with_dtype(words, dtypes.uint8) == replace(rows, dtype=dtypes.uint8)
    nibbles = views.with_dtype(rows, dtypes.float4_e2m1fn)
    assert nibbles.layout == layout.parse("(2,32,8):(8@TCol,1@TLane,1@TCol) + R[4:32@TLane]")
    assert views.with_dtype(nibbles, dtypes.uint8) == replace(rows, dtype=dtypes.uint8)
    with pytest.raises(LayoutError, match="elements of uint64 have 64 bits"):
        views.with_dtype(rows, dtypes.uint64)
    # One float16 per cell: the halves of a cell are no float32 of its own.
    sparse = views.whole(buffer((128, 8), dtypes.float16, "(128,8):(1@TLane,2@TCol)", "tmem"))
    with pytest.raises(LayoutError, match="2 consecutive float16"):
        views.with_dtype(sparse, dtypes.float32)


def test_cells_have_addresses() -> None:
    view = views.whole(buffer((128, 64), text="(128,64):(1@TLane,1@TCol) + 8@TCol", space="tmem"))
    at = nodes.Var("i", nodes.INT32)

    def offset(v: nodes.View, *indices: nodes.Expr) -> int | None:
        return build.as_int(views.cell_offset(v, indices))

    zero, three = build.index(0), build.index(3)
    assert offset(view, zero, zero) == 8
    assert offset(view, three, three) == (3 << 16) + 11
    half = views.sub(view, ((32, 64, None), (16, 32, None)))
    assert offset(half, three, three) == (35 << 16) + 27
    assert views.cell_offset(half, (three, at)) == build.index_add(build.index(at), (35 << 16) + 24)
    pairs = views.with_dtype(half, dtypes.bfloat16)
    assert offset(pairs, three, build.index(6)) == (35 << 16) + 27
    moved = views.cell_offset(pairs, (three, build.mul(at, build.const(4, dtypes.int32))))
    assert moved == build.index_add(build.index_mul(at, 2), (35 << 16) + 24)
    with pytest.raises(LayoutError, match="element 49 of a lane .* which holds 2"):
        views.cell_offset(pairs, (zero, build.index(1)))
    with pytest.raises(LayoutError, match="a run-time element"):
        views.cell_offset(pairs, (zero, at))
    with pytest.raises(LayoutError, match="get_tmem_addr"):
        views.cell_offset(view, (at, zero))


def test_layouts_of_tensor_memory_start_at_the_views_lane() -> None:
    view = views.whole(buffer((128, 64), text="(128,64):(1@TLane,1@TCol)", space="tmem"))
    low = views.sub(view, ((64, 128, None), (32, 64, None)))
    image = layout.parse("(2,32,16):(32@TLane,1@TLane,2@TCol)")
    made = views.with_layout(low, (2, 32, 16), image)
    assert made.layout == layout.parse("(2,32,16):(32@TLane,1@TLane,2@TCol) + 64@TLane")
    assert build.as_int(made.offset_elems) == 32
    with pytest.raises(LayoutError, match="needs 260 bytes of a lane of X, which has 256"):
        views.with_layout(low, (33,), layout.parse("(33):(1@TCol)"))
    with pytest.raises(LayoutError, match="needs 130 lanes of X, which has 128"):
        views.with_layout(low, (66,), layout.parse("(66):(1@TLane)"))
    with pytest.raises(LayoutError, match="runs over m"):
        views.with_layout(low, (4,), layout.parse("(4)"))
    with pytest.raises(LayoutError, match="no swizzle"):
        views.with_layout(low, (8,), layout.parse("swizzle(0,1,1) o (8):(1@TCol)"))


@given(st.sampled_from(["swizzle(3,3,3) o (8,64):(64,1)", "swizzle(0,2,3,outer) o (8,64):(64,1) + 8"]),
       st.integers(0, 7), st.integers(0, 63))  # fmt: skip
def test_element_offset_is_positions(text, i, j) -> None:
    view = views.whole(buffer((8, 64), dtypes.float16, text, "shared"))
    index = (nodes.Var("i", nodes.INT32), nodes.Var("j", nodes.INT32))
    expected = view.layout.positions((8, 64))["m"][i, j]
    assert evaluate(views.element_offset(view, index), {"i": i, "j": j}) == expected


def test_views_of_buffers_without_layout_are_row_major() -> None:
    kind = nodes.TensorType((4, 6), dtypes.float32, None, "local", 4)
    view = views.whole(nodes.Var("X", kind))
    one, two = build.const(1, dtypes.int32), build.const(2, dtypes.int32)
    assert build.as_int(views.element_offset(view, (one, two))) == 8
    assert (addresses(views.sub(view, (1, (None, None, None)))) == 6 + np.arange(6)).all()
    with pytest.raises(LayoutError, match="no layout to go by"):
        views.sub(
            views.whole(
                nodes.Var("X", nodes.TensorType((M, 6), dtypes.float32, None, "global", 4))
            ),
            (1, 1),
        )


M = nodes.Var("M", nodes.INT32)


def sized(notation: str, shape: tuple[int | nodes.Var, ...]):
    from tilejit.ir.dims import dimension_iters
    from tilejit.layout import TileLayout, parse

    tile = parse(notation)
    assert isinstance(tile, TileLayout)
    return [[(i.extent, i.stride) for i in d] for d in dimension_iters(tile, shape)]


@pytest.mark.parametrize(("notation", "shape", "expected"), [
    ("(1,2,2):(8,4,1)", (M, 4), [[(1, 8)], [(2, 4), (2, 1)]]),
    # One unit iter and one run-time dimension: an axis of extent 1 does not take it.
    ("(1,4):(8,1)", (M, 1, 4), [[(1, 8)], [], [(4, 1)]]),
    ("(1,1,2,2):(8,5,4,1)", (M, 1, 4), [[(1, 8)], [(1, 5)], [(2, 4), (2, 1)]]),
    ("(1,2,2,1):(8,4,1,0)", (M, 4, 1), [[(1, 8)], [(2, 4), (2, 1)], [(1, 0)]]),
])  # fmt: skip
def test_unit_iters_of_runtime_shapes(notation, shape, expected) -> None:
    assert sized(notation, shape) == expected


def test_unit_iters_that_could_be_anyones_are_refused() -> None:
    """Two unit iters, one run-time dimension: which stride is the dimension's is not guessed."""
    with pytest.raises(LayoutError, match="does not follow"):
        sized("(1,1,4):(8,5,1)", (M, 4))


@pytest.mark.parametrize("start", [(1 << 31) - 1, 1 << 31, 1 << 32, (1 << 38) + 1])
def test_a_region_keeps_its_start(start) -> None:
    found = views.region(views.whole(buffer((1 << 40,))), ((start, start + 4, None),))
    (at,) = found.starts
    assert at.value == start and found.extents == (4,)


# --- picks: what a view keeps of an index that only the run tells

I, J = nodes.Var("i", nodes.INT32), nodes.Var("j", nodes.INT32)
ALL = (None, None, None)


def plus(index: nodes.Expr, count: int) -> nodes.Expr:
    return build.add(index, build.const(count, dtypes.int32))


@pytest.mark.parametrize(
    ("items", "picks"),
    [
        ((I, ALL), [(I, 1, 8, 0)]),
        ((ALL, J), [(J, 1, 64, 1)]),
        ((I, J), [(I, 1, 8, 0), (J, 1, 64, 1)]),
        (((I, plus(I, 4), None), ALL), [(I, 4, 8, 0)]),
        ((ALL, (J, plus(J, 9), 4)), [(J, 9, 64, 1)]),  # j, j + 4, j + 8
        ((ALL, (J, None, 4)), [(J, 61, 64, 1)]),  # every fourth of them from j < 4 on
        ((7, (0, 32, None)), []),
        (((1, 7, 2), ALL), []),
    ],
)
def test_a_run_time_index_is_kept_with_its_axis(items, picks) -> None:
    found = views.sub(views.whole(buffer((8, 64))), items)
    assert found.picks == tuple(nodes.Pick(*pick) for pick in picks)


@pytest.mark.parametrize(
    ("item", "picks"),
    [
        (0, []),  # a size is at least 1
        (3, [(build.index(3), 1, M, 0)]),
        (I, [(I, 1, M, 0)]),
        ((0, 4, None), [(build.index(0), 4, M, 0)]),
        ((I, plus(I, 4), None), [(I, 4, M, 0)]),
        (ALL, []),
        ((0, M, None), []),
    ],
)
def test_a_run_time_axis_keeps_known_indices_too(item, picks) -> None:
    assert views.sub(dynamic(), (item, ALL)).picks == tuple(nodes.Pick(*pick) for pick in picks)


def test_picks_outlive_what_is_made_of_the_view() -> None:
    first = views.sub(views.whole(buffer((4, 8, 64))), (I, ALL, ALL))
    (pick,) = first.picks
    for made in (
        views.permute(first, (1, 0)),
        views.reshape(first, (8, 8, -1)),
        views.with_dtype(first, dtypes.uint8),
        views.with_dtype(first, dtypes.uint64),
        views.with_dtype(first, dtypes.int32),
        views.with_layout(first, (512,), layout.row_major((512,))),
        views.sub(first, (3, ALL)),
    ):
        assert made.picks == (pick,)
    assert views.sub(views.permute(first, (1, 0)), (J, 5)).picks == (pick, nodes.Pick(J, 1, 64, 0))


def test_views_of_other_picks_are_other_views() -> None:
    """With one offset they can differ in what must hold: a broadcast axis moves nothing."""
    x = views.whole(buffer((4, 8), text="(4,8):(0,1)"))
    a, b = (views.sub(x, (index, ALL)) for index in (I, J))
    assert a.offset_elems == b.offset_elems and a != b
