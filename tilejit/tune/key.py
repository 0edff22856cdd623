"""What a tuning result depends on, spelled out: the key under which it is remembered and stored.

Equal keys mean that the same measurement would be made: the kernel with everything it reaches, its configs,
dtypes, shapes, strides and alignments of the arguments by name, the device, the versions. Dynamic sizes
count by the power of two that holds them, or as ``bucket`` says; those named in ``key`` count exactly, and so
do run-time numbers, which do not count otherwise.
Not here: where results are kept (``store``), the cheap key of a launch (``front``).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilejit import ConstArg, ScalarArg, Signature, TensorArg
from tilejit.errors import TuneError, fault
from tilejit.runtime import cache, nvrtc, torch_glue
from tilejit.runtime import driver as drivers
from tilejit.runtime.dispatch import typed
from tilejit.runtime.encoding import digest, encode
from tilejit.runtime.jit import JitFunction
from tilejit.runtime.specialise import Param, alignment_class
from tilejit.runtime.watch import Watched, watch
from tilejit.tune.config import Config, suggestion

Bucket = Callable[[str, int], Any]
_STRIDE_CLASS_BYTES = 16
"""Strides that vary are told apart up to this alignment: that of the widest access."""
_ATOMS = (bool, int, float, str, bytes, type(None))


@dataclass(frozen=True, slots=True)
class Key:
    """``facts``: what the key consists of, as JSON, for people. ``digest``: over exact values of the same."""

    kernel: str
    facts: Mapping[str, Any]
    digest: str

    @property
    def device(self) -> str:
        return str(self.facts["device"]["name"])


# --- the device and the versions


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What of a device decides which config is fastest."""

    name: str
    sm_count: int
    driver: str


NO_DEVICE = DeviceFacts("no GPU", 0, "none")


def device_facts(device: int) -> DeviceFacts:
    """Of CUDA device ``device``; ``NO_DEVICE`` for the CPU."""
    if device == torch_glue.CPU:
        return NO_DEVICE
    driver: Any = drivers.current()
    return _device_facts(driver, device)


@lru_cache(maxsize=64)
def _device_facts(driver: Any, device: int) -> DeviceFacts:
    limits = driver.limits(device)
    return DeviceFacts(limits.name, limits.sm_count, _driver_version())


def _driver_version() -> str:
    """The kernel driver's, such as 580.95.05; "unknown" where the system does not say."""
    try:
        words = Path("/proc/driver/nvidia/version").read_text().split()
    except OSError:
        return "unknown"
    return next((w for w in words if w[0].isdigit() and w.count(".") >= 1), "unknown")


# --- what a kernel is


def code_of(kernel: JitFunction, constants: Iterable[Any]) -> str:
    """A digest of the kernel's source and of everything that it, its helpers and the functions among
    ``constants`` may read at compile time, whichever config needs it."""
    function = kernel.__wrapped__
    bring = [c for c in constants if not isinstance(c, _ATOMS)]
    places = watch(function, *bring) if isinstance(function, types.FunctionType) else []
    read = sorted((w.place.label, _fingerprint(w)) for w in places)
    return digest(kernel.__name__, kernel.__tilejit_kernel__.text, read)


def _fingerprint(watched: Watched) -> bytes:
    owner, value = watched.place.owner, watched.value
    if isinstance(owner, types.FunctionType):
        value = owner
    source = getattr(value, "__tilejit_kernel__", None)
    if source is not None:
        return encode((source.name, source.text))
    try:
        return encode(value)
    except ValueError:  # too deep: by its class
        return encode(type(value))


def function_digest(function: Any) -> str:
    """Of a user's function by its source where that can be read, else by its code."""
    if function is None:
        return ""
    try:
        return digest(inspect.getsource(function))
    except (OSError, TypeError):
        return digest(function)


def config_digest(config: Config) -> str:
    """The same in every process for equal configs."""
    return digest(dict(config.values))


# --- names that a user gives


def check_names(kernel: JitFunction, key: Sequence[str], tuned: Collection[str]) -> None:
    """``TuneError`` for what cannot be a key: unknown names, tuned parameters, tensors."""
    params = {p.name: p for p in kernel.params}
    dims = {n for p in kernel.params for n in _dim_names(p)}
    for name in key:
        param = params.get(name)
        if param is None and name not in dims:
            known = (*(p.name for p in kernel.params if p.kind != "tensor"), *sorted(dims))
            raise _bad_key(
                kernel,
                f"{name!r} in `key` is neither a parameter nor a dimension",
                suggestion(name, known) or f"there are {', '.join(known) or 'none'}",
            )
        if name in tuned:
            raise _bad_key(
                kernel, f"{name!r} in `key` is itself tuned", "leave it out: a key is what is given"
            )
        if param is not None and param.kind == "tensor":
            raise _tensor_key(kernel, name, param)


def _bad_key(kernel: JitFunction, message: str, help: str) -> Exception:
    return fault(TuneError, "tune/key", f"{kernel.__name__}: {message}", help=help)


def _tensor_key(kernel: JitFunction, name: str, param: Param) -> Exception:
    dims = _dim_names(param)
    return _bad_key(
        kernel,
        f"{name!r} in `key` is a tensor; its contents cannot be looked at for each call",
        "its dtype, shape, strides and alignment are in every key"
        + (
            f"; name the dimension to have a dynamic size exactly: {', '.join(dims)}"
            if dims
            else ""
        ),
    )


def _dim_names(param: Param) -> list[str]:
    """The named dimensions of a parameter."""
    shape = getattr(param.annotation, "shape", None) if param.kind == "tensor" else None
    return [d if isinstance(d, str) else d.name for d in shape or () if not isinstance(d, int)]


# --- arguments


@dataclass(frozen=True, slots=True)
class Naming:
    """How arguments count: see ``check_names``. ``computed``: parameters that the tuning gives."""

    key: tuple[str, ...] = ()
    bucket: Bucket | None = None
    computed: frozenset[str] = frozenset()


def argument_facts(
    kernel: JitFunction, signature: Signature, values: Mapping[str, Any], naming: Naming
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Each argument by name, exactly and as text."""
    exact: dict[str, Any] = {}
    shown: dict[str, Any] = {}
    params = {p.name: p for p in kernel.params}
    for name, arg in signature.args:
        if name in naming.computed:
            continue
        if isinstance(arg, TensorArg):
            if name in naming.key:
                raise _tensor_key(kernel, name, params[name])
            exact[name], shown[name] = _tensor(params[name], arg, values[name], naming)
        elif isinstance(arg, ScalarArg):
            value = values[name] if name in naming.key else None
            exact[name] = (arg.dtype.name, value)
            shown[name] = arg.dtype.name if name not in naming.key else f"{arg.dtype} {value!r}"
        else:
            assert isinstance(arg, ConstArg)
            exact[name], shown[name] = ("constant", arg.value), _text(arg.value)
    return exact, shown


def _tensor(param: Param, arg: TensorArg, value: Any, naming: Naming) -> tuple[Any, str]:
    sizes = tuple(
        n if n is not None else _size(param, d, value, naming) for d, n in enumerate(arg.shape)
    )
    strides = tuple(
        s if s is not None else _stride_class(value, d, arg) for d, s in enumerate(arg.strides)
    )
    text = (
        f"{arg.dtype} ({', '.join(map(_part, sizes))}), strides ({', '.join(map(_part, strides))}), "
        f"aligned to {arg.align_bytes} bytes"
    )
    return (arg.dtype.name, sizes, strides, arg.align_bytes), text


def _part(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _size(param: Param, d: int, value: Any, naming: Naming) -> tuple[str, Any]:
    """A dynamic size as it counts."""
    name: str = param.annotation.shape[d].name
    size = value.shape[d]
    if size is None:
        return name, "unknown"
    if name in naming.key:
        return f"{name} =", int(size)
    if naming.bucket is not None:
        return f"{name} in bucket", naming.bucket(name, int(size))
    return f"{name} <=", power_of_two(int(size))


def power_of_two(size: int) -> int:
    """The least power of two that is at least ``size``; 0 for 0."""
    return 1 << (size - 1).bit_length() if size else 0


def _stride_class(value: Any, d: int, arg: TensorArg) -> tuple[str, int]:
    strides = value.stride() if callable(getattr(value, "stride", None)) else value.strides
    if strides[d] is None:
        return "unknown", 0
    step_bytes = int(strides[d]) * max(arg.dtype.bits // 8, 1)
    return "multiple of bytes", alignment_class(step_bytes, _STRIDE_CLASS_BYTES)


def _text(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."


# --- the whole


def make(
    kernel: JitFunction,
    code: str,
    arguments: tuple[dict[str, Any], dict[str, Any]],
    configs: Sequence[Config],
    target: str,
    device: DeviceFacts,
    more: Mapping[str, Any],
) -> Key:
    """``more``: further parts as JSON: the grid, the user's functions, what heuristics gave."""
    exact, shown = arguments
    space = list(map(config_digest, configs))  # in order: reports and ranks count positions
    facts: dict[str, Any] = {
        "code": code[:16],
        "arguments": shown,
        "configs": {"count": len(configs), "digest": digest(space)[:16]},
        **more,
        "device": {
            "name": device.name,
            "sm_count": device.sm_count,
            "target": target,
            "driver": device.driver,
        },
        "versions": {
            "nvrtc": ".".join(map(str, nvrtc.version())),
            "tilejit": cache.package_digest()[:16],
        },
    }
    name = f"{kernel.__module__}.{kernel.__qualname__}"
    known = {n: v for n, v in facts.items() if n != "arguments"}
    return Key(kernel.__name__, {"kernel": name, **facts}, digest(name, code, space, exact, known))


def identity_key(constants: Iterable[Any]) -> Any:
    """What tells sets of constants apart in memory: for remembering ``code_of``."""
    return tuple(typed(c) for c in constants if not isinstance(c, _ATOMS))
