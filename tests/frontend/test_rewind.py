"""A loop that is lowered again by itself gives what lowering the whole kernel again gives."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from tests.frontend.kernels import lower, make, results, tensor
from tests.frontend.test_control_flow import BODIES
from tests.frontend.test_random_programs import Writer
from tilejit import dtypes, frontend
from tilejit.frontend import statements
from tilejit.frontend.state import Flow, Lowering
from tilejit.ir import script
from tilejit.ir.signature import ScalarArg

ALLOCATION = """
    x = 0
    for i in range(n):
        kept = T.alloc_local((2,), "int32", layout="default")
        kept[0] = x + i
        x = kept[0]
    out[0] = x
"""

PROGRAMS = {
    "allocation": ALLOCATION,
    **{name: body for name, body in BODIES.items() if "out" in body},
    **{f"random {seed}": Writer(seed).program() for seed in range(100, 140)},
}


def written(body: str) -> frontend.Kernel:
    lines = body.strip("\n").splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    return make("\n".join(["def k(out, n):", *("    " + line[indent:] for line in lines)]))


def lowered(kernel: frontend.Kernel) -> frontend.Lowered:
    return lower(kernel, out=tensor("int32", 8), n=ScalarArg(dtypes.int32))


def from_the_start(lw: Lowering, loop: ast.For | ast.While, run: Callable[[], Flow]) -> Flow:
    """``until_decided`` that leaves every decision to the kernel."""
    del lw, loop
    return run()


@pytest.mark.parametrize("body", PROGRAMS.values(), ids=PROGRAMS)
def test_the_same_kernel_as_from_the_start(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = written(body)
    rewound = lowered(kernel)
    monkeypatch.setattr(statements, "until_decided", from_the_start)
    whole = lowered(kernel)
    assert script.print_function(rewound.function) == script.print_function(whole.function)
    assert rewound.captured == whole.captured


LOOPS = """
def k(out, n):
    note("before", 1)
    x = 0
    for i in range(n):
        b = note("outer", 0)
        y = 0
        for j in range(3):
            y = y + note("inner", 1)
        x = x + y + b
    out[0] = x + note("after", 0)
"""


def test_what_stands_before_a_loop_is_lowered_once() -> None:
    seen: list[str] = []

    def note(place: str, value: int) -> int:
        seen.append(place)
        return value

    assert results(make(LOOPS, note=note), n=4)[0] == 12
    counts = {place: seen.count(place) for place in ("before", "outer", "inner", "after")}
    # The inner loop finds that it carries y, then the outer one that it carries x.
    assert counts == {"before": 1, "outer": 2, "inner": 3, "after": 1}


def test_a_decision_about_a_branch_before_the_loop_starts_the_kernel_again() -> None:
    seen: list[str] = []

    def note(value: int) -> int:
        seen.append("before")
        return value

    text = """
    def k(out, n):
        if n > 2:
            x = note(1)
        else:
            x = 7
        for i in range(n):
            out[0] += x
    """
    assert results(make(text, note=note), n=3)[0] == 3
    assert results(make(text, note=note), n=2)[0] == 14
    assert len(seen) == 4


JUMPS_FORGOTTEN = {
    # Before z is carried it is a constant there, and only then are the jumps lowered.
    "from an inner loop": """
    def f(m):
        for o in range(m):
            for i in T.unroll(2):
                if m > 5:
                    z = 1
                    if not hasattr(z, "dtype"):
                        if m == 100:
                            return 7
                else:
                    z = 2
                out[0] += z
        return 3
    out[1] = f(n)
""",
    "before the else of an inner loop": """
    def f(m):
        z = 5
        for o in range(m):
            for i in range(m):
                z = 1
                if not hasattr(z, "dtype"):
                    if m == 100:
                        return 7
                z = i
            else:
                out[0] += z
        return 3
    out[1] = f(n)
""",
}


@pytest.mark.parametrize("body", JUMPS_FORGOTTEN.values(), ids=JUMPS_FORGOTTEN)
def test_jumps_that_are_not_there_any_more(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    test_the_same_kernel_as_from_the_start(body, monkeypatch)


VIEW = """
def k(out, n):
    note()
    def f(m):
        x = 0
        while True:
            w = x + m
            if w > 3:
                return out.sub[w % 4 : w % 4 + 1]
            x = x + 1
    v = f(n)
    v[0] = 5
"""


def test_a_returned_view_is_forgotten_with_the_loop() -> None:
    """While x is a constant, w is n, and so is where the view begins."""
    seen: list[str] = []

    def note() -> None:
        seen.append("before")

    assert results(make(VIEW, note=note), n=1) == [5, 0, 0, 0, 0, 0, 0, 0]
    assert len(seen) == 3, (
        "f's result and jump are decisions about the kernel, that x is carried is not"
    )
