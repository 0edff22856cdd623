"""What register instructions compute, bit by bit, on arrays of registers.

``compute`` takes and gives unsigned integers, one array per register; ``to_value`` and ``to_bits``
are the codecs of the dtypes. Results follow the PTX ISA exactly, except for the approximate
instructions (``approximate`` says how) and what the ISA leaves unspecified (division by zero).

Not modelled, raising ``Unmodelled``: ``cvt.rs``, ``mov.b128``, and whatever is not in the table.
Not here: memory, predication, who is active (the simulator), which spellings exist (``ptx``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from tilejit.ptx.forms import TYPE_BITS, Form
from tilejit.sim.numeric import (
    approximate,
    arithmetic,
    bitwise,
    convert,
    extrema,
    integer,
    move,
    predicate,
)
from tilejit.sim.numeric.arithmetic import Operation
from tilejit.sim.numeric.codec import to_bits, to_value
from tilejit.sim.numeric.formats import BY_PTX_TYPE, WORDS, Bits
from tilejit.sim.numeric.instruction import Instruction, Unmodelled, parse
from tilejit.tile.family import BitArray

__all__ = ["Unmodelled", "compute", "to_bits", "to_value"]

_Registers: TypeAlias = Callable[[list[Bits]], list[Bits]]

_PREDICATES = frozenset({"setp", "selp", "testp"})
_BITS = frozenset(
    {"and", "or", "xor", "not", "cnot", "lop3", "shl", "shr", "shf", "prmt", "popc", "clz", "brev",
     "bfind", "bfe", "bfi", "bmsk", "szext", "copysign"}
)  # fmt: skip
_INTEGERS = frozenset(
    {"add", "sub", "mul", "mad", "div", "rem", "min", "max", "abs", "neg", "sad", "dp4a"}
)
_ROUNDED = frozenset({"add", "sub", "mul", "fma", "div", "rcp", "sqrt"})
_APPROXIMATE = frozenset({"ex2", "lg2", "tanh", "sin", "cos", "rsqrt", "rcp", "sqrt", "div"})


def compute(form: Form, inputs: list[BitArray]) -> list[BitArray]:
    """The registers that ``form`` writes, from those it reads.

    ``inputs``: one unsigned-integer array per register read, in operand order, brace groups
    flattened; predicates (0 and 1) and immediates count as registers; one wider than its operand
    loses its high bits. Shapes broadcast together; the outputs, one per register written, have the
    common shape and may share memory with inputs. ``Unmodelled`` when there is no model of the
    form; ``ValueError`` for a wrong number of inputs.
    """
    run, words = _compiled(form)
    if len(inputs) != len(words):
        raise ValueError(f"{form.spelling} reads {len(words)} registers, given {len(inputs)}")
    given = [np.asarray(x).astype(word, copy=False) for x, word in zip(inputs, words)]
    shape = np.broadcast_shapes(*(x.shape for x in given))
    # A view that broadcasts costs as much as most models do.
    flat = [np.atleast_1d(x if x.shape == shape else np.broadcast_to(x, shape)) for x in given]
    with np.errstate(all="ignore"):
        return [result.reshape(shape) for result in run(flat)]


@lru_cache(maxsize=4096)
def _compiled(form: Form) -> tuple[_Registers, tuple[type[np.unsignedinteger[Any]], ...]]:
    """The function of a form, and the container of each register it reads."""
    read = [spec for spec in form.operands if "r" in spec.direction]
    words = tuple(_container(spec.kind, spec.bits) for spec in read for _ in range(spec.lanes))
    return _registers(parse(form)), words


def _container(kind: str, bits: int) -> type[np.unsignedinteger[Any]]:
    if kind == "imm":
        return np.uint32
    return WORDS.get(max(bits, 8), np.uint64)


def _registers(ins: Instruction) -> _Registers:
    if ins.mnemonic == "mov":
        return move.build(ins)
    if ins.mnemonic == "cvt":
        convert_registers = convert.build(ins)
        return lambda inputs: [convert_registers(*inputs)]
    operation = _operation(ins)
    if not ins.type.endswith("x2"):
        return lambda inputs: [operation(*inputs)]
    part = integer.unsigned_type(ins.type)
    written = [spec for spec in ins.form.operands if "w" in spec.direction]
    if len(written) > 1:
        return lambda inputs: _separate(operation, inputs, part)
    return lambda inputs: [_together(operation, inputs, part)]


def _together(
    operation: Operation, inputs: list[Bits], part: type[np.unsignedinteger[Any]]
) -> Bits:
    """A packed instruction on its elements: they lie side by side in memory, low first."""
    halves = [np.ascontiguousarray(x).view(part) for x in inputs]
    return np.ascontiguousarray(operation(*halves)).view(inputs[0].dtype)


def _separate(
    operation: Operation, inputs: list[Bits], part: type[np.unsignedinteger[Any]]
) -> list[Bits]:
    """As ``_together``, one result register per element."""
    halves = [np.ascontiguousarray(x).view(part) for x in inputs]
    result = operation(*halves)
    return [result[..., 0::2], result[..., 1::2]]


def _operation(ins: Instruction) -> Operation:
    """The element operation of everything but mov and cvt."""
    name = ins.mnemonic
    if name in _PREDICATES:
        return predicate.build(ins)
    if name in _BITS:
        return bitwise.build(ins)
    if ins.type.removesuffix("x2") not in BY_PTX_TYPE:
        if name in _INTEGERS and TYPE_BITS.get(ins.type):
            return integer.build(ins)
        raise ins.unmodelled()
    if name in ("min", "max"):
        return extrema.build(ins)
    if name in ("abs", "neg"):
        return arithmetic.build_sign(ins)
    if name in _APPROXIMATE and (ins.has("approx") or ins.has("full")):
        return approximate.build(ins)
    if name in _ROUNDED:
        return arithmetic.build(ins)
    raise ins.unmodelled()
