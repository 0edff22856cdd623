"""What an asynchronous reduction makes of the bytes at its destination, element by element.

The operations are those of the register instructions of that name, with the rounding and NaN rules that
the PTX ISA gives reductions. Sums keep subnormals. The ISA has those of f32 in global memory flush them;
an H200 keeps them (1e-40 + 1e-40 = 2e-40).
Not here: ``atom`` and ``red``, which take turns lane by lane (``families.atom_red``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tilejit.ptx.forms import TYPE_BITS, Form
from tilejit.ptx.spelling import lookup
from tilejit.sim.numeric import compute
from tilejit.tile.family import BitArray, Combine

_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def element_bytes(form: Form) -> int:
    """Size of one element of a reduction: its type is the last modifier."""
    return TYPE_BITS[form.modifiers[-1]] // 8


def combine(form: Form) -> Combine:
    """(old bytes, new bytes) -> result of the reduction that ``form`` names, on whole elements."""
    return combination(next(m for m in form.modifiers if m in _OPERATIONS), form.modifiers[-1])


def combination(name: str, type_: str) -> Combine:
    """The same of an operation's name and a PTX type."""
    function = _function(name, type_)
    word = np.dtype(f"<u{TYPE_BITS[type_] // 8}")

    def run(old: npt.NDArray[np.uint8], new: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        sides = (np.ascontiguousarray(side).view(word) for side in (old, new))
        return np.ascontiguousarray(function(*sides), word).view(np.uint8)

    return run


def _function(name: str, type_: str) -> Callable[[BitArray, BitArray], BitArray]:
    if name in ("inc", "dec"):
        return _incremented if name == "inc" else _decremented
    rules = ".rn" if name == "add" and type_ in ("f32", "f64") else ""
    spelling = f"{name}{rules}.{type_}"
    register_form = next(f for f in lookup(spelling) if len(f.operands) == 3)
    return lambda old, new: compute(register_form, [old, new])[0]


def _incremented(old: BitArray, limit: BitArray) -> BitArray:
    value, most = old.astype(np.uint32), limit.astype(np.uint32)
    return np.where(value >= most, np.uint32(0), value + np.uint32(1))


def _decremented(old: BitArray, limit: BitArray) -> BitArray:
    value, most = old.astype(np.uint32), limit.astype(np.uint32)
    return np.where((value == 0) | (value > most), most, value - np.uint32(1))
