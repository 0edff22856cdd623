"""The bar that a tuning shows while it goes on: tqdm's, with the best so far behind it.

Not here: what progress is made of (``search``).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tilejit.errors import TuneError, fault
from tilejit.tune.search import Progress, Stage

_WORDS: dict[Stage, str] = {
    "trials": "running each", "halving": "halving", "finals": "comparing the fastest",
}  # fmt: skip


def wanted(asked: bool | None) -> bool:
    """Whether a bar is shown. Not asked: where tqdm is installed and somebody looks, at a terminal or in a notebook."""
    installed = importlib.util.find_spec("tqdm") is not None
    if asked and not installed:
        raise fault(
            TuneError, "tune/needs", "progress=True needs tqdm, which is not installed",
            help="pip install tqdm, or leave progress out",
        )  # fmt: skip
    if asked is not None:
        return asked
    return installed and (_in_notebook() or _Terminal(sys.stderr).isatty())


def _in_notebook() -> bool:
    """This process is a notebook's kernel; one that has imported Jupyter's packages need not be."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class _Terminal:
    """Where tqdm writes. One that is closed, has hung up or cannot say "µ" is no reason to end a tuning, and tqdm
    keeps its lock, which all bars of the process share, when a write fails."""

    def __init__(self, stream: Any):
        self._stream = stream
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> None:
        with suppress(AttributeError, OSError, ValueError):
            self._stream.write(text.encode(self.encoding, "replace").decode(self.encoding))

    def flush(self) -> None:
        with suppress(AttributeError, OSError, ValueError):
            self._stream.flush()

    def isatty(self) -> bool:
        with suppress(AttributeError, OSError, ValueError):
            return bool(self._stream.isatty())
        return False

    def fileno(self) -> int:
        """``OSError`` where there is none: tqdm asks it for the width."""
        try:
            return int(self._stream.fileno())
        except (AttributeError, ValueError) as error:
            raise OSError("no terminal") from error


@contextmanager
def shown(
    asked: bool | None, kernel: str, labels: Callable[[int], str]
) -> Iterator[Callable[[Progress], None]]:
    """What ``search`` tells its progress to. ``labels``: of candidates by number."""
    if not wanted(asked):
        yield lambda progress: None
        return
    tqdm: Any = importlib.import_module("tqdm.auto")
    # A notebook's bar is none of a terminal, and has its own place.
    place = {} if _in_notebook() else {"file": _Terminal(sys.stderr)}
    with tqdm.tqdm(
        desc=f"tuning {kernel}", leave=False, bar_format="{l_bar}{bar}{r_bar}", **place
    ) as bar:

        def show(progress: Progress) -> None:
            bar.set_description(f"tuning {kernel}, {_WORDS[progress.stage]}", refresh=False)
            bar.total, bar.n = progress.total, progress.done
            if progress.best is not None and progress.best_seconds is not None:
                best = f"best {progress.best_seconds * 1e6:.1f} µs: {labels(progress.best)}"
                bar.set_postfix_str(best, refresh=False)
            bar.refresh()

        yield show
