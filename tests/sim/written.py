"""Kernels written as source text, run in the simulator with chosen options. Not a test module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tilejit as tile
from tilejit import T
from tilejit.errors import TileError


def kernel(text: str, target: str | None = None, **names: Any) -> Any:
    """The decorated function ``k`` of the text, which may use ``T`` and ``names``."""
    space: dict[str, Any] = {"T": T, "tile": tile, **names}
    exec(compile(text, "<kernel>", "exec"), space)
    return tile.jit(source=text, target=target)(space["k"])


def reports(k: Any, *args: Any, **options: Any) -> list[Any]:
    """The diagnostics of a call; none for one that runs through."""
    try:
        with tile.simulation(**options):
            k(*args)
    except TileError as error:
        return list(error.diagnostics)
    return []


def codes(k: Any, *args: Any, **options: Any) -> list[str]:
    return [d.code for d in reports(k, *args, **options)]


def notes(diagnostic: Any) -> Mapping[str, str]:
    return dict(diagnostic.notes)
