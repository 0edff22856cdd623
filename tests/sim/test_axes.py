"""An index outside its axis is a fault even where the address it gives is inside the buffer: an
element's own index, and one that ``.sub`` took on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilejit as tile
from tilejit import T


@tile.jit
def load(X: T.Tensor(("M", "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):
    M, _ = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    if t < M - 1:
        total = 0.0
        for j in range(last + 1):
            total += X[t, j]
        Y[t] = total


@tile.jit
def row(X: T.Tensor((T.dynamic("M"), "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    x = X.sub[1, :]
    Y[0] = x[last - 8 + 8]


@tile.jit
def store(X: T.Tensor(("M", T.dynamic("N")), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    X[0, last] = 1.0


@tile.jit
def shared(X: T.Tensor(("M", "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    s = T.alloc_shared((4, 8), "float32", layout="default")
    s[0, last] = 1.0


@tile.jit
def negative(X: T.Tensor(("M", "N"), "float32"), Y: T.Tensor(("M",), "float32"), last: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    Y[0] = X[2, 7 - last]


@pytest.mark.parametrize("kernel", [load, row, store, shared, negative], ids=lambda k: k.__name__)
def test_the_nearest_index_outside_an_axis(kernel: Callable[..., Any]) -> None:
    x, y = torch.ones(4, 8), torch.zeros(4)
    kernel(x, y, 7)
    where = "axis 0" if kernel is row else "axis 1"
    with pytest.raises(
        tile.TileError, match=rf"index (8|-1) of {where} of `\w`, whose extent is 8"
    ):
        kernel(x, y, 8)


SOURCE = """
def k(X: T.Tensor((8, 8), "float32"), Y: T.Tensor((32, 32), "float32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    S = T.alloc_shared((8, 32, 4), "float32", layout="default")
    r = T.alloc_local((8, 4), "float32", layout="default")
    ring, part = S.sub[0:4, :, :], r.sub[0:4, :]
    for i in T.unroll(8):
        for j in T.unroll(4):
            S[i, t, j] = 0.0
            r[i, j] = 0.0
    {}
"""


def run(body: str, n: int) -> torch.Tensor:
    scope: dict[str, Any] = {"T": T}
    text = SOURCE.format(body.replace("\n", "\n    "))
    exec(text, scope)
    y = torch.zeros(32, 32)
    tile.jit(source=text)(scope["k"])(torch.ones(8, 8), y, n)
    return y


USES = [
    ("ring.sub[n, t, :][0] = 1.0", 3, "index 4 of axis 0 of `S`, whose extent is 4"),
    ("Y[t, 0] = ring.sub[n, t, :][0]", 3, "index 4 of axis 0 of `S`, whose extent is 4"),
    ("Y[t, 0] = ring.sub[:, t, :].sub[n, 1:3][0]", 3, "index 4 of axis 0 of `S`"),
    ("Y[t, 0] = ring.sub[n, :, :].permute(1, 0)[2, t]", 3, "index 4 of axis 0 of `S`"),
    ("Y[t, 0] = ring.sub[n, :, :].view(128)[4 * t]", 3, "index 4 of axis 0 of `S`"),
    ("Y.view('int32')[t, 0] = ring.sub[n, t, :].view('int32')[0]", 3, "index 4 of axis 0 of `S`"),
    ("Y[t, 0] = ring.sub[n : n + 2, t, :][0, 0]", 2, "part 3 : 5 of axis 0 of `S`, whose extent is 4"),
    ("Y[t, 0] = X.sub[0, 0:4].sub[n : n + 1][0]", 3, "index 4 of axis 0 of `X`, whose extent is 4"),
    ('T.ptx["mov.b32"](ring.sub[n, t, :][0], X[0, 0])', 3, "index 4 of axis 0 of `S`"),
    ("stage = n\nplace = ring.sub[stage, t, :]\nstage = 0\nY[t, stage] = place[0]", 3, "index 4 of axis 0"),
    ("part.sub[n, :][1] = 1.0", 3, "index 4 of axis 0 of `r`, whose extent is 4"),
    ("Y[t, 0] = part.sub[n, :][1]", 3, "index 4 of axis 0 of `r`, whose extent is 4"),
    ("Y[t, 0] = part[n, 1]", 3, "index 4 of axis 0 of `r`, whose extent is 4"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "last", "message"), USES)
def test_the_nearest_index_of_sub_outside_an_axis(body: str, last: int, message: str) -> None:
    run(body, last)
    with pytest.raises(tile.TileError) as caught:
        run(body, last + 1)
    assert caught.value.codes == ("sim/out-of-bounds",)
    assert message in str(caught.value) and "another element lies there" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "beyond = ring.sub[n, t, :]\nY[t, 0] = 0.0",
        "beyond = ring.sub[n, t, :]\nif n < 4:\n    Y[t, 0] = beyond[0]",
        "beyond = ring.sub[t // 7, t, :]\nif t < 28:\n    Y[t, 0] = beyond[0]",
    ],
)
def test_a_view_that_no_lane_uses_may_have_picked_anything(body: str) -> None:
    run(body, 4)


def test_the_lanes_whose_index_is_outside() -> None:
    with pytest.raises(tile.TileError) as caught:
        run("Y[t, 0] = ring.sub[t // 7, t, :][0]", 0)
    (found,) = caught.value.diagnostics
    assert "index 4 of axis 0 of `S`" in found.message
    notes = dict(found.notes)
    assert "warp 0 lane 28" in notes["where"] and notes["count"].startswith("4 ")


def test_an_index_outside_the_buffer_is_told_once() -> None:
    with pytest.raises(tile.TileError) as caught:
        run("Y[t, 0] = ring.sub[n, t, :][0]", 8)
    (found,) = caught.value.diagnostics
    assert found.code == "sim/out-of-bounds" and "axis" not in found.message
