"""The launch path of a tuned kernel: from arguments to the chosen config's plan.

A *door* is the kernel's own generated launch function (``runtime.dispatch``, the C launcher included) over the
kernel's own parameters, in which a tuned parameter has the default ``TUNED`` and the table leads to the plan
of the config that was chosen. So a tuned launch costs what any launch costs. What a tuning depends on and
a plan does not (dynamic sizes and the strides left of them, numbers named in ``key``, heuristics) picks the door first; a kernel
without any of these has one.
Not here: what is chosen (``autotune``), the generated function itself (``runtime.dispatch``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilejit.errors import Span
from tilejit.runtime import torch_glue
from tilejit.runtime.dispatch import MISSES, Dispatch, typed
from tilejit.runtime.jit import Prepared
from tilejit.runtime.plan import normalise_grid
from tilejit.runtime.specialise import MISSING, Param, dynamic_dims
from tilejit.runtime.watch import Watched

_MAX_REMEMBERED = 4096
"""Exact sizes remembered per entry; then they are learnt again."""


class _Tuned:
    __slots__ = ()

    def __repr__(self) -> str:
        return "<tuned>"


TUNED = _Tuned()
"""Stands for the value of a parameter that the tuning gives."""


@dataclass(frozen=True, slots=True)
class TunedParam:
    """A parameter of the kernel that a call need not give (``specialise.Param``)."""

    name: str
    kind: str
    annotation: Any
    default: Any
    has_default: bool
    span: Span


def parameters(params: Sequence[Param], computed: Collection[str]) -> tuple[Param, ...]:
    """The kernel's parameters as a caller of the tuned kernel sees them."""
    return tuple(
        TunedParam(p.name, p.kind, p.annotation, TUNED, True, p.span) if p.name in computed else p
        for p in params
    )


# --- doors


class Door:
    """What stands before the plans of one bucket: ``door(*args)`` launches, or asks its owner. Each has a
    class of its own, so that its ``__call__`` is the generated function itself.

    Where the grid is a function of the arguments, the config's among them, a door knows one config's; only a
    ``mixed`` one, at the price of the C launcher, serves several."""

    grid: Any = None
    table: dict[Any, Callable[..., None]]

    def __new__(cls, *_args: Any, **_options: Any) -> Door:
        return object.__new__(type(cls.__name__, (cls,), {"__module__": cls.__module__}))

    def __init__(
        self,
        name: str,
        params: Sequence[Param],
        outside: list[Watched],
        nullable: frozenset[str],
        grid: Any,
        owner: Callable[[Sequence[Any], dict[str, Any]], Any],
        *,
        mixed: bool = False,
    ):
        self.table = {}
        self._owner, self._mixed = owner, mixed
        self._grid_function = grid if callable(grid) else None
        self._constants: Mapping[str, Any] | None = None
        if grid is not None and self._grid_function is None:
            self.grid = normalise_grid(grid)
        self._dispatch = Dispatch(name, params, outside, nullable, self.table)
        made = self._dispatch.call if grid is None else self._dispatch.configured
        type(self).__call__ = made  # type: ignore[method-assign]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        raise AssertionError("replaced when the door is made")

    def slow(self, args: Sequence[Any], keywords: dict[str, Any]) -> Any:
        return self._owner(args, keywords)

    def evaluate(self, arguments: dict[str, Any]) -> Any:
        """The grid, for the generated function; the arguments that it follows from where it is the plan that knows
        the config."""
        if self._mixed:
            return arguments
        assert self._grid_function is not None and self._constants is not None
        return normalise_grid(self._grid_function({**arguments, **self._constants}))

    def serves(self, constants: Mapping[str, Any]) -> bool:
        """Whether plans of a config with these constants may stand behind this door."""
        if self._grid_function is None or self._mixed or self._constants is None:
            return True
        return _typed(self._constants) == _typed(constants)

    def launch(
        self, values: Sequence[Any], prepared: Prepared, constants: Mapping[str, Any]
    ) -> None:
        """Launches, and remembers the plan for calls like this one. ``values``: one per parameter."""
        for cls in {type(v) for v in values if torch_glue.is_tensor(v)}:
            self._dispatch.tensor_classes.add(cls)
        key, passed = self._dispatch.key_of(*values)
        run = prepared.run
        if prepared.lasting:
            self._constants = constants
            grid = self._grid_function
            self.table[key] = _late(run, grid, constants) if grid and self._mixed else run
        run(prepared.grid, *passed)


def _typed(constants: Mapping[str, Any]) -> dict[str, Any]:
    return {name: typed(value) for name, value in constants.items()}


def _late(
    run: Callable[..., None], grid: Callable[..., Any], constants: Mapping[str, Any]
) -> Callable[..., None]:
    """A plan whose grid is computed from the arguments and the chosen config."""

    def launch(arguments: dict[str, Any], *values: Any) -> None:
        run(normalise_grid(grid({**arguments, **constants})), *values)

    return launch


# --- the way to a door


@dataclass
class Doors:
    """The doors of one entry (``k`` or ``k[grid]``), by exact facts of the arguments and by bucket."""

    exact: dict[Any, Door] = field(default_factory=dict)
    buckets: dict[Any, Door] = field(default_factory=dict)

    def remember(self, facts: Any, bucket: Any, make: Callable[[], Door]) -> Door:
        door = self.buckets.get(bucket)
        if door is None:
            door = self.buckets[bucket] = make()
        if len(self.exact) >= _MAX_REMEMBERED:
            self.exact.clear()
        self.exact[facts] = door
        return door

    def replace(self, old: Door, new: Door) -> None:
        """Everything that led to ``old`` leads to ``new``."""
        for found in (self.exact, self.buckets):
            found.update({k: new for k, door in found.items() if door is old})

    def clear(self) -> None:
        self.exact.clear()
        self.buckets.clear()


class Way:
    """Finds the door of a call. ``facts_of(*values)``: what picks it, exactly. ``call(self, *args)``: the
    function to be called as ``k(...)``; it needs ``self.doors`` and ``self.slow``."""

    def __init__(
        self,
        name: str,
        params: Sequence[Param],
        key: Collection[str],
        computed: Callable[[dict[str, Any]], Any] | None,
    ):
        facts = [f for p in params for f in _facts(p, key)]
        names = [p.name for p in params]
        if computed is not None:
            facts.append(f"__computed({{{', '.join(f'{n!r}: {n}' for n in names)}}})")
        self.depends = bool(facts)
        """Whether anything but the plan's key matters."""
        namespace: dict[str, Any] = {
            "__MISSES": MISSES, "__computed": computed, "__typed": typed,
        }  # fmt: skip
        for i, p in enumerate(params):
            namespace[f"__d{i}"] = p.default if p.has_default else MISSING
        exec(compile(_source(names, facts), f"<tilejit way to {name}>", "exec"), namespace)
        self.call: Callable[..., Any] = namespace["call"]
        self.facts_of: Callable[..., Any] = namespace["facts_of"]
        torch_glue.hide(self.call)


def _facts(param: Param, key: Collection[str]) -> list[str]:
    """Expressions over a parameter of which its door depends."""
    name = param.name
    if param.kind == "tensor" and dynamic_dims(param.annotation):
        return [f"None if {name} is None else ({name}.shape, {name}.stride())"]
    if param.kind in ("scalar", "any") and name in key:
        return [f"__typed({name})"]
    return []


def _source(names: Sequence[str], facts: Sequence[str]) -> str:
    signature = "".join(f", {n}=__d{i}" for i, n in enumerate(names))
    passed = ", ".join(names)
    picked = f"({', '.join(facts)}{',' if len(facts) == 1 else ''})"
    return "\n".join(
        (
            f"def facts_of({passed}):",
            f"    return {picked}",
            f"def call(__self, /{signature}, *__extra, **__unknown):",
            "    if __extra or __unknown:",
            f"        return __self.slow(({passed}{',' if names else ''} *__extra), __unknown)",
            f"    try: __door = __self.doors.exact[{picked}]",
            "    except __MISSES: __door = None",
            "    if __door is None:",
            f"        return __self.slow(({passed}{',' if names else ''}), {{}})",
            f"    return __door({passed})",
            "",
        )
    )
