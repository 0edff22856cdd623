"""What a kernel read from the world outside it, watched by identity at every launch.

A kernel and its helpers read globals, closure cells and attributes of modules and classes at compile
time. Each such place becomes one ``is`` test in the generated launch function. Python's atoms
(numbers, strings) that are equal count as unchanged when an identity test fails. Values that could
change in place are refused by the frontend, so identity is enough. Functions that run at compile
time (helpers, methods and properties of constants) are followed into what they read in turn.
Not here: what lowering makes of the values; the disk cache, which hashes them (``encoding``).
"""

from __future__ import annotations

import builtins
import dis
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

_OURS = "tilejit"
_FIXED = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy", "cuda"}
"""Packages whose contents nobody rebinds while a program runs."""
_ATOMS = (bool, int, float, complex, str, bytes, type(None))


_ABSENT = object()
"""What a ``_Chain`` finds where there is nothing."""


class _Chain:
    """The first of several namespaces that has a name: an inherited attribute, or a global that is
    not there and leaves its name to the builtin."""

    def __init__(self, *spaces: Mapping[str, Any]):
        self._spaces = spaces

    def __getitem__(self, name: str) -> Any:
        for space in self._spaces:
            if name in space:
                return space[name]
        return _ABSENT


class _Behaviour:
    """A plain function, which may be given other code or defaults in place (as autoreload does)."""

    def __init__(self, function: types.FunctionType):
        self._function = function
        self._parts = function.__code__, function.__defaults__, function.__kwdefaults__

    def __getitem__(self, name: str) -> Any:
        f, (code, defaults, keywords) = self._function, self._parts
        same = f.__code__ is code and f.__defaults__ is defaults and f.__kwdefaults__ is keywords
        return self if same else None


@dataclass(frozen=True, slots=True)
class Place:
    """One watched place. ``container``: a namespace (indexed by ``name``) or a closure cell.
    ``owner``: whose namespace it is, where that is made anew each time it is asked for."""

    label: str
    container: Any
    name: str | None
    owner: Any = None

    def read(self) -> Any:
        """The present value; ``LookupError`` or ``ValueError`` when it is gone."""
        if self.name is None:
            return self.container.cell_contents
        return self.container[self.name]

    @property
    def identity(self) -> tuple[int, str | None]:
        """Equal for two descriptions of one place, while its container lives."""
        return id(self.container if self.owner is None else self.owner), self.name


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


def watch(function: types.FunctionType, *constants: Any) -> list[Watched]:
    """Everything that ``function`` and what it can reach may read at compile time. ``constants``:
    compile-time arguments, which may bring functions along."""
    found: dict[tuple[int, str | None], Watched] = {}
    seen: set[int] = set()
    pending = [function]

    def note(places: Iterable[Place]) -> None:
        for place in places:
            if place.identity in found:
                continue
            try:
                value = place.read()
            except (LookupError, ValueError):
                continue
            if not _is_library(value):
                found[place.identity] = Watched(place, value)
                reach(value)

    def reach(value: Any) -> None:
        if isinstance(value, types.FunctionType) and not _is_library(value):
            behaviour = _Behaviour(value)
            place = Place(f"the code of {value.__qualname__}", behaviour, "", value)
            found.setdefault(place.identity, Watched(place, behaviour))
        methods = _functions(value)
        pending.extend(methods)
        for cls in _classes(value):  # what methods read of their own class
            note(_class_places(cls, frozenset().union(*(_names(m.__code__) for m in methods))))

    for constant in constants:
        reach(constant)
    while pending:
        current = pending.pop()
        if id(current) in seen or _is_fixed(current.__module__):
            continue
        seen.add(id(current))
        note(_places(current))
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


@lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    names = frozenset(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _names(const)
    return names


@lru_cache(maxsize=1024)
def _read_as_globals(code: types.CodeType) -> frozenset[str]:
    instructions = dis.get_instructions(code)
    names = frozenset(i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _read_as_globals(const)
    return names


def _places(function: types.FunctionType) -> Iterator[Place]:
    """Globals, cells, and the named attributes of what lies there: modules, classes, instances."""
    names, space = _names(function.__code__), function.__globals__
    roots = [
        Place(f"global {name!r} of {function.__module__}", space, name)
        for name in sorted(names & space.keys())
    ]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        roots.append(Place(f"closure variable {name!r} of {function.__qualname__}", cell, None))
    yield from roots
    for name in sorted(
        (_read_as_globals(function.__code__) & vars(builtins).keys()) - space.keys()
    ):
        yield Place(f"global {name!r} of {function.__module__}", _Chain(space), name, space)
    visited: set[int] = set()
    while roots:
        try:
            value = roots.pop().read()
        except (LookupError, ValueError):
            continue
        if id(value) not in visited:
            visited.add(id(value))
            attributes = list(_attributes(value, names))
            yield from attributes
            roots += attributes


def _attributes(value: Any, names: Set[str]) -> Iterator[Place]:
    """The attributes with these names of a module, a class, or a constant's class."""
    if isinstance(value, types.ModuleType):
        if not _is_library(value):
            for name in sorted(names & vars(value).keys()):
                yield Place(f"{name!r} of {value.__name__}", vars(value), name)
        return
    for cls in _classes(value):
        yield from _class_places(cls, names)


def _class_places(cls: type, names: Set[str]) -> Iterator[Place]:
    spaces = [vars(c) for c in cls.__mro__ if not _is_library(c)]
    for name in sorted(names & frozenset().union(*spaces)):
        container = spaces[0] if name in spaces[0] else _Chain(*spaces)
        yield Place(f"{name!r} of {cls.__name__}", container, name, cls)


def _classes(value: Any) -> Iterator[type]:
    """The user's classes that a value is or holds instances of."""
    if isinstance(value, types.FunctionType | types.ModuleType):
        return
    if hasattr(value, "__tilejit_kernel__"):
        return
    cls = value if isinstance(value, type) else type(value)
    if not _is_library(cls):
        yield cls
    for item in _items(value):
        yield from _classes(item)


def _items(value: Any) -> Iterable[Any]:
    """What a compile-time constant is made of."""
    if isinstance(value, tuple | frozenset):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, f.name, None) for f in fields(value)]
    return ()


def _functions(value: Any) -> list[types.FunctionType]:
    """The functions that may run when a kernel uses a value: itself, or its class's methods."""
    found: list[types.FunctionType] = []
    inner = value if isinstance(value, types.FunctionType) else None
    if hasattr(value, "__tilejit_kernel__") or inner is None:
        wrapped = getattr(value, "__wrapped__", None)  # a kernel, functools.lru_cache
        inner = wrapped if isinstance(wrapped, types.FunctionType) else inner
    if inner is not None:
        return [inner]
    for cls in _classes(value):
        for base in cls.__mro__:
            if not _is_library(base):
                for member in vars(base).values():
                    found += _members(member)
    for item in _items(value):
        found += _functions(item)
    return found


def _members(member: Any) -> list[types.FunctionType]:
    """The functions of one entry of a class's namespace."""
    if isinstance(member, property):
        parts = [member.fget]
    else:
        parts = [getattr(member, "__func__", getattr(member, "func", member))]
    functions = [p for p in parts if isinstance(p, types.FunctionType)]
    # Not those that dataclasses and other libraries wrote.
    return [
        f
        for f in functions
        if f.__code__.co_filename != "<string>" and not _is_fixed(f.__globals__.get("__name__"))
    ]


def source_lines(watched: list[Watched], namespace: dict[str, Any]) -> list[str]:
    """One Python condition per place, true when it changed; adds the objects to ``namespace``."""
    conditions = []
    for i, w in enumerate(watched):
        namespace[f"__c{i}"], namespace[f"__w{i}"] = w.place.container, w.value
        read = f"__c{i}.cell_contents" if w.place.name is None else f"__c{i}[{w.place.name!r}]"
        conditions.append(f"{read} is not __w{i}")
    return conditions
