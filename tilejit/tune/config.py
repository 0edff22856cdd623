"""``Config`` and ``Space``: what a kernel may be tuned over.

A ``Config`` is a set of values: compile-time parameters of the kernel and options of its launch, told apart
when it meets a kernel (``Split``). A ``Space`` is the product of axes, less what a constraint refuses.
Not here: which configs can work at all (``prune``), measuring them (``search``).
"""

from __future__ import annotations

import difflib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, make_dataclass
from types import MappingProxyType
from typing import Any

from tilejit import T
from tilejit.errors import TuneError, fault
from tilejit.runtime import torch_glue
from tilejit.runtime.dispatch import typed
from tilejit.runtime.jit import Configured, JitFunction

LAUNCH_OPTIONS = tuple(f.name for f in fields(T.cuda.LaunchConfig) if f.name != "grid")
"""What a config may say of the launch. The grid is the caller's or the kernel's: ``k[grid]``, where a
function of the arguments sees the config's values too."""


class _AsDeclared:
    def __repr__(self) -> str:
        return "<as declared>"


_AS_DECLARED: Any = _AsDeclared()

# ``k[...]`` takes any such record. That of ``T.cuda.LaunchConfig`` cannot tell an option set to its default,
# which here overrides what the kernel declares, from one that was left alone.
_Launch = make_dataclass(
    "Launch",
    [("grid", Any, None), ("block", Any, None), ("cluster", Any, None)]
    + [(n, Any, _AS_DECLARED) for n in LAUNCH_OPTIONS if n not in ("block", "cluster")],
    frozen=True,
)


class Config:
    """``Config(BLOCK=128, STAGES=3, cluster=2)``: values for the kernel's ``T.constexpr`` parameters and
    fields of ``T.cuda.LaunchConfig``. ``name`` labels it in reports. Equal values make equal configs,
    whatever their order; ``4``, ``4.0`` and ``True`` are different values."""

    __slots__ = ("_key", "name", "values")

    name: str | None
    values: Mapping[str, Any]
    _key: frozenset[Any]

    def __init__(self, /, *, name: str | None = None, **values: Any):
        for key, value in values.items():
            _check_value(key, value)
        set_ = object.__setattr__
        set_(self, "name", name)
        set_(self, "values", MappingProxyType(dict(values)))
        set_(self, "_key", frozenset((key, typed(value)) for key, value in values.items()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a Config does not change; make another with {name}={value!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.name, dict(self.values))

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        text = ", ".join(f"{key}={value!r}" for key, value in self.values.items())
        return f"{self.name} ({text})" if self.name else text or "(no values)"

    def with_values(self, values: Mapping[str, Any]) -> Config:
        """This config with other or further values."""
        return _made(self.name, {**self.values, **values})


def _made(name: str | None, values: dict[str, Any]) -> Config:
    return Config(name=name, **values)


def _check_value(key: str, value: Any) -> None:
    if torch_glue.is_tensor(value):
        raise fault(
            TuneError,
            "tune/config",
            f"{key}={torch_glue.describe(value)} in a Config is a tensor",
            help="a config holds compile-time values; pass tensors to the kernel",
        )
    try:
        hash(value)
    except TypeError:
        raise fault(
            TuneError,
            "tune/config",
            f"{key}={value!r} in a Config is a {type(value).__name__}, which has no hash",
            help="use a tuple instead of a list, a frozen dataclass instead of a dict",
        ) from None


# --- spaces


class Space:
    """``Space(BLOCK=[64, 128], STAGES=range(2, 5), where=lambda BLOCK, STAGES: BLOCK * STAGES <= 384)``.

    The configs of the product, the last axis fastest, for which ``where`` (called with the axes that it
    has parameters for) is true. ``a + b`` joins two, or one and configs; what is in both counts once."""

    __slots__ = ("configs",)

    configs: tuple[Config, ...]

    def __init__(self, /, *, where: Callable[..., Any] | None = None, **axes: Iterable[Any]):
        listed = {name: _axis(name, values) for name, values in axes.items()}
        wanted = None if where is None else _wanted(where, listed)
        self.configs = tuple(
            Config(**values)
            for values in (
                dict(zip(listed, chosen)) for chosen in itertools.product(*listed.values())
            )
            if where is None or where(**{n: v for n, v in values.items() if n in (wanted or ())})
        )

    @classmethod
    def of(cls, configs: Iterable[Config]) -> Space:
        """A space of just these configs, each once."""
        space = cls()
        space.configs = tuple(dict.fromkeys(configs))
        return space

    def __iter__(self) -> Iterator[Config]:
        return iter(self.configs)

    def __len__(self) -> int:
        return len(self.configs)

    def __add__(self, other: Iterable[Config]) -> Space:
        return Space.of((*self.configs, *other))

    def __radd__(self, other: Iterable[Config]) -> Space:
        return Space.of((*other, *self.configs))

    def __repr__(self) -> str:
        return f"<Space of {len(self)} configs>"


def _axis(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise fault(
            TuneError,
            "tune/space",
            f"the axis {name} of a Space is {values!r}, expected a list of values",
            help=f"write {name}=[{values!r}]",
        )
    listed = tuple(values)
    if not listed:
        raise fault(
            TuneError, "tune/space", f"the axis {name} of a Space has no values: no config is left"
        )
    return listed


def _wanted(where: Callable[..., Any], axes: Mapping[str, Any]) -> frozenset[str]:
    """The axes that a constraint is called with."""
    parameters = inspect.signature(where).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(axes)
    for p in parameters:
        if p.name not in axes and p.default is p.empty:
            raise fault(
                TuneError,
                "tune/space",
                f"`where` has the parameter {p.name!r}, which is no axis of the Space",
                help=suggestion(p.name, axes) or f"the axes are {', '.join(axes)}",
            )
    return frozenset(p.name for p in parameters) & frozenset(axes)


# --- configs and kernels


@dataclass(frozen=True, slots=True)
class Split:
    """A config as a kernel takes it: compile-time arguments by name, and options of the launch."""

    constants: Mapping[str, Any]
    options: Mapping[str, Any]

    def entry(self, kernel: JitFunction, grid: Any = None) -> JitFunction | Configured:
        """What is called: the kernel, with a grid and this config's launch options and no other's."""
        if self.options:
            return kernel[_Launch(grid, **self.options)]
        return kernel if grid is None else kernel[grid]


def split(config: Config, kernel: JitFunction) -> Split:
    """``config`` for ``kernel``; ``TuneError`` where a value is none of the kernel's."""
    params = {p.name: p for p in kernel.params}
    constants: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in config.values.items():
        param = params.get(name)
        if param is not None and name in (*LAUNCH_OPTIONS, "grid"):
            raise _refused(
                kernel,
                f"{name!r} in ({config!r}) is both a parameter of the kernel and an option of the launch",
                "give the kernel's parameter another name",
            )
        if param is not None:
            if param.kind != "constexpr":
                raise _refused(
                    kernel,
                    f"{name!r} in ({config!r}) is a run-time argument of the kernel",
                    f"annotate it `{name}: T.constexpr`, so that each config is compiled with its value",
                )
            constants[name] = value
        elif name in LAUNCH_OPTIONS:
            options[name] = value
        else:
            raise _refused(
                kernel,
                f"{name!r} in ({config!r}) is neither a parameter of the kernel nor an option of its launch",
                _help_for_unknown(name, kernel),
            )
    return Split(constants, options)


def _help_for_unknown(name: str, kernel: JitFunction) -> str:
    if name == "grid":
        return (
            "the grid is given at the call, k[grid](...), by a function of the arguments if need be"
        )
    constants = [p.name for p in kernel.params if p.kind == "constexpr"]
    listed = ", ".join(constants) or "none"
    return (
        suggestion(name, (*constants, *LAUNCH_OPTIONS))
        or f"compile-time parameters: {listed}; launch options: {', '.join(LAUNCH_OPTIONS)}"
    )


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """``did you mean 'BLOCK'?`` where one of the known names is close."""
    folded: dict[str, str] = {}
    for k in known:
        folded.setdefault(k.lower(), k)
    close = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]!r}?" if close else None


def _refused(kernel: JitFunction, message: str, help: str) -> TuneError:
    error = fault(TuneError, "tune/config", f"{kernel.__name__}: {message}", help=help)
    assert isinstance(error, TuneError)
    return error


def listed(configs: Any, kernel: JitFunction) -> tuple[Config, ...]:
    """The configs that a space, a list or a generator holds, each once; ``TuneError`` for none."""
    made: Sequence[Any] = (configs,) if isinstance(configs, Config) else tuple(configs)
    for config in made:
        if not isinstance(config, Config):
            raise _refused(
                kernel,
                f"{config!r} among the configs is a {type(config).__name__}, expected a tile.Config",
                "write tile.Config(BLOCK=128), or tile.Space(BLOCK=[64, 128]) for a product",
            )
    if not made:
        raise _refused(
            kernel, "there are no configs to tune over", "give at least one tile.Config(...)"
        )
    return tuple(dict.fromkeys(made))
