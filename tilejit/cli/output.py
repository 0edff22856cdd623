"""What commands have in common: exit codes, columns of text, JSON.

Not here: what a command says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

OK, FAULTS, WRONG = 0, 1, 2
"""Exit codes: all right, faults found, wrong use."""


class WrongUse(Exception):
    """The command line cannot be followed: says why, and what to write instead."""


def columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows with their columns aligned; the last column runs on."""
    if not rows:
        return ""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths)]
        lines.append((indent + "  ".join([*cells, row[-1]])).rstrip())
    return "\n".join(lines)


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=1))


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_text(nbytes: float) -> str:
    """Bytes for people: ``312 bytes``, ``4.5 MiB``."""
    if nbytes < 1024:
        return f"{nbytes:.0f} bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        nbytes /= 1024
        if nbytes < 1024 or unit == "TiB":
            break
    return f"{nbytes:.1f} {unit}"


def age_text(seconds: float) -> str:
    """Seconds for people: ``5 s``, ``3 h``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
