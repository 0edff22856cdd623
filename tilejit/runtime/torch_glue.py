"""What the runtime asks of torch. ``import tilejit`` never imports torch: every function does it late.

Nothing here touches device data: only metadata (dtype, shape, strides, device, address) is read, so
all of it is safe while a CUDA graph is being captured.
Not here: checking arguments (``specialise``), driver calls (``driver``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.target import Target

DEFAULT_TARGET = "sm_90a"
"""The target where there is neither a CUDA device nor a word from the user."""

CPU = -1
"""Device ordinal that stands for the CPU, as ``Tensor.get_device()`` gives it."""


def is_tensor(value: object) -> bool:
    """True for a ``torch.Tensor``; False, without importing torch, while nobody has imported it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


@lru_cache(maxsize=1)
def dtype_table() -> dict[Any, DType]:
    """``torch.dtype`` → DType, for each type this torch has. Packed float4 pairs are bytes."""
    import torch

    table: dict[Any, DType] = {}
    for d in dtypes.ALL:
        found = getattr(torch, "bool" if d.name == "bool" else d.name, None)
        if isinstance(found, torch.dtype):
            table[found] = d
    packed = getattr(torch, "float4_e2m1fn_x2", None)
    if packed is not None:
        table[packed] = dtypes.uint8
    return table


def dtype_of(tensor: Any) -> DType | None:
    """The tensor's element type; None for types that kernels do not have (complex, quantised)."""
    return dtype_table().get(tensor.dtype)


def torch_dtype(dtype: DType) -> Any:
    """The ``torch.dtype`` of an element type."""
    return next(theirs for theirs, ours in dtype_table().items() if ours == dtype)


def byte_range(tensor: Any) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the first one behind it; equal for an empty tensor."""
    start: int = tensor.data_ptr()
    if tensor.numel() == 0:
        return start, start
    span_elems = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    return start, start + span_elems * tensor.element_size()


def has_memory(tensor: Any) -> bool:
    """False for what only stands for a tensor: one inside ``vmap``, ``grad`` or ``functionalize``, a fake
    tensor, one whose storage was taken away. An empty tensor needs none."""
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta":
            return False
        storage.data_ptr()  # of a functional tensor, raises
        return bool(tensor.data_ptr() != 0 or tensor.numel() == 0)
    except (RuntimeError, NotImplementedError):
        return False


def cuda_is_usable() -> bool:
    """True where torch has a CUDA device. Creates no context."""
    import torch

    return bool(torch.cuda.is_available())


def current_device() -> int:
    """Ordinal of torch's current CUDA device; CPU where there is none."""
    import torch

    return int(torch.cuda.current_device()) if cuda_is_usable() else CPU


def device_count() -> int:
    import torch

    return int(torch.cuda.device_count())


def raw_stream_function() -> Callable[[int], int]:
    """``f(device) -> handle`` of torch's current stream: the call that launches make each time."""
    import torch

    function: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    return function


def raw_device_function() -> Callable[[], int]:
    """``f() -> ordinal`` of the calling thread's current device, without torch's lazy-init check."""
    import torch

    function: Callable[[], int] = torch._C._cuda_getDevice
    return function


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Makes CUDA device ``device`` current for the block, and its primary context with it."""
    import torch

    with torch.cuda.device(device):
        yield


def capturing(device: int) -> bool:
    """Whether torch's current stream of ``device`` is being captured into a CUDA graph."""
    import torch

    if device == CPU or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return False
    with torch.cuda.device(device):
        return bool(torch.cuda.is_current_stream_capturing())


def hide(*functions: Callable[..., Any]) -> None:
    """``torch.compile`` breaks its graph at a call of one of these and runs it as it is, with everything
    below: what ``torch.compiler.disable`` does, without a wrapper and before torch is there.

    Marks read by torch's own code; a torch before 2.7 has the first only and may look at what is below."""
    for function in functions:
        function._torchdynamo_disable = True  # type: ignore[attr-defined]
        function._torchdynamo_disable_msg = "a tilejit kernel is no graph"  # type: ignore[attr-defined]
    torch = sys.modules.get("torch")
    frames = None if torch is None else torch._C._dynamo.eval_frame
    mark = getattr(frames, "set_code_exec_strategy", None)
    if frames is not None and mark is not None:
        skip = frames._FrameAction.SKIP
        for function in functions:
            mark(function.__code__, frames._FrameExecStrategy(skip, skip))


def target_of_device(device: int) -> str:
    """``sm_90a`` and the like for CUDA device ``device``: asked of that device, never of device 0."""
    import torch

    return Target.of_capability(*torch.cuda.get_device_capability(device)).name


SIMULATED_TARGET: ContextVar[str | None] = ContextVar("simulated_target", default=None)
"""That of ``tile.simulation(target=…)``, for calls on CPU tensors."""


def default_target() -> str:
    """That of ``tile.simulation``; else ``TILEJIT_TARGET``; else torch's current CUDA device; else
    ``sm_90a``."""
    simulated = SIMULATED_TARGET.get()
    if simulated is not None:
        return simulated
    named = os.environ.get("TILEJIT_TARGET", "").strip()
    if named:
        return Target.parse(named).name
    torch_loaded = "torch" in sys.modules
    if torch_loaded and cuda_is_usable():
        return target_of_device(current_device())
    return DEFAULT_TARGET


def target_of(device: Any) -> Target:
    """The target that calls on tensors of a torch device are compiled for: a GPU's own; on the CPU that
    of ``tile.simulation(target=…)``, ``TILEJIT_TARGET``, the current GPU or ``sm_90a``, the first there is."""
    if device.type != "cuda":
        return Target.parse(default_target())
    return Target.parse(
        target_of_device(current_device() if device.index is None else device.index)
    )


def describe(value: object) -> str:
    """One line about an argument for messages; a tensor is described by its metadata only."""
    if is_tensor(value):
        tensor: Any = value
        shape = ",".join(str(int(n)) for n in tensor.shape)
        name = str(tensor.dtype).removeprefix("torch.")
        return f"Tensor(({shape}), {name}, {tensor.device})"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
