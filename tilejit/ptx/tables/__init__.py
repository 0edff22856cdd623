"""The rows of the PTX table, one file per instruction family.

Each table module has ``FAMILY`` (the module in ``tilejit.families`` that owns its forms) and
``ROWS``. Effects mean: ``reads_memory``/``writes_memory`` what is accessed, ``convergent`` all
threads of the warp named by the mask take part, ``barrier`` threads wait for each other, ``async``
completes later, ``volatile`` may be neither removed, repeated nor moved across other memory
operations (volatile and ordered accesses, fences).

``min_target`` may list alternatives, ``sm_100f|sm_120f``; ``tilejit.target`` says what it means.
The least target named is ``sm_75`` where the instruction is as old as that; tilejit itself starts
at ``sm_80``.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import NamedTuple

from tilejit.ptx.rows import Row

MODULES: tuple[str, ...] = (
    "registers",
    "conversions",
    "ld_st",
    "integer",
    "sync",
    "mbarrier",
    "prefetch_policy",
    "atom_red",
    "mma_sync",
    "ldmatrix_stmatrix",
    "cp_async",
    "cp_async_bulk",
    "st_async",
    "cp_async_bulk_tensor",
    "wgmma",
    "tcgen05",
    "tcgen05_ld_st",
    "tcgen05_cp",
    "tcgen05_mma",
)
"""Table modules, in the order in which their forms are listed."""


class Refused(NamedTuple):
    """A spelling that one would expect and that no assembler takes, and what to write instead."""

    pattern: str
    """A regular expression that the whole spelling matches."""
    reason: str
    use: str


@cache
def rows() -> tuple[tuple[str, Row], ...]:
    """Every row with its family's name."""
    found: list[tuple[str, Row]] = []
    for name in MODULES:
        module = importlib.import_module(f"{__name__}.{name}")
        found.extend((module.FAMILY, row) for row in module.ROWS)
    return tuple(found)


@cache
def refusals() -> tuple[Refused, ...]:
    """The spellings that get a repair of their own."""
    table: tuple[Refused, ...] = importlib.import_module(f"{__name__}.refused").REFUSED
    return table
