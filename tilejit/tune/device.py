"""What measuring asks of a GPU beyond launching: memory, a stream, graphs, events, and memory that
another process may open.

``CudaDevice`` is the real one, of the process that makes it; tests pass one whose memory is the host's.
Imports no torch: the process that measures has none.
Not here: what is measured (``bench``), whose memory is copied (``staging``).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilejit.runtime import driver as drivers
from tilejit.runtime import saved

Graph = Any
"""An opaque handle of launches that were recorded once and may be replayed."""


_PAGE_BYTES = 2 << 20
_HANDLE_BYTES = 64
"""Of a CUipcMemHandle. Not every version of the bindings shows its content."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel. ``run`` and ``shaped`` are a plan's (see ``runtime.plan``)."""

    run: Callable[..., None]
    shaped: Sequence[bool]


class Device(Protocol):
    """One GPU, with a stream of its own on which everything is ordered."""

    @property
    def identity(self) -> bytes:
        """The same in every process that sees this GPU."""

    @property
    def l2_bytes(self) -> int: ...

    def free_bytes(self) -> int: ...

    def allocate(self, nbytes: int) -> int:
        """The address of new memory, aligned to 512 bytes, which shares no page with other memory."""

    def free(self, address: int) -> None: ...

    def copy(self, target: int, source: int, nbytes: int) -> None: ...

    def fill(self, target: int, byte: int, nbytes: int) -> None: ...

    def synchronize(self) -> None: ...

    def timed(self, enqueue: Callable[[], None]) -> float:
        """Seconds that the GPU spends on what ``enqueue`` puts on the stream; waits for it."""

    def now(self) -> float:
        """The host's clock in seconds."""

    def graph(self, enqueue: Callable[[], None]) -> Graph:
        """What ``enqueue`` puts on the stream, recorded and not run."""

    def replay(self, graph: Graph) -> None: ...

    def drop(self, graph: Graph) -> None: ...

    def kernel(self, packed: bytes, caller_grid: bool) -> Kernel:
        """Loads a kernel in its saved form. ``caller_grid``: the grid is given at each launch."""

    def export(self, address: int) -> bytes:
        """A handle by which another process opens this allocation."""

    def open(self, handle: bytes) -> int: ...

    def close(self, address: int) -> None: ...

    def bytes_at(self, address: int, nbytes: int) -> Any:
        """That memory as a torch tensor of bytes. Imports torch: for the user's process alone."""

    def release(self) -> None:
        """Gives the stream back; nothing is asked of it afterwards."""


class CudaDevice:
    """GPU ``ordinal`` of this process, through its primary context."""

    def __init__(self, ordinal: int):
        from cuda.bindings import driver

        self._api = driver
        self._driver = drivers.current()
        self._ordinal = ordinal
        self._driver.make_context_current(ordinal)
        self._device = self._ask(driver.cuDeviceGet(ordinal), "cuDeviceGet")
        # Non-blocking: the user's work on the default stream neither waits for this one nor holds it up.
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        self._stream = self._ask(driver.cuStreamCreate(flags), "cuStreamCreate")
        self._events = [self._ask(driver.cuEventCreate(0), "cuEventCreate") for _ in range(2)]

    def _ask(self, answer: tuple[Any, ...], what: str) -> Any:
        if answer[0]:
            raise self._driver.failure(int(answer[0]), what)
        return answer[1] if len(answer) == 2 else answer[1:]

    @property
    def identity(self) -> bytes:
        return bytes(self._ask(self._api.cuDeviceGetUuid(self._device), "cuDeviceGetUuid").bytes)

    @property
    def l2_bytes(self) -> int:
        attribute = self._api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
        answer = self._api.cuDeviceGetAttribute(attribute, self._device)
        return int(self._ask(answer, "cuDeviceGetAttribute"))

    def free_bytes(self) -> int:
        return int(self._ask(self._api.cuMemGetInfo(), "cuMemGetInfo")[0])

    def allocate(self, nbytes: int) -> int:
        # The driver cuts smaller ones out of a page, and a handle exports the page.
        whole = -(-nbytes // _PAGE_BYTES) * _PAGE_BYTES
        return int(self._ask(self._api.cuMemAlloc(whole), f"cuMemAlloc({whole} bytes)"))

    def free(self, address: int) -> None:
        self._ask(self._api.cuMemFree(address), "cuMemFree")

    def copy(self, target: int, source: int, nbytes: int) -> None:
        answer = self._api.cuMemcpyDtoDAsync(target, source, nbytes, self._stream)
        self._ask(answer, "cuMemcpyDtoDAsync")

    def fill(self, target: int, byte: int, nbytes: int) -> None:
        answer = self._api.cuMemsetD8Async(target, byte, nbytes, self._stream)
        self._ask(answer, "cuMemsetD8Async")

    def synchronize(self) -> None:
        self._ask(self._api.cuStreamSynchronize(self._stream), "cuStreamSynchronize")

    def timed(self, enqueue: Callable[[], None]) -> float:
        start, end = self._events
        self._ask(self._api.cuEventRecord(start, self._stream), "cuEventRecord")
        enqueue()
        self._ask(self._api.cuEventRecord(end, self._stream), "cuEventRecord")
        self._ask(self._api.cuEventSynchronize(end), "cuEventSynchronize")
        answer = self._api.cuEventElapsedTime(start, end)
        return float(self._ask(answer, "cuEventElapsedTime")) * 1e-3

    def now(self) -> float:
        return time.perf_counter()

    def graph(self, enqueue: Callable[[], None]) -> Graph:
        api = self._api
        # Thread-local: what other threads of the user's process do meanwhile is none of its business.
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._ask(api.cuStreamBeginCapture(self._stream, mode), "cuStreamBeginCapture")
        try:
            enqueue()
        except BaseException:
            result, graph = api.cuStreamEndCapture(self._stream)
            if not result:
                api.cuGraphDestroy(graph)
            raise
        graph = self._ask(api.cuStreamEndCapture(self._stream), "cuStreamEndCapture")
        try:
            return self._ask(api.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        finally:
            api.cuGraphDestroy(graph)

    def replay(self, graph: Graph) -> None:
        self._ask(self._api.cuGraphLaunch(graph, self._stream), "cuGraphLaunch")

    def drop(self, graph: Graph) -> None:
        self._ask(self._api.cuGraphExecDestroy(graph), "cuGraphExecDestroy")

    def kernel(self, packed: bytes, caller_grid: bool) -> Kernel:
        stream = int(self._stream)
        plan = saved.unpack(packed).plan(
            self._driver, self._ordinal, lambda _: stream, caller_grid=caller_grid
        )
        return Kernel(plan.run, plan.spec.shaped)

    def export(self, address: int) -> bytes:
        handle = self._ask(self._api.cuIpcGetMemHandle(address), "cuIpcGetMemHandle")
        return ctypes.string_at(int(handle.getPtr()), _HANDLE_BYTES)

    def open(self, handle: bytes) -> int:
        opened = self._api.CUipcMemHandle()
        ctypes.memmove(int(opened.getPtr()), handle, _HANDLE_BYTES)
        lazily = self._api.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        answer = self._api.cuIpcOpenMemHandle(opened, int(lazily))
        return int(self._ask(answer, "cuIpcOpenMemHandle"))

    def close(self, address: int) -> None:
        self._ask(self._api.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle")

    def bytes_at(self, address: int, nbytes: int) -> Any:
        import torch

        return torch.as_tensor(_Memory(address, nbytes), device=f"cuda:{self._ordinal}")

    def release(self) -> None:
        for event in self._events:
            self._ask(self._api.cuEventDestroy(event), "cuEventDestroy")
        self._ask(self._api.cuStreamDestroy(self._stream), "cuStreamDestroy")


class _Memory:
    """Device memory as torch and others read it."""

    def __init__(self, address: int, nbytes: int):
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def device_of(identity: bytes) -> CudaDevice | None:
    """The GPU of that identity, where this process sees it."""
    from cuda.bindings import driver

    drivers.current()
    result, count = driver.cuDeviceGetCount()
    for ordinal in range(0 if result else count):
        _, device = driver.cuDeviceGet(ordinal)
        if bytes(driver.cuDeviceGetUuid(device)[1].bytes) == identity:
            return CudaDevice(ordinal)
    return None
