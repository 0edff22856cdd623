"""Python source to typed tile IR: ``parse`` once per function, ``lower`` once per signature.

What lowers is loaded by the first kernel that is lowered: a process that decorates kernels and calls
none needs half of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tilejit.frontend.captures import Watch
from tilejit.frontend.kernel import Kernel, ParamSpec, parse

if TYPE_CHECKING:
    from tilejit.frontend.lowering import Lowered, lower

__all__ = ["Kernel", "Lowered", "ParamSpec", "Watch", "lower", "parse"]


def __getattr__(name: str) -> Any:
    if name not in ("Lowered", "lower"):
        raise AttributeError(f"module 'tilejit.frontend' has no attribute {name!r}")
    value = getattr(importlib.import_module("tilejit.frontend.lowering"), name)
    globals()[name] = value
    return value
