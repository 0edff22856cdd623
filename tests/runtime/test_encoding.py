"""Encodings are injective and do not depend on the process."""

from __future__ import annotations

import enum
import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilejit.ir.signature import ConstArg
from tilejit.runtime.encoding import digest, encode


class Colour(enum.IntEnum):
    RED = 1


@dataclass(frozen=True)
class Pair:
    a: Any
    b: Any


DISTINCT = [
    None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, float("inf"), "", "0", "1", b"", b"1", (), (1,), [1],
    ((1,),), (1, 2), ("1", "2"), ("12",), ("1,2",), ("a", "bc"), ("ab", "c"), frozenset(), frozenset({1}),
    {}, {1: 2}, {2: 1}, Colour.RED, Pair(1, 2), Pair(2, 1), ConstArg(1), ConstArg(1.0), ConstArg(True),
    np.int32(1), np.int64(1), np.float32(1), np.array([1]), np.array([[1]]), 1j, ..., int, Pair,
]  # fmt: skip


def test_different_values_encode_differently() -> None:
    for a, b in itertools.combinations(DISTINCT, 2):
        assert encode(a) != encode(b), (a, b)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.lists(inner) | st.frozensets(st.integers()),
    max_leaves=12,
)


@given(values, values)
def test_equal_encodings_mean_equal_values(a: Any, b: Any) -> None:
    if encode(a) == encode(b):
        assert repr(a) == repr(b)
    assert encode(a) == encode(a)


@given(st.dictionaries(st.text(), st.integers()))
def test_dict_order_does_not_count(d: dict[str, int]) -> None:
    assert encode(d) == encode(dict(reversed(d.items())))


def test_lambdas_differ_by_code_and_not_by_place() -> None:
    f, g = (lambda x: x + 1), (lambda x: x + 2)
    assert encode(f) != encode(g)
    assert encode(f) == encode(f)


def test_cycles_are_an_error_and_no_hang() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="cyclic"):
        encode(loop)


def test_one_digest_over_twenty_processes_with_random_hash_seeds() -> None:
    program = (
        "from tilejit.runtime.encoding import digest\n"
        "print(digest(frozenset('abcdefgh'), {'x', 'y', 'zz'}, {'b': 1, 'a': 2}, ('s', 1.5)))"
    )
    expected = digest(frozenset("abcdefgh"), {"x", "y", "zz"}, {"b": 1, "a": 2}, ("s", 1.5))
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in range(1, 21)
    ]
    assert {p.communicate()[0].strip() for p in running} == {expected}
