"""A plan: one compiled kernel on one device, ready to launch, as a function of what can change.

Everything that a launch does not change is prepared once: the driver's function, the launch
configuration with its attributes, the argument block's layout and the array of pointers into it. The
generated function packs pointers, scalars and tensor maps, sets a grid that depends on them, and calls the driver.
Configurations and argument blocks are taken from and returned to a pool per stream (list append and
pop are atomic), so threads never share one.
Not here: which plan suits a call (``dispatch``), checking arguments (``specialise``).
"""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from tilejit.dtypes import DType
from tilejit.errors import InternalError, LaunchError, TileError, fault
from tilejit.ir.nodes import Const, Expr, Function, ScalarType, TensorType, Var
from tilejit.ir.tensor_map import MAP_ALIGN_BYTES, MAP_BYTES, TensorMapSpec
from tilejit.runtime import hostexpr, torch_glue
from tilejit.runtime.driver import CONTEXT_MISSING, DriverApi, Handle, LaunchAttributes
from tilejit.runtime.tensor_maps import Encoder, variables
from tilejit.target import MAX_GRID

Grid = tuple[int, int, int]
AXES = "xyz"
_MAX_POOLED_STREAMS = 64
_SLOT_BYTES = 8


@dataclass(frozen=True, slots=True)
class LaunchParam:
    """One parameter of the compiled kernel. ``arg``: index of the Python parameter it comes from.

    ``pointer``: a tensor's address; ``scalar``: a number; ``size`` and ``stride``: of dimension
    ``dim`` of a tensor. ``name`` is the IR variable's.
    """

    name: str
    kind: Literal["pointer", "scalar", "size", "stride"]
    arg: int
    dtype: DType
    dim: int = 0


def launch_params(function: Function, parameters: Sequence[str]) -> tuple[LaunchParam, ...]:
    """Where each parameter of an IR function comes from in the Python call.

    Buffers and scalars bear the Python parameter's name. A dynamic size is the ``Var`` in the shape
    of the buffers that have it; a dynamic stride of dimension d of ``X`` is named ``X_stride{d}``.
    """
    index = {name: i for i, name in enumerate(parameters)}
    sizes: dict[str, tuple[int, int]] = {}
    for var in function.params:
        if isinstance(var.type, TensorType):
            for dim, extent in enumerate(var.type.shape):
                if isinstance(extent, Var):
                    sizes.setdefault(extent.name, (index[var.name], dim))
    return tuple(_launch_param(var, index, sizes) for var in function.params)


def _launch_param(
    var: Var, index: Mapping[str, int], sizes: Mapping[str, tuple[int, int]]
) -> LaunchParam:
    if isinstance(var.type, TensorType):
        return LaunchParam(var.name, "pointer", index[var.name], var.type.dtype)
    assert isinstance(var.type, ScalarType)
    if var.name in index:
        return LaunchParam(var.name, "scalar", index[var.name], var.type.dtype)
    if var.name in sizes:
        arg, dim = sizes[var.name]
        return LaunchParam(var.name, "size", arg, var.type.dtype, dim)
    tensor, _, dim_text = var.name.rpartition("_stride")
    if tensor in index and dim_text.isdigit():
        return LaunchParam(var.name, "stride", index[tensor], var.type.dtype, int(dim_text))
    raise fault(
        InternalError,
        "runtime/parameter",
        f"the kernel's parameter {var.name} comes from no argument ({', '.join(index)})",
        var.span,
    )


def by_name(
    launch_params: Sequence[LaunchParam], values: Sequence[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors and numbers of a call's arguments by the names that the kernel has for them."""
    tensors: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for param in launch_params:
        value = values[param.arg]
        if param.kind == "pointer":
            tensors[param.name] = value
        elif param.kind == "scalar":
            numbers[param.name] = value
        elif param.kind == "size":
            numbers[param.name] = int(value.shape[param.dim])
        else:
            numbers[param.name] = int(value.stride()[param.dim])
    return tensors, numbers


@dataclass(frozen=True, slots=True)
class PlanSpec:
    """What a plan is made of. ``grid``: one to three host expressions, or None (the caller's).
    ``grid_bound``: the largest grid the kernel was checked for. ``shaped[i]``: the values of Python
    parameter i include its shape and strides. ``tensor_maps``: the parameters behind ``params``."""

    kernel: str
    shaped: tuple[bool, ...]
    params: tuple[LaunchParam, ...]
    grid: tuple[Expr, ...] | None
    grid_bound: Grid
    fixed: LaunchAttributes
    tensor_maps: tuple[TensorMapSpec, ...] = ()


class GridExceeded(Exception):
    """The grid is legal but larger than this plan was checked for; carries the grid."""

    def __init__(self, grid: Grid):
        super().__init__(grid)
        self.grid = grid


class Forgotten(Exception):
    """The plan made room for others; the launch is prepared again."""


Run: TypeAlias = Callable[..., None]
"""A plan's function: ``run(grid, v0, [s0, t0,] v1, …)``. ``run.plan`` is the plan.

``v``: a pointer or scalar per Python parameter, ``s`` and ``t`` its shape and strides where the
annotation has dynamic dimensions. ``grid`` None: the kernel's own.
"""


# --- argument blocks

_PACK: dict[str, str] = {
    "bool": "?7x", "int8": "b7x", "int16": "h6x", "int32": "i4x", "int64": "q",
    "uint8": "B7x", "uint16": "H6x", "uint32": "I4x", "uint64": "Q",
    "float16": "e6x", "float32": "f4x", "float64": "d", "bfloat16": "H6x",
}  # fmt: skip


def pack_format(dtype: DType) -> str:
    """``struct`` code of a scalar argument in an 8-byte slot; ``LaunchError`` for storage formats."""
    try:
        return _PACK[dtype.name]
    except KeyError:
        raise fault(
            LaunchError, "launch/scalar", f"a scalar argument cannot be of the storage type {dtype}"
        ) from None


def bfloat16_bits(value: float) -> int:
    """The bfloat16 nearest to ``value`` (ties to even), as its 16 bits."""
    if value != value:
        return 0x7FFF
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    sign, magnitude = bits >> 63, bits & ((1 << 63) - 1)
    exponent = (magnitude >> 52) - 1023 + 127
    if exponent >= 255:
        return int(sign << 15 | 0x7F80)
    # Drop 45 of the double's 52 fraction bits; a subnormal result loses one more per exponent step.
    drop = 45 + (1 - exponent if exponent < 1 else 0)
    significand = (magnitude & ((1 << 52) - 1)) | (1 << 52 if magnitude >> 52 else 0)
    if drop > 54:
        return int(sign << 15)
    kept, rest, half = significand >> drop, significand & ((1 << drop) - 1), 1 << (drop - 1)
    kept += rest > half or (rest == half and kept & 1)
    low = kept if exponent < 1 else ((exponent - 1) << 7) + kept
    return int(sign << 15 | low)


def _packed_bfloat16(value: float) -> int:
    """``bfloat16_bits``; ``OverflowError``, as ``struct`` has it, for a finite value without one."""
    bits = bfloat16_bits(value)
    if bits & 0x7FFF == 0x7F80 and math.isfinite(value):
        raise OverflowError("float too large to pack as bfloat16")
    return bits


# --- grids


def normalise_grid(grid: Any) -> Grid:
    """An int, tuple or list of one to three ints as ``(x, y, z)``, checked against the hardware.

    Zero is an empty launch. ``LaunchError`` names the axis and the limit.
    """
    parts: Sequence[Any] = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not 1 <= len(parts) <= 3:
        raise fault(
            LaunchError, "launch/grid", f"a grid has 1 to 3 axes, got {len(parts)}: {grid!r}"
        )
    for axis, part in zip(AXES, parts):
        if isinstance(part, bool) or not _is_index(part):
            raise fault(
                LaunchError,
                "launch/grid",
                f"grid axis {axis} must be an integer number of CTAs, got {part!r}",
                None,
                **({"help": "count with integer division, //"} if isinstance(part, float) else {}),
            )
    x, y, z = (*(int(part.__index__()) for part in parts), 1, 1)[:3]
    check_grid((x, y, z))
    return x, y, z


def _is_index(value: Any) -> bool:
    """Whether ``value`` is one integer (an array of several has ``__index__`` too, and refuses)."""
    try:
        operator.index(value)
    except TypeError:
        return False
    return True


def check_grid(grid: Grid) -> None:
    for axis, extent, limit in zip(AXES, grid, MAX_GRID):
        if not 0 <= extent <= limit:
            raise fault(
                LaunchError,
                "launch/grid",
                f"grid axis {axis} is {extent} CTAs, expected 0 to {limit}",
                where=f"grid {grid}",
            )


def evaluate_grid(exprs: tuple[Expr, ...], names: Mapping[str, Any]) -> Grid:
    """The grid for given values of sizes and scalars (checked as ``normalise_grid``)."""
    keys = tuple(names)
    values = tuple(names[k] for k in keys)
    return normalise_grid(tuple(hostexpr.compile_function(e, keys)(*values) for e in exprs))


def static_grid(spec: PlanSpec) -> Grid | None:
    """The grid when no size or scalar enters it."""
    if spec.grid is None or not all(isinstance(e, Const) for e in spec.grid):
        return None
    return normalise_grid(tuple(e.value for e in spec.grid if isinstance(e, Const)))


# --- the generated function


@dataclass(frozen=True, slots=True)
class Plan:
    """A loaded kernel. ``run`` launches it (see ``Run``)."""

    spec: PlanSpec
    function: Handle
    driver: DriverApi
    device: int
    stream_of: Callable[[int], int]
    device_of: Callable[[], int] | None
    run: Run


def build(
    spec: PlanSpec,
    function: Handle,
    driver: DriverApi,
    device: int,
    stream_of: Callable[[int], int],
    device_of: Callable[[], int] | None,
) -> Plan:
    """The plan of a loaded kernel on ``device``.

    ``stream_of(device)`` gives the raw stream; ``device_of()`` the current device, None where there
    is only one device.
    """
    own = static_grid(spec)
    frames = _Frames(spec, own or (1, 1, 1), driver)
    namespace: dict[str, Any] = {
        **hostexpr.NAMESPACE,
        "_pools": frames.pools,
        "_frame": frames.make,
        "_pack": frames.packer.pack_into,
        "_launch": driver.launch,
        "_function": function,
        "_stream": stream_of,
        "_device": device_of,
        "_failed": _failure(spec, driver, function, device),
        "_elsewhere": _elsewhere(device),
        "_exceeded": _exceeded,
        "_no_grid": _no_grid(spec.kernel),
        "_bf16": _packed_bfloat16,
    }
    for number, map_ in enumerate(spec.tensor_maps):
        encoder = Encoder(spec.kernel, map_, driver, device)
        namespace[f"_encode{number}"], namespace[f"_images{number}"] = encoder, encoder.images
    source = _source(spec, device, own, has_other_devices=device_of is not None)
    exec(compile(source, f"<tilejit launch of {spec.kernel}>", "exec"), namespace)
    run = namespace["run"]
    plan = run.plan = Plan(spec, function, driver, device, stream_of, device_of, run)
    return plan


def bind(plan: Plan, grid: Grid | None, values: Sequence[Any], keep: Any) -> Callable[[], None]:
    """A launcher without arguments: ``values`` (as for ``Run``) are packed once and for all.

    ``keep`` is held as long as the launcher lives: the tensors whose addresses were packed. The
    stream is torch's current one at each launch. ``grid`` is within the plan's bound.
    """
    spec, driver = plan.spec, plan.driver
    names = [f"v{i}" for i in range(len(spec.shaped))]
    slots: dict[str, Any] = {}
    position = 0
    for name, wide in zip(names, spec.shaped):
        slots[name] = values[position]
        if wide:
            index = name[1:]
            slots[f"s{index}"], slots[f"t{index}"] = values[position + 1 : position + 3]
        position += 3 if wide else 1
    packed = [eval(_packed(p), {"_bf16": _packed_bfloat16}, slots) for p in spec.params]
    if spec.grid is not None:
        sources = {p.name: eval(_read(p), {}, slots) for p in spec.params if p.kind != "pointer"}
        grid = evaluate_grid(spec.grid, sources)
    if grid is None:
        _no_grid(spec.kernel)()
    assert grid is not None
    if not all(grid):
        return _nothing
    frames = _Frames(spec, grid, driver)
    _, frame = frames.make(0)
    if packed:
        frames.packer.pack_into(frame[1], frames.slots_at, *packed)
    for number, map_ in enumerate(spec.tensor_maps):
        inputs = [eval(text, {}, slots) for text in _map_inputs(spec, map_)]
        image = Encoder(spec.kernel, map_, driver, plan.device)(*inputs)
        frame[1][number * MAP_BYTES : (number + 1) * MAP_BYTES] = image
    return _bound(plan, grid, frame, keep)


def _bound(plan: Plan, grid: Grid, frame: tuple[Any, ...], keep: Any) -> Callable[[], None]:
    call, function, device, stream_of = (
        plan.driver.launch,
        plan.function,
        plan.device,
        plan.stream_of,
    )
    configs: dict[int, Any] = {}
    address = frame[2]
    held = (frame, keep)  # the argument block and the tensors it points to
    failed = _failure(plan.spec, plan.driver, function, device)
    device_of = plan.device_of

    def launch() -> None:
        if device_of is not None and device_of() != device:
            with torch_glue.on_device(device):
                return go()
        return go()

    def go() -> None:
        stream = stream_of(device)
        try:
            config = configs[stream]
        except KeyError:
            if len(configs) >= _MAX_POOLED_STREAMS:
                configs.clear()
            config = configs[stream] = plan.driver.config(grid, stream, plan.spec.fixed)
        result = call(config, function, address, 0)[0]
        if result:
            failed(result, (config, *held[0][1:]))

    return go if device_of is None else launch


def _nothing() -> None:
    """The launch of an empty grid."""


class _Frames:
    """Launch configurations and argument blocks: ``(config, block, pointers' address, pointers)``.

    A block holds the tensor maps, then a slot per parameter."""

    def __init__(self, spec: PlanSpec, grid: Grid, driver: DriverApi):
        self.pools: dict[int, list[tuple[Any, ...]]] = {}
        self._spec, self._grid, self._driver = spec, grid, driver
        self.slots_at = len(spec.tensor_maps) * MAP_BYTES
        self.packer = struct.Struct(
            "<" + "".join("Q" if p.kind == "pointer" else pack_format(p.dtype) for p in spec.params)
        )

    def make(self, stream: int) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
        """The stream's pool, and a fresh frame that is not in it."""
        if len(self.pools) >= _MAX_POOLED_STREAMS and stream not in self.pools:
            self.pools.clear()
        pool = self.pools.setdefault(stream, [])
        count, maps = len(self._spec.params), len(self._spec.tensor_maps)
        nbytes = self.slots_at + max(1, count) * _SLOT_BYTES
        room = ctypes.create_string_buffer(nbytes + MAP_ALIGN_BYTES)
        skipped = -ctypes.addressof(room) % MAP_ALIGN_BYTES
        base = ctypes.addressof(room) + skipped
        places = [base + self.slots_at + i * _SLOT_BYTES for i in range(count)]
        places += [base + i * MAP_BYTES for i in range(maps)]
        pointers = (ctypes.c_void_p * max(1, len(places)))(*places)
        config = self._driver.config(self._grid, stream, self._spec.fixed)
        block = memoryview(room).cast("B")[skipped : skipped + nbytes]
        return pool, (config, block, ctypes.addressof(pointers), pointers)


def _source(spec: PlanSpec, device: int, own: Grid | None, has_other_devices: bool) -> str:
    values = []
    for i, wide in enumerate(spec.shaped):
        values += [f"v{i}", f"s{i}", f"t{i}"] if wide else [f"v{i}"]
    names = {p.name: _read(p) for p in spec.params}
    arguments = ", ".join(_packed(p) for p in spec.params)
    lines = [f"def run({', '.join(['grid', *values])}):"]
    if has_other_devices:
        passed = ", ".join(["grid", *values])
        lines += [f"    if _device() != {device}: return _elsewhere(run, {passed})"]
    lines += _grid_lines(spec, names, own)
    lines += _map_lines(spec)
    lines += [
        f"    stream = _stream({device})",
        "    try: frame = (pool := _pools[stream]).pop()",
        "    except (KeyError, IndexError): pool, frame = _frame(stream)",
    ]
    slots_at = len(spec.tensor_maps) * MAP_BYTES
    lines += [f"    _pack(frame[1], {slots_at}, {arguments})"] if spec.params else []
    lines += [
        f"    frame[1][{n * MAP_BYTES}:{(n + 1) * MAP_BYTES}] = image{n}"
        for n in range(len(spec.tensor_maps))
    ]
    if own is None or spec.grid is None:
        lines += [
            "    config = frame[0]",
            "    config.gridDimX = gx",
            "    config.gridDimY = gy",
            "    config.gridDimZ = gz",
            "    result = _launch(config, _function, frame[2], 0)[0]",
        ]
    else:
        lines += ["    result = _launch(frame[0], _function, frame[2], 0)[0]"]
    lines += ["    if result: _failed(result, frame)", "    pool.append(frame)"]
    return "\n".join(lines) + "\n"


def _map_lines(spec: PlanSpec) -> list[str]:
    """Looks up each tensor map by the pointer and the numbers that it depends on."""
    lines: list[str] = []
    for number, map_ in enumerate(spec.tensor_maps):
        inputs = ", ".join(_map_inputs(spec, map_))
        lines += [
            f"    try: image{number} = _images{number}[({inputs},)]",
            f"    except KeyError: image{number} = _encode{number}({inputs})",
        ]
    return lines


def _map_inputs(spec: PlanSpec, map_: TensorMapSpec) -> list[str]:
    """The source of an ``Encoder``'s arguments."""
    by_name = {p.name: p for p in spec.params}
    return [_read(by_name[name]) for name in (map_.buffer, *variables(map_))]


def _grid_lines(spec: PlanSpec, names: Mapping[str, str], own: Grid | None) -> list[str]:
    bound = spec.grid_bound
    check = f"if not (0 < gx <= {bound[0]} and 0 < gy <= {bound[1]} and 0 < gz <= {bound[2]}):"
    lines: list[str]
    if spec.grid is None:
        lines = ["    if grid is None: _no_grid()", "    gx, gy, gz = grid"]
    elif own is not None:
        return [] if all(own) else ["    return"]
    else:
        parts = [hostexpr.python_source(e, names) for e in spec.grid] + ["1", "1"]
        lines = [f"    g{a} = {p}" for a, p in zip(AXES, parts)]
    return [*lines, f"    {check}", "        return _exceeded(gx, gy, gz)"]


def _read(param: LaunchParam) -> str:
    place = {"size": f"s{param.arg}[{param.dim}]", "stride": f"t{param.arg}[{param.dim}]"}
    return place.get(param.kind, f"v{param.arg}")


def _packed(param: LaunchParam) -> str:
    return (
        f"_bf16({_read(param)})"
        if param.dtype.name == "bfloat16" and param.kind == "scalar"
        else _read(param)
    )


# --- the rare ways out of it


def _exceeded(x: int, y: int, z: int) -> None:
    """Empty grids do nothing, illegal ones are refused, large ones need another plan."""
    grid = normalise_grid((x, y, z))
    if all(grid):
        raise GridExceeded(grid)


def _no_grid(kernel: str) -> Callable[[], None]:
    def refuse() -> None:
        raise fault(
            LaunchError,
            "launch/no-grid",
            f"{kernel} does not say its grid: launch it as {kernel}[grid](...)",
        )

    return refuse


def _elsewhere(device: int) -> Callable[..., None]:
    def switch(run: Callable[..., None], *arguments: Any) -> None:
        with torch_glue.on_device(device):
            run(*arguments)

    return switch


def _failure(
    spec: PlanSpec, driver: DriverApi, function: Handle, device: int
) -> Callable[[int, tuple[Any, ...]], None]:
    """Raises the driver's error, after one more attempt where this thread had no context yet."""

    def failed(result: int, frame: tuple[Any, ...]) -> None:
        code = int(result)
        if code in CONTEXT_MISSING:
            driver.make_context_current(device)
            code = int(driver.launch(frame[0], function, frame[2], 0)[0])
            if not code:
                return
        raise launch_error(spec, driver, code, frame[0])

    return failed


def launch_error(spec: PlanSpec, driver: DriverApi, code: int, config: Any) -> TileError:
    """``LaunchError`` with the driver's error name and the launch's numbers."""
    grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
    cluster = "" if spec.fixed.cluster is None else f", cluster {spec.fixed.cluster}"
    error = driver.failure(code, f"launching {spec.kernel}")
    first = error.diagnostics[0]
    uneven = [
        f"grid axis {axis} is {extent} CTAs, not a multiple of the cluster's {size}"
        for axis, extent, size in zip(AXES, grid, spec.fixed.cluster or (1, 1, 1))
        if extent % size
    ]
    notes = {"help": "; ".join(uneven)} if uneven else {}
    return fault(
        LaunchError,
        first.code,
        first.message,
        None,
        where=f"grid {grid}, block {spec.fixed.block}{cluster}, "
        f"{spec.fixed.dynamic_shared_bytes} bytes of dynamic shared memory",
        **notes,
    )
