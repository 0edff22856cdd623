"""The state of one lowering: frames, bindings, regions, statements emitted so far.

A *frame* is one (inlined) function with its names. A *region* is a stretch of code that may run any
number of times other than exactly once: a branch of a run-time ``if``, the body of a loop. A name
that must survive a region as one run-time variable is *carried* by it: the variable is declared
before the region and assigned inside.

Which names need that is found out, not guessed: lowering starts with none, and when a name turns
out to differ between paths it records a *decision* and starts again (``Restart``): from the loop that
it is about (``rewind``), else from the kernel's start. Decisions only grow, so this ends after a few
passes. A name that never needs a variable stays a compile-time value
or an immutable one.

Not here: what statements and expressions do (``statements``, ``expressions``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

from tilejit.errors import Span, SyntaxUnsupported, fault
from tilejit.frontend.captures import Captures
from tilejit.frontend.shapes import Shape
from tilejit.frontend.source import Source
from tilejit.frontend.values import is_scalar, map_leaves, subexpressions
from tilejit.ir import nodes as ir
from tilejit.ir.linear import linear, total
from tilejit.ir.signature import Signature

Key: TypeAlias = tuple[Any, ...]


class Restart(Exception):
    """A decision about ``key`` was recorded: lower again what depends on it."""

    def __init__(self, key: Key):
        super().__init__(key)
        self.key = key


# --- bindings


@dataclass(frozen=True)
class Bound:
    """A name with a value that never changes."""

    value: Any
    span: Span | None = None


@dataclass(frozen=True)
class Carried:
    """A name whose value lives in the variables of ``tree`` (a value with Vars for leaves)."""

    tree: Any
    span: Span | None = None


@dataclass(frozen=True)
class Missing:
    """A name that is unbound on some path that leads here; ``why`` says on which."""

    why: str
    span: Span | None = None


@dataclass(frozen=True)
class Ambiguous:
    """A name whose value differs between the paths that lead here; reading it decides ``key``."""

    key: Key
    sides: tuple[Binding, Binding]


Binding: TypeAlias = Bound | Carried | Missing | Ambiguous
Env: TypeAlias = dict[str, Binding]


# --- regions, jumps, frames


@dataclass
class Region:
    """See the module's text. ``read_first``: names read before the region assigned them."""

    key: Key
    entry: Env
    carried: dict[str, Any] = field(default_factory=dict)
    assigned: dict[str, Span] = field(default_factory=dict)
    read_first: set[str] = field(default_factory=set)


@dataclass(eq=False)
class Target:
    """Where a jump ends: after a loop (break), at its next round (continue), or after a helper.

    ``native``: the IR has the jump itself. Otherwise it is a flag: what follows is guarded by it.
    """

    key: Key
    native: bool
    flag: ir.Var | None = None
    envs: list[Env] = field(default_factory=list)


@dataclass
class Loop:
    """``native``: an IR loop; otherwise one written out by ``T.unroll``."""

    native: bool
    leave: Target
    again: Target
    broke: ir.Var | None = None
    escapes: set[Target] = field(default_factory=set)


@dataclass
class Result:
    """The value of an inlined function: given directly by a lone return, else a carried tree."""

    key: Key
    target: Target
    depth: int
    value: Any = None
    shape: Shape | None = None
    tree: Any = None
    span: Span | None = None
    given: bool = False


@dataclass(eq=False)
class Frame:
    """One function being lowered. ``outer``: where a local function's free names are found.

    A comprehension has a frame too, for its variables only: it is the ``inner`` one of the function
    that it is written out in, where all else happens.
    """

    source: Source
    call_site: Span | None
    path: Key
    env: Env = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    outer: Frame | None = None
    inner: Frame | None = None
    result: Result | None = None
    local_names: frozenset[str] = frozenset()
    role: str = "kernel"
    spans: dict[ast.AST, Span] = field(default_factory=dict)

    @property
    def scope(self) -> Frame:
        """Where a name is looked up first."""
        return self.inner or self


@dataclass(frozen=True)
class Flow:
    """How a statement ends. ``falls``: some path goes on to the next statement. ``pending``: jumps
    that may have been taken whose flags must guard whatever follows. ``consumed``: the statement
    has lowered the rest of its block itself."""

    falls: bool = True
    pending: frozenset[Target] = frozenset()
    consumed: bool = False


FALLS = Flow()
STOPS = Flow(falls=False)


class _At:
    """A plain class: thousands of these are entered for a kernel. After an error the node stays,
    for the message."""

    __slots__ = ("lowering", "node", "previous")

    def __init__(self, lowering: Lowering, node: ast.AST):
        self.lowering = lowering
        self.node = node

    def __enter__(self) -> None:
        self.previous = self.lowering.node
        self.lowering.node = self.node

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if kind is None:
            self.lowering.node = self.previous


class Lowering:
    """Everything one pass over a kernel knows. Handlers in the other modules take it first."""

    def __init__(
        self, signature: Signature, captures: Captures, decisions: dict[Key, Shape]
    ) -> None:
        self.signature = signature
        self.captures = captures
        self.decisions = decisions
        self.frames: list[Frame] = []
        self.block: list[ir.Stmt] = []
        self.allocations: list[ir.AllocTensor] = []
        self.launch: ir.LaunchConfig | None = None
        self.launch_span: Span | None = None
        self.params: list[ir.Var] = []
        self.sizes: dict[str, str] = {}  # named dimensions: what to write for them
        self.taken: set[str] = set()
        self.mutable: set[str] = set()
        self.depth = 0
        self.host_part = False
        self.hint: str | None = None
        self.node: ast.AST | None = None

    # --- where we are

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    def span(self, node: ast.AST) -> Span:
        frame = self.frames[-1]
        span = frame.spans.get(node)
        if span is None:
            span = frame.spans[node] = frame.source.span(node, frame.call_site)
        return span

    def here(self) -> Span | None:
        return self.span(self.node) if self.node is not None and self.frames else None

    def at(self, node: ast.AST) -> _At:
        """``with lw.at(node):`` what is emitted or refused inside is about ``node``."""
        return _At(self, node)

    def refuse(
        self, code: str, message: str, node: ast.AST | None = None, *, span: Span | None = None,
        **notes: str,
    ) -> NoReturn:  # fmt: skip
        """Raise ``SyntaxUnsupported`` with a caret under ``node`` (default: the current one)."""
        span = span or (self.span(node) if node is not None else self.here())
        raise fault(SyntaxUnsupported, f"frontend/{code}", message, span, **notes)

    # --- emitting

    def emit(self, statement: ir.Stmt) -> None:
        self.block.append(statement)

    @contextmanager
    def nested(self) -> Iterator[list[ir.Stmt]]:
        """Collect statements into a block of their own."""
        outer, self.block = self.block, []
        self.depth += 1
        try:
            yield self.block
        finally:
            self.block = outer
            self.depth -= 1

    def fresh(self, name: str, kind: ir.Type) -> ir.Var:
        """A variable whose name no other has: ``name``, ``name_1``, ``name_2``…"""
        base = name if name.isidentifier() else "t"
        unique, count = base, 0
        while unique in self.taken:
            count += 1
            unique = f"{base}_{count}"
        self.taken.add(unique)
        return ir.Var(unique, kind, span=self.here())

    def declare(self, name: str, value: Any) -> ir.Var:
        """Evaluate ``value`` once into a new immutable variable."""
        var = self.fresh(name, value.type)
        self.emit(ir.Declare(var, value, span=self.here()))
        return var

    # --- stability

    def is_stable(self, expr: Any) -> bool:
        """Evaluating it later gives the same: it reads no memory and no variable that changes."""
        for part in subexpressions(expr):
            kind = type(part)
            if kind is ir.Load or kind is ir.Call:
                return False
            if kind is ir.Var and part.name in self.mutable:
                return False
        return True

    def keep(self, value: Any, name: str = "t") -> Any:
        """``value`` in a form that later writes cannot change: unstable parts become variables."""
        return map_leaves(value, lambda leaf: self._keep_leaf(leaf, name))

    def _keep_leaf(self, leaf: Any, name: str) -> Any:
        if is_scalar(leaf):
            return leaf if self.is_stable(leaf) else self.declare(name, leaf)
        if isinstance(leaf, ir.View) and not self.is_stable(leaf):
            kept: dict[ir.Expr, ir.Expr] = {}
            offset = self._keep_index(leaf.offset_elems, f"{name}_offset", kept)
            strides = tuple(
                (d, self._keep_leaf(s, f"{name}_stride")) for d, s in leaf.dynamic_strides
            )
            picks = tuple(
                replace(p, index=self._keep_index(p.index, f"{name}_index", kept))
                for p in leaf.picks
            )
            return replace(leaf, offset_elems=offset, dynamic_strides=strides, picks=picks)
        if isinstance(leaf, ir.Region) and not self.is_stable(leaf):
            starts = tuple(self._keep_leaf(s, f"{name}_start") for s in leaf.starts)
            view = self._keep_leaf(leaf.view, name)
            return ir.Region(view, starts, leaf.extents, span=leaf.span)
        return leaf

    def _keep_index(self, index: ir.Expr, name: str, kept: dict[ir.Expr, ir.Expr]) -> ir.Expr:
        """``_keep_leaf`` that leaves factors in sight: what divides the index is known afterwards, too.
        ``kept``: the parts of one view that have been kept; its offset and its picks share them."""
        if self.is_stable(index):
            return index
        terms, constant = linear(index)
        for term in terms:
            if term not in kept:
                kept[term] = self._keep_leaf(term, name)
        return total({kept[t]: f for t, f in terms.items()}, constant)

    # --- decisions

    def decide(self, key: Key, shape: Shape) -> NoReturn:
        """Record that ``key`` is carried as ``shape`` and start again."""
        self.decisions[key] = shape
        raise Restart(key)

    def region_key(self, node: ast.AST, what: str) -> Key:
        return (*self.frame.path, what, place_of(node))


def place_of(node: ast.AST) -> tuple[int, ...]:
    """Where a node begins and ends: the two calls of ``f(x)(y)`` begin at one place."""
    return tuple(getattr(node, part, 0) for part in _PLACE)


_PLACE = ("lineno", "col_offset", "end_lineno", "end_col_offset")
