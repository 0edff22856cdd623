"""When two results agree, and what is said when they do not."""

from __future__ import annotations

import pytest
import torch

from tilejit.testing import agreement
from tilejit.testing.agreement import TOLERANCES, difference

INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]


def of(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_within_and_beyond_the_tolerance_of_a_dtype(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    right = torch.rand(64, 32, dtype=torch.float64) + 1.0
    tolerance = TOLERANCES[str(dtype).removeprefix("torch.")]
    assert difference("out", right.to(dtype), right.to(dtype)) is None
    assert difference("out", (right * (1 + 0.4 * tolerance)).to(dtype), right.to(dtype)) is None
    wrong = right.clone()
    wrong[3, 7] *= 1 + 4 * tolerance
    told = difference("out", wrong.to(dtype), right.to(dtype))
    assert told is not None and told.startswith("out[3, 7] is ")
    assert "; 1 of 2048 elements differ" in told


def test_nan_agrees_with_nan_and_an_infinity_with_itself_only() -> None:
    assert difference("o", of([NAN, INF, -INF, 1.0]), of([NAN, INF, -INF, 1.0000001])) is None
    for found, wanted in ((INF, -INF), (INF, 1.0), (1.0, INF), (NAN, 1.0), (1.0, NAN), (NAN, INF)):
        told = difference("o", of([1.0, found]), of([1.0, wanted]))
        assert told is not None and "o[1] is" in told and "1 of 2" in told, (found, wanted)


def test_an_infinity_does_not_widen_what_else_is_allowed() -> None:
    assert difference("o", of([INF, 1.1]), of([INF, 1.0])) is not None


def test_small_elements_are_held_against_the_whole() -> None:
    """Sums that cancel are right to the rounding of what was summed."""
    right = torch.full((100,), 1000.0)
    right[5] = 0.0
    found = right.clone()
    found[5] = 0.01
    assert difference("o", found, right) is None
    found[5] = 1.0
    assert difference("o", found, right) is not None


def test_a_whole_zero_block_is_found() -> None:
    right = torch.rand(256, 256).to(torch.bfloat16)
    found = right.clone()
    found[64:128, 128:] = 0
    told = difference("C", found, right)
    assert told is not None and told.startswith("C[64, 128] is 0.0") and "of 65536" in told


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.int64])
def test_integers_are_compared_exactly(dtype: torch.dtype) -> None:
    right = torch.tensor([0, 1, 1, 0]).to(dtype)
    assert difference("n", right.clone(), right) is None
    assert difference("n", torch.tensor([0, 1, 0, 0]).to(dtype), right) == (
        f"n[2] is {right.new_zeros(1).item()!r}, expected {right[1].item()!r}; 1 of 4 elements differ"
    )
    assert difference("n", torch.tensor([0, 2**24 + 1]), torch.tensor([0.0, 2.0**24])) is not None


def test_shapes_dtypes_and_views() -> None:
    right = torch.rand(8, 6)
    assert difference("o", right.t().contiguous().t(), right) is None
    assert difference("o", right.double(), right) is None
    assert difference("o", right.to(torch.bfloat16), right) is None
    told = difference("o", right.reshape(48), right)
    assert told == "o has the shape (48,), expected (8, 6)"
    assert difference("o", torch.empty(0, 3), torch.empty(0, 3)) is None
    assert difference("o", torch.tensor(2.0), torch.tensor(3.0)) is not None


def test_a_given_tolerance_takes_the_place_of_the_dtypes() -> None:
    assert difference("o", of([1.2]), of([1.0]), tolerance=0.2) is None
    assert difference("o", of([1.0 + 2e-7]), of([1.0]), tolerance=0.0) is not None


def test_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_CHUNK_ELEMS", 10)
    right = torch.rand(5, 7) + 1
    found = right.clone()
    found[3, 1] = 0
    found[4, 6] = 0
    told = difference("o", found, right)
    assert told is not None and told.startswith("o[3, 1] is 0.0") and "2 of 35" in told
