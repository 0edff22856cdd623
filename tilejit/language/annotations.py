"""Annotations of kernel parameters and the launch description: plain, frozen, hashable values.

``T.Tensor(("M", "N"), "float32", align=16)``, ``T.Tensor(...) | None``, ``T.constexpr``,
``T.dynamic("M")``, ``T.cuda.LaunchConfig(grid=…, block=…)``. Scalar parameters are annotated with
a dtype (``T.float32``).

Not here: matching them with arguments (``runtime.specialise``, ``frontend.parameters``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tilejit.dtypes import BY_NAME, DType, dtype

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """A dimension whose size stays a run-time number; equal names are one number."""

    name: str


def dynamic(name: str) -> DynamicDim:
    """A tensor dimension that is not specialised on: one compiled kernel serves every size.

    Inside the kernel the size is an int64 value named ``name``.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"T.dynamic takes a name, got {name!r}")
    return DynamicDim(name)


Dim: TypeAlias = int | str | DynamicDim
"""An exact size, a name (equal names are equal sizes), or a run-time size."""


@dataclass(frozen=True, slots=True, init=False)
class Tensor:
    """A tensor parameter: ``T.Tensor(shape, dtype, align=bytes)``.

    ``shape``: one entry per dimension; None: any rank. ``dtype``: None for any. ``align``: bytes
    that the base address must be a multiple of (a power of two up to 128); a kernel may rely on
    it, and an argument that breaks it is refused at the call. ``T.Tensor(...) | None`` also takes
    None, which the kernel sees as the compile-time value None.
    """

    shape: tuple[Dim, ...] | None
    dtype: DType | None
    align_bytes: int | None
    optional: bool

    def __init__(
        self,
        shape: Sequence[Dim] | Dim | None = None,
        dtype: DType | str | None = None,
        *,
        align: int | None = None,
    ) -> None:
        object.__setattr__(self, "shape", _dims(shape))
        object.__setattr__(self, "dtype", None if dtype is None else _dtype(dtype))
        object.__setattr__(self, "align_bytes", _align(align))
        object.__setattr__(self, "optional", False)

    def __or__(self, other: object) -> Tensor:
        if other is not None:
            return NotImplemented
        return replace_optional(self)

    __ror__ = __or__


def replace_optional(tensor: Tensor) -> Tensor:
    """The same annotation, also taking None."""
    copy = Tensor(tensor.shape, tensor.dtype, align=tensor.align_bytes)
    object.__setattr__(copy, "optional", True)
    return copy


def _dtype(value: DType | str) -> DType:
    try:
        return dtype(value)
    except ValueError:
        near = near_dtype(value)
        if near is None:
            raise
        raise ValueError(f"{dtype_text(value)} is no dtype: write {near}") from None


_SHORT = {"f": "float", "fp": "float", "bf": "bfloat", "i": "int", "s": "int", "u": "uint"}
_WORDS = {
    "half": "float16", "float": "float32", "double": "float64", "int": "int32", "long": "int64",
}  # fmt: skip


def near_dtype(value: object) -> str | None:
    """How to write the dtype that ``value`` is meant for: one of torch or NumPy, or a short name."""
    name = _WORDS.get(bare := dtype_text(value).strip("'").rpartition(".")[2], bare)
    if (short := re.fullmatch(r"([a-z]+?)(\d+)", name)) and short[1] in _SHORT:
        name = _SHORT[short[1]] + short[2]
    close = difflib.get_close_matches(name, BY_NAME, n=1, cutoff=0.8)
    return f'"{close[0]}" or T.{"bool_" if close[0] == "bool" else close[0]}' if close else None


def dtype_text(value: object) -> str:
    """How messages call what was given as a dtype: ``torch.float32``, ``numpy.float32``, ``'f32'``."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__name__}".removeprefix("builtins.")
    return repr(value) if isinstance(value, str) else str(value)


def _dims(shape: Sequence[Dim] | Dim | None) -> tuple[Dim, ...] | None:
    if shape is None:
        return None
    dims: tuple[Dim, ...]
    dims = (shape,) if isinstance(shape, int | str | DynamicDim) else tuple(shape)
    for dim in dims:
        if isinstance(dim, bool) or not isinstance(dim, int | str | DynamicDim):
            raise TypeError(
                f"a dimension is an int, a name or T.dynamic(name), got {dim!r} in {dims!r}"
            )
        if isinstance(dim, int) and dim < 0:
            raise ValueError(f"a dimension cannot be negative: {dim} in {dims!r}")
    return dims


def _align(align: int | None) -> int | None:
    if align is None:
        return None
    if isinstance(align, bool) or not isinstance(align, int):
        raise TypeError(f"align is a number of bytes, got {align!r}")
    if not 1 <= align <= 128 or align & (align - 1):
        raise ValueError(f"align is a power of two from 1 to 128 bytes, got {align}")
    return align


class _Constexpr:
    """``T.constexpr`` as an annotation: the argument is a compile-time value.

    Called in a kernel, ``T.constexpr(x)`` gives ``x`` and refuses a run-time ``x``.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "T.constexpr"

    def __call__(self, value: V) -> V:
        return value

    def __or__(self, other: object) -> _Constexpr:
        return self

    def __getitem__(self, of: Any) -> _Constexpr:
        """``T.constexpr[int]`` is accepted and means ``T.constexpr``."""
        return self


constexpr = _Constexpr()

Extent: TypeAlias = Any
"""An int, or inside a kernel an expression over its scalar parameters and dynamic sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchConfig:
    """How a kernel is launched.

    ``grid`` counts CTAs (1 to 3 extents, x first; None: the caller gives it), ``block`` threads,
    ``cluster`` CTAs per cluster (None: no cluster launch; it divides the grid in every dimension).
    ``dynamic_smem_bytes`` None: what the kernel's allocations need. ``cooperative`` and
    ``programmatic_stream_serialization`` set the driver's launch attributes of those names.
    ``min_blocks_per_sm`` and ``max_registers_per_thread`` bound the register allocation.
    """

    grid: Extent | None = None
    block: Extent | None = None
    cluster: Extent | None = None
    dynamic_smem_bytes: int | None = None
    cooperative: bool = False
    programmatic_stream_serialization: bool = False
    min_blocks_per_sm: int = 1
    max_registers_per_thread: int | None = None
