"""Python source to typed tile IR: ``parse`` once per function, ``lower`` once per signature."""

from __future__ import annotations

from tilejit.frontend.captures import Watch
from tilejit.frontend.kernel import Kernel, ParamSpec, parse
from tilejit.frontend.lowering import Lowered, lower

__all__ = ["Kernel", "Lowered", "ParamSpec", "Watch", "lower", "parse"]
