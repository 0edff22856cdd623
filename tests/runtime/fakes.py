"""Stand-ins for the parts around the runtime: parsed kernels, compilation steps, a driver that
records, and tensors that say they are on a GPU. They follow the same protocols as the real ones.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from tilejit import dtypes
from tilejit.errors import LaunchError, Span, fault
from tilejit.ir import nodes as ir
from tilejit.ir.signature import ConstArg, ScalarArg, Signature, TensorArg
from tilejit.ir.tensor_map import TensorMap, TensorMapSpec
from tilejit.language.annotations import Tensor, constexpr
from tilejit.runtime import driver, torch_glue
from tilejit.runtime.artifact import Artifact
from tilejit.runtime.driver import DeviceLimits, FunctionAttributes, LaunchAttributes
from tilejit.runtime.elf import Resources
from tilejit.runtime.jit import JitFunction
from tilejit.runtime.variant import Lowered


def resources(registers: int = 32, static_shared_bytes: int = 0) -> Resources:
    return Resources(registers, 0, 0, 0, static_shared_bytes, 1024, 0, 1024)


@dataclass(frozen=True)
class ParamSpec:
    name: str
    kind: str
    annotation: Any
    default: Any
    has_default: bool
    span: Span = Span("fake.py", 1)


@dataclass(frozen=True)
class Kernel:
    name: str
    params: tuple[ParamSpec, ...]
    function: Any
    file: str = "fake.py"
    span: Span = Span("fake.py", 1)
    text: str = ""


def parse(function: Callable[..., Any]) -> Kernel:
    params = []
    for p in inspect.signature(function).parameters.values():
        annotation = None if p.annotation is p.empty else p.annotation
        kind = "any"
        if isinstance(annotation, Tensor):
            kind = "tensor"
        elif annotation is constexpr:
            kind = "constexpr"
        elif annotation is not None:
            kind = "scalar"
        has_default = p.default is not p.empty
        params.append(
            ParamSpec(p.name, kind, annotation, p.default if has_default else None, has_default)
        )
    return Kernel(function.__name__, tuple(params), function)


@dataclass
class Steps:
    """Lowers to an empty body; ``grid(vars)`` gives the grid's expressions."""

    grid: Callable[[dict[str, ir.Var]], tuple[ir.Expr, ...] | None] = lambda _: (
        ir.Const(4, ir.INT32),
    )
    block: tuple[int, ...] = (128,)
    lowered: list[Signature] = field(default_factory=list)
    compiled: list[Signature] = field(default_factory=list)
    simulated: list[Any] = field(default_factory=list)
    before_compile: Callable[[], None] = lambda: None
    captured: Callable[[], Any] = lambda: ()
    launch: dict[str, Any] = field(default_factory=dict)
    resources: Resources = resources()
    dynamic_shared_bytes: int = 0
    tensor_maps: Callable[[ir.Function], tuple[TensorMapSpec, ...]] = lambda _: ()

    def parse(self, function: Any, source: str | None) -> Kernel:
        return parse(function)

    def lower(self, kernel: Kernel, signature: Signature, options: Any) -> Lowered:
        self.lowered.append(signature)
        scope: dict[str, ir.Var] = {}
        buffers, extra = [], []
        for name, arg in signature.args:
            if isinstance(arg, TensorArg):
                annotation = next(p.annotation for p in kernel.params if p.name == name)
                shape: list[Any] = []
                for d, n in enumerate(arg.shape):
                    if n is None:
                        dim = annotation.shape[d].name
                        if dim not in scope:
                            scope[dim] = ir.Var(dim, ir.INT64)
                            extra.append(scope[dim])
                        shape.append(scope[dim])
                    else:
                        shape.append(n)
                for d, s in enumerate(arg.strides):
                    if s is None:
                        extra.append(ir.Var(f"{name}_stride{d}", ir.INT64))
                type_ = ir.TensorType(tuple(shape), arg.dtype, None, "global", arg.align_bytes)
                buffers.append(ir.Var(name, type_))
            elif isinstance(arg, ScalarArg):
                scope[name] = ir.Var(name, ir.ScalarType(arg.dtype))
                buffers.append(scope[name])
            else:
                assert isinstance(arg, ConstArg)
        launch = ir.LaunchConfig(
            self.grid(scope),
            signature.launch.block or self.block,
            signature.launch.cluster,
            **self.launch,
        )
        if signature.launch.grid_bound:
            launch = replace(launch, grid_bound=signature.launch.grid_bound)
        launch = replace(launch, **dict(options))
        function = ir.Function(kernel.name, (*buffers, *extra), launch, (), signature.target)
        return Lowered(function, self.captured(), ())

    def check(self, lowered: Lowered) -> Any:
        return lowered

    def banks(self, lowered: Lowered) -> tuple[Any, ...]:
        return ()

    def accesses(self, checked: Any) -> Any:
        return SimpleNamespace(read=frozenset(), written=frozenset(), elsewhere=False)

    def compile(
        self, kernel: Any, lowered: Lowered, signature: Signature, options: Any, check: Any
    ) -> Artifact:
        check()
        self.before_compile()
        self.compiled.append(signature)
        function = lowered.function
        maps = self.tensor_maps(function)
        return Artifact(
            kernel=function.name,
            entry=function.name,
            target=function.target,
            cubin=f"cubin {len(self.compiled)} maps {len(maps)} params {len(function.params)}".encode(),
            ptx="ptx",
            cuda="cuda",
            log="",
            params=tuple(p.name for p in function.params),
            dynamic_shared_bytes=self.dynamic_shared_bytes,
            resources=self.resources,
            tensor_maps=maps,
            key=str(len(self.compiled)),
            origin="fake",
        )

    def compile_elsewhere(
        self, kernel: Any, lowered: Lowered, signature: Signature, options: Any, run: Any
    ) -> tuple[Artifact, Any]:
        artifact = self.compile(kernel, lowered, signature, options, lambda: None)
        return artifact, self.accesses(lowered)

    def simulate(self, checked: Any, tensors: Any, scalars: Any, grid: Any) -> Any:
        self.simulated.append((dict(tensors), dict(scalars), grid))
        return SimpleNamespace(grid=grid)

    def show(self, lowered: Lowered) -> str:
        return "ir"

    def ast(self, kernel: Any) -> str:
        return "ast"

    def sass(self, artifact: Artifact) -> str:
        return "sass"


@dataclass(frozen=True)
class Launched:
    """One recorded launch: the argument slots as 8-byte little-endian ints, and the tensor maps."""

    function: Any
    grid: tuple[int, int, int]
    stream: int
    fixed: LaunchAttributes
    slots: tuple[int, ...]
    maps: tuple[TensorMap, ...] = ()


class Recorder:
    """A driver that records launches and answers with ``results`` (then success)."""

    def __init__(self) -> None:
        self.launches: list[Launched] = []
        self.loaded: list[tuple[bytes, str, int]] = []
        self.released: list[Any] = []
        self.results: list[int] = []
        self.contexts: list[int] = []
        self.shared: list[int] = []
        self.encoded: list[TensorMap] = []
        self.encode_results: list[int] = []
        self.launch = self._launch

    def _launch(self, config: Any, function: Any, address: int, extra: int) -> tuple[int]:
        result = self.results.pop(0) if self.results else 0
        if not result:
            words = function[1].split()
            count, map_count = int(words[-1]), int(words[-3])
            pointers = list((ctypes.c_void_p * (count + map_count)).from_address(address))
            values = [ctypes.c_uint64.from_address(p).value for p in pointers[:count]]
            maps = [self.encoded[_number(ctypes.string_at(p, 128))] for p in pointers[count:]]
            grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
            self.launches.append(
                Launched(function, grid, config.stream, config.fixed, tuple(values), tuple(maps))
            )
        return (result,)

    def load_function(self, cubin: bytes, entry: str, device: int) -> Any:
        self.loaded.append((cubin, entry, device))
        return ("function", cubin)

    def release(self, function: Any) -> None:
        self.released.append(function)

    def set_dynamic_shared_bytes(self, function: Any, nbytes: int) -> None:
        self.shared.append(nbytes)

    def allow_large_cluster(self, function: Any) -> None:
        pass

    def attributes(self, function: Any) -> FunctionAttributes:
        return FunctionAttributes(32, 0, 0, 1024)

    def limits(self, device: int) -> DeviceLimits:
        return DeviceLimits(
            "fake GPU", (9, 0), 132, 1024, 2048, 232448, 233472, (2**31 - 1, 65535, 65535)
        )

    def blocks_per_sm(self, function: Any, threads: int, dynamic_shared_bytes: int) -> int:
        return 1

    def config(self, grid: tuple[int, int, int], stream: int, fixed: LaunchAttributes) -> Any:
        return SimpleNamespace(
            gridDimX=grid[0], gridDimY=grid[1], gridDimZ=grid[2], stream=stream, fixed=fixed
        )

    def make_context_current(self, device: int) -> None:
        self.contexts.append(device)

    def encode_tensor_map(self, map_: TensorMap) -> tuple[int, bytes]:
        """The image is the map's number among those encoded."""
        result = self.encode_results.pop(0) if self.encode_results else 0
        if result:
            return result, b""
        self.encoded.append(map_)
        return 0, str(len(self.encoded) - 1).encode().ljust(128, b"\0")

    def error_name(self, result: int) -> str:
        return f"CUDA_ERROR_{result}"

    def failure(self, result: int, what: str) -> Any:
        return fault(LaunchError, "launch/driver", f"{what} failed with {self.error_name(result)}")


def _number(image: bytes) -> int:
    return int(image.rstrip(b"\0"))


class CudaTensor(torch.Tensor):
    """A CPU tensor that claims to be on ``cuda:ordinal`` at ``address``."""

    address: int
    ordinal: int

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.ordinal

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.ordinal)


def cuda_tensor(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    address: int = 0x10000,
    ordinal: int = 0,
    like: torch.Tensor | None = None,
) -> CudaTensor:
    base = torch.empty(shape, dtype=dtype) if like is None else like
    tensor: CudaTensor = torch.Tensor._make_subclass(CudaTensor, base)
    tensor.address, tensor.ordinal = address, ordinal
    return tensor


@dataclass
class Gpu:
    """What torch would say about the machine; change it inside the block."""

    recorder: Recorder
    stream: int = 7
    current: int = 0
    capturing: bool = False
    switched: list[int] = field(default_factory=list)


@contextmanager
def gpu(devices: int = 1, capabilities: tuple[str, ...] = ("sm_90a", "sm_80")) -> Iterator[Gpu]:
    """Makes torch_glue and the driver answer as a machine with ``devices`` CUDA devices."""
    state = Gpu(Recorder())

    @contextmanager
    def on_device(device: int) -> Iterator[None]:
        state.switched.append(device)
        previous, state.current = state.current, device
        try:
            yield
        finally:
            state.current = previous

    with (
        mock.patch.multiple(
            torch_glue,
            cuda_is_usable=lambda: True,
            current_device=lambda: state.current,
            device_count=lambda: devices,
            raw_stream_function=lambda: lambda device: state.stream + 100 * device,
            raw_device_function=lambda: lambda: state.current,
            on_device=on_device,
            capturing=lambda device: state.capturing,
            target_of_device=lambda device: capabilities[device],
        ),
        driver.use(state.recorder),
    ):
        yield state


def jit(function: Callable[..., Any], steps: Steps | None = None, **options: Any) -> JitFunction:
    return JitFunction(function, steps or Steps(), **options)


assert dtypes.float32
