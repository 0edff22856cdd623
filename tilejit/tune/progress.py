"""The bar that a tuning shows while it goes on: tqdm's, with the best so far behind it.

Not here: what progress is made of (``search``).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    return installed and (sys.stderr.isatty() or "ipykernel" in sys.modules)


@contextmanager
def shown(
    asked: bool | None, kernel: str, labels: Callable[[int], str]
) -> Iterator[Callable[[Progress], None]]:
    """What ``search`` tells its progress to. ``labels``: of candidates by number."""
    if not wanted(asked):
        yield lambda progress: None
        return
    tqdm: Any = importlib.import_module("tqdm.auto")
    with tqdm.tqdm(desc=f"tuning {kernel}", leave=False, bar_format="{l_bar}{bar}{r_bar}") as bar:

        def show(progress: Progress) -> None:
            bar.set_description(f"tuning {kernel}, {_WORDS[progress.stage]}", refresh=False)
            bar.total, bar.n = progress.total, progress.done
            if progress.best is not None and progress.best_seconds is not None:
                best = f"best {progress.best_seconds * 1e6:.1f} µs: {labels(progress.best)}"
                bar.set_postfix_str(best, refresh=False)
            bar.refresh()

        yield show
