"""Names that are not local: closure cells, globals, builtins and module attributes, by value.

Not here: local names (``env``), what may be captured (``captures``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import ast
import difflib
import types
from typing import Any

from tilejit.frontend import env
from tilejit.frontend.captures import help_for, refusal
from tilejit.frontend.state import Frame, Lowering
from tilejit.language import cuda, namespace, tile
from tilejit.language.annotations import LaunchConfig

SPELLED = {namespace.__name__: "T", cuda.__name__: "T.cuda", tile.__name__: "T.cuda.tile"}


def resolve(lw: Lowering, name: str, node: ast.AST) -> Any:
    """The value of ``name`` where Python would find it."""
    frame: Frame | None = lw.frame.scope
    while frame is not None:
        value = env.read(lw, frame, name)
        if value is not env.NOT_FOUND:
            return value
        if name in frame.local_names:
            lw.refuse(
                "unbound", f"{name!r} has no value yet: the function binds it later, so it is a "
                "local name everywhere in it", node,
            )  # fmt: skip
        if frame.outer is None:
            return _outside(lw, frame.source.function, name, node)
        frame = frame.outer
    raise AssertionError("a frame chain ends in a function")


def _outside(lw: Lowering, function: types.FunctionType, name: str, node: ast.AST) -> Any:
    code = function.__code__
    if name in code.co_freevars and function.__closure__ is not None:
        cell = function.__closure__[code.co_freevars.index(name)]
        try:
            value = cell.cell_contents
        except ValueError:
            lw.refuse("unbound", f"the closure variable {name!r} has no value yet", node)
        label = f"{function.__module__}.{function.__qualname__}.<closure>.{name}"
        return _captured(lw, label, value, lambda: cell.cell_contents, node)
    table = function.__globals__
    if name in table:
        label = f"{function.__module__}.{name}"
        return _captured(lw, label, table[name], lambda: table[name], node)
    builtins = table.get("__builtins__", {})
    builtin_table = builtins if isinstance(builtins, dict) else vars(builtins)
    if name in builtin_table:
        return builtin_table[name]
    known = [*lw.frame.env, *table, *builtin_table]
    close = difflib.get_close_matches(name, known, n=3)
    help_text = "define it before the kernel is used"
    if name in lw.sizes:
        help_text = f"{lw.sizes[name]} gives it"
    elif close:
        help_text = f"did you mean {', '.join(close)}?"
    lw.refuse("name", f"name {name!r} is not defined", node, help=help_text)


def module_attribute(lw: Lowering, module: types.ModuleType, name: str, node: ast.AST) -> Any:
    """``module.name``"""
    if not hasattr(module, name):
        spelled = SPELLED.get(module.__name__)
        if spelled:
            close, otherwise = _in_language(name), "docs/language.md lists everything in T"
        else:
            public = [n for n in dir(module) if not n.startswith("_")]
            close = difflib.get_close_matches(name, public, n=3)
            otherwise = "look at the module's contents"
        lw.refuse(
            "attribute", f"{spelled or module.__name__} has no {name!r}", node,
            help=f"did you mean {', '.join(close)}?" if close else otherwise,
        )  # fmt: skip
    value = getattr(module, name)
    if module.__name__.startswith("tilejit.language"):
        return value
    label = f"{module.__name__}.{name}"
    return _captured(lw, label, value, lambda: getattr(module, name), node)


def _in_language(name: str) -> list[str]:
    """What ``T`` and the modules in it call ``name``, else what is called nearly so."""
    spellings = {own: [f"T.{own}"] for own in namespace.__all__}
    for module in (cuda, tile):
        for own, value in vars(module).items():
            if getattr(value, "__module__", None) in (module.__name__, LaunchConfig.__module__):
                spellings.setdefault(own, []).append(f"{SPELLED[module.__name__]}.{own}")
    close = [name] if name in spellings else difflib.get_close_matches(name, spellings, n=3)
    return [spelling for own in close for spelling in spellings[own]]


def _captured(lw: Lowering, label: str, value: Any, read: Any, node: ast.AST) -> Any:
    if not lw.captures.holds(label, value):
        check_captured(lw, label.rsplit(".", 1)[-1], value, node)
        lw.captures.record(label, value, read)
    return value


def check_captured(lw: Lowering, name: str, value: Any, node: ast.AST) -> None:
    """Refuse values that can change behind the kernel's back."""
    reason = refusal(value)
    if reason is not None:
        lw.refuse(
            "captured", f"a kernel captures {name!r} by value, but it is {reason}", node,
            help=help_for(value),
        )  # fmt: skip
