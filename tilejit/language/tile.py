"""``T.cuda.tile``: tile instructions under checked contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilejit.language.kernel_only import outside_kernel


def apply(instruction: Any, *operands: Any, scope: str = "thread", **parameters: Any) -> None:
    """Repeat one exact PTX instruction over tile operands.

    ``instruction``: ``T.ptx["ld.global.v4.b32"]``. ``operands``: views, regions (``A[i, 0:4]``),
    scalars and literals in the family's order, destinations first. ``scope``: thread, warp,
    warpgroup, cta or cluster; it says whose coordinates lead the operands' shapes and elects no
    thread. ``parameters``: the family's keywords. Contracts are checked for the whole kernel.
    """
    outside_kernel("T.cuda.tile.apply")


def ewise(function: Callable[..., Any], dst: Any, *inputs: Any, scope: str = "thread") -> None:
    """``dst[i] = function(*inputs[i])`` for every element of register tiles.

    ``function`` is a scalar helper: parameters take the annotated dtypes, else the inputs' types.
    """
    outside_kernel("T.cuda.tile.ewise")
