"""Going through the IR: children of a node, all nodes below it, rebuilding with replacements.

Driven by the dataclass fields, so a new node needs nothing here. Types are not descended into.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilejit.ir import nodes

NODE_TYPES: tuple[type[Any], ...] = tuple(
    value
    for value in vars(nodes).values()
    if isinstance(value, type)
    and dataclasses.is_dataclass(value)
    and value.__module__ == nodes.__name__
)
"""Every node class of the IR, types and launch configuration included."""

_LEAVES = {
    nodes.ScalarType, nodes.PointerType, nodes.TensorType, nodes.VoidType, nodes.TupleType,
    nodes.ScopeAttrs,
}  # fmt: skip
_INNER = frozenset(NODE_TYPES) - _LEAVES

Replace = Callable[[Any], Any]


_FIELDS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(
        f.name for f in dataclasses.fields(kind) if f.init and f.name not in ("span", "type")
    )
    for kind in NODE_TYPES
}


def children(node: Any) -> list[Any]:
    """Direct sub-nodes in field order: expressions, statements, the blocks' statements."""
    found: list[Any] = []
    for name in _FIELDS[type(node)]:
        value = getattr(node, name)
        kind = type(value)
        if kind is tuple:
            _gather(value, found)
        elif kind in _INNER:
            found.append(value)
    return found


def _gather(items: tuple[Any, ...], found: list[Any]) -> None:
    for item in items:
        kind = type(item)
        if kind is tuple:
            _gather(item, found)
        elif kind in _INNER:
            found.append(item)


def descend(node: Any) -> Iterator[Any]:
    """``node`` and everything below it, parents first. A tuple is a block."""
    stack = list(node)[::-1] if isinstance(node, tuple) else [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(children(current)))


def statements(block: nodes.Block) -> Iterator[nodes.Stmt]:
    """Every statement of a block, nested ones after the one that holds them."""
    for statement in block:
        yield statement
        match statement:
            case nodes.If(then=then, orelse=orelse):
                yield from statements(then)
                yield from statements(orelse)
            case nodes.For(body=body) | nodes.While(body=body):
                yield from statements(body)


def variables(node: Any) -> set[str]:
    """Names of the variables and buffers that ``node`` (or a block) mentions."""
    return {n.name for n in descend(node) if isinstance(n, nodes.Var)}


def rebuild(node: Any, replace: Replace) -> Any:
    """A copy in which every node (children first) is what ``replace`` gives for it; unchanged parts
    are shared. ``node`` may be a block."""
    if isinstance(node, tuple):
        made = tuple(rebuild(item, replace) for item in node)
        return node if all(a is b for a, b in zip(made, node)) else made
    if type(node) not in _INNER:
        return node
    changes: dict[str, Any] = {}
    for name in _FIELDS[type(node)]:
        old = getattr(node, name)
        new = rebuild(old, replace)
        if new is not old:
            if name == "shape":
                new = tuple(map(_extent, new))
            changes[name] = _extent(new) if name == "extent" else new
    return replace(dataclasses.replace(node, **changes) if changes else node)


def _extent(dimension: Any) -> Any:
    """A dimension that became a constant is a number again."""
    return int(dimension.value) if isinstance(dimension, nodes.Const) else dimension


def substitute(node: Any, values: Mapping[str, nodes.Expr]) -> Any:
    """``node`` with the variables called ``values``' keys replaced. Assigned variables and buffers
    must not be among them, and the extents of views become numbers or variables only."""

    def replace(found: Any) -> Any:
        return values.get(found.name, found) if isinstance(found, nodes.Var) else found

    return rebuild(node, replace)
