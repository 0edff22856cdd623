"""Public cases of section A: what Python means is what the kernel does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.frontend.test_control_flow import BODIES
from tests.pitfalls.one_thread import kernel, results
from tilejit import SyntaxUnsupported, T, jit

ROOT = Path(__file__).parent.parent.parent


class _PythonT:
    """``T`` where Python runs a body."""

    unroll = range


def as_python(body: str, n: int, size: int = 8) -> list[int]:
    out = [0] * size
    text = "def k(out, n):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    space: dict[str, Any] = {"T": _PythonT}
    exec(text, space)
    space["k"](out, n)
    return [int(x) for x in out]


MORE = {
    "L01_the_middle_is_evaluated_once": """
        def middle():
            out[7] += 1
            return n
        out[0] = 1 if 1 < middle() < 3 else 2
        out[1] = 1 if n <= middle() <= n else 2
        out[2] = 1 if 9 < middle() < middle() else 2
    """,
    "L02_for_and_while_with_a_helper": """
        def parts(i):
            return i // 128, i % 128
        for i in range(n, 512, 78):
            a, b = parts(i)
            out[a] += b
        i = n
        while i < 512:
            a, b = parts(i)
            out[a + 4] += b
            i += 78
    """,
    "L14_a_name_reassigned_in_a_loop": """
        a = 1
        b = n
        for i in range(n):
            a = b
            b = i
        out[0] = a
        out[1] = b
    """,
    "L31b_the_last_round_wins": """
        for i in range(n):
            k = i * i
            for j in range(4):
                if j == 2:
                    continue
                k = k + k
            out[0] = k
    """,
    "L31g_every_augmented_operator": """
        out[0] = 77
        out[0] -= n
        out[1] += 9
        out[1] *= n
        out[1] //= 2
        out[2] -= 7
        out[2] %= n + 2
        pair = (n, 5)
        a, b = pair
        a -= b
        a **= 2
        a |= 8
        a ^= 3
        a &= 29
        a <<= 2
        a >>= 1
        out[3] = a
        out[n % 4 + 4] -= a
    """,
}


@pytest.mark.parametrize("name", [*BODIES, *MORE])
def test_control_flow_is_pythons(device: str, name: str) -> None:
    """The bodies that tests/frontend interprets, compiled."""
    body = {**BODIES, **MORE}[name]
    assert results(device, body, n=3) == as_python(body, 3)


def test_l04_attributes_do_not_change_behind_a_kernel() -> None:
    class Counter:
        def __init__(self) -> None:
            self.s = 0

        def work(self, out: Any, n: Any) -> None:
            s = 1
            if n == 0:
                out[0] = self.s
            self.s = s

    with pytest.raises(
        SyntaxUnsupported, match=r"Counter.*may change|attributes cannot be assigned"
    ):
        results("cpu", "counter.work(out, n)", n=0, names={"counter": Counter()})
    with pytest.raises(SyntaxUnsupported, match="attributes cannot be assigned"):
        results("cpu", "n.s = 1", n=0)


@pytest.mark.parametrize("flag", [3, 8])
def test_l06_a_lambda_with_a_choice_by_a_constant(device: str, flag: int) -> None:
    body = "f = lambda k: k // 4 * 3 if FLAG >= 8 else k // 2\nout[0] = f(n) + f(9)"
    expected = sum(k // 4 * 3 if flag >= 8 else k // 2 for k in (13, 9))
    assert results(device, body, n=13, names={"FLAG": flag})[0] == expected
    by_argument = body.replace("FLAG", "flag")
    found = results(device, by_argument, n=13, flag=flag, annotations={"flag": "T.constexpr"})
    assert found[0] == expected


def test_l31_postponed_annotations_of_all_kinds(device: str) -> None:
    """This module postpones its annotations."""
    compile_time = T.constexpr

    @jit
    def k(out: T.Tensor(("N",), "int32"), A: T.constexpr, B: "T.constexpr", C: compile_time):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=A))
        for i in T.unroll(B):
            out[i] = C

    out = torch.zeros(8, dtype=torch.int32, device=device)
    k(out, 1, 3, 5)
    assert out.tolist() == [5, 5, 5, 0, 0, 0, 0, 0]


def test_l31f_aliases_and_re_exports(device: str) -> None:
    inner, outer = types.ModuleType("inner"), types.ModuleType("outer")
    exec("def f(x):\n    return x * 3", vars(inner))
    outer.g = inner.f
    names = {"outer": outer, "h": inner.f, "inner": inner}
    body = "out[0] = outer.g(n)\nout[1] = h(n) + inner.f(1)"
    with pytest.raises(SyntaxUnsupported, match="source"):
        results(device, body, n=2, names=names)  # its text is nowhere
    from tilejit.lib import reduce
    from tilejit.lib.reduce import maximum as larger

    again = types.ModuleType("again")
    again.larger = larger
    body = "out[0] = larger(n, 5)\nout[1] = again.larger(n, 1)\nout[2] = reduce.minimum(n, 1)"
    names = {"larger": larger, "again": again, "reduce": reduce}
    assert results(device, body, n=2, names=names)[:3] == [5, 2, 1]


def test_l31h_a_tensor_of_rank_zero(device: str) -> None:
    x = torch.tensor(2.5)
    body = "out[0] = X[()] * n\nX[()] = 7.0\nout[1] = X[...]"
    assert results(device, body, dtype=torch.float32, n=2, X=x.to(device))[:2] == [5.0, 7.0]


def test_l31i_factories_give_their_own_kernels(device: str) -> None:
    def build(size: int) -> Any:
        @jit
        def k(out):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
            out[0] = size

        return k

    outs = [torch.zeros(1, dtype=torch.int32, device=device) for _ in range(3)]
    kernels = [build(128), build(256)]
    for k, out in zip((*kernels, kernels[0]), outs):
        k(out)
    assert [int(out) for out in outs] == [128, 256, 128]


def run_python(
    folder: Path, *command: str, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TILEJIT_CACHE_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, *command], input=stdin, capture_output=True, text=True, env=env
    )


REPL = """
from tilejit import T, dtypes, jit
@jit
def k(out: T.Tensor(("N",), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    out[0] = 42

from tilejit.ir.signature import TensorArg
print("made", k.check(TensorArg(dtypes.int32, (8,), (1,), 16)).function.name)
"""


def test_l72_l77_kernels_typed_at_a_prompt(tmp_path: Path) -> None:
    """Without a file Python may keep no source: then a ``TileError`` says what to do, and the session goes
    on; Python 3.13 keeps it."""
    program = REPL + "\nprint('still here')\n"
    done = run_python(tmp_path, "-i", "-q", stdin=program)
    assert "still here" in done.stdout and done.returncode == 0
    assert "made k" in done.stdout or "error[frontend/no-source]" in done.stderr
    assert "Internal" not in done.stderr and "built-in" not in done.stderr
    given = kernel("out[0] = 42", "out")  # exec with source=
    assert given.__name__ == "k"
