"""Which tensors a checked kernel may read, and which it may write: supersets, by parameter name.

Every access of the native steps and of plain statements counts, executed or not. An access through an
address counts for the tensors that the address may have been made from; through one that came from
elsewhere (a number that the caller passed, a word in memory, a tensor map that the caller encoded) it
counts for every tensor of the kernel, since it may hit any. A tensor whose address goes to memory counts
as read and written: who picks it up there is not known. An address plus a number is taken to stay in its
tensor, as pointer arithmetic does in C: a distance between two tensors that the caller passes is not seen.

A prefetch and a cache hint are no accesses; ``discard`` writes, and a reduction reads what it adds to.
Not here: where inside a tensor an access falls (``tile.region``), races (the simulator).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tilejit.ir import nodes, walk
from tilejit.ir.ops import STRUCTURAL
from tilejit.ir.tensor_map import TensorMapSpec
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile.family import (
    Element,
    Issue,
    Let,
    Memory,
    NativeOperand,
    Register,
    Registers,
    ScalarApply,
    Step,
    TensorBox,
    Value,
    Variable,
)

if TYPE_CHECKING:
    from tilejit.tile.checker import Checked

Names: TypeAlias = frozenset[str]
NONE: Names = frozenset()
_HINTS = ("prefetch", "applypriority", "createpolicy")
"""Mnemonics of instructions with an address that access nothing there."""


@dataclass(frozen=True, slots=True)
class GlobalAccesses:
    """Names of the tensor parameters that may be ``read`` and that may be ``written``. ``elsewhere``:
    memory may be accessed through an address that was made of none of them."""

    read: Names
    written: Names
    elsewhere: bool


def global_accesses(checked: Checked) -> GlobalAccesses:
    """What a launch of the kernel may access, whatever its grid and its scalars are."""
    tensors = frozenset(
        p.name for p in checked.function.params if isinstance(p.type, nodes.TensorType)
    )
    found = _Found()
    statements, steps = _program(checked)
    flow = _Flow.of(statements, steps)
    for statement in statements:
        found.statement(statement, flow)
    for step in steps:
        found.step(step, flow)
    if found.reads_anything:
        found.read |= tensors
    if found.writes_anything:
        found.written |= tensors
    elsewhere = found.reads_anything or found.writes_anything
    return GlobalAccesses(tensors & found.read, tensors & found.written, elsewhere)


def _program(checked: Checked) -> tuple[list[nodes.Stmt], list[Step]]:
    """The plain statements, and the steps in place of the tile calls and raw instructions."""
    plain: list[nodes.Stmt] = []
    steps: list[Step] = []
    for statement in walk.statements(checked.function.body):
        if isinstance(statement, nodes.Evaluate) and statement.call.op in STRUCTURAL:
            steps += checked.steps(statement.call)
        else:
            plain.append(statement)
    return plain, steps


# --- where addresses come from


@dataclass(frozen=True, slots=True)
class _Source:
    """What one value is made of: ``names``, buffers whose addresses it has in it, and ``variables``."""

    names: Names = NONE
    variables: Names = NONE
    constant: bool = False


_NO_ADDRESS = _Source()
_CONSTANT = _Source(constant=True)


@dataclass(slots=True)
class _Flow:
    """By variable (a register tile is one): the buffers its value may be an address in, and whether it
    may as well be an address from elsewhere. Order and branches are not looked at."""

    sources: dict[str, list[_Source]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, Names] = field(default_factory=dict)
    foreign: set[str] = field(default_factory=set)
    _known: dict[int, tuple[nodes.Expr, _Source]] = field(default_factory=dict)
    """By an expression's id, which the expression beside keeps its own."""

    @staticmethod
    def of(statements: Iterable[nodes.Stmt], steps: Iterable[Step]) -> _Flow:
        flow = _Flow()
        for statement in statements:
            flow._statement(statement)
        for step in steps:
            flow._step(step)
        flow._spread_names()
        flow._spread_foreign()
        return flow

    def origins(self, address: nodes.Expr) -> tuple[Names, bool]:
        """The buffers that an address may point into, and whether it may point elsewhere."""
        source = self._source(address)
        names = self._names(source)
        return names, not names or self._foreign(source)

    def held(self, issue: Issue) -> Names:
        """The buffers whose addresses may be among the values that an instruction reads."""
        return self._names(_joined(self._inputs(issue)))

    # --- who assigns

    def _statement(self, statement: nodes.Stmt) -> None:
        match statement:
            case nodes.Declare(var=var, value=value) if value is not None:
                self.sources[var.name].append(self._source(value))
            case nodes.Assign(var=var, value=value):
                self.sources[var.name].append(self._source(value))
            case nodes.For(var=var, start=start):
                self.sources[var.name].append(self._source(start))
            case nodes.Store(view=view, value=value):
                stored = self._source(value)
                if view.space == "local":
                    self.sources[view.buffer.name].append(stored)

    def _step(self, step: Step) -> None:
        match step:
            case Let(var=var, value=value) if value is not None:
                self.sources[var.name].append(self._source(value))
            case ScalarApply(function=function, dst=dst, inputs=inputs):
                made = [self._read(item) for item in inputs]
                taken = (n for n in walk.descend(function) if isinstance(n, nodes.Address))
                made += [self._source(n) for n in taken]
                self.sources[dst.buffer.name].append(_joined(made))
            case Issue():
                self._issue(step)

    def _issue(self, issue: Issue) -> None:
        result, in_memory = _joined(self._inputs(issue)), _accesses_memory(issue)
        for name in _destinations(issue):
            self.sources[name].append(_NO_ADDRESS if in_memory else result)
        for operand in issue.operands:
            match operand:
                case Memory(base=address) | TensorBox(map=address):
                    if not isinstance(address, TensorMapSpec):
                        self._source(address)

    def _inputs(self, issue: Issue) -> Iterator[_Source]:
        """What an instruction reads from registers, addresses apart."""
        for spec, operand in zip(issue.form.operands, issue.operands):
            if isinstance(operand, Registers) and "r" in spec.direction:
                for item in operand.items:
                    if isinstance(item, Register | Value):
                        yield self._read(item)

    def _read(self, item: Register | Value) -> _Source:
        if isinstance(item, Value):
            return self._source(item.expr)
        return _Source(variables=frozenset((item.buffer.name,)))

    # --- what a value is made of

    def _source(self, value: nodes.Expr) -> _Source:
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = (value, self._taken_apart(value))
        return known[1]

    def _taken_apart(self, value: nodes.Expr) -> _Source:
        match value:
            case nodes.Const():
                return _CONSTANT
            case nodes.Var(name=name):
                return _Source(variables=frozenset((name,)))
            case nodes.Address(buffer=buffer, offset_bytes=offset):
                return _joined((_Source(frozenset((buffer.name,))), self._source(offset)))
            case nodes.Load(view=view):
                local = view.space == "local"
                return _Source(variables=frozenset((view.buffer.name,))) if local else _NO_ADDRESS
            case nodes.Select(if_true=one, if_false=other):
                return self._either(one, other)
            case nodes.Binary(op="min" | "max", lhs=one, rhs=other):
                return self._either(one, other)
            case nodes.Unary() | nodes.Binary() | nodes.Cast() | nodes.Bitcast() | nodes.Call():
                if value.type == nodes.BOOL:  # carries no address
                    return _NO_ADDRESS
                return _joined(self._source(child) for child in walk.children(value))
        return _NO_ADDRESS

    def _either(self, one: nodes.Expr, other: nodes.Expr) -> _Source:
        """One of two values: a variable of its own that is assigned both."""
        name = f"either {len(self._known)}"
        self.sources[name] += [self._source(one), self._source(other)]
        return _Source(variables=frozenset((name,)))

    # --- fixed points

    def _spread_names(self) -> None:
        """The least sets that hold the names of every source."""
        made_of: dict[str, list[str]] = defaultdict(list)
        for variable, sources in self.sources.items():
            found = NONE.union(*(s.names for s in sources if s.names))
            if found:
                self.names[variable] = found
            for part in {v for s in sources for v in s.variables}:
                made_of[part].append(variable)
        changed = list(self.names)
        while changed:
            part = changed.pop()
            for variable in made_of.get(part, ()):
                known = self.names.get(variable, NONE)
                if not self.names[part] <= known:
                    self.names[variable] = known | self.names[part]
                    changed.append(variable)

    def _spread_foreign(self) -> None:
        """A variable that may hold a buffer's address is foreign when it may be assigned something
        else, constants apart, or something foreign."""
        holding = [v for v in self.sources if self.names.get(v)]
        changed = True
        while changed:
            changed = False
            for variable in holding:
                sources = (s for s in self.sources[variable] if not s.constant)
                if variable not in self.foreign and any(
                    not self._names(s) or self._foreign(s) for s in sources
                ):
                    self.foreign.add(variable)
                    changed = True

    def _names(self, source: _Source) -> Names:
        names = source.names
        for variable in source.variables:
            names |= self.names.get(variable, NONE)
        return names

    def _foreign(self, source: _Source) -> bool:
        return not self.foreign.isdisjoint(source.variables)


def _joined(sources: Iterable[_Source]) -> _Source:
    """What arithmetic makes of several values: an address plus numbers is an address."""
    parts = list(sources)
    if not parts:
        return _NO_ADDRESS
    names, variables, constant = parts[0].names, parts[0].variables, parts[0].constant
    for part in parts[1:]:
        names |= part.names
        variables |= part.variables
        constant = constant and part.constant
    return _Source(names, variables, constant)


def _destinations(issue: Issue) -> Iterator[str]:
    """The variables and register tiles that an instruction writes."""
    for spec, operand in zip(issue.form.operands, issue.operands):
        for item in operand.items if isinstance(operand, Registers) else ():
            match item:
                case Variable(var=var) | Register(buffer=var) if "w" in spec.direction:
                    yield var.name
                case Element(load=nodes.Load(view=view)) if view.space == "local":
                    yield view.buffer.name


def _accesses_memory(issue: Issue) -> bool:
    return any(isinstance(operand, Memory | TensorBox) for operand in issue.operands)


# --- what is accessed


@dataclass(slots=True)
class _Found:
    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    reads_anything: bool = False
    writes_anything: bool = False
    _seen: dict[int, Any] = field(default_factory=dict)
    """Expressions whose loads have been found, kept alive so that their ids stay theirs."""

    def statement(self, statement: nodes.Stmt, flow: _Flow) -> None:
        if isinstance(statement, nodes.Store) and statement.view.space != "local":
            if statement.view.space == "global":
                self.written.add(statement.view.buffer.name)
            self._escapes(flow.origins(statement.value)[0])
        for child in walk.children(statement):
            if not isinstance(child, nodes.Stmt):  # a block's come by themselves
                self._loads(child)

    def step(self, step: Step, flow: _Flow) -> None:
        match step:
            case Let(value=value):
                self._loads(value)
            case ScalarApply(function=function, inputs=inputs):
                self._loads(function)
                for item in inputs:
                    self._register(item)
            case Issue():
                self._issue(step, flow)

    def _issue(self, issue: Issue, flow: _Flow) -> None:
        self._loads(issue.pred)
        if _accesses_memory(issue):
            self._escapes(flow.held(issue))
        for spec, operand in zip(issue.form.operands, issue.operands):
            self._operand(issue.form, spec, operand, flow)

    def _operand(self, form: Form, spec: OperandSpec, operand: NativeOperand, flow: _Flow) -> None:
        match operand:
            case Registers(items=items):
                for item in items:
                    self._register(item)
            case Memory(base=base, space=space):
                self._loads(base)
                if space == "global":
                    self._access(form, spec, *flow.origins(base))
            case TensorBox(map=map_, coords=coords):
                for coord in coords:
                    self._loads(coord)
                if isinstance(map_, TensorMapSpec):
                    self._access(form, spec, frozenset((map_.buffer,)), False)
                else:
                    self._caller_map(form, spec, map_, flow)

    def _caller_map(self, form: Form, spec: OperandSpec, map_: nodes.Expr, flow: _Flow) -> None:
        """A map that the caller encoded: it is read, and leads to whatever it describes."""
        self._loads(map_)
        holders, elsewhere = flow.origins(map_)
        self.read |= holders
        self.reads_anything |= elsewhere
        self._access(form, spec, NONE, True)

    def _register(self, item: Register | Value | Variable | Element | None) -> None:
        match item:
            case Value(expr=expr):
                self._loads(expr)
            case Element(load=nodes.Load(view=view, indices=indices)):
                if view.space == "global":
                    self.written.add(view.buffer.name)
                for index in (*walk.children(view), *indices):
                    self._loads(index)

    def _access(self, form: Form, spec: OperandSpec, names: Names, elsewhere: bool) -> None:
        if form.mnemonic in _HINTS or "prefetch" in form.modifiers:
            return
        if "r" in spec.direction or form.modifiers[:1] == ("reduce",):
            self.read |= names
            self.reads_anything |= elsewhere
        if "w" in spec.direction:
            self.written |= names
            self.writes_anything |= elsewhere

    def _escapes(self, names: Names) -> None:
        self.read |= names
        self.written |= names

    def _loads(self, expr: Any) -> None:
        """The tensors that an expression's loads read."""
        stack = [] if expr is None else [expr]
        while stack:
            node = stack.pop()
            if id(node) in self._seen:
                continue
            self._seen[id(node)] = node
            if isinstance(node, nodes.Load) and node.view.space == "global":
                self.read.add(node.view.buffer.name)
            stack += walk.children(node)
