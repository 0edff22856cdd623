"""Raw atomics: atom and red on global and shared memory.

Each lane's read-modify-write is one step of the machine; lanes take turns in an order that a program
may not rely on. Not here: spellings (``ptx.tables.atom_red``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tilejit.ptx.forms import Form, OperandSpec
from tilejit.ptx.spelling import lookup
from tilejit.sim import numeric
from tilejit.tile.family import BitArray, Issue, Machine
from tilejit.tile.raw_only import raw_family

Bytes = npt.NDArray[np.uint8]

FLOATS = ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2")


def execute(issue: Issue, machine: Machine) -> None:
    """Old values of each lane's words; new ones by the operation; ``atom`` returns the old."""
    form = issue.form
    specs = dict(zip((s.name for s in form.operands), form.operands))
    operands = dict(zip((s.name for s in form.operands), issue.operands))
    spec = specs["a"]
    width = spec.bits // 8
    shape = machine.active().shape
    arguments = [
        [np.broadcast_to(v, shape) for v in machine.read(operands[name])]
        for name in ("b", "c")
        if name in operands
    ]
    operation = _operation(form)

    def update(lane: tuple[int, int], old: Bytes) -> Bytes:
        words = np.ascontiguousarray(old).view(np.dtype(f"<u{width}"))
        given = [[word[lane] for word in argument] for argument in arguments]
        new = [operation(spec, word, [g[i] for g in given]) for i, word in enumerate(words)]
        return np.array(new, dtype=words.dtype).view(np.uint8)

    before = machine.atomic(operands["a"], spec.lanes * width, update)
    if "d" in operands:
        words = np.ascontiguousarray(before).view(np.dtype(f"<u{width}"))
        machine.write(operands["d"], [words[..., i] for i in range(spec.lanes)])


_Operation = Callable[[OperandSpec, np.generic, list[np.generic]], int]


def _operation(form: Form) -> _Operation:
    names = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas")
    name = next(m for m in form.modifiers if m in names)
    return {
        "exch": lambda spec, old, given: int(given[0]),
        "cas": lambda spec, old, given: int(given[1]) if old == given[0] else int(old),
        "inc": lambda spec, old, given: 0 if int(old) >= int(given[0]) else int(old) + 1,
        "dec": _decremented,
    }.get(name) or (lambda spec, old, given: _combined(name, spec.type, old, given[0]))


def _decremented(spec: OperandSpec, old: np.generic, given: list[np.generic]) -> int:
    value, limit = int(old), int(given[0])
    return limit if value == 0 or value > limit else value - 1


def _combined(name: str, type_: str, old: np.generic, given: np.generic) -> int:
    """``old op given`` in the operand's type, as bits."""
    if type_ in FLOATS:
        return _float_combined(name, type_, old, given)
    bits = int(type_[1:])
    a, b = int(old), int(given)
    if type_[0] == "s":
        a, b = (v - (1 << bits) if v >> (bits - 1) else v for v in (a, b))
    result = {
        "add": a + b, "min": min(a, b), "max": max(a, b), "and": a & b, "or": a | b, "xor": a ^ b,
    }[name]  # fmt: skip
    return result & ((1 << bits) - 1)


def _float_combined(name: str, type_: str, old: np.generic, given: np.generic) -> int:
    """Through the register instruction of that name and type: the same rounding and NaN rules."""
    rounding = ".rn" if name == "add" and type_ in ("f32", "f64") else ""
    form = next(f for f in lookup(f"{name}{rounding}.{type_}") if len(f.operands) == 3)
    inputs: list[BitArray] = [np.asarray([old]), np.asarray([given])]
    return int(numeric.compute(form, inputs)[0][0])


FAMILY = raw_family("atom_red", "docs/contract/raw.md", execute, "yes")
