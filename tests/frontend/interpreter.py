"""A one-thread interpreter of lowered IR: the frontend's tests ask what a kernel computes.

Written from the text of ``ir.nodes`` and independent of the simulator. Scalars and elements only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilejit import dtypes
from tilejit.ir import nodes as ir
from tilejit.ir import views

NUMPY = {
    "float16": np.float16, "float32": np.float32, "float64": np.float64,
}  # fmt: skip
STEPS = 200_000


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


class _Return(Exception):
    def __init__(self, value: Any = None):
        self.value = value


class AssertionTrap(Exception):
    """``device_assert`` failed."""


def normal(value: Any, dtype: dtypes.DType) -> Any:
    if dtype.kind == "bool":
        return bool(value)
    if dtype.is_integer:
        value = int(value) & ((1 << dtype.bits) - 1)
        return (
            value - (1 << dtype.bits)
            if dtype.kind == "int" and value >> (dtype.bits - 1)
            else value
        )
    if dtype.name == "bfloat16":
        bits = np.float32(value).view(np.uint32)
        return float(
            ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
        )
    with np.errstate(over="ignore"):
        return float(NUMPY[dtype.name](value))


class Thread:
    def __init__(self, ids: dict[str, int] | None = None):
        self.variables: dict[str, Any] = {}
        self.memory: dict[str, dict[int, Any]] = {}
        self.ids = ids or {}
        self.printed: list[str] = []
        self.steps = 0

    def run(self, function: ir.Function, arguments: dict[str, Any]) -> None:
        for param in function.params:
            value = arguments[param.name]
            if isinstance(param.type, ir.TensorType):
                self.memory[param.name] = dict(enumerate(value))
            else:
                self.variables[param.name] = value
        try:
            self.block(function.body)
        except _Return:
            pass
        for param in function.params:
            if isinstance(param.type, ir.TensorType):
                out = arguments[param.name]
                for i in range(len(out)):
                    out[i] = self.memory[param.name][i]

    def block(self, block: ir.Block) -> None:
        for statement in block:
            self.steps += 1
            assert self.steps < STEPS, "does not end"
            self.statement(statement)

    def statement(self, s: ir.Stmt) -> None:
        match s:
            case ir.Declare(var, value):
                self.variables.pop(var.name, None)
                if value is not None:
                    self.variables[var.name] = self.value(value)
            case ir.Assign(var, value):
                self.variables[var.name] = self.value(value)
            case ir.Store(view, indices, value):
                offset = self.value(views.element_offset(view, indices))
                self.memory.setdefault(view.buffer.name, {})[offset] = self.value(value)
            case ir.AllocTensor(buffer):
                self.memory[buffer.name] = {}
            case ir.If(condition, then, orelse):
                self.block(then if self.value(condition) else orelse)
            case ir.For(var, start, stop, step, body):
                bounds = [self.value(x) for x in (start, stop, step)]
                for i in range(*bounds):
                    self.variables[var.name] = i
                    try:
                        self.block(body)
                    except _Continue:
                        continue
                    except _Break:
                        break
                self.variables.pop(var.name, None)
            case ir.While(body):
                while True:
                    try:
                        self.block(body)
                    except _Continue:
                        continue
                    except _Break:
                        break
            case ir.Break():
                raise _Break
            case ir.Continue():
                raise _Continue
            case ir.Return(value):
                raise _Return(None if value is None else self.value(value))
            case ir.Evaluate(call):
                self.effect(call)

    def effect(self, call: ir.Call) -> None:
        if call.op == "device_assert" and not self.value(call.args[0]):
            raise AssertionTrap(call.args[1].value)
        if call.op == "ptx":
            self.raw(*call.args)
        if call.op == "print":
            self.printed.append(call.args[0].value.format(*(self.value(a) for a in call.args[1:])))

    def raw(self, name: ir.Text, operands: ir.Tuple, _: ir.Tuple) -> None:
        """``add.s32``, the one raw instruction there is here."""
        assert name.value == "add.s32"
        target, a, b = operands.items
        self.variables[target.name] = normal(self.value(a) + self.value(b), target.type.dtype)

    def value(self, e: Any) -> Any:
        match e:
            case ir.Const(value):
                return value
            case ir.Var(name):
                return self.variables[name]
            case ir.HardwareId(name):
                return self.ids.get(name, 0)
            case ir.Unary(op, operand):
                x = self.value(operand)
                table = {
                    "neg": lambda: -x,
                    "not": lambda: not x,
                    "invert": lambda: ~x,
                    "abs": lambda: abs(x),
                }
                return normal(table[op](), e.type.dtype)
            case ir.Binary(op, lhs, rhs):
                return normal(self.binary(op, self.value(lhs), self.value(rhs)), e.type.dtype)
            case ir.Select(condition, a, b):
                return self.value(a if self.value(condition) else b)
            case ir.Cast(operand):
                x = self.value(operand)
                if e.type.dtype.is_integer and isinstance(x, float):
                    low, high = dtypes.integer_range(e.type.dtype)
                    x = 0 if math.isnan(x) else min(max(x, low), high)
                return normal(x, e.type.dtype)
            case ir.Load(view, indices):
                return self.memory[view.buffer.name][
                    self.value(views.element_offset(view, indices))
                ]
            case ir.Call(op, args):
                x = [self.value(a) for a in args]
                if op == "math.sqrt":
                    return normal(math.sqrt(x[0]), e.type.dtype)
                if op == "math.fma":
                    return normal(x[0] * x[1] + x[2], e.type.dtype)
                if op == "math.pow":
                    return normal(x[0] ** x[1], e.type.dtype)
                if op == "cuda.elect_sync":
                    return True
                if op.startswith("cuda.shfl"):
                    return x[0]
        raise NotImplementedError(repr(e))

    def binary(self, op: str, a: Any, b: Any) -> Any:
        if op == "truediv" and b == 0:
            return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)
        return {
            "add": lambda: a + b, "sub": lambda: a - b, "mul": lambda: a * b,
            "truediv": lambda: a / b, "floordiv": lambda: a // b, "mod": lambda: a % b,
            "shl": lambda: a << b, "shr": lambda: a >> b, "bitand": lambda: a & b,
            "bitor": lambda: a | b, "bitxor": lambda: a ^ b, "lt": lambda: a < b,
            "le": lambda: a <= b, "gt": lambda: a > b, "ge": lambda: a >= b, "eq": lambda: a == b,
            "ne": lambda: a != b, "and": lambda: a and b, "or": lambda: a or b,
            "min": lambda: min(a, b), "max": lambda: max(a, b),
        }[op]()  # fmt: skip
