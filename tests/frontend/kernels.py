"""Running small kernels: lower them, interpret them, compare with Python itself.

``out`` parameters are tensors. A kernel under test needs no ``T.device_entry``: the launch override
gives one thread.
"""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.frontend.interpreter import Thread
from tilejit import dtypes, frontend
from tilejit.ir.signature import Arg, ConstArg, LaunchOverride, ScalarArg, Signature, TensorArg
from tilejit.language import T

ONE_THREAD = LaunchOverride((1, 1, 1), (32,))


class Jit:
    """What ``tilejit.jit`` is to the frontend: an object that carries a parsed kernel."""

    def __init__(self, function: Callable[..., Any], source: str | None = None):
        self.__wrapped__ = function
        self.__tilejit_kernel__ = frontend.parse(function, source)


def tensor(dtype: str, *shape: int, align: int = 16) -> TensorArg:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return TensorArg(dtypes.dtype(dtype), shape, tuple(strides), align)


def make(text: str, name: str = "k", **names: Any) -> frontend.Kernel:
    """The kernel ``name`` of a piece of source text; ``names`` are its globals."""
    text = textwrap.dedent(text)
    file = f"<made {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"T": T, "__name__": "made", **names}
    exec(compile(text, file, "exec"), scope)
    return frontend.parse(scope[name])


def signature(kernel: frontend.Kernel, **args: Arg) -> Signature:
    entries = []
    for p in kernel.params:
        entries.append((p.name, args[p.name] if p.name in args else ConstArg(p.default)))
    own_launch = "device_entry" in kernel.source.text
    return Signature(tuple(entries), "sm_90a", LaunchOverride() if own_launch else ONE_THREAD)


def lower(kernel: Any, **args: Arg) -> frontend.Lowered:
    if not isinstance(kernel, frontend.Kernel):
        kernel = make(kernel) if isinstance(kernel, str) else frontend.parse(kernel)
    return frontend.lower(kernel, signature(kernel, **args))


def results(kernel: Any, dtype: str = "int32", size: int = 8, **scalars: Any) -> list[Any]:
    """Lower ``kernel(out, …)`` and run one thread; what it left in ``out``.

    A scalar given as int, float or bool is a run-time int32, float32 or bool; ``(dtype, value)`` a
    run-time scalar of that dtype; a list a tensor of float32 or int32; ``ConstArg`` stays.
    """
    if not isinstance(kernel, frontend.Kernel):
        kernel = make(kernel) if isinstance(kernel, str) else frontend.parse(kernel)
    args: dict[str, Arg] = {"out": tensor(dtype, size)}
    values: dict[str, Any] = {"out": [0] * size}
    for name, value in scalars.items():
        if isinstance(value, ConstArg):
            args[name] = value
        elif isinstance(value, list):
            kind = "float32" if any(isinstance(v, float) for v in value) else "int32"
            args[name], values[name] = tensor(kind, len(value)), list(value)
        else:
            kind, value = value if isinstance(value, tuple) else (_kind(value), value)
            args[name] = ScalarArg(dtypes.dtype(kind))
            values[name] = float(np.float32(value)) if kind == "float32" else value
    function = frontend.lower(kernel, signature(kernel, **args)).function
    Thread().run(function, values)
    return values["out"]


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    return "int32" if isinstance(value, int) else "float32"


class _PythonT:
    """``T`` for running a kernel's text as plain Python."""

    unroll = range
    constexpr = staticmethod(lambda x: x)
    int32 = int64 = uint32 = int
    float32 = float64 = float

    @staticmethod
    def cast(x: Any, ty: Any) -> Any:
        return float(x) if "float" in str(ty) else int(x)


def same_as_python(body: str, dtype: str = "int32", size: int = 8, **scalars: Any) -> None:
    """``def k(out, …): body`` gives the same in Python and as a kernel, with run-time scalars."""
    parameters = ", ".join(["out", *scalars])
    text = (
        f"def k({parameters}):\n"
        + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
        + "\n"
    )
    scope: dict[str, Any] = {"T": _PythonT, "__name__": "made"}
    exec(compile(text, "<python>", "exec"), scope)
    expected: list[Any] = [0] * size
    scope["k"](expected, **{n: v[1] if isinstance(v, tuple) else v for n, v in scalars.items()})
    got = results(make(text), dtype, size, **scalars)
    assert got == [float(np.float32(x)) if dtype == "float32" else x for x in expected], text
