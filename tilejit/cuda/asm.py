"""One native instruction as inline assembly, printed from its form and operands alone.

* A register operand takes the constraint of its C++ type; 8-bit values travel in 16-bit registers,
  128-bit ones as two halves, bools through predicate registers made inside the block.
* ``pred`` guards the instruction with ``@p``. With ``preserve_dst`` destinations are read-write.
* Register instructions are plain ``asm``: the compiler may order them and drop unused ones. What
  touches memory, orders memory or needs its lanes together is ``volatile``; what the compiler must
  not move its own accesses across clobbers memory. ``ld…nc`` reads what nothing writes: no clobber.
* The text ends with ``// tilejit:op=N file:line``, so that an assembler's message finds the user's
  line (``runtime.nvrtc``).

Not here: which instructions exist (``ptx``), what is issued (families).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilejit.cuda import cxx
from tilejit.cuda.memory import Memory
from tilejit.cuda.registers import Registers, slot_of
from tilejit.cuda.scalars import Scalars, unsupported
from tilejit.cuda.writer import Writer, quote
from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile import family
from tilejit.tile.family import Immediate, Issue

_MEMORY_EFFECTS = frozenset({"reads_memory", "writes_memory", "barrier", "async"})
_Part = str | tuple[str, int]
"""Assembly text, or ('o' or 'i', index) of an output or input operand."""


@dataclass(slots=True)
class _Block:
    """One asm statement under construction."""

    outputs: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[tuple[str, str]] = field(default_factory=list)
    declarations: list[str] = field(default_factory=list)
    """PTX registers local to the block."""
    before: list[list[_Part]] = field(default_factory=list)
    after: list[list[_Part]] = field(default_factory=list)
    temporaries: list[str] = field(default_factory=list)
    """C++ declarations ahead of the statement."""
    results: list[str] = field(default_factory=list)
    """C++ statements behind it."""
    count: int = 0

    def fresh(self) -> int:
        self.count += 1
        return self.count - 1

    def input(self, constraint: str, text: str) -> _Part:
        for index, known in enumerate(self.inputs):
            if known == (constraint, text):
                return ("i", index)
        self.inputs.append((constraint, text))
        return ("i", len(self.inputs) - 1)

    def output(self, constraint: str, lvalue: str) -> _Part:
        self.outputs.append((constraint, lvalue))
        return ("o", len(self.outputs) - 1)

    def render(self, parts: list[_Part]) -> str:
        shift = len(self.outputs)
        return "".join(
            p if isinstance(p, str) else f"%{p[1] + (shift if p[0] == 'i' else 0)}" for p in parts
        )


class Assembly:
    """Prints issues."""

    def __init__(
        self, scalars: Scalars, registers: Registers, memory: Memory, writer: Writer
    ) -> None:
        self.scalars = scalars
        self.registers = registers
        self.memory = memory
        self.writer = writer
        self.mnemonics: set[str] = set()
        self._ops = 0

    def issue(self, issue: Issue) -> None:
        """Writes one instruction."""
        self.writer.span(issue.span)
        self.mnemonics.add(issue.form.mnemonic)
        block = _Block()
        instruction = self._instruction(issue, block)
        if self.registers.recording:
            return
        text = self._body(block, instruction)
        comment = self._comment(issue.span)
        statement = self._statement(issue.form, block, text + comment)
        if not block.temporaries and not block.results:
            self.writer.line(statement)
            return
        self.writer.line(" ".join(["{", *block.temporaries, statement, *block.results, "}"]))

    def _comment(self, span: Span | None) -> str:
        self._ops += 1
        where = f" {span.short}" if span else ""
        return f" // tilejit:op={self._ops}{where}".replace("%", "%%")

    def _statement(self, form: Form, block: _Block, text: str) -> str:
        volatile, clobber = _keeps(form)
        outputs = ", ".join(f'"{c}"({v})' for c, v in block.outputs)
        inputs = ", ".join(f'"{c}"({v})' for c, v in block.inputs)
        tail = (
            f" : {outputs} : {inputs}" if inputs or clobber else f" : {outputs}" if outputs else ""
        )
        if clobber:
            tail += ' : "memory"'
        if not (outputs or inputs or clobber):
            tail = " ::"  # an extended statement, so that %% means % everywhere
        return f'asm {"volatile" if volatile else ""}("{quote(text)}"{tail});'.replace(
            "asm (", "asm("
        )

    def _body(self, block: _Block, instruction: list[_Part]) -> str:
        lines = [block.render(line) for line in (*block.before, instruction, *block.after)]
        if not block.declarations and len(lines) == 1:
            return lines[0]
        return "{" + " ".join([*block.declarations, *lines]) + "}"

    def _instruction(self, issue: Issue, block: _Block) -> list[_Part]:
        form = issue.form
        parts: list[_Part] = []
        if issue.pred is not None and self.scalars.value(issue.pred) != 1:
            predicate = self._predicate_in(block, self.scalars.text(issue.pred))
            parts.append(f"@{predicate} ")
        parts.append(form.spelling)
        for index, (spec, operand) in enumerate(zip(form.operands, issue.operands)):
            parts.append(" " if index == 0 else "|" if spec.joined else ", ")
            parts += self._operand(issue, spec, operand, block)
        parts.append(";")
        return parts

    # --- operands

    def _operand(
        self, issue: Issue, spec: OperandSpec, operand: family.NativeOperand, block: _Block
    ) -> list[_Part]:
        if isinstance(operand, Immediate):
            return [str(operand.value)]
        if isinstance(operand, family.Memory):
            return self._memory(spec, operand, block)
        if spec.bits == 128:
            return self._quad(issue, spec, operand, block)
        one = self._written if "w" in spec.direction else self._read
        parts: list[_Part] = []
        for index, item in enumerate(operand.items):
            parts.append(", " if index else "")
            parts += one(issue, spec, item, block)
        return ["{", *parts, "}"] if spec.braces else parts

    def _memory(self, spec: OperandSpec, operand: family.Memory, block: _Block) -> list[_Part]:
        base, offset = operand.base, operand.offset_bytes
        if "w" in spec.direction:
            self.memory.note_written(base)
        if isinstance(base, nodes.Address) and isinstance(base.offset_bytes, nodes.Const):
            moved = offset + int(base.offset_bytes.value)
            if -(1 << 31) <= moved < 1 << 31:
                zero = nodes.Const(0, base.offset_bytes.type)
                base, offset = nodes.Address(base.buffer, zero, base.type), moved
        constraint = "r" if operand.space in ("shared", "tmem") else "l"
        register = block.input(constraint, self.scalars.text(base))
        return ["[", register, f"+{offset}]" if offset else "]"]

    def _predicate_in(self, block: _Block, text: str) -> str:
        name = f"p{block.fresh()}"
        block.declarations.append(f".reg .pred {name};")
        block.before.append([f"setp.ne.b32 {name}, ", block.input("r", f"(u32){text}"), ", 0;"])
        return name

    def _read(self, issue: Issue, spec: OperandSpec, item: object, block: _Block) -> list[_Part]:
        text, name = self._source(item, issue.span)
        if spec.kind == "pred":
            return [self._predicate_in(block, text)]
        if cxx.bits_of(name) == 8:
            narrow = block.input("h", f"(u16){text}")
            byte = types.needs_byte_register(issue.form, spec)
            return [self._byte_in(block, narrow)] if byte else [narrow]
        held = _register_type(issue.form, spec, name)
        return [block.input(cxx.CONSTRAINT[held], cxx.reinterpret(text, name, held))]

    def _byte_in(self, block: _Block, narrow: _Part) -> str:
        name = f"b{block.fresh()}"
        block.declarations.append(f".reg .b8 {name};")
        block.before.append([f"mov.b16 {{{name}, _}}, ", narrow, ";"])
        return name

    def _source(self, item: object, span: Span | None) -> tuple[str, str]:
        """Text and C++ type of a register that is read."""
        if isinstance(item, family.Value):
            return self.scalars.text(item.expr), cxx.type_name(item.expr.type)
        if isinstance(item, family.Register):
            slot = slot_of(item.buffer, item.slot, item.dtype)
            held = self.registers.container(slot)
            if held is not None and held[1] in cxx.CONSTRAINT:
                return held
            return self.registers.read(slot), slot.ctype
        if isinstance(item, family.Variable):
            return self.scalars.names[item.var.name], cxx.type_name(item.var.type)
        if isinstance(item, family.Element):
            return self.scalars.text(item.load), cxx.type_name(item.load.type)
        raise unsupported(f"{type(item).__name__} as an input register", span)

    def _written(self, issue: Issue, spec: OperandSpec, item: object, block: _Block) -> list[_Part]:
        if item is None:
            return ["_"]
        keep = spec.direction == "rw" or (issue.preserve_dst and issue.pred is not None)
        sign = "+" if keep else "="
        lvalue = self._lvalue(item)
        if lvalue is not None and spec.kind != "pred":
            text, held = lvalue
            if _register_type(issue.form, spec, held) == held:
                return [block.output(sign + cxx.CONSTRAINT[held], text)]
        current, name = self._source(item, issue.span)
        through = _register_type(issue.form, spec, name)
        temporary = f"tj_t{block.fresh()}"
        initial = f" = {_converted(current, name, through)}" if keep else ""
        block.temporaries.append(f"{through} {temporary}{initial};")
        block.results.append(self._assign(item, _converted(temporary, through, name), name))
        register = block.output(sign + cxx.CONSTRAINT[through], temporary)
        if spec.kind == "pred":
            return [self._predicate_out(block, register, keep)]
        byte = types.needs_byte_register(issue.form, spec)
        return [self._byte_out(block, register)] if byte else [register]

    def _predicate_out(self, block: _Block, register: _Part, keep: bool) -> str:
        name = f"p{block.fresh()}"
        block.declarations.append(f".reg .pred {name};")
        if keep:
            block.before.append([f"setp.ne.b32 {name}, ", register, ", 0;"])
        block.after.append(["selp.b32 ", register, f", 1, 0, {name};"])
        return name

    def _byte_out(self, block: _Block, register: _Part) -> str:
        name = f"b{block.fresh()}"
        block.declarations.append(f".reg .b8 {name};")
        block.after.append(["cvt.u16.u8 ", register, f", {name};"])
        return name

    def _lvalue(self, item: object) -> tuple[str, str] | None:
        """The C++ variable that the instruction can write itself, and its type."""
        held: tuple[str, str] | None = None
        if isinstance(item, family.Variable):
            held = self.scalars.names[item.var.name], cxx.type_name(item.var.type)
        elif isinstance(item, family.Register):
            held = self.registers.container(slot_of(item.buffer, item.slot, item.dtype))
        elif isinstance(item, family.Element):
            assert isinstance(item.load, nodes.Load)
            slot = self.memory.slot(item.load.view, item.load.indices)
            held = None if slot is None else self.registers.container(slot)
        return held if held is not None and held[1] in cxx.CONSTRAINT else None

    def _assign(self, item: object, value: str, name: str) -> str:
        """Stores ``value`` of C++ type ``name``."""
        if isinstance(item, family.Variable):
            return f"{self.scalars.names[item.var.name]} = {value};"
        if isinstance(item, family.Register):
            slot = slot_of(item.buffer, item.slot, item.dtype)
            return self.registers.write(slot, cxx.reinterpret(value, name, slot.ctype))
        assert isinstance(item, family.Element) and isinstance(item.load, nodes.Load)
        return self.memory.store(item.load.view, item.load.indices, value, item.load.span)

    def _quad(
        self, issue: Issue, spec: OperandSpec, operand: family.Registers, block: _Block
    ) -> list[_Part]:
        """128-bit registers, each given as its low and high 64 bits."""
        written = "w" in spec.direction
        one = self._written if written else self._read
        half = OperandSpec(spec.name, spec.direction, "reg", "b64")
        parts: list[_Part] = []
        for index in range(0, len(operand.items), 2):
            name = f"q{block.fresh()}"
            block.declarations.append(f".reg .b128 {name};")
            low, high = (one(issue, half, item, block) for item in operand.items[index : index + 2])
            pair: list[_Part] = ["{", *low, ", ", *high, "}"]
            if written:
                block.after.append(["mov.b128 ", *pair, f", {name};"])
            else:
                block.before.append([f"mov.b128 {name}, ", *pair, ";"])
            parts += [", " if index else "", name]
        return ["{", *parts, "}"] if spec.braces else parts


def _register_type(form: Form, spec: OperandSpec, name: str) -> str:
    """The C++ type through which a value of type ``name`` reaches the instruction."""
    if spec.kind == "pred":
        return "u32"
    if cxx.bits_of(name) == 8:
        return "u16"
    if name in ("f32", "f64") and not types.takes_float_register(form, spec):
        return cxx.unsigned(cxx.bits_of(name))
    return name


def _converted(text: str, source: str, target: str) -> str:
    """Between a value's type and the type it travels as: numeric for bytes and bools, else bits."""
    if source == target:
        return text
    if target == "bool":
        return f"({text} != 0)"
    if cxx.bits_of(source) != cxx.bits_of(target):
        return f"({target}){text}"
    return cxx.reinterpret(text, source, target)


def _keeps(form: Form) -> tuple[bool, bool]:
    """Whether the statement is ``volatile``, and whether it clobbers memory."""
    effects = set(form.effects)
    clobber = bool(effects & _MEMORY_EFFECTS)
    if effects == {"reads_memory"} and "nc" in form.modifiers:
        clobber = False
    return bool(effects), clobber
