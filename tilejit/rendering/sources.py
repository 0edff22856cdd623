"""The Python functions that a kernel was made of, as listings, and the keys that link other listings to them.

A key is a line number, with a letter before it for every file but the kernel's own: ``b34``.

Not here: reading a kernel's source for compilation (``frontend.source``).
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from string import ascii_lowercase

from tilejit.errors import Span
from tilejit.rendering.stages import Place


@dataclass(frozen=True, slots=True)
class Listing:
    """One function's lines. ``first``: the number of the first; ``keys``: of every line."""

    title: str
    text: str
    places: tuple[Place, ...]
    keys: tuple[str, ...]


@dataclass(slots=True)
class Sources:
    """``kernel_file``'s lines have plain numbers. What stands in no function has no key: generated text
    (``/tilejit/kernel.cu``), files that cannot be read, a compiler's guess of where a block ends. The
    kernel itself may be a lambda, on ``kernel_line``."""

    kernel_file: str
    kernel_line: int
    _letters: dict[str, str] = field(default_factory=dict)
    _functions: dict[str, tuple[tuple[int, int, str], ...]] = field(default_factory=dict)
    """Of the files asked for so far: each line of generated code asks."""

    def key(self, place: Place | None) -> str | None:
        if place is None or self._function(place) is None:
            return None
        file, line = place
        return f"{self._letter(file)}{line}"

    def _letter(self, file: str) -> str:
        if file == self.kernel_file:
            return ""
        if file not in self._letters:
            number = len(self._letters) + 1
            self._letters[file] = ascii_lowercase[number % 26] * (1 + number // 26)
        return self._letters[file]

    def _function(self, place: Place) -> tuple[int, int, str] | None:
        """First line, last line and name of the outermost function there."""
        file, line = place
        if file not in self._functions:
            self._functions[file] = _functions("".join(_text(file)))
        found = next((f for f in self._functions[file] if f[0] <= line <= f[1]), None)
        if found is None and place == (self.kernel_file, self.kernel_line):
            return line, line, "lambda"
        return found

    def listings(self, places: Iterable[Place | None]) -> list[Listing]:
        """The kernel, then every other function that holds a place."""
        kernel = (self.kernel_file, self.kernel_line)
        spans: dict[tuple[str, int, int, str], None] = {}
        for place in dict.fromkeys([kernel, *(p for p in places if p)]):
            span = self._function(place)
            if span is not None:
                spans[place[0], *span] = None
        whole = [s for s in spans if not any(_inside(s, other) for other in spans)]
        # A file that is no longer there, or shorter than it was, has no lines to list.
        return [self._listing(*span) for span in whole if len(_text(span[0])) >= span[1]]

    def _listing(self, file: str, first: int, last: int, name: str) -> Listing:
        lines = _text(file)[first - 1 : last]
        places = tuple((file, first + i) for i in range(len(lines)))
        keys = tuple(f"{self._letter(file)}{line}" for _, line in places)
        return Listing(
            f"{name}, {shown(file)} (lines {keys[0]}–{keys[-1]})", "".join(lines), places, keys
        )


def text_of(span: Span) -> str:
    """What stands there."""
    lines = [line.rstrip("\n") for line in _text(span.file)[span.line - 1 : span.end_line]]
    if not lines:
        return ""
    lines[-1] = lines[-1][: span.end_col]
    lines[0] = lines[0][span.col :]
    return "\n".join(lines)


def shown(file: str) -> str:
    """A file's name for a heading: a notebook cell's is temporary and means nothing to a reader."""
    return "a notebook cell" if "ipykernel_" in file else file.replace("\\", "/").split("/")[-1]


def _inside(span: tuple[str, int, int, str], other: tuple[str, int, int, str]) -> bool:
    return span != other and span[0] == other[0] and other[1] <= span[1] and span[2] <= other[2]


def _text(file: str) -> list[str]:
    return linecache.getlines(file)


@lru_cache(maxsize=32)
def _functions(text: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name; outer ones before those inside."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a cell with magics
        return ()
    found = [
        (min([n.lineno, *(d.lineno for d in n.decorator_list)]), n.end_lineno or n.lineno, n.name)
        for n in ast.walk(tree)
        if isinstance(n, ast.FunctionDef)
    ]
    return tuple(sorted(found, key=lambda f: (f[0], -f[1])))
