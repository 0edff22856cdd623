"""What a lowering depended on outside its own source: captured values and helpers' sources.

A kernel may read globals, closure cells, defaults and module attributes; each is captured *by
value*, recorded with a label (for the cache key and for messages) and with where it was found (to
see whether it changed). Values that could change behind the kernel's back (lists, dicts, arrays,
tensors) are refused by name.

Not here: name resolution order (``names``).
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilejit.dtypes import DType
from tilejit.frontend.source import Source
from tilejit.language.annotations import DynamicDim, LaunchConfig, Tensor
from tilejit.language.kernel_only import OutsideKernel
from tilejit.layout import ComposeLayout, Iter, TileLayout

ATOMS = (bool, int, float, str, bytes, type(None), type(Ellipsis), complex)
OWN_VALUES = (DType, Tensor, DynamicDim, LaunchConfig, TileLayout, ComposeLayout, Iter)
CODE = (
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type,
    types.MethodWrapperType, types.GenericAlias,
)  # fmt: skip


@dataclass(frozen=True)
class Watch:
    """Where a captured value was found: ``current()`` reads it again, ``label`` names it."""

    label: str
    value: Any
    read: Callable[[], Any] = field(compare=False)

    def current(self) -> Any:
        """The value there now; raises what Python raises when the name is gone."""
        return self.read()


class Captures:
    """Collects watches and sources, in order of first use."""

    def __init__(self) -> None:
        self._watches: dict[str, Watch] = {}
        self._sources: dict[str, None] = {}
        self._functions: set[types.CodeType] = set()

    def holds(self, label: str, value: Any) -> bool:
        """Whether this very value has been recorded under ``label``."""
        watch = self._watches.get(label)
        return watch is not None and watch.value is value

    def record(self, label: str, value: Any, read: Callable[[], Any]) -> None:
        if label not in self._watches and not isinstance(value, types.ModuleType):
            self._watches[label] = Watch(label, value, read)

    def source(self, source: Source) -> None:
        self._sources.setdefault(source.text)

    def python_function(self, function: Any) -> None:
        """A plain function that ran at compile time: its source, globals and callees count too."""
        function = getattr(function, "__func__", function)
        function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or function.__code__ in self._functions:
            return
        if function.__module__.split(".")[0] in ("math", "builtins"):
            return
        self._functions.add(function.__code__)
        from tilejit.errors import TileError
        from tilejit.frontend.source import read

        try:
            self.source(read(function))
        except TileError:
            # Its text is unknown, but its behaviour is not: bytecode and constants identify it.
            code = function.__code__
            self._sources.setdefault(
                f"{function.__qualname__} {code.co_code.hex()} {code.co_consts}"
            )
        for name in function.__code__.co_names:
            if name in function.__globals__:
                self._follow(function, name)

    def _follow(self, function: types.FunctionType, name: str) -> None:
        table = function.__globals__
        value = table[name]
        if isinstance(value, types.FunctionType):
            self.python_function(value)
        elif isinstance(value, ATOMS) or (refusal(value) is None and not isinstance(value, CODE)):
            self.record(f"{function.__module__}.{name}", value, lambda: table[name])

    @property
    def watches(self) -> tuple[Watch, ...]:
        return tuple(self._watches.values())

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self._sources)


_PLAIN = (*ATOMS, *OWN_VALUES, *CODE, enum.Enum)
"""What can be captured as it is."""


def is_code(value: Any) -> bool:
    """Functions, classes, modules and kernels: what they do counts by their source."""
    return isinstance(value, CODE) or hasattr(value, "__tilejit_kernel__")


def refusal(value: Any) -> str | None:
    """Why ``value`` cannot be captured by value; None when it can."""
    if isinstance(value, _PLAIN):
        return None
    if hasattr(value, "__tilejit_kernel__") or _is_own(value):
        return None
    if isinstance(value, tuple | frozenset):
        for item in value:
            reason = refusal(item)
            if reason is not None:
                return f"it holds {reason}"
        return None
    if isinstance(value, range | slice):
        return None
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            return f"a {kind.__name__}, a dataclass that is not frozen"
        for f in dataclasses.fields(value):
            reason = refusal(getattr(value, f.name))
            if reason is not None:
                return f"{f.name}, which is {reason}" if not reason.startswith("it ") else reason
        return None
    if callable(value) and isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
        return None  # functools.lru_cache and friends: the function inside decides
    module = kind.__module__.split(".")[0]
    if module in ("torch", "numpy"):
        return _array(value, module, kind)
    if isinstance(value, list | dict | set | bytearray):
        return f"a {kind.__name__}, which can change"
    return f"a {kind.__module__}.{kind.__qualname__}, which may change"


def _array(value: Any, module: str, kind: type) -> str | None:
    if kind.__name__ in ("Tensor", "Parameter", "ndarray"):
        return f"a {module}.{kind.__name__}; pass it as a kernel argument"
    return None


def _is_own(value: Any) -> bool:
    """Objects of the language itself: ``T.ptx``, instructions, annotations, ``T.constexpr``."""
    module = type(value).__module__
    return module.startswith(("tilejit.language", "tilejit.ptx")) or isinstance(
        value, OutsideKernel
    )


def help_for(value: Any) -> str:
    if isinstance(value, list):
        return "make it a tuple"
    if isinstance(value, dict):
        return "make it a frozen dataclass or separate constants"
    if isinstance(value, set):
        return "make it a frozenset"
    return "capture immutable values: numbers, strings, tuples, frozen dataclasses, enums"
