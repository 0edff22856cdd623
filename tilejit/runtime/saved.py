"""A compiled kernel without its Python source: everything that launching it takes, in one file.

A ``Saved`` is an artifact with what the IR and the frontend knew of it: the signature, the launch, where
each parameter of the compiled kernel comes from. ``pack`` writes it as one checksummed container of the
cache's format, a JSON header before cubin and texts; ``unpack`` needs neither source, frontend nor torch.
Each first launch of a variant goes by way of it too, so that a saved kernel launches as any other.

Not here: taking arguments and launching (``loaded``), plans (``plan``).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import LaunchError, Span, TileError, fault
from tilejit.ir import serial
from tilejit.ir.nodes import LaunchConfig
from tilejit.ir.signature import Arg, ConstArg, LaunchOverride, ScalarArg, Signature, TensorArg
from tilejit.runtime import cache, torch_glue
from tilejit.runtime import plan as plans
from tilejit.runtime.artifact import Artifact
from tilejit.runtime.cache import Damaged, Entry
from tilejit.runtime.driver import DriverApi, LaunchAttributes
from tilejit.runtime.encoding import digest
from tilejit.runtime.plan import LaunchParam, Plan, PlanSpec
from tilejit.runtime.specialise import dynamic_dims, shaped
from tilejit.target import Target

if TYPE_CHECKING:
    from tilejit.runtime.variant import Variant

FORMAT = 1
"""Raised when a reader of older files could not read newer ones."""
SUFFIX = ".tile"
_PLAIN = frozenset((bool, int, float, str))


@dataclass(frozen=True, slots=True)
class DynamicDim:
    """A dimension whose size a launch gives; equal names are one size."""

    name: str


@dataclass(frozen=True, slots=True)
class TensorParam:
    """What a tensor argument must be: exact sizes and dynamic ones, dtype, bytes that its address is a
    multiple of. ``optional``: the kernel was compiled for None there, and the rest is not known."""

    shape: tuple[int | str | DynamicDim, ...] | None
    dtype: DType | None
    align_bytes: int | None
    optional: bool = False


@dataclass(frozen=True, slots=True)
class SavedParam:
    """A parameter of the Python function (``specialise.Param``), as exact as the signature is."""

    name: str
    kind: str
    annotation: Any
    default: Any
    has_default: bool
    span: Span


@dataclass(frozen=True, slots=True)
class Opaque:
    """A compile-time value that JSON has no form for: its text, and what tells it from others."""

    text: str
    digest: str

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Saved:
    """``launch_params``: the compiled kernel's parameters in launch order, before ``artifact.tensor_maps``.
    ``bank_conflicts``: as ``Stats`` lists them; None where they were not looked for."""

    artifact: Artifact
    signature: Signature
    params: tuple[SavedParam, ...]
    launch: LaunchConfig
    launch_params: tuple[LaunchParam, ...]
    bank_conflicts: tuple[str, ...] | None = None

    @property
    def attributes(self) -> LaunchAttributes:
        """Everything of the launch that is fixed."""
        return LaunchAttributes(
            _three(self.launch.block),
            self.artifact.dynamic_shared_bytes,
            None if self.launch.cluster is None else _three(self.launch.cluster),
            self.launch.cooperative,
            self.launch.programmatic_stream_serialization,
        )

    @cached_property
    def shaped(self) -> tuple[bool, ...]:
        """Which arguments a plan's ``run`` takes with shape and strides."""
        return shaped(self.params)

    def plan(
        self,
        driver: DriverApi,
        device: int,
        stream_of: Callable[[int], int],
        *,
        device_of: Callable[[], int] | None = None,
        caller_grid: bool = False,
    ) -> Plan:
        """Loads the cubin on ``device``, whose context is current, and prepares the launch.

        ``stream_of(device)`` gives the raw stream; ``device_of()`` the current device, None where there
        is only one. ``caller_grid``: ``run`` is given the grid, whether or not the kernel has its own.
        """
        artifact, fixed = self.artifact, self.attributes
        spec = PlanSpec(
            artifact.kernel,
            self.shaped,
            self.launch_params,
            None if caller_grid else self.launch.grid,
            self.launch.grid_bound,
            fixed,
            artifact.tensor_maps,
        )
        _check_resources(artifact, fixed, driver, device)
        handle = driver.load_function(artifact.cubin, artifact.entry, device)
        if fixed.dynamic_shared_bytes:
            driver.set_dynamic_shared_bytes(handle, fixed.dynamic_shared_bytes)
        if fixed.cluster is not None and math.prod(fixed.cluster) > 8:
            driver.allow_large_cluster(handle)
        return plans.build(spec, handle, driver, device, stream_of, device_of)


def _check_resources(
    artifact: Artifact, fixed: LaunchAttributes, driver: DriverApi, device: int
) -> None:
    """Refuses what the device cannot hold, with both numbers; nothing is remembered of a refusal."""
    limits = driver.limits(device)
    shared_bytes = artifact.resources.static_shared_bytes + fixed.dynamic_shared_bytes
    if shared_bytes > limits.max_shared_bytes_per_block:
        raise fault(
            LaunchError,
            "launch/shared-memory",
            f"{artifact.kernel} needs {shared_bytes} bytes of shared memory per CTA; {limits.name} "
            f"allows {limits.max_shared_bytes_per_block}",
        )
    threads = math.prod(fixed.block)
    if not 1 <= threads <= limits.max_threads_per_block:
        raise fault(
            LaunchError,
            "launch/block",
            f"{artifact.kernel} has {threads} threads per CTA; {limits.name} allows "
            f"{limits.max_threads_per_block}",
        )


def _three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


# --- before it is loaded


def refuse_other_target(kernel: str, target: str, device: int) -> None:
    """``LaunchError`` when code for ``target`` does not run on CUDA device ``device``."""
    made, present = Target.parse(target), Target.parse(torch_glue.target_of_device(device))
    if not made.runs_on(present):
        raise fault(
            LaunchError,
            "launch/target",
            f"{kernel} is compiled for {made}; cuda:{device} is {present}",
            help=f"compile it for this GPU: target={present.name!r}",
        )


def refuse_capture(kernel: str, prepared: str, device: int) -> None:
    """``LaunchError`` where preparing a launch would be captured into a CUDA graph."""
    if torch_glue.capturing(device):
        raise fault(
            LaunchError,
            "launch/capture",
            f"{kernel} would be {prepared} inside a CUDA graph capture",
            help="call it once with the same kind of arguments before the capture",
        )


# --- from a variant


def of(variant: Variant) -> Saved:
    """``variant`` compiled, without what only making it took."""
    artifact, function = variant.artifact, variant.function
    source = variant.source.params
    by_name = {p.name: p for p in plans.launch_params(function, [p.name for p in source])}
    return Saved(
        artifact,
        variant.signature,
        tuple(_param(p, arg) for p, (_, arg) in zip(source, variant.signature.args)),
        function.launch,
        tuple(by_name[name] for name in artifact.params),
    )


def _param(param: Any, arg: Arg) -> SavedParam:
    """A parameter narrowed to what the kernel was compiled for."""
    kind: str = param.kind
    annotation: TensorParam | DType | None = None
    default, has_default = param.default, param.has_default
    if isinstance(arg, TensorArg):
        kind = "tensor"
        names = {d: param.annotation.shape[d].name for d in dynamic_dims(param.annotation)}
        shape = tuple(
            DynamicDim(names.get(d, f"{param.name}_shape{d}")) if n is None else n
            for d, n in enumerate(arg.shape)
        )
        annotation = TensorParam(shape, arg.dtype, arg.align_bytes)
    elif isinstance(arg, ScalarArg):
        kind, annotation = "scalar", arg.dtype
    elif kind == "constexpr":
        # Its value is compiled in: a call may leave it out.
        default, has_default = _kept(arg.value), True
    else:
        kind = "tensor"
        dims = getattr(param.annotation, "shape", None)
        # As many dynamic dimensions as declared: a plan's values have the same places either way.
        shape_or_none = None if dims is None else tuple(_dim(d) for d in dims)
        annotation = TensorParam(shape_or_none, None, None, optional=True)
    return SavedParam(param.name, kind, annotation, default, has_default, Span(*_place(param.span)))


def _place(span: Span) -> tuple[str, int, int, int, int]:
    return span.file, span.line, span.col, span.end_line, span.end_col


def _dim(dim: Any) -> int | str | DynamicDim:
    return dim if isinstance(dim, int | str) else DynamicDim(dim.name)


def _kept(value: Any) -> Any:
    """A compile-time value as a file holds it: itself, or ``Opaque``."""
    if isinstance(value, Opaque) or _has_json_form(value):
        return value
    return Opaque(repr(value), digest(value))


def _has_json_form(value: Any) -> bool:
    """Whether ``serial`` gives back this very value: no subclass, nothing inside that is one."""
    if type(value) is tuple:
        return all(map(_has_json_form, value))
    return value is None or type(value) in _PLAIN or isinstance(value, DType)


# --- as bytes


def pack(variant: Variant) -> bytes:
    """``variant``, compiled, as the bytes of a saved kernel."""
    return to_bytes(of(variant))


def to_bytes(saved: Saved) -> bytes:
    """The container: see ``unpack``."""
    entry = saved.artifact.to_entry()
    facts = {
        **entry.header,
        "saved_format": FORMAT,
        "cache_key": saved.artifact.key,
        "signature": [arg_data(name, arg) for name, arg in saved.signature.args],
        "override": asdict(saved.signature.launch),
        "parameters": [_param_data(p) for p in saved.params],
        "launch": serial.encode(saved.launch),
        "launch_parameters": [{**asdict(p), "dtype": p.dtype.name} for p in saved.launch_params],
        "bank_conflicts": saved.bank_conflicts,
    }
    return cache.pack(saved.artifact.key, Entry(facts, entry.payloads))


def unpack(data: bytes, name: str = "the saved kernel") -> Saved:
    """What ``pack`` made ``data`` of. ``LaunchError``, ``saved/…``, says what is wrong with it; ``name``:
    how messages call it."""
    try:
        key, entry = cache.read(data)
    except Damaged as error:
        raise _unreadable("damaged", f"{name} {error}") from None
    facts = entry.header
    written = facts.get("saved_format")
    if written is None:
        raise _unreadable(
            "kind", f"{name} is an entry of the disk cache, expected a file of Variant.save"
        )
    if written != FORMAT:
        raise _unreadable(
            "format",
            f"{name} has format {written}, this tilejit reads format {FORMAT}",
            help="load it with the tilejit that saved it, or one that is newer",
        )
    artifact = Artifact.from_entry(key, entry, f"loaded from {name}", 0.0)
    if artifact is None:
        raise _unreadable("damaged", f"{name} lacks a part of a compiled kernel")
    try:
        return _from_facts(artifact, facts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable("damaged", f"{name} does not hold a kernel: {error!r}") from None


def _unreadable(condition: str, message: str, **notes: str) -> TileError:
    notes.setdefault("help", "save the kernel again: k.compile(...).save(path)")
    return fault(LaunchError, f"saved/{condition}", message, None, **notes)


def _from_facts(artifact: Artifact, facts: Mapping[str, Any]) -> Saved:
    args = tuple((row["name"], _arg(row)) for row in facts["signature"])
    over = {k: None if v is None else tuple(v) for k, v in facts["override"].items()}
    conflicts = facts["bank_conflicts"]
    return Saved(
        artifact,
        Signature(args, artifact.target, LaunchOverride(**over)),
        tuple(map(_param_of, facts["parameters"])),
        serial.decode(facts["launch"]),
        tuple(
            LaunchParam(**{**row, "dtype": dtypes.dtype(row["dtype"])})
            for row in facts["launch_parameters"]
        ),
        None if conflicts is None else tuple(conflicts),
    )


def arg_data(name: str, arg: Arg) -> dict[str, Any]:
    match arg:
        case TensorArg():
            return {
                "name": name, "kind": "tensor", "dtype": arg.dtype.name, "shape": arg.shape,
                "strides": arg.strides, "align_bytes": arg.align_bytes,
            }  # fmt: skip
        case ScalarArg():
            return {"name": name, "kind": "scalar", "dtype": arg.dtype.name}
        case ConstArg():
            return {"name": name, "kind": "constant", "value": _value_data(_kept(arg.value))}


def _arg(row: Mapping[str, Any]) -> Arg:
    if row["kind"] == "tensor":
        return TensorArg(
            dtypes.dtype(row["dtype"]),
            tuple(row["shape"]),
            tuple(row["strides"]),
            row["align_bytes"],
        )
    if row["kind"] == "scalar":
        return ScalarArg(dtypes.dtype(row["dtype"]))
    return ConstArg(_value(row["value"]))


def _value_data(value: Any) -> Any:
    return {"opaque": asdict(value)} if isinstance(value, Opaque) else serial.encode(value)


def _value(data: Any) -> Any:
    if isinstance(data, dict) and "opaque" in data:
        return Opaque(**data["opaque"])
    return serial.decode(data)


def _param_data(param: SavedParam) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": param.name, "kind": param.kind}
    if param.has_default:
        facts["default"] = _value_data(_kept(param.default))
    annotation = param.annotation
    if isinstance(annotation, TensorParam):
        dims = annotation.shape
        facts |= {
            "shape": None if dims is None else [_dim_data(d) for d in dims],
            "dtype": None if annotation.dtype is None else annotation.dtype.name,
            "align_bytes": annotation.align_bytes,
            "optional": annotation.optional,
        }
    elif isinstance(annotation, DType):
        facts["dtype"] = annotation.name
    if param.span.file:
        facts["declared_at"] = _place(param.span)
    return facts


def _dim_data(dim: int | str | DynamicDim) -> Any:
    return {"dynamic": dim.name} if isinstance(dim, DynamicDim) else dim


def _param_of(facts: Mapping[str, Any]) -> SavedParam:
    annotation: TensorParam | DType | None = None
    if facts["kind"] == "tensor":
        dims = facts["shape"]
        annotation = TensorParam(
            None if dims is None else tuple(DynamicDim(d["dynamic"]) if isinstance(d, dict) else d for d in dims),
            None if facts["dtype"] is None else dtypes.dtype(facts["dtype"]),
            facts["align_bytes"],
            facts["optional"],
        )  # fmt: skip
    elif facts["kind"] == "scalar":
        annotation = dtypes.dtype(facts["dtype"])
    return SavedParam(
        facts["name"],
        facts["kind"],
        annotation,
        _value(facts.get("default")),
        "default" in facts,
        Span(*facts.get("declared_at", ("", 0))),
    )


# --- as a file


def save(variant: Variant, path: str | os.PathLike[str]) -> Path:
    """Writes a saved kernel to ``path`` and gives it; a file that is there is replaced as a whole."""
    place = Path(path)
    data = to_bytes(replace(of(variant), bank_conflicts=variant.stats.bank_conflicts))
    staged = place.parent / f".{place.name}-{os.getpid()}-{os.urandom(8).hex()}"
    try:
        staged.write_bytes(data)
        os.replace(staged, place)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        with suppress(OSError, ValueError):
            staged.unlink()
        raise fault(
            LaunchError, "saved/write", f"{place} cannot be written: {_reason(error)}"
        ) from None
    return place


def read(path: str | os.PathLike[str]) -> Saved:
    """The saved kernel in the file at ``path``."""
    try:
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise fault(LaunchError, "saved/read", f"{path} cannot be read: {_reason(error)}") from None
    return unpack(data, str(path))


def _reason(error: OSError | ValueError) -> str:
    return str(getattr(error, "strerror", None) or error)
