"""Layouts: notation both ways, positions, spans, swizzles, injectivity."""

from __future__ import annotations

import itertools

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
ITERS = st.builds(Iter, st.integers(1, 6), st.integers(-3, 40), AXES)
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
        ("S[8,4]", "(8,4):(4,1)"),
        ("S[(4,2):(1@laneid,1)] + R[2:64@TLane] + 4 - 4", "(4,2):(1@laneid,1) + R[2:64@TLane]"),
        ("8", "(8):(1)"),
        ("((4+4)*2, -(-3)):(3, 1)", "(16,3):(3,1)"),
        ("(2):(-1@laneid) + 1@laneid", "(2):(-1@laneid) + 1@laneid"),
        ("():()", "():()"),
        ("swizzle(1,2,3,outer) o (64)", "swizzle(1,2,3,outer) o (64):(1)"),
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
        ("(2@laneid):(1)", "belongs to a stride"),
        ("(2):(1) + 3@lane", "unknown axis 'lane'"),
        ("swizzle(1,2) o (8)", "takes (per_element"),
        ("(WARPS):(1)", "expected an integer, found 'WARPS'"),
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


def test_error_points_at_the_column() -> None:
    with pytest.raises(LayoutError) as caught:
        parse("(2,3):(1@laneid,1@line)")
    _, text, caret = str(caught.value).split("\n")
    assert text[caret.index("^") :].startswith("line")


def test_positions_are_cached_and_read_only() -> None:
    layout = parse("swizzle(3,3,3) o (8,64):(64,1)")
    first = layout.positions((8, 64))
    assert parse("swizzle(3,3,3) o (8,64):(64,1)").positions((8, 64)) is first
    with pytest.raises(ValueError):
        first[MEMORY_AXIS][0, 0] = 1


def test_offsets_are_normalised() -> None:
    made = TileLayout((Iter(2, 1),), (), (("warpid", 1), ("laneid", 0), ("TCol", 2)))
    assert made.offset == (("TCol", 2), ("warpid", 1))
    with pytest.raises(LayoutError, match="unknown axis 'x'"):
        TileLayout((Iter(2, 1),), (), (("x", 1),))


def test_axes_and_sizes() -> None:
    layout = parse("(2,32,4):(1@warpid,1@laneid,1) + R[2:4@wgid] + 1@cbx")
    assert layout.size == 256
    assert layout.axes == {"warpid", "laneid", "m", "wgid", "cbx"}
    assert layout.span("laneid") == 32 and layout.span("wgid") == 5 and layout.span("cbx") == 2


def test_a_scalar_has_one_position() -> None:
    assert row_major(()).positions(())[MEMORY_AXIS] == 0
    with pytest.raises(LayoutError, match="differ in rank"):
        strided((2, 3), (1,))


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
        ("swizzle(0,1,1) o (3):(1) + R[2:8]", 12),
        ("swizzle(3,3,3) o (8,64):(64,1) + 64", 576),
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


def copies(layout: TileLayout, flat: int) -> set[tuple[tuple[str, int], ...]]:
    """Every stored position of one element, by the definition."""
    axes = sorted(layout.axes | {MEMORY_AXIS})
    component = np.unravel_index(flat, tuple(i.extent for i in layout.shard))
    found = set()
    for steps in itertools.product(*(range(i.extent) for i in layout.replica)):
        place = dict.fromkeys(axes, 0) | dict(layout.offset)
        for c, i in [*zip(component, layout.shard), *zip(steps, layout.replica)]:
            place[i.axis] += int(c) * i.stride
        found.add(tuple(sorted(place.items())))
    return found


@given(TILES.filter(lambda t: t.size <= 64))
def test_collision_is_exact(layout: TileLayout) -> None:
    shape = tuple(i.extent for i in layout.shard)
    places = [copies(layout, flat) for flat in range(layout.size)]
    clashes = [
        (a, b) for b in range(layout.size) for a in range(b) if places[a] & places[b]
    ]  # fmt: skip
    found = find_collision(layout, shape)
    assert (found is None) == (not clashes)
    if found is not None:
        first, second = (int(np.ravel_multi_index(c, shape)) for c in (found.first, found.second))
        assert second == clashes[0][1]
        assert found.position in places[first] & places[second]


def test_collision_through_replicas() -> None:
    assert find_collision(parse("(4):(1) + R[2:4]"), (4,)) is None
    found = find_collision(parse("(4):(1) + R[2:3]"), (4,))
    assert found is not None and (found.first, found.second) == ((0,), (3,))
    assert find_collision(parse("(4):(1) + R[2:0]"), (4,)) is None


def test_collision_in_a_large_layout_is_quick() -> None:
    layout = parse("swizzle(3,3,3) o (128,4,64):(64,8192,1)")
    assert find_collision(layout, (128, 256)) is None


def test_distributed_layout_is_injective_by_owner() -> None:
    assert find_collision(parse("(2,32,4):(1@warpid,1@laneid,1)"), (2, 32, 4)) is None
    assert find_collision(strided((4,), (0,)), (4,)) is not None
