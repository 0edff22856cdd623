"""From a call's arguments to the ``Signature`` a kernel is compiled for, with every fault named.

A tensor is specialised on dtype, shape, strides and the alignment class of its address; dimensions
marked ``T.dynamic`` stay run-time numbers, and so do the strides to the left of one. A
``T.constexpr`` is specialised on its value, an unannotated scalar on its type. All faults of a call
are reported at once. Only metadata is read, never device data.
Not here: the cheap per-launch key (``dispatch``), what the kernel requires of its operands (families).
"""

from __future__ import annotations

import difflib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import LaunchError, Report, Span
from tilejit.ir.signature import (
    Arg,
    ConstArg,
    LaunchOverride,
    ScalarArg,
    Signature,
    TensorArg,
)
from tilejit.runtime import torch_glue

_AS_DECLARED = LaunchOverride()

DEFAULT_ALIGN_BYTES = 16
"""Alignment classes stop here unless an annotation promises more."""


class Param(Protocol):
    """A kernel parameter as the frontend describes it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str:
        """``tensor``, ``scalar``, ``constexpr`` or ``any`` (not annotated)."""

    @property
    def annotation(self) -> Any: ...
    @property
    def default(self) -> Any: ...
    @property
    def has_default(self) -> bool: ...
    @property
    def span(self) -> Span: ...


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"


MISSING = _Missing()
"""Stands for an argument that the call did not give."""


@dataclass(frozen=True, slots=True)
class Specialised:
    """``values``: one per parameter, numpy scalars made plain. ``device``: a CUDA ordinal, or
    ``torch_glue.CPU``; None when the call gave no tensor. ``pinned``: some are host tensors that
    the device reads directly."""

    signature: Signature
    values: tuple[Any, ...]
    device: int | None
    pinned: bool


# --- binding names


def bind_arguments(
    params: Sequence[Param], args: Sequence[Any], keywords: dict[str, Any], report: Report
) -> tuple[Any, ...]:
    """One value per parameter, defaults filled in; MISSING where there is none (and a fault)."""
    names = [p.name for p in params]
    given: dict[str, Any] = dict(zip(names, args))
    if len(args) > len(params):
        report.error(
            "launch/too-many-arguments",
            f"the kernel has {len(params)} parameters, {len(args)} positional arguments were given",
            declared=f"({', '.join(names)})",
        )
    for name, value in keywords.items():
        if name not in names:
            report.error(
                "launch/unknown-argument",
                f"the kernel has no parameter {name!r}",
                declared=f"({', '.join(names)})",
                help=_nearest(name, names),
            )
        elif name in given and given[name] is not MISSING:
            report.error("launch/repeated-argument", f"parameter {name!r} was given twice")
        else:
            given[name] = value
    values = []
    for param in params:
        value = given.get(param.name, MISSING)
        if value is MISSING and param.has_default:
            value = param.default
        if value is MISSING:
            report.error(
                "launch/missing-argument",
                f"no argument for parameter {param.name!r}",
                declared=_declared(param),
            )
        values.append(value)
    return tuple(values)


def _nearest(name: str, names: Sequence[str]) -> str | None:
    folded = {known.lower(): known for known in names}
    near = difflib.get_close_matches(name.lower(), folded, n=1)
    return f"did you mean {folded[near[0]]!r}?" if near else None


def plain(value: Any) -> Any:
    """A numpy scalar or 0-d array as the Python number it holds; anything else unchanged."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


# --- the signature


def specialise(
    params: Sequence[Param],
    args: Sequence[Any],
    keywords: dict[str, Any],
    *,
    target: str | None = None,
    launch: LaunchOverride = _AS_DECLARED,
) -> Specialised:
    """The signature of a call. ``LaunchError`` with every fault found.

    ``args`` may hold ``TensorArg``, ``ScalarArg``, ``ConstArg`` or a DType instead of a value, to
    describe a call without making one. ``target`` None: that of the tensors' device, else the
    default one.
    """
    report = Report()
    values = tuple(plain(v) for v in bind_arguments(params, args, keywords, report))
    entries: list[tuple[str, Arg]] = []
    sizes: dict[str, tuple[str, int]] = {}
    for param, value in zip(params, values):
        if value is MISSING:
            continue
        with report.at(param.span):
            arg = _argument(param, value, report)
            if arg is not None:
                entries.append((param.name, arg))
            if isinstance(arg, TensorArg):
                _check_declared_shape(param, _shape(value), sizes, report)
                _check_extents(param, arg, report)
    device, pinned = _device(params, values, report)
    report.raise_if_failed(LaunchError)
    if target is None:
        on_gpu = device is not None and device != torch_glue.CPU
        target = torch_glue.target_of_device(device) if on_gpu and device is not None else None
        target = target or torch_glue.default_target()
    return Specialised(Signature(tuple(entries), target, launch), values, device, pinned)


def _argument(param: Param, value: Any, report: Report) -> Arg | None:
    if param.kind == "constexpr":
        return _constexpr(param, value, report)
    if isinstance(value, TensorArg | ScalarArg | ConstArg):
        return value
    if value is None:
        return _none(param, report)
    if torch_glue.is_tensor(value):
        if param.kind == "scalar":
            report.error(
                "launch/scalar",
                f"{param.name!r} is a scalar, got {torch_glue.describe(value)}",
                declared=_declared(param),
                help="pass a Python number (reading a tensor's element would wait for the device)",
            )
            return None
        return _tensor(param, value, report)
    if param.kind == "tensor":
        _not_a_tensor(param, value, report)
        return None
    return _scalar(param, value, report)


def _none(param: Param, report: Report) -> Arg | None:
    if param.kind == "any" or getattr(param.annotation, "optional", False):
        return ConstArg(None)
    if param.has_default and param.default is None:
        return ConstArg(None)
    report.error(
        "launch/none",
        f"{param.name!r} cannot be None",
        declared=_declared(param),
        help="annotate it T.Tensor(...) | None and test `is None` in the kernel",
    )
    return None


def _not_a_tensor(param: Param, value: Any, report: Report) -> None:
    is_array = type(value).__module__ == "numpy" and hasattr(value, "ndim")
    report.error(
        "launch/tensor",
        f"{param.name!r} is a tensor, got {type(value).__name__} {torch_glue.describe(value)}",
        declared=_declared(param),
        help="torch.from_numpy(array) shares its memory" if is_array else None,
    )


# --- tensors


def usable_dtype(name: str, tensor: Any, report: Report) -> DType | None:
    """The element type of a tensor whose memory a kernel can use; None, reported, for any other."""
    if tensor.layout is not _strided_layout() or tensor.is_nested:
        layout = "nested" if tensor.is_nested else tensor.layout
        report.error(
            "launch/tensor",
            f"{name!r} has the layout {layout}, expected a strided (dense) tensor",
        )
        return None
    if tensor.device.type not in ("cpu", "cuda"):
        report.error(
            "launch/tensor",
            f"{name!r} is on the device {tensor.device}, expected the CPU or a CUDA device",
            help="torch.empty on the CPU takes no memory until it is written; that is enough for check "
            "and compile"
            if tensor.device.type == "meta"
            else None,
        )
        return None
    if not torch_glue.has_memory(tensor):
        report.error(
            "launch/tensor",
            f"{name!r} has no memory to read: it is a fake or transformed tensor "
            f"({type(tensor).__name__})",
            help="kernels do not run under torch.func, torch.export or a FakeTensorMode; tile.custom_op "
            "makes an operator of them that does",
        )
        return None
    dtype = torch_glue.dtype_of(tensor)
    if dtype is None or tensor.is_conj() or tensor.is_neg():
        report.error(
            "launch/dtype",
            f"{name!r}: kernels have no element type {tensor.dtype}"
            + ("" if dtype is None else " with a lazy conjugation or negation (resolve it first)"),
        )
        return None
    return dtype


def _tensor(param: Param, tensor: Any, report: Report) -> Arg | None:
    dtype = usable_dtype(param.name, tensor, report)
    if dtype is None:
        return None
    declared: DType | None = getattr(param.annotation, "dtype", None)
    if declared is not None and declared != dtype:
        report.error(
            "launch/dtype",
            f"{param.name!r} is {dtype}, expected {declared}",
            declared=_declared(param),
        )
    address: int = tensor.data_ptr()
    promised: int | None = getattr(param.annotation, "align_bytes", None)
    if promised is not None and address % promised:
        report.error(
            "launch/align",
            f"{param.name!r} starts at address {address:#x}, which is a multiple of "
            f"{alignment_class(address, promised)} bytes; expected a multiple of {promised}",
            declared=_declared(param),
            help="a slice may start anywhere: .clone() gives an aligned copy",
        )
    align = alignment_class(address, max(promised or 0, DEFAULT_ALIGN_BYTES))
    dynamic = _dynamic_dims(param, tensor.dim())
    return TensorArg(
        dtype,
        tuple(None if d in dynamic else int(n) for d, n in enumerate(tensor.shape)),
        tuple(
            None if stride_is_dynamic(d, int(s), dynamic) else int(s)
            for d, s in enumerate(_strides(tensor))
        ),
        align,
    )


def _strides(tensor: Any) -> tuple[int, ...]:
    """Strides in elements. A contiguous tensor's follow from its shape: torch leaves those of
    dimensions of size 1 arbitrary, and a kernel must not be built again for them."""
    if not tensor.is_contiguous():
        return tuple(tensor.stride())
    strides: list[int] = []
    step = 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= max(int(size), 1)
    return tuple(reversed(strides))


def _strided_layout() -> Any:
    import torch

    return torch.strided


def alignment_class(address: int, limit_bytes: int) -> int:
    """Largest power of two that divides ``address``, at most ``limit_bytes`` (a power of two)."""
    low = address & (limit_bytes - 1)
    return low & -low if low else limit_bytes


def dynamic_dims(annotation: Any) -> frozenset[int]:
    """Indices of the dimensions that a tensor annotation marks ``T.dynamic``."""
    shape = getattr(annotation, "shape", None)
    if not isinstance(shape, tuple):
        return frozenset()
    return frozenset(d for d, dim in enumerate(shape) if not isinstance(dim, int | str))


def shaped(params: Sequence[Param]) -> tuple[bool, ...]:
    """Which parameters pass their shape and strides to plans: those with dynamic dimensions."""
    return tuple(p.kind == "tensor" and bool(dynamic_dims(p.annotation)) for p in params)


def _dynamic_dims(param: Param, rank: int) -> frozenset[int]:
    return frozenset(d for d in dynamic_dims(param.annotation) if d < rank)


def stride_is_dynamic(dim: int, stride_elems: int, dynamic: frozenset[int]) -> bool:
    """Strides to the left of a dynamic dimension follow it. Zero (a broadcast) stays static: it
    decides whether the tensor may be written."""
    return stride_elems != 0 and any(d > dim for d in dynamic)


def _shape(value: Any) -> tuple[int | None, ...]:
    return tuple(None if n is None else int(n) for n in value.shape)


def _check_declared_shape(
    param: Param,
    actual: tuple[int | None, ...],
    sizes: dict[str, tuple[str, int]],
    report: Report,
) -> None:
    """Rank, exact sizes, and names that must have one size over the whole call."""
    declared = getattr(param.annotation, "shape", None)
    if declared is None:
        return
    if len(declared) != len(actual):
        report.error(
            "launch/rank",
            f"{param.name!r} has {len(actual)} dimensions, expected {len(declared)}",
            where=f"shape {_tuple_text(actual)}",
            declared=_declared(param),
        )
        return
    for index, (dim, size) in enumerate(zip(declared, actual)):
        if size is None:
            continue
        if isinstance(dim, int):
            if dim != size:
                report.error(
                    "launch/shape",
                    f"dimension {index} of {param.name!r} is {size}, expected {dim}",
                    where=f"shape {_tuple_text(actual)}",
                    declared=_declared(param),
                )
            continue
        name = dim if isinstance(dim, str) else dim.name
        place = f"dimension {index} of {param.name!r}"
        first_place, first = sizes.setdefault(name, (place, size))
        if first != size:
            report.error(
                "launch/shape",
                f"{name} is {first} in {first_place} but {size} in {place}",
                where=f"shape {_tuple_text(actual)}",
                declared=_declared(param),
            )


def _check_extents(param: Param, arg: TensorArg, report: Report) -> None:
    """A kernel is not compiled for an empty tensor; of a dynamic size ``refuse_empty`` sees to it."""
    if 0 in arg.shape:
        _report_empty(param, arg.shape, report)


def is_empty(param: Param, value: Any) -> bool:
    """Whether a dynamic size of an argument is 0: kernels are checked for sizes of at least 1."""
    dynamic = dynamic_dims(param.annotation) if param.kind == "tensor" else ()
    return value is not None and any(value.shape[d] == 0 for d in dynamic)


def refuse_empty(params: Sequence[Param], values: Sequence[Any]) -> None:
    """``LaunchError`` for every empty tensor of a launch that would run."""
    report = Report()
    for param, value in zip(params, values):
        if is_empty(param, value):
            with report.at(param.span):
                _report_empty(param, _shape(value), report)
    report.raise_if_failed(LaunchError)


def _report_empty(param: Param, shape: tuple[int | None, ...], report: Report) -> None:
    report.error(
        "launch/empty",
        f"{param.name!r} is empty: its dimension {shape.index(0)} is 0",
        where=f"shape {_tuple_text(shape)}",
        declared=_declared(param),
        help="make the grid 0 CTAs for it, which launches nothing; or do not launch"
        if shape.index(0) in dynamic_dims(param.annotation)
        else "declare the size T.dynamic(...) and make the grid 0 CTAs for it, which launches nothing; "
        "or do not launch",
    )


def _tuple_text(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("?" if n is None else str(n) for n in shape) + ")"


def _device(
    params: Sequence[Param], values: Sequence[Any], report: Report
) -> tuple[int | None, bool]:
    """The one CUDA device of the tensors, or the CPU. Pinned host tensors go with any device."""
    tensors = [
        (p.name, v)
        for p, v in zip(params, values)
        if torch_glue.is_tensor(v) and p.kind != "constexpr"
    ]
    cuda = sorted({int(v.get_device()) for _, v in tensors if v.device.type == "cuda"})
    if not cuda:
        return (torch_glue.CPU if tensors else None), False
    host = [(n, v) for n, v in tensors if v.device.type == "cpu"]
    pageable = [n for n, v in host if not v.is_pinned()]
    if len(cuda) > 1 or pageable:
        places = ", ".join(f"{n}: {v.device}" for n, v in tensors)
        fix = f"move {', '.join(pageable)} to cuda:{cuda[0]}" if pageable else None
        report.error(
            "launch/device",
            "the tensors of one launch must be on one device (pinned host memory goes with any)",
            where=places,
            help=fix,
        )
    return cuda[0], bool(host)


# --- scalars


def _scalar(param: Param, value: Any, report: Report) -> Arg | None:
    declared = scalar_dtype(param.annotation)
    if isinstance(value, DType):
        return ScalarArg(declared or value)
    if not isinstance(value, bool | int | float):
        report.error(
            "launch/scalar",
            f"{param.name!r}: a run-time argument is a number or a tensor, got "
            f"{type(value).__name__} {torch_glue.describe(value)}",
            declared=_declared(param),
            help="annotate the parameter T.constexpr to pass any hashable value at compile time",
        )
        return None
    if declared is None:
        return _untyped_scalar(param, value, report)
    reason = misfit(value, declared)
    if reason is not None:
        report.error(
            "launch/range"
            if isinstance(value, int | float) and "fit" in reason
            else "launch/scalar",
            f"{param.name!r}: {reason}",
            declared=_declared(param),
        )
        return None
    return ScalarArg(declared)


def scalar_dtype(annotation: Any) -> DType | None:
    """The type a scalar annotation names: a DType, or Python's int, float, bool (None: open).

    ``int`` and an absent annotation leave the width to the value; ``float`` is float32.
    """
    if isinstance(annotation, DType):
        return annotation
    if annotation is bool:
        return dtypes.bool_
    if annotation is float:
        return dtypes.float32
    return None


def _untyped_scalar(param: Param, value: bool | int | float, report: Report) -> Arg | None:
    try:
        dtype = dtypes.literal_type(value, None)
        reason = misfit(value, dtype)
    except ValueError as error:
        reason = str(error)
    if reason is not None:
        report.error("launch/range", f"{param.name!r}: {reason}", declared=_declared(param))
        return None
    return ScalarArg(dtype)


def misfit(value: bool | int | float, dtype: DType) -> str | None:
    """Why a number cannot be passed as ``dtype``; None when it can."""
    if dtype.kind == "bool":
        return None if isinstance(value, bool) else f"expected a bool, got {value!r}"
    if dtype.is_integer:
        if isinstance(value, float):
            return f"expected an integer ({dtype}), got the float {value!r}"
        low, high = dtypes.integer_range(dtype)
        if not low <= value <= high:
            return f"{value} does not fit {dtype} [{low}, {high}]"
        return None
    try:
        number = float(value)
    except OverflowError:
        return f"{value} does not fit {dtype}"
    if math.isfinite(number) and abs(number) > largest_finite(dtype):
        return f"{value} does not fit {dtype} (largest finite value {largest_finite(dtype)})"
    return None


def largest_finite(dtype: DType) -> float:
    """Largest Python float that rounds to a finite value of an IEEE-like float type."""
    if dtype.bits == 64:
        return struct.unpack("<d", struct.pack("<Q", 0x7FEF_FFFF_FFFF_FFFF))[0]  # type: ignore[no-any-return]
    top_exponent = (1 << (dtype.exponent_bits - 1)) - 1
    return (2.0 - 2.0**-dtype.mantissa_bits) * 2.0**top_exponent


# --- compile-time values


def _constexpr(param: Param, value: Any, report: Report) -> Arg | None:
    if isinstance(value, ConstArg):
        value = value.value
    if torch_glue.is_tensor(value):
        report.error(
            "launch/constexpr",
            f"{param.name!r} is T.constexpr, got {torch_glue.describe(value)}",
            help="annotate it T.Tensor(...)",
        )
        return None
    try:
        hash(value)
    except TypeError:
        kind = type(value).__name__
        fixes = {"list": "pass a tuple", "dict": "pass a frozen dataclass or a tuple of pairs"}
        report.error(
            "launch/constexpr",
            f"{param.name!r} is T.constexpr and needs a hashable value, got the {kind} "
            f"{torch_glue.describe(value)}",
            help=fixes.get(kind, "a frozen dataclass is hashable"),
        )
        return None
    return ConstArg(value)


def _declared(param: Param) -> str | None:
    if param.kind == "any" or param.annotation is None:
        return None
    annotation = param.annotation
    if param.kind == "tensor" and hasattr(annotation, "align_bytes"):
        return f"{param.name}: {_tensor_text(annotation)}"
    return f"{param.name}: {annotation}"


def _tensor_text(annotation: Any) -> str:
    parts = []
    if annotation.shape is not None:
        dims = (
            repr(d) if isinstance(d, int | str) else f"T.dynamic({d.name!r})"
            for d in annotation.shape
        )
        parts.append(f"({', '.join(dims)}{',' if len(annotation.shape) == 1 else ''})")
    if annotation.dtype is not None:
        parts.append(repr(annotation.dtype.name))
    if annotation.align_bytes is not None:
        parts.append(f"align={annotation.align_bytes}")
    text = f"T.Tensor({', '.join(parts)})"
    return text + " | None" if annotation.optional else text
