"""Names: looking them up, binding them, and merging the bindings of several paths.

Not here: the regions that make paths (``control``), Python's resolution of globals (``names``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import ast
from typing import Any

from tilejit.errors import Span
from tilejit.frontend import carry
from tilejit.frontend.shapes import Shape, ShapeConflict, fits, refreshed, shape_of, unify
from tilejit.frontend.state import (
    Ambiguous,
    Binding,
    Bound,
    Carried,
    Env,
    Frame,
    Key,
    Lowering,
    Missing,
    Region,
)
from tilejit.frontend.values import is_scalar, same
from tilejit.ir import nodes as ir

NOT_FOUND = object()


def read(lw: Lowering, frame: Frame, name: str) -> Any:
    """The value bound to ``name`` in ``frame``; ``NOT_FOUND`` when it is no local name there."""
    binding = frame.env.get(name)
    if binding is None:
        return NOT_FOUND
    for region in frame.regions:
        if name not in region.assigned:
            region.read_first.add(name)
    return binding.value if type(binding) is Bound else _value(lw, name, binding)


def _value(lw: Lowering, name: str, binding: Binding) -> Any:
    match binding:
        case Bound():
            return binding.value
        case Carried():
            return binding.tree
        case Missing():
            at = f" (line {binding.span.line})" if binding.span else ""
            lw.refuse(
                "unbound", f"{name!r} may have no value here: {binding.why}{at}",
                help=f"give {name!r} a value before",
            )  # fmt: skip
        case Ambiguous():
            for side in binding.sides:
                _value(lw, name, side)
            shape = _unified(lw, name, list(binding.sides))
            _decide_alike(lw, binding.key[:-1])
            lw.decide(binding.key, shape)


def _decide_alike(lw: Lowering, region: Key) -> None:
    """Decide other names of the region along with one: those that are run-time scalars on every
    path lose nothing by being carried, and each would cost a pass of its own."""
    for name, binding in lw.frame.env.items():
        if not isinstance(binding, Ambiguous) or binding.key != (*region, name):
            continue
        a, b = binding.sides
        if not all(isinstance(s, Bound | Carried) and _runtime_scalar(s) for s in (a, b)):
            continue
        try:
            shape = unify(*(shape_of(_value(lw, name, side)) for side in (a, b)))
        except ShapeConflict:
            continue
        lw.decisions.setdefault(binding.key, shape)


def _unified(lw: Lowering, name: str, bindings: list[Binding]) -> Shape:
    values = [(_value(lw, name, b), getattr(b, "span", None)) for b in bindings]
    shape = shape_of(values[0][0])
    try:
        for value, _ in values[1:]:
            shape = unify(shape, shape_of(value))
    except ShapeConflict as why:
        carry.conflict(lw, name, why, [span for _, span in values])
    return shape


# --- binding


def bind(lw: Lowering, name: str, value: Any, node: ast.AST) -> None:
    """``name = value`` in the current frame."""
    frame = lw.frame
    span = lw.span(node)
    owner = next((r for r in reversed(frame.regions) if name in r.carried), None)
    if owner is not None:
        _assign_carried(lw, owner, name, value, span)
        frame.env[name] = Carried(owner.carried[name], span)
    else:
        frame.env[name] = Bound(named(lw, value, name), span)
    for region in frame.regions:
        region.assigned.setdefault(name, span)


_NAMELESS = frozenset({ir.Const, ir.Var, ir.HardwareId, ir.Address})
"""Scalars that a name may hold as they are."""


def named(lw: Lowering, value: Any, name: str) -> Any:
    """``value`` as a name may hold it: run-time scalars become variables of that name."""
    if is_scalar(value) and type(value) not in _NAMELESS:
        if lw.host_part and not lw.depth and lw.is_stable(value):
            return value  # the grid may be an expression over parameters
        return lw.declare(name, value)
    return lw.keep(value, name)


def end_host_part(lw: Lowering) -> None:
    """After ``T.device_entry``: names of host expressions become variables of the threads."""
    if not lw.host_part:
        return
    lw.host_part = False
    for frame in lw.frames:
        for name, binding in frame.env.items():
            if isinstance(binding, Bound):
                frame.env[name] = Bound(named(lw, binding.value, name), binding.span)


def _assign_carried(lw: Lowering, owner: Region, name: str, value: Any, span: Span) -> None:
    key = (*owner.key, name)
    tree = owner.carried[name]
    shape = lw.decisions.get(key)
    shape = shape_of(tree) if shape is None else refreshed(shape, shape_of(tree))
    if not fits(shape, value):
        before = owner.entry.get(name)
        try:
            lw.decide(key, unify(shape, shape_of(value)))
        except ShapeConflict as why:
            carry.conflict(lw, name, why, [getattr(before, "span", None), span])
    carry.assign(lw, tree, value, name)


def unbind(lw: Lowering, name: str, node: ast.AST) -> None:
    """``del name``."""
    if name not in lw.frame.env:
        lw.refuse("unbound", f"{name!r} has no value to delete", node)
    span = lw.span(node)
    lw.frame.env[name] = Missing("it was deleted", span)
    for region in lw.frame.regions:
        region.assigned.setdefault(name, span)


# --- regions


def enter(lw: Lowering, key: Key, assigned: set[str]) -> Region:
    """Begin a region: declare the variables it carries.

    ``assigned``: names that its code may bind. Those that already are run-time scalars are carried
    at once; others when a decision says so.
    """
    frame = lw.frame
    region = Region(key, dict(frame.env))
    for name in sorted(assigned | _decided(lw, key)):
        if any(name in outer.carried for outer in frame.regions):
            continue
        binding = frame.env.get(name)
        shape = lw.decisions.get((*key, name))
        if shape is None:
            if not (isinstance(binding, Bound | Carried) and _runtime_scalar(binding)):
                continue
            shape = shape_of(_value(lw, name, binding))
        initial = carry.ABSENT
        if isinstance(binding, Bound | Carried):
            initial = read(lw, frame, name)
            shape = refreshed(shape, shape_of(initial))
            try:
                unify(shape, shape_of(initial))
            except ShapeConflict as why:
                carry.conflict(lw, name, why, [binding.span])
        region.carried[name] = tree = carry.declare(lw, name, shape, initial)
        if initial is not carry.ABSENT:
            frame.env[name] = Carried(tree, binding.span)  # type: ignore[union-attr]
    region.entry = dict(frame.env)
    frame.regions.append(region)
    return region


def leave(lw: Lowering, region: Region) -> None:
    popped = lw.frame.regions.pop()
    assert popped is region


def _decided(lw: Lowering, key: Key) -> set[str]:
    size = len(key)
    return {
        k[size]
        for k in lw.decisions
        if len(k) == size + 1 and k[:size] == key and isinstance(k[size], str)
    }


def _runtime_scalar(binding: Bound | Carried) -> bool:
    value = binding.value if isinstance(binding, Bound) else binding.tree
    return is_scalar(value) and isinstance(value.type, ir.ScalarType | ir.PointerType)


def merge(key: Key, paths: list[tuple[Env, str]]) -> Env:
    """The bindings after several paths meet; each path comes with how messages call it."""
    merged, _ = paths[0]
    merged = dict(merged)
    merged_why = paths[0][1]
    for env, why in paths[1:]:
        result: Env = {}
        for name in {**merged, **env}:
            result[name] = _merge_one(key, name, merged.get(name), env.get(name), merged_why, why)
        merged = result
    return merged


def _merge_one(
    key: Key, name: str, a: Binding | None, b: Binding | None, a_why: str, b_why: str
) -> Binding:
    if a is None or b is None:
        present = a or b
        why = a_why if a is None else b_why
        if isinstance(present, Missing):
            return present
        return Missing(f"it is not bound {why}", getattr(present, "span", None))
    for side in (a, b):
        if isinstance(side, Missing):
            return side
    if a is b:
        return a
    if isinstance(a, Bound) and isinstance(b, Bound) and same(a.value, b.value):
        return a
    if isinstance(a, Carried) and isinstance(b, Carried) and same(a.tree, b.tree):
        return a
    if a == b:
        return a
    return Ambiguous((*key, name), (a, b))


def back_edge(lw: Lowering, region: Region, paths: list[tuple[Env, str]]) -> None:
    """Names whose value at the end of a round differs from its start, and that a round reads
    before it binds them, must be carried: decide them all."""
    if not paths:
        return
    end = merge(region.key, paths)
    found: dict[Key, Shape] = {}
    for name in region.assigned:
        before, after = region.entry.get(name), end.get(name)
        if name in region.carried or name not in region.read_first:
            continue
        if any(name in outer.carried for outer in lw.frame.regions):
            continue
        if not isinstance(before, Bound | Carried) or after is None:
            continue
        if isinstance(_merge_one(region.key, name, before, after, "", ""), Ambiguous):
            found[(*region.key, name)] = _unified(
                lw, name, [before, _certain(lw, name, after, region)]
            )
    if found:
        from tilejit.frontend.state import Restart

        lw.decisions.update(found)
        raise Restart(region.key)


def _certain(lw: Lowering, name: str, binding: Binding, region: Region) -> Binding:
    if isinstance(binding, Missing):
        lw.refuse(
            "unbound", f"{name!r} may have no value in the next round: {binding.why}",
            span=region.assigned[name],
        )  # fmt: skip
    return binding
