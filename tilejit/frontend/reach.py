"""Which kernel running a Python value could launch: the one place that asks what code can reach.

A plain helper with compile-time arguments is run by Python, and a ``@jit`` function that it calls
would be launched there. Whether it can come to that is read off what the code names.

Not here: what is done then (``calls``).
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from tilejit.frontend.values import children, kernel_of

LIBRARIES = frozenset({*sys.stdlib_module_names, "tilejit", "torch", "numpy"})
"""Their functions and classes call none of the user's kernels but those handed to them."""

CALLED = frozenset({"__call__", "__init__", "__new__", "__post_init__"})

Found = tuple[Any, frozenset[str]]


def kernel_within(value: Any) -> str | None:
    """The name of a kernel that code of ``value`` names, directly or through what it calls."""
    pending: list[Found] = [(value, CALLED)]
    seen: dict[tuple[int, frozenset[str]], Any] = {}
    while pending:
        value, names = pending.pop()
        if type(value) in _PLAIN or (id(value), names) in seen:
            continue
        seen[id(value), names] = value
        kernel = kernel_of(value)
        if kernel is not None:
            return kernel.name
        pending += _within(value, names)
    return None


_PLAIN = frozenset({bool, int, float, str, bytes, type(None), types.BuiltinFunctionType})


def _within(value: Any, names: frozenset[str]) -> Iterator[Found]:
    """What code that holds ``value`` and names ``names`` may come to call, with the names there."""
    match value:
        case types.FunctionType():
            yield from _of_function(value)
        case types.ModuleType():
            yield from _named(vars(value), names)
        case type():
            for base in value.__mro__:
                if not _is_library(base):
                    yield from _named(vars(base), names)
        case types.MethodType() | staticmethod() | classmethod():
            yield value.__func__, names
            yield getattr(value, "__self__", None), names
        case property() | functools.cached_property():
            yield getattr(value, "fget", None) or getattr(value, "func", None), names
        case functools.partial():
            yield (value.func, value.args, value.keywords), names
        case Mapping():
            yield from ((item, names) for item in value.values())
        case set() | frozenset():
            yield from ((item, names) for item in value)
        case _:
            yield from ((item, names) for item in children(value) or ())
            yield getattr(value, "__wrapped__", None), names  # functools.lru_cache
            yield type(value), names


def _named(space: Mapping[str, Any], names: frozenset[str]) -> Iterator[Found]:
    yield from ((space[name], names) for name in names & space.keys())


def _is_library(value: types.FunctionType | type) -> bool:
    return (value.__module__ or "").partition(".")[0] in LIBRARIES


def _of_function(function: types.FunctionType) -> Iterator[Found]:
    if _is_library(function):
        return
    names = _names(function.__code__)
    yield (function.__defaults__, function.__kwdefaults__), names
    yield from _named(function.__globals__, names)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents, names
        except ValueError:  # not bound yet
            continue


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> frozenset[str]:
    """Every global and attribute that code names, and code inside it; classes are called too."""
    inner = (_names(c) for c in code.co_consts if isinstance(c, types.CodeType))
    return CALLED.union(code.co_names, *inner)
