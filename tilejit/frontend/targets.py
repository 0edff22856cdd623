"""Which names a stretch of Python binds. Syntax only.

Not here: binding them (``env``).
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable


def assigned_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names bound anywhere in ``nodes``, not looking into functions defined there."""
    names: set[str] = set()
    for node in nodes:
        names |= _names_of(node)
    return names


@functools.lru_cache(maxsize=8192)
def _names_of(node: ast.AST) -> frozenset[str]:
    """Names bound in one node; ASTs are parsed once and kept, so their nodes are good keys."""
    names: set[str] = set()
    _collect(node, names)
    return frozenset(names)


def _collect(node: ast.AST, names: set[str]) -> None:
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Store | ast.Del):
            names.add(node.id)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names.add(node.name)
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp):
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                names.add(inner.target.id)
        return
    for child in ast.iter_child_nodes(node):
        _collect(child, names)
