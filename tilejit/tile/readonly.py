"""Nothing stores to a parameter two of whose elements share an address.

A broadcast tensor (a zero stride) is such a parameter: it can be read, and a store to one element would
change others. Scalar stores, tile instructions and raw instructions are looked at alike.

Not here: overlap within one instruction's destination (``tile.ownership``), races (the simulator).
"""

from __future__ import annotations

from collections.abc import Iterator

from tilejit.errors import Report, Span
from tilejit.ir import nodes, walk
from tilejit.layout import TileLayout, aliases, render
from tilejit.ptx import spelling
from tilejit.tile import raw

PAGE = "docs/contract/operands.md"


def check(function: nodes.Function, report: Report) -> None:
    """Reports ``tile/read-only`` for every store to such a parameter."""
    suspects = {p.name for p in function.params if _suspect(p)}
    for node in walk.descend(function.body) if suspects else ():
        for destination, span in _destinations(node):
            buffer = destination if isinstance(destination, nodes.Var) else destination.buffer
            if buffer.name not in suspects:
                continue
            if _shared(buffer) or (isinstance(destination, nodes.View) and _broadcast(destination)):
                _refuse(buffer, span, report)


def _destinations(node: object) -> Iterator[tuple[nodes.View | nodes.Var, Span | None]]:
    """What a statement or call stores to: the view, or the buffer of an address."""
    if isinstance(node, nodes.Store):
        yield node.view, node.span
    if not isinstance(node, nodes.Call) or node.op not in ("tile.apply", "ptx"):
        return
    parsed = raw.parse(node)
    try:
        forms = spelling.lookup(parsed.name)
    except spelling.SpellingError:  # has been reported
        return
    specs = forms[0].operands
    groups = raw.group_operands(forms[0], parsed.operands) if node.op == "ptx" else None
    operands = [g[0] for g in groups] if groups is not None else parsed.operands
    for spec, operand in zip(specs, operands):
        if spec.kind != "addr" or "w" not in spec.direction:
            continue
        span = operand.span or node.span
        if isinstance(operand, nodes.Region):
            yield operand.view, span
        elif isinstance(operand, nodes.View):
            yield operand, span
        elif isinstance(operand, nodes.Address):
            yield operand.buffer, span


def _suspect(param: nodes.Var) -> bool:
    if not isinstance(param.type, nodes.TensorType):
        return False
    return _shared(param) or not _static(param.type)


def _static(type_: nodes.TensorType) -> bool:
    return all(isinstance(extent, int) for extent in type_.shape)


def _shared(buffer: nodes.Var) -> bool:
    """Whether the layout of a buffer of static shape says so. Beside a run-time size there are run-time
    strides, which only views know."""
    type_ = buffer.type
    assert isinstance(type_, nodes.TensorType)
    return type_.layout is not None and _static(type_) and aliases(type_.layout)


def _broadcast(view: nodes.View) -> bool:
    """Whether a dimension of more than one element has stride zero, and not a run-time stride."""
    if not isinstance(view.layout, TileLayout) or len(view.layout.shard) != len(view.shape):
        return False
    strides = dict(view.dynamic_strides)
    return any(
        extent != 1 and iter_.stride == 0 and d not in strides
        for d, (extent, iter_) in enumerate(zip(view.shape, view.layout.shard))
    )


def _refuse(buffer: nodes.Var, span: Span | None, report: Report) -> None:
    assert isinstance(buffer.type, nodes.TensorType)
    layout = buffer.type.layout
    report.error(
        "tile/read-only",
        f"{buffer.name} is read-only: several of its elements share one address",
        span=span,
        declared=f"{buffer.name}: {buffer.type}" + (f", layout {render(layout)}" if layout else ""),
        contract=f"{PAGE}: a zero-stride view can be read, not stored to",
        help="pass a tensor with storage of its own for every element: x.contiguous()",
    )
