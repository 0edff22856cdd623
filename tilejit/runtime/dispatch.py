"""The generated function behind ``k(...)``: from arguments to the plan that suits them.

For each kernel a function with the kernel's own parameter list is written once and compiled. It tests
the watched outside values, builds an exact key from what specialisation depends on (per tensor: dtype,
shape, strides, alignment, device; per scalar: its type; per compile-time value: the value and type),
looks the plan's function up and calls it. Where the C launcher exists it stands in front and makes the
launches it has seen before (``native``). Whatever is out of the ordinary (first call, unknown
keyword, wrong type, changed global) goes to ``slow``, which diagnoses or prepares.
Not here: what ``slow`` does (``jit``), how a plan launches (``plan``).
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from tilejit.runtime import native, torch_glue
from tilejit.runtime.plan import Forgotten, GridExceeded, Plan
from tilejit.runtime.specialise import (
    DEFAULT_ALIGN_BYTES,
    MISSING,
    Param,
    dynamic_dims,
    scalar_dtype,
)
from tilejit.runtime.watch import Watched, source_lines

MISSES = (KeyError, AttributeError, TypeError, IndexError)
"""What the key code raises on arguments that no plan was made for."""

AGAIN = (GridExceeded, Forgotten, struct.error, OverflowError)
"""What a plan raises when a value does not fit it: a larger grid, a scalar out of range."""


class Miss(KeyError):
    """Raised inside generated code to leave for the slow way."""


# --- keys of compile-time values

_SIMPLE = frozenset((int, str, bool, type(None), bytes))
_NUMBERS = frozenset((bool, int, float))
_MAX_REMEMBERED = 4096


def typed(value: Any) -> Any:
    """A hashable that equals another's only if the values agree in every type and bit.

    ``4 == 4.0 == True`` and ``0.0 == -0.0`` as plain keys; a kernel can tell them apart.
    """
    cls = type(value)
    if cls in _SIMPLE:
        return (cls, value)
    if cls is float:
        return (cls, value.hex())
    if isinstance(value, tuple | frozenset):
        members = (typed(v) for v in value)
        return (cls, frozenset(members) if isinstance(value, frozenset) else tuple(members))
    parameters = getattr(cls, "__dataclass_params__", None)
    if is_dataclass(value) and parameters is not None and parameters.frozen and parameters.eq:
        return (
            cls,
            tuple(_typed_field(getattr(value, f.name), f.compare) for f in fields(value)),
            value,
        )
    return (cls, value)


def _typed_field(value: Any, compared: bool) -> Any:
    """A kernel can read a field that ``==`` leaves out, so it counts too: by value where it can be
    hashed, else by identity (the dataclass in the key keeps the object alive)."""
    if compared:
        return typed(value)
    try:
        hash(value)
    except TypeError:
        return (type(value), id(value))
    return typed(value)


def tokens() -> Callable[[Any], int]:
    """``token(value)``: a small int standing for ``typed(value)``, the same for equal ones.

    An object seen before costs one dict lookup. What is remembered dies with the function. No number is
    given twice: a value that was forgotten gets a new one, and its next launch is prepared again.
    """
    count = itertools.count()
    numbers: dict[Any, int] = {}
    remembered: dict[int, tuple[Any, int]] = {}
    lock = threading.Lock()

    def token(value: Any) -> int:
        hit = remembered.get(id(value))
        if hit is not None and hit[0] is value:
            return hit[1]
        key = typed(value)
        with lock:
            if len(numbers) >= _MAX_REMEMBERED:
                numbers.clear()
            number = numbers.get(key)
            if number is None:
                number = numbers[key] = next(count)
            if len(remembered) >= _MAX_REMEMBERED:
                remembered.clear()
            remembered[id(value)] = (value, number)  # keeps the object: its id stays its own
        return number

    return token


# --- source


class _Writer:
    """Writes the key code of one parameter list. Generated names start with two underscores."""

    def __init__(self, params: Sequence[Param], nullable: frozenset[str]):
        self.lines: list[str] = []
        self.key: list[str] = ["__generation"]
        self.values: list[str] = []
        self._nullable = nullable
        self._sizes: dict[str, list[tuple[str, str]]] = {}
        """By name of a dynamic dimension: (the tensor, the source of its size) of every place before."""
        self._varying = {
            p.annotation.shape[d].name
            for p in params
            if p.kind == "tensor"
            for d in dynamic_dims(p.annotation)
        }
        for i, param in enumerate(params):
            if param.kind == "constexpr":
                self._constexpr(param.name)
            elif param.kind == "scalar":
                self._scalar(param)
            elif param.kind == "tensor":
                self._tensor(i, param)
            else:
                self._open(i, param.name)

    def _constexpr(self, name: str) -> None:
        value = f"({name} if {name}.__class__ in __simple else __token({name}))"
        self.key += [f"{name}.__class__", value]
        self.values.append("None")

    def _scalar(self, param: Param) -> None:
        self.key.append(f"{param.name}.__class__")
        if scalar_dtype(param.annotation) is None:
            self.key += _width(param.name)
        self.values.append(param.name)

    def _tensor(self, i: int, param: Param) -> None:
        if dynamic_dims(param.annotation):
            lines, key, values = self._shaped(i, param)
        else:
            lines = [f"__v{i} = {param.name}.data_ptr()"]
            for d, dim in enumerate(getattr(param.annotation, "shape", None) or ()):
                lines += self._same_size(param.name, dim, f"{param.name}.shape[{d}]")
            key = _static_key(param.name, i, _mask(param))
            values = [f"__v{i}"]
        self.values += values
        if param.name not in self._nullable:
            self.lines += lines
            self.key += key
            return
        self.lines.append(f"if {param.name} is None: __k{i} = {' = '.join(values)} = None")
        self.lines.append("else:")
        self.lines += [f"    {line}" for line in [*lines, f"__k{i} = {_tuple(key)}"]]
        self.key.append(f"__k{i}")

    def _shaped(self, i: int, param: Param) -> tuple[list[str], list[str], list[str]]:
        """A tensor with dynamic dimensions: their sizes stay out of the key, but here, at each launch,
        equal names are tested for equal sizes, and none is 0: such a launch has no plan.

        The stride of a dimension of one element says nothing, and the plan may have been made for
        another: that it is one element is in the key, or a longer one would meet that plan."""
        name, dynamic = param.name, dynamic_dims(param.annotation)
        lines = [
            f"__v{i} = {name}.data_ptr()",
            f"__s{i} = {name}.shape",
            f"__t{i} = {name}.stride()",
        ]
        key = [
            f"{name}.dtype",
            f"len(__s{i})",
            _address_class(i, _mask(param)),
            f"{name}.get_device()",
        ]
        for d, dim in enumerate(param.annotation.shape):
            size = f"__s{i}[{d}]"
            lines += self._same_size(name, dim, size)
            if d not in dynamic:
                key.append(size)
            stride, single = f"__t{i}[{d}]", f"__s{i}[{d}] == 1"
            if any(e > d for e in dynamic):
                key.append(f"{stride} == 0 and 1 + ({single})")
                continue
            key.append(stride)
            if d in dynamic:
                key.append(single)
        return lines, key, [f"__v{i}", f"__s{i}", f"__t{i}"]

    def _same_size(self, tensor: str, dim: Any, size: str) -> list[str]:
        """The tests that a dimension named like a dynamic one has its size, in every tensor that is there.

        One that cannot be None stands for all before it: it was compared with them."""
        name = dim if isinstance(dim, str) else getattr(dim, "name", None)
        if name is None or name not in self._varying:
            return []
        wrong: list[str] = []
        places = self._sizes.setdefault(name, [])
        for other, first in reversed(places):
            absent = other in self._nullable and other != tensor
            wrong.append(
                f"{other} is not None and {first} != {size}" if absent else f"{first} != {size}"
            )
            if not absent:
                break
        else:
            wrong.append(f"not {size}")
        places.append((tensor, size))
        return [f"if {test}: raise __Miss" for test in wrong]

    def _open(self, i: int, name: str) -> None:
        """No annotation: a tensor, None, or a number."""
        key = _static_key(name, i, DEFAULT_ALIGN_BYTES - 1)
        self.lines += [
            f"if {name}.__class__ in __tensors:",
            f"    __v{i} = {name}.data_ptr()",
            f"    __k{i} = {_tuple(key)}",
            f"elif {name} is None: __k{i} = __v{i} = None",
            f"elif {name}.__class__ in __numbers:",
            f"    __v{i} = {name}",
            f"    __k{i} = {_tuple([f'{name}.__class__', *_width(name)])}",
            "else: raise __Miss",
        ]
        self.key.append(f"__k{i}")
        self.values.append(f"__v{i}")


def _address_class(i: int, mask: int) -> str:
    """How an address is aligned. That of what has no memory is like no other."""
    return f"__v{i} & {mask} if __v{i} else None"


def _static_key(name: str, i: int, mask: int) -> list[str]:
    """``specialise`` derives the strides of a contiguous tensor from its shape, so a flag stands
    for them (cheaper to read and to hash)."""
    return [
        f"{name}.dtype",
        f"{name}.shape",
        f"{name}.is_contiguous() or {name}.stride()",
        _address_class(i, mask),
        f"{name}.get_device()",
    ]


def _mask(param: Param) -> int:
    return max(getattr(param.annotation, "align_bytes", None) or 0, DEFAULT_ALIGN_BYTES) - 1


def _width(name: str) -> list[str]:
    """Integers of different widths are different types when none is declared."""
    return [f"-2147483648 <= {name} <= 2147483647", f"{name} <= 9223372036854775807"]


# --- the functions

_generations = itertools.count()
"""In every key: a function made for old outside values, still held somewhere, finds nothing new."""


class Dispatch:
    """The generated functions of one kernel.

    ``call(self, *args, **kw)`` is ``k(...)``; ``configured(self, *args, **kw)`` is ``k[grid](...)``
    (``self.grid`` and ``self.table`` are read); ``key_of(*args)`` gives the key and the values for
    a plan. ``table`` maps keys to plans' functions. ``tensor_classes`` holds the classes that count
    as tensors where nothing is annotated.
    """

    def __init__(
        self,
        name: str,
        params: Sequence[Param],
        watched: list[Watched],
        nullable: frozenset[str],
        table: dict[Any, Callable[..., None]],
    ):
        self.tensor_classes: set[type] = set()
        writer = _Writer(params, nullable)
        namespace: dict[str, Any] = {
            "__M": MISSING,
            "__Miss": Miss,
            "__MISSES": MISSES,
            "__AGAIN": AGAIN,
            "__simple": _SIMPLE,
            "__token": tokens(),
            "__tensors": self.tensor_classes,
            "__numbers": _NUMBERS,
            "__table": table,
            "__generation": next(_generations),
        }
        changed = source_lines(watched, namespace)
        for i, param in enumerate(params):
            namespace[f"__d{i}"] = param.default if param.has_default else MISSING
        source = "\n".join(
            (
                _call_source(params, writer, changed, configured=False),
                _call_source(params, writer, changed, configured=True),
                _key_source(params, writer),
            )
        )
        exec(compile(source, f"<tilejit dispatch of {name}>", "exec"), namespace)
        self.source = source
        self.key_of: Callable[..., tuple[Any, tuple[Any, ...]]] = namespace["key_of"]
        torch_glue.hide(namespace["call"], namespace["configured"])
        resolve = _resolver(self.key_of)
        self.call = native.wrap(namespace["call"], resolve, params, watched, table)
        self.configured = native.wrap(namespace["configured"], resolve, params, watched, None)


def _resolver(key_of: Callable[..., Any]) -> Callable[..., Plan | None]:
    """The plan that the generated function takes for these arguments; None where it has none."""

    def resolve(entry: Any, *arguments: Any) -> Plan | None:
        try:
            key, _ = key_of(*arguments)
            plan: Plan | None = entry.table[key].plan
        except MISSES:
            return None
        return plan

    return resolve


def _call_source(
    params: Sequence[Param], writer: _Writer, changed: list[str], *, configured: bool
) -> str:
    names = [p.name for p in params]
    signature = "".join(f", {n}=__d{i}" for i, n in enumerate(names))
    slow = f"return __self.slow(({''.join(n + ', ' for n in names)}*__extra), __unknown)"
    body = ["if __extra or __unknown: raise __Miss"]
    if changed:
        body.append(f"if {' or '.join(changed)}: raise __Miss")
    body += writer.lines
    table = "__self.table" if configured else "__table"
    body.append(f"__run = {table}[{_tuple(writer.key)}]")
    values = "".join(f", {v}" for v in writer.values)
    name = "configured" if configured else "call"
    # The slow way starts outside the except clauses: its errors must not drag ours along.
    lines = [
        f"def {name}(__self, /{signature}, *__extra, **__unknown):",
        "    try:",
        *(f"        {line}" for line in body),
        "    except __MISSES: __run = None",
        f"    if __run is None: {slow}",
    ]
    if configured:
        pairs = ", ".join(f"{n!r}: {n}" for n in names)
        lines += [
            "    __grid = __self.grid",
            f"    if __grid is None: __grid = __self.evaluate({{{pairs}}})",
        ]
    lines += [
        f"    try: return __run({'__grid' if configured else 'None'}{values})",
        "    except __AGAIN: pass",
        f"    {slow}",
    ]
    return "\n".join(lines) + "\n"


def _key_source(params: Sequence[Param], writer: _Writer) -> str:
    lines = [f"def key_of({', '.join(p.name for p in params)}):"]
    lines += [f"    {line}" for line in writer.lines]
    lines.append(f"    return {_tuple(writer.key)}, {_tuple(writer.values)}")
    return "\n".join(lines) + "\n"


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
