"""The C launcher (``_launcher.c``): whether there is one, and what it is told about kernels and plans.

``wrap`` puts a ``Launcher`` in front of a generated function. The launcher calls ``resolve`` after a
launch that Python made, and from then on makes such launches itself. The extension is optional, and so
are the DLPack exchange API of torch and the driver's C entry: without one of them the generated
function serves every call, with the same results.
Not here: the generated function (``dispatch``), the plan (``plan``), matching arguments (C).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tilejit.runtime import hostexpr
from tilejit.runtime.driver import CudaDriver, Handle, LaunchAttributes
from tilejit.runtime.plan import AXES, Grid, Plan, launch_error, static_grid
from tilejit.runtime.specialise import (
    DEFAULT_ALIGN_BYTES,
    Param,
    dynamic_dims,
    scalar_dtype,
)
from tilejit.runtime.tensor_maps import needs_repair, program
from tilejit.runtime.watch import Watched

TYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "bfloat16",
)  # fmt: skip
"""Scalar types in the order of the C enumeration."""

VERSION = 3
"""Raised with every change of what passes between this module and the C source; both hold it."""

SOURCES = ("pointer", "scalar", "size", "stride")
MAX_ARGS = 64
MAX_SLOTS = 256
MAX_MAPS = 16
_MAX_RANK = 31
_CONFIG_BYTES = 56


def _load() -> tuple[Any, str]:
    if os.environ.get("TILEJIT_LAUNCHER") == "python":
        return None, "TILEJIT_LAUNCHER=python"
    try:
        module = importlib.import_module("tilejit.runtime._launcher")
    except ImportError as error:
        return None, f"not built: {error}"
    if module.VERSION != VERSION:
        return None, "built from other sources; install tilejit again"
    return module, ""


_module, _why_not = _load()

LAUNCHER = "python" if _module is None else "c"
"""Which launcher this process has: ``c``, or ``python`` (``which()`` says why)."""


def which() -> str:
    """``c``, or ``python: `` and the reason. Imports torch."""
    if _module is None:
        return f"python: {_why_not}"
    return "c" if exchange() else "python: this torch has no DLPack exchange API"


# --- torch and the driver, as addresses


class Exchange(NamedTuple):
    """How tensors are read: two exact classes, and C functions of torch's DLPack exchange API."""

    tensor_classes: tuple[type, type]
    read_tensor: int
    read_stream: int


@lru_cache(maxsize=1)
def exchange() -> Exchange | None:
    """torch's; None where it has none (before 2.10) or one of another major version."""
    import torch

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = pointer_of(capsule, b"dlpack_exchange_api")
    except (ValueError, TypeError):
        return None
    # struct DLPackExchangeAPI: major, minor; previous version; five functions
    major, _, *pointers = struct.unpack("<II6Q", ctypes.string_at(address, 56))
    if major != 1 or not pointers[4] or not pointers[5]:
        return None
    return Exchange((torch.Tensor, torch.nn.Parameter), pointers[4], pointers[5])


class Native(NamedTuple):
    """A launch in C terms. ``config``: the bytes of a CUlaunchConfig, which point into ``keep``.
    ``launch`` and ``encode``: addresses of cuLaunchKernelEx and cuTensorMapEncodeTiled."""

    config: bytes
    function: int
    launch: int
    encode: int
    keep: Any


def cuda_native(
    driver: CudaDriver, function: Handle, grid: Grid, fixed: LaunchAttributes
) -> Native | None:
    """What the CUDA driver is given; None where its C entry cannot be had."""
    if os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0") != "0":
        return None  # the bindings then launch by another entry
    try:
        library = ctypes.CDLL("libcuda.so.1")
        entries = library.cuLaunchKernelEx, library.cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None
    launch, encode = (ctypes.cast(entry, ctypes.c_void_p).value for entry in entries)
    config = driver.config(grid, 0, fixed)
    if launch is None or encode is None or not hasattr(config, "getPtr"):
        return None
    return Native(config_bytes(config), int(function), launch, encode, config)


def config_bytes(config: Any) -> bytes:
    return ctypes.string_at(int(config.getPtr()), _CONFIG_BYTES)


def _native(plan: Plan, grid: Grid) -> Native | None:
    own = getattr(plan.driver, "native", None)  # a test's
    if own is not None:
        made: Native = own(plan.function, grid, plan.spec.fixed)
        return made
    if isinstance(plan.driver, CudaDriver):
        return cuda_native(plan.driver, plan.function, grid, plan.spec.fixed)
    return None


# --- facts of a plan


def facts(plan: Plan) -> tuple[Any, ...] | None:
    """A plan as ``record_complete`` in C takes it; None for what only Python launches."""
    spec = plan.spec
    own = static_grid(spec)
    if len(spec.params) > MAX_SLOTS or (own is not None and not all(own)):
        return None
    slots = bytearray()
    for p in spec.params:
        type_ = 0 if p.kind == "pointer" else TYPES.index(p.dtype.name)
        slots += bytes((SOURCES.index(p.kind), p.arg, p.dim, type_))
    inputs, grid = b"", None
    if spec.grid is not None and own is None:
        positions = [i for i, p in enumerate(spec.params) if p.kind != "pointer"]
        names = [spec.params[i].name for i in positions]
        if len(names) > MAX_ARGS:
            return None
        inputs, grid = bytes(positions), _grid_function(spec.grid, names)
    maps = _maps(plan)
    native = _native(plan, own or (1, 1, 1)) if maps is not None else None
    if native is None:
        return None

    def failed(result: int, *launched: int) -> None:
        config = plan.driver.config((launched[0], launched[1], launched[2]), 0, spec.fixed)
        raise launch_error(spec, plan.driver, result, config)

    return (
        native.config, native.function, native.launch, plan.device, spec.grid is None, grid, inputs,
        spec.grid_bound, bytes(slots), native.encode, maps, plan.device_of, failed,
        (native.keep, plan),
    )  # fmt: skip


def _maps(plan: Plan) -> tuple[bytes, ...] | None:
    """The programs of a plan's tensor maps; None where C cannot compute one."""
    spec = plan.spec
    if spec.tensor_maps and needs_repair(plan.driver, plan.device):
        return None
    index = {p.name: i for i, p in enumerate(spec.params)}
    programs = [program(map_, index) for map_ in spec.tensor_maps]
    found = tuple(p for p in programs if p is not None)
    return found if len(found) == len(programs) <= MAX_MAPS else None


def _grid_function(exprs: Sequence[Any], names: Sequence[str]) -> Callable[..., Grid]:
    values = [f"v{i}" for i in range(len(names))]
    parts = [hostexpr.python_source(e, dict(zip(names, values))) for e in exprs]
    body = ", ".join([*parts, "1", "1"][: len(AXES)])
    made: Callable[..., Grid] = eval(
        f"lambda {', '.join(values)}: ({body})", {**hostexpr.NAMESPACE}
    )
    return made


# --- the launcher of a kernel


def wrap(
    python: Callable[..., Any],
    resolve: Callable[..., Plan | None],
    params: Sequence[Param],
    watched: Sequence[Watched],
    table: dict[Any, Any] | None,
) -> Callable[..., Any]:
    """``python`` behind a launcher; ``python`` itself where there is none.

    ``resolve(entry, *arguments)`` names the plan of a call that Python has launched. ``table``: that
    of the kernel, or None for ``k[grid]``, whose table and grid are its own.
    """
    found = exchange() if _module is not None else None
    if found is None or len(params) > MAX_ARGS:
        return python
    ranks = [getattr(p.annotation, "shape", None) or () for p in params]
    if any(isinstance(shape, tuple) and len(shape) > _MAX_RANK for shape in ranks):
        return python

    def facts_of(entry: Any, *arguments: Any) -> tuple[Any, ...] | None:
        plan = resolve(entry, *arguments)
        return None if plan is None else facts(plan)

    launcher: Callable[..., Any] = _module.Launcher(
        python, facts_of, table, tuple(_row(p) for p in params),
        tuple((w.place.container, w.place.name, w.value) for w in watched),
        equal_sizes(params), found.tensor_classes, found.read_tensor, found.read_stream,
    )  # fmt: skip
    return launcher


def _row(p: Param) -> tuple[Any, ...]:
    align = max(getattr(p.annotation, "align_bytes", None) or 0, DEFAULT_ALIGN_BYTES)
    dynamic = sum(1 << d for d in dynamic_dims(p.annotation)) if p.kind == "tensor" else 0
    open_ = p.kind != "tensor" and scalar_dtype(p.annotation) is None
    constant = p.kind == "constexpr"
    return (p.name, constant, open_, align - 1, dynamic, p.has_default, p.default)


def equal_sizes(params: Sequence[Param]) -> bytes:
    """Pairs of dimensions with one name of which one varies, as (argument, dimension) twice."""
    places: dict[str, list[tuple[int, int, bool]]] = {}
    for i, p in enumerate(params):
        if p.kind != "tensor":
            continue
        dynamic = dynamic_dims(p.annotation)
        for d, dim in enumerate(getattr(p.annotation, "shape", None) or ()):
            if not isinstance(dim, int):
                name = dim if isinstance(dim, str) else dim.name
                places.setdefault(name, []).append((i, d, d in dynamic))
    pairs = bytearray()
    for same in places.values():
        if any(varies for *_, varies in same):
            for k, (i, d, _) in enumerate(same):
                for j, e, _ in same[:k]:
                    pairs += bytes((i, d, j, e))
    return bytes(pairs)
