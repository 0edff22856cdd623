"""What a kernel is specialised on: the frontend's second input beside the source.

Built by ``runtime.specialise`` from a call's arguments, or by hand for ``k.check`` and tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from tilejit.dtypes import DType


@dataclass(frozen=True, slots=True)
class TensorArg:
    """Shape and strides in elements; None where the annotation says ``T.dynamic``.

    ``align_bytes``: the class of the base address (largest power of two dividing it, at most 16
    unless the annotation promises more, at most 128).
    """

    dtype: DType
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    align_bytes: int


@dataclass(frozen=True, slots=True)
class ScalarArg:
    """A run-time scalar of this type."""

    dtype: DType


@dataclass(frozen=True, slots=True)
class ConstArg:
    """A compile-time value (``T.constexpr``, or None for an optional tensor). Hashable."""

    value: Any


Arg: TypeAlias = TensorArg | ScalarArg | ConstArg


@dataclass(frozen=True, slots=True)
class LaunchOverride:
    """``k[grid](…)`` and ``k[LaunchConfig(…)](…)``: what the caller gives. Grid is a bound only."""

    grid_bound: tuple[int, int, int] | None = None
    block: tuple[int, ...] | None = None
    cluster: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """One entry per kernel parameter, in order, and the target such as ``sm_90a``."""

    args: tuple[tuple[str, Arg], ...]
    target: str
    launch: LaunchOverride = LaunchOverride()
