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
        self._span: Span | None = None
        self._file = ""
        self._next_line = -1
        self._quoted: dict[str, str] = {}
        """Each file that a directive names, as directives spell it."""

    @property
    def files(self) -> list[str]:
        """The files that directives name, in order of appearance."""
        return list(self._quoted)

    def span(self, span: Span | None) -> None:
        """The following lines come from ``span``; None leaves the previous one."""
        if span is not None:
            self._span = span

    def line(self, text: str) -> None:
        """One line of code, mapped to the current span."""
        span = self._span
        if span is not None and (span.line != self._next_line or span.file != self._file):
            self._file, self._next_line = span.file, span.line
            if span.file not in self._quoted:
                self._quoted[span.file] = quote(span.file)
            directive = f'#line {span.line} "{self._quoted[span.file]}"'
            self._lines.append(f"{directive}\n{self._indent}{text}")
        else:
            self._lines.append(self._indent + text)
        self._next_line += 1

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


class Silent(Writer):
    """Keeps nothing: for a pass whose text is void."""

    def line(self, text: str) -> None:
        pass

    def _brace(self, text: str) -> None:
        pass


def quote(text: str) -> str:
    """``text`` inside a C++ string literal, without the quotation marks."""
    return (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    ).replace("\t", "\\t")


def identifier(name: str) -> str:
    """``name`` with everything that C++ does not take in an identifier spelled out."""
    plain = re.sub(r"[^A-Za-z0-9_]", lambda m: "_" if m[0] in ".- " else f"u{ord(m[0]):x}", name)
    return plain if plain and not plain[0].isdigit() else f"n{plain}"


class Names(dict[str, str]):
    """C++ names of IR variables: the user's name with ``_`` behind it, which no keyword, type or
    built-in function ends with. Two IR names never share one C++ name."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: set[str] = set()

    def __missing__(self, name: str) -> str:
        found = identifier(name) + "_"
        while found in self._taken:
            found += "_"
        self._taken.add(found)
        self[name] = found
        return found
