"""The contract table of a kernel: every tile call with what was proved of it.

A row stands for one place of the source; the copies of unrolled code share it. Not here: contracts
(``families``), their pages (``docs/contract``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from tilejit import markup
from tilejit.errors import Span
from tilejit.markup import Html
from tilejit.tile.banks import BankReport
from tilejit.tile.call import TileCall
from tilejit.tile.region import Operand, TensorOperand

HEADER = (
    "line",
    "instruction",
    "family",
    "scope",
    "threads",
    "operands",
    "instructions",
    "contract",
)


def table(
    calls: Iterable[TileCall], banks: Iterable[BankReport], key: Callable[[Span | None], str | None]
) -> Html:
    """``key``: a span's line as the listings name it."""
    rows: dict[tuple[object, ...], int] = {}
    for call in calls:
        row = (
            key(call.span) or "", call.spelling, call.family, call.scope,
            f"{call.group.threads.size}{', one elected of each warp' if call.group.elected else ''}",
            tuple(map(_operand, call.operands)), _repeats(call), _proved(call),
        )  # fmt: skip
        rows[row] = rows.get(row, 0) + 1
    costs = _costs(banks, key)
    return markup.table(
        HEADER,
        [_cells(row, copies, costs.get((row[0], row[1]), ())) for row, copies in rows.items()],
        numeric=(0, 6),
    )


def _cells(row: tuple[object, ...], copies: int, costs: Iterable[BankReport]) -> tuple[object, ...]:
    line, spelling, family, scope, threads, operands, issues, proved = row
    assert isinstance(operands, tuple)
    shown = markup.join(markup.tag("div", markup.tag("code", o), class_="line") for o in operands)
    found = [markup.tag("span", proved, class_="good"), *map(_cost, costs)]
    times = f"{copies} × {issues}" if copies > 1 else str(issues)
    notes = markup.join(markup.tag("div", cost, class_="line") for cost in found)
    return (line, markup.opcode(str(spelling)), family, scope, threads, shown, times, notes)


def _operand(operand: Operand) -> Html:
    if not isinstance(operand, TensorOperand):
        return markup.escape(f"{operand.name}: scalar")
    shape = ", ".join("any" if extent < 0 else str(extent) for extent in operand.extents)
    return markup.escape(f"{operand.view.buffer.name}: {operand.space} {operand.dtype} ({shape})")


def _repeats(call: TileCall) -> int:
    """Native instructions of one thread, warp or warpgroup."""
    return max((walk.repeats for walk in call.walks.values()), default=1)


def _proved(call: TileCall) -> str:
    """The check passed, or there would be no table; how much it looked at: every position of every
    operand that is a tensor, by thread, repeat and element."""
    positions = sum(
        walk.group.threads.size * math.prod(walk.repeat) * math.prod(walk.atom)
        for walk in call.walks.values()
    )
    if not positions:
        return "holds"
    return f"holds at {positions:,} positions".replace(",", " ")


def _costs(
    banks: Iterable[BankReport], key: Callable[[Span | None], str | None]
) -> dict[tuple[object, object], list[BankReport]]:
    found: dict[tuple[object, object], list[BankReport]] = {}
    for report in banks:
        alike = found.setdefault((key(report.span) or "", report.spelling), [])
        if all(_cost(report) != _cost(other) for other in alike):
            alike.append(report)
    return found


def _cost(report: BankReport) -> Html:
    if report.unknown:
        return markup.escape(f"{report.operand}: bank conflicts not known")
    if report.conflicted:
        text = f"{report.operand}: {report.conflict_degree}-way bank conflict"
        return markup.tag("span", text, class_="bad")
    return markup.tag("span", f"{report.operand}: no bank conflicts", class_="good")
