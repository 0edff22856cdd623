"""A family whose instructions are raw calls only: ``apply`` never reaches its check or bind.

Not here: the check and bind of raw calls (``tile.raw``).
"""

from __future__ import annotations

from collections.abc import Callable

from tilejit.errors import InternalError, Report, fault
from tilejit.tile.call import TileCall
from tilejit.tile.family import PRED, PRESERVE_DST, Family, Issue, Machine, Step


def raw_family(
    name: str, contract: str, execute: Callable[[Issue, Machine], None], simulated: str
) -> Family:
    """The family called ``name``, of which only ``execute`` is ever used."""

    def check(call: TileCall, report: Report) -> None:
        raise fault(InternalError, "internal/raw-only", f"{name} has no tile form", call.span)

    def bind(call: TileCall) -> list[Step]:
        raise fault(InternalError, "internal/raw-only", f"{name} has no tile form", call.span)

    return Family(
        name=name, params=(PRED, PRESERVE_DST), check=check, bind=bind, execute=execute,
        simulated=simulated, contract=contract,
    )  # fmt: skip
