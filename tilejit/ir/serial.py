"""The IR as JSON: every node is ``{"node": class, field: value…}``; spans are left out.

``from_json(to_json(f)) == f``. Floats that JSON lacks are spelled ``{"float": "nan"}``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from tilejit import dtypes, layout
from tilejit.dtypes import DType
from tilejit.ir import nodes
from tilejit.ir.walk import NODE_TYPES

_CLASSES: dict[str, type] = {kind.__name__: kind for kind in NODE_TYPES}


def to_json(function: nodes.Function) -> str:
    return json.dumps(_encode(function), separators=(",", ":"))


def from_json(text: str) -> nodes.Function:
    """The function; ``ValueError`` for text that is not one."""
    result = _decode(json.loads(text))
    if not isinstance(result, nodes.Function):
        raise ValueError("the JSON text does not hold a function")
    return result


def _encode(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, layout.TileLayout | layout.ComposeLayout):
        return {"layout": layout.render(value)}
    if isinstance(value, NODE_TYPES):
        fields = {
            f.name: _encode(getattr(value, f.name))
            for f in dataclasses.fields(value)
            if f.init and f.name != "span"
        }
        return {"node": type(value).__name__, **fields}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "node" not in value:
        (kind_of, text), = value.items()
        return {"float": float, "dtype": dtypes.dtype, "layout": layout.parse}[kind_of](text)
    try:
        kind = _CLASSES[value["node"]]
    except KeyError:
        raise ValueError(f"no IR node is called {value.get('node')!r}") from None
    return kind(**{name: _decode(item) for name, item in value.items() if name != "node"})
