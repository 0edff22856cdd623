"""The typed tile IR. ``ir.nodes`` says what it means; the other modules build, walk, print, store
and verify it.

Node names are reachable here (``ir.Function``); they are loaded at first use, so that importing the
package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilejit.ir.nodes import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name[0].isupper():
        import tilejit.ir.nodes as nodes

        if hasattr(nodes, name):
            return getattr(nodes, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
