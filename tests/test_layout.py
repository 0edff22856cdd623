"""Layouts: notation both ways, positions, spans, swizzles, injectivity."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilejit.layout import (
    MEMORY_AXIS,
    THREAD_AXES,
    ComposeLayout,
    Iter,
    LayoutError,
    TileLayout,
    find_collision,
    normal_offset,
    parse,
    render,
    row_major,
    strided,
)

AXES = st.sampled_from((MEMORY_AXIS, *THREAD_AXES, "TLane", "TCol"))
ITERS = st.builds(Iter, st.integers(1, 6), st.integers(0, 40), AXES)
TILES = st.builds(
    TileLayout,
    st.lists(ITERS, min_size=1, max_size=4).map(tuple),
    st.lists(ITERS, max_size=2).map(tuple),
    st.dictionaries(AXES, st.integers(-9, 99), max_size=2).map(normal_offset),
)
SWIZZLES = st.tuples(st.integers(0, 4), st.integers(0, 3)).flatmap(
    lambda p: st.builds(
        ComposeLayout, st.just(p[0]), st.just(p[1]), st.integers(p[1], 4), TILES, st.booleans()
    )
)


@given(st.one_of(TILES, SWIZZLES))
def test_notation_reads_back(layout) -> None:
    assert parse(render(layout)) == layout


@pytest.mark.parametrize(
    "text, printed",
    [
        ("(2,32,4):(1@warpid,1@laneid,1)", "(2,32,4):(1@warpid,1@laneid,1)"),
        ("(8,4)", "(8,4):(4,1)"),
        ("S[(8,4):(4,1)]", "(8,4):(4,1)"),
        ("(128//4,2*2):(1, 32) - 4", "(32,4):(1,32) - 4"),
        ("(32,4):(1@TLane,1@TCol) + R[2:64@TLane] + 3@laneid", "(32,4):(1@TLane,1@TCol) + R[2:64@TLane] + 3@laneid"),
        ("swizzle(3,3,3) o (8,64):(64,1)", "swizzle(3,3,3) o (8,64):(64,1)"),
    ],
)  # fmt: skip
def test_notation(text: str, printed: str) -> None:
    assert render(parse(text)) == printed


@pytest.mark.parametrize(
    "text, message",
    [
        ("(2,3):(1)", "2 extents but 1 strides"),
        ("(2):(1@lane)", "unknown axis 'lane'"),
        ("(0):(1)", "extent 0"),
        ("(2):(1) 3", "unexpected '3'"),
        ("(2:(1)", "expected ','"),
        ("(2//0)", "division by zero"),
        ("swizzle(3,4,3) o (8)", "atom_len >= swizzle_len"),
        ("", "expected an integer"),
        ("(2) $", "unexpected '$'"),
    ],
)
def test_bad_notation_says_where(text: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse(text)
    assert message in str(caught.value)


@given(TILES)
def test_positions_follow_the_formula(layout: TileLayout) -> None:
    extents = tuple(i.extent for i in layout.shard)
    for axis, values in layout.positions((layout.size,)).items():
        for flat in range(layout.size):
            component = np.unravel_index(flat, extents)
            expected = dict(layout.offset).get(axis, 0) + sum(
                int(c) * i.stride for c, i in zip(component, layout.shard) if i.axis == axis
            )
            assert values[flat] == expected


def test_positions_refuse_another_size() -> None:
    with pytest.raises(LayoutError, match=r"8 elements.*shape \(9,\) has 9"):
        row_major((8,)).positions((9,))


@pytest.mark.parametrize(
    "text, span",
    [
        ("(8,4)", 32),
        ("(8,4):(8,1)", 60),
        ("(2,32,4):(1@warpid,1@laneid,1)", 4),
        ("(4):(0)", 1),
        ("(4):(1) + 3", 7),
        ("(4):(1) + R[2:16]", 20),
        ("swizzle(0,1,1) o (3):(1)", 4),
    ],
)
def test_span_counts_gaps_replicas_and_swizzles(text: str, span: int) -> None:
    assert parse(text).span() == span


def test_128_byte_swizzle_of_half_precision() -> None:
    """Byte address bits [7,10) XORed into [4,7), for 2-byte elements."""
    layout = parse("swizzle(3,3,3) o (16,64):(64,1)")
    assert isinstance(layout, ComposeLayout)
    address = np.arange(1024)
    expected = (address * 2 ^ ((address * 2 >> 3) & 0x70)) // 2
    assert (layout.swizzle(address) == expected).all()
    assert layout.period_elems == 512
    assert find_collision(layout, (16, 64)) is None


def test_swizzle_outer_mirrors() -> None:
    layout = ComposeLayout(1, 2, 3, row_major((128,)), swizzle_inner=False)
    address = np.arange(128)
    assert (layout.swizzle(address) == (address ^ (((address >> 1) & 3) << 4))).all()


def test_collision_names_both_coordinates() -> None:
    found = find_collision(parse("(4,4):(4,2)"), (4, 4))
    assert found is not None
    assert (found.first, found.second) == ((0, 2), (1, 0))
    assert dict(found.position)["m"] == 4


@given(TILES)
def test_collision_is_exact(layout: TileLayout) -> None:
    shape = tuple(i.extent for i in layout.shard)
    positions = layout.positions(shape)
    rows = np.stack([positions[a].reshape(-1) for a in sorted(positions)], 1)
    injective = len({tuple(r) for r in rows.tolist()}) == len(rows)
    found = find_collision(layout, shape)
    assert (found is None) == injective
    if found is not None:
        assert found.first < found.second
        assert all(p[found.first] == p[found.second] for p in positions.values())


def test_distributed_layout_is_injective_by_owner() -> None:
    assert find_collision(parse("(2,32,4):(1@warpid,1@laneid,1)"), (2, 32, 4)) is None
    assert find_collision(strided((4,), (0,)), (4,)) is not None
