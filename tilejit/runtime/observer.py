"""Being told of the kernels that a piece of code launches: each before it is launched, with its arguments.

Only launches that are prepared anew are told of, so that the others cost nothing: ``forget_launches``
makes every kernel prepare its next one. Launchers from ``k.bind`` are told of when they are made.
Not here: who wants to know (``ops``), which launches are prepared anew (``dispatch``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeAlias
from weakref import WeakSet

from tilejit.runtime.variant import Variant

Observer: TypeAlias = Callable[[Variant, Mapping[str, Any]], None]
"""Gets the variant and the arguments by parameter name. What it raises, the launch raises."""


class Launcher(Protocol):
    """What keeps prepared launches: a kernel."""

    def forget_launches(self) -> None: ...


_OBSERVER: ContextVar[Observer | None] = ContextVar("observer", default=None)
_launchers: WeakSet[Launcher] = WeakSet()
_lock = threading.Lock()


def add_launcher(launcher: Launcher) -> None:
    """``launcher`` takes part in ``forget_launches`` as long as it lives."""
    with _lock:
        _launchers.add(launcher)


def forget_launches() -> None:
    """Every launcher prepares its next launches anew, and so tells of them."""
    with _lock:
        launchers = list(_launchers)
    for launcher in launchers:
        launcher.forget_launches()


@contextmanager
def observed_by(observer: Observer) -> Iterator[None]:
    """This thread's launches inside the block are told to ``observer``, then to whoever observes around it."""
    around = _OBSERVER.get()

    def both(variant: Variant, arguments: Mapping[str, Any]) -> None:
        observer(variant, arguments)
        if around is not None:
            around(variant, arguments)

    token = _OBSERVER.set(both)
    try:
        yield
    finally:
        _OBSERVER.reset(token)


def tell(variant: Variant, arguments: Mapping[str, Any]) -> None:
    """The launch of ``variant`` is next."""
    observer = _OBSERVER.get()
    if observer is not None:
        observer(variant, arguments)
