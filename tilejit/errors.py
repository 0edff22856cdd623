"""Spans, diagnostics, exceptions and their rendering.

Every fault a user can cause becomes a ``Diagnostic``: a stable ``family/condition`` code, a message
that says what is and what was expected (with units), the source span of the guilty operand, and
labelled notes (``where``, ``declared``, ``contract``, ``help``). A ``Report`` collects all faults
of a kernel; exceptions carry the collected list and render it with carets.

Not here: deciding what is a fault (families, frontend, runtime do).
"""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilejit.markup import Html


@dataclass(frozen=True, slots=True)
class Span:
    """A region of user source. Lines are 1-based; columns are 0-based, ``end_col`` exclusive.

    ``call_site`` is set in helpers that were inlined: the span of the call, one frame outwards.
    """

    file: str
    line: int
    col: int = 0
    end_line: int = 0
    end_col: int = 0
    function: str = ""
    call_site: Span | None = None

    @property
    def short(self) -> str:
        return f"{self.file}:{self.line}"

    def frames(self) -> Iterator[Span]:
        """Innermost frame first."""
        span: Span | None = self
        while span is not None:
            yield span
            span = span.call_site


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault. ``code`` is ``family/condition`` in kebab-case and stable across releases."""

    code: str
    message: str
    span: Span | None = None
    notes: tuple[tuple[str, str], ...] = ()

    def render(self) -> str:
        lines = [f"error[{self.code}]: {self.message}"]
        if self.span is not None:
            for depth, span in enumerate(self.span.frames()):
                lines.extend(_render_span(span, inlined=depth > 0))
        lines.extend(f"   = {label}: {text}" for label, text in self.notes)
        return "\n".join(lines)


def _render_span(span: Span, *, inlined: bool) -> list[str]:
    where = f"{span.file}:{span.line}:{span.col + 1}"
    head = f"  {'::: inlined at' if inlined else '-->'} {where}"
    if span.function:
        head += f" in {span.function}"
    text = linecache.getline(span.file, span.line).rstrip("\n")
    if not text.strip():
        return [head]
    number = str(span.line)
    pad = " " * len(number)
    return [
        head,
        f"{pad} |",
        f"{number} | {text}",
        f"{pad} | {_carets(span, text)}",
    ]


def _carets(span: Span, text: str) -> str:
    """What stands below ``text``, the span's line: to its end where the span goes on."""
    end = span.end_col if span.end_line in (0, span.line) else len(text)
    return " " * span.col + "^" * max(1, end - span.col)


def _render_alike(alike: list[Diagnostic]) -> str:
    """Faults of one kind at one place: the first, and how many more there are."""
    text = alike[0].render()
    if len(alike) > 1:
        text += f"\n   = again: {len(alike) - 1} more in the unrolled copies of this line"
    return text


_CONTEXT_LINES = 2
"""Around a place, in HTML."""


def _html_alike(alike: list[Diagnostic]) -> Html:
    """Faults of one kind at one place as HTML: message, places with their source, notes."""
    from tilejit import markup

    first = alike[0]
    notes = list(first.notes)
    if len(alike) > 1:
        notes.append(("again", f"{len(alike) - 1} more in the unrolled copies of this line"))
    code = markup.tag("span", first.code, class_="bad")
    frames = [] if first.span is None else list(first.span.frames())
    parts = [
        markup.tag("div", markup.join((code, " ", first.message)), class_="message"),
        *(_html_span(span, inlined=depth > 0) for depth, span in enumerate(frames)),
        markup.table((), [(markup.tag("b", label), _note(text)) for label, text in notes]),
    ]
    return markup.tag("div", markup.join(parts), class_="diagnostic")


def _note(text: str) -> Html:
    from tilejit import markup

    return markup.tag("span", text, class_="message")


def _html_span(span: Span, *, inlined: bool) -> Html:
    """The lines around a place, with carets under it."""
    from tilejit import markup

    where = "a notebook cell, line" if "ipykernel_" in span.file else span.file
    head = f"{'inlined at' if inlined else 'at'} {where}{' ' if where != span.file else ':'}{span.line}"
    heading = markup.tag(
        "div", f"{head} in {span.function}" if span.function else head, class_="faint"
    )
    if not linecache.getline(span.file, span.line).strip():
        return heading
    first = max(1, span.line - _CONTEXT_LINES)
    lines: list[tuple[int | None, str]] = []
    for number in range(first, span.line + _CONTEXT_LINES + 1):
        text = linecache.getline(span.file, number).rstrip("\n")
        lines.append((number, text))
        if number == span.line:
            lines.append((None, _carets(span, text)))
    while not lines[-1][1].strip():
        lines.pop()
    listing = markup.code(
        "\n".join(text for _, text in lines), lines=[number for number, _ in lines]
    )
    return markup.join((heading, listing))


class TileError(Exception):
    """Base of every error a user of tilejit can see. ``diagnostics`` holds all faults found."""

    def __init__(self, diagnostics: Diagnostic | list[Diagnostic] | tuple[Diagnostic, ...]):
        if isinstance(diagnostics, Diagnostic):
            diagnostics = (diagnostics,)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        super().__init__(self.render())

    def __reduce__(self) -> tuple[type[TileError], tuple[tuple[Diagnostic, ...]]]:
        return type(self), (self.diagnostics,)

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(d.code for d in self.diagnostics)

    def render(self) -> str:
        """The faults, one of each kind at a place: unrolled code repeats its own."""
        places = self._places()
        body = "\n\n".join(_render_alike(alike) for alike in places)
        count = len(self.diagnostics)
        if count == 1:
            return body
        shown = "" if len(places) == count else f", {len(places)} shown"
        return f"{body}\n\n{count} errors{shown}"

    def html(self) -> Html:
        """``render`` as HTML: what a page that shows the error among others puts in."""
        from tilejit import markup

        count = len(self.diagnostics)
        head = type(self).__name__ if count == 1 else f"{type(self).__name__}: {count} errors"
        parts = [markup.tag("div", head, class_="title")]
        parts += [_html_alike(alike) for alike in self._places()]
        return markup.join(parts)

    def _repr_html_(self) -> str:
        from tilejit import markup

        return markup.fragment(self.html())

    def _places(self) -> list[list[Diagnostic]]:
        """The faults by kind and place."""
        places: dict[tuple[str, Span | None], list[Diagnostic]] = {}
        for diagnostic in self.diagnostics:
            key = (diagnostic.code, diagnostic.span)
            places.setdefault(key if diagnostic.span else (diagnostic.render(), None), []).append(
                diagnostic
            )
        return list(places.values())

    def _render_traceback_(self) -> list[str]:
        """IPython calls this instead of printing our frames."""
        return self.uncaught().splitlines()

    def uncaught(self) -> str:
        """What is printed when nobody catches the error: the faults, and where more is said of them."""
        return f"{self.render()}\n\nmore about it: python -m tilejit explain {self.codes[0]}"


class SyntaxUnsupported(TileError):
    """The kernel's Python uses something the kernel language does not have, or uses it wrongly."""


class ContractError(TileError):
    """A tile instruction's operands or parameters break the family's contract."""


class TargetError(TileError):
    """A right program for another GPU: an instruction the target does not have."""


class CompileError(TileError):
    """NVRTC or ptxas refused the generated code; lines are mapped to the user's."""


class LaunchError(TileError):
    """Arguments or launch configuration that cannot be launched."""


class TuneError(TileError):
    """A tuning that cannot be done as asked for, or that no config came out of."""


class SimulationFault(TileError):
    """Undefined behaviour, race, deadlock or failed assertion found by the simulator."""


class Unsimulated(TileError):
    """The simulator does not model this. It says nothing about the program."""


class InternalError(TileError):
    """A defect of tilejit itself."""


class DefinitionError(Exception):
    """A table row or family that contradicts itself; raised at import, never by a user's kernel."""


@dataclass(slots=True)
class Report:
    """Collects diagnostics. ``at`` sets the span used by faults that name none."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    _span: Span | None = None

    @contextmanager
    def at(self, span: Span | None) -> Iterator[None]:
        previous = self._span
        self._span = span or previous
        try:
            yield
        finally:
            self._span = previous

    def error(
        self,
        code: str,
        message: str,
        *,
        span: Span | None = None,
        where: str | None = None,
        declared: str | None = None,
        contract: str | None = None,
        help: str | None = None,
    ) -> None:
        notes = tuple(
            (label, text)
            for label, text in (
                ("where", where),
                ("declared", declared),
                ("contract", contract),
                ("help", help),
            )
            if text is not None
        )
        self.diagnostics.append(Diagnostic(code, message, span or self._span, notes))

    @property
    def failed(self) -> bool:
        return bool(self.diagnostics)

    def raise_if_failed(self, exception: type[TileError] = ContractError) -> None:
        if self.diagnostics:
            raise exception(self.diagnostics)


def fault(
    exception: type[TileError], code: str, message: str, span: Span | None = None, **notes: str
) -> TileError:
    """One-fault exception: ``raise fault(LaunchError, "launch/grid", "…", help="…")``."""
    return exception(Diagnostic(code, message, span, tuple(notes.items())))


def attach_span(error: TileError, span: Span) -> TileError:
    """The same exception with ``span`` on every diagnostic that has none."""
    return type(error)([d if d.span else replace(d, span=span) for d in error.diagnostics])


_previous_hook = sys.excepthook
_previous_thread_hook = threading.excepthook


def _excepthook(
    kind: type[BaseException], value: BaseException, traceback: TracebackType | None
) -> None:
    """Uncaught TileErrors print their diagnostics; frames of tilejit itself would only distract."""
    if isinstance(value, TileError) and not isinstance(value, InternalError):
        print(value.uncaught(), file=sys.stderr)
    else:
        _previous_hook(kind, value, traceback)


def _thread_excepthook(args: threading.ExceptHookArgs) -> None:
    """The same in a thread, named as Python names it."""
    value = args.exc_value
    if isinstance(value, TileError) and not isinstance(value, InternalError):
        name = args.thread.name if args.thread is not None else "<unknown>"
        print(f"Exception in thread {name}:\n{value.uncaught()}", file=sys.stderr)
    else:
        _previous_thread_hook(args)


sys.excepthook = _excepthook
threading.excepthook = _thread_excepthook
