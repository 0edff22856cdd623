"""Nothing stores to a buffer two of whose elements share an address.

A broadcast tensor (a zero stride) is such a parameter: it can be read, and a store to one element would
change others. So is an allocation whose layout takes two coordinates to one place. Scalar stores, tile
instructions and raw instructions are looked at alike.

Not here: overlap within one instruction's destination (``tile.ownership``), races (the simulator).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilejit.errors import Report, Span
from tilejit.ir import nodes, walk
from tilejit.layout import aliases, find_collision, render
from tilejit.ptx import spelling
from tilejit.tile import raw

PAGE = "docs/contract/operands.md"


def check(function: nodes.Function, report: Report) -> None:
    """Reports ``tile/read-only`` for every store to such a parameter or allocation."""
    allocated = [n.buffer for n in walk.descend(function.body) if isinstance(n, nodes.AllocTensor)]
    suspects = {b.name for b in (*function.params, *allocated) if _shared(b)}
    own = {b.name for b in allocated}
    for node in walk.descend(function.body) if suspects else ():
        for destination, span in _destinations(node):
            buffer = destination if isinstance(destination, nodes.Var) else destination.buffer
            if buffer.name in suspects:
                _refuse(buffer, span, report, allocated=buffer.name in own)


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
        if spec.kind not in ("addr", "map") or "w" not in spec.direction:
            continue
        span = operand.span or node.span
        if isinstance(operand, nodes.Region):
            yield operand.view, span
        elif isinstance(operand, nodes.View):
            yield operand, span
        elif isinstance(operand, nodes.Address):
            yield operand.buffer, span


def _shared(buffer: nodes.Var) -> bool:
    """Whether elements of a parameter or an allocation share addresses."""
    type_ = buffer.type
    if not isinstance(type_, nodes.TensorType):
        return False
    static = all(isinstance(extent, int) for extent in type_.shape)
    return type_.read_only or (static and type_.layout is not None and aliases(type_.layout))


def _refuse(buffer: nodes.Var, span: Span | None, report: Report, *, allocated: bool) -> None:
    assert isinstance(buffer.type, nodes.TensorType)
    layout = buffer.type.layout
    help = "pass a tensor with storage of its own for every element: x.contiguous()"
    if allocated:
        help = (
            "a layout with a place of its own for every element; views may show one element as many"
        )
    report.error(
        "tile/read-only",
        f"{buffer.name} is read-only: several of its elements share one address{_pair(buffer.type)}",
        span=span,
        declared=f"{buffer.name}: {buffer.type}" + (f", layout {render(layout)}" if layout else ""),
        contract=f"{PAGE}: a zero-stride view can be read, not stored to",
        help=help,
    )


_MAX_NAMED_ELEMS = 1 << 16


def _pair(type_: nodes.TensorType) -> str:
    """Two of them, where they are quickly found."""
    shape = tuple(extent for extent in type_.shape if isinstance(extent, int))
    if type_.layout is None or len(shape) < len(type_.shape) or math.prod(shape) > _MAX_NAMED_ELEMS:
        return ""
    found = find_collision(type_.layout, shape)
    if found is None:
        return ""
    first, second = (str(list(c)) for c in (found.first, found.second))
    return f", {first} and {second} among them"
