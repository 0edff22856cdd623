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
        keep = issue.preserve_dst and len(parts) > 1
        for index, (spec, operand) in enumerate(zip(form.operands, issue.operands)):
            parts.append(" " if index == 0 else "|" if spec.joined else ", ")
            parts += self._operand(spec, operand, block, keep, issue.span)
        parts.append(";")
        return parts

    # --- operands

    def _operand(
        self,
        spec: OperandSpec,
        operand: family.NativeOperand,
        block: _Block,
        keep: bool,
        span: Span | None,
    ) -> list[_Part]:
        if isinstance(operand, Immediate):
            return [str(operand.value)]
        if isinstance(operand, family.Memory):
            return self._memory(spec, operand, block)
        if spec.bits == 128:
            return self._quad(spec, operand, block, span)
        parts: list[_Part] = []
        for index, item in enumerate(operand.items):
            parts.append(", " if index else "")
            if "w" in spec.direction:
                parts += self._written(spec, item, block, keep or spec.direction == "rw", span)
            else:
                parts += self._read(spec, item, block, span)
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

    def _read(
        self, spec: OperandSpec, item: object, block: _Block, span: Span | None
    ) -> list[_Part]:
        text, name = self._source(item, span)
        if spec.kind == "pred":
            return [self._predicate_in(block, text)]
        if cxx.bits_of(name) == 8:
            narrow = block.input("h", f"(u16){text}")
            return [self._byte_in(block, narrow)] if _needs_byte(spec) else [narrow]
        return [block.input(cxx.CONSTRAINT[name], text)]

    def _byte_in(self, block: _Block, narrow: _Part) -> str:
        """Packed 4-bit pairs are the one type that demands an 8-bit PTX register."""
        name = f"b{block.fresh()}"
        block.declarations.append(f".reg .b8 {name};")
        block.before.append([f"cvt.u8.u16 {name}, ", narrow, ";"])
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

    def _written(
        self, spec: OperandSpec, item: object, block: _Block, keep: bool, span: Span | None
    ) -> list[_Part]:
        if item is None:
            return ["_"]
        sign = "+" if keep else "="
        lvalue = self._lvalue(item)
        if lvalue is not None and spec.kind != "pred":
            name, held = lvalue
            return [block.output(sign + cxx.CONSTRAINT[held], name)]
        _, name = self._source(item, span)
        through = "u32" if spec.kind == "pred" else "u16" if cxx.bits_of(name) == 8 else name
        temporary = f"tj_t{block.fresh()}"
        initial = ""
        if keep:
            current = self._source(item, span)[0]
            initial = f" = {current}" if through == name else f" = ({through}){current}"
        block.temporaries.append(f"{through} {temporary}{initial};")
        value = temporary
        if through != name:
            value = f"({temporary} != 0)" if name == "bool" else f"({name}){temporary}"
        block.results.append(self._assign(item, value))
        register = block.output(sign + cxx.CONSTRAINT[through], temporary)
        if spec.kind == "pred":
            return [self._predicate_out(block, register, keep)]
        return [self._byte_out(block, register)] if _needs_byte(spec) else [register]

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
        if isinstance(item, family.Variable):
            name = cxx.type_name(item.var.type)
            return (self.scalars.names[item.var.name], name) if name in cxx.CONSTRAINT else None
        if isinstance(item, family.Register):
            held = self.registers.container(slot_of(item.buffer, item.slot, item.dtype))
            return held if held is not None and held[1] in cxx.CONSTRAINT else None
        if isinstance(item, family.Element):
            assert isinstance(item.load, nodes.Load)
            slot = self.memory.slot(item.load.view, item.load.indices)
            held = None if slot is None else self.registers.container(slot)
            return held if held is not None and held[1] in cxx.CONSTRAINT else None
        return None

    def _assign(self, item: object, value: str) -> str:
        if isinstance(item, family.Variable):
            return f"{self.scalars.names[item.var.name]} = {value};"
        if isinstance(item, family.Register):
            return self.registers.write(slot_of(item.buffer, item.slot, item.dtype), value)
        assert isinstance(item, family.Element) and isinstance(item.load, nodes.Load)
        return self.memory.store(item.load.view, item.load.indices, value, item.load.span)

    def _quad(
        self, spec: OperandSpec, operand: family.Registers, block: _Block, span: Span | None
    ) -> list[_Part]:
        """A 128-bit register, given as its low and high 64 bits."""
        parts: list[_Part] = []
        half = OperandSpec(spec.name, spec.direction, "reg", "b64")
        for index in range(0, len(operand.items), 2):
            name = f"q{block.fresh()}"
            block.declarations.append(f".reg .b128 {name};")
            written = "w" in spec.direction
            halves = [
                self._written(half, item, block, False, span)
                if written
                else self._read(half, item, block, span)
                for item in operand.items[index : index + 2]
            ]
            pair: list[_Part] = ["{", *halves[0], ", ", *halves[1], "}"]
            if written:
                block.after.append(["mov.b128 ", *pair, f", {name};"])
            else:
                block.before.append([f"mov.b128 {name}, ", *pair, ";"])
            parts += [", " if index else "", name]
        return ["{", *parts, "}"] if spec.braces else parts


def _needs_byte(spec: OperandSpec) -> bool:
    return spec.type == "e2m1x2"


def _keeps(form: Form) -> tuple[bool, bool]:
    """Whether the statement is ``volatile``, and whether it clobbers memory."""
    effects = set(form.effects)
    clobber = bool(effects & _MEMORY_EFFECTS)
    if effects == {"reads_memory"} and "nc" in form.modifiers:
        clobber = False
    return bool(effects), clobber
