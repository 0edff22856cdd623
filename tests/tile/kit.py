"""Small kernels built by hand: short names for IR nodes, and the codes and steps of a check."""

from __future__ import annotations

from typing import Any

from tilejit import dtypes, layout
from tilejit.families import FAMILIES
from tilejit.ir import build, nodes, views
from tilejit.tile.checker import Checked, check, diagnose
from tilejit.tile.family import Issue, Let

INT = nodes.INT32


def i32(value: int) -> nodes.Const:
    return nodes.Const(value, INT)


def var(name: str, type_: nodes.Type = INT) -> nodes.Var:
    return nodes.Var(name, type_)


def hw(name: str) -> nodes.HardwareId:
    return nodes.HardwareId(name)


def op(name: str, a: Any, b: Any) -> nodes.Expr:
    a, b = (i32(x) if isinstance(x, int) else x for x in (a, b))
    logic = name in ("lt", "le", "gt", "ge", "eq", "ne", "and", "or")
    return nodes.Binary(name, a, b, nodes.BOOL if logic else a.type)


def buffer(
    name: str,
    shape: tuple[int | nodes.Var, ...],
    dtype: str = "float32",
    space: nodes.Space = "local",
    notation: str | None = "default",
    align: int = 16,
) -> nodes.Var:
    if notation == "default":
        chosen: Any = layout.row_major(tuple(s for s in shape if isinstance(s, int)))
    else:
        chosen = layout.parse(notation) if notation else None
    return nodes.Var(name, nodes.TensorType(shape, dtypes.dtype(dtype), chosen, space, align))


def whole(buffer_: nodes.Var) -> nodes.View:
    return views.whole(buffer_)


def at(view: nodes.View, *items: Any) -> nodes.View:
    """``view.sub[items]``; a slice of everything is ``...``."""
    return views.sub(view, tuple((None, None, None) if i is ... else i for i in items))


def region(view: nodes.View, starts: tuple[Any, ...], extents: tuple[int, ...]) -> nodes.Region:
    return nodes.Region(view, tuple(i32(s) if isinstance(s, int) else s for s in starts), extents)


def apply(
    name: str, *operands: nodes.Expr, scope: str = "thread", **keywords: nodes.Expr
) -> nodes.Evaluate:
    named = tuple(nodes.Keyword(k, v) for k, v in keywords.items())
    args = (nodes.Text(name), nodes.Tuple(operands), nodes.Tuple(named))
    return nodes.Evaluate(nodes.Call("tile.apply", args, attrs=nodes.ScopeAttrs(scope)))


def raw(name: str, *operands: nodes.Expr, **keywords: nodes.Expr) -> nodes.Evaluate:
    named = tuple(nodes.Keyword(k, v) for k, v in keywords.items())
    return nodes.Evaluate(
        nodes.Call("ptx", (nodes.Text(name), nodes.Tuple(operands), nodes.Tuple(named)))
    )


def guard(condition: nodes.Expr, *then: nodes.Stmt, orelse: nodes.Block = ()) -> nodes.If:
    return nodes.If(condition, tuple(then), orelse)


def kernel(
    *body: nodes.Stmt,
    params: tuple[nodes.Var, ...] = (),
    block: tuple[int, ...] = (128,),
    grid: tuple[Any, ...] | None = (4,),
    cluster: tuple[int, ...] | None = None,
    target: str = "sm_90a",
    dynamic_smem_bytes: int | None = None,
) -> nodes.Function:
    extents = None if grid is None else tuple(i32(g) if isinstance(g, int) else g for g in grid)
    launch = nodes.LaunchConfig(extents, block, cluster, dynamic_smem_bytes=dynamic_smem_bytes)
    return nodes.Function("k", params, launch, tuple(body), target)


def codes(function: nodes.Function) -> list[str]:
    return [d.code for d in diagnose(function, FAMILIES)]


def text(function: nodes.Function) -> str:
    return "\n".join(d.render() for d in diagnose(function, FAMILIES))


def checked(function: nodes.Function) -> Checked:
    return check(function, FAMILIES)


def issues(function: nodes.Function) -> list[Issue]:
    return [s for _, steps in checked(function).calls() for s in steps if isinstance(s, Issue)]


def lets(function: nodes.Function) -> list[Let]:
    return [s for _, steps in checked(function).calls() for s in steps if isinstance(s, Let)]


__all__ = ["build", "views"]
