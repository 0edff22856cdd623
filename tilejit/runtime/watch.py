"""What a kernel read from the world outside it, watched by identity at every launch.

A kernel and its helpers read globals, closure cells and attributes of modules and classes at compile
time. Each such place becomes one ``is`` test in the generated launch function. Python's atoms
(numbers, strings) that are equal count as unchanged when an identity test fails. Values that could
change in place are refused by the frontend, so identity is enough.
Not here: what lowering makes of the values; the disk cache, which hashes them (``encoding``).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_OURS = "tilejit"
_FIXED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy", "cuda"}
"""Packages whose contents nobody rebinds while a program runs."""
_ATOMS = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Place:
    """One watched place. ``container``: a namespace (indexed by ``name``) or a closure cell."""

    label: str
    container: Any
    name: str | None

    def read(self) -> Any:
        """The present value; ``LookupError`` or ``ValueError`` when it is gone."""
        if self.name is None:
            return self.container.cell_contents
        return self.container[self.name]


@dataclass(slots=True)
class Watched:
    """A place with the value that was compiled in."""

    place: Place
    value: Any

    def changed(self) -> bool:
        """Whether a compilation now could differ. Adopts a new object that is the same atom."""
        try:
            now = self.place.read()
        except (LookupError, ValueError):
            return True
        if now is self.value:
            return False
        same = isinstance(now, _ATOMS) and type(now) is type(self.value)
        if not same or repr(now) != repr(self.value):
            return True
        self.value = now
        return False


def watch(function: types.FunctionType) -> list[Watched]:
    """Everything that ``function`` and the helpers it can reach may read at compile time."""
    found: dict[tuple[int, str | None], Watched] = {}
    seen: set[int] = set()
    pending = [function]
    while pending:
        current = pending.pop()
        if id(current) in seen or _is_fixed(current.__module__):
            continue
        seen.add(id(current))
        for place in _places(current):
            identity = (id(place.container), place.name)
            if identity in found:
                continue
            try:
                value = place.read()
            except (LookupError, ValueError):
                continue
            if _is_library(value):
                continue
            found[identity] = Watched(place, value)
            helper = _helper(value)
            if helper is not None:
                pending.append(helper)
    return list(found.values())


def _is_fixed(module: str | None) -> bool:
    """Parts of tilejit (``T``, dtypes, ready helpers) and of the libraries under it do not change."""
    top = (module or "").partition(".")[0]
    return top == _OURS or top in _FIXED


def _is_library(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return _is_fixed(value.__name__)
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return _is_fixed(value.__module__)
    return hasattr(value, "__tilejit_kernel__") and _is_fixed(getattr(value, "__module__", None))


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _names(const)
    return names


def _places(function: types.FunctionType) -> Iterator[Place]:
    """Globals, cells, and the named attributes of the modules and classes among them."""
    names = _names(function.__code__)
    roots = [
        Place(f"global {name!r} of {function.__module__}", function.__globals__, name)
        for name in sorted(names & function.__globals__.keys())
    ]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        roots.append(Place(f"closure variable {name!r} of {function.__qualname__}", cell, None))
    yield from roots
    for place in roots:
        try:
            value = place.read()
        except (LookupError, ValueError):
            continue
        if isinstance(value, types.ModuleType | type) and not _is_library(value):
            space = vars(value)
            for name in sorted(names & space.keys()):
                yield Place(f"{name!r} of {value.__name__}", space, name)


def _helper(value: Any) -> types.FunctionType | None:
    if isinstance(value, types.FunctionType):
        return value
    if hasattr(value, "__tilejit_kernel__"):
        wrapped = getattr(value, "__wrapped__", None)
        return wrapped if isinstance(wrapped, types.FunctionType) else None
    return None


def source_lines(watched: list[Watched], namespace: dict[str, Any]) -> list[str]:
    """One Python condition per place, true when it changed; adds the objects to ``namespace``."""
    conditions = []
    for i, w in enumerate(watched):
        namespace[f"__c{i}"], namespace[f"__w{i}"] = w.place.container, w.value
        read = f"__c{i}.cell_contents" if w.place.name is None else f"__c{i}[{w.place.name!r}]"
        conditions.append(f"{read} is not __w{i}")
    return conditions
