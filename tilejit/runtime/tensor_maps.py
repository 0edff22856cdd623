"""A plan's tensor maps: computed from a launch's pointers and sizes, checked, encoded, remembered.

``Encoder`` is the Python way. ``program`` writes the same computation as numbers for the C launcher,
which encodes anew at every launch and leaves to Python whatever the driver refuses.
``encode_tensor_map`` is for users who pass a map to a kernel themselves.

Not here: the hardware's rules (``ir.tensor_map``), where maps lie in an argument block (``plan``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilejit.errors import LaunchError, fault
from tilejit.ir import tensor_map
from tilejit.ir.linear import linear
from tilejit.ir.nodes import Expr, Var
from tilejit.ir.tensor_map import FORMATS, MAP_BYTES, Number, TensorMap, TensorMapSpec
from tilejit.ir.walk import descend
from tilejit.runtime import driver as drivers
from tilejit.runtime import hostexpr, torch_glue
from tilejit.runtime.driver import CONTEXT_MISSING, DriverApi

_MAX_REMEMBERED = 256


def variables(spec: TensorMapSpec) -> tuple[str, ...]:
    """The sizes, strides and scalars that ``spec`` is computed from, sorted."""
    found = {
        node.name
        for number in spec.numbers()
        if not isinstance(number, int)
        for node in descend(number)
        if isinstance(node, Var)
    }
    return tuple(sorted(found))


class Encoder:
    """``encoder(address, *values)``: the encoded map; ``values`` of ``variables(spec)``, in order."""

    def __init__(self, kernel: str, spec: TensorMapSpec, driver: DriverApi, device: int):
        self.images: dict[tuple[int, ...], bytes] = {}
        """Maps encoded before, by the encoder's arguments."""
        self._kernel, self._spec, self._driver, self._device = kernel, spec, driver, device
        names = variables(spec)
        self._functions: dict[int, Callable[..., int]] = {
            id(number): hostexpr.compile_function(number, names)
            for number in spec.numbers()
            if not isinstance(number, int)
        }

    def __call__(self, *inputs: int) -> bytes:
        address, *values = inputs
        spec = self._spec

        def value_of(expr: Expr) -> int:
            return int(self._functions[id(expr)](*values))

        map_ = spec.evaluate(address, value_of).settled()
        tensor_map.refuse(map_, f"{self._kernel}: the tensor map of {spec.buffer}", spec.span)
        image = encoded(map_, self._driver, self._device)
        if len(self.images) >= _MAX_REMEMBERED:
            self.images.clear()
        self.images[inputs] = image
        return image


def encoded(map_: TensorMap, driver: DriverApi, device: int) -> bytes:
    """The driver's 128 bytes of a map, after one more attempt where this thread had no context."""
    result, image = driver.encode_tensor_map(map_)
    if result in CONTEXT_MISSING:
        driver.make_context_current(device)
        result, image = driver.encode_tensor_map(map_)
    if result:
        raise driver.failure(result, f"encoding a tensor map ({map_.describe()})")
    return image


# --- for the C launcher


def program(spec: TensorMapSpec, slots: Mapping[str, int]) -> bytes | None:
    """A spec as int64 numbers; ``slots``: where the launcher finds each parameter. None for what is no
    sum of multiples of them.

    pointer's slot, format, rank, interleave, swizzle, L2 promotion, fill, alignment; box and element
    strides; then offset, sizes and strides, each as constant, count, (slot, factor)…
    """
    align = _alignment(spec)
    head = (
        slots[spec.buffer], FORMATS[spec.format].code, len(spec.dims), spec.interleave, spec.swizzle,
        spec.l2_promotion, spec.oob_fill, align, *spec.box, *spec.element_strides,
    )  # fmt: skip
    numbers = list(head)
    for number in spec.numbers():
        form = _linear_form(number, slots)
        if form is None:
            return None
        numbers += form
    if any(abs(n) >= 1 << 62 for n in numbers):
        return None
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _alignment(spec: TensorMapSpec) -> int:
    unknown: tuple[None, ...] = (None,) * len(spec.dims)
    return TensorMap(
        None, spec.format, unknown, unknown[1:], spec.box, spec.element_strides, spec.interleave
    ).align_bytes


def _linear_form(number: Number, slots: Mapping[str, int]) -> list[int] | None:
    if isinstance(number, int):
        return [number, 0]
    terms, constant = linear(number)
    found = [constant, len(terms)]
    for term, factor in terms.items():
        if not isinstance(term, Var):
            return None
        found += [slots[term.name], factor]
    return found


# --- a user's own maps


def encode_tensor_map(
    tensor: Any,
    *,
    box: Sequence[int],
    format: str | None = None,
    element_strides: Sequence[int] | None = None,
    swizzle: int = 0,
    interleave: int = 0,
    l2_promotion: int = 0,
    oob_fill: int = 0,
) -> Any:
    """A tensor map of ``tensor`` as 128 bytes: a uint8 tensor, to be passed to a kernel that hands its
    address to a tensor copy in place of the tensor.

    The arguments are those of the copy; ``box`` and ``element_strides`` stand outermost first. For a
    CUDA tensor the driver encodes it, on the CPU: move it with ``.to("cuda")``. It holds the tensor's
    address: keep the tensor. For a CPU tensor it is one that the simulator alone understands. Raises
    ``LaunchError``, ``tma/…``, with every rule that is broken.
    """
    import torch

    map_ = _described(
        tensor, tuple(box), format, element_strides, swizzle, interleave, l2_promotion, oob_fill
    )
    tensor_map.refuse(map_, "the tensor map", None)
    if tensor.is_cuda:
        image = encoded(map_, drivers.current(), tensor.get_device())
    else:
        image = tensor_map.picture(map_)
    aligned = torch.empty(2 * MAP_BYTES, dtype=torch.uint8)
    start = -aligned.data_ptr() % MAP_BYTES
    result = aligned[start : start + MAP_BYTES]
    result.copy_(torch.frombuffer(bytearray(image), dtype=torch.uint8))
    return result


def _described(
    tensor: Any,
    box: tuple[int, ...],
    format_: str | None,
    element_strides: Sequence[int] | None,
    swizzle: int,
    interleave: int,
    l2_promotion: int,
    oob_fill: int,
) -> TensorMap:
    dtype = torch_glue.dtype_of(tensor)
    chosen = None if dtype is None else tensor_map.format_of(dtype, format_)
    if dtype is None or chosen is None:
        raise fault(
            LaunchError,
            "tma/format",
            f"format {format_ or str(dtype)!r} is none for {dtype} elements",
        )
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    kept = len(sizes) - (1 if interleave else 0)
    if kept >= 1 and strides[-1] != 1 and sizes[-1] != 1:
        raise fault(
            LaunchError, "tma/stride", f"the innermost stride is {strides[-1]} elements, expected 1"
        )
    packed = 2 if chosen == tensor_map.PADDED and dtype.bits == 8 else 1
    dims = (*sizes[: kept - 1], sizes[kept - 1] * packed) if kept else ()
    steps = tuple(element_strides) if element_strides is not None else (1,) * kept
    return TensorMap(
        tensor.data_ptr(), chosen, dims[::-1],
        tuple(s * tensor.element_size() for s in strides[: max(kept - 1, 0)])[::-1], box[::-1],
        steps[::-1], interleave, swizzle, l2_promotion, oob_fill,
    ).settled()  # fmt: skip
