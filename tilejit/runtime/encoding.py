"""An injective byte encoding of values: what cache keys are made of.

Two values encode alike only if they are the same kind of value with the same contents, whatever the
process, the hash seed, the insertion order of a dict or set, or the address of an object. Values of
unknown classes encode as their class alone (``opaque``); keys hold the typed IR as well, so what such
a value did to the program is in the key even where the value itself is not.
Not here: what goes into a key (``pipeline``), where entries live (``cache``).
"""

from __future__ import annotations

import enum
import hashlib
import struct
import types
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

_MAX_DEPTH = 64


def encode(value: Any, depth: int = 0) -> bytes:
    """Typed, length-prefixed bytes; ``ValueError`` for structures nested too deep or cyclic."""
    if depth > _MAX_DEPTH:
        raise ValueError("value nested too deep (or cyclic) for a cache key")
    if value is None or value is Ellipsis or isinstance(value, bool):
        return _tagged("atom", repr(value).encode())
    if isinstance(value, enum.Enum):
        return _tagged("enum", _join((_class_name(type(value)).encode(), value.name.encode())))
    if isinstance(value, int):
        return _tagged("int", _join((_subclass(value, int), str(int(value)).encode())))
    if isinstance(value, float):
        return _tagged("float", _join((_subclass(value, float), struct.pack("<d", value))))
    if isinstance(value, complex):
        return _tagged("complex", struct.pack("<dd", value.real, value.imag))
    if isinstance(value, str):
        return _tagged(
            "str", _join((_subclass(value, str), value.encode("utf-8", "surrogatepass")))
        )
    if isinstance(value, bytes | bytearray):
        return _tagged("bytes", bytes(value))
    return _compound(value, depth + 1)


def _compound(value: Any, depth: int) -> bytes:
    name = _class_name(type(value)).encode()
    if isinstance(value, tuple | list):
        return _tagged("sequence", _join((name, *(encode(v, depth) for v in value))))
    if isinstance(value, set | frozenset):
        return _tagged("set", _join((name, *sorted(encode(v, depth) for v in value))))
    if isinstance(value, dict):
        pairs = sorted(_join((encode(k, depth), encode(v, depth))) for k, v in value.items())
        return _tagged("dict", _join((name, *pairs)))
    if isinstance(value, types.ModuleType):
        return _tagged("module", value.__name__.encode())
    if isinstance(value, type):
        return _tagged("class", _class_name(value).encode())
    if isinstance(value, types.FunctionType):
        return _tagged("function", _function(value, depth))
    if is_dataclass(value):
        state = (
            _join((f.name.encode(), encode(getattr(value, f.name), depth))) for f in fields(value)
        )
        return _tagged("dataclass", _join((name, *state)))
    if type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        return _numpy(value, name)
    return _tagged("opaque", name)


def _function(function: types.FunctionType, depth: int) -> bytes:
    """Code and defaults; line numbers and file names stay out."""
    return _join(
        (
            _class_name(function).encode(),
            _code(function.__code__),
            encode(function.__defaults__, depth),
        )
    )


def _code(code: types.CodeType) -> bytes:
    consts = (_code(c) if isinstance(c, types.CodeType) else encode(c) for c in code.co_consts)
    names = " ".join((*code.co_names, "|", *code.co_varnames, "|", *code.co_freevars)).encode()
    return _join((code.co_code, names, *consts))


def _numpy(value: Any, name: bytes) -> bytes:
    if value.dtype.hasobject:
        return _tagged("opaque", name)
    return _tagged(
        "numpy",
        _join((name, value.dtype.str.encode(), repr(value.shape).encode(), value.tobytes())),
    )


def _class_name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _subclass(value: Any, base: type) -> bytes:
    return b"" if type(value) is base else _class_name(type(value)).encode()


def _tagged(tag: str, body: bytes) -> bytes:
    return b"%s:%d:%s" % (tag.encode(), len(body), body)


def _join(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%s" % (len(p), p) for p in parts)


def digest(*parts: Any) -> str:
    """SHA-256, in hex, of the encoding of ``parts``."""
    return hashlib.sha256(encode(tuple(parts))).hexdigest()
