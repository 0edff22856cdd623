"""Raw instructions: ``T.ptx…(destinations, sources, pred=…)``, a statement without a value.

A destination is a name or an element of a register tile. Names hold values, so writing a name is an
assignment to it: the instruction writes a new variable that starts as the old value, and the name is
bound to that. Another name for the old value, a caller's or a tuple's, keeps it.

Not here: the forms (``ptx``), whether the operands fit (``tile.raw``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import Any

from tilejit.frontend import env, intrinsics, names, operators, tensors
from tilejit.frontend.expressions import evaluate, evaluate_all
from tilejit.frontend.state import Bound, Frame, Lowering
from tilejit.frontend.values import (
    children,
    describe,
    dtype_of,
    is_number,
    is_runtime,
    is_scalar,
    map_leaves,
)
from tilejit.ir import build
from tilejit.ir import nodes as ir
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.ptx.instruction import AddressOperand, Instruction, PredicateOperand, Sink

SINK = ir.Text("_")
"""How ``T.ptx.SINK`` stands in a raw call's operands."""


@dataclass(frozen=True)
class Operand:
    """An argument: its value, what was written for it, and how many statements of the block came before
    what is evaluated after it."""

    value: Any
    node: ast.expr | None = None
    mark: int | None = None


def call(lw: Lowering, instruction: Instruction, node: ast.Call) -> None:
    """The call ``node`` of a raw instruction."""
    arguments: list[Operand] = []
    for argument in node.args:
        values = evaluate_all(lw, [argument])
        arguments += [Operand(value, argument, len(lw.block)) for value in values]
    keywords: dict[str, Operand] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            lw.refuse("syntax", "`**` in a call is not part of the kernel language", keyword.value,
                      help="write the keywords out")  # fmt: skip
        value = evaluate(lw, keyword.value)
        keywords[keyword.arg] = Operand(value, keyword.value, len(lw.block))
    with lw.at(node):
        issue(lw, instruction, arguments, keywords)


def _is_written(spec: OperandSpec) -> bool:
    return "w" in spec.direction and spec.kind not in ("addr", "map")


def _settled(lw: Lowering, arguments: list[Operand], written: list[bool]) -> list[Operand]:
    """``arguments`` as they were when Python would evaluate them; an element that is written stays the
    element."""
    settled: list[Operand] = []
    count = len(lw.block)
    for argument, is_written in zip(arguments, written):
        if argument.mark is not None and argument.mark != count:
            mark = argument.mark + len(lw.block) - count
            later = lw.block[mark:]
            del lw.block[mark:]
            keep = _kept_place if is_written else _kept
            argument = replace(argument, value=keep(lw, argument.value))
            lw.block.extend(later)
        settled.append(argument)
    return settled


def _kept(lw: Lowering, value: Any) -> Any:
    return lw.keep(value, "before")


def _kept_place(lw: Lowering, value: Any) -> Any:
    def place(leaf: Any) -> Any:
        if not isinstance(leaf, ir.Load):
            return leaf
        return replace(leaf, view=_kept(lw, leaf.view), indices=_kept(lw, leaf.indices))

    return map_leaves(value, place)


def issue(
    lw: Lowering, instruction: Instruction, arguments: list[Operand], keywords: dict[str, Operand]
) -> None:
    """One instruction, and the assignments to the names that it writes."""
    forms = instruction.forms
    unknown = [k for k in keywords if k not in ("pred", "preserve_dst")]
    if unknown:
        lw.refuse("arguments", f"{instruction}: unknown keyword {unknown[0]!r}",
                  help="raw instructions take pred= and preserve_dst=")  # fmt: skip
    arguments = _with_sink(arguments, forms)
    specs = _raw_specs(forms, [a.value for a in arguments])
    written = [any(map(_is_written, of_one)) for of_one in specs]
    settled = _settled(lw, [*arguments, *keywords.values()], [*written, *(False for _ in keywords)])
    arguments, given = settled[: len(arguments)], settled[len(arguments) :]
    destinations = Destinations(lw, instruction)
    values = [destinations.of(a) if w else a.value for a, w in zip(arguments, written)]
    items = tuple(_operand(lw, value, of_one) for value, of_one in zip(values, specs))
    guards = _guards(lw, dict(zip(keywords, (g.value for g in given))))
    call = ir.Call(
        "ptx", (ir.Text(instruction.spelling), ir.Tuple(items), ir.Tuple(guards)),
        span=lw.here(),
    )  # fmt: skip
    lw.emit(ir.Evaluate(call, span=lw.here()))
    destinations.bind()


def _guards(lw: Lowering, keywords: dict[str, Any]) -> tuple[ir.Keyword, ...]:
    guards = []
    if keywords.get("pred") is not None:
        test = operators.typed(lw, operators.truth(lw, keywords["pred"]))
        guards.append(ir.Keyword("pred", test, span=lw.here()))
    if "preserve_dst" in keywords:
        kept = operators.typed(lw, bool(keywords["preserve_dst"]))
        guards.append(ir.Keyword("preserve_dst", kept))
    return tuple(guards)


# --- destinations


class Destinations:
    """What one instruction writes: names get variables for the new values (``of``), and are bound to
    them after the instruction (``bind``)."""

    def __init__(self, lw: Lowering, instruction: Instruction):
        self.lowering = lw
        self.instruction = instruction
        self.names: dict[str, tuple[ast.Name, Frame, Any]] = {}

    def of(self, argument: Operand) -> Any:
        """The value, name or element that stands for ``argument`` in the instruction."""
        return self._of(argument.value, argument.node)

    def _of(self, value: Any, node: ast.expr | None) -> Any:
        if isinstance(value, PredicateOperand):
            inner = node.args[0] if isinstance(node, ast.Call) and node.args else None
            return PredicateOperand(self._of(value.value, inner))
        if isinstance(node, ast.Name):
            return self._of_name(node)
        if isinstance(value, tuple | list):
            shown = node.elts if isinstance(node, ast.Tuple | ast.List) else ()
            nodes = list(shown) if len(shown) == len(value) else [node] * len(value)
            return tuple(map(self._of, value, nodes))
        if _is_variable(value):
            self._refuse(node)
        return value

    def _of_name(self, node: ast.Name) -> Any:
        lw = self.lowering
        if node.id in self.names:
            return self.names[node.id][2]
        old = names.resolve(lw, node.id, node)
        if not _holds_variable(old):
            return old
        home = self._home(node)
        owned = home is lw.frame and any(node.id in r.carried for r in home.regions)

        def own(leaf: Any) -> Any:
            if not _is_variable(leaf) or (owned and leaf.name in lw.mutable):
                return leaf
            return lw.declare(node.id, leaf)

        new = map_leaves(old, own)
        self.names[node.id] = (node, home, new)
        return new

    def _home(self, node: ast.Name) -> Frame:
        """The scope that has the name: this function's, or that of a comprehension in it."""
        lw = self.lowering
        scope: Frame | None = lw.frame.scope
        while scope is not None and scope is not lw.frame and node.id not in scope.env:
            scope = scope.outer
        if scope is None or node.id not in scope.env:
            lw.refuse(
                "nonlocal", f"{self.instruction} writes {node.id!r}, a name of the function around "
                "this one", node, help="local functions do not change outer names: return the value",
            )  # fmt: skip
        return scope

    def _refuse(self, node: ast.expr | None) -> None:
        written = "a value without a name" if node is None else ast.unparse(node)
        self.lowering.refuse(
            "destination", f"{self.instruction} writes {written}, expected a name or an element of a "
            "register tile", node,
            help="values do not change: write a name, and make the tuple or object from it; or keep "
            'the values in r = T.alloc_local((n,), "…", layout="default") and write r[i]',
        )  # fmt: skip

    def bind(self) -> None:
        lw = self.lowering
        for name, (node, home, new) in self.names.items():
            if home is lw.frame:
                env.bind(lw, name, new, node)
            else:
                home.env[name] = Bound(new, lw.span(node))


def _holds_variable(value: Any) -> bool:
    parts = children(value)
    return _is_variable(value) if parts is None else any(map(_holds_variable, parts))


def _is_variable(value: Any) -> bool:
    return isinstance(value, ir.Var | ir.HardwareId) and isinstance(value.type, ir.ScalarType)


# --- operands


def _raw_specs(forms: tuple[Form, ...], args: list[Any]) -> list[list[OperandSpec]]:
    """The operands that each argument may be one of, or a part of."""
    spread = [specs for form in forms if (specs := _spread(form, args)) is not None]
    return [
        [specs[i] for specs in spread] or intrinsics.operand_specs(forms, i, len(args))
        for i in range(len(args))
    ]


def _spread(form: Form, args: list[Any]) -> list[OperandSpec] | None:
    """The operand of each argument, where registers and a tensor map's coordinates may stand one after
    another or in a group; None where the form takes another number of arguments."""
    specs: list[OperandSpec] = []
    for spec in form.operands:
        if spec.optional and len(specs) == len(args):
            break
        if spec.kind == "map":
            specs.append(spec)
        grouped = len(specs) < len(args) and isinstance(args[len(specs)], tuple | list)
        spreads = spec.kind in ("map", "reg", "pred") and not grouped
        specs += [spec] * (spec.lanes if spreads else 1)
    return specs if len(specs) == len(args) else None


def _with_sink(args: list[Operand], forms: tuple[Form, ...]) -> list[Operand]:
    """A left-out result nobody wants (``mbarrier.arrive.expect_tx(mbar, n)``) is the sink."""
    counts = {len(f.operands) for f in forms} | {
        sum(not o.optional for o in f.operands) for f in forms
    }
    first_is_sink = all(f.operands and f.operands[0].sinkable for f in forms)
    if first_is_sink and len(args) not in counts and len(args) + 1 in counts:
        return [Operand(Sink()), *args]
    return args


def _operand(lw: Lowering, value: Any, specs: list[OperandSpec]) -> Any:
    if isinstance(value, Sink):
        return SINK
    if isinstance(value, AddressOperand):
        return _offset_address(lw, value)
    if isinstance(value, PredicateOperand):
        return operators.typed(lw, operators.truth(lw, value.value))
    if isinstance(value, tuple | list):
        return ir.Tuple(tuple(_operand(lw, item, specs) for item in value))
    if is_number(value):
        return intrinsics.typed_literal(lw, value, specs)
    if is_runtime(value):
        return value
    lw.refuse(
        "operand",
        f"an operand of a raw instruction is a scalar or a pointer, got {describe(value)}",
    )


def _offset_address(lw: Lowering, operand: AddressOperand) -> Any:
    pointer, offset = operand.pointer, tensors.extent(lw, operand.offset_bytes)
    if not is_scalar(pointer):
        lw.refuse("operand", f"T.ptx.addr takes a pointer, got {describe(pointer)}")
    if pointer.type == ir.PointerType("tmem"):
        lw.refuse(
            "operand", "T.ptx.addr steps in bytes, and addresses in tensor memory count lanes and columns",
            help="T.cuda.get_tmem_addr(pointer, lanes, columns)",
        )  # fmt: skip
    if isinstance(pointer, ir.Address):
        moved = build.index_add(pointer.offset_bytes, offset)
        return ir.Address(pointer.buffer, moved, pointer.type, span=lw.here())
    kind = pointer.type
    word = operators.pointer_dtype(kind) if isinstance(kind, ir.PointerType) else dtype_of(pointer)
    bits = build.bitcast(pointer, ir.ScalarType(word))
    moved = build.add(bits, operators.const(lw, offset, word), span=lw.here())
    return build.bitcast(moved, kind) if isinstance(kind, ir.PointerType) else moved
