"""Emission: a checked kernel as header-free CUDA C++ with inline PTX.

``emit(checked) -> Source``. Not here: compiling it (``runtime.nvrtc``), launching.
"""

from __future__ import annotations

from tilejit.cuda.kernel import Source as Source
from tilejit.cuda.kernel import emit as emit

__all__ = ["Source", "emit"]
