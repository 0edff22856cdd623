"""Deep expressions pass every step; what is deeper than that is a diagnostic with a caret."""

from __future__ import annotations

import linecache
import sys
import threading

import pytest
import torch

from tilejit import LaunchError, SyntaxUnsupported, T, jit, pipeline
from tilejit.errors import Span
from tilejit.frontend import lowering
from tilejit.ir import nodes
from tilejit.runtime import hostexpr
from tilejit.runtime.variant import Lowered

N = 32


def kernel(value: str):
    source = f"""
def k(X: T.Tensor(({N},), "int32"), Y: T.Tensor(({N},), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block={N}))
    t = T.cuda.thread_idx("x")
    Y[t] = {value}
"""
    linecache.cache["<nesting>"] = (len(source), None, source.splitlines(True), "<nesting>")
    scope = {"T": T}
    exec(compile(source, "<nesting>", "exec"), scope)
    return jit(source=source)(scope["k"])


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TILEJIT_TARGET", "sm_90a")


@pytest.mark.parametrize(
    ("value", "factor"),
    [
        (" + ".join(["X[t]"] * 600), 600),
        (" + ".join(["X[t]"] * 1500), 1500),
        ("-" * 901 + "X[t]", -1),
        ("~" * 900 + "X[t]", 1),
        ("(" * 90 + "X[t]" + " + 0)" * 90, 1),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
def test_deep_expressions_are_expressions(value, factor, threaded):
    before = sys.getrecursionlimit()
    x = torch.arange(N, dtype=torch.int32)
    y = torch.zeros_like(x)

    def run():
        k = kernel(value)
        k(x, y)
        assert pipeline.STEPS.emit(k.latest.checked).text and k.latest.ir

    if threaded:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    else:
        run()
    assert torch.equal(y, x * factor)
    assert sys.getrecursionlimit() == before


def deep(levels: int) -> Lowered:
    """``shallow = 1`` on line 1, ``deep = -(-(…))`` on line 2."""
    one = nodes.Const(1, nodes.INT32)
    value = nodes.Var("v", nodes.INT32)
    for _ in range(levels):
        value = nodes.Unary("neg", value, nodes.INT32)
    names = [nodes.Var(name, nodes.INT32) for name in ("v", "shallow", "deep")]
    values = (one, one, value)
    body = [
        nodes.Declare(n, v, span=Span("k.py", i)) for i, (n, v) in enumerate(zip(names, values))
    ]
    inside = nodes.If(nodes.Const(True, nodes.BOOL), tuple(body[1:]), ())
    launch = nodes.LaunchConfig((one,), (32,))
    return Lowered(nodes.Function("k", (), launch, (body[0], inside), "sm_90a"), (), ())


STEPS = {
    "show": lambda lowered, _: pipeline.STEPS.show(lowered),
    "check": lambda lowered, _: pipeline.STEPS.check(lowered),
    "emit": lambda _, checked: pipeline.STEPS.emit(checked),
    "simulate": lambda _, checked: pipeline.STEPS.simulate(checked, {}, {}, (1, 1, 1)),
}


@pytest.mark.parametrize("step", ["show", "check"])
def test_deeper_than_that_points_at_the_statement(step):
    before = sys.getrecursionlimit()
    with pytest.raises(SyntaxUnsupported) as caught:
        STEPS[step](deep(30_000), None)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span) == ("frontend/nesting", Span("k.py", 2))
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize("step", ["emit", "simulate"])
def test_so_do_the_steps_after_the_check(step, monkeypatch):
    lowered = deep(2_000)
    checked = pipeline.STEPS.check(lowered)
    STEPS[step](lowered, checked)
    monkeypatch.setattr(lowering, "RECURSION_LIMIT", 0)  # Python's own
    with pytest.raises(SyntaxUnsupported) as caught:
        STEPS[step](lowered, checked)
    assert caught.value.diagnostics[0].span == Span("k.py", 2)


def test_names_of_what_is_deep_stay_short():
    """An expression of 20 000 levels would have a name of gigabytes, were it not cut."""
    function = deep(8_000).function
    checked = pipeline.STEPS.check(Lowered(function, (), ()))
    assert checked.function is function


@pytest.mark.parametrize("levels", [1, 100, 149])
def test_a_grid_may_nest(levels):
    assert hostexpr.compile_function(grid(levels), ("n",))(1) == levels + 1


@pytest.mark.parametrize("levels", [200, 900, 5000])
def test_a_grid_that_python_could_not_read_is_a_launch_error(levels):
    with pytest.raises(LaunchError) as caught:
        hostexpr.compile_function(grid(levels), ("n",))
    (found,) = caught.value.diagnostics
    assert (found.code, found.span) == ("launch/grid", Span("k.py", 3))


def grid(levels: int) -> nodes.Expr:
    n = nodes.Var("n", nodes.INT64)
    value: nodes.Expr = n
    for _ in range(levels):
        value = nodes.Binary("add", value, n, nodes.INT64, span=Span("k.py", 3))
    return value
