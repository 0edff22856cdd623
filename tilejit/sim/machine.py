"""The machine a family's ``execute`` sees: registers and memory of one cohort's active lanes.

``Steps`` compiles what ``bind`` yielded (issues, lets, scalar applications) to closures; for each
operand it prepares readers and writers once. ``SimMachine`` is the ``tile.family.Machine``: during
an issue its operands are looked up by identity.

Not here: what an instruction computes (families), waiting (``barrier``), expressions (``expr``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tilejit import dtypes
from tilejit.errors import InternalError, Span, fault
from tilejit.ir import nodes
from tilejit.sim import access, scalar
from tilejit.sim.access import Bytes
from tilejit.sim.cohort import Array, Cohort
from tilejit.sim.convergent import check_aligned
from tilejit.sim.expr import (
    Evaluate,
    Expressions,
    dtype_of,
    read_register,
    unsimulated,
)
from tilejit.sim.faults import Site
from tilejit.sim.geometry import LANES, Bools
from tilejit.sim.inline import Inline
from tilejit.sim.memory import WORDS
from tilejit.tile.family import (
    BitArray,
    Element,
    Elsewhere,
    FamilyIndex,
    Immediate,
    Issue,
    Let,
    Memory,
    NativeOperand,
    Register,
    ScalarApply,
    Step,
    Value,
    Variable,
)

Action: TypeAlias = Callable[[Cohort], None]
BitWriter: TypeAlias = Callable[[Cohort, Array], None]
Update: TypeAlias = Callable[[tuple[int, int], Bytes], Bytes]

ATOMIC = frozenset({"atom", "red"})
ORDERING = frozenset({"acquire", "release", "acq_rel", "sc"})
STRONG = ORDERING | {"relaxed", "volatile", "mmio"}
"""Modifiers of accesses that may meet others without a race."""


@dataclass(slots=True, eq=False)
class PreparedRegisters:
    readers: list[Evaluate] = field(default_factory=list)
    writers: list[BitWriter | None] = field(default_factory=list)
    registers: list[tuple[str, int, int] | None] = field(default_factory=list)
    """(buffer, unit, bytes) of items that are registers, else None."""


@dataclass(slots=True, eq=False)
class PreparedMemory:
    address: Evaluate
    space: str
    name: str | None
    reads: Site
    writes: Site
    updates: Site


@dataclass(slots=True, eq=False)
class PreparedImmediate:
    bits: Array


Prepared: TypeAlias = PreparedRegisters | PreparedMemory | PreparedImmediate


@dataclass(slots=True, eq=False)
class Call:
    """The issue in progress: its cohort, its prepared operands, and the mask without ``pred``."""

    cohort: Cohort
    issue: Issue
    operands: dict[int, Prepared]
    unpredicated: Any
    span: Span | None


class SimMachine:
    """One issue on one cohort; see ``tile.family.Machine``."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def _prepared(self, operand: NativeOperand) -> Prepared:
        return self._call.operands[id(operand)]

    def read(self, operand: NativeOperand) -> list[BitArray]:
        found = self._prepared(operand)
        if isinstance(found, PreparedImmediate):
            return [found.bits]
        if isinstance(found, PreparedRegisters):
            return [reader(self._call.cohort) for reader in found.readers]
        raise self._misuse("read")

    def write(self, operand: NativeOperand, bits: list[BitArray]) -> None:
        found = self._prepared(operand)
        if not isinstance(found, PreparedRegisters):
            raise self._misuse("write")
        c = self._call.cohort
        for writer, value in zip(found.writers, bits):
            if writer is not None:
                writer(c, value)

    def forget_skipped(self) -> None:
        """Without preserve_dst the destinations are undefined where the predicate is false."""
        c, issue = self._call.cohort, self._call.issue
        if c.mask is self._call.unpredicated:
            return
        skipped = ~c.mask_array()
        if self._call.unpredicated is not None:
            skipped = self._call.unpredicated & skipped
        for spec, operand in zip(issue.form.operands, issue.operands):
            found = self._prepared(operand)
            if spec.direction == "w" and isinstance(found, PreparedRegisters):
                for register in found.registers:
                    if register is not None:
                        name, unit, nbytes = register
                        c.files[name].forget(unit, nbytes, skipped)

    def load(
        self,
        operand: NativeOperand,
        nbytes: int,
        lanes: Bools | None = None,
        at: Elsewhere | None = None,
    ) -> Bytes:
        found = self._memory(operand)
        c = self._call.cohort
        address = _moved(found.address(c), at)
        with self._only(lanes):
            return access.load(c, address, nbytes, found.reads, found.space, found.name)

    def store(
        self,
        operand: NativeOperand,
        data: Bytes,
        lanes: Bools | None = None,
        at: Elsewhere | None = None,
    ) -> None:
        found = self._memory(operand)
        c = self._call.cohort
        address = _moved(found.address(c), at)
        with self._only(lanes):
            access.store(c, address, data, found.writes, found.space, found.name)

    def check_aligned(self, operand: NativeOperand, nbytes: int, lanes: Bools) -> None:
        found = self._memory(operand)
        c = self._call.cohort
        with self._only(lanes):
            memory = access.memory_of(c, found.space)
            memory.misaligned(c.flat(found.address(c)), nbytes, c.lanes(), found.writes)

    @contextmanager
    def _only(self, lanes: Bools | None) -> Iterator[None]:
        """Narrows the active lanes to ``lanes``."""
        c = self._call.cohort
        outer = c.mask
        if lanes is not None:
            c.mask = c.mask_array() & lanes
        try:
            yield
        finally:
            c.mask = outer

    def active(self) -> Bools:
        return self._call.cohort.mask_array()

    def atomic(self, operand: NativeOperand, nbytes: int, update: Update) -> Bytes:
        found = self._memory(operand)
        c = self._call.cohort
        return access.update(
            c, found.address(c), nbytes, update, found.updates, found.space, found.name
        )

    def copy_async(
        self, dst: NativeOperand, src: NativeOperand, nbytes: int, kept: BitArray
    ) -> None:
        to, source = self._memory(dst), self._memory(src)
        c = self._call.cohort
        c.batch.copies.issue(
            c,
            (to.address(c), to.writes, to.name),
            (source.address(c), source.reads, source.name),
            nbytes,
            kept,
        )

    def commit_group(self) -> None:
        self._call.cohort.batch.copies.commit(self._call.cohort)

    def wait_group(self, pending: int | None) -> None:
        self._call.cohort.batch.copies.wait(self._call.cohort, pending)

    def unsimulated(self, what: str) -> NoReturn:
        raise unsimulated(what, self._call.span)

    def _memory(self, operand: NativeOperand) -> PreparedMemory:
        found = self._prepared(operand)
        if not isinstance(found, PreparedMemory):
            raise self._misuse("access memory through")
        return found

    def _misuse(self, what: str) -> Exception:
        spelling = self._call.issue.form.spelling
        return fault(
            InternalError, "sim/operand", f"execute of `{spelling}` cannot {what} that operand"
        )


def _moved(address: Array, at: Elsewhere | None) -> Array:
    """The lanes' own addresses, or those that ``at`` says."""
    if at is None:
        return address
    whole = np.broadcast_to(address, (address.shape[0], LANES))
    return whole[:, at.lanes] + at.offset_bytes


class Steps:
    """Compiles the steps of tile calls."""

    def __init__(self, expressions: Expressions, families: FamilyIndex) -> None:
        self.expressions = expressions
        self.families = families
        self.inline = Inline(expressions)
        self.kept_alive: list[Step] = []

    def compile(self, step: Step, span: Span | None) -> Action:
        """The effect of one step; ``span`` is the call's, for steps that have none."""
        self.kept_alive.append(step)
        if isinstance(step, Let):
            return self._let(step)
        if isinstance(step, ScalarApply):
            return self._scalar_apply(step, step.span or span)
        return self._issue(step, step.span or span)

    def _let(self, step: Let) -> Action:
        value = self.expressions.compile(step.value)
        if isinstance(step.var.type, nodes.PointerType):
            self.expressions.origins[step.var.name] = self.expressions.origin(step.value)
        slot = self.expressions.slot(step.var)
        return lambda c: c.declare(slot, value(c))

    def _scalar_apply(self, step: ScalarApply, span: Span | None) -> Action:
        function = self.inline.function(step.function)
        inputs = [
            self._typed_input(item, param, span)
            for item, param in zip(step.inputs, step.function.params)
        ]
        writer = self._register_writer(step.dst)
        dtype = step.function.type.dtype

        def apply(c: Cohort) -> None:
            result = function(c, [value(c) for value in inputs])
            writer(c, scalar.to_bits(result, dtype))

        return apply

    def _typed_input(self, item: Register | Value, param: nodes.Var, span: Span | None) -> Evaluate:
        if isinstance(item, Value):
            return self.expressions.compile(item.expr)
        reader = self._register_reader(item, span)
        dtype = dtype_of(param.type)
        return lambda c: scalar.to_value(reader(c), dtype)

    # --- issues

    def _issue(self, issue: Issue, span: Span | None) -> Action:
        operands = {
            id(operand): self._prepare(issue, position, operand, span)
            for position, operand in enumerate(issue.operands)
        }
        family = self.families.get(issue.form.family)
        if family is None:
            raise unsimulated(f"`{issue.form.spelling}` (family {issue.form.family})", span)
        execute = family.execute
        spelling, aligned = issue.form.spelling, "aligned" in issue.form.modifiers
        if issue.pred is None:

            def run(c: Cohort) -> None:
                if c.any_active():
                    if aligned:
                        check_aligned(c, spelling, span)
                    execute(issue, SimMachine(Call(c, issue, operands, c.mask, span)))

            return run
        pred = self.expressions.compile(issue.pred)

        def run_predicated(c: Cohort) -> None:
            outer = c.mask
            yes, _, some, _ = c.narrow(pred(c))
            c.mask = yes if some else np.zeros((c.warps, LANES), np.bool_)
            machine = SimMachine(Call(c, issue, operands, outer, span))
            if some:
                if aligned:
                    check_aligned(c, spelling, span)
                execute(issue, machine)
            if not issue.preserve_dst:
                machine.forget_skipped()
            c.mask = outer

        return run_predicated

    def _prepare(
        self, issue: Issue, position: int, operand: NativeOperand, span: Span | None
    ) -> Prepared:
        if isinstance(operand, Immediate):
            value = operand.value
            word = np.uint32 if -(2**31) <= value < 2**32 else np.uint64
            mask = (1 << 8 * np.dtype(word).itemsize) - 1
            return PreparedImmediate(np.full((1, 1), value & mask, word))
        if isinstance(operand, Memory):
            return self._prepare_memory(issue, position, operand, span)
        found = PreparedRegisters()
        for item in operand.items:
            found.readers.append(self._reader(item, span))
            found.writers.append(self._writer(item, span))
            found.registers.append(self._place(item) if isinstance(item, Register) else None)
        return found

    def _prepare_memory(
        self, issue: Issue, position: int, operand: Memory, span: Span | None
    ) -> PreparedMemory:
        accesses = self.expressions.accesses
        name = self.expressions.origin(operand.base)
        if operand.space == "local":
            self._check_local(issue, position, name, span)
        base = self.expressions.compile(operand.base)
        offset = operand.offset_bytes
        address: Evaluate = base if offset == 0 else lambda c: base(c) + np.int64(offset)
        if "w" in issue.form.operands[position].direction:
            accesses.will_store(name, operand.space)
        spelling = issue.form.spelling
        words = set(issue.form.modifiers)
        strong = bool(words & STRONG) or issue.form.mnemonic in ATOMIC
        accesses.fences |= bool(words & ORDERING)
        asynchronous = "async" in issue.form.effects

        def site(verb: str) -> Site:
            return accesses.site(verb, spelling, span, strong, asynchronous)

        return PreparedMemory(
            address, operand.space, name,
            reads=site("reads"), writes=site("writes"), updates=site("updates"),
        )  # fmt: skip

    def _check_local(
        self, issue: Issue, position: int, name: str | None, span: Span | None
    ) -> None:
        """Local memory is modelled where the buffer is known, at widths its file is kept in."""
        spelling = issue.form.spelling
        if name is None or name not in self.expressions.storage.local_bytes:
            raise unsimulated(f"`{spelling}` at a local address whose buffer is not known", span)
        width = issue.form.operands[position].bits // 8
        if width < self.expressions.storage.unit_bytes[name]:
            raise unsimulated(f"`{spelling}` narrower than the elements of `{name}`", span)

    # --- registers

    def _place(self, register: Register) -> tuple[str, int, int]:
        if register.dtype.bits % 8:
            raise unsimulated(f"registers of {register.dtype}", None)
        nbytes = register.dtype.bytes
        name = register.buffer.name
        return name, register.slot * (nbytes // self.expressions.storage.unit_bytes[name]), nbytes

    def _register_reader(self, register: Register, span: Span | None) -> Evaluate:
        name, unit, nbytes = self._place(register)
        return lambda c: read_register(c, name, unit, nbytes, span)

    def _register_writer(self, register: Register) -> BitWriter:
        name, unit, nbytes = self._place(register)
        word = WORDS[nbytes]
        return lambda c, bits: c.files[name].write(unit, bits.astype(word, copy=False), c.mask)

    def _reader(
        self, item: Register | Value | Variable | Element | None, span: Span | None
    ) -> Evaluate:
        if isinstance(item, Register):
            return self._register_reader(item, span)
        if item is None:
            nothing = np.zeros((1, 1), np.uint32)
            return lambda c: nothing
        expr = (
            item.expr
            if isinstance(item, Value)
            else item.var
            if isinstance(item, Variable)
            else item.load
        )
        value = self.expressions.compile(expr)
        dtype = dtypes.uint64 if isinstance(expr.type, nodes.PointerType) else dtype_of(expr.type)
        if isinstance(expr.type, nodes.PointerType):
            return lambda c: value(c).view(np.uint64)
        return lambda c: scalar.to_bits(value(c), dtype)

    def _writer(
        self, item: Register | Value | Variable | Element | None, span: Span | None
    ) -> BitWriter | None:
        if isinstance(item, Register):
            return self._register_writer(item)
        if isinstance(item, Variable):
            return self._variable_writer(item.var)
        if isinstance(item, Element):
            assert isinstance(item.load, nodes.Load)
            view = item.load.view
            store = self.expressions.store(view, item.load.indices, span)
            word = WORDS[view.dtype.bytes]
            return lambda c, bits: store(c, bits.astype(word, copy=False))
        return None

    def _variable_writer(self, var: nodes.Var) -> BitWriter:
        slot = self.expressions.slot(var)
        if isinstance(var.type, nodes.PointerType):
            return lambda c, bits: c.assign(slot, bits.astype(np.int64))
        dtype = dtype_of(var.type)
        word = WORDS[dtype.bytes]
        return lambda c, bits: c.assign(slot, scalar.to_value(bits.astype(word, copy=False), dtype))


def run_all(actions: Sequence[Action]) -> Action:
    """The actions, one after another."""
    if len(actions) == 1:
        return actions[0]
    listed = tuple(actions)

    def run(c: Cohort) -> None:
        for action in listed:
            action(c)

    return run
