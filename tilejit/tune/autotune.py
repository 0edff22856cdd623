"""``tile.autotune`` and ``tile.tune``: a kernel that finds its fastest config, once per kind of call.

``Autotuned`` is called as its kernel is. A call whose key is not known looks on disk, else tunes: prunes, compiles,
measures on copies of the arguments (the user's tensors are never written), stores what it found. Later
calls go straight to the chosen config's plan (``front``). Threads and processes that need the same tuning wait for
the one that does it. While a CUDA graph is captured nothing is tuned: the call is refused before it touches CUDA.

A tuned parameter may be given in a call. Then only configs with that value take part; if none has it and the call
gives every tuned parameter, that is what is launched. On the CPU, and for arguments that are only
described, configs are ranked by a model, and nothing is stored.
Not here: how one tuning goes (``session``), keys (``key``), files (``store``).
"""

from __future__ import annotations

import inspect
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tilejit import ConstArg, LaunchOverride, ScalarArg, TensorArg
from tilejit.dtypes import DType
from tilejit.errors import LaunchError, TileError, TuneError, fault
from tilejit.errors import Report as Faults
from tilejit.runtime import observer, torch_glue
from tilejit.runtime.dispatch import typed
from tilejit.runtime.encoding import digest
from tilejit.runtime.jit import Configured, JitFunction, prepare, watched
from tilejit.runtime.plan import normalise_grid
from tilejit.runtime.specialise import Param, bind_arguments, plain
from tilejit.runtime.variant import Variant
from tilejit.runtime.watch import Watched
from tilejit.tune import key as keys
from tilejit.tune import session, store
from tilejit.tune.config import Config, listed, split
from tilejit.tune.front import TUNED, Door, Doors, Way, parameters
from tilejit.tune.key import Key
from tilejit.tune.prune import Applied, Call, Heuristics, Prune, Pruning, agree, apply
from tilejit.tune.report import Report
from tilejit.tune.session import Settings, Task

Configs = Iterable[Config] | Callable[[Mapping[str, Any]], Iterable[Config]]
_MAX_ENTRIES = 256
"""``k[grid]`` objects remembered per kernel."""
_DESCRIPTIONS = (TensorArg, ScalarArg, ConstArg, DType)
_ATOMS = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Choice:
    """What a tuning came to."""

    config: Config
    report: Report | None
    """None where there was nothing to choose from."""


@dataclass(frozen=True)
class _Request:
    """A call taken apart. ``passed``: a value or ``TUNED`` per parameter; ``configs``: those that agree with what
    the call gives of them."""

    call: Call
    passed: tuple[Any, ...]
    configs: tuple[Config, ...]
    heuristics: Heuristics

    def applied(self, config: Config) -> Applied:
        return apply(config, self.call, self.heuristics)


class _Entry:
    """What ``k`` and ``k[grid]`` have in common."""

    tuned: Autotuned
    kernel: JitFunction
    grid: Any = None
    doors: Doors

    @property
    def params(self) -> Sequence[Param]:
        """The kernel's parameters; one that the tuning gives has a default that stands for that."""
        return self.tuned._params

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Launches the fastest config, which is looked for first where it is not known; on CPU tensors
        simulates one. Replaced by a generated function after the first launch."""
        return self.slow(args, keywords)

    def slow(self, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        return self.tuned._launch(self, args, keywords)

    def best(self, *args: Any, **keywords: Any) -> Config:
        """The config for such a call; tunes when it is not known."""
        return self.tuned._choice(self.tuned._request(self, args, keywords)).config

    def tune(self, *args: Any, **keywords: Any) -> Report:
        """Measures the configs anew for such a call, whatever is known, and keeps the result."""
        return _reported(self.tuned._tuned(self.tuned._request(self, args, keywords), anew=True))

    def bind(self, *args: Any, **keywords: Any) -> Callable[[], Any]:
        """A launcher of the fastest config without arguments, for exactly these tensors and values."""
        request = self.tuned._request(self, args, keywords)
        applied = request.applied(self.tuned._choice(request).config)
        return applied.entry.bind(**applied.keywords)

    def check(self, *args: Any, **keywords: Any) -> Variant:
        """Checks every contract of every config; needs no GPU. Gives the first config's variant that keeps them all;
        ``TuneError`` (``tune/none-left``) with each one's reason where there is none."""
        request = self.tuned._request(self, args, keywords)
        pruning = Pruning(
            request.call, request.configs, request.heuristics, self.tuned.settings.prune
        )
        for candidate in pruning.candidates():
            return candidate.variant
        raise session.none_left(request.call, request.configs, pruning.reasons)


class TunedGrid(_Entry):
    """``k[grid]``."""

    def __new__(cls, *_args: Any) -> TunedGrid:
        return object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__}))

    def __init__(self, tuned: Autotuned, grid: Any):
        self.tuned, self.grid, self.doors = tuned, grid, Doors()
        self.kernel = tuned.kernel


class Autotuned(_Entry):
    """A kernel with configs. See the module's text and ``tile.autotune``."""

    def __new__(cls, *_args: Any, **_options: Any) -> Autotuned:
        # A class for each, so that its __call__ can be the generated function itself.
        return object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__}))

    def __init__(self, kernel: JitFunction, configs: Configs, settings: Settings):
        self.kernel, self.settings = kernel, settings
        self.tuned, self.doors = self, Doors()
        self._configs: Configs = configs if callable(configs) else listed(configs, kernel)
        self.__wrapped__ = kernel.__wrapped__
        self.__doc__ = kernel.__doc__
        self.__name__ = kernel.__name__
        self.__qualname__ = kernel.__qualname__
        self.__module__ = kernel.__module__
        self._lock = threading.RLock()
        self._entries: dict[Any, TunedGrid] = {}
        self._choices: dict[str, Choice] = {}
        self._running: dict[str, tuple[int, Future[Choice]]] = {}
        self._codes: dict[Any, str] = {}
        self._outside: tuple[list[Watched] | None, list[Any]] = (None, [])
        self._nullable: frozenset[str] = frozenset()
        self._warned = False
        self.reports: list[Report] = []
        """Of every tuning of this process, oldest first, those read from disk included."""
        self._params = parameters(kernel.params, self._computed())
        keys.check_names(kernel, settings.key, self._computed())
        computed = self._heuristics_of if settings.heuristics else None
        self._way = Way(kernel.__name__, self._params, settings.key, computed)
        observer.add_launcher(self)
        torch_glue.hide(
            _Entry.__call__, _Entry.slow, _Entry.best, _Entry.tune, _Entry.bind, _Entry.check,
            Autotuned.__getitem__, Autotuned._launch,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"<tile.autotune kernel {self.__qualname__}>"

    def __reduce__(self) -> str:
        return self.__qualname__

    def __getitem__(self, grid: Any) -> TunedGrid:
        """``k[grid]``: as of a kernel. A function of the arguments by name also sees the chosen config's values."""
        if hasattr(grid, "grid") and hasattr(grid, "block"):
            raise _launch_given(self.kernel)
        identity = _grid_identity(grid)
        with self._lock:
            entry = self._entries.get(identity)
            if entry is None:
                if len(self._entries) >= _MAX_ENTRIES:
                    self._entries.clear()
                entry = self._entries[identity] = TunedGrid(self, grid)
            return entry

    def _computed(self) -> frozenset[str]:
        """Parameters that the tuning gives. A function's configs are known for a call only: every compile-time
        parameter may be among them."""
        given = frozenset(self.settings.heuristics)
        if callable(self._configs):
            return given.union(p.name for p in self.kernel.params if p.kind == "constexpr")
        return given.union(*(split(c, self.kernel).constants for c in self._configs))

    # --- a call, taken apart

    def _request(self, entry: _Entry, args: Sequence[Any], keywords: dict[str, Any]) -> _Request:
        faults = Faults()
        passed = tuple(plain(v) for v in bind_arguments(self._params, args, keywords, faults))
        faults.raise_if_failed(LaunchError)
        values = {p.name: v for p, v in zip(self._params, passed) if v is not TUNED}
        described = any(isinstance(v, _DESCRIPTIONS) for v in values.values())
        device = torch_glue.CPU if described else _device(values)
        call = Call(self.kernel, entry.grid, values, device, "", described)
        heuristics = {n: f for n, f in self.settings.heuristics.items() if n not in values}
        request = _Request(call, passed, self._agreeing(call), heuristics)
        first = request.applied(request.configs[0])
        signature = self.kernel.signature(**first.keywords)
        return replace(request, call=replace(call, target=signature.target))

    def _agreeing(self, call: Call) -> tuple[Config, ...]:
        configs = self._configs
        if callable(configs):
            configs = listed(configs(call.arguments), self.kernel)
        assert isinstance(configs, tuple)
        tuned = frozenset[str]().union(*(split(c, self.kernel).constants for c in configs))
        pinned = {n: v for n, v in call.values.items() if n in tuned}
        if not pinned:
            return configs
        agreeing = tuple(c for c in configs if agree(c, pinned))
        if agreeing:
            return agreeing
        if tuned <= pinned.keys():
            return (Config(**pinned),)
        missing = ", ".join(sorted(tuned - pinned.keys()))
        given = ", ".join(f"{n}={v!r}" for n, v in pinned.items())
        raise fault(
            TuneError,
            "tune/override",
            f"{self.__name__}: no config has {given}, which the call asks for",
            help=f"give {missing} too, or add a config with that value",
        )

    def _heuristics_of(self, arguments: dict[str, Any]) -> Any:
        """What the heuristics give for every config: calls that differ in it are different calls."""
        values = {n: v for n, v in arguments.items() if v is not TUNED}
        call = Call(self.kernel, None, values, torch_glue.CPU, "")
        heuristics = {n: f for n, f in self.settings.heuristics.items() if n not in values}
        configs = self._configs
        if callable(configs):
            configs = configs(call.arguments)
        return tuple(
            tuple(typed(apply(c, call, heuristics).constants[n]) for n in heuristics)
            for c in configs
        )

    def _key(self, request: _Request) -> Key:
        call, settings = request.call, self.settings
        applied = [request.applied(c) for c in request.configs]
        signature = self.kernel.signature(**applied[0].keywords)
        naming = keys.Naming(
            settings.key,
            settings.bucket,
            frozenset(
                n for n, v in zip((p.name for p in self._params), request.passed) if v is TUNED
            ),
        )
        constants = [v for a in applied for v in a.constants.values()]
        constants += [a.value for _, a in signature.args if isinstance(a, ConstArg)]
        computed = [[(n, a.constants[n]) for n in request.heuristics] for a in applied]
        more = {
            "grid": _grid_facts(call.grid),
            "heuristics": digest(computed)[:16] if request.heuristics else None,
            "functions": {
                "prune": keys.function_digest(settings.prune)[:16],
                "reference": keys.function_digest(settings.reference)[:16],
                "heuristics": {
                    n: keys.function_digest(f)[:16] for n, f in request.heuristics.items()
                },
            },
            "tolerance": settings.tolerance,
        }
        return keys.make(
            self.kernel,
            self._code(constants),
            keys.argument_facts(self.kernel, signature, call.values, naming),
            request.configs,
            call.target,
            keys.device_facts(call.device),
            more,
        )

    def _code(self, constants: Sequence[Any]) -> str:
        """``keys.code_of``, remembered until something outside changes."""
        self._refresh()
        identity = keys.identity_key(constants)
        code = self._codes.get(identity)
        if code is None:
            code = self._codes[identity] = keys.code_of(self.kernel, constants)
        return code

    def _refresh(self) -> list[Watched]:
        """Looks whether outside values changed; if so, forgets what was made for the old ones."""
        found = watched(self.kernel)
        values = [w.value for w in found]
        with self._lock:
            seen, before = self._outside
            if seen is not found or any(a is not b for a, b in zip(values, before)):
                self._outside = found, values
                self._codes.clear()
                self._forget()
        return found

    # --- choosing

    def _choice(self, request: _Request) -> Choice:
        """What such a call is launched with."""
        if len(request.configs) == 1:
            return Choice(request.configs[0], None)
        return self._tuned(request)

    def _tuned(self, request: _Request, *, anew: bool = False) -> Choice:
        """The known choice, or the one that a tuning comes to: one at a time for a key."""
        capturing = torch_glue.capturing(request.call.device)
        if capturing and (anew or not self._choices):
            raise _captured(self.kernel)
        key = self._key(request)
        while True:
            with self._lock:
                known = self._choices.get(key.digest)
                if known is not None and not anew:
                    return known
                if capturing:
                    raise _captured(self.kernel)
                thread, future = self._running.get(key.digest, (0, None))
                if future is None:
                    mine = Future[Choice]()
                    self._running[key.digest] = threading.get_ident(), mine
                    break
            if thread == threading.get_ident():
                raise _within_itself(self.kernel)
            try:
                return future.result()
            except TileError:
                raise
            except BaseException:
                if not future.done():
                    raise  # this thread was interrupted, not the one that tunes
        return self._tuned_here(request, key, mine, anew)

    def _tuned_here(
        self, request: _Request, key: Key, future: Future[Choice], anew: bool
    ) -> Choice:
        try:
            choice = self._found(request, key, anew)
        except BaseException as error:
            with self._lock:
                del self._running[key.digest]
            future.set_exception(error)
            raise
        with self._lock:
            self._choices[key.digest] = choice
            del self._running[key.digest]
            if anew:
                self._forget()
        if choice.report is not None:
            self.reports.append(choice.report)
        future.set_result(choice)
        return choice

    def _found(self, request: _Request, key: Key, anew: bool) -> Choice:
        """From disk, or by tuning."""
        call, settings = request.call, self.settings
        task = Task(call, key, request.configs, request.heuristics, settings)
        if call.device == torch_glue.CPU:
            self._warn_once()
            return _by(session.estimated, task, None)
        if not settings.store:
            return _by(session.measured, task, None)
        # Ranks wait for each other: one that held the lock would wait for one that waits for the lock.
        with nullcontext() if settings.group is not None else store.locked(key):
            choice = known = None if anew else _stored(request, key)
            if choice is None or settings.group is not None:
                choice = _by(session.measured, task, known)
            if choice is not known:
                assert choice.report is not None
                found = store.record(
                    key, keys.config_digest(choice.config), choice.report.to_json()
                )
                store.put(found)
            return choice

    def _warn_once(self) -> None:
        if not self._warned:
            self._warned = True
            store.warn(
                f"{self.__name__}: nothing can be measured without a GPU; configs are ranked by a model of "
                f"instruction counts and occupancy, and the result is not stored"
            )

    # --- launching

    def _launch(self, entry: _Entry, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        request = self._request(entry, args, keywords)
        choice = self._choice(request)
        applied = request.applied(choice.config)
        if request.call.device == torch_glue.CPU:
            return applied.entry(**applied.keywords)
        prepared = prepare(applied.entry, applied.keywords)
        if prepared is None:
            return None
        door = self._door(entry, request, applied.constants)
        door.launch(request.passed, prepared, applied.constants)
        return None

    def _door(self, entry: _Entry, request: _Request, constants: Mapping[str, Any]) -> Door:
        """The door of such a call, made where there is none yet."""
        outside = self._refresh()
        none = {
            p.name for p, v in zip(self._params, request.passed) if p.kind == "tensor" and v is None
        }

        def make(mixed: bool = False) -> Door:
            return Door(
                self.__name__, self._params, outside, self._nullable, entry.grid, entry.slow,
                mixed=mixed,
            )  # fmt: skip

        with self._lock:
            if not none <= self._nullable:
                self._nullable |= none
                self._forget()
            facts, bucket = (), ()
            if self._way.depends:
                facts, bucket = self._way.facts_of(*request.passed), self._bucket(request)
            door = entry.doors.remember(facts, bucket, make)
            if not door.serves(constants):
                narrow, door = door, make(mixed=True)
                entry.doors.replace(narrow, door)
            # A door is no descriptor: as an attribute of the class it is what k(...) calls.
            type(entry).__call__ = self._way.call if self._way.depends else door  # type: ignore[method-assign]
            return door

    def _bucket(self, request: _Request) -> Any:
        """Calls that count as one in all that picks a door."""
        signature = self.kernel.signature(**request.applied(request.configs[0]).keywords)
        naming = keys.Naming(self.settings.key, self.settings.bucket, self._computed())
        exact, _ = keys.argument_facts(self.kernel, signature, request.call.values, naming)
        shapes = (facts[1:3] for facts in exact.values() if len(facts) == 4)
        named = (typed(request.call.values[n]) for n in self.settings.key if n in exact)
        heuristics = self._heuristics_of(dict(zip((p.name for p in self._params), request.passed)))
        return tuple(shapes), tuple(named), heuristics

    def forget_launches(self) -> None:
        """Calls are prepared anew from now on, each once; what was chosen stays."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        """What launches go by is found anew."""
        for entry in (self, *self._entries.values()):
            entry.doors.clear()
            if "__call__" in vars(type(entry)):
                del type(entry).__call__


def _by(tune: Callable[[Task, Sequence[int]], Report], task: Task, known: Choice | None) -> Choice:
    """The choice of ``tune``, of all ranks where there is a group. ``known``: this rank has it already."""
    group, count = task.settings.group, len(task.configs)
    if group is None:
        report = tune(task, range(count))
    else:
        from tilejit.tune.ranks import tune_together

        report = tune_together(
            group, task.key.digest, count, lambda share: tune(task, share),
            None if known is None else known.report,
        )  # fmt: skip
    if report.chosen is None:
        reasons = {number: row.reason for number, row in enumerate(report.rows)}
        raise session.none_left(task.call, task.configs, reasons)
    return Choice(task.configs[report.chosen], report)


def _reported(choice: Choice) -> Report:
    assert choice.report is not None, "only what is chosen without a tuning has none"
    return choice.report


def _stored(request: _Request, key: Key) -> Choice | None:
    """The choice that is on disk, where there is one for exactly these configs."""
    record = store.get(key)
    chosen = {keys.config_digest(c): c for c in request.configs}
    if record is None or record.chosen not in chosen:
        return None
    return Choice(chosen[record.chosen], Report.from_json(record.report))


def _device(values: Mapping[str, Any]) -> int:
    """Where a call runs: on its tensors' GPU, or the CPU."""
    devices = [int(v.get_device()) for v in values.values() if torch_glue.is_tensor(v)]
    if not devices:
        return torch_glue.current_device()
    return max(devices)


def _grid_identity(grid: Any) -> Any:
    """Functions that are written in place are new objects at each call, and count by what they are."""
    if isinstance(grid, types.FunctionType):
        cells = [c.cell_contents for c in grid.__closure__ or ()]
        if all(isinstance(v, _ATOMS) for v in (*cells, *(grid.__defaults__ or ()))):
            return grid.__code__, typed(tuple(cells)), typed(grid.__defaults__)
    return tuple(grid) if isinstance(grid, list) else grid


def _grid_facts(grid: Any) -> Any:
    """How a caller's grid counts in a key: its extents by powers of two, a function by its source."""
    if grid is None:
        return None
    if callable(grid):
        return f"function {keys.function_digest(grid)[:16]}"
    return [keys.power_of_two(extent) for extent in normalise_grid(grid)]


def _launch_given(kernel: JitFunction) -> TileError:
    return fault(
        TuneError,
        "tune/launch",
        f"{kernel.__name__}[LaunchConfig(...)]: the launch of a tuned kernel is part of its configs",
        help="write tile.Config(block=…, cluster=…), and k[grid] for the grid",
    )


def _captured(kernel: JitFunction) -> TileError:
    return fault(
        TuneError,
        "tune/capture",
        f"{kernel.__name__} is not tuned for such a call yet, and a CUDA graph is being captured",
        help="call it once with the same kind of arguments before the capture",
    )


def _within_itself(kernel: JitFunction) -> TileError:
    return fault(
        TuneError,
        "tune/recursion",
        f"{kernel.__name__} is called while it is tuned for the same call: by its reference, or a heuristic",
        help="let the reference compute with torch, or call a config's own kernel, k.kernel",
    )


# --- the public forms


def autotune(
    configs: Configs,
    key: Sequence[str] = (),
    *,
    prune: Prune | None = None,
    heuristics: Heuristics | None = None,
    bucket: Callable[[str, int], Any] | None = None,
    reference: Callable[..., Any] | None = None,
    tolerance: float | None = None,
    timeout_s: float | None = 10.0,
    budget_s: float | None = None,
    exhaustive: bool = False,
    group: Any = None,
    progress: bool | None = None,
    store: bool = True,
) -> Callable[[JitFunction], Autotuned]:
    """``@tile.autotune(configs, key)`` over ``@tile.jit``: a kernel that runs with its fastest config.

    ``configs``: a ``tile.Space``, a list of ``tile.Config``, or a function of the arguments by name that gives one;
    it is asked again where shapes, dtypes or what ``key`` names are new. ``key``: scalars whose values, and dynamic
    dimensions whose exact sizes, decide what is fastest. Everything else that can is in every key
    (``tune.key``); dynamic sizes by powers of two, or by ``bucket(name, size)``.

    ``prune(config, arguments)``: true, or the reason, for a config that is out. ``heuristics``: compile-time
    parameters that are computed, ``name: f(arguments)``, the config's values among the arguments.
    ``reference``: a function of the arguments by name that returns or writes the right results, which every
    config is compared with, within ``tolerance`` (relative; None: by dtype). Without one, configs are compared with each other.

    ``timeout_s``: for one run of a config; measuring takes place in another process, which a hanging kernel
    does not survive. None: in this one. ``budget_s``: take the best that was found by then.
    ``exhaustive``: measure every config fully, none is dropped for being slow. ``group``: a
    ``torch.distributed`` group (True: the default one) whose ranks share the work and agree on the result.
    ``progress``: a bar by tqdm; None: where somebody looks. ``store``: keep results on disk.
    """
    settings = Settings(
        _names(key), prune, dict(heuristics or {}), bucket, reference, tolerance, timeout_s, budget_s,
        exhaustive, group, progress, store,
    )  # fmt: skip

    def tuned(kernel: JitFunction) -> Autotuned:
        if not isinstance(kernel, JitFunction):
            given = (
                f"the function {kernel.__name__}" if inspect.isfunction(kernel) else repr(kernel)
            )
            raise fault(
                TuneError,
                "tune/kernel",
                f"tile.autotune is given {given}, expected a kernel",
                help="write @tile.autotune(...) above @tile.jit",
            )
        return Autotuned(kernel, configs, settings)

    return tuned


def _names(key: Sequence[str]) -> tuple[str, ...]:
    if isinstance(key, str):
        raise fault(
            TuneError,
            "tune/key",
            f"key is {key!r}, expected a list of names",
            help=f"key=[{key!r}]",
        )
    return tuple(key)


_OPTIONS = frozenset(inspect.signature(autotune).parameters) - {"configs"}


def tune(kernel: JitFunction | Configured, *args: Any, configs: Configs, **named: Any) -> Report:
    """The report on ``configs`` for one call of a kernel or of ``kernel[grid]``, measured now or, unless
    ``store=False``, before; the call itself does not take place. ``named``: options of ``tile.autotune``, and the kernel's arguments by name."""
    base = kernel.kernel
    both = sorted(_OPTIONS & {p.name for p in base.params} & named.keys())
    if both:
        raise fault(
            TuneError,
            "tune/options",
            f"{both[0]!r} is both a parameter of {base.__name__} and an option of tile.tune",
            help=f"give the kernel's by position, or write tile.autotune(configs, {both[0]}=…)(kernel).tune(…)",
        )
    options = {name: named.pop(name) for name in _OPTIONS & named.keys()}
    tuned = autotune(configs, **options)(base)
    return _reported(tuned._tuned(tuned._request(_entry_like(tuned, kernel), args, named)))


def _entry_like(tuned: Autotuned, kernel: JitFunction | Configured) -> _Entry:
    """``tuned`` with the grid of ``kernel[grid]``."""
    if kernel.override != LaunchOverride() or kernel.options:
        raise _launch_given(tuned.kernel)
    grid = kernel.grid_function or kernel.grid
    return tuned if grid is None else tuned[grid]
