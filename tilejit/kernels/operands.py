"""What the ready kernels ask of their arguments on the host, before a launch.

A call's ``Facts`` are all that its checks and its plan depend on, addresses aside: they are worked out
once for each combination of them, and a call like an earlier one is a look-up.

Not here: what each kernel accepts; what the launch itself checks (``runtime.specialise``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

ALIGN_BYTES = 16
"""Of the longest vectors."""

REMEMBERED = 4096
"""Combinations of facts that a kernel keeps the outcome of."""


class Facts(NamedTuple):
    """A tensor without its elements. ``address``: modulo ``ALIGN_BYTES``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: Any
    address: int

    @property
    def span_elems(self) -> int:
        """From the first to the last element, both included; none in an empty tensor."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides))

    @property
    def span_bytes(self) -> int:
        return int(self.span_elems * self.dtype.itemsize)


def facts_of(name: str, tensor: Any) -> Facts:
    """``ValueError`` for what is no dense tensor."""
    try:
        return Facts(
            tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.data_ptr() % ALIGN_BYTES
        )  # fmt: skip
    except (AttributeError, TypeError, RuntimeError):
        layout = getattr(tensor, "layout", None)
        kind = type(tensor).__name__ if layout is None else f"a tensor of layout {layout}"
        if str(layout) == "torch.strided":
            kind = "a tensor without memory of its own, as torch.func makes them"
        raise ValueError(f"{name} is {kind}, expected a dense torch.Tensor") from None


def same_device(**tensors: Facts | None) -> None:
    """``ValueError`` for tensors on several devices."""
    given = {name: facts for name, facts in tensors.items() if facts is not None}
    (first, expected), *others = given.items()
    for name, facts in others:
        if facts.device != expected.device:
            raise ValueError(
                f"{name} is on {facts.device}, expected {expected.device}, where {first} is"
            )


def check_flag(name: str, value: Any) -> None:
    """``ValueError`` for what Python only takes for true or false, as it does "no" for true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}, expected True or False")


def has_memory(tensor: Any) -> bool:
    """False for what only stands for a tensor: on the device meta, fake, or of torch.func."""
    try:
        storage = tensor.untyped_storage()
        return storage.device.type != "meta" and storage.data_ptr() != 0
    except RuntimeError:
        return False


def apart(what: str, a: Any, b: Any) -> None:
    """Refuse two tensors that share memory."""
    spans_bytes = facts_of(what, a).span_bytes, facts_of("the result", b).span_bytes
    result_apart((what,), (a,), b, spans_bytes)


def result_apart(
    names: tuple[str, ...], inputs: tuple[Any, ...], result: Any, spans_bytes: tuple[int, ...]
) -> None:
    """Refuse a result that shares memory with an input (or None). ``spans_bytes``: of the inputs, then
    of the result. Where spans overlap, elements need not: numpy tells exactly."""
    start = result.data_ptr()
    end = start + spans_bytes[-1]
    for name, tensor, span_bytes in zip(names, inputs, spans_bytes):
        if tensor is None or tensor.data_ptr() >= end or tensor.data_ptr() + span_bytes <= start:
            continue
        # What has no memory is the launch's to refuse.
        if not (has_memory(tensor) and has_memory(result)):
            continue
        if np.shares_memory(_array(tensor), _array(result)):
            raise ValueError(f"the result may not share memory with {name}")


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    return np.asarray(_Addresses(tensor))


class _Addresses:
    """A tensor's addresses as numpy sees an array's. Its memory, of any device, is never read."""

    def __init__(self, tensor: Any):
        elem_bytes = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(s * elem_bytes for s in tensor.stride()),
            "typestr": f"|V{elem_bytes}",
            "data": (tensor.data_ptr(), True),
        }
