"""How families report faults of a keyword and of an operand, and lists in words.

Not here: the conditions (families, ``tile.contracts``).
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from tilejit.errors import Report
from tilejit.tile.call import TensorOperand, TileCall


def keyword_fault(
    call: TileCall, code: str, message: str, report: Report, help_: str | None = None
) -> None:
    """A fault of the call's own, at the call."""
    report.error(
        f"{call.family}/{code}", message, span=call.span, contract=call.contract, help=help_
    )


def operand_fault(
    call: TileCall,
    operand: TensorOperand,
    code: str,
    message: str,
    report: Report,
    *,
    where: str | None = None,
    help_: str | None = None,
) -> None:
    """A fault of an operand, at the operand, with how it was declared."""
    report.error(
        f"{call.family}/{code}", message, span=operand.span, where=where,
        declared=operand.declared(), contract=call.contract, help=help_,
    )  # fmt: skip


def hand_on(trial: Report, report: Report, codes: AbstractSet[str], help_: str) -> None:
    """Adds the trial's faults to the report, with more help those that have one of ``codes``."""
    for found in trial.diagnostics:
        if found.code in codes:
            found = replace(found, notes=(*found.notes, ("help", help_)))
        report.diagnostics.append(found)


def listed(names: Sequence[object], joint: str = "and") -> str:
    """``1, 2 or 4``"""
    words = [str(n) for n in names]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {joint} {words[-1]}"
