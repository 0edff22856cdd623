"""Text and JSON: both read back to the same function, and both know every node."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.ir.arithmetic import expressions
from tests.ir.samples import N, function, type_samples
from tilejit import dtypes
from tilejit.ir import nodes, script, serial, walk, wellformed


def test_the_sample_is_well_formed_and_has_every_node() -> None:
    wellformed.verify(function())
    seen: set[type] = set()

    def types(kind: nodes.Type) -> None:
        seen.add(type(kind))
        for item in getattr(kind, "items", ()):
            types(item)

    for sample in (function(), type_samples()):
        for node in walk.descend(sample):
            seen.add(type(node))
            if hasattr(node, "type"):
                types(node.type)
            if isinstance(node, nodes.Call) and node.attrs:
                seen.add(type(node.attrs))
    assert set(walk.NODE_TYPES) == seen


@pytest.mark.parametrize("make", [function, type_samples])
def test_text_reads_back(make) -> None:
    made = make()
    text = script.print_function(made)
    read = script.parse_function(text)
    assert read == made
    assert script.print_function(read) == text
    assert read.span is None


@pytest.mark.parametrize("make", [function, type_samples])
def test_json_reads_back(make) -> None:
    made = make()
    text = serial.to_json(made)
    assert serial.from_json(text) == made
    assert serial.to_json(serial.from_json(text)) == text


def wrap(e: nodes.Expr) -> nodes.Function:
    i, j, k = (nodes.Var(n, e.type) for n in "ijk")
    body = (nodes.Declare(nodes.Var("x", e.type), e),)
    return nodes.Function("f", (i, j, k), nodes.LaunchConfig(None, (32,)), body, "sm_90a")


@given(expressions(dtypes.int64, 1000))
def test_expressions_read_back(e) -> None:
    made = wrap(e)
    assert script.parse_function(script.print_function(made)) == made
    assert serial.from_json(serial.to_json(made)) == made


def test_long_sums_are_not_nested() -> None:
    e: nodes.Expr = nodes.Var("i", nodes.INT32)
    for _ in range(240):
        e = nodes.Binary("add", e, nodes.Var("j", nodes.INT32), nodes.INT32)
    made = wrap(e)
    text = script.print_function(made)
    assert "(i" not in text.split("x: int32")[1]
    assert script.parse_function(text) == made


def test_expressions_print_readably() -> None:
    x = nodes.Var("x", nodes.INT32)
    four = nodes.Const(4, nodes.INT32)

    def op(word, a, b, kind=nodes.INT32):
        return nodes.Binary(word, a, b, kind)

    product = op("mul", op("add", x, four), x)
    assert script.print_expr(product) == "(x + int32(4)) * x"
    assert script.print_expr(op("sub", x, op("sub", x, four))) == "x - (x - int32(4))"
    chained = op("eq", op("lt", x, x, nodes.BOOL), op("lt", x, x, nodes.BOOL), nodes.BOOL)
    assert script.print_expr(chained) == "(x < x) == (x < x)"
    assert script.print_expr(nodes.Unary("neg", op("add", x, x), nodes.INT32)) == "-(x + x)"


@pytest.mark.parametrize(
    "text, message",
    [
        ("def k(:\n", "line 1"),
        ("x = 1\n", "expected a function"),
        ("", "no kernel"),
        ("@kernel(target='sm_90a')\n@launch(grid=None, block=(32,))\ndef k():\n    y = z\n", "line 4"),
        ("@kernel(target='sm_90a')\n@launch(grid=None, block=(32,))\ndef k():\n    print(z)\n", "line 4: unknown expression"),
        ("@kernel(target='sm_90a')\n@launch(grid=None, block=(32,))\ndef k():\n    with a: pass\n", "line 4: unknown statement"),
        ("@kernel(target='sm_90a')\n@launch(gird=None)\ndef k():\n    pass\n", "not the printed IR"),
        ("@kernel(target='sm_90a')\n@launch(grid=None, block=(32,))\ndef k(n: int33):\n    pass\n", "int33"),
    ],
)  # fmt: skip
def test_other_text_is_refused_by_line(text, message) -> None:
    with pytest.raises(script.ScriptError, match=message):
        script.parse_function(text)


@pytest.mark.parametrize(
    "text", ["[]", '{"node":"Nothing"}', '{"node":"ScalarType"}', "{}", '{"layout":"(2"}', "3", "["]
)
def test_other_json_is_refused(text) -> None:
    with pytest.raises(ValueError):
        serial.from_json(text)


def test_substitution_and_variables() -> None:
    made = function()
    assert {"X", "n", "alpha", "smem", "i"} <= walk.variables(made.body)
    four = nodes.Const(4, nodes.INT32)
    changed = walk.substitute(made.body, {"n": four})
    assert "n" not in walk.variables(changed)
    shapes = [n.shape for n in walk.descend(changed) if isinstance(n, nodes.View)]
    assert (4, 64) in shapes
    extents = [n.extent for n in walk.descend(changed) if isinstance(n, nodes.Pick)]
    assert extents and all(type(extent) is int for extent in extents)
    assert walk.substitute(made.body, {"absent": four}) is made.body
    assert walk.substitute(N, {"n": four}) is four


def test_statements_are_in_order() -> None:
    kinds = [type(s).__name__ for s in walk.statements(function().body)]
    assert kinds.index("For") < kinds.index("Continue") < kinds.index("While")
    assert kinds.count("If") == 2
