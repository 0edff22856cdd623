"""The IR as JSON: every node is ``{"node": class, field: value…}``; spans are left out.

``from_json(to_json(f)) == f``. What JSON lacks is an object of one entry: ``{"float": "nan"}``,
``{"dtype": "int32"}``, ``{"layout": "(8,4):(4,1)"}``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tilejit import dtypes, layout
from tilejit.dtypes import DType
from tilejit.ir import nodes
from tilejit.ir.walk import NODE_TYPES

_CLASSES: dict[str, type[Any]] = {kind.__name__: kind for kind in NODE_TYPES}
_FIELDS: dict[type[Any], tuple[str, ...]] = {
    kind: tuple(f.name for f in dataclasses.fields(kind) if f.init and f.name != "span")
    for kind in NODE_TYPES
}


def to_json(function: nodes.Function) -> str:
    """One line of JSON text, without spans."""
    return json.dumps(encode(function), separators=(",", ":"))


def from_json(text: str) -> nodes.Function:
    """The function in ``text``; ``ValueError`` for text that does not hold one."""
    try:
        result = decode(json.loads(text))
    except (TypeError, KeyError, layout.LayoutError) as error:
        raise ValueError(f"the JSON text does not hold a function: {error}") from error
    if not isinstance(result, nodes.Function):
        raise ValueError("the JSON text does not hold a function")
    return result


def encode(value: Any) -> Any:
    """A value of the IR in JSON's terms."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [encode(item) for item in value]
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, layout.TileLayout | layout.ComposeLayout):
        return {"layout": layout.render(value)}
    names = _FIELDS.get(type(value))
    if names is not None:
        fields = {name: encode(getattr(value, name)) for name in names}
        return {"node": type(value).__name__, **fields}
    raise TypeError(f"{type(value).__name__} has no JSON form")


_SPECIAL: dict[str, Callable[[str], Any]] = {
    "float": lambda text: math.nan if text == "nan" else float(text),
    "dtype": dtypes.dtype,
    "layout": lru_cache(1024)(layout.parse),  # a function says few of them, again and again
}


def decode(value: Any) -> Any:
    """The inverse of ``encode``."""
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "node" not in value:
        ((what, text),) = value.items()
        return _SPECIAL[what](text)
    kind = _CLASSES.get(value["node"])
    if kind is None:
        raise ValueError(f"no IR node is called {value['node']!r}")
    return kind(**{name: decode(item) for name, item in value.items() if name != "node"})
