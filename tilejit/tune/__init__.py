"""Which config of a kernel is fastest: found by measuring, kept on disk.

``tile.autotune`` makes a kernel that tunes itself, ``tile.tune(kernel, *args, configs=…)`` tunes once: this
package is what is called there. Importing it costs nothing.
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Tune(types.ModuleType):
    """``tilejit.tune`` is a package and, as ``tile.tune(...)``, a function; the import system lets the name
    mean the package."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from tilejit.tune.autotune import tune

        return tune(*args, **options)


sys.modules[__name__].__class__ = _Tune
