"""A plan's tensor maps: computed from a launch's pointers and sizes, checked, encoded, remembered.

``Encoder`` is the Python way. ``program`` writes the same computation as numbers for the C launcher,
which encodes anew at every launch and leaves to Python whatever the driver refuses.
``encode_tensor_map`` is for users who pass a map to a kernel themselves.

Not here: the hardware's rules (``ir.tensor_map``), where maps lie in an argument block (``plan``).
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilejit.dtypes import DType
from tilejit.errors import LaunchError, Report, fault
from tilejit.ir import tensor_map
from tilejit.ir.linear import linear
from tilejit.ir.nodes import Expr, Var
from tilejit.ir.tensor_map import FORMATS, MAP_BYTES, Number, TensorMap, TensorMapSpec
from tilejit.ir.walk import descend
from tilejit.runtime import driver as drivers
from tilejit.runtime import hostexpr, torch_glue
from tilejit.runtime.driver import CONTEXT_MISSING, DriverApi
from tilejit.runtime.specialise import usable_dtype

_MAX_REMEMBERED = 256
_SMALL_BYTES = 128 << 10
_SMALL_BIT = 85


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
    return _repaired(map_, image) if needs_repair(driver, device) else image


def needs_repair(driver: DriverApi, device: int) -> bool:
    """Whether maps of small tensors need bit 85 cleared: on Blackwell, where drivers set it for tensors of
    less than 128 KiB too and loads then fault now and then (NVIDIA's release notes of driver 595.71.05,
    known issues, which give this repair). To Hopper the bit means nothing."""
    return 10 <= driver.limits(device).capability[0] <= 12


def _repaired(map_: TensorMap, image: bytes) -> bytes:
    if map_.span_bytes >= _SMALL_BYTES:
        return image
    byte, bit = divmod(_SMALL_BIT, 8)
    return image[:byte] + bytes((image[byte] & ~(1 << bit),)) + image[byte + 1 :]


# --- for the C launcher


def program(spec: TensorMapSpec, slots: Mapping[str, int]) -> bytes | None:
    """A spec as int64 numbers; ``slots``: where the launcher finds each parameter. None for what is no
    sum of multiples of them.

    pointer's slot, format, rank, interleave, swizzle, L2 promotion, fill, alignment; box and element
    strides; then offset, sizes and strides, each as constant, count, (slot, factor)…
    """
    align = alignment(spec)
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


def alignment(spec: TensorMapSpec) -> int:
    """What the start and the strides of its maps are multiples of, in bytes."""
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
    format: str | DType | None = None,
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

    report = Report()
    fields = {
        "swizzle": swizzle, "interleave": interleave, "l2_promotion": l2_promotion, "oob_fill": oob_fill,
    }  # fmt: skip
    for name, mode in fields.items():
        if not _is_whole(mode):
            _refuse_field(name, mode, "an integer", report)
    boxes = _integers("box", box, report)
    steps = (
        None if element_strides is None else _integers("element_strides", element_strides, report)
    )
    chosen = _format(tensor, format, report)
    report.raise_if_failed(LaunchError)
    modes = {name: operator.index(mode) for name, mode in fields.items()}
    map_ = _described(tensor, chosen, boxes, steps, **modes)
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


def _is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer, numpy's among them."""
    return hasattr(type(value), "__index__") and not isinstance(value, bool)


def _refuse_field(name: str, value: Any, expected: str, report: Report) -> None:
    report.error(
        f"tma/{name.replace('_', '-')}",
        f"{name} is {torch_glue.describe(value)}, expected {expected}",
    )


def _integers(name: str, value: Any, report: Report) -> tuple[int, ...]:
    if isinstance(value, Sequence) and all(map(_is_whole, value)):
        return tuple(map(operator.index, value))
    _refuse_field(name, value, "a tuple of integers, one per dimension, outermost first", report)
    return ()


def _format(tensor: Any, wanted: Any, report: Report) -> str:
    """The map's format for elements like the tensor's."""
    if not torch_glue.is_tensor(tensor):
        report.error("launch/tensor", f"a tensor is expected, got {torch_glue.describe(tensor)}")
        return ""
    dtype = usable_dtype("tensor", tensor, report)
    if dtype is None:
        return ""
    name = wanted.name if isinstance(wanted, DType) else wanted
    chosen = tensor_map.format_of(dtype, name)
    if chosen is None:
        usual = tensor_map.default_format(dtype)
        report.error(
            "tma/format",
            f"format {dtype.name if wanted is None else wanted!r} is none for {dtype} elements, expected "
            f"{usual or 'another dtype'}",
            help=None if usual is None else f'leave it out, or give its name: format="{usual}"',
        )
    return chosen or ""


def _described(
    tensor: Any,
    format_: str,
    box: tuple[int, ...],
    element_strides: tuple[int, ...] | None,
    *,
    interleave: int,
    **modes: int,
) -> TensorMap:
    sizes, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    slices = interleave in (1, 2)
    _check_innermost(tensor, sizes, strides, interleave if slices else 0)
    kept = max(len(sizes) - slices, 0)
    dims = list(sizes[:kept])
    if kept and format_ == tensor_map.PADDED:
        dims[-1] *= 2  # a byte holds two elements
    steps = (1,) * kept if element_strides is None else element_strides
    strides_bytes = [s * tensor.element_size() for s in strides[: max(kept - 1, 0)]]
    return TensorMap(
        tensor.data_ptr(), format_, tuple(dims[::-1]), tuple(strides_bytes[::-1]), box[::-1], steps[::-1],
        interleave=interleave, **modes,
    ).settled()  # fmt: skip


def _check_innermost(
    tensor: Any, sizes: tuple[int, ...], strides: tuple[int, ...], interleave: int
) -> None:
    """Innermost elements lie side by side; with interleaving they are one slice, and so do slices."""
    if sizes and strides[-1] != 1 and sizes[-1] != 1:
        raise fault(
            LaunchError, "tma/stride",
            f"the innermost stride is {strides[-1]} elements, expected 1",
            help="make the dimension whose elements lie side by side the last, or pass a .contiguous() copy",
        )  # fmt: skip
    if not interleave or not sizes:
        return
    nbytes, slice_bytes = sizes[-1] * tensor.element_size(), tensor_map.INTERLEAVE_BYTES[interleave]
    if nbytes != slice_bytes:
        raise fault(
            LaunchError, "tma/interleave",
            f"the last dimension holds {nbytes} bytes, expected one slice of {slice_bytes} bytes",
            help="an interleaved tensor is (N, slices of channels, *spatial, channels of a slice)",
        )  # fmt: skip
    if len(sizes) > 1 and sizes[-2] != 1 and strides[-2] != sizes[-1]:
        raise fault(
            LaunchError, "tma/stride",
            f"the innermost spatial stride is {strides[-2]} elements, expected {sizes[-1]}: one slice",
        )  # fmt: skip
