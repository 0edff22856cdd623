"""Examples of a kernel's arguments: ``@tile.jit(examples=[dict(X=("bfloat16", (4096, 64)), block=128)])``.

An example says what a kernel is meant to be called with, without making tensors, so that tools check it
(``python -m tilejit check``) and compile it ahead of time. A tensor is ``(dtype, shape)``, or with strides
``(dtype, shape, strides)``; anything that ``k.check`` takes may stand there too. Where the caller gives the
launch, an example is ``(grid, arguments)`` or ``(T.cuda.LaunchConfig(…), arguments)``.

Not here: what arguments are specialised to (``specialise``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import LaunchError, TileError, fault
from tilejit.ir.signature import TensorArg
from tilejit.runtime.specialise import (
    DEFAULT_ALIGN_BYTES,
    Param,
    dynamic_dims,
    stride_is_dynamic,
)

Examples: TypeAlias = Sequence[Any] | Callable[[], Sequence[Any]]
"""As the decorator takes them: a function is asked when they are needed."""


@dataclass(frozen=True, slots=True)
class Example:
    """``launch``: what ``k[…]`` takes, None where the kernel has its own. ``arguments``: for ``k.check``."""

    launch: Any
    arguments: Mapping[str, Any]


def read(kernel: str, params: Sequence[Param], given: Examples | None) -> tuple[Example, ...]:
    """The examples of a kernel; ``LaunchError``, ``launch/example``, for what is none."""
    rows = given() if callable(given) else given
    if rows is None:
        return ()
    if not isinstance(rows, list | tuple):
        raise _wrong(kernel, f"examples are a list, got {rows!r}")
    return tuple(_example(kernel, params, row) for row in rows)


def _wrong(kernel: str, message: str) -> TileError:
    return fault(
        LaunchError, "launch/example", f"{kernel}: {message}",
        help='examples=[dict(X=("bfloat16", (4096, 64)), n=128)]; with the caller\'s grid '
        "[((32, 1), dict(…))]",
    )  # fmt: skip


def _example(kernel: str, params: Sequence[Param], row: Any) -> Example:
    launch, arguments = row if isinstance(row, tuple) and len(row) == 2 else (None, row)
    if not isinstance(arguments, Mapping):
        raise _wrong(kernel, f"an example is a dict of arguments by name, got {row!r}")
    by_name = {p.name: p for p in params}
    described = {
        name: _described(by_name[name], value) if name in by_name else value
        for name, value in arguments.items()
    }
    return Example(launch, described)


def _described(param: Param, value: Any) -> Any:
    """``(dtype, shape)`` as a ``TensorArg``; anything else as it is."""
    if param.kind not in ("tensor", "any") or not isinstance(value, tuple):
        return value
    if len(value) not in (2, 3) or not all(isinstance(v, tuple | list) for v in value[1:]):
        return value
    dtype = element_type(value[0])
    return value if dtype is None else tensor(param, dtype, *value[1:])


def element_type(named: Any) -> DType | None:
    """The dtype that a DType, a name or a dtype of torch stands for; None for anything else."""
    if isinstance(named, DType):
        return named
    name = str(named).removeprefix("torch.")
    return dtypes.BY_NAME.get(name)


def tensor(
    param: Param, dtype: DType, shape: Sequence[int], strides: Sequence[int] | None = None
) -> TensorArg:
    """An argument for ``param`` as a tensor of this dtype and shape would be specialised: contiguous
    unless ``strides`` are given, aligned as torch aligns, or as the parameter wants it."""
    steps = _contiguous(shape) if strides is None else tuple(strides)
    dynamic = frozenset(d for d in dynamic_dims(param.annotation) if d < len(shape))
    return TensorArg(
        dtype,
        tuple(None if d in dynamic else n for d, n in enumerate(shape)),
        tuple(None if stride_is_dynamic(d, s, dynamic) else s for d, s in enumerate(steps)),
        max(getattr(param.annotation, "align_bytes", None) or 0, DEFAULT_ALIGN_BYTES),
    )


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
