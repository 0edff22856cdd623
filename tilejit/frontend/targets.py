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
        _collect_walrus(node, names)
        return
    for child in ast.iter_child_nodes(node):
        _collect(child, names)


def walrus_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that ``:=`` binds in ``nodes``, not looking into lambdas."""
    names: set[str] = set()
    for node in nodes:
        _collect_walrus(node, names)
    return names


def _collect_walrus(node: ast.AST, names: set[str]) -> None:
    """What ``:=`` in a comprehension binds in the function around it: not what a lambda in it binds."""
    if isinstance(node, ast.NamedExpr):
        names.add(node.target.id)
    inner = (
        [*node.args.defaults, *filter(None, node.args.kw_defaults)]
        if isinstance(node, ast.Lambda)
        else ast.iter_child_nodes(node)
    )
    for child in inner:
        _collect_walrus(child, names)
