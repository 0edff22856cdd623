"""Masks of tcgen05.mma: which lanes keep the old D, which columns of B count as zeros.

A lane mask is a tuple of 32-bit words, a column mask a 64-bit descriptor; both may be run-time values.

Source: contract "Tensor Core matrix multiply-accumulate". Not here: a column mask's bits (``column_mask``).
"""

from __future__ import annotations

from typing import Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Report
from tilejit.ir import build, nodes
from tilejit.ir.tensor_memory import SLABS
from tilejit.tile import column_mask
from tilejit.tile.call import TileCall
from tilejit.tile.family import Registers, Value
from tilejit.tile.faults import keyword_fault
from tilejit.tile.tensor_product import Opcode

LANE_WORDS = SLABS
"""Of each CTA: a word has a bit for every lane of a slab."""


def check_lanes(call: TileCall, opcode: Opcode, report: Report) -> None:
    """``disable_output_lane``: four words for each CTA, of an opcode that has them."""
    if call.params["disable_output_lane"] is None:
        return
    if opcode.scaled or opcode.weight_stationary:
        other = ".block_scale" if opcode.scaled else ".ws"
        keyword_fault(
            call, "disable-output-lane", f"disable_output_lane: {call.spelling} cannot keep lanes of D, "
            f"dense opcodes without {other} can", report,
        )  # fmt: skip
        return
    words = _words_of(call)
    wanted = LANE_WORDS * opcode.ctas
    odd = [i for i, word in enumerate(words or ()) if not _is_word(word)]
    if words is None:
        found = "disable_output_lane is no tuple"
    elif len(words) != wanted:
        found = f"disable_output_lane is {len(words)}"
    elif odd:
        found = f"word {odd[0]} of disable_output_lane is {_word_text(words[odd[0]])}"
    else:
        return
    keyword_fault(
        call, "disable-output-lane", f"{found}, expected a tuple of {wanted} 32-bit integers: {LANE_WORDS} masks "
        f"of 32 lanes for each of {opcode.ctas} CTAs", report, "bit i of word w keeps D in lane 32*w + i",
    )  # fmt: skip


def _word_text(word: Any) -> str:
    """A word that is none: its number, or else its type."""
    known = _known_integer(word)
    if known is not None:
        return str(known)
    return str(word.type) if isinstance(word, nodes.Expr) else repr(word)


def _words_of(call: TileCall) -> tuple[Any, ...] | None:
    """The masks: Python integers or expressions; None where the keyword is no tuple."""
    given = call.params["disable_output_lane"]
    if isinstance(given, nodes.Tuple):
        return given.items
    value = given.value if isinstance(given, nodes.Static) else given
    return value if isinstance(value, tuple) else None


def _is_word(word: Any) -> bool:
    known = _known_integer(word)
    if known is not None:
        return 0 <= known < 1 << 32
    return _is_integer(word) and word.type.dtype.bits == 32


def check_columns(call: TileCall, opcode: Opcode, report: Report) -> None:
    """``zero_column_mask``: of an opcode that has it, with bits that say something where they are known."""
    mask = call.params["zero_column_mask"]
    if mask is None:
        return
    known = _known_integer(mask)
    help_ = None
    if not opcode.weight_stationary:
        message = f"zero_column_mask: {call.spelling} has no such operand, tcgen05.mma.ws has"
    elif known is None and not _is_integer(mask):
        message = "zero_column_mask is no integer, expected the 64-bit descriptor of a mask"
    elif known is not None and not 0 <= known < 1 << 64:
        message = f"zero_column_mask is {known}, expected a uint64"
    elif known is not None and known & column_mask.RESERVED_BITS:
        message = f"zero_column_mask is {known:#x}, whose bits 36 to 38, 62 and 63 are to be 0"
    elif known is not None and column_mask.shift(known):
        message = (
            f"zero_column_mask shifts the columns by {column_mask.shift(known)}, expected 0: the instruction "
            "descriptor of a tile call allows no shift"
        )
        help_ = "start B's region at the column"
    else:
        return
    keyword_fault(call, "zero-column-mask", message, report, help_)


def _is_integer(expr: Any) -> bool:
    return (
        isinstance(expr, nodes.Expr)
        and isinstance(expr.type, nodes.ScalarType)
        and expr.type.dtype.is_integer
    )


def _known_integer(value: Any) -> int | None:
    if isinstance(value, nodes.Expr):
        return build.as_int(value) if _is_integer(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# --- code generation


def operands(call: TileCall) -> tuple[tuple[Registers, ...], tuple[Registers, ...]]:
    """The operands of the optional masks: none where a mask changes nothing."""
    words = _words_of(call) or ()
    if all(_known_integer(w) == 0 for w in words):
        words = ()
    lanes = tuple(Value(_as_type(word, dtypes.uint32)) for word in words)
    mask = call.params["zero_column_mask"]
    zeros = () if mask is None or _known_integer(mask) == 0 else (mask,)
    return (
        (Registers(lanes),) if lanes else (),
        tuple(Registers((Value(_as_type(z, dtypes.uint64)),)) for z in zeros),
    )


def _as_type(value: Any, dtype: DType) -> nodes.Expr:
    known = _known_integer(value)
    if known is not None:
        return build.const(known & (1 << dtype.bits) - 1, dtype)
    return build.cast(value, dtype)
