"""``main``: the command line's commands, their help, and what exit codes become of what they raise.

Not here: what a command does (its module).
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from tilejit import __version__
from tilejit.cli.output import FAULTS, WRONG, WrongUse
from tilejit.errors import TileError

COMMANDS: dict[str, tuple[str, str]] = {
    "doctor": ("doctor", "say what of tilejit works on this machine, and what to do about what does not"),
    "check": ("check", "check the contracts of a file's kernels; needs no compiler and no GPU"),
    "show": ("show", "print a kernel's IR, CUDA C++, PTX, SASS or statistics"),
    "compile": ("ahead", "compile a kernel ahead of time: cubin, JSON, C header and a file for tile.load"),
    "families": ("families", "list the instruction families: forms, targets, and what was checked, simulated and run"),
    "cache": ("caches", "list, explain or remove compiled kernels and tuning results on disk"),
    "explain": ("explain", "print the page of an error code: what it means, and a failing and a mended example"),
}  # fmt: skip
"""Of each command its module, which has ``add_to(parser)`` and ``run(options)``, and what it is for. Only the
module of the command at hand is imported: the doctor must run where the others cannot."""

EPILOG = "Exit codes: 0 all right, 1 faults found, 2 wrong use."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; gives its exit code. Wrong flags leave by ``SystemExit``, as argparse has it."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    chosen = next((a for a in given if a in COMMANDS), None)
    _print_anything()
    options = _parser(chosen).parse_args(given)
    try:
        code: int = _module(options.command).run(options)
        if sys.stdout is not None:  # it is None where the shell closed it, and print says nothing
            sys.stdout.flush()
    except WrongUse as error:
        print(f"tilejit {options.command}: {error}", file=sys.stderr)
        return WRONG
    except TileError as error:
        print(error.render(), file=sys.stderr)
        return FAULTS
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # there the reader (head, less) has seen enough
            print(f"tilejit {options.command}: {error}", file=sys.stderr)
        # What is left unwritten would make Python complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAULTS
    return code


def _print_anything() -> None:
    """Letters that the terminal's encoding lacks are printed as escapes, rather than ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _module(command: str) -> Any:
    return importlib.import_module(f"tilejit.cli.{COMMANDS[command][0]}")


def _parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser of all commands, of which ``chosen`` knows its flags."""
    parser = argparse.ArgumentParser(
        prog="tilejit",
        description="GPU kernels made of exact PTX tile instructions under checked contracts.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"tilejit {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        sub = commands.add_parser(
            name, help=text, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if name == chosen:
            module = _module(name)
            sub.description = _description(module.__doc__)
            module.add_to(sub)
    return parser


def _description(text: str | None) -> str:
    """A module's text without what it says to those who read the source."""
    return (text or "").partition("Not here:")[0].strip()
