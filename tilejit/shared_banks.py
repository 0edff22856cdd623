"""Shared memory's 32 banks of 4-byte words: how many wavefronts a warp's words need.

Not here: which words an instruction asks for (``tile.banks``), pictures of layouts (``pictures``).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

BANKS = 32
WORD_BYTES = 4


def busiest(words: IntArray, wanted: BoolArray) -> IntArray:
    """By phase (row): the most different words that are wanted of one bank, which is its wavefronts."""
    phases = words.shape[0]
    least, span = int(words.min()), int(np.ptp(words)) + 1
    different = np.unique(np.nonzero(wanted)[0] * span + words[wanted] - least)
    bank = different // span * BANKS + (different % span + least) % BANKS
    counts: IntArray = np.bincount(bank, minlength=phases * BANKS).astype(np.int64)
    most: IntArray = counts.reshape(phases, BANKS).max(axis=1)
    return most
