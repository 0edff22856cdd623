"""``tilejit check FILE[:KERNEL]…``: every contract of a file's kernels, without compiler or GPU.

The file is imported; each kernel is checked for its examples, for what the file itself launched, and for what
flags say. Output for people, as one JSON document, or in gcc's form, which editors read.

Not here: what is checked with what (``arguments``), the contracts (families).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tilejit.cli import arguments, modules
from tilejit.cli.modules import Imported, Wanted
from tilejit.cli.output import FAULTS, OK, columns, print_json
from tilejit.errors import Diagnostic, Span, TileError
from tilejit.runtime.jit import JitFunction

INLINED = "no T.device_entry: checked where kernels call it, or with --block"


@dataclass(slots=True)
class Outcome:
    """``status``: ``ok``, ``faults``, ``not checked`` or ``inlined``. ``faults``: each with the case that
    showed it and how many unrolled copies did."""

    file: Path
    name: str
    status: str
    cases: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    faults: list[tuple[str, Diagnostic, int]] = field(default_factory=list)


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="+", metavar="FILE[:KERNEL]", help="a Python file, or one of its kernels"
    )
    parser.add_argument(
        "--strict", action="store_true", help="a kernel that could not be checked is a fault"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_const", const="json", dest="form", help="one JSON document"
    )
    form.add_argument(
        "--format",
        choices=("text", "json", "gcc"),
        dest="form",
        help="gcc: file:line:column: error: …, for editors",
    )
    arguments.add_to(parser)  # fmt: skip


def run(options: argparse.Namespace) -> int:
    flags = arguments.flags_of(options)
    outcomes = list(_outcomes([Wanted.parse(text) for text in options.files], flags))
    write = {"json": _write_json, "gcc": _write_gcc}.get(options.form, _write_text)
    write(outcomes)
    bad = {"faults", "not checked"} if options.strict else {"faults"}
    return FAULTS if any(o.status in bad for o in outcomes) else OK


def _outcomes(wanted: list[Wanted], flags: arguments.Flags) -> Iterator[Outcome]:
    chosen: list[tuple[Imported, str, JitFunction]] = []
    for place in wanted:
        try:
            chosen += modules.each(place)
        except TileError as error:
            yield Outcome(place.path, "", "faults", [], [], _counted("import", error))
    if chosen:
        arguments.refuse_unknown([kernel for _, _, kernel in chosen], flags)
    for imported, name, kernel in chosen:
        with contextlib.redirect_stdout(sys.stderr):  # an example may be code that prints
            yield _outcome(imported, name, kernel, flags)


def _outcome(imported: Imported, name: str, kernel: JitFunction, flags: arguments.Flags) -> Outcome:
    outcome = Outcome(imported.path, name, "ok")
    launches = flags.block is not None or enters_device(kernel)
    found = arguments.Cases()
    with _faults_of("examples", outcome):
        found = arguments.cases_of(kernel, imported.module, flags, launches=launches)
    outcome.missing = found.missing
    for case in found.cases:
        outcome.cases.append(case.label)
        with _faults_of(case.label, outcome):
            _ = case.make().checked  # made, or raised, by asking for it
    if outcome.faults:
        outcome.status = "faults"
    elif not outcome.cases:
        outcome.status = "not checked" if launches else "inlined"
    return outcome


@contextlib.contextmanager
def _faults_of(label: str, outcome: Outcome) -> Iterator[None]:
    """What the block raises becomes faults of ``outcome``."""
    try:
        with modules.errors_of(outcome.file):
            yield
    except TileError as error:
        outcome.faults += _counted(label, error)


def enters_device(kernel: JitFunction) -> bool:
    """Whether it calls ``T.device_entry``; without, it is inlined in kernels, or launched with a block."""
    tree = cast(Any, kernel.__tilejit_kernel__).node
    return any(
        isinstance(n, ast.Attribute | ast.Name)
        and getattr(n, "attr", getattr(n, "id", "")) == "device_entry"
        for n in ast.walk(tree)
    )


def _counted(label: str, error: TileError) -> list[tuple[str, Diagnostic, int]]:
    """An error's diagnostics; of those alike at one place (unrolled copies) the first."""
    places: dict[Any, tuple[Diagnostic, int]] = {}
    for diagnostic in error.diagnostics:
        key = (diagnostic.code, diagnostic.span or diagnostic.message)
        first, count = places.get(key, (diagnostic, 0))
        places[key] = first, count + 1
    return [(label, diagnostic, count) for diagnostic, count in places.values()]


# --- output


def _write_text(outcomes: list[Outcome]) -> None:
    rows = []
    for outcome in outcomes:
        for label, diagnostic, count in outcome.faults:
            print(diagnostic.render())
            if outcome.name:
                print(f"   = kernel: {outcome.name}, {label}")
            if count > 1:
                print(f"   = again: {count - 1} more in the unrolled copies of this line")
            print()
        what = {
            "ok": ", ".join(outcome.cases),
            "faults": f"{len(outcome.faults)} ({', '.join(outcome.cases) or 'import'})",
            "not checked": "needs " + ", ".join(outcome.missing),
            "inlined": INLINED,
        }[outcome.status]
        rows.append((outcome.status, outcome.name or str(outcome.file), what))
    print(columns(rows) or "no kernels")


def _write_gcc(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        for _, diagnostic, _ in outcome.faults:
            place = _gcc_place(diagnostic.span, outcome)
            print(f"{place}: error: {_line(diagnostic.message)} [{diagnostic.code}]")
            for span in list(diagnostic.span.frames())[1:] if diagnostic.span else ():
                print(f"{_gcc_place(span, outcome)}: note: inlined here")
            for label, text in diagnostic.notes:
                print(f"{place}: note: {label}: {_line(text)}")


def _gcc_place(span: Span | None, outcome: Outcome) -> str:
    return f"{outcome.file}:1:1" if span is None else f"{span.file}:{span.line}:{span.col + 1}"


def _line(text: str) -> str:
    return " ".join(text.split())


def _write_json(outcomes: list[Outcome]) -> None:
    print_json(
        {
            "diagnostics": [
                _diagnostic_data(outcome, *fault) for outcome in outcomes for fault in outcome.faults
            ],
            "kernels": [
                {
                    "file": str(outcome.file), "kernel": outcome.name, "status": outcome.status,
                    "cases": outcome.cases, "missing": outcome.missing,
                }
                for outcome in outcomes
                if outcome.name
            ],
        }
    )  # fmt: skip


def _diagnostic_data(
    outcome: Outcome, label: str, diagnostic: Diagnostic, count: int
) -> dict[str, Any]:
    """Lines and columns count from 1; the end is where the place is over."""
    span = diagnostic.span
    return {
        "file": str(outcome.file) if span is None else span.file,
        **_place_data(span),
        "severity": "error",
        "code": diagnostic.code,
        "message": diagnostic.message,
        "notes": [{"label": name, "text": text} for name, text in diagnostic.notes],
        "kernel": outcome.name,
        "case": label,
        "count": count,
        "inlined_at": [
            {"file": s.file, **_place_data(s)} for s in (list(span.frames())[1:] if span else ())
        ],
    }


def _place_data(span: Span | None) -> dict[str, int]:
    if span is None:
        return {"line": 1, "column": 1, "end_line": 1, "end_column": 1}
    several = span.end_line not in (0, span.line)
    return {
        "line": span.line,
        "column": span.col + 1,
        "end_line": span.end_line or span.line,
        "end_column": (span.end_col if several else max(span.end_col, span.col)) + 1,
    }
