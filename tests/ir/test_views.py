"""Views against numpy: what a view addresses is what numpy's own indexing addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
