"""Asynchronous copies against a model of the happens-before relation: random programs of two warps,
four lanes each. Not here: programs without copies (``test_hazards_oracle``).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.written import codes, kernel

WARPS, LANES, BYTES = 2, 4, 64
Thread = tuple[int, int]
THREADS = list(product(range(WARPS), range(LANES)))

# --- programs: tuples (kind, what it touches, the threads that execute)

_warps = st.sampled_from([(0,), (1,), (0, 1)])
_threads = st.tuples(_warps, st.integers(0, 1), st.sampled_from([1, 2, 4, 4]))
"""Warps, first lane, end of the lanes."""
_place = st.tuples(st.integers(0, 3), st.integers(0, 15))
"""Factor and shift of the thread's number: the element of a buffer that it touches."""
_copy = st.sampled_from([4, 8, 16]).flatmap(
    lambda width: st.tuples(
        st.just("copy"),
        st.tuples(st.just(width), _place, _place, st.sampled_from([width, width, 0, 3])),
        _threads,
    )
)
_plain = st.tuples(
    st.sampled_from(["read", "read", "write"]),
    st.tuples(st.sampled_from([4, 16]), _place, st.sampled_from(["s", "s", "G"])),
    _threads,
)
_group = st.one_of(
    st.tuples(st.sampled_from(["commit", "commit", "wait_all"]), st.none(), _threads),
    st.tuples(st.just("wait"), st.integers(0, 2), _threads),
)
_barrier = st.tuples(st.sampled_from(["cta", "warp"]), st.none(), st.tuples(_warps))
_steps = st.lists(
    st.one_of(_copy, _copy, _plain, _group, _group, _barrier), min_size=2, max_size=16
)
_last = st.one_of(_copy, _plain)

HEAD = """
def k(G: T.Tensor((64,), "uint8", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
    z = warp * 4 + lane
    s = T.alloc_shared((64,), "uint8", layout="default", align=16)
    r = T.alloc_local((4,), "uint32", layout="default")
    for i in T.unroll(4):
        r[i] = T.uint32(i)
    if warp == 0:
        s[lane] = T.uint8(0)
        s[lane + 32] = T.uint8(0)
    T.cuda.cta_sync()
"""


def element(place: tuple[int, int], width: int, z: Any) -> Any:
    factor, shift = place
    if isinstance(z, str):
        return f"({z} * {factor} + {shift}) % {BYTES // width}"
    return (z * factor + shift) % (BYTES // width)


def statement(kind: str, what: Any) -> str:
    match kind:
        case "copy":
            width, to, source, size = what
            sides = [
                f"{name}.view({BYTES // width}, {width}).sub[{element(place, width, 'z')}, :]"
                for name, place in (("s", to), ("G", source))
            ]
            return (
                f'T.cuda.tile.apply(T.ptx["cp.async.ca.shared.global"], {", ".join(sides)}, '
                f"chunk_bytes={width}, src_size={size})"
            )
        case "read" | "write":
            width, place, name = what
            vector, words = ("v4.", 4) if width == 16 else ("", 1)
            space = {"s": "shared", "G": "global"}[name]
            view = f'{name}.view("uint32").view({BYTES // width}, {words})'
            memory, registers = f"{view}.sub[{element(place, width, 'z')}, :]", f"r.sub[0:{words}]"
            if kind == "read":
                return f'T.cuda.tile.apply(T.ptx["ld.{space}.{vector}b32"], {registers}, {memory})'
            return f'T.cuda.tile.apply(T.ptx["st.{space}.{vector}b32"], {memory}, {registers})'
        case "wait":
            return f'T.ptx["cp.async.wait_group"]({what})'
        case "commit":
            return 'T.ptx["cp.async.commit_group"]()'
        case "wait_all":
            return 'T.ptx["cp.async.wait_all"]()'
    return {"cta": "T.cuda.cta_sync()", "warp": "T.cuda.warp_sync()"}[kind]


def text(program: list[Any]) -> str:
    lines = [HEAD.rstrip()]
    for kind, what, who in program:
        condition = "True" if kind == "cta" else " or ".join(f"warp == {w}" for w in who[0])
        if len(who) == 3:
            condition = f"({condition}) and lane >= {who[1]} and lane < {who[2]}"
        lines += [f"    if {condition}:", f"        {statement(kind, what)}"]
    return "\n".join(lines)


# --- the model


class Model:
    """Vector clocks of all threads, and every access so far. A copy's accesses have no time until a
    wait of its thread covers them.

    What an earlier step wrote stands for the accesses to the byte before it: they are ordered before
    it, so that who meets one of them out of order meets the write out of order too."""

    def __init__(self) -> None:
        self.clock = {t: {u: int(t == u) for u in THREADS} for t in THREADS}
        self.group = dict.fromkeys(THREADS, 0)
        self.history: list[dict[str, Any]] = []
        self.steps = 0
        self.faults: set[str] = set()

    def meet(self, group: Iterable[Thread]) -> None:
        members = list(group)
        joined = {u: max(self.clock[t][u] for t in members) for u in THREADS}
        for t in members:
            self.clock[t] = joined | {t: joined[t] + 1}

    def touch(self, t: Thread, name: str, start: int, size: int, wrote: bool, late: bool) -> None:
        touched = {(name, start + i) for i in range(size)}
        left = set(touched)
        for past in reversed(self.history):
            met = past["bytes"] & left
            if past["wrote"] and past["step"] < self.steps:
                left -= met
            if not (met and (past["wrote"] or wrote)):
                continue
            if past["time"] is None:
                self.faults.add("sim/in-flight")
            elif past["thread"] != t and self.clock[t][past["thread"]] < past["time"]:
                self.faults.add("sim/race")
        time = None if late else self.clock[t][t]
        self.history.append(
            {
                "thread": t,
                "time": time,
                "bytes": touched,
                "wrote": wrote,
                "group": self.group[t],
                "step": self.steps,
            }  # fmt: skip
        )

    def wait(self, t: Thread, below: int) -> None:
        for past in self.history:
            if past["thread"] == t and past["time"] is None and past["group"] < below:
                past["time"] = self.clock[t][t]

    def step(self, kind: str, what: Any, t: Thread) -> None:
        z = t[0] * LANES + t[1]
        match kind:
            case "copy":
                width, to, source, size = what
                self.touch(t, "G", element(source, width, z) * width, size, False, True)
                self.touch(t, "s", element(to, width, z) * width, width, True, True)
            case "read" | "write":
                width, place, name = what
                start = element(place, width, z) * width
                self.touch(t, name, start, width, kind == "write", False)
            case "commit":
                self.group[t] += 1
            case "wait":
                self.wait(t, self.group[t] - what)
            case "wait_all":
                self.wait(t, self.group[t] + 1)

    def run(self, program: list[Any]) -> set[str]:
        for kind, what, who in program:
            self.steps += 1
            if kind == "cta":
                self.meet(THREADS)
            elif kind == "warp":
                for warp in who[0]:
                    self.meet(t for t in THREADS if t[0] == warp)
            else:
                warps, first, end = who
                for t in THREADS:
                    if t[0] in warps and first <= t[1] < end:
                        self.step(kind, what, t)
        return self.faults


@settings(max_examples=200, deadline=None)
@given(_steps, _last, st.integers(0, 3))
def test_copies_are_reported_exactly_where_nothing_orders_them(
    steps: list[Any], last: Any, seed: int
) -> None:
    """Faults of the last step only: steps that would be faults before it are left out."""
    program: list[Any] = []
    for step in steps:
        if not Model().run([*program, step]):
            program.append(step)
    program.append(last)
    found = set(codes(kernel(text(program)), torch.zeros(BYTES, dtype=torch.uint8), seed=seed))
    assert found == Model().run(program)
