"""Functions of the kernel language that do not depend on the GPU's execution model.

Each has the signature an author writes; inside a kernel the frontend gives it its meaning
(``frontend.intrinsics``), outside it explains itself. ``Any`` stands for a kernel value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilejit.dtypes import DType
from tilejit.language.annotations import LaunchConfig
from tilejit.language.kernel_only import outside_kernel
from tilejit.layout import Layout
from tilejit.layout import parse as parse_layout


def device_entry(*, launch: LaunchConfig) -> None:
    """Say how the kernel is launched; at most once, outside every loop and branch.

    ``launch.grid`` may use the kernel's dynamic sizes and scalar parameters, ``launch.block`` and
    ``launch.cluster`` are compile-time.
    """
    outside_kernel("T.device_entry")


def layout(notation: str) -> Layout:
    """The layout a notation string denotes: ``T.layout("(4,32):(1@warpid,1@laneid)")``.

    Inside a kernel, names and arithmetic in the notation are evaluated in the kernel's
    compile-time scope. ``LayoutError`` says where the notation is wrong.
    """
    return parse_layout(notation)


def alloc_shared(
    shape: Sequence[int],
    dtype: DType | str,
    layout: Layout | str | None = None,
    align: int | None = None,
) -> Any:
    """A shared-memory buffer of this CTA. Contents are undefined until written.

    ``layout``: a Layout, a notation string, ``"default"`` (dense row-major) or None (scalar access
    only, row-major). ``align`` in bytes, a power of two, default 16.
    """
    outside_kernel("T.alloc_shared")


def alloc_local(
    shape: Sequence[int],
    dtype: DType | str,
    layout: Layout | str | None = None,
    align: int | None = None,
) -> Any:
    """Registers of each thread. A layout with owner axes spreads one tile over the threads.

    Arguments as ``alloc_shared``; ``align`` matters only where the buffer's address is taken.
    """
    outside_kernel("T.alloc_local")


def cast(x: Any, ty: DType | str) -> Any:
    """``x`` converted to ``ty``. Float to integer truncates and saturates; to bool is ``x != 0``."""
    outside_kernel("T.cast")


def bitcast(x: Any, ty: DType | str) -> Any:
    """The bits of ``x`` as ``ty``, of the same width."""
    outside_kernel("T.bitcast")


def if_then_else(condition: Any, if_true: Any, if_false: Any) -> Any:
    """``if_true if condition else if_false`` without a branch: both sides are evaluated."""
    outside_kernel("T.if_then_else")


def unroll(start: int, stop: int | None = None, step: int = 1) -> range:
    """``range`` of compile-time bounds whose loop is written out; the variable is compile-time."""
    outside_kernel("T.unroll")


def print(format: str, *values: Any) -> None:
    """Print from every thread that executes it; each ``{}`` in ``format`` takes one value."""
    outside_kernel("T.print")


def device_assert(condition: Any, message: str = "assertion failed") -> None:
    """Trap (GPU) or fault (simulator) where ``condition`` is false."""
    outside_kernel("T.device_assert")


def assume(condition: Any) -> None:
    """Promise the checker that ``condition`` holds here. The simulator verifies the promise."""
    outside_kernel("T.assume")


def static_assert(condition: bool, message: str = "static assertion failed") -> None:
    """Refuse the kernel where the compile-time ``condition`` is false."""
    outside_kernel("T.static_assert")


def ceildiv(a: Any, b: Any) -> Any:
    """The quotient rounded up, for compile-time and run-time integers."""
    return -(-a // b)


def min(*values: Any) -> Any:
    """Smallest of the values; a NaN is ignored, as PTX ``min`` does. Builtin ``min`` is the same."""
    outside_kernel("T.min")


def max(*values: Any) -> Any:
    """Largest of the values; a NaN is ignored, as PTX ``max`` does. Builtin ``max`` is the same."""
    outside_kernel("T.max")


def abs(x: Any) -> Any:
    """Absolute value. The builtin ``abs`` is the same."""
    outside_kernel("T.abs")


def truncdiv(a: Any, b: Any) -> Any:
    """Integer quotient rounded towards zero, as C's ``/``; Python's ``//`` floors."""
    outside_kernel("T.truncdiv")


def truncmod(a: Any, b: Any) -> Any:
    """Integer remainder with the dividend's sign, as C's ``%``; Python's ``%`` floors."""
    outside_kernel("T.truncmod")
