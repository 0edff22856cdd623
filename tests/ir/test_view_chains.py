"""Random chains of views address what the same chain of numpy operations picks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ir.arithmetic import evaluate
from tilejit import dtypes, layout
from tilejit.ir import build, nodes, views
from tilejit.layout import LayoutError

START_SHAPES = [(4, 6, 8), (16, 12), (2, 3, 4, 5)]
START_LAYOUTS = {
    (4, 6, 8): ["(4,6,8):(48,8,1)", "(4,6,8):(1,40,4)", "(4,6,2,4):(4,16,96,1) + 7"],
    (16, 12): ["(16,12):(12,1)", "swizzle(0,2,3) o (16,3,4):(4,64,1)", "(4,4,12):(1,60,4)"],
    (2, 3, 4, 5): ["(120):(1)", "(2,3,20):(64,20,1)"],
}


def start(shape, text) -> tuple[nodes.View, np.ndarray]:
    kind = nodes.TensorType(shape, dtypes.float32, layout.parse(text), "global", 16)
    return views.whole(nodes.Var("X", kind)), kind.layout.positions(shape)["m"]


def addresses(view: nodes.View, values: dict[str, int]) -> np.ndarray:
    """By ``element_offset``, the function that emitter and simulator use."""
    found = np.empty(view.shape, np.int64)
    names = [nodes.Var(f"at{axis}", nodes.INT32) for axis in range(len(view.shape))]
    offset = views.element_offset(view, tuple(names))
    for at in np.ndindex(*view.shape):
        found[at] = evaluate(offset, values | {n.name: i for n, i in zip(names, at)})
    return found


def factors(draw, size: int) -> tuple[int, ...]:
    """A random shape of ``size`` elements."""
    shape = []
    while size > 1 and len(shape) < 3:
        divisors = [d for d in range(1, size + 1) if size % d == 0]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1]
    return (*shape, size)


class Chain:
    """A view, the numpy array of its addresses, and the values of its run-time indices."""

    def __init__(self, view: nodes.View, table: np.ndarray) -> None:
        self.view, self.table, self.values = view, table, {}

    def number(self, value: int, symbolic: bool):
        if not symbolic:
            return value
        var = nodes.Var(f"v{len(self.values)}", nodes.INT32)
        self.values[var.name] = value
        return var

    def sub(self, draw) -> None:
        items, picks = [], []
        for extent in self.table.shape:
            kind = draw(st.sampled_from(("all", "index", "slice", "step", "blocks")))
            symbolic = draw(st.booleans())
            if kind == "all":
                items.append((None, None, None))
                picks.append(slice(None))
            elif kind == "index":
                at = draw(st.integers(0, extent - 1))
                items.append(self.number(at, symbolic))
                picks.append(at)
            elif kind == "blocks":
                size = draw(st.sampled_from([d for d in range(1, extent + 1) if extent % d == 0]))
                block = draw(st.integers(0, extent // size - 1))
                first = build.index_mul(self.number(block, symbolic), size)
                items.append((first, build.index_add(first, size), None))
                picks.append(slice(block * size, block * size + size))
            else:
                first = draw(st.integers(0, extent - 1))
                stop = draw(st.integers(first + 1, extent))
                step = draw(st.integers(1, 3)) if kind == "step" else 1
                lead = build.index(self.number(first, symbolic))
                items.append((lead, build.index_add(lead, stop - first), step))
                picks.append(slice(first, stop, step))
        self.view = views.sub(self.view, tuple(items))
        self.table = self.table[tuple(picks)]

    def permute(self, draw) -> None:
        order = tuple(draw(st.permutations(range(self.table.ndim))))
        self.view = views.permute(self.view, order)
        self.table = self.table.transpose(order)

    def reshape(self, draw) -> None:
        shape = factors(draw, math.prod(self.table.shape))
        self.view = views.reshape(self.view, shape)
        self.table = self.table.reshape(shape)


@given(st.data())
def test_chains(data) -> None:
    shape = data.draw(st.sampled_from(START_SHAPES))
    chain = Chain(*start(shape, data.draw(st.sampled_from(START_LAYOUTS[shape]))))
    for step in data.draw(
        st.lists(st.sampled_from((chain.sub, chain.permute, chain.reshape)), max_size=4)
    ):
        before = chain.view, chain.table
        try:
            step(data.draw)
        except LayoutError as error:
            assert "unevenly" in str(error) or "does not split" in str(error)
            chain.view, chain.table = before
    assert chain.view.shape == chain.table.shape
    try:
        found = addresses(chain.view, chain.values)
    except LayoutError as error:
        assert "does not split" in str(error)
        return
    assert (found == chain.table).all()


@pytest.mark.parametrize("shape", START_SHAPES)
def test_dense_layouts_reshape_and_cut_anywhere(shape) -> None:
    size = math.prod(shape)
    kind = nodes.TensorType(shape, dtypes.float32, layout.row_major(shape), "global", 16)
    flat = views.reshape(views.whole(nodes.Var("X", kind)), (size,))
    for first in range(0, size - 7, 5):
        found = views.sub(flat, ((first, first + 7, 3),))
        assert (addresses(found, {}) == np.arange(first, first + 7, 3)).all()
