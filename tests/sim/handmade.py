"""Kernels built by hand from IR nodes, and a run that gives them numpy arrays.

Spans are lines of the imaginary file ``k.py``: statement ``at(7, …)`` is line 7. Not a test module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilejit import dtypes, sim
from tilejit.dtypes import DType
from tilejit.errors import SimulationFault, Span
from tilejit.ir import build as b
from tilejit.ir import nodes as n
from tilejit.ir import views
from tilejit.layout import row_major

TID, LANE, WARP = n.HardwareId("tid"), n.HardwareId("laneid"), n.HardwareId("warpid")
CTA = n.HardwareId("ctaid.x")
NUMPY = {
    "float32": np.float32,
    "int32": np.int32,
    "uint8": np.uint8,
    "float16": np.float16,
    "int64": np.int64,
}


def i32(value: int) -> n.Const:
    return b.const(value, dtypes.int32)


def f32(value: float) -> n.Const:
    return b.const(value, dtypes.float32)


def line(number: int) -> Span:
    return Span("k.py", number)


def tensor(
    name: str,
    shape: tuple[int, ...],
    dtype: DType = dtypes.float32,
    space: Any = "global",
    align: int = 16,
) -> n.Var:
    return n.Var(name, n.TensorType(shape, dtype, row_major(shape), space, align))


def load(buffer: n.Var, *indices: n.Expr, at: int = 0) -> n.Load:
    view = views.whole(buffer)
    return n.Load(view, indices, n.ScalarType(view.dtype), span=line(at))


def store(buffer: n.Var, indices: Sequence[n.Expr] | n.Expr, value: n.Expr, at: int = 0) -> n.Store:
    listed = tuple(indices) if isinstance(indices, (tuple, list)) else (indices,)
    return n.Store(views.whole(buffer), listed, value, span=line(at))


def call(op: str, *args: n.Expr, at: int = 0, type: Any = n.VOID) -> n.Call:
    return n.Call(op, args, type, span=line(at))


def do(op: str, *args: n.Expr, at: int = 0) -> n.Evaluate:
    return n.Evaluate(call(op, *args, at=at), span=line(at))


def when(condition: n.Expr, *then: n.Stmt, orelse: tuple[n.Stmt, ...] = (), at: int = 0) -> n.If:
    return n.If(condition, then, orelse, span=line(at))


def loop(
    var: n.Var, start: n.Expr, stop: n.Expr, *body: n.Stmt, step: int = 1, at: int = 0
) -> n.For:
    return n.For(var, start, stop, i32(step), body, span=line(at))


class Unchecked:
    """Stands in for ``Checked``: scalar kernels have no tile calls; tests may give steps."""

    def __init__(self, function: n.Function, steps: Mapping[int, Any] | None = None):
        self.function = function
        self._steps = steps or {}

    def steps(self, call: n.Call) -> tuple[Any, ...]:
        return tuple(self._steps[id(call)])


def kernel(
    params: Sequence[n.Var],
    body: Sequence[n.Stmt],
    block: int = 32,
    cluster: tuple[int, ...] | None = None,
) -> n.Function:
    return n.Function(
        "k", tuple(params), n.LaunchConfig(None, (block,), cluster), tuple(body), "sm_90a"
    )


def run(
    function: n.Function,
    arrays: Mapping[str, np.ndarray],
    grid: int = 1,
    scalars: Mapping[str, Any] | None = None,
    initialised: bool = True,
    steps: Mapping[int, Any] | None = None,
    families: Any = None,
    **options: Any,
) -> sim.SimReport:
    buffers = {}
    base = 0x7F00_0000_0000
    for name, array in arrays.items():
        data = array.view(np.uint8).reshape(-1)
        dtype = dtypes.BY_NAME.get(str(array.dtype))
        buffers[name] = sim.GlobalBuffer(name, data, base, initialised=initialised, dtype=dtype)
        base += (data.size + 511) // 512 * 512
    checked = Unchecked(function, steps)
    return sim.run(checked, buffers, scalars or {}, grid, sim.SimOptions(**options), families)


def faults(*args: Any, **kwargs: Any) -> list[Any]:
    """The diagnostics of a run; none for a clean one."""
    try:
        run(*args, **kwargs)
    except SimulationFault as error:
        return list(error.diagnostics)
    return []


def codes(*args: Any, **kwargs: Any) -> list[str]:
    return [d.code for d in faults(*args, **kwargs)]


def notes(diagnostic: Any) -> dict[str, str]:
    return dict(diagnostic.notes)
