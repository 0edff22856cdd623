"""Every ``ast`` node and field is lowered or refused by name with a caret: walked, not listed."""

from __future__ import annotations

import ast
import inspect
import sys

import pytest

from tests.frontend.kernels import make, results
from tilejit.errors import SyntaxUnsupported
from tilejit.frontend import calls, control, expressions, logic, statements

LOWERED_OPERATORS = {
    **expressions.BINARY,
    **expressions.UNARY,
    **logic.COMPARE_OPS,
    ast.And: "and",
    ast.Or: "or",
}

# Nodes that are parts of others: the handler of their owner reads or refuses each of their fields.
PARTS: dict[str, dict[str, str]] = {
    "arguments": dict.fromkeys(
        ("posonlyargs", "args", "vararg", "kwonlyargs", "kw_defaults", "kwarg", "defaults"), "calls"
    ),
    "arg": {"arg": "calls", "annotation": "kernel", "type_comment": "comment"},
    "keyword": {"arg": "calls", "value": "calls"},
    "alias": {"name": "import", "asname": "import"},
    "withitem": {"context_expr": "with", "optional_vars": "with"},
    "comprehension": dict.fromkeys(("target", "iter", "ifs", "is_async"), "expressions"),
    "match_case": dict.fromkeys(("pattern", "guard", "body"), "match"),
    "ExceptHandler": dict.fromkeys(("type", "name", "body"), "try"),
    "type_ignore": {},
    "TypeIgnore": {"lineno": "comment", "tag": "comment"},
    "FunctionType": {"argtypes": "comment", "returns": "comment"},
    "Module": {"body": "source", "type_ignores": "comment"},
    "Interactive": {"body": "source"},
    "Expression": {"body": "source"},
}
ABSTRACT = {"AST", "mod", "stmt", "expr", "expr_context", "boolop", "operator", "unaryop", "cmpop",
            "excepthandler", "pattern", "type_param", "_ast_Ellipsis", "slice"}  # fmt: skip
CONTEXTS = {"Load", "Store", "Del", "AugLoad", "AugStore", "Param"}
DEPRECATED = {"Num", "Str", "Bytes", "NameConstant", "Ellipsis", "Index", "ExtSlice", "Suite"}

# Fields that mean nothing to the handler itself: why each may go unread.
UNREAD = {
    ("Constant", "kind"): "the u of u'…'",
    ("Name", "ctx"): "position decides",
    ("Tuple", "ctx"): "position decides",
    ("List", "ctx"): "position decides",
    ("Starred", "ctx"): "position decides",
    ("Starred", "value"): "read by its owner: calls, tuples, targets",
    ("Attribute", "ctx"): "position decides",
    ("Subscript", "ctx"): "position decides",
    ("Assign", "type_comment"): "a comment",
    ("For", "type_comment"): "a comment",
    ("FunctionDef", "type_comment"): "a comment",
    ("FunctionDef", "body"): "run when called",
    ("FunctionDef", "args"): "local_function",
    ("FunctionDef", "returns"): "ewise reads it; elsewhere Python ignores it",
    ("Lambda", "args"): "local_function",
    ("Lambda", "body"): "run when called",
}


def nodes() -> list[type[ast.AST]]:
    found = []
    for name in dir(ast):
        value = getattr(ast, name)
        if not (isinstance(value, type) and issubclass(value, ast.AST)):
            continue
        if name in ABSTRACT | CONTEXTS | DEPRECATED or value.__module__ not in ("ast", "_ast"):
            continue
        found.append(value)
    return found


def verdict(node: type[ast.AST]) -> str:
    name = node.__name__
    if node in expressions.EXPRESSIONS or node in statements.STATEMENTS or node is ast.If:
        return "lowered"
    if node in expressions.REFUSED or node in statements.REFUSED:
        return "refused"
    if node in LOWERED_OPERATORS:
        return "operator"
    if name in PARTS:
        return "part"
    if issubclass(node, ast.pattern):
        return "refused"  # inside match only
    if hasattr(ast, "type_param") and issubclass(node, ast.type_param):
        return "refused"  # inside generic functions and type aliases only
    return "unknown"


@pytest.mark.parametrize("node", nodes(), ids=lambda n: n.__name__)
def test_every_node_has_a_verdict(node: type[ast.AST]) -> None:
    assert verdict(node) != "unknown", f"{node.__name__} is neither lowered nor refused"


MODULE_TEXT = "".join(
    inspect.getsource(m) for m in (calls, control, expressions, logic, statements)
)


@pytest.mark.parametrize(
    "node,field",
    [(n, f) for n in nodes() if verdict(n) == "lowered" for f in n._fields],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_every_field_is_read(node: type[ast.AST], field: str) -> None:
    """A handler's text, with what it calls in its own module, mentions every field of its node."""
    if (node.__name__, field) in UNREAD:
        return
    if field == "type_params":
        assert "type_params" in MODULE_TEXT
        return
    handler = expressions.EXPRESSIONS.get(node) or statements.STATEMENTS.get(node) or control.run_if
    reachable = _reachable_text(handler)
    assert f".{field}" in reachable, f"{node.__name__}.{field} is dropped by {handler.__name__}"


def _reachable_text(handler: object, depth: int = 4) -> str:
    text = inspect.getsource(handler)  # type: ignore[arg-type]
    if depth == 0:
        return text
    for module in (expressions, statements, control, logic, calls):
        for name, value in vars(module).items():
            if name.startswith(
                (
                    "run_",
                    "_",
                    "assign_",
                    "local_function",
                    "boolean",
                    "compare",
                    "conditional",
                    "call",
                )
            ):
                if inspect.isfunction(value) and f"{name}(" in text and value is not handler:
                    if f"def {name}(" not in text:
                        text += inspect.getsource(value)
    return text


@pytest.mark.parametrize("part", PARTS)
def test_parts_have_no_field_that_nobody_knows(part: str) -> None:
    node = getattr(ast, part, None)
    if node is None:
        return
    assert set(node._fields) <= set(PARTS[part]), part


# --- refusals: the code, the caret and the name of what is refused

REFUSALS = [
    ("x = {}", "a dict display"),
    ("x = {1, 2}", "a set display"),
    ("x = {i for i in (1, 2)}", "a set comprehension"),
    ("x = {i: i for i in (1, 2)}", "a dict comprehension"),
    ("with n: pass", "`with`"),
    ("try: pass\n    except E: pass", "`try`"),
    ("import math", "`import`"),
    ("from math import pi", "`import`"),
    ("global n2", "`global`"),
    ("class C: pass", "a class definition"),
    ("match n:\n        case 1: pass", "`match`"),
    ("async def f(): pass", "`async def`"),
    ("x = 1j", "complex numbers"),
    ("x = n @ n", "`@` has no meaning"),
    ("n + 1", "drops it"),
    ("3", "does nothing"),
    ("n", "drops it"),
    ("x: T.float32", "does nothing"),
    ("n.x = 1", "attributes cannot be assigned"),
    ("f(**n)", "`f` is not defined|'f' is not defined"),
    ("T.exp(**n)", r"`\*\*` in a call"),
    ("a, b = 1, 2, 3", "3 values for 2 targets"),
    ("a, *b, c = (1,)", "1 values for at least 2 targets"),
    ("x = T.foo.bar(n)", "T has no 'foo'"),
    ("x = T.cuda.tile.aply(n)", "tilejit.language.tile has no 'aply'|has no 'aply'"),
    ("return n", "returns nothing"),
    ("x = y\n    y = 1", "no value yet"),
    ("if n > 0: z = 1\n    out[0] = z", "when the condition of line 2 is false"),
    ("for i in range(n): z = i\n    out[0] = z", "loop of line 2 does not run"),
    ("raise ValueError('no such size')", "no such size"),
    ("if n: raise ValueError('x')", "under a run-time condition"),
    ("assert False, 'never'", "never"),
    ("for i in range(0, 5, 0): pass", "step of a range cannot be 0"),
    ("out[9] = 1", "index 9 is outside axis 0 of extent 8"),
    ("out[-9] = 1", "index -9 is outside"),
    ("out[0, 1] = 1", "2 indices for 1 axes"),
    ("out[0:4] = 1", "stored to by tile instructions"),
    ("x = n[0]", "has no elements"),
    ("x = (1, 2)[n]", "indexed by a run-time value"),
    ("x = out + 1", "takes numbers, got a global view"),
    ("if out: pass", "has no truth value"),
    ("x = 5 // 0", "ZeroDivisionError"),
    ("x = n // 0", "by zero"),
    ("x = n << 40", "shift"),
    ("x = f'{n}'", "f-string cannot hold"),
    ("print(n)", r"print\(\) is not part"),
    ("x = n is n", "`is`"),
    ("x = 300 + T.uint8(n)", "does not fit uint8"),
    ("T.cuda.thread_idx('w')", "an axis is"),
    ("T.exp(n)", "takes floats, got int32"),
    ("T.exp(n, n)", "too many positional"),
    ("T.ptx['ld.globl.v4.b32'](n)", "globl"),
    ("T.ptx.ld.globl.v4.b32(n)", "globl"),
    ("T.cuda.tile.apply(T.ptx['ld.global.v4.b32'], out, out, scope='block')", "scope is one of"),
    ("x = [1, 2]\n    x[0] = n", "do not change"),
    ("x = [1, 2]\n    x.append(n)", "append"),
    ("x = 2 ** 100000000", "bits"),
    ("for x in n: pass", "cannot be iterated"),
    ("T.device_assert(n > 0, n)", "compile-time string"),
    ("T.print('{} {}', n)", "2 holes for 1"),
    ("x = T.layout('(4,q):(1,4)')", "'q' is not defined"),
    ("x = T.alloc_local((n,), 'float32')", "compile-time integer"),
    ("x = T.alloc_local((4,), 'flot32')", "unknown dtype"),
    ("x = T.alloc_shared((4,), 'float32', align=3)", "power of two"),
    ("T.device_entry(launch=3)", "LaunchConfig"),
    ("if n: T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))", "outside every branch"),
]  # fmt: skip


@pytest.mark.parametrize("body,message", REFUSALS, ids=[b.split("\n")[0] for b, _ in REFUSALS])
def test_refused_by_name_with_a_caret(body: str, message: str) -> None:
    with pytest.raises(SyntaxUnsupported, match=message) as caught:
        results(f"def k(out, n):\n    {body}\n", n=1)
    error = caught.value
    assert all(d.code.startswith("frontend/") and d.span is not None for d in error.diagnostics)
    assert "^" in str(error)


def test_nested_kernel_is_an_indentation_slip() -> None:
    kernel = make("def k(out, n):\n    @jit\n    def inner(x): return x\n", jit=lambda f: f)
    with pytest.raises(SyntaxUnsupported, match="decorated inside a kernel"):
        results(kernel, n=1)


def test_yield_and_await_are_refused_when_parsed() -> None:
    for text in ("def k(out):\n    yield 1", "async def k(out):\n    pass"):
        with pytest.raises(SyntaxUnsupported):
            make(text)


def test_return_annotation() -> None:
    with pytest.raises(SyntaxUnsupported, match="return annotation"):
        make("def k(out) -> int:\n    pass")
    make("def k(out) -> None:\n    pass")


def test_star_parameters() -> None:
    for text in ("def k(out, *args): pass", "def k(out, **kw): pass"):
        with pytest.raises(SyntaxUnsupported, match="fixed parameter list"):
            make(text)


def test_docstring_and_ellipsis_are_fine() -> None:
    assert results('def k(out, n):\n    """Doc."""\n    ...\n    out[0] = n', n=3)[0] == 3


def test_caret_points_at_characters_not_bytes() -> None:
    with pytest.raises(SyntaxUnsupported) as caught:
        results("def k(out, n):\n    s = 'éé'; x = nn\n", n=1)
    span = caught.value.diagnostics[0].span
    assert span is not None and (span.col, span.end_col) == (18, 20)


assert sys.version_info >= (3, 11)
