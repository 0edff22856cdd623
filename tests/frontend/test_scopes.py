"""Scopes and calls as Python has them: comprehensions, calls in a row, functions as values, the types
of a chosen value, and helpers that would launch a kernel if Python ran them."""

from __future__ import annotations

import dataclasses
import linecache
import math
import textwrap
import types

import pytest

from tests.frontend.kernels import Jit, lower, make, results, same_as_python, tensor
from tilejit import dtypes as d
from tilejit import frontend
from tilejit.errors import SyntaxUnsupported
from tilejit.ir.script import print_function
from tilejit.ir.signature import ScalarArg


def refused(body: str, **scalars: object) -> str:
    with pytest.raises(SyntaxUnsupported) as caught:
        results(make(f"def k(out, {', '.join(scalars)}):" + body), **scalars)
    return str(caught.value)


# --- comprehensions


@pytest.mark.parametrize("outer", ["j = 100", "j = x", "pass"])
@pytest.mark.parametrize(
    "functions",
    [
        "[lambda z: z + j for j in range(3)]",
        "[lambda z, j=j: z + j for j in range(3)]",
        "[lambda z: z + j + i for i in range(2) for j in range(i + 1, 4)]",
        "[lambda z: (lambda y: y + j)(z) for j in range(3)]",
        "[f for j in range(3) for f in (lambda z: z + j, lambda z: z - j)]",
        "[[lambda z: z + j * i for j in range(3)][i] for i in range(1, 3)]",
        "[(lambda z: z + j) if j > 1 else (lambda z: z - j) for j in range(3)]",
    ],
)
def test_functions_made_in_a_comprehension_see_its_variables(functions: str, outer: str) -> None:
    body = f"""
        {outer}
        fs = {functions}
        out[0] = fs[0](x)
        out[1] = fs[-1](x)
        out[2] = [f(x) for f in fs][1]
    """
    same_as_python(body, x=7)


def test_a_comprehensions_scope_is_its_own() -> None:
    body = """
        x = [x for x in (x, x + 1)]
        out[0] = x[1]
        j = 5
        out[1] = sum([j for j in range(3)]) + j
        a = [(q := j * n) + j for j in range(4) if j != 2]
        out[2] = q + a[1]
        b = [(r := j) if n > j else (r := -1) for j in range(2, 4)]
        out[3] = b[0] + 10 * b[1] + 100 * r
        c = [[i * j + k for k in (j, n)] for i in range(2) for j in range(i, 2)]
        out[4] = c[0][1] + c[1][0] + c[2][1]
        out[5] = sum(i * sum(j for j in range(i)) for i in range(4))
        s = [(lambda: (t := j * n) + t)() for j in range(3)]
        out[6] = s[2]
        out[7] = len([1 // i for i in range(3) if i if 1 // i])
    """
    same_as_python(body, x=7, n=3)


def test_a_comprehensions_variable_without_a_value() -> None:
    body = "\n    out[0] = [b for a in (1, 2) for b in (b, n)][0]"
    assert "'b' has no value yet" in refused(body, n=1)
    assert "'j' is not defined" in refused("\n    a = [j for j in range(3)]\n    out[0] = j", n=1)


def test_functions_out_of_a_generator_are_refused() -> None:
    """Which variables they see depends on when they are called."""
    for items in ("lambda z: z + j", "(1, [lambda z: z + j for i in (1,)])"):
        message = refused(f"\n    out[0] = sum(({items}) for j in range(3))", n=1)
        assert "gives functions that it makes" in message
    same_as_python("out[0] = sum((lambda z: z + j)(x) for j in range(3))", x=2)


CLAMP = """
    def clampz(a):
        if a > 0:
            return a
        return -a
"""


def test_every_item_of_a_comprehension_is_its_own_call() -> None:
    body = (
        CLAMP
        + """
    def pick(j, h):
        if n > j:
            return h(j)
        return h(-j)

    def k(out, n, x):
        v = [clampz(q) for q in (x, n)]
        out[0] = v[0] + v[1]
        out[1] = sum(clampz(q) for q in (n, x, n + x))
        w = [pick(j, lambda z: z * m) for j in range(3) for m in (1, 2.5) if clampz(m) > 0]
        out[2] = w[2] + w[3] + w[4] + w[5]
        u = [clampz(b) for a in (n, x) for b in (clampz(a), clampz(a + a))]
        out[3] = u[0] + u[1] + u[2] + u[3]
    """.replace("n > j", "j < 1")
    )
    got = results(make(body), "float32", n=-3, x=-1.5)
    assert got[:4] == [4.5, 9.0, -1 - 2.5 - 2 - 5.0, 3 + 6 + 1.5 + 3]


def test_functions_in_a_carried_tuple() -> None:
    body = """
        p = (x, lambda z: z + x, [lambda z: z * j for j in range(3)][0])
        if x > 3:
            p = (x + 1, p[1], p[2])
        for i in range(3):
            p = (p[0] + 1, p[1], p[2])
        out[0] = p[1](p[0]) + p[2](x)
    """
    same_as_python(body, x=2)
    same_as_python(body, x=5)


# --- calls at one place


@dataclasses.dataclass(frozen=True)
class Two:
    a: object
    b: object

    @property
    def swapped(self):  # type: ignore[no-untyped-def]
        if self.a > self.b:
            return Two(self.b, self.a)
        return Two(self.a, self.b)

    @property
    def big(self):  # type: ignore[no-untyped-def]
        if self.b > 3:
            return self.b
        return 3.5


def test_calls_that_begin_at_one_place() -> None:
    body = (
        CLAMP
        + """
    def mk(a):
        def inner(z):
            if z > 1:
                return z * a
            return z + 0.5
        if a > 100:
            return inner
        return inner

    def twice(f):
        return lambda z: f(f(z))

    def k(out, n, x):
        out[0] = mk(n)(x)
        out[1] = Two(n * 1.0, x).swapped.big
        out[2] = twice(twice(clampz))(n)
        out[3] = 1 if 0 < clampz(n) < clampz(x) < clampz(n) + 7 else 2
        out[4] = 1 if 0 < (p := clampz(n)) < (q := clampz(x)) < (r := p + q) else p
        out[5] = (n if x > 2 else x) if n > 2 else clampz(n)
    """
    )
    assert results(make(body, Two=Two), "float32", n=2, x=2.5)[:6] == [5.0, 3.5, 2, 1, 1, 2]
    assert results(make(body, Two=Two), "float32", n=5, x=0.5)[:6] == [1.0, 5.0, 5, 2, 5, 0.5]


# --- the type of a chosen value


OPERANDS = {
    "p": "int32", "q": "uint32", "w": "int64", "f": "float32", "h": "float16", "b": "bfloat16",
    "s": "int8", "c": "bool", "0": None, "0.5": None,
}  # fmt: skip


NAMES = {t: "T.bool_" if t == "bool" else f"T.{t}" for t in OPERANDS.values()}


@pytest.mark.parametrize("form", ["{} if n > 3 else {}", "{} or {}", "{} and {}"])
@pytest.mark.parametrize("left", [name for name, dtype in OPERANDS.items() if dtype])
def test_a_chosen_value_has_the_common_type(left: str, form: str) -> None:
    """Whether a side is evaluated in place (a variable) or in a branch (a load) changes no type."""
    kinds = {name: d.dtype(dtype) for name, dtype in OPERANDS.items() if dtype}
    lines = [f"L{name} = T.alloc_local((1,), {str(kinds[name])!r})" for name in kinds]
    for right in OPERANDS:
        other = kinds[right] if right in kinds else d.literal_type(float(right), kinds[left])
        if right == "0":
            other = d.literal_type(0, kinds[left])
        wanted = NAMES[d.promote(kinds[left], other).name]
        for x in (left, f"L{left}[0]"):
            for y in (right, f"L{right}[0]" if right in kinds else right):
                lines.append(f"assert ({form.format(x, y)}).dtype == {wanted}, '{x} {y}'")
                if "if" in form:
                    pair = form.format(f"({x}, (1, n))", f"({y}, (1, n))")
                    lines.append(f"assert ({pair})[0].dtype == {wanted}, 'a pair of {x} {y}'")
    text = f"def k(out, n, {', '.join(kinds)}):\n    " + "\n    ".join(lines)
    lower(text, out=tensor("int32", 8), n=ScalarArg(d.int32),
          **{name: ScalarArg(kind) for name, kind in kinds.items()})  # fmt: skip


def test_choosing_between_functions_names_them() -> None:
    functions = """
    def h(z):
        return z + 1

    def k(out, n):
        g = lambda z: z - 1
        {}
    """
    for line in (
        "out[0] = (h if n > 3 else g)(n)",
        "out[0] = (g if n > 3 else jitted)(n)",
        "f = h\n        if n > 3:\n            f = g\n        out[0] = f(n)",
    ):
        with pytest.raises(SyntaxUnsupported) as caught:
            results(make(functions.format(line), jitted=Jit(OUTSIDE.same)), n=3)
        message = str(caught.value)
        assert "the lambda of line 6" in message and "T.cast" not in message, message
        assert ("the function same" if "jitted" in line else "the function h") in message
        assert "f(x) if c else g(x)" in message
    chosen = functions.format("out[0] = (h if WIDE else g)(n) + (h(n) if n > 3 else g(n))")
    assert results(make(chosen, WIDE=True), n=3)[0] == 4 + 2


# --- helpers that reach a kernel


class OUTSIDE:
    @staticmethod
    def same(z):  # type: ignore[no-untyped-def]
        return z


class Launching(Jit):
    """Python must never call it."""

    def __call__(self, *args: object) -> object:
        raise AssertionError("launched at compile time")


HELPERS = """
    import functools

    def f0(a):
        return a + 1

    def f1(a):
        return f0(a) * 2

    def f2(a):
        return f1(a) + math.floor(0.5)

    def in_module(a):
        return package.module.f0(a) * 2

    def in_comprehension(a):
        return sum([f0(x) for x in (a, a)])

    def in_default(a, g=f0):
        return g(a) * 2

    def handed(g, a):
        return g(a) * 2

    def make_closure():
        cell = f0
        def in_cell(a):
            return cell(a) * 2
        return in_cell

    in_cell = make_closure()
    part = functools.partial(handed, f0)

    def in_part(a):
        return part(a)

    TABLE = (f0, 2)

    def in_table(a):
        return TABLE[0](a) * TABLE[1]

    class Static:
        @staticmethod
        def call(a):
            return f1(a)

    def in_class(a):
        return Static.call(a)

    @dataclasses.dataclass(frozen=True)
    class Config:
        size: int

        @property
        def more(self):
            return f0(self.size)

        @functools.cached_property
        def kept(self):
            return f0(self.size)

        def scaled(self, a):
            return f0(a) * 2

    CONFIG = Config(3)

    @dataclasses.dataclass(frozen=True)
    class Eager:
        size: int

        def __post_init__(self):
            f0(self.size)

    @functools.lru_cache
    def cached(a):
        return f0(a)

    def plain(a):
        return {"a": a}["a"] + len([x for x in range(a)])

    def k(out, n):
        out[0] = EXPRESSION
"""


def helper(expression: str) -> object:
    scope = {"dataclasses": dataclasses, "math": math}
    file = f"<made {len(linecache.cache)}>"
    text = textwrap.dedent(HELPERS).replace("EXPRESSION", expression)
    text = text.replace("def f0", "@Launching\ndef f0")
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    package = types.ModuleType("package")
    module = types.ModuleType("module")
    scope |= {"Launching": Launching, "package": package, "__name__": "made"}
    exec(compile(text, file, "exec", dont_inherit=True), scope)
    package.module, module.f0 = module, scope["f0"]  # type: ignore[attr-defined]
    return frontend.parse(scope["k"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "expression",
    ["f1(3)", "f2(3)", "in_module(3)", "in_comprehension(3)", "in_default(3)", "handed(f0, 3)",
     "in_cell(3)", "in_table(3)", "in_class(3)", "CONFIG.more * 2", "CONFIG.scaled(3)",
     "(lambda z: f1(z))(3)", "f1(n) if n > 3 else f1(3)"],
)  # fmt: skip
def test_a_helper_that_reaches_a_kernel_is_inlined(expression: str) -> None:
    assert results(helper(expression), n=3)[0] == 8


@pytest.mark.parametrize(
    ("expression", "why"),
    [("CONFIG.kept", "cached_property"), ("in_part(3)", "functools.partial"), ("cached(3)", "the kernel f0"),
     ("Eager(3).size", "the kernel f0"), ("max((1, 2), key=f0)", "the kernel f0"),
     ("sorted((1, 2), key=f1)[0]", "the kernel f0"),
     ("functools.reduce(f0, (1, 2))", "the kernel f0")],
)  # fmt: skip
def test_what_only_python_could_run_is_refused_where_it_launches(expression: str, why: str) -> None:
    with pytest.raises(SyntaxUnsupported, match=why):
        results(helper(expression), n=3)


def test_a_helper_that_reaches_none_is_run_by_python() -> None:
    assert results(helper("plain(3)"), n=3)[0] == 6


def test_a_decorated_helper_is_what_the_decorator_made() -> None:
    text = """
        import functools

        def doubled(f):
            @functools.wraps(f)
            def h(z, *, more=0):
                return f(z) * 2 + more
            return h

        def counted(f):
            @functools.wraps(f)
            def wrapper(*args):
                return f(*args)
            return wrapper

        @doubled
        def h(z, more=100):
            return z + 1

        @counted
        def g(z):
            return z

        def k(out, n):
            out[0] = h(n)
            out[1] = h(3, more=n)
            out[2] = {}
    """
    assert results(make(text.format("h(4)")), n=5)[:3] == [12, 13, 10]
    with pytest.raises(SyntaxUnsupported, match=r"\*args parameters are not supported"):
        results(make(text.format("g(n)")), n=5)


@pytest.mark.parametrize(
    "body",
    [
        "out[0] = 1.0 if any((q := i) > 1 for i in (1, 2, 3)) else 0.0",
        "out[0] = sum(1.0 for i in (1, 2, 3) if (q := i) > 1)",
        "g = (i + out[1] for i in (1, 2, 3))\n            out[0] = sum(g)",
    ],
)
def test_generators_whose_time_of_running_would_show_are_refused(body: str) -> None:
    kernel = make(f"""
        def k(out: T.Tensor((8,), "float32")):
            {body}
    """)
    with pytest.raises(SyntaxUnsupported, match="list comprehension"):
        lower(kernel, out=tensor("float32", 8))


def test_a_walrus_in_a_lambda_in_a_comprehension_is_the_lambdas() -> None:
    kernel = make(
        """
        def k(out: T.Tensor((8,), "float32")):
            out[0] = sum([(lambda: (q := i) + 1.0)() for i in (1, 2)]) + q
        """,
        q=77.0,
    )
    assert "82.0" in print_function(lower(kernel, out=tensor("float32", 8)).function)
