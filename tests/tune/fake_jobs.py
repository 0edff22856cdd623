"""Jobs that do something else than compile, for the process that compiles. It imports this module."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilejit import pipeline
from tilejit.errors import CompileError, Diagnostic, Span
from tilejit.pipeline import CompileJob
from tilejit.runtime.variant import Job, Made


class Steps(pipeline.Pipeline):
    """The real steps, with the job that ``change`` makes of each."""

    def __init__(self, change: Callable[[CompileJob], Job]):
        super().__init__()
        self.change = change

    def compile_elsewhere(
        self, kernel: Any, lowered: Any, signature: Any, options: Any, run: Any
    ) -> Any:
        return super().compile_elsewhere(
            kernel, lowered, signature, options, lambda job: run(self.change(job))
        )


@dataclass(frozen=True)
class Changed:
    job: CompileJob

    @staticmethod
    def prepare() -> None:
        assert "torch" not in sys.modules

    def check(self) -> Any:
        return self.job.check()

    def compile(self, checked: Any) -> Made:
        assert "torch" not in sys.modules
        return self.job.compile(checked)


class Deadly(Changed):
    """A compiler that takes its process with it."""

    def compile(self, checked: Any) -> Made:
        os.kill(os.getpid(), signal.SIGSEGV)
        raise AssertionError("still alive")


class Rooted(Changed):
    """Refuses to travel, with an error of its own."""

    def __reduce__(self) -> Any:
        raise ValueError("this stays where it is")

    def compile(self, checked: Any) -> Made:
        return self.job.compile(checked)


class Raising(Changed):
    def compile(self, checked: Any) -> Made:
        raise ZeroDivisionError("nothing to divide by")


class Refused(Changed):
    def compile(self, checked: Any) -> Made:
        raise CompileError(Diagnostic("nvrtc/error", "ptxas says no", Span("k.py", 3, 4)))


@dataclass(frozen=True)
class Endless(Changed):
    """Says in a file which process it is in, and stays there."""

    told: Path

    def compile(self, checked: Any) -> Made:
        self.told.with_suffix(".new").write_text(str(os.getpid()))
        self.told.with_suffix(".new").rename(self.told)
        time.sleep(600)
        raise AssertionError("600 s were enough")
