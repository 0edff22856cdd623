"""Generated code line by line, each with the place in the user's source that it comes from.

CUDA C++ says it in ``#line`` directives, PTX in ``.loc`` and in the comments of our instructions, SASS in what
the disassembler reads from the cubin's line table. Directives and comments are left out of the text.

Not here: how a listing looks (``kernel_page``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""File and line."""


@dataclass(frozen=True, slots=True)
class Line:
    """``instruction``: counts as one, unlike labels, declarations and braces."""

    text: str
    place: Place | None
    instruction: bool = False


_DIRECTIVE = re.compile(r'^#line (\d+) "(.*)"$')
_OPERATION = re.compile(r" ?// tilejit:op=\d+(?: (?P<file>\S.*?):(?P<line>\d+))?(?=\"|$)")
_ALONE = re.compile(r"^\s*[{}]*\s*$")


def cuda(text: str) -> Iterator[Line]:
    """Lines before the first directive belong to no place, nor do braces: nobody asks where they are from."""
    place: Place | None = None
    for line in text.splitlines():
        directive = _DIRECTIVE.match(line)
        if directive is not None:
            place = (_unquoted(directive[2]), int(directive[1]))
            continue
        yield Line(_OPERATION.sub("", line), None if _ALONE.match(line) else place)
        if place is not None:
            place = (place[0], place[1] + 1)


_LOCATION = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"((?:[^"\\]|\\.)*)"')
_INLINE = ("// begin inline asm", "// end inline asm")
_NOT_AN_INSTRUCTION = (".", "$", "//", "{", "}", ")", "(")


def ptx(text: str) -> Iterator[Line]:
    """An instruction of ours says itself where it is from; the rest by the nearest ``.loc`` above."""
    lines = text.splitlines()
    files = {m[1]: _unquoted(m[2]) for line in lines if (m := _FILE.match(line)) is not None}
    place: Place | None = None
    for line in lines:
        location = _LOCATION.match(line)
        if location is not None:
            place = (files.get(location[1], ""), int(location[2]))
            continue
        bare = line.strip()
        if not bare or bare in _INLINE or bare.startswith((".file", "//")):
            continue
        own = _OPERATION.search(line)
        here = (own["file"], int(own["line"])) if own is not None and own["file"] else place
        instruction = not bare.startswith(_NOT_AN_INSTRUCTION) and bare.endswith((";", "{"))
        instruction = instruction or own is not None
        yield Line(
            _OPERATION.sub("", line).expandtabs(4),
            here if instruction else None,
            instruction,
        )


_MARK = re.compile(r'^\s*//## File "(.*?)", line (\d+)')
_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(.*?;)")
_LABEL = re.compile(r"^\.L_x?_?\d+:")


def sass(text: str) -> Iterator[Line]:
    """Instructions and labels; whether there are places depends on the disassembler."""
    place: Place | None = None
    for line in text.splitlines():
        mark, found = _MARK.match(line), _INSTRUCTION.match(line)
        if mark is not None:
            place = (_unquoted(mark[1]), int(mark[2]))
        elif found is not None:
            yield Line(
                f"{found[1]}  {' '.join(found[2].split())}", place, not _is_padding(found[2])
            )
        elif _LABEL.match(line):
            yield Line(line, None)


def _is_padding(instruction: str) -> bool:
    return instruction.startswith("NOP")


def _unquoted(text: str) -> str:
    return text.replace('\\"', '"').replace("\\\\", "\\")
