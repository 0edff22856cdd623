"""Text assembly: lines with ``#line`` directives, and C++ names of user variables.

Not here: what is written.
"""

from __future__ import annotations

import re

from tilejit.errors import Span


class Writer:
    """Collects lines. ``span`` sets the user's line for what follows; a ``#line`` directive is
    written only where the compiler's own count would differ."""

    def __init__(self, indent: str = "  ") -> None:
        self._lines: list[str] = []
        self._indent = indent
        self._wanted: tuple[str, int] | None = None
        self._file = ""
        self._next_line = -1
        self.files: list[str] = []

    def span(self, span: Span | None) -> None:
        """The following lines come from ``span``; None leaves the previous one."""
        if span is not None:
            self._wanted = (span.file, span.line)

    def line(self, text: str) -> None:
        """One line of code, mapped to the current span."""
        wanted = self._wanted
        if wanted is not None and (wanted[1] != self._next_line or wanted[0] != self._file):
            file, number = wanted
            if file not in self.files:
                self.files.append(file)
            self._lines.append(f'#line {number} "{quote(file)}"')
            self._file, self._next_line = file, number
        self._brace(text)

    def _brace(self, text: str) -> None:
        """A line that makes no code, so nothing ever asks where it comes from."""
        self._lines.append(self._indent + text)
        self._next_line += 1

    def open(self, text: str) -> None:
        """A line that opens a block."""
        if text:
            self.line(f"{text} {{")
        else:
            self._brace("{")
        self._indent += "  "

    def middle(self, text: str) -> None:
        """Closes a block and opens the next: ``} else {``."""
        self._indent = self._indent[:-2]
        self._brace(f"}} {text} {{")
        self._indent += "  "

    def close(self, tail: str = "") -> None:
        """Closes the innermost block."""
        self._indent = self._indent[:-2]
        self._brace("}" + tail)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def quote(text: str) -> str:
    """``text`` inside a C++ string literal, without the quotation marks."""
    return (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    ).replace("\t", "\\t")


def identifier(name: str) -> str:
    """``name`` with everything that C++ does not take in an identifier spelled out."""
    plain = re.sub(r"[^A-Za-z0-9_]", lambda m: "_" if m[0] in ".- " else f"u{ord(m[0]):x}", name)
    return plain if plain and not plain[0].isdigit() else f"n{plain}"


class Names:
    """C++ names of IR variables: the user's name with ``_`` behind it, which no keyword, type or
    built-in function ends with. Two IR names never share one C++ name."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}
        self._taken: set[str] = set()

    def __getitem__(self, name: str) -> str:
        found = self._of.get(name)
        if found is None:
            found = identifier(name) + "_"
            while found in self._taken:
                found += "_"
            self._taken.add(found)
            self._of[name] = found
        return found
