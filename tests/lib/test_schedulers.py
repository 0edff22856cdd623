"""Orders of tiles and items of work, on the simulator and the GPU: every tile once, every slice once."""

from __future__ import annotations

import pytest
import torch

from tilejit import T, jit
from tilejit.errors import TileError
from tilejit.lib import schedulers

ORDERS = [
    ("grouped", 1), ("grouped", 4), ("grouped", 16), ("snake", 3), ("snake", 8), ("hilbert", 1),
    ("hilbert", 2), ("hilbert", 4), ("hilbert", 16),
]  # fmt: skip
COUNTS = [(1, 1), (1, 9), (9, 1), (4, 4), (5, 7), (8, 8), (17, 3), (16, 33), (31, 18)]


@jit
def places(
    OUT: T.Tensor(("COUNT", 2), "int32"), tiles_m: T.int32, tiles_n: T.constexpr, order: T.constexpr,
    group_m: T.constexpr,
):  # fmt: skip
    COUNT, _ = OUT.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    for number in range(T.cuda.thread_idx("x"), COUNT, 128):
        row, column = schedulers.place(number, tiles_m, tiles_n, order, group_m)
        OUT[number, 0] = row
        OUT[number, 1] = column


def places_of(device: str, tiles_m: int, tiles_n: int, order: str, group_m: int) -> torch.Tensor:
    out = torch.full((tiles_m * tiles_n, 2), -1, dtype=torch.int32, device=device)
    places(out, tiles_m, tiles_n, order, group_m)
    return out.cpu()


@pytest.mark.parametrize(("order", "group_m"), ORDERS)
@pytest.mark.parametrize(("tiles_m", "tiles_n"), COUNTS)
def test_every_tile_once(device: str, tiles_m: int, tiles_n: int, order: str, group_m: int) -> None:
    found = places_of(device, tiles_m, tiles_n, order, group_m)
    expected = [(row, column) for row in range(tiles_m) for column in range(tiles_n)]
    assert sorted(map(tuple, found.tolist())) == expected


@pytest.mark.parametrize("side", [2, 4, 16])
def test_neighbours_of_a_curve_share_a_row_or_a_column(device: str, side: int) -> None:
    """Over whole squares the order is one path, from band to band as well."""
    found = places_of(device, 2 * side, 3 * side, "hilbert", side)
    steps = found.diff(dim=0).abs().sum(1)
    turn = 3 * side * side - 1
    assert (steps[:turn] == 1).all() and (steps[turn + 1 :] == 1).all()
    assert found[turn, 1] == found[turn + 1, 1] == 3 * side - 1


def test_a_group_goes_down_before_it_goes_right(device: str) -> None:
    found = places_of(device, 5, 3, "grouped", 2).tolist()
    assert found[:4] == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert found[-3:] == [[4, 0], [4, 1], [4, 2]]
    assert places_of(device, 5, 3, "snake", 2).tolist()[6:8] == [[2, 2], [3, 2]]


def test_an_order_that_there_is_not() -> None:
    with pytest.raises(TileError, match="order is grouped, snake or hilbert"):
        places_of("cpu", 5, 3, "zigzag", 2)


@jit
def all_slices(
    OUT: T.Tensor(("ITEMS", 5), "int32"), tiles: T.int32, workers: T.int32, parts: T.constexpr,
    k_tiles: T.constexpr,
):  # fmt: skip
    """Of each item tile, part, begin, end, and the number of whole tiles; rows beyond keep."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    items, whole = schedulers.items(tiles, workers, parts)
    for item in range(T.cuda.thread_idx("x"), items, 128):
        tile, part, begin, end = schedulers.slices(item, tiles, whole, parts, k_tiles)
        OUT[item, 0] = tile
        OUT[item, 1] = part
        OUT[item, 2] = begin
        OUT[item, 3] = end
        OUT[item, 4] = whole


def test_a_tile_has_a_part() -> None:
    out = torch.full((4, 5), -1, dtype=torch.int32)
    with pytest.raises(TileError, match="at least one part"):
        all_slices(out, 4, 4, 0, 11)


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("tiles", "workers"), [(1, 1), (1, 4), (3, 8), (8, 8), (9, 8), (12, 8), (13, 8), (1376, 132)]
)
def test_every_slice_once(device: str, tiles: int, workers: int, parts: int) -> None:
    k_tiles = 11
    out = torch.full((tiles * parts, 5), -1, dtype=torch.int32, device=device)
    all_slices(out, tiles, workers, parts, k_tiles)
    found = out[out[:, 0] >= 0].tolist()
    covered = torch.zeros(tiles, k_tiles, dtype=torch.int32)
    parts_of_worker = [0] * workers
    last: dict[int, int] = {}
    for item, (tile, part, begin, end, whole) in enumerate(found):
        assert begin < end
        covered[tile, begin:end] += 1
        last[tile] = part
        if item >= whole:
            parts_of_worker[item % workers] += 1
        else:
            assert (part, begin, end) == ((parts - 1 if parts > 1 else 0), 0, k_tiles)
    assert (covered == 1).all()
    assert set(last.values()) == {parts - 1 if parts > 1 else 0}
    assert max(parts_of_worker) <= 1
    rest = tiles % workers
    split = parts > 1 and 0 < rest * parts <= workers
    assert len(found) == (tiles + rest * (parts - 1) if split else tiles)
