"""What a kernel of a test is specialised on. Not here: what the values mean (each family's tests)."""

from __future__ import annotations

from typing import Any


class Case:
    """Named values; equal cases are one variant of a kernel. ``repr`` is the test's id."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __repr__(self) -> str:
        return "-".join(str(v) for v in vars(self).values() if v != "")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))
