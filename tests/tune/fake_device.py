"""A GPU whose memory is the host's and whose time is made up. Its memory lies in files, so that another
process can open it; its kernels are named functions of addresses, so that they can be told to it."""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilejit.errors import LaunchError, fault
from tilejit.tune.device import Kernel

FLOAT_BYTES = 4


@dataclass(frozen=True)
class FakeKernel:
    """``does``: a function below; ``seconds``: what a launch takes of the made up time."""

    does: str
    seconds: float = 1e-4
    shaped: tuple[bool, ...] = ()

    def packed(self) -> bytes:
        return pickle.dumps(self)


def floats(address: int, count: int) -> Any:
    return (ctypes.c_float * count).from_address(address)


def add(device: FakeDevice, out: int, x: int, y: int, n: int) -> None:
    a, b, result = floats(x, n), floats(y, n), floats(out, n)
    result[:] = [p + q for p, q in zip(a, b)]


def add_half(device: FakeDevice, out: int, x: int, y: int, n: int) -> None:
    """Forgets the second half."""
    add(device, out, x, y, n // 2)


def add_wrong(device: FakeDevice, out: int, x: int, y: int, n: int) -> None:
    add(device, out, x, y, n)
    floats(out, n)[n - 1] += 1.0


def add_into(device: FakeDevice, out: int, x: int, y: int, n: int) -> None:
    """Adds to what is there: reads what it writes."""
    result = floats(out, n)
    result[:] = [p + q for p, q in zip(result, floats(x, n))]


def hang(device: FakeDevice, *arguments: Any) -> None:
    time.sleep(600)


def die(device: FakeDevice, *arguments: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fall(device: FakeDevice, *arguments: Any) -> None:
    raise ZeroDivisionError("a defect of the measuring process")


def refused(device: FakeDevice, *arguments: Any) -> None:
    raise fault(LaunchError, "launch/driver", "launching k failed with CUDA_ERROR_INVALID_VALUE")


def trap(device: FakeDevice, *arguments: Any) -> None:
    """The context does not survive."""
    device.broken = True


KERNELS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (add, add_half, add_wrong, add_into, hang, die, fall, refused, trap)
}


class FakeDevice:
    """``told``: what it did, one word and numbers each."""

    def __init__(self, folder: Path, l2_bytes: int = 4096, free: int = 1 << 20):
        self.folder, self.l2_bytes, self._free = folder, l2_bytes, free
        self.told: list[tuple[Any, ...]] = []
        self.broken = False
        self.elapsed = 0.0
        self.exportable = True
        self._blocks: dict[int, tuple[mmap.mmap, Any, Path]] = {}
        self._recording: list[Callable[[], None]] | None = None

    @property
    def identity(self) -> bytes:
        return os.fsencode(self.folder)

    def free_bytes(self) -> int:
        return self._free - sum(len(block) for block, *_ in self._blocks.values())

    def allocate(self, nbytes: int) -> int:
        path = self.folder / f"{os.getpid()}-{len(list(self.folder.iterdir()))}"
        path.write_bytes(b"\xee" * nbytes)
        return self._map(path)

    def _map(self, path: Path) -> int:
        with path.open("r+b") as file:
            block = mmap.mmap(file.fileno(), 0)
        view = ctypes.c_char.from_buffer(block)
        self._blocks[ctypes.addressof(view)] = block, view, path
        return ctypes.addressof(view)

    def free(self, address: int) -> None:
        del self._blocks[address]

    def copy(self, target: int, source: int, nbytes: int) -> None:
        self.told.append(("copy", nbytes))
        ctypes.memmove(target, source, nbytes)

    def fill(self, target: int, byte: int, nbytes: int) -> None:
        self.told.append(("fill", byte))
        ctypes.memset(target, byte, nbytes)

    def synchronize(self) -> None:
        if self.broken:
            raise fault(
                LaunchError,
                "launch/driver",
                "cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS",
            )

    def timed(self, enqueue: Callable[[], None]) -> float:
        start = self.elapsed
        enqueue()
        self.synchronize()
        return self.elapsed - start

    def now(self) -> float:
        return self.elapsed

    def graph(self, enqueue: Callable[[], None]) -> Any:
        self._recording = recorded = []
        try:
            enqueue()
        finally:
            self._recording = None
        return recorded

    def replay(self, graph: Any) -> None:
        self.told.append(("replay", len(graph)))
        for launch in graph:
            launch()

    def drop(self, graph: Any) -> None:
        graph.clear()

    def kernel(self, packed: bytes, caller_grid: bool) -> Kernel:
        kernel: FakeKernel = pickle.loads(packed)

        def run(grid: Any, *values: Any) -> None:
            def launch() -> None:
                self.told.append(("run", values[0]))
                self.elapsed += kernel.seconds
                KERNELS[kernel.does](self, *values)

            launch() if self._recording is None else self._recording.append(launch)

        return Kernel(run, kernel.shaped or (False,) * 4)

    def export(self, address: int) -> bytes:
        if not self.exportable:
            raise fault(LaunchError, "launch/driver", "cuIpcGetMemHandle failed with NOT_SUPPORTED")
        return os.fsencode(self._blocks[address][2])

    def open(self, handle: bytes) -> int:
        return self._map(Path(os.fsdecode(handle)))

    def close(self, address: int) -> None:
        self.free(address)

    def release(self) -> None:
        self.told.append(("released",))

    def bytes_at(self, address: int, nbytes: int) -> Any:
        import torch

        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), dtype=torch.uint8)
