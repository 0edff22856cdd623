"""What a kernel keeps of its specialisations, within bounds: variants, loaded kernels, reasons.

A kernel may be specialised without end: a server that sees a new length with every request, a search. Kept
are

* the ``MAX_VARIANTS`` variants asked for last, each with its IR and texts, and those that somebody holds;
* the first ``MAX_FIRST_PLANS`` loaded kernels, for the life of the kernel: a CUDA graph may have captured
  their launches, and nobody says when a graph is gone;
* the ``MAX_LATER_PLANS`` launched last of all others. One that makes room is unloaded once no launcher from
  ``k.bind`` holds it; but their launches look whether they are captured, and what was captured stays loaded;
* the reasons of the ``MAX_REASONS`` specialisations made last.

So the table of a later plan holds no plan but a function that finds it, or raises ``Forgotten``.
Not here: which variant suits a call (``jit``), unloading (``driver``).
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from weakref import WeakValueDictionary, finalize

from tilejit.ir.signature import Signature
from tilejit.runtime import history
from tilejit.runtime.plan import Forgotten, Grid, Plan, Run
from tilejit.runtime.variant import Variant

MAX_VARIANTS = 128
MAX_FIRST_PLANS = 1024
MAX_LATER_PLANS = 256
MAX_REASONS = 1024
MAX_COMPARED = 64
"""Specialisations that a new one is compared with, to say in what it differs from the nearest."""


class SpecialisationWarning(UserWarning):
    """A kernel is specialised so often that something it is specialised on should be a run-time value."""


class Variants:
    """The variants of one kernel by what tells them apart. The caller locks."""

    def __init__(self) -> None:
        self._held: OrderedDict[Any, Variant] = OrderedDict()
        self._alive: WeakValueDictionary[Any, Variant] = WeakValueDictionary()
        self._reasons: deque[str] = deque(maxlen=MAX_REASONS)
        self._compared: deque[Signature] = deque(maxlen=MAX_COMPARED)
        self._generation = 0
        self._made = 0
        self._changed: str | None = None
        self.latest: Variant | None = None

    def find(self, identity: Any) -> Variant | None:
        key = (self._generation, identity)
        variant = self._alive.get(key)
        if variant is not None:
            self._hold(key, variant)
        return variant

    def reason(self, signature: Signature) -> str:
        """Why what was made before does not do for ``signature``."""
        return history.reason(signature, reversed(self._compared), self._changed)

    def add(self, identity: Any, variant: Variant) -> None:
        """A new specialisation, or one made anew."""
        self._changed = None
        self._compared.append(variant.signature)
        self._reasons.append(variant.reason)
        self._made += 1
        self.restore(identity, variant)

    def restore(self, identity: Any, variant: Variant) -> None:
        """One that was there before and had made room."""
        key = (self._generation, identity)
        self.latest = self._alive[key] = variant
        self._hold(key, variant)

    def _hold(self, key: Any, variant: Variant) -> None:
        self._held[key] = variant
        self._held.move_to_end(key)
        if len(self._held) > MAX_VARIANTS:
            self._held.popitem(last=False)

    def outside_changed(self, what: str) -> None:
        """None of them is found any more: ``what`` they were made from has changed."""
        self._generation += 1
        self._compared.clear()
        self._changed = what

    def __iter__(self) -> Iterator[Variant]:
        """Those held, the one made first before the others."""
        return iter(sorted(self._alive.values(), key=lambda v: v.number))

    def next_number(self) -> int:
        return self._made + 1

    def explain(self) -> list[str]:
        """A line for each reason that is kept, with its number."""
        first = self._made - len(self._reasons) + 1
        lines = [f"{i}. {reason}" for i, reason in enumerate(self._reasons, first)]
        return lines if first == 1 else [f"1. to {first - 1}. are not kept", *lines]


class Plans:
    """The loaded kernels of one Python kernel. ``capturing(device)``: whether launches are now captured."""

    def __init__(self, name: str, capturing: Callable[[int], bool]):
        self._name, self._capturing = name, capturing
        self._first: dict[int, Plan] = {}
        """By ``id``, which is the plan's own as long as it is in here."""
        self._found: dict[Any, Plan] = {}
        self._later: OrderedDict[Any, Plan] = OrderedDict()
        self._of_variant: dict[Any, int] = {}
        self._lock = threading.Lock()

    def __contains__(self, identity: Any) -> bool:
        """Whether a plan of this variant is kept, for whichever device."""
        return identity in self._of_variant

    def values(self) -> Iterator[Plan]:
        yield from self._found.values()
        yield from self._later.values()

    def find(self, identity: Any, device: int, caller_grid: bool) -> Plan | None:
        key = (identity, device, caller_grid)
        plan = self._found.get(key)
        return plan if plan is not None else self._later.get(key)

    def add(self, identity: Any, device: int, caller_grid: bool, plan: Plan) -> None:
        key = (identity, device, caller_grid)
        with self._lock:
            self._of_variant[identity] = self._of_variant.get(identity, 0) + 1
            if len(self._first) < MAX_FIRST_PLANS:
                self._first[id(plan)] = plan
                self._found[key] = plan
                if len(self._first) == MAX_FIRST_PLANS:
                    self._warn()
                return
            self._later[key] = plan
            run: Any = plan.run
            run.release = finalize(run, plan.driver.release, plan.function)
            run.release.atexit = False
            if len(self._later) > MAX_LATER_PLANS:
                gone, _ = self._later.popitem(last=False)
                self._of_variant[gone[0]] -= 1
                if not self._of_variant[gone[0]]:
                    del self._of_variant[gone[0]]

    def run(self, identity: Any, device: int, caller_grid: bool, plan: Plan) -> Run:
        """What launches ``plan``, and what a table may hold."""
        if id(plan) in self._first:
            return plan.run
        key = (identity, device, caller_grid)
        later, noted = self._later, self._noted

        def run(grid: Grid | None, *values: Any) -> None:
            known = later.get(key)
            if known is None:
                raise Forgotten
            with suppress(KeyError):  # made room in this very moment
                later.move_to_end(key)
            noted(known)
            known.run(grid, *values)

        return run

    def bound(self, plan: Plan, launch: Callable[[], None]) -> Callable[[], None]:
        """``launch``, a launcher of ``plan`` that holds it, noting what is captured."""
        if id(plan) in self._first:
            return launch
        noted = self._noted

        def noting() -> None:
            noted(plan)
            launch()

        return noting

    def _noted(self, plan: Plan) -> None:
        """The graph that captures this launch will launch it for as long as anybody replays it."""
        if self._capturing(plan.device):
            run: Any = plan.run
            run.release.detach()

    def outside_changed(self) -> None:
        """None of them is found any more."""
        with self._lock:
            self._found.clear()
            self._later.clear()
            self._of_variant.clear()

    def _warn(self) -> None:
        warnings.warn(
            f"{self._name} has been compiled and loaded for {MAX_FIRST_PLANS} kinds of arguments; further "
            f"ones launch slower, and only {MAX_LATER_PLANS} of them are kept. "
            f"{self._name}.explain_recompile() says what differs: sizes that vary can be "
            'T.dynamic("N") in the annotation, and a compile-time number an annotated scalar',
            SpecialisationWarning,
            stacklevel=2,
        )
