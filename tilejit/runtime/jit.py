"""``JitFunction``: what ``@tile.jit`` makes of a Python function.

``k(*args)`` launches (CUDA tensors) or simulates (CPU tensors); ``k[grid](*args)`` gives the grid;
``k.bind(*args)`` prepares a launch; ``k.check``, ``k.compile``, ``k.signature``, ``k.asm``,
``k.stats`` and ``k.explain_recompile`` look at what would run. The hot path is the generated function
of ``dispatch``; this module is the way there: the first call of a specialisation, and every error.
Not here: the steps of compilation (``pipeline``).
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from tilejit.errors import LaunchError, fault
from tilejit.ir.signature import ConstArg, LaunchOverride, Signature
from tilejit.runtime import driver as drivers
from tilejit.runtime import kept, observer, saved, torch_glue
from tilejit.runtime import plan as plans
from tilejit.runtime.artifact import Stats
from tilejit.runtime.dispatch import Dispatch, typed
from tilejit.runtime.examples import Example, Examples
from tilejit.runtime.examples import read as read_examples
from tilejit.runtime.plan import Grid, Plan, Run
from tilejit.runtime.specialise import (
    Param,
    Specialised,
    is_empty,
    plain,
    refuse_empty,
    specialise,
)
from tilejit.runtime.variant import Assembly, Options, Source, Steps, Variant
from tilejit.runtime.watch import Watched, watch
from tilejit.target import MAX_GRID, Target

_MAX_CONFIGURED = 256
"""``k[grid]`` objects remembered per kernel."""
_EXACT_BOUNDS = 2
"""Grids of one signature that are compiled for exactly, before bounds grow by powers of two."""
_MAX_BOUNDED = 4096
"""Signatures whose grid bounds are remembered."""
_MAX_PREPARED = 4096
"""Launches that are remembered per kernel, until all are prepared anew."""


class NotSpecialised(LaunchError, AttributeError):
    """Asked of a kernel what only a variant has. To ``hasattr`` and to whoever lists a kernel's attributes
    it does not have it yet."""


class _Entry:
    """What ``k`` and ``k[grid]`` have in common: everything that takes the kernel's arguments."""

    kernel: JitFunction
    grid: Grid | None = None
    grid_function: Callable[[dict[str, Any]], Any] | None = None
    override: LaunchOverride = LaunchOverride()
    options: Options = ()
    table: dict[Any, Callable[..., None]]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Launch, or simulate when the tensors are on the CPU (then the simulator's report).

        Replaced by the kernel's generated function once a launch has been prepared.
        """
        return self.slow(args, keywords)

    def slow(self, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """The launch path for whatever the generated function does not know."""
        _hide_entries()  # torch may have been imported since the kernel was made
        return self.kernel._launch(self, args, keywords)

    def bind(self, *args: Any, **keywords: Any) -> Callable[[], Any]:
        """A launcher without arguments for exactly these tensors and values.

        It holds the tensors. Change their contents as you like; do not resize them. The stream is
        torch's current one at each launch. Works inside a CUDA graph capture.
        """
        bound = self.kernel._bind(self, args, keywords)
        torch_glue.hide(bound)
        return bound

    def signature(self, *args: Any, target: str | None = None, **keywords: Any) -> Signature:
        """What these arguments are specialised to. An argument may be a ``TensorArg``,
        ``ScalarArg``, ``ConstArg`` or dtype in place of a value."""
        return self.kernel._specialise(self, args, keywords, target).signature

    def check(self, *args: Any, target: str | None = None, **keywords: Any) -> Variant:
        """Check every contract, without compiler or GPU. Raises with all faults found.

        Takes the kernel's arguments, or one ``Signature``. ``banks`` of what it returns says which
        accesses to shared memory have bank conflicts.
        """
        variant = self.kernel._described(self, args, keywords, target)
        _ = variant.checked  # made, or raised, by asking for it
        return variant

    def compile(
        self, *args: Any, target: str | None = None, fresh: bool = False, **keywords: Any
    ) -> Variant:
        """Compile for these arguments (or one ``Signature``); no GPU needed.

        ``target`` such as ``sm_100a``; by default that of the tensors' device, else
        ``TILEJIT_TARGET``, else the current device, else ``sm_90a``. ``fresh``: not from memory.
        """
        variant = self.kernel._described(self, args, keywords, target, fresh=fresh)
        _ = variant.artifact
        return variant

    def evaluate(self, arguments: dict[str, Any]) -> Grid | None:
        """The caller's grid: given, or computed from the arguments by name; None: the kernel's."""
        if self.grid_function is None:
            return self.grid
        return plans.normalise_grid(self.grid_function(arguments))


class Configured(_Entry):
    """``k[grid]`` or ``k[LaunchConfig(...)]``."""

    def __init__(self, kernel: JitFunction, launch: Any):
        self.kernel = kernel
        grid = launch
        block = cluster = None
        if hasattr(launch, "grid") and hasattr(launch, "block"):
            grid, block, cluster = launch.grid, launch.block, launch.cluster
            rest = [f for f in fields(launch) if f.name not in ("grid", "block", "cluster")]
            set_ = ((f.name, getattr(launch, f.name), f.default) for f in rest)
            self.options = tuple((name, value) for name, value, default in set_ if value != default)
        self.override = LaunchOverride(
            None,
            None if block is None else _extents("block", block),
            None if cluster is None else _extents("cluster", cluster),
        )
        if callable(grid):
            self.grid_function = grid
        elif grid is not None:
            self.grid = plans.normalise_grid(grid)
        self.table = kernel._table((self.override, self.options, grid is not None))


class JitFunction(_Entry):
    """A kernel or, when another kernel calls it, an inlined helper. See the module's text."""

    def __new__(cls, *_args: Any, **_keywords: Any) -> JitFunction:
        # Each kernel has a class of its own, so that its __call__ is the generated function itself.
        return object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__}))

    def __init__(
        self,
        function: Callable[..., Any],
        steps: Steps,
        *,
        source: str | None = None,
        target: str | None = None,
        examples: Examples | None = None,
    ):
        _hide_entries()
        self.kernel = self
        self._source: Source = steps.parse(function, source)
        self.__wrapped__ = function
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self._steps = steps
        self._target = None if target is None else Target.parse(target).name
        self._examples = examples
        self._lock = threading.RLock()
        self._tables: dict[Any, dict[Any, Callable[..., None]]] = {}
        self.table = self._table(None)
        self._configured_class = type("Configured", (Configured,), {"__module__": __name__})
        self._configured: dict[Any, Configured] = {}
        self._watched: list[Watched] | None = None
        self._dispatch: Dispatch | None = None
        self._nullable: frozenset[str] = frozenset()
        self._variants = kept.Variants()
        self._plans = kept.Plans(function.__name__, torch_glue.capturing)
        self._bounds: dict[Any, list[Grid]] = {}
        observer.add_launcher(self)

    def __repr__(self) -> str:
        return f"<tile.jit kernel {self.__qualname__}>"

    def _repr_html_(self) -> str:
        """The latest variant, or what the kernel takes."""
        latest = self._variants.latest
        if latest is None:
            return self._steps.outline(self.__name__, self._source, self.__doc__)
        return latest._repr_html_()

    def __reduce__(self) -> str:
        """Pickled and copied by name, as functions are: a copy is the kernel itself."""
        return self.__qualname__

    @property
    def __tilejit_kernel__(self) -> Source:
        """The parsed function: what another kernel inlines when it calls this one."""
        return self._source

    @property
    def params(self) -> Sequence[Param]:
        """The parameters, as the frontend read them."""
        return self._source.params

    @property
    def examples(self) -> tuple[Example, ...]:
        """What ``@tile.jit(examples=…)`` says the kernel is called with, for ``k.check(**arguments)``."""
        return read_examples(self.__name__, self.params, self._examples)

    @property
    def fixed_target(self) -> str | None:
        """That of ``@tile.jit(target=…)``."""
        return self._target

    def __getitem__(self, launch: Any) -> Configured:
        """``k[grid]``: an int, tuple, list, or a function of the arguments by name that gives one;
        or a ``T.cuda.LaunchConfig``."""
        try:
            return self._configured[launch]
        except (KeyError, TypeError):
            configured: Configured = self._configured_class(self, launch)
        try:
            if len(self._configured) >= _MAX_CONFIGURED:
                self._configured.clear()
            self._configured[launch] = configured
        except TypeError:
            pass  # a list: not hashable, made anew each time
        return configured

    # --- looking at it

    @property
    def latest(self) -> Variant:
        """The variant made last; ``LaunchError`` before the first."""
        latest = self._variants.latest
        if latest is None:
            raise fault(
                NotSpecialised,
                "launch/no-variant",
                f"{self.__name__} has not been specialised yet",
                help="call it, or k.compile(...) with arguments like those of a call",
            )
        return latest

    @property
    def asm(self) -> Assembly:
        """Stages of the latest variant: ``k.asm["ptx"]``, see ``Variant.asm``."""
        return self.latest.asm

    @property
    def stats(self) -> Stats:
        """Registers, spills, shared memory and occupancy of the latest variant; printed, its bank
        conflicts too."""
        return self.latest.stats

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The variants made so far, oldest first: the latest ``kept.MAX_VARIANTS``, and older ones that
        are still held by somebody."""
        with self._lock:
            return tuple(self._variants)

    def explain_recompile(self) -> str:
        """Why each variant was built, one line each, oldest first; the latest ``kept.MAX_REASONS``."""
        with self._lock:
            lines = self._variants.explain()
        return "\n".join(lines) or f"{self.__name__} has not been specialised yet"

    def forget_launches(self) -> None:
        """Calls are prepared anew from now on, each once; what was compiled stays."""
        with self._lock:
            for table in self._tables.values():
                table.clear()
            self._dispatch = None
            # The generated functions remember launches of their own: see _generated.
            for owner in (type(self), self._configured_class):
                if "__call__" in vars(owner):
                    del owner.__call__

    # --- from arguments to variants

    def _table(self, key: Any) -> dict[Any, Callable[..., None]]:
        with self._lock:
            return self._tables.setdefault(key, {})

    def _specialise(
        self,
        entry: _Entry,
        args: Sequence[Any],
        keywords: dict[str, Any],
        target: str | None = None,
    ) -> Specialised:
        target = self._target if target is None else Target.parse(target).name
        special = specialise(self.params, args, keywords, target=target, launch=entry.override)
        self._watch_also(special.signature)
        return special

    def _described(
        self,
        entry: _Entry,
        args: Sequence[Any],
        keywords: dict[str, Any],
        target: str | None,
        *,
        fresh: bool = False,
    ) -> Variant:
        """The variant for arguments that are not launched, or for one ``Signature``."""
        self._refresh()
        if len(args) == 1 and isinstance(args[0], Signature):
            signature = args[0]
            if target is not None:
                signature = replace(signature, target=Target.parse(target).name)
            self._watch_also(signature)
        else:
            special = self._specialise(entry, args, keywords, target)
            signature = special.signature
            grid = entry.evaluate(_by_name(self.params, special.values))
            if grid is not None:
                signature = self._bounded(signature, entry.options, grid)
        return self._variant(signature, entry.options, fresh=fresh)

    def _variant(self, signature: Signature, options: Options, *, fresh: bool = False) -> Variant:
        identity = _identity(signature, options)
        with self._lock:
            known = self._variants.find(identity)
            if known is not None and not fresh:
                return known
            reason = self._variants.reason(signature)
            if known is not None:
                reason = "asked for afresh"
            variant = Variant(
                self._source, signature, options, self._steps, reason, self._variants.next_number()
            )
            if not fresh and identity in self._plans:
                self._variants.restore(identity, variant)
            else:
                self._variants.add(identity, variant)
            return variant

    def _bounded(self, signature: Signature, options: Options, grid: Grid) -> Signature:
        """The signature with a grid bound that covers ``grid``: one already used when one does,
        the grid itself for the first few, then powers of two, so that growing grids settle."""
        with self._lock:
            bounds = self._bounds.setdefault(_identity(signature, options), [])
            covering = [b for b in bounds if all(g <= e for g, e in zip(grid, b))]
            if covering:
                bound = min(covering)
            else:
                bound = grid if len(bounds) < _EXACT_BOUNDS else _round_up(grid)
                bounds.append(bound)
            if len(self._bounds) > _MAX_BOUNDED:
                del self._bounds[next(iter(self._bounds))]
        return replace(signature, launch=replace(signature.launch, grid_bound=bound))

    def _refresh(self) -> None:
        """Looks whether outside values changed; if so, forgets what was built from the old ones.

        Watching starts before the first lowering, so a change during it is seen afterwards.
        """
        with self._lock:
            if self._watched is None:
                self._watched = _watch(self.__wrapped__)
                return
            before = [w.value for w in self._watched]
            changed = [w.place.label for w in self._watched if w.changed()]
            if changed:
                self._variants.outside_changed(", ".join(changed))
                self._plans.outside_changed()
                self._bounds.clear()
                for table in self._tables.values():
                    table.clear()
                self._watched = _watch(self.__wrapped__)
            if changed or any(w.value is not b for w, b in zip(self._watched, before)):
                self._dispatch = None

    def _watch_also(self, signature: Signature) -> None:
        """Watches, before a lowering, what was not there to be watched at the last one: names that
        were undefined then, and what functions among the compile-time arguments read."""
        constants = [a.value for _, a in signature.args if isinstance(a, ConstArg)]
        with self._lock:
            known = {w.place.identity for w in self._watched or ()}
            found = _watch(self.__wrapped__, *constants)
            more = [w for w in found if w.place.identity not in known]
            if more:
                self._watched = [*(self._watched or ()), *more]
                self._dispatch = None

    # --- launching

    def _launch(self, entry: _Entry, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        self._refresh()
        if self._again(entry, args, keywords):
            return None
        special = self._specialise(entry, args, keywords)
        grid = entry.evaluate(_by_name(self.params, special.values))
        device = self._device(special)
        if device == torch_glue.CPU:
            return self._simulate(entry, special, grid)
        if not self._runs(entry, special, grid):
            return None
        dispatch = self._generated(special.values)
        key, values = dispatch.key_of(*special.values)
        run = self._plan(entry, special, grid, device)[1]
        if not special.pinned:
            # A pinned host tensor looks like any other in the key, and others must be refused.
            if sum(map(len, self._tables.values())) >= _MAX_PREPARED:
                self.forget_launches()
            entry.table[key] = run
        run(grid, *values)
        return None

    def _again(self, entry: _Entry, args: Sequence[Any], keywords: dict[str, Any]) -> bool:
        """A call whose numpy scalars, made plain, lead to a known plan: launched; else False."""
        values = [plain(v) for v in args]
        if all(a is b for a, b in zip(values, args)) or self._dispatch is None:
            return False
        entry(*values, **{name: plain(v) for name, v in keywords.items()})
        return True

    def _device(self, special: Specialised) -> int:
        """Where a call runs; ``LaunchError`` when the kernel is made for another target."""
        device = torch_glue.current_device() if special.device is None else special.device
        if device == torch_glue.CPU or self._target is None:
            return device
        saved.refuse_other_target(self.__name__, self._target, device)
        return device

    def _generated(self, values: Sequence[Any]) -> Dispatch:
        """The generated functions, made anew when outside values or None-ness ask for it."""
        none = {p.name for p, v in zip(self.params, values) if p.kind == "tensor" and v is None}
        with self._lock:
            if self._dispatch is None or not none <= self._nullable:
                self._nullable |= none
                for table in self._tables.values():
                    table.clear()
                self._dispatch = Dispatch(
                    self.__name__, self.params, self._watched or [], self._nullable, self.table
                )
                # The classes are this kernel's own; replacing __call__ replaces the launch path.
                type(self).__call__ = self._dispatch.call  # type: ignore[method-assign]
                self._configured_class.__call__ = self._dispatch.configured  # type: ignore[method-assign]
            for param, value in zip(self.params, values):
                if param.kind == "any" and torch_glue.is_tensor(value):
                    self._dispatch.tensor_classes.add(type(value))
            return self._dispatch

    def _plan(
        self, entry: _Entry, special: Specialised, grid: Grid | None, device: int
    ) -> tuple[Plan, Run]:
        """The plan of a launch, and the function that tables hold for it."""
        signature = special.signature
        if grid is not None:
            signature = self._bounded(signature, entry.options, grid)
        variant = self._variant(signature, entry.options)
        observer.tell(variant, _by_name(self.params, special.values))
        key = (_identity(signature, entry.options), device, grid is not None)
        plan = self._plans.find(*key)
        if plan is None:
            with variant.lock:
                plan = self._plans.find(*key)
                if plan is None:
                    saved.refuse_capture(self.__name__, "compiled and loaded", device)
                    plan = _load(variant, device, grid is not None)
                    self._plans.add(*key, plan)
        return plan, self._plans.run(*key, plan)

    def _bind(
        self, entry: _Entry, args: Sequence[Any], keywords: dict[str, Any]
    ) -> Callable[[], Any]:
        self._refresh()
        special = self._specialise(entry, args, keywords)
        grid = entry.evaluate(_by_name(self.params, special.values))
        device = self._device(special)
        if device == torch_glue.CPU:
            return lambda: self._simulate(entry, special, grid)
        if not self._runs(entry, special, grid):
            return lambda: None
        _, values = self._generated(special.values).key_of(*special.values)
        plan, _ = self._plan(entry, special, grid, device)
        return self._plans.bound(plan, plans.bind(plan, grid, values, special.values))

    def _runs(self, entry: _Entry, special: Specialised, grid: Grid | None) -> bool:
        """Whether a launch has CTAs, as far as that must be known beforehand: the plan itself skips a
        grid of its own that is empty. With an empty tensor there must be none (``LaunchError``)."""
        if not any(map(is_empty, self.params, special.values)):
            return grid is None or all(grid)
        if grid is None:
            variant = self._variant(special.signature, entry.options)
            grid = self._own_grid(variant, self._arguments(variant, special)[1])
        if all(grid):
            refuse_empty(self.params, special.values)
        return False

    # --- the simulator

    def _simulate(self, entry: _Entry, special: Specialised, grid: Grid | None) -> Any:
        if not self._runs(entry, special, grid):
            return None
        signature = special.signature
        if grid is not None:
            signature = self._bounded(signature, entry.options, grid)
        variant = self._variant(signature, entry.options)
        tensors, scalars = self._arguments(variant, special)
        grid = self._own_grid(variant, scalars) if grid is None else grid
        if not all(grid):
            return None
        observer.tell(variant, _by_name(self.params, special.values))
        return self._steps.simulate(variant.checked, tensors, scalars, grid)

    def _arguments(
        self, variant: Variant, special: Specialised
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tensors and numbers by the names that the variant's function has for them."""
        launch_params = plans.launch_params(variant.function, [p.name for p in self.params])
        return plans.by_name(launch_params, special.values)

    def _own_grid(self, variant: Variant, scalars: dict[str, Any]) -> Grid:
        exprs = variant.function.launch.grid
        if exprs is None:
            raise fault(
                LaunchError,
                "launch/no-grid",
                f"{self.__name__} does not say its grid: launch it as {self.__name__}[grid](...)",
            )
        return plans.evaluate_grid(exprs, scalars)


_hidden: set[bool] = set()
"""Whether torch was there, when entries were hidden: once without it and once with it is enough."""


def _hide_entries() -> None:
    """``torch.compile`` does not look into what a kernel is asked for, nor, when it has begun to before
    torch was seen here, into what comes next."""
    torch_is_there = "torch" in sys.modules
    if torch_is_there in _hidden:
        return
    _hidden.add(torch_is_there)
    torch_glue.hide(
        _hide_entries, _Entry.__call__, _Entry.slow, _Entry.bind, _Entry.signature, _Entry.check,
        _Entry.compile, JitFunction.__getitem__, JitFunction._launch, JitFunction._bind,
        JitFunction._specialise, JitFunction._described,
    )  # fmt: skip


def _identity(signature: Signature, options: Options) -> Any:
    """What tells variants apart. ``ConstArg(4) == ConstArg(4.0)``, but their kernels differ."""
    consts = tuple(typed(a.value) for _, a in signature.args if isinstance(a, ConstArg))
    return signature, consts, options


def _by_name(params: Sequence[Param], values: Sequence[Any]) -> dict[str, Any]:
    return {p.name: v for p, v in zip(params, values)}


def _watch(function: Callable[..., Any], *constants: Any) -> list[Watched]:
    return watch(function, *constants) if isinstance(function, types.FunctionType) else []


def _round_up(grid: Grid) -> Grid:
    x, y, z = (1 << (g - 1).bit_length() for g in grid)
    return min(x, MAX_GRID[0]), min(y, MAX_GRID[1]), min(z, MAX_GRID[2])


def _extents(what: str, value: Any) -> tuple[int, ...]:
    """A block or cluster as one to three positive ints, x first."""
    parts: Sequence[Any] = tuple(value) if isinstance(value, tuple | list) else (value,)
    whole = all(hasattr(type(p), "__index__") and not isinstance(p, bool) for p in parts)
    if not whole or not 1 <= len(parts) <= 3 or any(p < 1 for p in parts):
        raise fault(
            LaunchError, "launch/" + what, f"a {what} is 1 to 3 positive integers, got {value!r}"
        )
    return tuple(int(p) for p in parts)


# --- loading


def _load(variant: Variant, device: int, caller_grid: bool) -> Plan:
    """Loads a variant's cubin on ``device`` and prepares its launch."""
    launchable = saved.of(variant)
    driver = drivers.current()
    several = torch_glue.device_count() > 1
    with torch_glue.on_device(device):
        return launchable.plan(
            driver,
            device,
            torch_glue.raw_stream_function(),
            device_of=torch_glue.raw_device_function() if several else None,
            caller_grid=caller_grid,
        )


# --- for what calls a kernel on behalf of others (``tune``)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A launch made ready: the loaded plan's ``run`` and the call's grid (None: the kernel's own). ``lasting``:
    a later call with the same key may use ``run`` again."""

    run: Run
    grid: Grid | None
    lasting: bool


def prepare(entry: _Entry, keywords: dict[str, Any]) -> Prepared | None:
    """A call on a GPU, all of whose arguments have names, up to the launch; None where it has no CTAs."""
    kernel = entry.kernel
    kernel._refresh()
    special = kernel._specialise(entry, (), keywords)
    grid = entry.evaluate(_by_name(kernel.params, special.values))
    device = kernel._device(special)
    if not kernel._runs(entry, special, grid):
        return None
    return Prepared(kernel._plan(entry, special, grid, device)[1], grid, not special.pinned)


def described(entry: _Entry, keywords: dict[str, Any], target: str | None = None) -> Variant:
    """The variant for a call, neither checked nor lowered. See ``k.check`` for what a call may consist of."""
    return entry.kernel._described(entry, (), keywords, target)


def watched(kernel: JitFunction) -> list[Watched]:
    """What a kernel reads from outside, looked at now. The same list until something of it changed."""
    kernel._refresh()
    return [] if kernel._watched is None else kernel._watched
