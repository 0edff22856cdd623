"""What a planted bug is: an edit of a kernel's text. Not a test module."""

from __future__ import annotations

from dataclasses import dataclass

NUMBERS = "wrong numbers"
IN_FLIGHT_OR_RACE = "sim/in-flight or sim/race"
"""Which one depends on who runs first."""


@dataclass(frozen=True)
class Bug:
    """``edits``: (old, new), each old text being in the kernel once. ``code``: what catches it, one
    code or several with ``or`` between."""

    subject: str
    name: str
    code: str
    edits: tuple[tuple[str, str], ...]


def bug(subject: str, name: str, code: str, *edits: tuple[str, str]) -> Bug:
    return Bug(subject, name, code, edits)
