"""The process that compiles: ``python -m tilejit.tune.compiler FD``.

It is given lowered kernels and checks and compiles them one after another, each answered by one reply. It needs
neither torch nor the user's program; modules that a kernel's own constants come from are imported. Where the compiler takes the process with it, the one kernel has failed.
Not here: the other end of the socket (``compiling``), the steps (they come with a job).
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

from tilejit.errors import TileError
from tilejit.runtime.variant import Job, Made
from tilejit.tune.child import end_with


@dataclass(frozen=True, slots=True)
class Prepare:
    """Get ready for jobs; not answered."""

    load: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Compile:
    job: Job


Request: TypeAlias = Prepare | Compile


@dataclass(frozen=True, slots=True)
class Compiled:
    made: Made


@dataclass(frozen=True, slots=True)
class Broken:
    """The kernel breaks contracts."""

    error: TileError


@dataclass(frozen=True, slots=True)
class Failed:
    """The kernel keeps its contracts and was not compiled."""

    error: TileError


@dataclass(frozen=True, slots=True)
class Crashed:
    """An exception that is nobody's diagnostic, as text: the parent may not know its class."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The job holds something of the user's program, an enum's member in a launch, say, and that is not here."""


Result: TypeAlias = Compiled | Broken | Failed | Crashed
Reply: TypeAlias = Result | Unreadable


def compiled(job: Job) -> Result:
    try:
        try:
            checked = job.check()
        except TileError as error:
            return Broken(error)
        try:
            return Compiled(job.compile(checked))
        except TileError as error:
            return Failed(error)
    except Exception as error:
        return Crashed(f"{type(error).__name__}: {error}")


def main(descriptor: int) -> None:
    end_with(os.getppid())
    connection = Connection(descriptor)
    while True:
        try:
            data = connection.recv_bytes()
            reply = _answer(data)
            if reply is not None:
                connection.send(reply)
        except (EOFError, OSError):
            return


def _answer(data: bytes) -> Reply | None:
    try:
        request: Request = pickle.loads(data)
    except Exception:  # whatever a class that cannot be found, or its making, raises
        return Unreadable()
    if isinstance(request, Compile):
        return compiled(request.job)
    request.load()
    return None


if __name__ == "__main__":
    # What is said is pickled by the module's own name: not as this second copy, __main__.
    from tilejit.tune import compiler

    compiler.main(int(sys.argv[1]))
