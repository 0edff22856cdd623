"""Kernels as torch operators: ``custom_op``, for ``torch.compile``, autograd and CUDA graphs.

torch has to know what an operator takes and which of its arguments it writes. For a kernel both are read
off the kernel: the schema from its parameters, the arguments written from its checked IR. For a host
function that launches kernels the schema is read off its annotations, and what its author says it writes
is compared with what the kernels may write.

Not here: which tensors a kernel may write (``tile.global_accesses``), launching (``runtime``).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, overload

from tilejit.errors import LaunchError, TileError, fault
from tilejit.runtime import observer
from tilejit.runtime.jit import JitFunction
from tilejit.runtime.specialise import Param
from tilejit.runtime.torch_glue import byte_range, is_tensor, torch_dtype
from tilejit.runtime.variant import Variant

Operator: TypeAlias = Any
"""A ``torch.library.CustomOpDef``."""

_NAME = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(\.\w+)?", re.ASCII)
_TORCHS = frozenset(("aten", "prim", "prims"))

EXAMPLE_SIZE = 64
"""Of a run-time dimension, where the written arguments are read off the annotations."""


@overload
def custom_op(
    name: str,
    function: None = None,
    /,
    *,
    mutates: Iterable[str] | None = None,
    example: Sequence[Any] | Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], Operator]: ...
@overload
def custom_op(
    name: str,
    function: Callable[..., Any],
    /,
    *,
    mutates: Iterable[str] | None = None,
    example: Sequence[Any] | Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Operator: ...
def custom_op(
    name: str,
    function: Callable[..., Any] | None = None,
    /,
    *,
    mutates: Iterable[str] | None = None,
    example: Sequence[Any] | Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Operator:
    """A kernel, or a host function that launches kernels, as the torch operator ``namespace::name``.

    A kernel (or ``k[grid]``, or an autotuned kernel) becomes an operator that returns nothing and mutates
    what the kernel writes. That is read off the kernel's IR, for arguments like ``example``, which may be
    left out where annotations say dtype and shape of every tensor, or where ``mutates`` names the arguments.
    ``constants`` gives compile-time arguments that are no numbers or texts, or that no caller should see.

    A host function has torch types as annotations; ``mutates`` names the arguments that it writes (None:
    none). Its first call, and each first launch of a specialisation after it, is checked: a kernel that may
    write another argument raises ``op/undeclared-write`` before it is launched.

    The result is torch's own ``CustomOpDef``: ``register_fake`` (needed where something is returned),
    ``register_autograd``, ``torch.library.opcheck`` work as for any other.
    """
    _refuse_name(name)
    if isinstance(mutates, str):
        raise fault(
            LaunchError,
            "op/schema",
            f"mutates is the text {mutates!r}, expected names of arguments",
            help=f"mutates=({mutates!r},)",
        )
    if function is None:
        return functools.partial(
            custom_op, name, mutates=mutates, example=example, constants=constants
        )
    kernel = getattr(function, "kernel", None)
    if isinstance(kernel, JitFunction):
        return _of_kernel(name, function, kernel, mutates, example, dict(constants or {}))
    if example is not None or constants is not None:
        raise fault(
            LaunchError,
            "op/kernel",
            f"example and constants describe a kernel, got {function!r}",
            help="a host function's own annotations and mutates= say what it takes and writes",
        )
    if not inspect.isfunction(function):
        raise fault(
            LaunchError,
            "op/kernel",
            f"{name} is to be made of {function!r}, expected a kernel or a Python function",
            help="wrap it: def f(x: torch.Tensor) -> torch.Tensor: ...",
        )
    return _define(name, function, function, tuple(mutates or ()))


def _refuse_name(name: object) -> None:
    """``LaunchError`` for what torch takes for no name, or takes although it names an operator of its own."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        why = "expected 'namespace::name' of letters, digits and _"
    elif name.partition("::")[0] in _TORCHS:
        why = "a namespace of torch's own operators, which a new one would break"
    else:
        return
    raise fault(LaunchError, "op/schema", f"the name of an operator is {name!r}, {why}")


def _define(
    name: str, prototype: Callable[..., Any], run: Callable[..., Any], mutates: tuple[str, ...]
) -> Operator:
    """Registers ``run`` under the schema of ``prototype``."""
    import torch

    try:
        schema = torch.library.infer_schema(prototype, mutates_args=mutates)
    except ValueError as error:
        raise fault(
            LaunchError,
            "op/schema",
            f"{name} has no torch schema: {str(error).removeprefix('infer_schema(func): ')}",
            help="annotate every parameter and the result with torch.Tensor, int, float, bool, str, "
            "their lists or Optionals; mutates= names tensor parameters",
        ) from None
    watched = _Watched(name, inspect.signature(prototype), frozenset(mutates), run)

    @functools.wraps(prototype)
    def implementation(*args: Any, **keywords: Any) -> Any:
        return watched(args, keywords)

    operator = torch.library.custom_op(name, implementation, mutates_args=mutates, schema=schema)
    operator.register_vmap(functools.partial(_refuse_vmap, name))
    return operator


def _refuse_vmap(name: str, *_: Any) -> NoReturn:
    raise fault(
        LaunchError,
        "op/vmap",
        f"torch.vmap over {name}: a kernel is made for the shapes it is given, and has no rule for one more",
        help="call it on the batched tensor where the kernel takes one, or give a rule: "
        "op.register_vmap(rule)",
    )


# --- a kernel


def _of_kernel(
    name: str,
    function: Callable[..., Any],
    kernel: JitFunction,
    mutates: Iterable[str] | None,
    example: Sequence[Any] | Mapping[str, Any] | None,
    constants: dict[str, Any],
) -> Operator:
    unknown = constants.keys() - {p.name for p in kernel.params}
    if unknown:
        raise fault(
            LaunchError,
            "op/constexpr",
            f"constants names {_listed(unknown)}, which {kernel.__name__} does not take",
            declared=f"({', '.join(p.name for p in kernel.params)})",
        )
    params = _parameters(name, function, kernel, constants)
    if mutates is None:
        mutates = _written(name, function, kernel, params, example, constants)

    def prototype() -> None: ...

    prototype.__name__ = kernel.__name__
    prototype.__signature__ = inspect.Signature(params, return_annotation=None)  # type: ignore[attr-defined]
    order = [p.name for p in params]

    def run(*args: Any, **keywords: Any) -> None:
        # By name: a bound constant may stand between two arguments.
        function(**dict(zip(order, args)), **keywords, **constants)

    return _define(name, prototype, run, tuple(mutates))


def _parameters(
    name: str, function: Callable[..., Any], kernel: JitFunction, constants: Mapping[str, Any]
) -> list[inspect.Parameter]:
    """The operator's parameters: the kernel's, without constants and without those of the compile-time ones
    that are left to a default which torch has no type for, or to a tuner."""
    found: list[inspect.Parameter] = []
    for param in getattr(function, "params", kernel.params):
        if param.name in constants:
            continue
        annotation = _annotation(name, kernel, param)
        if annotation is not None:
            default = param.default if param.has_default else inspect.Parameter.empty
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            found.append(
                inspect.Parameter(param.name, kind, default=default, annotation=annotation)
            )
    return found


def _annotation(name: str, kernel: JitFunction, param: Param) -> Any:
    """A kernel parameter's type as torch names it; None: it is no argument of the operator. One without
    an annotation is a tensor."""
    import torch

    if param.kind in ("tensor", "any"):
        nullable = getattr(param.annotation, "optional", False)
        nullable |= param.has_default and param.default is None
        return torch.Tensor | None if nullable else torch.Tensor
    if param.kind == "scalar":
        dtype = param.annotation
        return bool if dtype.name == "bool" else int if dtype.is_integer else float
    if param.has_default:
        kind = type(param.default)
        return kind if kind in (bool, int, float, str) else None
    raise fault(
        LaunchError,
        "op/constexpr",
        f"{param.name} of {kernel.__name__} is a compile-time value of unknown type: an operator's arguments "
        "are tensors, numbers and texts",
        help=f"tile.custom_op({name!r}, {kernel.__name__}, constants={{{param.name!r}: …}}), or a number or "
        "text as its default",
    )


def _written(
    name: str,
    function: Any,
    kernel: JitFunction,
    params: Sequence[inspect.Parameter],
    example: Sequence[Any] | Mapping[str, Any] | None,
    constants: Mapping[str, Any],
) -> tuple[str, ...]:
    """The tensors that the kernel may write, for arguments like the example."""
    if example is None:
        example = _example(name, kernel, params)
    elif not isinstance(example, Mapping):
        example = dict(zip((p.name for p in params), example))
    variant: Variant = function.check(**{**example, **constants})
    return tuple(p.name for p in params if p.name in variant.written)


def _example(name: str, kernel: JitFunction, params: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Arguments as the annotations say; those that have a default are left to it, tensors excepted."""
    import torch

    kernel_params = {p.name: p for p in kernel.params}
    found: dict[str, Any] = {}
    for param in params:
        kernel_param = kernel_params[param.name]
        if kernel_param.kind == "scalar":
            found[param.name] = param.annotation(1)
        elif kernel_param.kind != "constexpr":
            shape = getattr(kernel_param.annotation, "shape", None)
            dtype = getattr(kernel_param.annotation, "dtype", None)
            if shape is None or dtype is None or any(isinstance(d, str) for d in shape):
                raise _no_example(name, kernel, param.name)
            sizes = [d if isinstance(d, int) else EXAMPLE_SIZE for d in shape]
            found[param.name] = torch.empty(sizes, dtype=torch_dtype(dtype))
    return found


def _no_example(name: str, kernel: JitFunction, param: str) -> TileError:
    return fault(
        LaunchError,
        "op/mutates",
        f"what {kernel.__name__} writes depends on its arguments, and the annotation of {param} does not say "
        "dtype and shape",
        help=f"give arguments like those of a call, tile.custom_op({name!r}, {kernel.__name__}, example=(…)), or "
        "say it: mutates=(…)",
    )


# --- what a call writes


@dataclass(slots=True)
class _Watched:
    """An operator's implementation, whose launches are compared with what the operator says it mutates."""

    name: str
    signature: inspect.Signature
    mutates: frozenset[str]
    run: Callable[..., Any]
    checked: bool = field(default=False)

    def __call__(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        with observer.observed_by(functools.partial(self._look, args, keywords)):
            if self.checked:
                return self.run(*args, **keywords)
            observer.forget_launches()
            result = self.run(*args, **keywords)
        self.checked = True
        return result

    def _look(
        self,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        variant: Variant,
        given: Mapping[str, Any],
    ) -> None:
        """Before a launch: raises if the kernel may write an argument that ``mutates`` does not name."""
        arguments = self.signature.bind(*args, **keywords).arguments
        declared = [t for n, a in arguments.items() if n in self.mutates for t in _tensors(a)]
        for parameter in sorted(variant.written):
            written = given.get(parameter)
            if not is_tensor(written) or any(_within(written, d) for d in declared):
                continue
            for argument, value in arguments.items():
                if argument not in self.mutates and any(_meet(written, t) for t in _tensors(value)):
                    raise self._undeclared(variant, parameter, argument)

    def _undeclared(self, variant: Variant, parameter: str, argument: str) -> TileError:
        kernel = variant.source.name
        said = f"names {_listed(self.mutates)}" if self.mutates else "names no argument"
        why = ""
        if variant.follows_addresses:
            why = ". It accesses memory through an address that it was given, and may write any tensor by it"
        names = [repr(n) for n in self.signature.parameters if n in self.mutates | {argument}]
        return fault(
            LaunchError,
            "op/undeclared-write",
            f"{kernel} may write {parameter}, which is the argument {argument} of {self.name}; mutates "
            f"{said}{why}",
            help=f"tile.custom_op({self.name!r}, mutates=({', '.join(names)},)), or let it write a tensor of its "
            "own: torch reorders, or leaves out, calls that it believes to change nothing",
        )


def _tensors(value: Any) -> list[Any]:
    """The tensors of an argument: one, a list of some, or none."""
    return [t for t in (value if isinstance(value, list | tuple) else [value]) if is_tensor(t)]


def _meet(one: Any, other: Any) -> bool:
    (start, end), (other_start, other_end) = byte_range(one), byte_range(other)
    return start < other_end and other_start < end


def _within(inner: Any, outer: Any) -> bool:
    (start, end), (outer_start, outer_end) = byte_range(inner), byte_range(outer)
    return outer_start <= start and end <= outer_end


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
