"""Going through the IR: children of a node, all nodes below it, rebuilding with replacements.

Driven by the dataclass fields, so a new node needs nothing here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tilejit.ir import nodes

NODE_TYPES: tuple[type, ...] = tuple(
    value
    for value in vars(nodes).values()
    if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == nodes.__name__
)
"""Every node class of the IR."""

_LEAVES = (
    nodes.ScalarType, nodes.PointerType, nodes.TensorType, nodes.VoidType, nodes.TupleType,
    nodes.ScopeAttrs,
)  # fmt: skip


@lru_cache(maxsize=None)
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind) if f.init and f.name not in ("span", "type"))


def children(node: Any) -> Iterator[Any]:
    """Direct sub-nodes in evaluation order: expressions, statements, the blocks' statements."""
    for name in _fields(type(node)):
        yield from _nodes_in(getattr(node, name))


def _nodes_in(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _nodes_in(item)
    elif isinstance(value, NODE_TYPES) and not isinstance(value, _LEAVES):
        yield value


def descend(node: Any) -> Iterator[Any]:
    """``node`` and everything below it, parents first. A tuple is a block."""
    stack = list(node)[::-1] if isinstance(node, tuple) else [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(list(children(current))[::-1])


def rebuild(node: Any, replace: Callable[[Any], Any]) -> Any:
    """A copy in which every node (children first) is what ``replace`` gives for it; unchanged parts
    are shared. ``node`` may be a block."""
    if isinstance(node, tuple):
        made = tuple(rebuild(item, replace) for item in node)
        return node if all(a is b for a, b in zip(made, node)) else made
    if not isinstance(node, NODE_TYPES) or isinstance(node, _LEAVES):
        return node
    changes = {}
    for name in _fields(type(node)):
        old = getattr(node, name)
        new = rebuild(old, replace)
        if new is not old:
            changes[name] = new
    if changes:
        node = dataclasses.replace(node, **changes)
    return replace(node)


def substitute(node: Any, values: dict[str, nodes.Expr]) -> Any:
    """``node`` with the variables called ``values``' keys replaced."""

    def replace(found: Any) -> Any:
        if isinstance(found, nodes.Var):
            return values.get(found.name, found)
        return found

    return rebuild(node, replace)
