"""Zero-column mask descriptors of tcgen05.mma.ws: which columns of B count as zeros.

64 bits describe runs of columns that are used and columns that are zeros, in turns, for each part of D's
columns that has lanes of its own (one, two or four of them with M=128, 64, 32).

Source: PTX ISA, "zero-column mask descriptor". Its table calls *skip span* what its examples show to be
the run of zeros, and *use span* the run of columns used; the examples are followed here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RESERVED_BITS = 7 << 36 | 3 << 62
_GENERATED = 1 << 39
"""Without this bit no column is zero, whatever the others say."""
_FIRST_SPAN, _SKIP_SPAN, _USE_SPAN, _SHIFT = 32, 40, 48, 56


def shift(bits: int) -> int:
    """How many columns later the first column of B lies."""
    return bits >> _SHIFT & 0x3F


def zeros(bits: int, n: int, parts: int) -> npt.NDArray[np.bool_] | None:
    """Whether each of n columns is zero; None where a start count passes the first run, of which the ISA
    does not say what it skips."""
    if not bits & _GENERATED:
        return np.zeros(n, np.bool_)
    used, zeroed = (1 + (bits >> at & 0xFF) for at in (_USE_SPAN, _SKIP_SPAN))
    width = n // parts
    found: list[npt.NDArray[np.bool_]] = []
    for part in range(parts):
        start, zero_first = bits >> 8 * part & 0xFF, bool(bits >> _FIRST_SPAN + part & 1)
        if start >= (zeroed if zero_first else used):
            return None
        at = (np.arange(width) + start) % (used + zeroed)
        found.append(at < zeroed if zero_first else at >= used)
    return np.concatenate(found)
