"""Every ``family/condition`` code that the package can emit, read from its source.

Each code ends in the first argument of a ``Diagnostic``. This module walks back from there: through the
parameters of the functions between (``Report.error``, ``fault``, ``refuse``, …), constants, conditional
expressions, f-strings and small tables, to all strings that can arrive. What it cannot follow is an
error, not a guess: then the code's table is named in ``TABLES``.

``{call.family}`` stands for the families whose modules reach the function by names they use.
Not here: the pages (``error_index``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

from tilejit.families import FAMILIES
from tilejit.ptx import tables
from tilejit.runtime import nvrtc
from tilejit.tile.family import Family, Param

PACKAGE = Path(__file__).parent.parent / "tilejit"
NOT_EMITTING = ("lib", "kernels", "demo", "markup", "language", "sim.numeric", "ptx.tables")
"""Written in the kernel language, tables, leaves: they emit nothing of their own."""


def _tile_families(wanted: Callable[[Family], bool]) -> frozenset[str]:
    """Families that ``apply`` takes, and among them those that are ``wanted``."""
    with_tiles = {family for family, row in tables.rows() if row.tile}
    return frozenset(name for name in with_tiles if wanted(FAMILIES[name]))


def _has(wanted: Callable[[Param], bool]) -> frozenset[str]:
    return _tile_families(lambda family: any(map(wanted, family.params)))


TABLES: dict[tuple[str, str], Callable[[], frozenset[str]]] = {
    ("runtime.nvrtc", "found[1]"): lambda: frozenset(nvrtc._ADVICE),
    ("runtime.artifact", "code"): lambda: frozenset(),
    ("tile.raw", "family+pred-type"): lambda: _has(lambda p: p.name == "pred") | {"ptx"},
    ("tile.raw", "family+preserve-dst"): lambda: _has(lambda p: p.name == "preserve_dst") | {"ptx"},
    ("tile.raw", "family+static-keyword"): lambda: (
        _has(lambda p: p.name == "preserve_dst") | {"ptx"}
    ),
    ("tile.checker", "family.name+missing-keyword"): lambda: _has(lambda p: p.required),
    ("tile.checker", "family.name+unknown-keyword"): lambda: _tile_families(lambda family: True),
    ("tile.checker", "family.name+static-keyword"): lambda: _has(
        lambda p: p.kind == "static" and p.name != "preserve_dst"
    ),
    ("tile.checker", "family.name+keyword-type"): lambda: _has(
        lambda p: p.kind != "static" and p.name != "pred"
    ),
}

RECEIVERS = {"add": "faults"}
"""Methods whose name many classes have: what a collector of faults is called where it is meant."""


# --- the package's functions, and who names whom


@dataclass(eq=False)
class Function:
    """A function, a method, or (``node`` is None) a module's own statements."""

    module: Module
    owner: str
    """The class of a method."""
    node: ast.FunctionDef | None

    @property
    def name(self) -> str:
        return self.node.name if self.node else ""

    @property
    def body(self) -> list[ast.stmt]:
        return self.node.body if self.node else self.module.tree.body


@dataclass(eq=False)
class Module:
    name: str
    tree: ast.Module
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Local name → (module, name in it, or "" for the module itself)."""
    functions: dict[str, list[Function]] = field(default_factory=dict)
    """By their name, or by the name of their class for all methods of it."""

    @property
    def all(self) -> list[Function]:
        return list(dict.fromkeys(f for found in self.functions.values() for f in found))


def _module(name: str, path: Path) -> Module:
    module = Module(name, ast.parse(path.read_text()))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tilejit"):
            origin = (node.module or "").removeprefix("tilejit").removeprefix(".")
            for alias in node.names:
                whole = f"{origin}.{alias.name}".removeprefix(".")
                there = PACKAGE / whole.replace(".", "/")
                is_module = there.is_dir() or there.with_suffix(".py").exists()
                module.imported[alias.asname or alias.name] = (
                    (whole, "") if is_module else (origin, alias.name)
                )
    module.functions[""] = [Function(module, "", None)]
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef):
            module.functions.setdefault(node.name, []).append(Function(module, "", node))
        elif isinstance(node, ast.ClassDef):
            methods = [s for s in node.body if isinstance(s, ast.FunctionDef)]
            module.functions[node.name] = [Function(module, node.name, m) for m in methods]
    return module


@cache
def modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if not f"{name}.".startswith(tuple(f"{room}." for room in NOT_EMITTING)):
            found[name] = _module(name, path)
    return found


@cache
def _methods() -> dict[str, list[Function]]:
    by_name: dict[str, list[Function]] = {}
    for module in modules().values():
        for function in module.all:
            if function.owner:
                by_name.setdefault(function.name, []).append(function)
    return by_name


def _named(user: Function, expr: ast.expr) -> list[Function]:
    """The package's functions that a name or attribute may mean; a class means all its methods."""
    module = user.module
    if isinstance(expr, ast.Name):
        if expr.id in module.imported:
            origin, name = module.imported[expr.id]
            home = modules().get(origin)
            return home.functions.get(name, []) if home and name else []
        return module.functions.get(expr.id, [])
    if isinstance(expr, ast.Attribute):
        if isinstance(expr.value, ast.Name) and expr.value.id in module.imported:
            origin, name = module.imported[expr.value.id]
            if not name:
                home = modules().get(origin)
                return home.functions.get(expr.attr, []) if home else []
        own = [f for f in module.functions.get(user.owner, []) if f.name == expr.attr]
        if user.owner and own and isinstance(expr.value, ast.Name) and expr.value.id == "self":
            return own
        wanted = RECEIVERS.get(expr.attr)
        receiver = getattr(expr.value, "attr", getattr(expr.value, "id", ""))
        return _methods().get(expr.attr, []) if wanted in (None, receiver) else []
    return []


@cache
def _reached_from(family: str) -> frozenset[Function]:
    """Functions that a family's module reaches by the names it uses: methods through their class."""
    todo, seen = list(modules()[f"families.{family}"].all), set()
    while todo:
        function = todo.pop()
        if function in seen:
            continue
        seen.add(function)
        todo.extend(_uses(function))
    return frozenset(seen)


@cache
def _uses(function: Function) -> frozenset[Function]:
    """What a function names, methods through their class or module only."""
    found: set[Function] = set()
    for node in (n for s in function.body for n in ast.walk(s)):
        through_module = isinstance(node, ast.Attribute) and (
            isinstance(node.value, ast.Name) and node.value.id in function.module.imported
        )
        if isinstance(node, ast.Name) or through_module:
            found.update(_named(function, node))
    return frozenset(found)


@cache
def _calls() -> dict[str, list[tuple[Function, ast.Call]]]:
    """Every call in the package, by the last part of what is called."""
    found: dict[str, list[tuple[Function, ast.Call]]] = {}
    for module in modules().values():
        for function in module.all:
            nodes = function.body if function.node else _outside_functions(module.tree)
            for node in (n for s in nodes for n in ast.walk(s)):
                if isinstance(node, ast.Call):
                    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                    found.setdefault(name, []).append((function, node))
    return found


def _outside_functions(tree: ast.Module) -> list[ast.stmt]:
    return [s for s in tree.body if not isinstance(s, ast.FunctionDef | ast.ClassDef)]


# --- the strings an expression can be


class Unknown(Exception):
    """The walk cannot tell what arrives."""


@dataclass(frozen=True)
class Scope:
    """Where an expression stands; ``given``: the arguments of one call of the function."""

    function: Function
    given: tuple[tuple[str, ast.expr, Scope], ...] | None = None


def _strings(expr: ast.expr, scope: Scope) -> frozenset[str]:
    table = TABLES.get((scope.function.module.name, ast.unparse(expr)))
    if table is not None:
        return table()
    match expr:
        case ast.Constant(value=str(text)):
            return frozenset((text,))
        case ast.Constant(value=None):
            return frozenset()
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            pairs = product(_strings(left, scope), _strings(right, scope))
            return frozenset(map("".join, pairs))
        case ast.IfExp(body=body, orelse=orelse):
            return _strings(body, scope) | _strings(orelse, scope)
        case ast.JoinedStr(values=values):
            return _joined(values, scope)
        case ast.Name(id=name):
            return _variable(name, expr, scope)
        case ast.Attribute(value=ast.Name(id="call"), attr="family"):
            return _families(scope)
        case ast.Attribute(attr="code"):
            return frozenset()  # the code of another diagnostic, found where that one is made
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id=name), attr="args"), slice=index):
            return _of_exception(name, ast.literal_eval(index), scope)
        case ast.Attribute(value=ast.Name(id=name), attr=attr):
            return _of_field(name, attr, scope)
        case ast.Call(func=ast.Attribute(value=text, attr="replace"), args=[old, new]):
            before, after = ast.literal_eval(old), ast.literal_eval(new)
            return frozenset(s.replace(before, after) for s in _strings(text, scope))
        case ast.Call(func=func):
            return _returned(expr, _named(scope.function, func), scope)
    raise Unknown(_at(expr, scope))


def _at(node: ast.AST, scope: Scope) -> str:
    return f"{scope.function.module.name}:{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


def _joined(values: list[ast.expr], scope: Scope) -> frozenset[str]:
    parts = []
    for value in values:
        inner = value.value if isinstance(value, ast.FormattedValue) else value
        rest = "".join(v.value for v in values if isinstance(v, ast.Constant)).removeprefix("/")
        table = TABLES.get((scope.function.module.name, f"{ast.unparse(inner)}+{rest}"))
        parts.append(table() if table is not None else _strings(inner, scope))
    return frozenset(map("".join, product(*parts)))


def _families(scope: Scope) -> frozenset[str]:
    """The families whose modules reach the function, or the one that called it, where that is known."""
    while scope.given:
        scope = scope.given[0][2]
    return frozenset(f for f in FAMILIES if scope.function in _reached_from(f))


def _variable(name: str, expr: ast.expr, scope: Scope) -> frozenset[str]:
    function = scope.function
    if function.node and name in _parameters(function.node):
        return _parameter(name, scope)
    for body, where in ((function.body, scope), (_outside_functions(function.module.tree), scope)):
        values = [v for s in body for v in _assigned(name, s, function)]
        if values:
            return frozenset().union(*(_strings(v, where) for v in values))
    raise Unknown(_at(expr, scope))


def _assigned(name: str, statement: ast.stmt, function: Function) -> Iterator[ast.expr]:
    """What a name is bound to: by assignment, or by a loop over a literal or a table of literals."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
                elif isinstance(target, ast.Tuple):
                    for number, part in enumerate(target.elts):
                        if isinstance(part, ast.Name) and part.id == name:
                            yield _item(node.value, number)
        elif isinstance(node, ast.For):
            yield from _looped(name, node, function)


def _item(value: ast.expr, number: int) -> ast.expr:
    if isinstance(value, ast.Tuple):
        return value.elts[number]
    return ast.Subscript(value, ast.Constant(number), lineno=value.lineno)


def _looped(name: str, loop: ast.For, function: Function) -> Iterator[ast.expr]:
    """What a loop over a table written as a literal gives to ``name``."""
    items: ast.expr | None = loop.iter
    match items:
        case ast.Call(func=ast.Attribute(value=table, attr="items")):
            items = table
    if isinstance(items, ast.Name):
        items = next(_literals(items.id, function), None)
    rows: list[ast.expr] = []
    if isinstance(items, ast.Dict):
        rows = [ast.Tuple([k, v]) for k, v in zip(items.keys, items.values) if k is not None]
    elif isinstance(items, ast.Tuple | ast.List):
        rows = items.elts
    for row in rows:
        targets, values = [loop.target], [row]
        if isinstance(loop.target, ast.Tuple):
            targets, values = loop.target.elts, getattr(row, "elts", [])
        for target, value in zip(targets, values):
            if isinstance(target, ast.Name) and target.id == name:
                yield value


def _literals(name: str, function: Function) -> Iterator[ast.expr]:
    for statement in (*function.body, *_outside_functions(function.module.tree)):
        for node in ast.walk(statement):
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(
                node.value, ast.Dict | ast.Tuple
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    yield node.value


def _parameters(node: ast.FunctionDef) -> list[str]:
    return [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]


def _parameter(name: str, scope: Scope) -> frozenset[str]:
    if scope.given is not None:
        for given, value, where in scope.given:
            if given == name:
                return _strings(value, where)
    function = scope.function
    assert function.node is not None
    found: frozenset[str] = frozenset()
    for caller, call in _calls().get(function.name, []):
        if function not in _named(caller, call.func):
            continue
        bound = _bind(function, call)
        if bound is not None and name in bound:
            found |= _strings(bound[name], Scope(caller))
    return found


def _bind(function: Function, call: ast.Call) -> dict[str, ast.expr] | None:
    """The call's arguments by parameter; None if it cannot be a call of this function."""
    assert function.node is not None
    args = function.node.args
    positional = [a.arg for a in (*args.posonlyargs, *args.args)]
    static = any(getattr(d, "id", "") == "staticmethod" for d in function.node.decorator_list)
    if function.owner and not static:
        positional = positional[1:]
    if len(call.args) > len(positional) and not args.vararg:
        return None
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    bound = dict(zip(positional, call.args))
    bound |= {k.arg: k.value for k in call.keywords if k.arg}
    required = positional[: len(positional) - len(args.defaults)]
    return bound if all(name in bound for name in required) else None


def _returned(call: ast.Call, functions: list[Function], scope: Scope) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for function in functions:
        bound = _bind(function, call)
        if bound is None or function.node is None:
            continue
        inner = Scope(function, tuple((n, v, scope) for n, v in bound.items()))
        for node in ast.walk(function.node):
            if isinstance(node, ast.Return) and node.value is not None:
                found |= _strings(node.value, inner)
    if not found:
        raise Unknown(_at(call, scope))
    return found


def _of_field(name: str, attr: str, scope: Scope) -> frozenset[str]:
    """``name.attr`` of a record, of this module or one that it imports: of those that have every field
    that the function reads of ``name``, what they are made with."""
    module = scope.function.module
    read = {
        node.attr
        for s in scope.function.body
        for node in ast.walk(s)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name
    }
    homes = [module, *(modules()[m] for m, _ in module.imported.values() if m in modules())]
    found: frozenset[str] = frozenset()
    for home in dict.fromkeys(homes):
        for node in home.tree.body:
            fields = _fields(node)
            if read <= set(fields):
                for caller, call in _made(node.name, home):
                    given = dict(zip(fields, call.args)) | {k.arg: k.value for k in call.keywords}
                    found |= _strings(given[attr], Scope(caller))
    if not found:
        raise Unknown(f"{module.name}: {name}.{attr}")
    return found


def _fields(node: ast.stmt) -> list[str]:
    body = node.body if isinstance(node, ast.ClassDef) else []
    annotated = (s.target for s in body if isinstance(s, ast.AnnAssign))
    return [target.id for target in annotated if isinstance(target, ast.Name)]


def _made(class_: str, home: Module) -> list[tuple[Function, ast.Call]]:
    return [(f, call) for f, call in _calls().get(class_, []) if f.module is home]


def _of_exception(name: str, index: int, scope: Scope) -> frozenset[str]:
    """``name.args[index]`` of an exception that this function catches and its module raises."""
    function = scope.function
    found: frozenset[str] = frozenset()
    for node in (n for s in function.body for n in ast.walk(s)):
        if isinstance(node, ast.ExceptHandler) and node.name == name and node.type is not None:
            for caller, call in _made(ast.unparse(node.type), function.module):
                found |= _strings(call.args[index], Scope(caller))
    return found


@cache
def codes() -> frozenset[str]:
    """Every code that the package can emit."""
    found: frozenset[str] = frozenset()
    for caller, call in _calls()["Diagnostic"]:
        given = {k.arg: k.value for k in call.keywords}
        found |= _strings(call.args[0] if call.args else given["code"], Scope(caller))
    return found


if __name__ == "__main__":
    print("\n".join(sorted(codes())))
