"""Hand-made checked programs: IR nodes in short spelling and a stand-in for ``tile.checker.Checked``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Span
from tilejit.ir import nodes as ir
from tilejit.ir import views
from tilejit.layout import row_major
from tilejit.ptx import spelling
from tilejit.ptx.forms import Form
from tilejit.tile.family import (
    Immediate,
    Issue,
    Memory,
    Register,
    Registers,
    Step,
    Value,
    Variable,
)

TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_103a", "sm_120a")
GLOBAL, SHARED, LOCAL = (ir.PointerType(s) for s in ("global", "shared", "local"))


@dataclass
class Program:
    """A checked function under construction."""

    body: list[ir.Stmt] = field(default_factory=list)
    params: list[ir.Var] = field(default_factory=list)
    target: str = "sm_90a"
    launch: ir.LaunchConfig = field(default_factory=lambda: ir.LaunchConfig(None, (128,)))
    name: str = "kernel"
    _steps: dict[int, tuple[ir.Call, tuple[Step, ...]]] = field(default_factory=dict)

    @property
    def function(self) -> ir.Function:
        return ir.Function(
            self.name, tuple(self.params), self.launch, tuple(self.body), self.target
        )

    def steps(self, call: ir.Call) -> tuple[Step, ...]:
        return self._steps[id(call)][1]

    def apply(self, *steps: Step, op: str = "ptx") -> ir.Evaluate:
        """A statement with these native steps."""
        call = ir.Call(op, (ir.Text("x"), ir.Tuple(()), ir.Tuple(())))
        self._steps[id(call)] = (call, steps)
        return ir.Evaluate(call)

    def add(self, *statements: ir.Stmt | Step) -> Program:
        for s in statements:
            self.body.append(self.apply(s) if isinstance(s, Issue) else s)
        return self

    def param(self, name: str, dtype: DType, shape: tuple[int, ...] | None = None) -> ir.Var:
        kind: ir.Type = ir.ScalarType(dtype)
        if shape is not None:
            kind = ir.TensorType(shape, dtype, row_major(shape), "global", 16)
        var = ir.Var(name, kind)
        self.params.append(var)
        return var

    def local(self, name: str, dtype: DType, count: int, space: ir.Space = "local") -> ir.Var:
        var = ir.Var(name, ir.TensorType((count,), dtype, row_major((count,)), space, 16))
        self.body.append(ir.AllocTensor(var))
        return var


def form(text: str, operands: int | None = None) -> Form:
    forms = spelling.lookup(text)
    return next(f for f in forms if operands in (None, len(f.operands)))


def const(value: int | float | bool, dtype: DType = dtypes.int32) -> ir.Const:
    return ir.Const(value, ir.ScalarType(dtype))


def var(name: str, dtype: DType = dtypes.int32) -> ir.Var:
    return ir.Var(name, ir.ScalarType(dtype))


def binary(op: ir.BinaryOp, a: ir.Expr, b: ir.Expr) -> ir.Binary:
    compare = op in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or")
    assert isinstance(a.type, ir.ScalarType)
    return ir.Binary(op, a, b, ir.BOOL if compare else a.type)


def load(buffer: ir.Var, *indices: ir.Expr) -> ir.Load:
    view = views.whole(buffer)
    return ir.Load(view, indices, ir.ScalarType(view.dtype))


def store(buffer: ir.Var, index: ir.Expr | int, value: ir.Expr) -> ir.Store:
    index = const(index) if isinstance(index, int) else index
    return ir.Store(views.whole(buffer), (index,), value)


def regs(buffer: ir.Var, dtype: DType, *slots: int) -> Registers:
    return Registers(tuple(Register(buffer, s, dtype) for s in slots))


def values(*exprs: ir.Expr) -> Registers:
    return Registers(tuple(Value(e) for e in exprs))


def variables(*items: ir.Var | None) -> Registers:
    return Registers(tuple(Variable(v) if v is not None else None for v in items))


def at(buffer: ir.Var, offset: int | ir.Expr = 0, imm: int = 0) -> Memory:
    assert isinstance(buffer.type, ir.TensorType)
    space = buffer.type.space
    offset = const(offset, dtypes.int64) if isinstance(offset, int) else offset
    return Memory(ir.Address(buffer, offset, ir.PointerType(space)), imm, space)


def issue(text: str, *operands: Registers | Memory | Immediate, **more: object) -> Issue:
    return Issue(form(text, len(operands)), operands, **more)  # type: ignore[arg-type]


def span(line: int, file: str = "/user/kernel.py") -> Span:
    return Span(file, line)


def instructions(ptx: str) -> list[str]:
    """PTX instructions, without directives, labels and comments."""
    found = []
    for line in ptx.splitlines():
        line = line.split("//")[0].strip()
        if line and line[0] not in ".{}$()" and not line.endswith(":"):
            found.append(re.sub(r"\s+", " ", line))
        elif line.startswith("{."):
            found.append(line)
    return found


def count(ptx: str, opcode: str) -> int:
    """Occurrences of an exact opcode."""
    return len(re.findall(rf"(?<![\w.:]){re.escape(opcode)}(?![\w.:])", ptx))
