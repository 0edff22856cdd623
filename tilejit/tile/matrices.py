"""Repeat axes of matrix products: D and C (…, M, N), A (…, M, K), B (…, N, K), batch axes in front.

Not here: atoms and fragments (families, ``tile.fragments``).
"""

from __future__ import annotations

from collections.abc import Iterable

from tilejit.errors import Report
from tilejit.tile.call import TileCall
from tilejit.tile.region import Walk

AXES = {
    "D": ("M", "N"), "A": ("M", "K"), "B": ("N", "K"), "C": ("M", "N"),
    "SFA": ("M", "K"), "SFB": ("N", "K"),
}  # fmt: skip
"""The repeat axes of each operand, after its batch axes."""

_Found = tuple[int | tuple[int, ...], Walk, str]


def has_axes(call: TileCall, name: str, laid: Walk, report: Report) -> bool:
    """The operand called ``name`` has its two repeat axes."""
    if len(laid.repeat) >= 2:
        return True
    operand = laid.operand
    first, second = AXES[name]
    ones = ", ".join("1" for _ in range(2 - len(laid.repeat)))
    rest = ", ".join(map(str, (*laid.repeat, *laid.atom)))
    before = "".join(f"{e}, " for e in operand.extents[: laid.prefix])
    report.error(
        f"{call.family}/repeat-axes",
        f"{operand.name} ({name}) has {len(laid.repeat)} axes before its atom "
        f"{laid.atom}, expected {first}_repeat and {second}_repeat: its shape is {operand.extents}",
        span=operand.span,
        declared=operand.declared(),
        contract=f"{call.contract}: D, C (M, N, …), A (M, K, …), B (N, K, …)",
        help=f".view({before}{ones}, {rest}) adds repeats of 1",
    )
    return False


def repeats_agree(call: TileCall, walks: Iterable[tuple[str, Walk | None]], report: Report) -> None:
    """One extent per axis name, and the same batch axes on every operand that was laid out."""
    known: dict[str, _Found] = {}
    batch: _Found | None = None
    for name, walk in walks:
        if walk is None:
            continue
        for axis, extent in zip(AXES[name], walk.repeat[-2:]):
            first = known.setdefault(axis, (extent, walk, name))
            if first[0] != extent:
                _report_extent(call, f"{axis}_repeat", (extent, walk, name), first, report)
        batch = batch or (walk.repeat[:-2], walk, name)
        if batch[0] != walk.repeat[:-2]:
            _report_extent(call, "batch axes", (walk.repeat[:-2], walk, name), batch, report)


def _report_extent(call: TileCall, what: str, found: _Found, first: _Found, report: Report) -> None:
    operand, other = found[1].operand, first[1].operand
    report.error(
        f"{call.family}/repeats",
        f"{operand.name} ({found[2]}) has {what} {found[0]}, {other.name} ({first[2]}) has {first[0]}",
        span=operand.span,
        declared=operand.declared(),
        contract=f"{call.contract}: matching batch and M/N/K repeat extents",
        help="axes after the group: D, C (…, M, N, m, n), A (…, M, K, m, k), B (…, N, K, n, k)",
    )
