"""What one CTA of a launch asks of its multiprocessor, by resource: amounts, not times.

Sums over the instructions of ``tile.issue_counts``: each weighted by how often it is reached and by how many
threads, warps or warpgroups issue it, guarded ones in full. A CTA of a cluster has its share of the cluster's.

Not here: how much of a resource a GPU has per cycle (``tune.model``); bank conflicts (``tile.banks``), caches,
and whatever the compiler decides: address arithmetic, registers, spills.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilejit.dtypes import DType
from tilejit.ir import nodes, walk
from tilejit.ir.tensor_map import FORMATS, TensorMapSpec
from tilejit.ptx import tcgen05_shapes
from tilejit.ptx.forms import TYPE_BITS, Form
from tilejit.tile import instruction_descriptor
from tilejit.tile.checker import Checked
from tilejit.tile.family import (
    Immediate,
    Issue,
    NativeOperand,
    Registers,
    ScalarApply,
    TensorBox,
    Value,
)
from tilejit.tile.issue_counts import (
    UNIT_THREADS,
    Loop,
    Placed,
    bindings,
    evaluated,
    loop_rounds,
    placements,
    unit_of,
)

ISSUE = "issue"
"""Warp instructions."""
L1 = "l1"
"""Cycles of the path to shared memory and the first-level cache: 128 bytes each, at least one an instruction."""
L2 = "l2_bytes"
"""Bytes from and to global memory, asynchronous copies included."""
TENSOR = "tensor_"
"""Prefix of the floating-point or integer operations of products, by the type of A."""
ARITHMETIC = ("float16", "float32", "float64", "integer", "special", "convert")
"""Results of ordinary instructions, one per thread, two for a packed one."""

_LANE_CYCLE_BYTES = 128
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)")
_MATRIX_CLASS = {
    "f16": "16", "bf16": "16", "tf32": "tf32", "f64": "64", "b1": "1",
    **dict.fromkeys(("e4m3", "e5m2", "s8", "u8", "e2m3", "e3m2", "i8", "f8f6f4", "mxf8f6f4"), "8"),
    **dict.fromkeys(("s4", "u4", "e2m1", "mxf4", "mxf4nvf4"), "4"),
}  # fmt: skip
"""Types and kinds of A by what sets their rate: the bits of an element, but for tf32."""
_SPECIAL = frozenset(("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "div"))
_ARITHMETIC = frozenset((
    "add", "sub", "mul", "fma", "mad", "min", "max", "abs", "neg", "and", "or", "xor", "not",
    "cnot", "shl", "shr", "shf", "lop3", "prmt", "popc", "clz", "brev", "bfind", "bfe", "bfi",
    "bmsk", "sad", "setp", "selp", "copysign", "rem", "dp4a", "szext", "testp",
))  # fmt: skip
_PLAIN_MATH = frozenset(
    ("math.fma", "math.floor", "math.ceil", "math.trunc", "math.rint", "math.isnan", "math.isinf")
)
_PRODUCTS = frozenset(("mma", "mma_async"))
_MOVES = frozenset(("ld", "st", "ldmatrix", "stmatrix", "atom", "red"))


@dataclass(slots=True)
class Work:
    """``amounts``: of each resource, per CTA. ``waits``: how many times in a row the busiest thread waits for
    global memory that an ordinary load reads. ``copied_bytes``: what asynchronous copies bring, per CTA.
    ``rounds``: how often the innermost loop of all runs. ``unknown``: loops whose rounds the launch does not
    say, counted as one, and products whose size it does not."""

    amounts: dict[str, float]
    waits: int = 0
    copied_bytes: float = 0.0
    rounds: int = 1
    unknown: tuple[str, ...] = ()


def work(checked: Checked, values: Mapping[str, int]) -> Work:
    """The work of the launch's first CTA; ``values`` as of ``issue_counts.trips``."""
    function = checked.function
    total = _Total(values, bindings(function), function.launch.cluster_ctas)
    for placed in placements(checked):
        total.add(placed)
    return total.work()


@dataclass(slots=True)
class _Total:
    values: Mapping[str, int]
    bound: Mapping[str, nodes.Expr]
    ctas: int
    amounts: dict[str, float] = field(default_factory=dict)
    copied_bytes: float = 0.0
    reading: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Rounds of the loops that ordinary loads of global memory stand in."""
    rounds: int = 1
    unknown: dict[str, None] = field(default_factory=dict)

    def work(self) -> Work:
        waits = sum(self.reading.values())
        return Work(self.amounts, waits, self.copied_bytes, self.rounds, tuple(self.unknown))

    def add(self, placed: Placed) -> None:
        times = self._times(placed.loops)
        self.rounds = max(self.rounds, times)
        self._count(ISSUE, placed.warps * times)
        match placed.what:
            case Issue():
                self._issue(placed, placed.what, times)
            case ScalarApply(function=function):
                for node in walk.descend(function.body):
                    for kind in _kinds(node):
                        self._count(kind, placed.threads * times)
            case nodes.Load(view=view) | nodes.Store(view=view):
                self._moved(placed, view.space, view.dtype.bytes, times)
                if isinstance(placed.what, nodes.Load) and view.space == "global":
                    self._reads(placed, times)
            case operation:
                for kind in _kinds(operation):
                    self._count(kind, placed.threads * times)

    def _count(self, resource: str, of_cluster: float) -> None:
        self.amounts[resource] = self.amounts.get(resource, 0.0) + of_cluster / self.ctas

    def _times(self, loops: tuple[Loop, ...]) -> int:
        product = 1
        for loop in loops:
            rounds = loop_rounds(loop, self.values)
            if rounds is None:
                self.unknown[f"rounds of {_named(loop)}"] = None
            product *= 1 if rounds is None else rounds
        return product

    def _reads(self, placed: Placed, times: int) -> None:
        self.reading[tuple(id(loop) for loop in placed.loops)] = times

    def _moved(self, placed: Placed, space: str, nbytes: int, times: int) -> None:
        """``nbytes`` by each thread."""
        lanes = placed.threads / placed.warps
        cycles = max(1.0, nbytes * lanes / _LANE_CYCLE_BYTES)
        self._count(L1, cycles * placed.warps * times)
        if space in ("", "global"):
            self._count(L2, nbytes * placed.threads * times)

    def _issue(self, placed: Placed, issue: Issue, times: int) -> None:
        form = issue.form
        if form.mnemonic in _MOVES and "async" not in form.modifiers:
            space = next(spec.space for spec in form.operands if spec.kind == "addr")
            self._moved(placed, space, _register_bytes(form), times)
            if form.mnemonic in ("ld", "atom") and space in ("", "global"):
                self._reads(placed, times)
        elif form.mnemonic in ("cp", "st") or "bulk" in form.modifiers:
            self._copied(placed, issue, times)
        elif any(m in _PRODUCTS for m in (form.mnemonic, *form.modifiers)):
            self._product(placed, issue, times)
        else:
            for kind, results in _arithmetic(form).items():
                self._count(kind, results * placed.threads * times)

    def _copied(self, placed: Placed, issue: Issue, times: int) -> None:
        """Asynchronous copies with a size; commits and waits have none."""
        if not any(spec.space == "global" or spec.kind == "map" for spec in issue.form.operands):
            return
        nbytes = self._copy_bytes(issue)
        if nbytes is None:
            self.unknown[f"the size of {issue.form.spelling}"] = None
            return
        moved = nbytes * placed.threads * times
        self._count(L2, moved)
        destination = issue.form.operands[0]
        if destination.kind == "addr" and destination.space.startswith("shared"):
            self.copied_bytes += moved / self.ctas

    def _copy_bytes(self, issue: Issue) -> int | None:
        for operand in issue.operands:
            if isinstance(operand, TensorBox):
                return _box_bytes(operand.map) if isinstance(operand.map, TensorMapSpec) else None
        size = next((i for i, s in enumerate(issue.form.operands) if s.name == "chunk_bytes"), None)
        return 0 if size is None else self._number(issue.operands[size])

    def _number(self, operand: NativeOperand) -> int | None:
        match operand:
            case Immediate(value=value):
                return value
            case Registers(items=(Value(expr=expr),)):
                return evaluated(expr, self.values, self.bound)
        return None

    def _product(self, placed: Placed, issue: Issue, times: int) -> None:
        found = _product(issue.form) or self._descriptor_product(issue)
        if found is None:
            self.unknown[f"the size of {issue.form.spelling}"] = None
            return
        kind, operations = found
        units = -(-placed.threads // UNIT_THREADS[unit_of(placed)])
        self._count(kind, operations * units * times)

    def _descriptor_product(self, issue: Issue) -> tuple[str, int] | None:
        """tcgen05.mma: M and N stand in the instruction descriptor."""
        form = issue.form
        name = next((m[6:] for m in form.modifiers if m.startswith("kind::")), "")
        kind = tcgen05_shapes.KINDS.get(name)
        at = next((i for i, spec in enumerate(form.operands) if spec.name == "idesc"), None)
        bits = None if at is None else self._number(issue.operands[at])
        if kind is None or bits is None:
            return None
        what = instruction_descriptor.decode(kind, bits)
        if what is None:
            return None
        depth = kind.shapes[0].k
        return TENSOR + _MATRIX_CLASS[name], 2 * what.m * what.n * depth


def _named(loop: Loop) -> str:
    kind = "the while loop" if loop.rounds is None else "the loop"
    return kind if loop.span is None else f"{kind} of line {loop.span.line}"


def _register_bytes(form: Form) -> int:
    """What one thread moves: the first group of registers."""
    spec = next(spec for spec in form.operands if spec.kind == "reg")
    return spec.lanes * max(8, spec.bits) // 8


def _box_bytes(spec: TensorMapSpec) -> int:
    elements = math.prod(-(-n // step) for n, step in zip(spec.box, spec.element_strides))
    return elements * FORMATS[spec.format].bits // 8


def _product(form: Form) -> tuple[str, int] | None:
    """Resource and operations of a product whose opcode says its size."""
    found = next((m for m in map(_SHAPE.fullmatch, form.modifiers) if m), None)
    if found is None:
        return None
    types = [m for m in form.modifiers if m in _MATRIX_CLASS]
    # D's type, A's and B's; D's is not in the list where it is f32 or s32, and B's is of A's width.
    kind = types[1]
    m, n, k = map(int, found.groups())
    return TENSOR + _MATRIX_CLASS[kind], 2 * m * n * k


def _arithmetic(form: Form) -> Mapping[str, int]:
    """Results per thread of an ordinary instruction."""
    if form.mnemonic == "cvt":
        return {"convert": 1}
    type_ = next((m for m in reversed(form.modifiers) if m in TYPE_BITS), "b32")
    packed = 2 if type_.endswith("x2") else 1
    if form.mnemonic in _SPECIAL:
        return {"special": packed}
    if form.mnemonic not in _ARITHMETIC:
        return {}
    if type_ == "f64":
        return {"float64": 1}
    if type_ in ("f16", "bf16", "f16x2", "bf16x2"):
        return {"float16": packed}
    return {"float32" if type_ in ("f32", "f32x2") else "integer": packed}


def _kinds(node: Any) -> tuple[str, ...]:
    """The resource of one operation; none of what is no arithmetic."""
    match node:
        case nodes.Cast():
            return ("convert",)
        case nodes.Call(op=op) if op in _PLAIN_MATH:
            return (_class(node.type),)
        case nodes.Call(op=op) if op.startswith("math."):
            return ("special",)
        case nodes.Unary() | nodes.Select():
            return (_class(node.type),)
        case nodes.Binary(op=op):
            return ("special" if op == "truediv" else _class(node.lhs.type),)
    return ()


def _class(type_: nodes.Type) -> str:
    if not isinstance(type_, nodes.ScalarType):
        return "integer"
    dtype: DType = type_.dtype
    if not dtype.is_float:
        return "integer"
    return {64: "float64", 16: "float16"}.get(dtype.bits, "float32")
