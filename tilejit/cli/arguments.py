"""What a kernel is checked, shown or compiled with: its examples, flags, and what its file launched.

``--dim M=4096 --dtype X=bfloat16 --shape X=4096,64 --const BLOCK=128`` say what annotations leave open; a
kernel whose annotations say everything needs none of them. Each ``Case`` makes one variant.

Not here: examples' form (``runtime.examples``), what arguments are specialised to (``runtime.specialise``).
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

from tilejit import dtypes
from tilejit.cli.output import WrongUse
from tilejit.dtypes import DType
from tilejit.runtime import examples
from tilejit.runtime.jit import JitFunction
from tilejit.runtime.specialise import Param, scalar_dtype
from tilejit.runtime.variant import Variant
from tilejit.target import Target


@dataclass(frozen=True, slots=True)
class Case:
    """One way to call a kernel. ``make`` raises what is wrong with it."""

    label: str
    make: Callable[[], Variant]


@dataclass(slots=True)
class Cases:
    """``missing``: what would have to be known, where there are no cases."""

    cases: list[Case] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Flags:
    """The flags of a command line, by name. ``dtype`` of ``""``: of every tensor that declares none."""

    dims: dict[str, int]
    dtypes: dict[str, DType]
    shapes: dict[str, tuple[int, ...]]
    constants: dict[str, str]
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    target: str | None
    used: set[str] = field(default_factory=set)

    @property
    def names(self) -> set[str]:
        return {*self.dims, *self.dtypes, *self.shapes, *self.constants} - {""}


def add_to(parser: argparse.ArgumentParser) -> None:
    """The flags that say what a kernel is called with."""
    group = parser.add_argument_group(
        "arguments of kernels",
        "what annotations leave open; kernels with examples need none of these",
    )
    group.add_argument(
        "--dim", action="append", default=[], metavar="M=4096", help="a named dimension of tensors"
    )
    group.add_argument(
        "--dtype",
        action="append",
        default=[],
        metavar="X=bfloat16",
        help="element type of a tensor, or type of a number; without a name, of every tensor that declares none",
    )
    group.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="X=64,128",
        help="shape of a tensor that declares none",
    )
    group.add_argument(
        "--const",
        action="append",
        default=[],
        metavar="BLOCK=128",
        help="a compile-time value: a Python expression in the names of the file",
    )
    group.add_argument("--grid", metavar="4,2", help="CTAs, where the caller gives them")
    group.add_argument("--block", metavar="128", help="threads, where the caller gives them")
    group.add_argument("--target", metavar="sm_90a", help="GPU to check or compile for (default: this machine's, else sm_90a)")  # fmt: skip


def flags_of(options: argparse.Namespace) -> Flags:
    types = [_pair("dtype", text, named=False) for text in options.dtype]
    return Flags(
        {name: _whole("dim", name, value) for name, value in _pairs("dim", options.dim)},
        {name: _dtype(value) for name, value in types},
        {name: _extents("shape", value) for name, value in _pairs("shape", options.shape)},
        dict(_pairs("const", options.const)),
        None if options.grid is None else _extents("grid", options.grid),
        None if options.block is None else _extents("block", options.block),
        None if options.target is None else Target.parse(options.target).name,
    )


def _pairs(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    return [_pair(flag, text) for text in texts]


def _pair(flag: str, text: str, *, named: bool = True) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals and not named:
        return "", text
    if not equals or not name.isidentifier() or not value:
        raise WrongUse(f"--{flag} takes NAME=VALUE, got {text!r}")
    return name, value


def _whole(flag: str, name: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) < 2**63:
        raise WrongUse(
            f"--{flag} {name}={text}: expected a number of elements, at least 1 and below 2**63"
        )
    return int(text)


def _extents(flag: str, text: str) -> tuple[int, ...]:
    parts = text.strip("()").rstrip(",").split(",")
    return tuple(_whole(flag, "", part.strip()) for part in parts)


def _dtype(text: str) -> DType:
    found = examples.element_type(text)
    if found is None:
        raise WrongUse(f"--dtype {text}: there is no such type; {', '.join(dtypes.BY_NAME)}")
    return found


# --- the cases of a kernel


def cases_of(
    kernel: JitFunction, module: ModuleType | None, flags: Flags, *, launches: bool = True
) -> Cases:
    """What is known of how ``kernel`` is called. ``launches``: it says its launch, or flags do, so that it
    can be called as its annotations say. ``TileError`` for examples that are none."""
    flagged = bool(flags.names & _names_of(kernel))
    found = Cases()
    if not flagged:
        target = None if kernel.fixed_target else flags.target
        for number, example in enumerate(kernel.examples, 1):
            entry = kernel if example.launch is None else kernel[example.launch]
            found.cases.append(
                Case(f"example {number}", _checking(entry, example.arguments, target))
            )
        for number, variant in enumerate(kernel.variants, 1):
            found.cases.append(Case(f"launch {number} of the file", partial(_same, variant)))
    if found.cases or not launches:
        return found
    described, found.missing = _described(kernel, module, flags)
    if not found.missing:
        label = "with the flags" if flagged else "as annotated"
        entry = _configured(kernel, flags)
        found.cases.append(Case(label, _checking(entry, described, flags.target)))
    return found


def _same(variant: Variant) -> Variant:
    return variant


def _checking(entry: Any, arguments: Any, target: str | None) -> Callable[[], Variant]:
    def make() -> Variant:
        variant: Variant = entry.check(**arguments, target=target)
        return variant

    return make


def _configured(kernel: JitFunction, flags: Flags) -> Any:
    if flags.block is not None:
        from tilejit.language.annotations import LaunchConfig

        return kernel[LaunchConfig(grid=flags.grid, block=flags.block)]
    return kernel if flags.grid is None else kernel[flags.grid]


def _names_of(kernel: JitFunction) -> set[str]:
    """Names that flags may have for this kernel: of parameters and of dimensions."""
    names = {p.name for p in kernel.params}
    for param in kernel.params:
        for dim in getattr(param.annotation, "shape", None) or ():
            if not isinstance(dim, int):
                names.add(dim if isinstance(dim, str) else dim.name)
    return names


def refuse_unknown(kernels: Sequence[JitFunction], flags: Flags) -> None:
    """``WrongUse`` for flags whose name none of the kernels has."""
    known = set().union(*(_names_of(k) for k in kernels)) if kernels else set()
    for name in sorted(flags.names - known):
        raise WrongUse(f"no kernel here has a parameter or dimension {name!r}")


def _described(
    kernel: JitFunction, module: ModuleType | None, flags: Flags
) -> tuple[dict[str, Any], list[str]]:
    """Arguments by name, and what is missing of them."""
    arguments: dict[str, Any] = {}
    missing: list[str] = []
    for param in kernel.params:
        found = _argument(param, module, flags, missing)
        if found is not ...:
            arguments[param.name] = found
    return arguments, list(dict.fromkeys(missing))


def _argument(param: Param, module: ModuleType | None, flags: Flags, missing: list[str]) -> Any:
    """What stands for one parameter; ``...``: its default, or what is missing."""
    name = param.name
    if name in flags.constants:
        return _evaluated(name, flags.constants[name], module)
    if param.kind == "tensor" or name in flags.shapes:
        return _tensor(param, flags, missing)
    if param.kind == "scalar":
        return flags.dtypes.get(name) or scalar_dtype(param.annotation) or dtypes.int32
    if param.kind == "any" and name in flags.dtypes:
        return flags.dtypes[name]
    if param.has_default:
        return ...
    if param.kind == "any":
        missing.append(f"{name}: --shape {name}=… and --dtype {name}=… of a tensor, --dtype {name}=int32 of a number")  # fmt: skip
    else:
        missing.append(f"--const {name}=…")
    return ...


def _tensor(param: Param, flags: Flags, missing: list[str]) -> Any:
    annotation, name = param.annotation, param.name
    dtype = getattr(annotation, "dtype", None) or flags.dtypes.get(name) or flags.dtypes.get("")
    shape = flags.shapes.get(name)
    declared: tuple[Any, ...] | None = getattr(annotation, "shape", None)
    lacking = [] if dtype is not None else [f"--dtype {name}=…"]
    if shape is None and declared is not None:
        lacking += [f"--dim {d}=…" for d in declared if isinstance(d, str) and d not in flags.dims]
        # The size of a dynamic dimension is the launch's: any stands for it.
        shape = tuple(
            d if isinstance(d, int) else flags.dims.get(d, 1) if isinstance(d, str) else 1
            for d in declared
        )
    elif shape is None:
        lacking.append(f"--shape {name}=…")
    if lacking or dtype is None or shape is None:
        if param.has_default:
            return ...
        missing += lacking
        return ...
    return examples.tensor(param, dtype, shape)


def _evaluated(name: str, text: str, module: ModuleType | None) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    try:
        return eval(text, {} if module is None else dict(vars(module)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # exit() too, which would end the command as if all were right
        hint = ""
        if isinstance(error, NameError | SyntaxError):
            hint = f"; a text needs quotes of its own: --const '{name}=\"{text}\"'"
        raise WrongUse(f"--const {name}={text}: {type(error).__name__}: {error}{hint}") from None
