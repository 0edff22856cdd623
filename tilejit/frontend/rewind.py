"""Lowering a loop again by itself, where a decision is about nothing outside it.

What came before such a loop does not depend on the decision, so the pass takes back what the loop did
and goes on from its start. A decision about anything else starts the kernel again (``lowering``).

Not here: which names are decided on, and when (``env``, ``control``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace

from tilejit.frontend.state import Flow, Frame, Key, Lowering, Restart, place_of


def until_decided(lw: Lowering, loop: ast.For | ast.While, run: Callable[[], Flow]) -> Flow:
    """``run``, which lowers ``loop``, again and again until it needs no new decision of its own."""
    path = lw.frame.path
    back = _mark(lw)
    while True:
        known = dict(lw.decisions)
        try:
            return run()
        except Restart as restart:
            if lw.decisions == known or not _is_inside(restart.key, path, loop):
                raise
            back()


def _is_inside(key: Key, path: Key, loop: ast.For | ast.While) -> bool:
    """Whether the decision is about a place in ``loop``, or in what it calls; ``path``: the loop's."""
    size = len(path)
    if key[:size] != path or len(key) < size + 2:
        return False
    # A region's word and place, or line, column and number of a round that is written out.
    begin = key[size + 1][:2] if isinstance(key[size], str) else key[size : size + 2]
    place = place_of(loop)
    return bool(place[:2] <= begin < place[2:])


def _mark(lw: Lowering) -> Callable[[], None]:
    """What takes the lowering back to where it is now. Captures stay: what was read was read."""
    frames = list(lw.frames)
    frames_back = [_mark_frame(frame) for frame in frames]
    block, statements, allocations = lw.block, len(lw.block), len(lw.allocations)
    taken, mutable = set(lw.taken), set(lw.mutable)
    launch, launch_span, host_part = lw.launch, lw.launch_span, lw.host_part
    hint, node, depth = lw.hint, lw.node, lw.depth

    def back() -> None:
        lw.frames[:] = frames
        for frame_back in frames_back:
            frame_back()
        lw.block, lw.depth = block, depth
        del block[statements:]
        del lw.allocations[allocations:]
        lw.taken, lw.mutable = set(taken), set(mutable)
        lw.launch, lw.launch_span, lw.host_part = launch, launch_span, host_part
        lw.hint, lw.node = hint, node

    return back


def _mark_frame(frame: Frame) -> Callable[[], None]:
    env, bindings = frame.env, dict(frame.env)
    path, inner = frame.path, frame.inner
    regions = [(region, dict(region.assigned), set(region.read_first)) for region in frame.regions]
    loops = [(loop, set(loop.escapes)) for loop in frame.loops]
    result, given = frame.result, frame.result and replace(frame.result)

    def back() -> None:
        env.clear()
        env.update(bindings)
        frame.env, frame.path, frame.inner = env, path, inner
        frame.regions = [region for region, _, _ in regions]
        for region, assigned, read_first in regions:
            region.assigned, region.read_first = dict(assigned), set(read_first)
        frame.loops = [loop for loop, _ in loops]
        for loop, escapes in loops:
            loop.escapes = set(escapes)
        if result is not None and given is not None:
            vars(result).update(vars(given))

    return back
