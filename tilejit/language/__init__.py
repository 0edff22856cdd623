"""The kernel language. ``from tilejit.language import T`` is what authors write kernels with."""

from __future__ import annotations

from tilejit.language import namespace as T
from tilejit.language.annotations import DynamicDim, LaunchConfig, Tensor, constexpr, dynamic
from tilejit.language.kernel_only import OutsideKernel

__all__ = ["DynamicDim", "LaunchConfig", "OutsideKernel", "T", "Tensor", "constexpr", "dynamic"]
