"""Collects what the simulator finds, once per program point, and words it.

A fault is keyed by its code and the source places it involves; the first thread that meets it
becomes the example and the others are counted. The run goes on after a fault (a faulting access
reads zeros or writes nothing), so that one run shows all of them, up to ``limit`` distinct ones.

Not here: deciding what is a fault (``memory``, ``hazards``, ``barrier``, ``expr``).
"""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field

from tilejit.errors import Diagnostic, SimulationFault, Span


@dataclass(frozen=True, slots=True)
class Site:
    """One place of the program that touches memory or waits.

    ``verb`` completes "thread … <verb>": ``reads``, ``writes``, ``updates``. ``what`` is the
    operation as written (``ld.global.v4.b32``, ``load``). ``strong`` accesses (atomic, relaxed,
    acquire, release) do not race with each other; ``asynchronous`` ones happen some time before a
    wait; ``remote`` ones may be of another CTA's shared memory. ``index`` numbers the sites of a
    program.
    """

    index: int
    verb: str
    what: str
    span: Span | None
    strong: bool = False
    asynchronous: bool = False
    remote: bool = False

    @property
    def writes(self) -> bool:
        return self.verb != "reads"


def place(span: Span | None) -> str:
    """``file:line: source text`` for a note about a second place."""
    if span is None:
        return "unknown place"
    text = linecache.getline(span.file, span.line).strip()
    return f"{span.short}: {text}" if text else span.short


@dataclass(slots=True)
class Entry:
    diagnostic: Diagnostic
    times: int


@dataclass(slots=True)
class FaultLog:
    """Distinct faults of one run, in the order found."""

    limit: int = 20
    entries: dict[tuple[object, ...], Entry] = field(default_factory=dict)

    def known(self, code: str, span: Span | None, other: object, times: int) -> bool:
        """True, and counted, if such a fault is already held: no need to word it again."""
        entry = self.entries.get((code, span, other))
        if entry is None:
            return False
        entry.times += times
        return True

    def add(
        self,
        code: str,
        message: str,
        span: Span | None,
        notes: tuple[tuple[str, str], ...],
        other: object = None,
        times: int = 1,
    ) -> None:
        """Keeps the fault; raises all of them when there are ``limit``."""
        if self.known(code, span, other, times):
            return
        self.entries[code, span, other] = Entry(Diagnostic(code, message, span, notes), times)
        if len(self.entries) >= self.limit:
            raise self.exception()

    def exception(self) -> SimulationFault:
        return SimulationFault([self._with_count(entry) for entry in self.entries.values()])

    def raise_if_any(self) -> None:
        if self.entries:
            raise self.exception()

    @staticmethod
    def _with_count(entry: Entry) -> Diagnostic:
        found = entry.diagnostic
        if entry.times < 2:
            return found
        note = ("count", f"{entry.times} accesses or threads at this place; the first is shown")
        return Diagnostic(found.code, found.message, found.span, (*found.notes, note))
