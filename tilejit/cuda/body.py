"""Statements of a kernel (and of ``ewise`` functions) as C++ text.

Rolled loops say ``unroll 1``; loops marked ``unroll`` are written out with their variable a
number, so that the registers they index stay named. Not here: the function around the body
(``kernel``), expressions (``scalars``), instructions (``asm``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tilejit.cuda import cxx, intrinsics, ranges
from tilejit.cuda.asm import Assembly
from tilejit.cuda.helpers import Helpers
from tilejit.cuda.memory import Memory
from tilejit.cuda.ranges import Interval, Known
from tilejit.cuda.registers import Registers
from tilejit.cuda.scalars import Piece, Scalars, unsupported
from tilejit.cuda.writer import Names, Silent, Writer
from tilejit.ir import nodes, ops, walk
from tilejit.tile.family import Issue, Let, Register, ScalarApply, Step, Value

_ROLLED = '_Pragma("unroll 1") '
"""On the loop's own line, where a ``#line`` directive cannot come between."""


class CheckedProgram(Protocol):
    """What emission needs of ``tile.checker.Checked``."""

    @property
    def function(self) -> nodes.Function: ...

    def steps(self, call: nodes.Call) -> tuple[Step, ...]:
        """Native steps of a structural call, found by the call's identity."""
        ...


class Body:
    """Writes the statements of one function once."""

    def __init__(
        self,
        checked: CheckedProgram,
        assigned: frozenset[str],
        names: Names,
        registers: Registers,
    ):
        function = checked.function
        self.checked = checked
        self.assigned = assigned
        self.names = names
        self.registers = registers
        self.writer = Silent() if registers.recording else Writer()
        self.helpers = Helpers()
        self.known = Known(function.launch, function.target)
        self.scalars = Scalars(names, self.helpers, self.known)
        self.memory = Memory(self.scalars, registers)
        self.assembly = Assembly(self.scalars, registers, self.memory, self.writer)
        self.scalars.load = self.memory.load
        self.scalars.address = self.memory.address
        self.scalars.call = lambda e: intrinsics.expression(self.scalars, e)
        self._labels = 0
        self._breaks: list[str | None] = []
        """Per enclosing loop: the label that leaves it, None where ``break`` does."""
        self._continues: list[str] = []
        self._result: str | None = None
        """Inside an ``ewise`` function: the variable that takes its value."""
        self._writers: dict[type, Callable[[Any], None]] = {
            nodes.Declare: self._declare, nodes.Assign: self._assign, nodes.Store: self._store,
            nodes.AllocTensor: self._alloc, nodes.DeclTmem: self._decl_tmem, nodes.If: self._if,
            nodes.For: self._for, nodes.While: self._while, nodes.Break: self._break,
            nodes.Continue: self._continue, nodes.Return: self._return, nodes.Evaluate: self._evaluate,
        }  # fmt: skip

    def block(self, block: nodes.Block) -> None:
        """The statements of a block, in a scope of their own for declarations."""
        self.registers.enter()
        for statement in block:
            self.writer.span(statement.span)
            self._writers[type(statement)](statement)
        self.registers.leave()

    # --- variables

    def _declare(self, s: nodes.Declare) -> None:
        name, kind = self.names[s.var.name], cxx.type_name(s.var.type)
        if s.value is None:
            self.writer.line(f"{kind} {name};")
            return
        piece = self.scalars.piece(s.value)
        constant = self._learn(s.var, piece)
        self.writer.line(f"{'const ' if constant else ''}{kind} {name} = {piece.text};")

    def _learn(self, var: nodes.Var, value: Piece) -> bool:
        """Remembers the interval of a variable that never changes; whether it is one."""
        if var.name in self.assigned:
            return False
        self.known.variables.pop(var.name, None)
        if value.interval is not None:
            self.known.variables[var.name] = value.interval
        return True

    def _assign(self, s: nodes.Assign) -> None:
        self.writer.line(f"{self.names[s.var.name]} = {self.scalars.text(s.value)};")

    def _store(self, s: nodes.Store) -> None:
        self.writer.line(self.memory.store(s.view, s.indices, self.scalars.text(s.value), s.span))

    def _alloc(self, s: nodes.AllocTensor) -> None:
        assert isinstance(s.buffer.type, nodes.TensorType)
        if s.buffer.type.space == "shared":
            self.memory.allocate_shared(s.buffer)
        elif s.buffer.type.space == "local":
            self.registers.name(s.buffer, self.names[s.buffer.name])
            self.registers.declare(s.buffer, self.writer)

    def _decl_tmem(self, s: nodes.DeclTmem) -> None:
        kind, name = cxx.pointer_ctype("tmem"), self.names[s.buffer.name]
        self.writer.line(f"const {kind} {name} = {self.scalars.text(s.address)};")

    # --- control

    def _if(self, s: nodes.If) -> None:
        known = self.scalars.value(s.condition)
        if known is not None:
            # Decided by intervals alone; the checker has seen both branches.
            branch = s.then if known else s.orelse
            if branch:
                self.writer.open("")
                self.block(branch)
                self.writer.close()
            return
        self.writer.open(f"if ({self.scalars.text(s.condition)})")
        self.block(s.then)
        if s.orelse:
            self.writer.middle("else")
            self.block(s.orelse)
        self.writer.close()

    def _for(self, s: nodes.For) -> None:
        if s.unroll:
            self._unrolled(s)
            return
        start, stop = self.scalars.piece(s.start), self.scalars.piece(s.stop)
        assert start.interval is not None and stop.interval is not None
        step = int(s.step.value)
        inside = (
            Interval(start.interval.low, max(start.interval.low, stop.interval.high - 1))
            if step > 0
            else Interval(min(start.interval.high, stop.interval.low + 1), start.interval.high)
        )
        self.known.variables[s.var.name] = inside
        assert isinstance(s.var.type, nodes.ScalarType)
        dtype = s.var.type.dtype
        overshoot = Interval(
            stop.interval.low + min(step, 0), stop.interval.high + max(step, 0) - 1
        )
        fits = overshoot.fits(dtype)
        header = self._plain_header if fits else self._counted_header
        self.writer.open(_ROLLED + header(s, start.text, stop.text, step))
        self._loop_body(s.body)
        self.writer.close()

    def _plain_header(self, s: nodes.For, start: str, stop: str, step: int) -> str:
        name, kind = self.names[s.var.name], cxx.type_name(s.var.type)
        sign = "<" if step > 0 else ">"
        move = (
            f"++{name}" if step == 1 else f"{name} += {step}" if step > 0 else f"{name} -= {-step}"
        )
        if isinstance(s.stop, nodes.Const) or (
            isinstance(s.stop, nodes.Var) and s.stop.name not in self.assigned
        ):
            return f"for ({kind} {name} = {start}; {name} {sign} {stop}; {move})"
        end = f"tj_end{self._label()}"
        return f"for ({kind} {name} = {start}, {end} = {stop}; {name} {sign} {end}; {move})"

    def _counted_header(self, s: nodes.For, start: str, stop: str, step: int) -> str:
        """Counts rounds, because the variable itself could run past its type's end."""
        name, kind = self.names[s.var.name], cxx.type_name(s.var.type)
        assert isinstance(s.var.type, nodes.ScalarType)
        wide = "u64" if s.var.type.dtype.bits == 64 else "u32"
        label = self._label()
        first, end, rounds = f"tj_first{label}", f"tj_end{label}", f"tj_rounds{label}"
        self.writer.line(f"const {kind} {first} = {start}, {end} = {stop};")
        low, high = (first, end) if step > 0 else (end, first)
        self.writer.line(
            f"{kind} {name} = {first}; {wide} {rounds} = {low} < {high} ? "
            f"(({wide}){high} - ({wide}){low} - 1) / {abs(step)} + 1 : 0;"
        )
        moved = f"{name} = ({kind})(({wide}){name} {'+' if step > 0 else '-'} {abs(step)})"
        return f"for (; {rounds} != 0; --{rounds}, {moved})"

    def _loop_body(self, body: nodes.Block) -> None:
        self._breaks.append(None)
        self._continues.append("continue;")
        self.block(body)
        self._breaks.pop()
        self._continues.pop()

    def _label(self) -> int:
        self._labels += 1
        return self._labels

    def _unrolled(self, s: nodes.For) -> None:
        start, stop = self.scalars.value(s.start), self.scalars.value(s.stop)
        if start is None or stop is None:
            raise unsupported("a loop that is written out needs constant bounds", s.span)
        number = self._label()
        leave, again = f"tj_leave{number}", f"tj_next{number}_"
        leaves, continues = _own_jumps(s.body)
        self.writer.open("")
        self._breaks.append(leave)
        for index, value in enumerate(range(start, stop, int(s.step.value))):
            self.known.variables[s.var.name] = Interval(value, value)
            self._continues.append(f"goto {again}{index};")
            self.writer.open("")
            self.block(s.body)
            self.writer.close(f" {again}{index}:;" if continues else "")
            self._continues.pop()
        self._breaks.pop()
        self.writer.close(f" {leave}:;" if leaves else "")

    def _while(self, s: nodes.While) -> None:
        self.writer.open(_ROLLED + "for (;;)")
        self._loop_body(s.body)
        self.writer.close()

    def _break(self, s: nodes.Break) -> None:
        label = self._breaks[-1]
        self.writer.line("break;" if label is None else f"goto {label};")

    def _continue(self, s: nodes.Continue) -> None:
        self.writer.line(self._continues[-1])

    def _return(self, s: nodes.Return) -> None:
        if self._result is None:
            self.writer.line("return;")
            return
        assert s.value is not None
        self.writer.line(f"{self._result} = {self.scalars.text(s.value)}; break;")

    # --- calls

    def _evaluate(self, s: nodes.Evaluate) -> None:
        call = s.call
        if call.op not in ops.STRUCTURAL:
            intrinsics.statement(self.scalars, self.writer, call)
            return
        steps = self.checked.steps(call)
        scoped = Let in map(type, steps)
        if scoped:
            self.writer.open("")
        self.assembly.start_call()
        issue = self.assembly.record if self.registers.recording else self.assembly.issue
        values: dict[tuple[Interval | None, ...], str] = {}
        for step in steps:
            if isinstance(step, Issue):
                issue(step)
            elif isinstance(step, Let) and step.value is None:
                self.writer.line(f"{cxx.type_name(step.var.type)} {self.names[step.var.name]};")
            elif isinstance(step, Let):
                assert step.value is not None
                if self.registers.recording and _touches_no_register(step.value):
                    continue
                piece = self.scalars.piece(step.value)
                self._learn(step.var, piece)
                kind = cxx.type_name(step.var.type)
                self.writer.line(f"const {kind} {self.names[step.var.name]} = {piece.text};")
            else:
                self._apply(step, values)
        if scoped:
            self.writer.close()

    def _apply(self, step: ScalarApply, values: dict[tuple[Interval | None, ...], str]) -> None:
        """One element of ``ewise``: the function's body in place. ``values``, which the call's elements
        share: the text of a function that is one expression, by the intervals of its inputs."""
        self.writer.span(step.span)
        function = step.function
        self.writer.open("")
        inputs = [self._input(item) for item in step.inputs]
        # Two stages, because an input may read a variable that bears a parameter's name.
        for index, (var, (text, interval)) in enumerate(zip(function.params, inputs)):
            self.writer.line(f"{cxx.type_name(var.type)} tj_in{index} = {text};")
            self.known.variables.pop(var.name, None)
            if interval is not None and var.name not in self.assigned:
                self.known.variables[var.name] = interval
        self.writer.open("")
        for index, var in enumerate(function.params):
            self.writer.line(f"{cxx.type_name(var.type)} {self.names[var.name]} = tj_in{index};")
        last = function.body[-1]
        if len(function.body) == 1 and isinstance(last, nodes.Return):
            self.writer.span(last.span)
            intervals = tuple(interval for _, interval in inputs)
            value = values.get(intervals)
            if value is None:
                value = values[intervals] = self._function_value(function)
        else:
            value = self._function_value(function)
        self.writer.line(self.registers.write(step.dst, value))
        self.writer.close()
        self.writer.close()

    def _input(self, item: Register | Value) -> tuple[str, Interval | None]:
        if isinstance(item, Register):
            interval = None if item.dtype.is_float else ranges.full(item.dtype)
            return self.registers.read(item), interval
        return self.scalars.piece(item.expr)

    def _function_value(self, function: nodes.LambdaExpr) -> str:
        *head, last = function.body
        straight = isinstance(last, nodes.Return) and not any(_returns(s) for s in head)
        if straight:
            assert isinstance(last, nodes.Return) and last.value is not None
            for statement in head:
                self.writer.span(statement.span)
                self._writers[type(statement)](statement)
            self.writer.span(last.span)
            return self.scalars.text(last.value)
        result = f"tj_value{self._label()}"
        self.writer.line(f"{cxx.type_name(function.type)} {result};")
        previous, self._result = self._result, result
        self.writer.open("do")
        self.block(function.body)
        self.writer.close(" while (0);")
        self._result = previous
        return result


def _touches_no_register(value: nodes.Expr) -> bool:
    """Whether ``value`` is an address outside local memory, from arithmetic alone."""
    if not isinstance(value, nodes.Address) or value.type.space == "local":
        return False
    return not any(isinstance(n, nodes.Load | nodes.Call) for n in walk.descend(value.offset_bytes))


def _returns(statement: nodes.Stmt) -> bool:
    if isinstance(statement, nodes.If):
        return any(_returns(s) for s in (*statement.then, *statement.orelse))
    return isinstance(statement, nodes.Return)


def _own_jumps(block: nodes.Block) -> tuple[bool, bool]:
    """Whether a loop body has breaks and continues of its own loop."""
    leaves = continues = False
    for statement in block:
        leaves |= isinstance(statement, nodes.Break)
        continues |= isinstance(statement, nodes.Continue)
        if isinstance(statement, nodes.If):
            for part in (statement.then, statement.orelse):
                inner = _own_jumps(part)
                leaves, continues = leaves | inner[0], continues | inner[1]
    return leaves, continues
