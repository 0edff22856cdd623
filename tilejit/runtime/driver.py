"""The CUDA driver, as much of it as launching needs, behind one replaceable object.

``cuda.bindings.driver`` is imported at the first use. Every driver call of the runtime goes through
``current()``, which tests replace by a recorder (``use``). A failed call raises ``LaunchError`` with
the driver's own error name; nothing about a failure is remembered, so it is raised again each time.
Not here: what is launched (``plan``), which stream (``torch_glue``).
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from tilejit.errors import LaunchError, TileError, fault
from tilejit.ir.tensor_map import FORMATS, MAP_ALIGN_BYTES, MAP_BYTES, TensorMap

Handle = Any
"""An opaque driver object (library, kernel, function, stream, launch configuration)."""


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """What one device allows. Sizes in bytes, counts in units named by the field."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    max_threads_per_block: int
    max_threads_per_sm: int
    max_shared_bytes_per_block: int
    max_shared_bytes_per_sm: int
    max_grid: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class FunctionAttributes:
    """What the driver says about a loaded kernel."""

    registers: int
    local_bytes: int
    static_shared_bytes: int
    max_threads_per_block: int


@dataclass(frozen=True, slots=True)
class LaunchAttributes:
    """Everything of a launch that a plan fixes."""

    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    cluster: tuple[int, int, int] | None = None
    cooperative: bool = False
    programmatic_stream_serialization: bool = False


class DriverApi(Protocol):
    """What plans ask of a driver. ``CudaDriver`` is the real one; tests pass a recorder."""

    launch: Callable[[Handle, Handle, int, int], tuple[int]]
    """``launch(config, function, address of the void* array, 0) -> (result,)``."""

    def load_function(self, cubin: bytes, entry: str, device: int) -> Handle:
        """The kernel ``entry`` of a cubin, ready on ``device`` (whose context is current)."""

    def release(self, function: Handle) -> None:
        """``function`` will not be launched again, and is in no CUDA graph; as often as it was loaded. May
        be called from anywhere, inside garbage collection too."""

    def set_dynamic_shared_bytes(self, function: Handle, nbytes: int) -> None:
        """Lifts the 48 KiB default limit to ``nbytes``."""

    def allow_large_cluster(self, function: Handle) -> None:
        """Lets a kernel launch in clusters of more than 8 blocks, where the device has them."""

    def attributes(self, function: Handle) -> FunctionAttributes: ...

    def limits(self, device: int) -> DeviceLimits: ...

    def blocks_per_sm(self, function: Handle, threads: int, dynamic_shared_bytes: int) -> int:
        """Resident blocks on one SM, as the driver's occupancy calculator gives them."""

    def config(self, grid: tuple[int, int, int], stream: int, fixed: LaunchAttributes) -> Handle:
        """A launch configuration; ``gridDimX``… may be reassigned between launches."""

    def make_context_current(self, device: int) -> None: ...

    def encode_tensor_map(self, map_: TensorMap) -> tuple[int, bytes]:
        """The driver's result, and the encoded map where that is 0."""

    def error_name(self, result: int) -> str: ...

    def failure(self, result: int, what: str) -> TileError:
        """The exception for a call that returned ``result``."""


CONTEXT_MISSING = frozenset({3, 201})
"""CUDA_ERROR_NOT_INITIALIZED and INVALID_CONTEXT: a thread that has not touched CUDA yet."""


_UNLOADED_TOGETHER = 32
"""Kernels that are released before any is unloaded: that waits for the whole device."""


@dataclass(slots=True)
class _Library:
    """A loaded cubin. ``users``: how often its kernel was loaded and not released."""

    handle: Handle
    users: int = 0
    devices: set[int] = field(default_factory=set)


class CudaDriver:
    """``cuda.bindings.driver``."""

    def __init__(self) -> None:
        self._api = _bindings()
        self.launch: Callable[[Handle, Handle, int, int], tuple[int]] = self._api.cuLaunchKernelEx
        self._libraries: dict[bytes, _Library] = {}
        self._library_of: dict[int, bytes] = {}
        self._released: deque[int] = deque()
        self._lock = threading.Lock()
        self._check(self._api.cuInit(0), "cuInit")

    def _check(self, answer: tuple[Any, ...], what: str) -> Any:
        if answer[0]:
            raise self.failure(int(answer[0]), what)
        return answer[1] if len(answer) == 2 else answer[1:]

    def load_function(self, cubin: bytes, entry: str, device: int) -> Handle:
        api = self._api
        digest = hashlib.sha256(cubin).digest()
        with self._lock:
            if len(self._released) >= _UNLOADED_TOGETHER:
                self._unload()
            library = self._libraries.get(digest)
            if library is None:
                answer = api.cuLibraryLoadData(cubin, [], [], 0, [], [], 0)
                library = _Library(self._check(answer, "cuLibraryLoadData"))
                self._libraries[digest] = library
            found = api.cuLibraryGetKernel(library.handle, entry.encode())
            kernel = self._check(found, "cuLibraryGetKernel")
            function = self._check(api.cuKernelGetFunction(kernel), "cuKernelGetFunction")
            library.users += 1
            library.devices.add(device)
            self._library_of[int(function)] = digest
        return function

    def release(self, function: Handle) -> None:
        self._released.append(int(function))  # no lock: whoever collects garbage may hold it

    def _unload(self) -> None:
        """Unloads what nobody uses any more, after everything that was launched is done."""
        unused: list[bytes] = []
        while self._released:
            digest = self._library_of[self._released.popleft()]
            self._libraries[digest].users -= 1
            if not self._libraries[digest].users:
                unused.append(digest)
        libraries = [self._libraries.pop(digest) for digest in unused]
        for device in set().union(*(library.devices for library in libraries)):
            self._synchronise(device)
        for library in libraries:
            self._check(self._api.cuLibraryUnload(library.handle), "cuLibraryUnload")
        gone = set(unused)
        self._library_of = {f: d for f, d in self._library_of.items() if d not in gone}

    def _synchronise(self, device: int) -> None:
        """Waits for what was launched on ``device``."""
        api = self._api
        ordinal = self._check(api.cuDeviceGet(device), "cuDeviceGet")
        context = self._check(api.cuDevicePrimaryCtxRetain(ordinal), "cuDevicePrimaryCtxRetain")
        self._check(api.cuCtxPushCurrent(context), "cuCtxPushCurrent")
        try:
            self._check(api.cuCtxSynchronize(), "cuCtxSynchronize")
        finally:
            api.cuCtxPopCurrent()
            api.cuDevicePrimaryCtxRelease(ordinal)

    def set_dynamic_shared_bytes(self, function: Handle, nbytes: int) -> None:
        attribute = self._api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        what = f"cuFuncSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, {nbytes})"
        self._check(self._api.cuFuncSetAttribute(function, attribute, nbytes), what)

    def allow_large_cluster(self, function: Handle) -> None:
        name = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
        attribute = getattr(self._api.CUfunction_attribute, name)
        self._check(self._api.cuFuncSetAttribute(function, attribute, 1), name)

    def attributes(self, function: Handle) -> FunctionAttributes:
        names = self._api.CUfunction_attribute

        def get(attribute: Any) -> int:
            return int(
                self._check(self._api.cuFuncGetAttribute(attribute, function), "cuFuncGetAttribute")
            )

        return FunctionAttributes(
            registers=get(names.CU_FUNC_ATTRIBUTE_NUM_REGS),
            local_bytes=get(names.CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES),
            static_shared_bytes=get(names.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES),
            max_threads_per_block=get(names.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        )

    def limits(self, device: int) -> DeviceLimits:
        return _limits(self, device)

    def blocks_per_sm(self, function: Handle, threads: int, dynamic_shared_bytes: int) -> int:
        answer = self._api.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            function, threads, dynamic_shared_bytes
        )
        return int(self._check(answer, "cuOccupancyMaxActiveBlocksPerMultiprocessor"))

    def config(self, grid: tuple[int, int, int], stream: int, fixed: LaunchAttributes) -> Handle:
        api = self._api
        config = api.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = fixed.block
        config.sharedMemBytes = fixed.dynamic_shared_bytes
        config.hStream = api.CUstream(stream)
        attributes = []
        ids = api.CUlaunchAttributeID
        if fixed.cluster is not None:
            cluster = api.CUlaunchAttribute()
            cluster.id = ids.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dims = cluster.value.clusterDim
            dims.x, dims.y, dims.z = fixed.cluster
            attributes.append(cluster)
        if fixed.cooperative:
            cooperative = api.CUlaunchAttribute()
            cooperative.id = ids.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            attributes.append(cooperative)
        if fixed.programmatic_stream_serialization:
            overlap = api.CUlaunchAttribute()
            overlap.id = ids.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            overlap.value.programmaticStreamSerializationAllowed = 1
            attributes.append(overlap)
        if attributes:
            config.attrs = attributes
        config.numAttrs = len(attributes)
        return config

    def make_context_current(self, device: int) -> None:
        api = self._api
        ordinal = self._check(api.cuDeviceGet(device), "cuDeviceGet")
        context = self._check(api.cuDevicePrimaryCtxRetain(ordinal), "cuDevicePrimaryCtxRetain")
        self._check(api.cuCtxSetCurrent(context), "cuCtxSetCurrent")

    def encode_tensor_map(self, map_: TensorMap) -> tuple[int, bytes]:
        api = self._api
        address, dims, strides = map_.known()
        result, image = api.cuTensorMapEncodeTiled(
            api.CUtensorMapDataType(FORMATS[map_.format].code),
            map_.rank,
            address,
            [api.cuuint64_t(n) for n in dims],
            # The driver refuses a null array, which an empty list would be, even where it reads none.
            [api.cuuint64_t(n) for n in strides or (MAP_ALIGN_BYTES,)],
            [api.cuuint32_t(n) for n in map_.box],
            [api.cuuint32_t(n) for n in map_.element_strides],
            api.CUtensorMapInterleave(map_.interleave),
            api.CUtensorMapSwizzle(map_.swizzle),
            api.CUtensorMapL2promotion(map_.l2_promotion),
            api.CUtensorMapFloatOOBfill(map_.oob_fill),
        )
        if result:
            return int(result), b""
        return 0, ctypes.string_at(int(image.getPtr()), MAP_BYTES)

    def error_name(self, result: int) -> str:
        try:
            return str(self._api.CUresult(result).name)
        except ValueError:
            return f"CUresult {result}"

    def failure(self, result: int, what: str) -> TileError:
        name = self.error_name(result)
        try:
            text = self._api.cuGetErrorString(self._api.CUresult(result))[1]
        except ValueError:
            text = None  # a result newer than the bindings
        said = text.decode() if isinstance(text, bytes) else ""
        return fault(
            LaunchError, "launch/driver", f"{what} failed with {name}: {said}".rstrip(": ")
        )


@lru_cache(maxsize=64)
def _limits(driver: CudaDriver, device: int) -> DeviceLimits:
    api = driver._api
    ordinal = driver._check(api.cuDeviceGet(device), "cuDeviceGet")

    def get(name: str) -> int:
        attribute = getattr(api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        answer = api.cuDeviceGetAttribute(attribute, ordinal)
        return int(driver._check(answer, "cuDeviceGetAttribute"))

    label = driver._check(api.cuDeviceGetName(128, ordinal), "cuDeviceGetName")
    return DeviceLimits(
        name=label.split(b"\0")[0].decode(),
        capability=(get("COMPUTE_CAPABILITY_MAJOR"), get("COMPUTE_CAPABILITY_MINOR")),
        sm_count=get("MULTIPROCESSOR_COUNT"),
        max_threads_per_block=get("MAX_THREADS_PER_BLOCK"),
        max_threads_per_sm=get("MAX_THREADS_PER_MULTIPROCESSOR"),
        max_shared_bytes_per_block=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        max_shared_bytes_per_sm=get("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        max_grid=(get("MAX_GRID_DIM_X"), get("MAX_GRID_DIM_Y"), get("MAX_GRID_DIM_Z")),
    )


def _bindings() -> Any:
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise fault(
            LaunchError,
            "launch/no-bindings",
            f"cuda.bindings cannot be imported: {error}",
            help="pip install 'cuda-python>=13.0,<14'",
        ) from None
    try:
        driver.cuDriverGetVersion()
    except RuntimeError as error:
        raise fault(
            LaunchError,
            "launch/no-driver",
            f"this machine has no CUDA driver: {error}",
            help="CPU tensors run in the simulator; k.compile(...) needs no GPU",
        ) from None
    return driver


_lock = threading.Lock()
_driver: DriverApi | None = None


def current() -> DriverApi:
    """The driver in use; the real one is opened at the first call."""
    global _driver
    if _driver is None:
        with _lock:
            if _driver is None:
                _driver = CudaDriver()
    return _driver


@contextmanager
def use(driver: DriverApi) -> Iterator[None]:
    """Puts ``driver`` in the real one's place for the block (plans made inside keep it)."""
    global _driver
    previous = _driver
    _driver = driver
    try:
        yield
    finally:
        _driver = previous
