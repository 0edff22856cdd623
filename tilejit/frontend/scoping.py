"""Moves declarations outwards until every use lies in the declaring block or inside it.

Lowering declares a variable where its value is computed. When a branch that ends in a jump leaves
the other one's names alive after the ``if``, or a loop that runs at least once leaves its own, the
use comes to lie outside: the declaration moves, the value becomes an assignment.

Not here: whether the variable is bound on every path (``env``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from tilejit.errors import SyntaxUnsupported, fault
from tilejit.ir import nodes as ir
from tilejit.ir import walk

Path: TypeAlias = tuple[int, ...]
"""Which statement, of which block of it, and so on: (statement, block, statement, …)."""


@dataclass
class _Uses:
    """Where a variable is declared and the longest common path of everything that mentions it."""

    declared: Path | None = None
    common: Path | None = None

    def mention(self, path: Path) -> None:
        self.common = path if self.common is None else _shared(self.common, path)


def _shared(a: Path, b: Path) -> Path:
    """The longest common prefix that ends inside a block (even length)."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return a[: count - count % 2] if count < min(len(a), len(b)) or count % 2 else a[:count]


def hoist(body: ir.Block) -> ir.Block:
    """``body`` with well-scoped declarations."""
    uses: dict[str, _Uses] = {}
    _scan(body, (), uses)
    moved: dict[str, Path] = {}
    for name, use in uses.items():
        if use.declared is None or use.common is None:
            continue
        home = use.declared[:-1]
        if use.common[: len(home)] != home:
            moved[name] = use.common
    _refuse_tmem(body, moved)
    return _rewrite(body, (), moved, _types(body, moved)) if moved else body


def _refuse_tmem(body: ir.Block, moved: dict[str, Path]) -> None:
    """What moves outwards becomes an assignment, and a tensor has none."""
    for statement in walk.statements(body) if moved else ():
        if isinstance(statement, ir.DeclTmem) and statement.buffer.name in moved:
            name = statement.buffer.name
            raise fault(
                SyntaxUnsupported,
                "frontend/tmem-scope",
                f"{name} is declared in tensor memory inside a branch or loop, and used behind it",
                statement.span,
                help="declare it before the branch, or give the address a name there and declare it behind: "
                "T.cuda.decl_tmem allocates nothing",
            )


def _blocks(statement: ir.Stmt) -> tuple[ir.Block, ...]:
    match statement:
        case ir.If():
            return (statement.then, statement.orelse)
        case ir.For() | ir.While():
            return (statement.body,)
    return ()


def _scan(block: ir.Block, path: Path, uses: dict[str, _Uses]) -> None:
    for index, statement in enumerate(block):
        here = (*path, index)
        if isinstance(statement, ir.Declare):
            uses.setdefault(statement.var.name, _Uses()).declared = here
        if isinstance(statement, ir.DeclTmem):
            uses.setdefault(statement.buffer.name, _Uses()).declared = here
        for name in _mentioned(statement):
            uses.setdefault(name, _Uses()).mention(here)
        for number, inner in enumerate(_blocks(statement)):
            _scan(inner, (*here, number), uses)


def _mentioned(statement: ir.Stmt) -> set[str]:
    """Variables that the statement itself mentions, its inner blocks left out."""
    own: tuple[object, ...]
    match statement:
        case ir.If():
            own = (statement.condition,)
        case ir.For():
            own = (statement.start, statement.stop)
        case ir.While():
            own = ()
        case _:
            own = (statement,)
    return {n.name for part in own for n in walk.descend(part) if isinstance(n, ir.Var)}


def _types(body: ir.Block, moved: dict[str, Path]) -> dict[str, ir.Var]:
    return {
        n.var.name: n.var
        for n in walk.descend(body)
        if isinstance(n, ir.Declare) and n.var.name in moved
    }


def _rewrite(
    block: ir.Block, path: Path, moved: dict[str, Path], variables: dict[str, ir.Var]
) -> ir.Block:
    result: list[ir.Stmt] = []
    for index, statement in enumerate(block):
        here = (*path, index)
        for name, place in moved.items():
            if _lands(place, here):
                result.append(ir.Declare(variables[name], None, span=variables[name].span))
        result.extend(_moved_statement(statement, here, moved, variables))
    return tuple(result)


def _lands(place: Path, here: Path) -> bool:
    """Whether a declaration for uses under ``place`` goes right before the statement at ``here``:
    the first statement of the block that ``place`` ends in."""
    target = place if len(place) % 2 == 0 else place[:-1]
    return here[:-1] == target and here[-1] == 0


def _moved_statement(
    statement: ir.Stmt, here: Path, moved: dict[str, Path], variables: dict[str, ir.Var]
) -> list[ir.Stmt]:
    match statement:
        case ir.Declare(var=var, value=value) if var.name in moved:
            return [] if value is None else [ir.Assign(var, value, span=statement.span)]
        case ir.If():
            then = _rewrite(statement.then, (*here, 0), moved, variables)
            orelse = _rewrite(statement.orelse, (*here, 1), moved, variables)
            return [replace(statement, then=then, orelse=orelse)]
        case ir.For() | ir.While():
            return [replace(statement, body=_rewrite(statement.body, (*here, 0), moved, variables))]
    return [statement]
