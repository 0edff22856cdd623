"""A process of ours at the other end of a socket: how it is started, spoken to and ended, and how it ends itself.

It runs ``python -P -m MODULE FD`` with this very tilejit and takes what it is told from the socket FD. It
ends with its parent, even where something the parent forked holds the other end. Said are classes of modules
that both import; the parent's main program is not run in it.
Not here: what is said (``worker``, ``compiler``).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_REAP_SECONDS = 10.0
_TOLD_CHARACTERS = 400
_ORPHAN_CHECK_SECONDS = 0.5


def command(module: str) -> tuple[str, ...]:
    return sys.executable, "-P", "-m", module


class Child:
    """One process and the socket to it."""

    def __init__(self, command: Sequence[str]):
        ours, theirs = socket.socketpair()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        try:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                process_group=0,  # an interrupt from the keyboard is for the user's process to handle
                env={**os.environ, "PYTHONPATH": _python_path()},
            )
        except OSError:
            ours.close()
            self._said.close()
            raise
        finally:
            theirs.close()
        self.connection = Connection(ours.detach())
        # Whenever it ends, somebody has waited for it: no zombie stays.
        threading.Thread(target=self.process.wait, daemon=True).start()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, request: Any) -> None:
        """If the process is gone, who waits for its reply finds out."""
        with suppress(OSError):
            self.connection.send(request)

    def end(self) -> None:
        """Ends the process whatever it does. Who waits for its reply finds out."""
        with suppress(OSError):
            self.process.kill()

    def kill(self) -> None:
        """Ends the process and lets go of it."""
        self.end()
        self._reap()
        self.leave()

    def leave(self) -> None:
        """Lets go of a process that has ended, or is another's: this one was forked from its parent."""
        self.connection.close()
        self._said.close()

    def ended(self) -> str:
        """How a process ended that hung up, and what it said: "was ended by SIGSEGV: …". It is let go."""
        self._reap()
        code = self.process.poll()
        self._said.seek(0)
        told = self._said.read().decode(errors="replace").strip()[-_TOLD_CHARACTERS:]
        self.kill()
        how = f"with status {code}"
        if code is not None and code < 0:
            how = f"by {signal.Signals(-code).name}"
        return f"was ended {how}{': ' if told else ''}{told}"

    def _reap(self) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_REAP_SECONDS)


def _python_path() -> str:
    """So that the child finds this very tilejit, whatever its directory and ours."""
    package = str(Path(__file__).parents[2])
    others = os.environ.get("PYTHONPATH")
    return os.pathsep.join([package, others] if others else [package])


# --- in the process itself


def end_with(parent: int) -> None:
    """Ends this process when ``parent`` does, even while it hangs. The socket alone would not do: a process
    that the parent forked may hold its other end."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_ORPHAN_CHECK_SECONDS)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
