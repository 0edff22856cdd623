"""Types of expressions: promotion, literals, floor division, conversion, loop-carried types."""

from __future__ import annotations

import dataclasses
import functools
import math

import pytest

from tests.frontend.kernels import lower, make, results, same_as_python, tensor
from tilejit import dtypes as d
from tilejit.errors import SyntaxUnsupported
from tilejit.ir import nodes as ir
from tilejit.ir import walk
from tilejit.ir.signature import ConstArg, ScalarArg


def code_of(body: str, **scalars: object) -> str:
    with pytest.raises(SyntaxUnsupported) as caught:
        results("def k(out, %s):\n    %s" % (", ".join(scalars), body), **scalars)
    return caught.value.codes[0].removeprefix("frontend/")


@pytest.mark.parametrize("a", [-7, 7, 0])
@pytest.mark.parametrize("b", [-2, 2, 3, -3])
def test_floor_division_is_pythons(a: int, b: int) -> None:
    body = f"""
        out[0] = a // b
        out[1] = a % b
        out[2] = {a} // b
        out[3] = a % {b}
        out[4] = {a} // {b}
        out[5] = {a} % {b}
    """
    same_as_python(body, a=a, b=b)
    quotient, remainder = results(
        "def k(out, a, b):\n    out[0] = T.truncdiv(a, b)\n    out[1] = T.truncmod(a, b)\n"
        f"    out[2] = T.ceildiv(a, b)\n    out[3] = T.truncdiv({a}, {b})",
        a=a,
        b=b,
    )[:2]
    assert quotient == int(a / b) and remainder == math.fmod(a, b)


@pytest.mark.parametrize("a", [-5.0, 5.5])
@pytest.mark.parametrize("b", [3.0, -3.0])
def test_float_floor_division(a: float, b: float) -> None:
    same_as_python("out[0] = a // b\nout[1] = a % b\nout[2] = a / b", "float32", a=a, b=b)


PROMOTION = [
    ("int32", "int32", "int32"),
    ("int32", "int64", "int64"),
    ("uint16", "uint64", "uint64"),
    ("int32", "uint32", "uint32"),
    ("int64", "uint32", "int64"),
    ("int8", "uint16", "uint16"),
    ("float16", "float32", "float32"),
    ("float16", "bfloat16", "float32"),
    ("float16", "int64", "float16"),
    ("float32", "float64", "float64"),
    ("bool", "int8", "int8"),
    ("bool", "float16", "float16"),
    ("bool", "bool", "int32"),
]


@pytest.mark.parametrize("a,b,common", PROMOTION)
def test_promotion(a: str, b: str, common: str) -> None:
    for left, right in ((a, b), (b, a)):
        kernel = make("def k(out, x, y):\n    z = x + y\n    out[0] = z")
        lowered = lower(
            kernel,
            out=tensor("float64", 8),
            x=ScalarArg(d.dtype(left)),
            y=ScalarArg(d.dtype(right)),
        )
        z = next(s for s in lowered.function.body if isinstance(s, ir.Declare))
        assert str(z.var.type) == common


LITERALS = [
    ("float16", "x + 1", "float16"),
    ("float16", "x * 0.5", "float16"),
    ("float64", "x + 0.1", "float64"),
    ("int64", "x + 1", "int64"),
    ("uint8", "x + 1", "uint8"),
    ("int32", "x * 0.5", "float32"),
    ("int32", "x / 2", "float32"),
    ("int32", "max(x, 0)", "int32"),
    ("float16", "max(x, 0.0)", "float16"),
    ("float16", "-x", "float16"),
    ("bool", "-x", "int32"),
    ("bool", "x + 1", "int32"),
    ("bool", "x & True", "bool"),
    ("bool", "not x", "bool"),
    ("int32", "x << 2", "int32"),
    ("int16", "x ** 2", "int16"),
    ("int32", "x < 3.5", "bool"),
    ("float16", "1.5 if x > 0 else x", "float16"),
    ("float32", "T.exp(x)", "float32"),
    ("int32", "T.cast(x, 'float16')", "float16"),
    ("int32", "T.uint8(x)", "uint8"),
    ("int32", "abs(x)", "int32"),
    ("float32", "int(x)", "int32"),
]


@pytest.mark.parametrize("dtype,expression,result", LITERALS)
def test_literals_adopt_the_other_type(dtype: str, expression: str, result: str) -> None:
    kernel = make(f"def k(out, x):\n    z = {expression}\n    out[0] = z")
    lowered = lower(kernel, out=tensor("float64", 8), x=ScalarArg(d.dtype(dtype)))
    z = next(s for s in lowered.function.body if isinstance(s, ir.Declare))
    assert str(z.var.type) == result


def test_named_literal_is_as_precise_as_a_literal() -> None:
    body = "c = 0.1\nout[0] = x * c\nout[1] = x * 0.1\nout[2] = x + 9007199254740993"
    got = results(
        "def k(out, x):\n    " + body.replace("\n", "\n    "), "float64", x=("float64", 1.0)
    )
    assert got[0] == got[1] == 0.1
    got = results("def k(out, x):\n    out[0] = x + 9007199254740993", "int64", x=("int64", 0))
    assert got[0] == 2**53 + 1


def test_offsets_past_32_bits() -> None:
    got = results(
        "def k(out, pid, stride):\n    out[0] = T.int64(pid) * stride",
        "int64",
        pid=319,
        stride=7864320,
    )
    assert got[0] == 2508718080
    kernel = make("def k(out, X, i):\n    out[0] = X[i, 0]")
    lowered = lower(
        kernel, out=tensor("float32", 8), X=tensor("float32", 320, 7864320), i=ScalarArg(d.int32)
    )
    load = next(n for n in walk.descend(lowered.function.body) if isinstance(n, ir.Load))
    from tilejit.ir import views

    assert views.element_offset(load.view, load.indices).type == ir.INT64


def test_typed_constants_convert_or_refuse() -> None:
    for text in ("T.uint32(-3)", "T.int8(300)", "T.int32(1.5)", "T.uint8(-1)"):
        assert code_of(f"out[0] = {text}", n=1) == "literal"
    assert (
        results("def k(out, n):\n    out[0] = T.float16(0.2)", "float64", n=1)[0] == 0.199951171875
    )
    assert results("def k(out, n):\n    out[0] = n + T.uint8(255)", n=1)[0] == 256


def test_nan_differs_from_itself() -> None:
    got = results(
        "def k(out, x):\n    out[0] = x != x\n    y = x + 0\n    out[1] = y == y", x=math.nan
    )
    assert got[:2] == [1, 0]
    got = results("def k(out, x):\n    c = float('nan')\n    out[0] = c != c", x=0.0)
    assert got[0] == 1


def test_unsigned_against_negative_literal() -> None:
    got = results("def k(out, x):\n    out[0] = x > -1\n    out[1] = x == -1", x=("uint32", 5))
    assert got[:2] == [1, 0]


def test_loop_carried_literals_take_the_loops_type() -> None:
    text = "def k(out, x):\n    acc = 0\n    for i in range(3):\n        acc = acc + x\n    out[0] = acc"
    assert results(text, "float32", x=1.5)[0] == 4.5
    lowered = lower(make(text), out=tensor("float32", 8), x=ScalarArg(d.float16))
    assert {str(s.var.type) for s in lowered.function.body if isinstance(s, ir.Declare)} == {
        "float16"
    }


def test_lossless_widening_of_a_carried_name() -> None:
    text = "def k(out, a, b):\n    x = a\n    for i in range(3):\n        x = x + b\n    out[0] = x"
    assert results(text, "int64", a=("int32", 1), b=("int64", 2**40))[0] == 1 + 3 * 2**40


def test_conflicting_types_name_both_lines() -> None:
    text = "def k(out, a, b):\n    x = a\n    if a > 0:\n        x = b\n    out[0] = x"
    with pytest.raises(SyntaxUnsupported) as caught:
        results(text, a=1, b=2.0)
    message = str(caught.value)
    assert "frontend/type-conflict" in message and "line 2 and line 4" in message


def test_specialised_arguments_reassigned_in_a_loop() -> None:
    text = "def k(out, a: T.constexpr, b: T.constexpr, n):\n    for i in range(n):\n        a = b\n    out[0] = a"
    for value in (1, 2):
        assert results(text, n=3, a=ConstArg(value), b=ConstArg(value))[0] == value
    assert results(text, n=3, a=ConstArg(1), b=ConstArg(5))[0] == 5
    assert results(text, n=0, a=ConstArg(1), b=ConstArg(5))[0] == 1


def test_constexpr_in_the_body() -> None:
    text = "def k(out, flag: T.constexpr):\n    c = T.constexpr(flag)\n    if c: out[0] = 1\n    else: out[0] = 2"
    assert results(text, flag=ConstArg(False))[0] == 2
    assert results(text, flag=ConstArg(True))[0] == 1
    text = "def k(out, n):\n    for _ in T.unroll(2):\n        a: T.constexpr = 2\n    out[0] = a"
    assert results(text, n=1)[0] == 2


def test_pruned_branches_are_not_visited() -> None:
    text = """
        def pick(flag):
            if flag:
                return 3
            return T.no_such_function(flag)
        def k(out, flag: T.constexpr):
            out[0] = pick(flag)
    """
    assert results(make(text), flag=ConstArg(True))[0] == 3
    with pytest.raises(SyntaxUnsupported, match="no_such_function"):
        results(make(text), flag=ConstArg(False))


def test_integer_wraps_and_bitwise() -> None:
    got = results(
        "def k(out, x):\n    out[0] = x * x\n    out[1] = ~x\n    out[2] = x ^ 5", x=65537
    )
    assert got[:3] == [131073, ~65537, 65537 ^ 5]


def test_rank_zero_tensor() -> None:
    kernel = make("def k(out, X):\n    X[()] = 4.0\n    out[0] = X[()] + X[...]")
    from tests.frontend.interpreter import Thread
    from tests.frontend.kernels import signature
    from tilejit import frontend

    function = frontend.lower(
        kernel, signature(kernel, out=tensor("float32", 8), X=tensor("float32"))
    ).function
    values = {"out": [0.0] * 8, "X": [1.0]}
    Thread().run(function, values)
    assert values["out"][0] == 8.0 and values["X"] == [4.0]


def test_store_converts_to_the_element_type() -> None:
    assert results("def k(out, x):\n    out[0] = x", x=-2.75)[0] == -2
    assert results("def k(out, x):\n    out[0] = x", x=3e10)[0] == 2**31 - 1
    assert code_of("out[0] = 1.5", x=1) == "literal"


def test_local_and_shared_elements() -> None:
    got = results(
        """
        def k(out, n):
            a = T.alloc_local((4, 2), "int32", layout="default")
            s = T.alloc_shared((4,), T.int32)
            for i in T.unroll(4):
                a[i, 1] = i * n
                s[i] = a[i, -1] + 1
            v = a.view(2, 4).sub[1, :]
            out[0] = v[3]
            out[1] = s[3]
            r = a[2, 0:2]
            out[2] = r[0, 1]
            out[3] = len(s) + a.ndim + a.size
        """,
        n=5,
    )
    assert got[:4] == [15, 16, 10, 14]


LAYOUT = 'T.alloc_local((%s,), "float32", layout=T.layout("(4):(1)"))'


@pytest.mark.parametrize("count", [3, 5])
def test_a_layout_of_another_size_is_refused(count: int) -> None:
    assert code_of(f"r = {LAYOUT % count}", n=1) == "layout"
    lower(f"def k(out, n):\n    r = {LAYOUT % 4}\n", n=ScalarArg(d.int32))


def test_local_tensors_fit_a_thread() -> None:
    body = 'def k(out, n):\n    r = T.alloc_local((%d,), "float32", layout="default")\n'
    lower(body % (1 << 17), n=ScalarArg(d.int32))
    with pytest.raises(SyntaxUnsupported, match="at most 524288 bytes"):
        lower(body % ((1 << 17) + 1), n=ScalarArg(d.int32))


def test_alignment_is_what_shared_memory_has() -> None:
    body = 'def k(out, n):\n    s = T.alloc_shared((4,), "float32", layout="default", align=%d)\n'
    lower(body % 1024, n=ScalarArg(d.int32))
    for align in (0, 12, 2048):
        with pytest.raises(SyntaxUnsupported, match="power of two of bytes up to 1024"):
            lower(body % align, n=ScalarArg(d.int32))


@pytest.mark.parametrize("annotation", ["foo bar", "1 +"])
def test_an_annotation_that_is_no_expression(annotation: str) -> None:
    assert code_of(f"x: {annotation!r} = n", n=1) == "annotation"


@pytest.mark.parametrize("expression", ["(n, 1) < (2, 1)", "'%d' % (n,)", "(n, 'a') - (n,)"])
def test_operators_that_do_not_take_run_time_parts(expression: str) -> None:
    assert code_of(f"out[0] = {expression}", n=1) == "type"


@dataclasses.dataclass(frozen=True)
class Pair:
    a: object
    b: object = 3
    c: object = dataclasses.field(default=7, compare=False)

    @property
    def total(self):  # type: ignore[no-untyped-def]
        return self.a + self.b

    @property
    def broken(self):  # type: ignore[no-untyped-def]
        return 1 // 0

    @functools.cached_property
    def kept(self):  # type: ignore[no-untyped-def]
        return self.a


def test_properties_and_equality_of_dataclasses() -> None:
    body = """
        p = Pair(n, 2)
        out[0] = p.total + Pair(1, 2).total
        out[1] = 1 if p == Pair(3, 2, 8) else 0
        out[2] = 1 if p == Pair(4, 2) else 0
    """
    kernel = make("def k(out, n):" + body, Pair=Pair)
    assert results(kernel, n=3)[:3] == [8, 1, 0]
    for name, code in (("kept", "attribute"), ("broken", "constant"), ("none", "attribute")):
        with pytest.raises(SyntaxUnsupported) as caught:
            results(make(f"def k(out, n):\n    out[0] = Pair(n).{name}", Pair=Pair), n=3)
        assert tuple(caught.value.codes) == (f"frontend/{code}",)
