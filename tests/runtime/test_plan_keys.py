"""What distinguishes two launches: compile-time values bit by bit, grids as integers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tilejit.errors import LaunchError
from tilejit.runtime.dispatch import typed
from tilejit.runtime.plan import normalise_grid


@dataclasses.dataclass(frozen=True)
class Options:
    tile: int
    note: object = dataclasses.field(default="", compare=False)


def test_fields_left_out_of_comparison_still_count() -> None:
    """``==`` ignores ``note``, a kernel can read it."""
    assert Options(1, "a") == Options(1, "b")
    assert typed(Options(1, "a")) != typed(Options(1, "b"))
    assert typed(Options(1, "a")) == typed(Options(1, "a"))
    assert typed(Options(1, 4)) != typed(Options(1, 4.0))
    first, second = [], []
    assert typed(Options(1, first)) != typed(Options(1, second))
    assert typed(Options(1, first)) == typed(Options(1, first))


@pytest.mark.parametrize("pair", [(1, 1.0), (1, True), (0.0, -0.0), ((1,), (True,))])
def test_equal_values_of_other_types_differ(pair: tuple[object, object]) -> None:
    assert typed(pair[0]) != typed(pair[1])


@pytest.mark.parametrize("grid", [3, (3,), [3, 1], (3, 1, 1), np.int64(3), np.array(3)])
def test_grids(grid: object) -> None:
    assert normalise_grid(grid) == (3, 1, 1)


@pytest.mark.parametrize("grid", [True, 1.0, "3", None, (), (1, 1, 1, 1), np.array([1, 1]), -1])
def test_bad_grids(grid: object) -> None:
    with pytest.raises(LaunchError, match="grid"):
        normalise_grid(grid)
