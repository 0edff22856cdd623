"""Configs, spaces, and what a kernel makes of them."""

import copy
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.runtime.fakes import jit
from tilejit import T
from tilejit.tune.config import listed, split


@dataclass(frozen=True)
class Plan:
    tile_m: int
    stages: int = 3


def kernel(X: T.Tensor(("N",)), n: T.int32, BLOCK: T.constexpr, plan: T.constexpr = None): ...


K = jit(kernel)


def code(action: Any) -> str:
    with pytest.raises(tile.TuneError) as found:
        action()
    (diagnostic,) = found.value.diagnostics
    assert ("help" in dict(diagnostic.notes)) or diagnostic.code == "tune/space"
    return f"{diagnostic.code}: {diagnostic.message} | {dict(diagnostic.notes).get('help')}"


def test_configs_are_values() -> None:
    a, b = tile.Config(BLOCK=128, STAGES=3), tile.Config(STAGES=3, BLOCK=128, name="wide")
    assert a == b and hash(a) == hash(b) and len({a, b}) == 1
    assert repr(a) == "BLOCK=128, STAGES=3" and repr(b) == "wide (STAGES=3, BLOCK=128)"
    assert a["BLOCK"] == 128 and dict(a.values) == {"BLOCK": 128, "STAGES": 3}
    assert pickle.loads(pickle.dumps(b)) == b == copy.deepcopy(b)
    with pytest.raises(AttributeError):
        a.name = "x"


@pytest.mark.parametrize(("one", "other"), [(4, 4.0), (1, True), (0.0, -0.0), (Plan(4), Plan(8))])
def test_values_of_different_types_and_bits_are_different(one: Any, other: Any) -> None:
    assert tile.Config(A=one) != tile.Config(A=other)
    assert tile.Config(A=one) == tile.Config(A=copy.deepcopy(one))


def test_values_without_a_hash_and_tensors_are_refused() -> None:
    assert "use a tuple" in code(lambda: tile.Config(A=[1]))
    assert "is a tensor" in code(lambda: tile.Config(A=torch.zeros(2)))


def test_a_space_is_the_product_less_what_the_constraint_refuses() -> None:
    space = tile.Space(
        BLOCK=[64, 128], STAGES=range(2, 5), where=lambda BLOCK, STAGES: BLOCK * STAGES < 400
    )
    assert [tuple(c.values.values()) for c in space] == [
        (64, 2),
        (64, 3),
        (64, 4),
        (128, 2),
        (128, 3),
    ]
    partial = tile.Space(A=[1, 2], B=[1, 2], where=lambda B: B == 1)
    assert len(partial) == 2
    assert len(tile.Space(A=[1, 2], where=lambda **values: values["A"] > 1)) == 1
    joined = space + tile.Space(BLOCK=[64], STAGES=[2, 9]) + [tile.Config(BLOCK=1)]
    assert len(joined) == 7 and len([tile.Config(BLOCK=1)] + space) == 6


def test_mistaken_spaces() -> None:
    assert "write BLOCK=[64]" in code(lambda: tile.Space(BLOCK=64))
    assert "write order=['rows']" in code(lambda: tile.Space(order="rows"))
    assert "no values" in code(lambda: tile.Space(BLOCK=[]))
    assert "did you mean 'STAGES'" in code(lambda: tile.Space(STAGES=[1], where=lambda STAGE: True))


def test_a_config_is_split_into_constants_and_launch_options() -> None:
    parts = split(tile.Config(BLOCK=4, cluster=2, plan=Plan(64)), K)
    assert parts.constants == {"BLOCK": 4, "plan": Plan(64)} and parts.options == {"cluster": 2}


def test_names_that_mean_nothing_are_refused_with_a_suggestion() -> None:
    def taken(X: T.Tensor(("N",)), block: T.constexpr): ...

    assert "did you mean 'BLOCK'" in code(lambda: split(tile.Config(BLOK=4), K))
    assert "did you mean 'cluster'" in code(lambda: split(tile.Config(clusters=4), K))
    assert "compile-time parameters: BLOCK, plan" in code(lambda: split(tile.Config(q=4), K))
    assert "k[grid]" in code(lambda: split(tile.Config(grid=4), K))
    assert "T.constexpr" in code(lambda: split(tile.Config(n=4), K))
    assert "another name" in code(lambda: split(tile.Config(block=4), jit(taken)))
    assert "expected a tile.Config" in code(lambda: listed([{"BLOCK": 4}], K))
    assert "no configs" in code(lambda: listed(tile.Space(BLOCK=[1], where=lambda: False), K))


def test_an_option_set_to_its_default_overrides_the_kernel() -> None:
    """``T.cuda.LaunchConfig`` cannot say it; a config can."""
    entry = split(tile.Config(BLOCK=1, min_blocks_per_sm=1, cooperative=False), K).entry(K, (4,))
    assert dict(entry.options) == {"min_blocks_per_sm": 1, "cooperative": False}
    assert entry.grid == (4, 1, 1)
    assert split(tile.Config(BLOCK=1), K).entry(K) is K
