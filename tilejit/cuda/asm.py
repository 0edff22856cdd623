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

from tilejit.cuda import cxx
from tilejit.cuda.memory import Memory
from tilejit.cuda.registers import Registers
from tilejit.cuda.scalars import Scalars, unsupported
from tilejit.cuda.writer import Writer, quote
from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.ir.tensor_map import TensorMapSpec
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile import family
from tilejit.tile.family import Issue

_MEMORY_EFFECTS = frozenset({"reads_memory", "writes_memory", "barrier", "async"})

# By the C++ type of a value: the C++ type through which it reaches an instruction.
_AS_IS = {name: name if name in cxx.CONSTRAINT else "u16" for name in cxx.BITS}
_AS_BITS = {**_AS_IS, "f32": "u32", "f64": "u64"}
_AS_PREDICATE = dict.fromkeys(cxx.BITS, "u32")


class _Place:
    """What a form says about one of its operands. A 128-bit register is two 64-bit halves."""

    def __init__(self, form: Form, spec: OperandSpec, lead: str) -> None:
        self.lead = lead
        """The text ahead of the operand."""
        self.written = "w" in spec.direction
        self.output = self.written and spec.kind not in ("addr", "map")
        self.updated = spec.direction == "rw"
        self.predicate = spec.kind == "pred"
        self.quad = spec.bits == 128
        self.group = spec.braces or self.quad
        self.registers = 2 * spec.lanes if self.quad else spec.lanes
        if self.quad:
            spec = OperandSpec(spec.name, spec.direction, "reg", "b64")
        self.byte = types.needs_byte_register(form, spec)
        self.opaque = types.breaks_when_zero(form, spec)
        floats = types.takes_float_register(form, spec)
        self.travels = _AS_PREDICATE if self.predicate else _AS_IS if floats else _AS_BITS
        self.direct: dict[tuple[str, str], str | None] = {}
        """By buffer and dtype: constraint and scalar up to the slot's number, where the instruction
        takes the scalars themselves."""


class _Shape:
    """What every statement of one form has in common."""

    def __init__(self, form: Form) -> None:
        self.form = form
        volatile, self.clobbers = _keeps(form)
        self.head = 'asm volatile("' if volatile else 'asm("'
        self.places = [
            _Place(form, spec, " " if index == 0 else "|" if spec.joined else ", ")
            for index, spec in enumerate(form.operands)
        ]
        written = [i for i, place in enumerate(self.places) if place.output]
        self._sinkable = [i for i in written if form.operands[i].sinkable]
        self._outputs = sum(self.places[i].registers for i in written)

    def outputs(self, issue: Issue) -> int:
        """How many registers an instruction of this form writes; sinks do not count."""
        count = self._outputs
        for index in self._sinkable:
            operand = issue.operands[index]
            assert isinstance(operand, family.Registers)
            count -= len([item for item in operand.items if item is None])
        return count


class _Block:
    """One asm statement under construction. Inputs are numbered behind all the outputs."""

    def __init__(self, output_count: int) -> None:
        self.outputs: list[str] = []
        self.inputs: dict[str, str] = {}
        """Each distinct input, and what the assembly text calls it."""
        self.declarations: list[str] = []
        """PTX registers local to the block."""
        self.before: list[str] = []
        self.after: list[str] = []
        self.temporaries: list[str] = []
        """C++ declarations ahead of the statement."""
        self.results: list[str] = []
        """C++ statements behind it."""
        self._output_count = output_count
        self._fresh = 0

    def fresh(self) -> int:
        self._fresh += 1
        return self._fresh - 1

    def register(self, kind: str, stem: str) -> str:
        """Declares a PTX register; its name."""
        name = f"{stem}{self.fresh()}"
        self.declarations.append(f".reg .{kind} {name};")
        return name

    def input(self, operand: str) -> str:
        number = self._output_count + len(self.inputs)
        return self.inputs.setdefault(operand, f"%{number}")

    def output(self, operand: str) -> str:
        self.outputs.append(operand)
        return f"%{len(self.outputs) - 1}"

    def around(self, instruction: str) -> str:
        """The instruction between what prepares its registers and what takes them on."""
        lines = [*self.declarations, *self.before, instruction, *self.after]
        return "{" + " ".join(lines) + "}"

    def operands(self, clobbers: bool) -> str:
        """The statement behind the assembly text."""
        outputs, inputs = ", ".join(self.outputs), ", ".join(self.inputs)
        if clobbers:
            return f' : {outputs} : {inputs} : "memory"'
        if inputs:
            return f" : {outputs} : {inputs}"
        # An extended statement even without operands, so that %% means % everywhere.
        return f" : {outputs}" if outputs else " ::"


class Assembly:
    """Prints issues."""

    def __init__(
        self, scalars: Scalars, registers: Registers, memory: Memory, writer: Writer
    ) -> None:
        self.scalars = scalars
        self.registers = registers
        self.memory = memory
        self.writer = writer
        self.tensor_maps: dict[TensorMapSpec, str] = {}
        """The maps that the kernel takes as parameters, and their names."""
        self._shapes: dict[Form, _Shape] = {}
        self._shape: _Shape | None = None
        self._ops = 0
        self._span: Span | None = None
        self._where = ""
        self._value: tuple[nodes.Expr, str, str] | None = None
        """The value read last in the current call, its text and C++ type."""

    @property
    def mnemonics(self) -> set[str]:
        """Of all instructions printed so far."""
        return {form.mnemonic for form in self._shapes}

    def start_call(self) -> None:
        """The following instructions are another call's: an expression may have another text now."""
        self._value = None

    def issue(self, issue: Issue) -> None:
        """Writes one instruction."""
        shape = self._shape
        if shape is None or shape.form is not issue.form:
            shape = self._shape = self._shape_of(issue.form)
        if issue.span is not self._span:
            self._at(issue.span)
        self._ops += 1
        block = _Block(shape.outputs(issue))
        text = self._instruction(issue, shape, block)
        if block.declarations:
            text = block.around(text)
        comment = f" // tilejit:op={self._ops}{self._where}"
        statement = f'{shape.head}{text}{comment}"{block.operands(shape.clobbers)});'
        if block.temporaries:
            statement = " ".join(["{", *block.temporaries, statement, *block.results, "}"])
        self.writer.span(issue.span)
        self.writer.line(statement)

    def record(self, issue: Issue) -> None:
        """Notes the registers that one instruction accesses."""
        exprs = [] if issue.pred is None else [issue.pred]
        for operand in issue.operands:
            if isinstance(operand, family.Registers):
                for item in operand.items:
                    if isinstance(item, family.Register):
                        self.registers.note(item)
                    elif isinstance(item, family.Value):
                        exprs.append(item.expr)
                    elif isinstance(item, family.Element):
                        exprs.append(item.load)
            elif isinstance(operand, family.Memory):
                exprs.append(operand.base)
            elif isinstance(operand, family.TensorBox):
                exprs += operand.coords
                if not isinstance(operand.map, TensorMapSpec):
                    exprs.append(operand.map)
        for expr in exprs:
            # Most are variables and numbers, which lie in no register tile.
            if not isinstance(expr, (nodes.Var, nodes.Const)):
                self.scalars.piece(expr)

    def _shape_of(self, form: Form) -> _Shape:
        """Asked only where the form changes: looking one up hashes all of it."""
        found = self._shapes.get(form)
        if found is None:
            found = self._shapes[form] = _Shape(form)
        return found

    def _at(self, span: Span | None) -> None:
        """The following instructions come from ``span``."""
        self._span = span
        self._where = quote(f" {span.short}").replace("%", "%%") if span else ""

    def _instruction(self, issue: Issue, shape: _Shape, block: _Block) -> str:
        text = issue.form.spelling
        if issue.pred is not None and self.scalars.value(issue.pred) != 1:
            text = f"@{self._predicate_in(block, self.scalars.text(issue.pred))} {text}"
        for place, operand in zip(shape.places, issue.operands):
            text += place.lead
            if isinstance(operand, family.Registers):
                if place.group:
                    text += self._group(issue, place, operand.items, block)
                elif place.written:
                    text += self._written(issue, place, operand.items[0], block)
                else:
                    text += self._read(issue, place, operand.items[0], block)
            elif isinstance(operand, family.Memory):
                text += self._memory(place, operand, block)
            elif isinstance(operand, family.TensorBox):
                text += self._tensor_box(operand, block)
            else:
                text += str(operand.value)
        return text + ";"

    # --- operands

    def _group(self, issue: Issue, place: _Place, items: tuple[object, ...], block: _Block) -> str:
        one = self._written if place.written else self._read
        name = block.register("b128", "q") if place.quad else ""
        group = "{" + ", ".join([one(issue, place, item, block) for item in items]) + "}"
        if not name:
            return group
        if place.written:
            block.after.append(f"mov.b128 {group}, {name};")
        else:
            block.before.append(f"mov.b128 {name}, {group};")
        return name

    def _direct(self, place: _Place, register: family.Register) -> str | None:
        """A register as an operand without its direction, where the instruction takes its scalar."""
        key = (register.buffer.name, register.dtype.name)
        if key not in place.direct:
            place.direct[key] = self._start(place, register)
        start = place.direct[key]
        return None if start is None else f"{start}{register.slot})"

    def _start(self, place: _Place, register: family.Register) -> str | None:
        """An entry of ``place.direct``."""
        found = self.registers.scalars(register.buffer, register.dtype)
        if found is None or place.predicate:
            return None
        stem, held = found
        return f'{cxx.CONSTRAINT[held]}"({stem}' if place.travels[held] == held else None

    def _memory(self, place: _Place, operand: family.Memory, block: _Block) -> str:
        base, offset = operand.base, operand.offset_bytes
        if place.written:
            self.memory.note_written(base)
        if isinstance(base, nodes.Address) and isinstance(base.offset_bytes, nodes.Const):
            moved = offset + int(base.offset_bytes.value)
            if -(1 << 31) <= moved < 1 << 31:
                zero = nodes.Const(0, base.offset_bytes.type)
                base, offset = nodes.Address(base.buffer, zero, base.type), moved
        constraint = "r" if operand.space in ("shared", "tmem") else "l"
        register = block.input(f'"{constraint}"({self.scalars.text(base)})')
        return f"[{register}+{offset}]" if offset else f"[{register}]"

    def _tensor_box(self, operand: family.TensorBox, block: _Block) -> str:
        map_ = operand.map
        if isinstance(map_, TensorMapSpec):
            address = f"(u64)&{self._map_name(map_)}"
        else:
            address = self.scalars.text(map_)
        register = block.input(f'"l"({address})')
        coords = [block.input(f'"r"({self.scalars.text(c)})') for c in operand.coords]
        return f"[{register}, {{{', '.join(coords)}}}]"

    def _map_name(self, spec: TensorMapSpec) -> str:
        """The kernel's parameter for a map; equal specs are one."""
        return self.tensor_maps.setdefault(spec, f"tj_map{len(self.tensor_maps)}")

    def _predicate_in(self, block: _Block, text: str) -> str:
        name = block.register("pred", "p")
        register = block.input(f'"r"((u32){text})')
        block.before.append(f"setp.ne.b32 {name}, {register}, 0;")
        return name

    def _read(self, issue: Issue, place: _Place, item: object, block: _Block) -> str:
        if isinstance(item, family.Register):
            direct = self._direct(place, item)
            if direct is not None:
                return block.input(f'"{direct}')
        text, name = self._source(item, issue.span)
        if place.predicate:
            return self._predicate_in(block, text)
        held = place.travels[name]
        converted = _converted(text, name, held)
        register = block.input(f'"{cxx.CONSTRAINT[held]}"({converted})')
        known = isinstance(item, family.Value) and isinstance(item.expr, nodes.Const)
        if place.opaque and not known:
            return self._opaque_in(block, register)
        return self._byte_in(block, register) if place.byte and cxx.bits_of(name) == 8 else register

    def _opaque_in(self, block: _Block, register: str) -> str:
        """The same bits, of which the assembler knows nothing: it takes a move for what it moves, and
        cannot know that a launch never has 2 GiB of shared memory."""
        name = block.register("b32", "n")
        block.before += [
            f"mov.u32 {name}, %%dynamic_smem_size;",
            f"shr.u32 {name}, {name}, 31;",
            f"or.b32 {name}, {name}, {register};",
        ]
        return name

    def _byte_in(self, block: _Block, narrow: str) -> str:
        name = block.register("b8", "b")
        block.before.append(f"mov.b16 {{{name}, _}}, {narrow};")
        return name

    def _source(self, item: object, span: Span | None) -> tuple[str, str]:
        """Text and C++ type of a register that is read."""
        if isinstance(item, family.Register):
            return self.registers.read(item), cxx.ctype(item.dtype)
        if isinstance(item, family.Value):
            return self._value_read(item.expr)
        if isinstance(item, family.Variable):
            return self.scalars.names[item.var.name], cxx.type_name(item.var.type)
        if isinstance(item, family.Element):
            return self.scalars.text(item.load), cxx.type_name(item.load.type)
        raise unsupported(f"{type(item).__name__} as an input register", span)

    def _value_read(self, expr: nodes.Expr) -> tuple[str, str]:
        # A scalar operand is the same expression in every instruction of a call.
        if self._value is None or self._value[0] is not expr:
            self._value = expr, self.scalars.text(expr), cxx.type_name(expr.type)
        return self._value[1:]

    def _written(self, issue: Issue, place: _Place, item: object, block: _Block) -> str:
        if item is None:
            return "_"
        keep = place.updated or (issue.preserve_dst and issue.pred is not None)
        sign = "+" if keep else "="
        if isinstance(item, family.Register):
            direct = self._direct(place, item)
        else:
            direct = self._lvalue(place, item)
        if direct is not None:
            return block.output(f'"{sign}{direct}')
        current, name = self._source(item, issue.span)
        through = place.travels[name]
        temporary = f"tj_t{block.fresh()}"
        initial = f" = {_converted(current, name, through)}" if keep else ""
        block.temporaries.append(f"{through} {temporary}{initial};")
        block.results.append(self._assign(item, _converted(temporary, through, name), name))
        register = block.output(f'"{sign}{cxx.CONSTRAINT[through]}"({temporary})')
        if place.predicate:
            return self._predicate_out(block, register, keep)
        return self._byte_out(block, register) if place.byte else register

    def _predicate_out(self, block: _Block, register: str, keep: bool) -> str:
        name = block.register("pred", "p")
        if keep:
            block.before.append(f"setp.ne.b32 {name}, {register}, 0;")
        block.after.append(f"selp.b32 {register}, 1, 0, {name};")
        return name

    def _byte_out(self, block: _Block, register: str) -> str:
        name = block.register("b8", "b")
        block.after.append(f"cvt.u16.u8 {register}, {name};")
        return name

    def _lvalue(self, place: _Place, item: object) -> str | None:
        """As ``_direct``, of a variable or an element."""
        if isinstance(item, family.Variable):
            name = cxx.type_name(item.var.type)
            if place.travels[name] != name or place.predicate:
                return None
            return f'{cxx.CONSTRAINT[name]}"({self.scalars.names[item.var.name]})'
        assert isinstance(item, family.Element) and isinstance(item.load, nodes.Load)
        register = self.memory.register(item.load.view, item.load.indices)
        return None if register is None else self._direct(place, register)

    def _assign(self, item: object, value: str, name: str) -> str:
        """Stores ``value`` of C++ type ``name``."""
        if isinstance(item, family.Variable):
            return f"{self.scalars.names[item.var.name]} = {value};"
        if isinstance(item, family.Register):
            ctype = cxx.ctype(item.dtype)
            return self.registers.write(item, cxx.reinterpret(value, name, ctype))
        assert isinstance(item, family.Element) and isinstance(item.load, nodes.Load)
        return self.memory.store(item.load.view, item.load.indices, value, item.load.span)


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
