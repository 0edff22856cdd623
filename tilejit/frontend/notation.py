"""Layout notation with names: ``"(WARPS,32,N//(128*WARPS)):(1@warpid,1@laneid,4)"``.

Every extent, stride and offset may be an expression over the kernel's compile-time names; each is
evaluated and the notation is rewritten with numbers only. Axis names after ``@`` are left alone.

Not here: what the notation means (``layout.parse``).
"""

from __future__ import annotations

import ast
import re

from tilejit.frontend.state import Lowering
from tilejit.frontend.values import describe
from tilejit.ir import nodes as ir
from tilejit.layout import Layout, LayoutError, parse

WORDS = {"S", "R", "swizzle", "outer", "o"}
_NAME = re.compile(r"[A-Za-z_]\w*")


def layout(lw: Lowering, text: str) -> Layout:
    """Parse ``text``, its names looked up in the kernel's scope."""
    try:
        return parse(numbers_only(lw, text))
    except LayoutError as error:
        lw.refuse("layout", str(error))


def numbers_only(lw: Lowering, text: str) -> str:
    """``text`` with every entry's arithmetic replaced by its value."""
    # ``S`` and ``R`` open a bracket in the notation; anywhere else they are the kernel's names.
    text = re.sub(r"\b([SR])\b(?!\s*\[)", r"(\1*1)", text)
    names = [n for n in _NAME.findall(re.sub(r"@\s*\w+", "", text)) if n not in WORDS]
    if not names and not re.search(r"//|\*|%|-", text):
        return text
    pieces = re.split(r"([,:\[\]@]|\bo\b)", text)
    return "".join(_join_entries(lw, pieces))


def _join_entries(lw: Lowering, pieces: list[str]) -> list[str]:
    """Entries lie between separators; parentheses that only group arithmetic belong to the entry."""
    done: list[str] = []
    after_axis = False
    for piece in pieces:
        if piece == "@":
            after_axis = True
            done.append(piece)
        elif after_axis:
            name = _NAME.match(piece.strip())
            rest = piece.strip()[name.end() :] if name else piece
            done.append((name.group() if name else "") + _entry(lw, rest))
            after_axis = False
        else:
            done.append(_entry(lw, piece))
    return done


def _entry(lw: Lowering, piece: str) -> str:
    """One entry: outer parentheses and ``+`` that join layout parts stay, the rest is evaluated."""
    stripped = piece.strip()
    if not stripped or stripped in {",", ":", "[", "]", "o"}:
        return piece
    lead = ""
    while True:
        word = re.match(r"(\+|S(?=\s*$)|R(?=\s*$)|swizzle|outer)\s*", stripped)
        surplus = stripped.count("(") - stripped.count(")")
        if word:
            lead, stripped = lead + word.group(), stripped[word.end() :]
        elif stripped.startswith("(") and (surplus > 0 or not _evaluable(stripped)):
            lead, stripped = lead + "(", stripped[1:].lstrip()
        else:
            break
    tail = ""
    while stripped.endswith(")") and stripped.count(")") > stripped.count("("):
        tail, stripped = ")" + tail, stripped[:-1].rstrip()
    joined = re.match(r"^(.*?)(\)\s*\+\s*)(.*)$", stripped)
    if joined and stripped.count(")") > stripped.count("("):
        return (
            lead
            + _entry(lw, joined.group(1))
            + joined.group(2)
            + _entry(lw, joined.group(3))
            + tail
        )
    if not stripped or stripped.isdigit():
        return lead + stripped + tail
    if re.fullmatch(r".*\)\s*\+\s*[RS]", stripped):
        head, word_text = stripped.rsplit("+", 1)
        return lead + _entry(lw, head.rstrip()) + " + " + word_text.strip() + tail
    return lead + str(_value(lw, stripped)) + tail


def _evaluable(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        return False
    return "," not in text


def _value(lw: Lowering, text: str) -> int:
    from tilejit.frontend.expressions import evaluate

    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        lw.refuse("layout", f"{text!r} in a layout is no integer expression")
    here = lw.node
    assert here is not None
    for inner in ast.walk(node):
        if isinstance(inner, ast.expr):
            inner.lineno = getattr(here, "lineno", 1)
            inner.col_offset = getattr(here, "col_offset", 0)
            inner.end_lineno = getattr(here, "end_lineno", None)
            inner.end_col_offset = getattr(here, "end_col_offset", None)
    value = evaluate(lw, node)
    value = value.value if isinstance(value, ir.Const) else value
    if isinstance(value, bool) or not isinstance(value, int):
        lw.refuse(
            "layout", f"{text!r} in a layout is {describe(value)}, not a compile-time integer"
        )
    return value
