"""Run-time variables for values that survive a branch or a loop: declared, assigned, read.

A *tree* is a value whose scalar leaves are ``Var``s; ``shapes`` says which leaves those are.
Not here: when a name is carried (``env``, ``control``).
"""

from __future__ import annotations

from typing import Any

from tilejit.errors import Span
from tilejit.frontend import operators
from tilejit.frontend.shapes import Fixed, Leaf, Parts, Shape, ShapeConflict
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import children, is_number, rebuild
from tilejit.ir import nodes as ir

ABSENT = object()


def declare(lw: Lowering, name: str, shape: Shape, initial: Any = ABSENT) -> Any:
    """Variables for ``shape``, with the value ``initial`` when there is one. Returns the tree."""
    if isinstance(shape, Fixed):
        return shape.value
    if isinstance(shape, Parts):
        parts = children(initial) if initial is not ABSENT else None
        if parts is not None and len(parts) != len(shape.items):
            parts = None
        items = tuple(
            declare(lw, f"{name}_{i}", item, parts[i] if parts is not None else ABSENT)
            for i, item in enumerate(shape.items)
        )
        return rebuild(shape.example, items)
    value = None if initial is ABSENT else convert(lw, initial, shape)
    var = lw.fresh(name, shape.type)
    lw.mutable.add(var.name)
    lw.emit(ir.Declare(var, value, span=lw.here()))
    return var


def assign(lw: Lowering, tree: Any, value: Any, name: str) -> None:
    """Overwrite the variables of ``tree`` with ``value``, all at once as Python does."""
    writes: list[tuple[ir.Var, Any]] = []
    _collect(lw, tree, value, writes)
    if len(writes) > 1:
        writes = [(var, lw.keep(part, f"{name}_new")) for var, part in writes]
    for var, part in writes:
        lw.emit(ir.Assign(var, part, span=lw.here()))


def _collect(lw: Lowering, tree: Any, value: Any, writes: list[tuple[ir.Var, Any]]) -> None:
    if isinstance(tree, ir.Var) and tree.name in lw.mutable:
        converted = convert(lw, value, Leaf(tree.type))  # type: ignore[arg-type]
        if converted != tree:
            writes.append((tree, converted))
        return
    parts, values = children(tree), children(value)
    if parts is not None and values is not None:
        for part, item in zip(parts, values):
            _collect(lw, part, item, writes)


def replace_fixed(tree: Any, shape: Shape) -> Any:
    """``tree`` with the fixed leaves of ``shape``."""
    if isinstance(shape, Fixed):
        return shape.value
    if isinstance(shape, Parts):
        parts = children(tree)
        assert parts is not None
        return rebuild(tree, tuple(map(replace_fixed, parts, shape.items)))
    return tree


def convert(lw: Lowering, value: Any, leaf: Leaf) -> Any:
    """``value`` as the leaf's type; the shapes have been unified, so nothing is lost."""
    if isinstance(leaf.type, ir.PointerType):
        return value
    dtype = leaf.type.dtype
    if is_number(value):
        literal = bool(value) if dtype.kind == "bool" else value
        return operators.const(lw, literal, dtype)
    return operators.cast(lw, value, dtype)


def conflict(lw: Lowering, name: str, why: ShapeConflict, spans: list[Span | None]) -> None:
    """Refuse ``name``, naming every line that gives it a value."""
    lines = [f"line {s.line}" for s in spans if s is not None]
    where = " and ".join(dict.fromkeys(lines))
    lw.refuse(
        "type-conflict",
        f"{name!r} cannot be one run-time variable: {why}",
        span=next((s for s in reversed(spans) if s is not None), None),
        where=f"bound at {where}",
        help=why.help or "give both bindings one type, e.g. with T.cast, or use two names",
    )
