"""From a Python function object to its AST node, in the coordinates of the user's file.

The whole file (or cell, or ``source=`` text) is parsed once and the function is found by its first
line, so that columns need no shifting and decorators, nesting and lambdas come out right.

Not here: what the AST means.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import types
from dataclasses import dataclass, field
from typing import TypeAlias

from tilejit.errors import Span, SyntaxUnsupported, fault

FunctionNode: TypeAlias = ast.FunctionDef | ast.Lambda


@dataclass(frozen=True)
class Source:
    """A function's AST and where it stands. ``text`` is exactly the function's own source."""

    function: types.FunctionType
    node: FunctionNode
    file: str
    lines: tuple[str, ...]
    text: str
    given: str | None = None
    """The ``source=`` text, in which helpers of the same ``exec`` are found too."""
    _places: dict[ast.AST, tuple[int, int, int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Of the nodes asked for so far: a helper is lowered anew for every call of it."""

    @property
    def name(self) -> str:
        return self.function.__name__

    def span(self, node: ast.AST, call_site: Span | None = None) -> Span:
        """The region of ``node``; AST columns count UTF-8 bytes, a Span's count characters."""
        place = self._places.get(node)
        if place is None:
            place = self._places[node] = self._place(node)
        return Span(self.file, *place, self.name, call_site)

    def _place(self, node: ast.AST) -> tuple[int, int, int, int]:
        """First line and column, last line and column."""
        line = getattr(node, "lineno", self.node.lineno)
        end_line = getattr(node, "end_lineno", line) or line
        return (
            line,
            self._column(line, getattr(node, "col_offset", 0)),
            end_line,
            self._column(end_line, getattr(node, "end_col_offset", 0) or 0),
        )

    def _column(self, line: int, byte_offset: int) -> int:
        if not 1 <= line <= len(self.lines):
            return byte_offset
        text = self.lines[line - 1]
        if text.isascii():
            return byte_offset
        return len(text.encode()[:byte_offset].decode(errors="ignore"))

    def head(self) -> Span:
        """The ``def name`` line: what errors about the whole function point at."""
        span = self.span(self.node)
        if isinstance(self.node, ast.Lambda):
            return span
        text = self.lines[span.line - 1] if span.line <= len(self.lines) else ""
        start = text.find(self.name, span.col)
        start = span.col if start < 0 else start
        return Span(self.file, span.line, start, span.line, start + len(self.name), self.name)


def read(function: types.FunctionType, source: str | None = None) -> Source:
    """The source of ``function``; ``source`` is its text where Python has kept none (``exec``)."""
    code = function.__code__
    given = source
    if source is not None:
        file = _register(source, function.__name__)
        first_line: int | None = None
    else:
        file, first_line = code.co_filename, code.co_firstlineno
        linecache.checkcache(file)
        module_globals = function.__globals__ if file.startswith("<") else None
        source = "".join(linecache.getlines(file, module_globals))
        if not source:
            source, file = _inspected(function, file)
    candidates = _functions(source, file).get(code.co_name, ())
    node = _find(candidates, function, first_line)
    if node is None and first_line is not None:
        node = _find(candidates, function, None)
    if node is None:
        raise no_source(function, f"{file} holds no function {function.__qualname__!r}")
    lines = tuple(source.splitlines())
    return Source(function, node, file, lines, _own_text(lines, node), given)


def no_source(function: types.FunctionType, why: str) -> SyntaxUnsupported:
    failed = function.__code__.co_filename == "<stdin>"
    places = "a file or a notebook cell" if failed else "a file, a notebook cell or the REPL"
    error = fault(
        SyntaxUnsupported,
        "frontend/no-source",
        f"the source of {function.__qualname__!r} cannot be read: {why}",
        help=f"define kernels in {places}, or pass the text: tilejit.jit(function, source=text)",
    )
    assert isinstance(error, SyntaxUnsupported)
    return error


def _inspected(function: types.FunctionType, file: str) -> tuple[str, str]:
    """What ``inspect`` finds where linecache has nothing: loaders, zip files, Python 3.13's REPL."""
    try:
        module_lines, _ = inspect.findsource(function)
    except (OSError, TypeError, IndexError) as error:
        raise no_source(function, f"{file} is not a readable file ({error})") from None
    return "".join(module_lines), file


def _register(text: str, name: str) -> str:
    """Give ``source=`` text a file name of its own, so that carets can show its lines."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    file = f"<source of {name} {digest}>"
    lines = text.splitlines(keepends=True)
    linecache.cache[file] = (len(text), None, lines, file)
    return file


@functools.lru_cache(maxsize=64)
def _functions(text: str, file: str) -> dict[str, tuple[FunctionNode, ...]]:
    """Every function of a file by name, in the order of ``ast.walk``; lambdas are ``<lambda>``."""
    found: dict[str, list[FunctionNode]] = {}
    for node in ast.walk(_parse(text, file)):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Lambda):
            found.setdefault("<lambda>", []).append(node)
    return {name: tuple(nodes) for name, nodes in found.items()}


def _parse(text: str, file: str) -> ast.Module:
    stripped = text.lstrip("\n")
    if stripped[:1] in (" ", "\t"):
        # An indented ``source=``: a block keeps columns as they stand.
        tree = _parse_text("if True:\n" + text, file)
        ast.increment_lineno(tree, -1)
        return tree
    return _parse_text(text, file)


def _parse_text(text: str, file: str) -> ast.Module:
    try:
        return ast.parse(text, file)
    except SyntaxError as error:
        line = error.lineno or 1
        span = Span(file, line, max(0, (error.offset or 1) - 1))
        raise fault(
            SyntaxUnsupported,
            "frontend/python-syntax",
            f"this is not Python: {error.msg}",
            span,
        ) from None


def _find(
    candidates: tuple[FunctionNode, ...], function: types.FunctionType, first_line: int | None
) -> FunctionNode | None:
    """The node of ``function`` among those of its name: on ``first_line``, or (None) the only one."""
    if function.__code__.co_name == "<lambda>":
        return _find_lambda(candidates, function, first_line)
    if first_line is None:
        return candidates[0] if len(candidates) == 1 else None
    for node in candidates:
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        if min([node.lineno, *(d.lineno for d in decorators)]) <= first_line <= node.lineno:
            return node
    return None


def _find_lambda(
    candidates: tuple[FunctionNode, ...], function: types.FunctionType, first_line: int | None
) -> FunctionNode | None:
    found = [n for n in candidates if first_line is None or n.lineno == first_line]
    if len(found) > 1:
        code = function.__code__
        found = [n for n in found if isinstance(n, ast.Lambda) and _compiles_to(n, code)]
    return found[0] if len(found) == 1 else None


def _compiles_to(node: ast.Lambda, code: types.CodeType) -> bool:
    """Whether ``node`` is the lambda ``code`` came from: argument names, bytecode and constants."""
    wrapper = compile(ast.Expression(node), "<lambda>", "eval")
    for constant in wrapper.co_consts:
        if isinstance(constant, types.CodeType):
            return (
                constant.co_varnames == code.co_varnames
                and constant.co_consts == code.co_consts
                and constant.co_names == code.co_names
            )
    return False


def _own_text(lines: tuple[str, ...], node: FunctionNode) -> str:
    first = node.lineno
    if isinstance(node, ast.FunctionDef):
        first = min([first, *(d.lineno for d in node.decorator_list)])
    last = node.end_lineno or node.lineno
    return "\n".join(lines[first - 1 : last])
