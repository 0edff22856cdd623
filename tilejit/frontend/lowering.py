"""``lower``: one kernel and one signature to one ``ir.Function``.

Passes are repeated until no new decision is needed (``state``). Not here: checking (``tile``).
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tilejit.errors import InternalError, SyntaxUnsupported, TileError, fault
from tilejit.frontend import control, launch, parameters, scoping
from tilejit.frontend.calls import new_frame
from tilejit.frontend.captures import Captures, Watch, is_code
from tilejit.frontend.kernel import Kernel
from tilejit.frontend.shapes import Shape, shape_of
from tilejit.frontend.state import Bound, Key, Lowering, Restart, place_of
from tilejit.frontend.targets import assigned_names
from tilejit.frontend.values import is_number
from tilejit.ir import nodes as ir
from tilejit.ir import wellformed
from tilejit.ir.signature import Signature
from tilejit.language.annotations import LaunchConfig

MAX_PASSES = 400
RECURSION_LIMIT = 20_000
"""Python frames: inlined helpers and nested statements take some twenty each."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """What ``lower`` gives.

    ``captured``: (label, value) of every global, closure cell, default and module attribute read
    that is data; functions count by their text in ``sources``: the kernel's and every helper's.
    ``watches``: all of them with where each was found, to ask whether it has changed.
    """

    function: ir.Function
    captured: tuple[tuple[str, Any], ...]
    sources: tuple[str, ...]
    watches: tuple[Watch, ...]


def lower(kernel: Kernel, signature: Signature) -> Lowered:
    """Lower ``kernel`` for ``signature``. Raises ``SyntaxUnsupported`` with carets."""
    parameters.check(kernel, signature)
    with deep_recursion():
        return _lower(kernel, signature)


_depth_lock = threading.Lock()
_depth_users = 0
_usual_depth = 0


@contextmanager
def deep_recursion() -> Iterator[None]:
    """For what follows the nesting of a program: Python's limit is raised to ``RECURSION_LIMIT`` while
    any thread is in here."""
    global _depth_users, _usual_depth
    with _depth_lock:
        if not _depth_users:
            _usual_depth = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_usual_depth, RECURSION_LIMIT))
        _depth_users += 1
    try:
        yield
    finally:
        with _depth_lock:
            _depth_users -= 1
            if not _depth_users:
                sys.setrecursionlimit(_usual_depth)


def _lower(kernel: Kernel, signature: Signature) -> Lowered:
    decisions: dict[Key, Shape] = {}
    for _ in range(MAX_PASSES):
        captures = Captures()
        captures.source(kernel.source)
        lw = Lowering(signature, captures, decisions)
        known = dict(decisions)
        try:
            function = _one_pass(lw, kernel)
        except Restart:
            if decisions == known:
                raise fault(
                    InternalError,
                    "frontend/no-progress",
                    f"lowering {kernel.name} asks for the same decision again",
                    lw.here(),
                ) from None
            continue
        except TileError:
            # A name that a loop will change was taken for the constant it starts with: carry it.
            if len(decisions) == len(known) and not _carry_suspects(lw):
                raise
            continue
        wellformed.verify(function)
        return Lowered(
            function,
            tuple((w.label, w.value) for w in captures.watches if not is_code(w.value)),
            captures.sources,
            captures.watches,
        )
    raise fault(
        SyntaxUnsupported,
        "frontend/no-fixpoint",
        f"the types of loop-carried names do not settle after {MAX_PASSES} passes",
        kernel.span,
        help="give the names explicit types, e.g. x = T.float32(0)",
    )


def _one_pass(lw: Lowering, kernel: Kernel) -> ir.Function:
    bound = parameters.bind(lw, kernel)
    frame = new_frame(kernel.source, kernel.node, None, (), bound, None, "kernel")
    lw.frames.append(frame)
    lw.host_part = _names_entry(kernel)
    statements = getattr(kernel.node, "body", None)
    if not isinstance(statements, list):
        raise fault(
            SyntaxUnsupported,
            "frontend/lambda-kernel",
            "a kernel is a def, not a lambda",
            kernel.span,
        )
    with lw.at(kernel.node):
        control.run_block(lw, statements)
    if lw.launch is None:
        lw.launch = _implied_launch(lw, kernel)
    body = scoping.hoist((*lw.allocations, *lw.block))
    params = tuple(parameters.used_order(lw))
    return ir.Function(kernel.name, params, lw.launch, body, lw.signature.target, span=kernel.span)


def _names_entry(kernel: Kernel) -> bool:
    """Whether the kernel itself calls ``T.device_entry``: what stands before it is host code."""
    return any(
        isinstance(n, ast.Attribute | ast.Name)
        and getattr(n, "attr", getattr(n, "id", "")) == "device_entry"
        for n in ast.walk(kernel.node)
    )


def _implied_launch(lw: Lowering, kernel: Kernel) -> ir.LaunchConfig:
    """A kernel without ``T.device_entry`` takes its launch from the caller."""
    override = lw.signature.launch
    if override.block is None:
        lw.refuse(
            "no-launch", f"{kernel.name} has no T.device_entry and the caller gives no block",
            span=kernel.span,
            help="add T.device_entry(launch=T.cuda.LaunchConfig(grid=…, block=…)) or launch with "
            "k[LaunchConfig(grid=…, block=…)](…)",
        )  # fmt: skip
    return launch.config(lw, LaunchConfig(), override)


def _carry_suspects(lw: Lowering) -> bool:
    """Names that an enclosing loop assigns and that are still compile-time numbers at its entry."""
    found = False
    for frame in lw.frames:
        for region in frame.regions:
            *_, what, place = region.key
            if what not in ("for", "while"):
                continue
            for name in _assigned_in(frame.source.node, place):
                binding = region.entry.get(name)
                key = (*region.key, name)
                if (
                    isinstance(binding, Bound)
                    and is_number(binding.value)
                    and key not in lw.decisions
                ):
                    lw.decisions[key] = shape_of(binding.value)
                    found = True
    return found


def _assigned_in(root: Any, place: tuple[Any, ...]) -> set[str]:
    for node in ast.walk(root):
        if isinstance(node, ast.For | ast.While) and place_of(node) == place:
            return assigned_names(node.body)
    return set()
