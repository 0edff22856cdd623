"""What a language function does outside a kernel: nothing but explain itself.

Not here: what it means inside a kernel (``frontend.intrinsics``).
"""

from __future__ import annotations

from typing import NoReturn


class OutsideKernel(RuntimeError):
    """A kernel-language function was called by Python itself."""


def outside_kernel(name: str) -> NoReturn:
    """Raise ``OutsideKernel`` for the language function spelled ``name``."""
    raise OutsideKernel(
        f"{name} has a meaning only inside a kernel: decorate the function that calls it "
        "with @tilejit.jit, or call it from such a function"
    )
