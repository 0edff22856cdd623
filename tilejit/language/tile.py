"""``T.cuda.tile``: tile instructions under checked contracts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict, Unpack

from tilejit.language.kernel_only import outside_kernel
from tilejit.ptx.instruction import Instruction, PtxPrefix

__all__ = ["apply", "ewise"]

Scope = Literal["thread", "warp", "warpgroup", "cta", "cluster"]


class Parameters(TypedDict, total=False):
    """The keywords of ``apply``, those of all families, for editors and type checkers. Which of them an
    instruction takes, which it needs, and of which run-time type they are is its family's."""

    # any instruction
    pred: Any
    preserve_dst: bool
    # copies
    chunk_bytes: int
    src_size: Any
    ignore_src: Any
    cache_policy: Any
    mbar: Any
    cta_mask: Any
    remote_cta_id: Any
    # tensor maps
    box: tuple[int, ...]
    coords: tuple[Any, ...]
    coord_steps: tuple[tuple[int, ...], ...]
    gather4: tuple[Any, ...]
    element_strides: tuple[int, ...]
    swizzle: int
    interleave: int
    l2_promotion: int
    oob_fill: int
    format: str | None
    # products
    instruction_shape: tuple[int, ...]
    accum: Any
    a_format: str
    b_format: str
    a_major: str
    b_major: str
    neg_a: bool
    neg_b: bool
    sat_d: bool
    disable_output_lane: tuple[Any, ...]
    zero_column_mask: Any
    # tensor memory
    imm_half_splitoff: int


def apply(
    instruction: Instruction | PtxPrefix,
    *operands: Any,
    scope: Scope = "thread",
    **parameters: Unpack[Parameters],
) -> None:
    """Repeat one exact PTX instruction over tile operands.

    ``instruction``: ``T.ptx["ld.global.v4.b32"]``. ``operands``: views, regions (``A[i, 0:4]``),
    scalars and literals in the family's order, destinations first. ``scope``: thread, warp,
    warpgroup, cta or cluster; it says whose coordinates lead the operands' shapes and elects no
    thread. ``parameters``: the family's keywords. Contracts are checked for the whole kernel.
    """
    outside_kernel("T.cuda.tile.apply")


def ewise(function: Callable[..., Any], dst: Any, *inputs: Any, scope: Scope = "thread") -> None:
    """``dst[i] = function(*inputs[i])`` for every element of register tiles.

    ``function`` is a scalar helper: parameters take the annotated dtypes, else the inputs' types.
    """
    outside_kernel("T.cuda.tile.ewise")
