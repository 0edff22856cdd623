"""Stores to parameters whose elements share addresses are refused, whatever stores."""

from __future__ import annotations

import itertools

import pytest

from tests.tile.kit import apply, buffer, codes, i32, kernel, raw, text, var, views, whole
from tilejit import layout
from tilejit.ir import nodes
from tilejit.layout import aliases

R = buffer("r", (4,))


def param(notation: str, shape=(8, 4)):
    return buffer("X", shape, space="global", notation=notation)


def element(x: nodes.Var) -> nodes.Address:
    return nodes.Address(x, i32(0), nodes.PointerType("global"))


def stores(x: nodes.Var) -> dict[str, nodes.Stmt]:
    row = views.sub(whole(x), (i32(0), (None, None, None)))
    value = nodes.Const(1.0, nodes.FLOAT32)
    return {
        "scalar": nodes.Store(whole(x), (i32(0), i32(0)), value),
        "scalar through a view": nodes.Store(row, (i32(0),), value),
        "tile": apply("st.global.v4.b32", row, whole(R)),
        "raw": raw("st.global.b32", element(x), nodes.Const(1, nodes.UINT32)),
    }


@pytest.mark.parametrize("how", ["scalar", "scalar through a view", "tile", "raw"])
@pytest.mark.parametrize(
    ("notation", "legal"),
    [
        ("(8,4):(4,1)", True),
        ("(8,4):(0,1)", False),
        ("(8,4):(3,1)", False),  # rows overlap by one element
        ("(8,4):(5,1)", True),
        ("(8,4):(1,8)", True),
        ("(8,4):(1,7)", False),
    ],
)
def test_a_shared_element_is_not_stored_to(how: str, notation: str, legal: bool) -> None:
    if how == "tile" and not notation.endswith(",1)"):
        pytest.skip("no vectors along this axis")
    x = param(notation)
    found = codes(kernel(stores(x)[how], params=(x,)))
    assert ("tile/read-only" in found) is not legal
    if legal and notation == "(8,4):(4,1)":
        assert found == []


def test_the_report_names_buffer_and_repair() -> None:
    x = param("(8,4):(0,1)")
    shown = text(kernel(stores(x)["scalar"], params=(x,)))
    assert "X is read-only" in shown and "contiguous()" in shown and "(8,4):(0,1)" in shown


def test_reading_a_broadcast_is_legal() -> None:
    x = param("(8,4):(0,1)")
    row = views.sub(whole(x), (i32(0), (None, None, None)))
    assert codes(kernel(apply("ld.global.v4.b32", whole(R), row), params=(x,))) == []


def test_beside_a_runtime_size_the_type_says_it() -> None:
    size, stride = var("M"), var("X_stride0", nodes.INT64)
    where = layout.parse("(1,4):(0,1)")
    one = nodes.Const(1.0, nodes.FLOAT32)
    for read_only, strides in ((True, ()), (False, ((0, stride),))):
        kind = nodes.TensorType((size, 4), nodes.FLOAT32.dtype, where, "global", 16, read_only)
        x = nodes.Var("X", kind)
        row = views.sub(views.whole(x, strides), (i32(0), (None, None, None)))
        for store in (
            nodes.Store(views.whole(x, strides), (i32(0), i32(0)), one),
            nodes.Store(row, (i32(0),), one),
        ):
            expected = ["tile/read-only"] if read_only else []
            assert codes(kernel(store, params=(x, size, stride))) == expected


@pytest.mark.parametrize(
    ("notation", "expected"),
    [
        ("(4,4):(4,1)", False), ("(4,4):(3,1)", True), ("(1,4):(0,1)", False), ("(2,3):(3,2)", False),
        ("(3,3):(3,2)", False), ("(3,4):(3,2)", True), ("(4,2):(2,6)", True), ("(3,2):(2,6)", False),
        ("(2,2,2):(1,2,3)", True), ("(2,2,2):(1,2,4)", False), ("(2,2,2):(9,5,2)", False),
        ("(2,2):(1@laneid,0)", True), ("(2,2):(0@laneid,1)", False),
    ],
)  # fmt: skip
def test_aliases(notation: str, expected: bool) -> None:
    assert aliases(layout.parse(notation)) is expected


def test_aliases_agrees_with_the_exhaustive_search() -> None:
    """Exactly. (Owners are another matter: ``find_collision`` tells threads apart.)"""
    for shape in itertools.product(range(1, 5), range(1, 4), range(1, 4)):
        for strides in itertools.product(range(7), range(5), range(4)):
            tile = layout.strided(shape, strides)
            assert aliases(tile) == (layout.find_collision(tile, shape) is not None), tile


def test_aliases_ends_for_any_extents() -> None:
    """A search that would not end is given up: the answer is then that nothing is known to meet."""
    n = 1 << 40
    assert not aliases(layout.strided((n, n, n), (n * n, n, 1)))
    assert aliases(layout.strided((n, n, n), (n * n, n - 1, 1)))
    assert not aliases(layout.strided((n, n), (n + 1, n)))
    assert aliases(layout.strided((n, n), (n + 2, n)))
    assert not aliases(layout.strided((n, n, n), (n + 1, n, n * n * 3)))
