"""Kernel parameters against a signature: buffers, run-time scalars, compile-time values.

A tensor parameter ``X`` becomes a buffer. Its run-time sizes are int64 parameters (named by
``T.dynamic("M")``, else ``X_shape0``), its run-time strides int64 parameters ``X_stride0``.

Not here: building signatures from arguments (runtime).
"""

from __future__ import annotations

from typing import Any

from tilejit import dtypes
from tilejit.errors import SyntaxUnsupported, TileError, fault
from tilejit.frontend.kernel import Kernel, ParamSpec
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import unpacking
from tilejit.ir import nodes as ir
from tilejit.ir import views
from tilejit.ir.signature import ConstArg, ScalarArg, Signature, TensorArg
from tilejit.language.annotations import DynamicDim, Tensor
from tilejit.layout import Iter, TileLayout, aliases


def check(kernel: Kernel, signature: Signature) -> None:
    """The signature has one entry per parameter, of a kind that the annotation takes."""
    names = [name for name, _ in signature.args]
    wanted = [p.name for p in kernel.params]
    if names != wanted:
        raise _refused(
            "signature", f"{kernel.name}({', '.join(wanted)}) is specialised on "
            f"({', '.join(names)})", kernel.params[0] if kernel.params else None, kernel,
        )  # fmt: skip
    sizes: dict[str, tuple[int, str]] = {}
    for spec, (_, arg) in zip(kernel.params, signature.args):
        _check_kind(spec, arg, kernel)
        if isinstance(spec.annotation, Tensor) and isinstance(arg, TensorArg):
            _check_tensor(spec, spec.annotation, arg, sizes, kernel)


def _refused(
    code: str, message: str, spec: ParamSpec | None, kernel: Kernel, **notes: str
) -> TileError:
    span = spec.span if spec else kernel.span
    return fault(SyntaxUnsupported, f"frontend/{code}", message, span, **notes)


def _check_kind(spec: ParamSpec, arg: Any, kernel: Kernel) -> None:
    if spec.kind == "tensor":
        none = isinstance(arg, ConstArg) and arg.value is None
        if none and not spec.annotation.optional:
            raise _refused(
                "argument", f"{spec.name!r} is a tensor, got None", spec, kernel,
                help="write T.Tensor(...) | None where None is meant to be allowed",
            )  # fmt: skip
        if not none and not isinstance(arg, TensorArg):
            raise _refused("argument", f"{spec.name!r} is a tensor, got {_kind(arg)}", spec, kernel)
    elif spec.kind == "scalar" and not isinstance(arg, ScalarArg):
        raise _refused(
            "argument",
            f"{spec.name!r} is a run-time {spec.annotation}, got {_kind(arg)}",
            spec,
            kernel,
        )
    elif spec.kind == "constexpr" and not isinstance(arg, ConstArg):
        raise _refused("argument", f"{spec.name!r} is compile-time, got {_kind(arg)}", spec, kernel)


def _kind(arg: Any) -> str:
    match arg:
        case TensorArg():
            return "a tensor"
        case ScalarArg():
            return f"a run-time {arg.dtype}"
        case ConstArg():
            return f"the compile-time value {arg.value!r}"
    return repr(arg)


def _check_tensor(
    spec: ParamSpec,
    wanted: Tensor,
    arg: TensorArg,
    sizes: dict[str, tuple[int, str]],
    kernel: Kernel,
) -> None:
    if wanted.dtype is not None and wanted.dtype != arg.dtype:
        is_type = isinstance(arg.dtype, dtypes.DType)
        raise _refused(
            "argument-dtype",
            f"{spec.name!r} holds {arg.dtype if is_type else repr(arg.dtype)}, expected {wanted.dtype}",
            spec,
            kernel,
            **(
                {} if is_type else {"help": f"TensorArg(T.{wanted.dtype}, …): a type, not its name"}
            ),
        )
    if wanted.align_bytes is not None and arg.align_bytes < wanted.align_bytes:
        raise _refused(
            "argument-align", f"{spec.name!r} is aligned to {arg.align_bytes} bytes, expected "
            f"{wanted.align_bytes}", spec, kernel,
        )  # fmt: skip
    if wanted.shape is None:
        return
    if len(wanted.shape) != len(arg.shape):
        raise _refused(
            "argument-rank", f"{spec.name!r} has {len(arg.shape)} axes, expected {len(wanted.shape)}",
            spec, kernel,
        )  # fmt: skip
    for axis, (dim, extent) in enumerate(zip(wanted.shape, arg.shape)):
        if isinstance(dim, int) and extent is not None and dim != extent:
            raise _refused(
                "argument-shape", f"axis {axis} of {spec.name!r} has {extent} elements, expected {dim}",
                spec, kernel,
            )  # fmt: skip
        if isinstance(dim, str) and extent is not None:
            known, where = sizes.setdefault(dim, (extent, f"axis {axis} of {spec.name!r}"))
            if known != extent:
                raise _refused(
                    "argument-shape", f"{dim} is {extent} on axis {axis} of {spec.name!r} but "
                    f"{known} on {where}", spec, kernel,
                )  # fmt: skip


def bind(lw: Lowering, kernel: Kernel) -> dict[str, Any]:
    """Each parameter's value in the kernel's scope; the IR parameters go to ``lw.params``."""
    bound: dict[str, Any] = {}
    lw.taken.update(p.name for p in kernel.params)
    lw.taken.update(_dynamic_names(kernel))
    for spec, (_, arg) in zip(kernel.params, lw.signature.args):
        match arg:
            case ConstArg():
                bound[spec.name] = arg.value
            case ScalarArg():
                dtype = spec.annotation if spec.kind == "scalar" else arg.dtype
                var = ir.Var(spec.name, ir.ScalarType(dtype), span=spec.span)
                lw.params.append(var)
                bound[spec.name] = var
            case TensorArg():
                bound[spec.name] = _tensor(lw, spec, arg)
                _note_sizes(lw, spec)
    return bound


def _note_sizes(lw: Lowering, spec: ParamSpec) -> None:
    """How the body gets the dimensions that an annotation names."""
    dims = spec.annotation.shape if isinstance(spec.annotation, Tensor) else None
    names = [d.name if isinstance(d, DynamicDim) else d for d in dims or ()]
    pattern = unpacking([n if isinstance(n, str) else "_" for n in names])
    for name in names:
        if isinstance(name, str):
            lw.sizes.setdefault(name, f"{pattern} = {spec.name}.shape")


def _dynamic_names(kernel: Kernel) -> set[str]:
    names: set[str] = set()
    for spec in kernel.params:
        if isinstance(spec.annotation, Tensor):
            names |= {d.name for d in spec.annotation.shape or () if isinstance(d, DynamicDim)}
    return names


def _tensor(lw: Lowering, spec: ParamSpec, arg: TensorArg) -> ir.View:
    shape = tuple(_extent(lw, spec, axis, extent) for axis, extent in enumerate(arg.shape))
    strides: list[tuple[int, Any]] = []
    iters: list[Iter] = []
    for axis, (extent, stride) in enumerate(zip(shape, arg.strides)):
        static_extent = extent if isinstance(extent, int) else 1
        if stride is None:
            strides.append((axis, _size(lw, f"{spec.name}_stride{axis}")))
            iters.append(Iter(static_extent, 0))
        else:
            iters.append(Iter(static_extent, stride))
    layout = TileLayout(tuple(iters) or (Iter(1, 1),))
    read_only = None in arg.shape and _shares_addresses(arg)
    kind = ir.TensorType(shape, arg.dtype, layout, "global", arg.align_bytes, read_only)
    buffer = ir.Var(spec.name, kind, span=spec.span)
    lw.params.append(buffer)
    return views.whole(buffer, tuple(strides))


def _shares_addresses(arg: TensorArg) -> bool:
    """Whether elements do: a run-time size counts as 2, and a run-time stride is not zero
    (``runtime.specialise``)."""
    known = tuple(
        Iter(2 if extent is None else extent, stride)
        for extent, stride in zip(arg.shape, arg.strides)
        if stride is not None
    )
    return bool(known) and aliases(TileLayout(known))


def _extent(lw: Lowering, spec: ParamSpec, axis: int, extent: int | None) -> int | ir.Var:
    if extent is not None:
        return extent
    dims = spec.annotation.shape if isinstance(spec.annotation, Tensor) else None
    dim = dims[axis] if dims is not None else None
    name = dim.name if isinstance(dim, DynamicDim) else f"{spec.name}_shape{axis}"
    return _size(lw, name)


def _size(lw: Lowering, name: str) -> ir.Var:
    """The int64 parameter ``name``, one for all tensors that share it."""
    for param in lw.params:
        if param.name == name:
            return param
    var = ir.Var(name, ir.ScalarType(dtypes.int64))
    lw.taken.add(name)
    lw.params.append(var)
    return var


def used_order(lw: Lowering) -> list[ir.Var]:
    """Buffers and scalars in the order of the kernel's parameters, then sizes and strides."""
    written = {name for name, _ in lw.signature.args}
    own = [p for p in lw.params if p.name in written]
    return own + [p for p in lw.params if p.name not in written]
