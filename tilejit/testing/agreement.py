"""Whether two tensors hold the same result, and how they differ where they do not.

Not here: what should agree (``tune``, ``report``).
"""

from __future__ import annotations

import torch

TOLERANCES: dict[str, float] = {
    "float64": 1e-9,
    "float32": 1e-4,
    "float16": 4e-3,
    "bfloat16": 2e-2,
    "float8_e4m3fn": 0.26,
    "float8_e5m2": 0.51,
}
"""By dtype, the relative difference that another order of summation may make: a few steps of the format.
float32 has room for products through tf32 to fail. Types that are not here are compared exactly."""

_CHUNK_ELEMS = 1 << 25
"""Compared at a time: the intermediate results of large tensors would not fit."""


def tolerance_of(dtype: torch.dtype) -> float:
    return TOLERANCES.get(str(dtype).removeprefix("torch."), 0.0)


def difference(
    name: str, actual: torch.Tensor, expected: torch.Tensor, tolerance: float | None = None
) -> str | None:
    """How ``actual`` differs from ``expected``; None where they agree.

    They agree bit by bit, or if every element does: NaN with NaN, an infinity with the same one, and else
    within ``tolerance`` times the sum of the expected magnitude and the root mean square of all expected
    (finite) elements. ``tolerance``: None for that of the coarser dtype of the two. Integers agree exactly.
    """
    if actual.shape != expected.shape:
        shapes = f"{tuple(actual.shape)}, expected {tuple(expected.shape)}"
        return f"{name} has the shape {shapes}"
    expected = expected.to(actual.device)
    if same_bits(actual, expected):
        return None
    if tolerance is None:
        tolerance = max(tolerance_of(actual.dtype), tolerance_of(expected.dtype))
    if not actual.is_floating_point():
        tolerance = 0.0
    scale = _root_mean_square(expected) if tolerance else 0.0
    count, first = 0, -1
    found, wanted = actual.reshape(-1), expected.reshape(-1)
    for start in range(0, found.numel(), _CHUNK_ELEMS):
        part = slice(start, start + _CHUNK_ELEMS)
        wrong = _wrong(found[part], wanted[part], tolerance, scale)
        some = int(wrong.sum())
        if some and first < 0:
            first = start + int(wrong.nonzero()[0])
        count += some
    if not count:
        return None
    index = ", ".join(map(str, _index(first, actual.shape)))
    beyond = f" by more than {tolerance:.2g} of magnitude and rms" if tolerance else ""
    return (
        f"{name}[{index}] is {found[first].item()!r}, expected {wanted[first].item()!r}; "
        f"{count} of {found.numel()} elements differ{beyond}"
    )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and device hold the same bytes."""
    if a.dtype != b.dtype:
        return False
    if a.numel() == 0:
        return True
    first, second = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return bool(torch.equal(first, second))


def _wrong(
    actual: torch.Tensor, expected: torch.Tensor, tolerance: float, scale: float
) -> torch.Tensor:
    if not tolerance:
        alike = actual == expected if actual.dtype == expected.dtype else _exact(actual, expected)
        if actual.is_floating_point() and expected.is_floating_point():
            alike |= actual.isnan() & expected.isnan()
        return ~alike
    found, wanted = _widened(actual), _widened(expected)
    # An infinite tolerance or difference compares as false: infinities must be equal.
    near = (found - wanted).abs() <= tolerance * (wanted.abs() + scale)
    near &= wanted.isfinite()
    return ~(near | (found == wanted) | (found.isnan() & wanted.isnan()))


def _exact(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return actual.double() == expected.double()


def _widened(values: torch.Tensor) -> torch.Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _root_mean_square(values: torch.Tensor) -> float:
    total, count = 0.0, 0
    flat = values.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK_ELEMS):
        part = _widened(flat[start : start + _CHUNK_ELEMS])
        finite = part.isfinite()
        total += float(part.where(finite, 0).double().square().sum())
        count += int(finite.sum())
    return float((total / count) ** 0.5) if count else 0.0


def _index(flat: int, shape: torch.Size) -> list[int]:
    index: list[int] = []
    for extent in reversed(shape):
        index.insert(0, flat % extent)
        flat //= extent
    return index
