"""Raw ``T.ptx`` calls: one instruction whose operands the author wrote one by one.

A call's operands stand in PTX order. A brace group of several registers is an ``ir.Tuple``, or its
registers one after another. The operands select the form among those with the spelling.

Not here: tile operands (``tile.call``), what the instruction does (families).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilejit import dtypes
from tilejit.errors import Report, Span
from tilejit.ir import build, nodes
from tilejit.ptx import spelling, types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile.family import (
    Element,
    Immediate,
    Issue,
    Memory,
    NativeOperand,
    Registers,
    Step,
    TensorBox,
    Value,
    Variable,
)

KEYWORDS = ("pred", "preserve_dst")


@dataclass(frozen=True, slots=True)
class Parsed:
    """``tile.apply`` and ``ptx`` calls taken apart."""

    name: str
    operands: tuple[nodes.Expr, ...]
    keywords: dict[str, nodes.Keyword]


def parse(call: nodes.Call) -> Parsed:
    """The instruction name, operands and keywords of a call."""
    name, operands, keywords = call.args
    assert isinstance(name, nodes.Text) and isinstance(operands, nodes.Tuple)
    assert isinstance(keywords, nodes.Tuple)
    named = {k.name: k for k in keywords.items if isinstance(k, nodes.Keyword)}
    return Parsed(name.value, operands.items, named)


def written_variables(call: nodes.Call) -> tuple[nodes.Var, ...]:
    """The scalar variables that a raw call overwrites."""
    parsed = parse(call)
    try:
        forms = spelling.lookup(parsed.name)
    except spelling.SpellingError:
        forms = ()
    written: dict[str, nodes.Var] = {}
    for form in forms:
        groups = group_operands(form, parsed.operands)
        for spec, items in zip(form.operands, groups or ()):
            if "w" in spec.direction and spec.kind not in ("addr", "map"):
                written.update({i.name: i for i in items if isinstance(i, nodes.Var)})
    return tuple(written.values())


def is_sink(expr: nodes.Expr) -> bool:
    """``T.ptx.SINK`` (the text ``_``), or a keyword left at None."""
    return (isinstance(expr, nodes.Text) and expr.value == "_") or (
        isinstance(expr, nodes.Static) and expr.value is None
    )


def group_operands(
    form: Form, operands: tuple[nodes.Expr, ...]
) -> list[tuple[nodes.Expr, ...]] | None:
    """The expressions of each of the form's operands; None when the counts do not fit."""
    groups: list[tuple[nodes.Expr, ...]] = []
    position = 0
    for spec in form.operands:
        if position >= len(operands):
            if spec.optional:
                break
            return None
        item = operands[position]
        if spec.kind == "map":
            found = _map_operands(operands[position:], spec.lanes)
            if found is None:
                return None
            groups.append(found[0])
            position += found[1]
            continue
        lanes = spec.lanes if spec.kind in ("reg", "pred") else 1
        if isinstance(item, nodes.Tuple):
            if len(item.items) != lanes:
                return None
            groups.append(item.items)
            position += 1
        else:
            taken = operands[position : position + lanes]
            if len(taken) != lanes or any(isinstance(t, nodes.Tuple) for t in taken):
                return None
            groups.append(taken)
            position += lanes
    return groups if position == len(operands) else None


def _map_operands(
    operands: tuple[nodes.Expr, ...], coordinates: int
) -> tuple[tuple[nodes.Expr, ...], int] | None:
    """A tensor map's address with its coordinates, and how many operands they are: the coordinates
    stand in a group of their own or one after another."""
    if len(operands) > 1 and isinstance(operands[1], nodes.Tuple):
        items = (operands[0], *operands[1].items)
        return (items, 2) if len(items) == 1 + coordinates else None
    items = operands[: 1 + coordinates]
    return (items, len(items)) if len(items) == 1 + coordinates else None


# --- check


def choose(call: nodes.Call, forms: tuple[Form, ...], report: Report | None) -> Form | None:
    """The form whose operands the call's fit; faults of the best candidate go to ``report``."""
    parsed = parse(call)
    best: Report | None = None
    for form in forms:
        groups = group_operands(form, parsed.operands)
        if groups is None:
            continue
        trial = Report()
        for spec, items in zip(form.operands, groups):
            if spec.kind == "map":
                _check_map(form, spec, items, trial, call.span)
                continue
            for item in items:
                _check_item(form, spec, item, trial, call.span)
        if not trial.failed:
            return form
        if best is None or len(trial.diagnostics) < len(best.diagnostics):
            best = trial
    if report is not None:
        if best is not None:
            report.diagnostics.extend(best.diagnostics)
        else:
            report.error(
                "ptx/operands",
                f"{parsed.name} was given {len(parsed.operands)} operands",
                span=call.span,
                help="it takes " + " or ".join(signature(form) for form in forms),
            )
    return None


def signature(form: Form) -> str:
    """``d: …, a: …`` of a form, for messages."""
    parts = [f"{spec.name}: {types.describe(spec)}" for spec in form.operands]
    return "(" + ", ".join(parts) + ")"


def check(call: nodes.Call, forms: tuple[Form, ...], report: Report) -> None:
    """Every fault of a raw call but its target."""
    parsed = parse(call)
    for name, keyword in parsed.keywords.items():
        if name not in KEYWORDS:
            report.error(
                "ptx/unknown-keyword",
                f"{parsed.name} has no keyword {name!r}",
                span=keyword.span or call.span,
                help="a raw instruction takes pred and preserve_dst; qualifiers are part of the opcode",
            )
    check_predication(parsed.keywords, forms, report, call.span, "ptx")
    choose(call, forms, report)


def check_predication(
    keywords: dict[str, nodes.Keyword],
    forms: tuple[Form, ...],
    report: Report,
    span: Span | None,
    family: str,
) -> None:
    """``pred`` is a bool; ``preserve_dst`` is a static bool that needs pred and a register result."""
    pred, preserve = keywords.get("pred"), keywords.get("preserve_dst")
    if pred is not None and not is_sink(pred.value) and pred.value.type != nodes.BOOL:
        report.error(
            f"{family}/pred-type",
            f"pred is {pred.value.type}, expected bool",
            span=pred.span or span,
            help="compare it with 0",
        )
    if preserve is None or not static_truth(preserve.value):
        if preserve is not None and not isinstance(preserve.value, nodes.Const):
            report.error(
                f"{family}/static-keyword",
                "preserve_dst must be known at compile time",
                span=preserve.span or span,
            )
        return
    if pred is None or is_sink(pred.value):
        report.error(
            f"{family}/preserve-dst",
            "preserve_dst keeps the destination where pred is false, and there is no pred",
            span=preserve.span or span,
            help="give pred= or leave preserve_dst out",
        )
    if not any(s.kind == "reg" and "w" in s.direction for form in forms for s in form.operands):
        report.error(
            f"{family}/preserve-dst",
            "preserve_dst needs a register result, and this instruction has none",
            span=preserve.span or span,
        )


def static_truth(expr: nodes.Expr) -> bool:
    return isinstance(expr, nodes.Const) and bool(expr.value)


def _check_item(
    form: Form, spec: OperandSpec, item: nodes.Expr, report: Report, span: Span | None
) -> None:
    where = item.span or span
    if spec.kind == "imm":
        _check_immediate(form, spec, item, report, span or where)
    elif spec.kind == "addr":
        if not isinstance(item.type, nodes.PointerType) and not _is_address_number(spec, item):
            report.error(
                "ptx/address", f"{spec.name} of {form.spelling} is {item.type}, expected an address",
                span=where, help=_address_help(spec),
            )  # fmt: skip
        else:
            _check_space(form, spec, item, report, where)
    elif "w" in spec.direction:
        _check_destination(form, spec, item, report, where)
    elif not _widens(spec, item):
        check_scalar(form, spec, item, report, where, "ptx")
        _check_literal(form, spec, item, report, where)


def _address_help(spec: OperandSpec) -> str:
    if spec.space == "tmem":
        return "the uint32 that tcgen05.alloc wrote is one, and d.ptr_to([…]) of T.cuda.decl_tmem gives one"
    return "x.ptr_to([…]) gives one"


def _check_map(
    form: Form,
    spec: OperandSpec,
    items: tuple[nodes.Expr, ...],
    report: Report,
    span: Span | None,
) -> None:
    """A tensor map is in global memory; its coordinates are int32."""
    map_, *coordinates = items
    if map_.type not in (nodes.PointerType("global"), nodes.UINT64):
        report.error(
            "ptx/address",
            f"{spec.name} of {form.spelling} is {map_.type}, expected the global address of a tensor map",
            span=map_.span or span,
        )  # fmt: skip
    for number, item in enumerate(coordinates):
        if item.type != nodes.INT32:
            report.error(
                "ptx/operand-type",
                f"coordinate {number} of {form.spelling} is {item.type}, expected int32",
                span=item.span or span,
                help="T.int32(…) converts",
            )


def _widens(spec: OperandSpec, item: nodes.Expr) -> bool:
    """A shared pointer where the instruction takes a ``.u64`` address (``mapa.u64``)."""
    return spec.type == "u64" and item.type == nodes.PointerType("shared")


def _widened(form: Form, item: nodes.Expr) -> nodes.Expr:
    """A shared pointer as 64 bits: the generic address, or, where the instruction names the space,
    the address in it."""
    if any(word.startswith("shared") for word in form.modifiers):
        near = nodes.Bitcast(item, nodes.UINT32, span=item.span)
        return nodes.Cast(near, nodes.UINT64, span=item.span)
    return nodes.Call("cuda.generic_address", (item,), nodes.UINT64, span=item.span)


def _check_immediate(
    form: Form, spec: OperandSpec, item: nodes.Expr, report: Report, span: Span | None
) -> None:
    if not (isinstance(item, nodes.Const) and item.type.dtype.is_integer):
        found = f"{item.type} known at run time only"
        if isinstance(item, nodes.Const):
            found = f"{item.value!r}, a {item.type}"
    elif spec.values is None or item.value in spec.values:
        return
    else:
        found = str(item.value)
    report.error(
        "ptx/immediate",
        f"{spec.name} of {form.spelling} is {found}, expected {types.describe(spec)}",
        span=span,
        help=None
        if isinstance(item, nodes.Const)
        else "the number is part of the instruction: unroll the loop (T.unroll), or branch on the value",
    )


def _is_address_number(spec: OperandSpec, item: nodes.Expr) -> bool:
    """A uint32 is an address in shared or tensor memory; a uint64 is a generic or global one, never local:
    the assembler dies of ``prefetch.local`` at a kernel's parameter."""
    if spec.space == "local":
        return False
    narrow = spec.space == "tmem" or spec.space.startswith("shared")
    return item.type == (nodes.UINT32 if narrow else nodes.UINT64)


def _check_space(
    form: Form, spec: OperandSpec, item: nodes.Expr, report: Report, span: Span | None
) -> None:
    type_ = item.type
    if isinstance(type_, nodes.PointerType) and spec.space:
        family = spec.space.split("::")[0]
        if type_.space != family:
            report.error(
                "ptx/space",
                f"{spec.name} of {form.spelling} is an address in {type_.space} memory, "
                f"expected one in {spec.space}",
                span=span,
            )


def _check_destination(
    form: Form, spec: OperandSpec, item: nodes.Expr, report: Report, span: Span | None
) -> None:
    if is_sink(item):
        if not spec.sinkable:
            report.error("ptx/sink", f"{spec.name} of {form.spelling} cannot be _", span=span)
        return
    if spec.sink_only:
        report.error(
            "ptx/sink", f"{form.spelling} has no {spec.name} as a result, expected the sink _",
            span=span, help="T.ptx.SINK in its place",
        )  # fmt: skip
        return
    if not isinstance(item, (nodes.Var, nodes.Load)):
        report.error(
            "ptx/destination",
            f"{spec.name} of {form.spelling} is written: give a variable or an element",
            span=span,
            help="a name bound to a literal is a constant; write to an element of a register tile: "
            f'r = T.alloc_local((1,), "{types.stored_as(spec)}", layout="default"), then r[0]',
        )
    elif not (isinstance(item.type, nodes.ScalarType) and types.accepts(spec, item.type.dtype)):
        report.error(
            "ptx/operand-type",
            f"{spec.name} of {form.spelling} is {item.type}, expected {types.describe(spec)}",
            span=span,
        )


def check_scalar(
    form: Form,
    spec: OperandSpec,
    item: nodes.Expr,
    report: Report,
    span: Span | None,
    family: str,
) -> None:
    """A scalar expression as a register that is read."""
    if isinstance(item, nodes.Const) and isinstance(item.value, float):
        if spec.kind == "reg" and types.scalar_type(spec.type) is None:
            report.error(
                f"{family}/ambiguous-literal",
                f"{spec.name} of {form.spelling} takes bits, and {item.value} does not say how "
                "they encode it",
                span=span,
                help='write T.bitcast(T.float32(…), "uint32")' + _numeric_sibling(form),
            )
            return
    type_ = literal(spec, item).type
    if isinstance(type_, nodes.PointerType):
        bits = 32 if type_.space in ("shared", "tmem") else 64
        if spec.kind == "reg" and spec.bits == bits and spec.type[0] in "bu":
            return
    if not (isinstance(type_, nodes.ScalarType) and types.accepts(spec, type_.dtype)):
        report.error(
            f"{family}/operand-type",
            f"{spec.name} of {form.spelling} is {type_}, expected {types.describe(spec)}",
            span=span,
        )


def _check_literal(
    form: Form, spec: OperandSpec, item: nodes.Expr, report: Report, span: Span | None
) -> None:
    """A literal in place of a register reaches the assembler, which refuses values, or dies of them."""
    if spec.values is None or not isinstance(item, nodes.Const) or item.value in spec.values:
        return
    report.error(
        "ptx/literal-range",
        f"{spec.name} of {form.spelling} is {item.value}, expected {types.values_text(spec.values)}",
        span=span,
    )


def _numeric_sibling(form: Form) -> str:
    """The spelling of the same instruction that takes numbers, as the end of a help."""
    stem, _, type_ = form.spelling.rpartition(".b")
    try:
        (sibling, *_) = spelling.lookup(f"{stem}.f{type_}")
    except spelling.SpellingError:
        return ""
    return f", or {sibling.spelling}, which takes the number"


def literal(spec: OperandSpec, item: nodes.Expr) -> nodes.Expr:
    """A literal in the operand's own type, when it has a value there; anything else as it is.

    A literal's type beside an instruction is the instruction's: 2.0 is an f16 for ``add.f16``, and
    1 is a uint64 for ``.b64``.
    """
    if not isinstance(item, nodes.Const) or spec.kind != "reg" or isinstance(item.value, bool):
        return item
    wanted = types.scalar_type(spec.type) or types.container_type(spec.type)
    if wanted is None or item.type.dtype == wanted or types.accepts(spec, item.type.dtype):
        return item
    if wanted.is_float:
        return build.const(float(item.value), wanted, span=item.span)
    if isinstance(item.value, float):
        return item
    low, high = dtypes.integer_range(wanted)
    if types.scalar_type(spec.type) is None:
        low = -(1 << (wanted.bits - 1))  # bits: a negative literal means its two's complement
    return build.const(item.value, wanted, span=item.span) if low <= item.value <= high else item


# --- bind


def bind(call: nodes.Call, form: Form) -> list[Step]:
    """The one issue of a checked raw call."""
    parsed = parse(call)
    groups = group_operands(form, parsed.operands) or []
    operands = tuple(_native(form, spec, items) for spec, items in zip(form.operands, groups))
    pred = parsed.keywords.get("pred")
    preserve = parsed.keywords.get("preserve_dst")
    return [
        Issue(
            form,
            operands,
            None if pred is None or is_sink(pred.value) else pred.value,
            preserve is not None and static_truth(preserve.value),
            (),
            call.span,
        )
    ]


def _native(form: Form, spec: OperandSpec, items: tuple[nodes.Expr, ...]) -> NativeOperand:
    if spec.kind == "imm":
        (item,) = items
        assert isinstance(item, nodes.Const)
        return Immediate(int(item.value))
    if spec.kind == "addr":
        return address(items[0], spec)
    if spec.kind == "map":
        return TensorBox(_map_address(items[0]), items[1:])
    if "w" in spec.direction:
        return Registers(tuple(_destination(item) for item in items))
    items = tuple(_widened(form, i) if _widens(spec, i) else literal(spec, i) for i in items)
    return Registers(tuple(Value(item) for item in items))


def _map_address(item: nodes.Expr) -> nodes.Expr:
    if isinstance(item.type, nodes.PointerType):
        return item
    return nodes.Bitcast(item, nodes.PointerType("global"), span=item.span)


def _destination(item: nodes.Expr) -> Variable | Element | None:
    if is_sink(item):
        return None
    return Variable(item) if isinstance(item, nodes.Var) else Element(item)


def address(item: nodes.Expr, spec: OperandSpec) -> Memory:
    """A pointer, or a number that is an address, as a memory operand."""
    if isinstance(item.type, nodes.PointerType):
        space = item.type.space
    else:
        space = "shared" if spec.space.startswith("shared") else "global"
        if spec.space == "tmem":
            space = "tmem"
        item = nodes.Bitcast(item, nodes.PointerType(space), span=item.span)
    return Memory(item, 0, space)
