"""Predicates: setp, selp, testp. A predicate is a uint8 array of 0 and 1; any nonzero is true.

Ordered comparisons are false where an operand is NaN, the ones ending in ``u`` true. A packed
``setp`` gives the low half's predicate first. Not here: logic on predicates (``bitwise``).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilejit.sim.numeric.arithmetic import Operation, widened
from tilejit.sim.numeric.formats import BY_PTX_TYPE, Bits, FloatFormat, flushed, is_nan
from tilejit.sim.numeric.instruction import Instruction
from tilejit.sim.numeric.integer import typed

_COMPARE: dict[str, Callable[..., Bits]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def build(ins: Instruction) -> Operation:
    """The element operation of a selp, setp or testp."""
    if ins.mnemonic == "selp":
        return _selected
    fmt = BY_PTX_TYPE.get(ins.type.removesuffix("x2"))
    if ins.mnemonic == "testp":
        assert fmt is not None
        return _test(ins.rest[0], fmt)
    if fmt is not None:
        return _compare_floats(ins, fmt)
    compare, kind = _COMPARE[ins.rest[0]], ins.type
    return lambda a, b: compare(typed(a, kind), typed(b, kind)).astype(np.uint8)


def _selected(a: Bits, b: Bits, p: Bits) -> Bits:
    return np.where(p != 0, a, b)


def _compare_floats(ins: Instruction, fmt: FloatFormat) -> Operation:
    name = ins.rest[0]
    flush = ins.has("ftz")

    def run(a: Bits, b: Bits) -> Bits:
        if flush:
            a, b = flushed(a, fmt), flushed(b, fmt)
        unordered = is_nan(a, fmt) | is_nan(b, fmt)
        if name in ("num", "nan"):
            flag: Bits = (unordered == (name == "nan")).astype(np.uint8)
            return flag
        result = _COMPARE[name[:2]](widened(a, fmt), widened(b, fmt))
        return np.where(unordered, name.endswith("u"), result).astype(np.uint8)

    return run


def _test(name: str, fmt: FloatFormat) -> Operation:
    """``normal`` counts zeros, as the ISA says."""
    word = fmt.word
    infinity, least = word(fmt.infinity_code), word(1 << fmt.mantissa_bits)
    tests: dict[str, Callable[[Bits], Bits]] = {
        "finite": lambda x: x < infinity,
        "infinite": lambda x: x == infinity,
        "number": lambda x: x <= infinity,
        "notanumber": lambda x: x > infinity,
        "normal": lambda x: ((x >= least) & (x < infinity)) | (x == 0),
        "subnormal": lambda x: (x > 0) & (x < least),
    }
    test = tests[name]
    return lambda a: test(a & word(fmt.magnitude_code)).astype(np.uint8)
