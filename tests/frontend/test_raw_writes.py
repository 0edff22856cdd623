"""A raw instruction that writes a name is an assignment to it: other names keep the value they hold."""

from __future__ import annotations

import linecache
import re
import textwrap
from typing import Any, NamedTuple

import pytest
import torch

import tilejit as tile
from tests.frontend.kernels import make, results
from tests.frontend.test_random_programs import Writer
from tilejit import T, jit


class Pair(NamedTuple):
    x: Any
    y: Any


@jit
def overwrites(p):
    T.ptx["mov.b32"](p, T.int32(9))
    return p


@jit
def stores(x, Y):
    if x > 0:
        Y[7] = x
        return x + 1
    return x


HEAD = """\
def k(Y: T.Tensor((8,), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    z = Y[0]
    b = z + 5
    c = b
    s = T.alloc_shared((4,), "int32")
    for i in range(4):
        s[i] = i + 1
"""


def run(body: str) -> list[int]:
    """What ``body`` leaves in Y; z is 0, b and its alias c are 5, s is 1, 2, 3, 4."""
    body = re.sub(r"^(\s*)(\w+) := (.+)$", r'\1T.ptx["mov.b32"](\2, T.int32(\3))', body, flags=re.M)
    body = re.sub(r"^(\s*)(\w+) \+:= (.+)$", r'\1T.ptx["add.s32"](\2, \2, \3)', body, flags=re.M)
    text = HEAD + textwrap.indent(textwrap.dedent(body), "    ")
    file = f"<raw writes {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, Any] = {"T": T, "Pair": Pair, "overwrites": overwrites, "stores": stores}
    exec(compile(text, file, "exec"), scope)
    y = torch.zeros(8, dtype=torch.int32)
    jit(scope["k"])(y)
    return y.tolist()


# In these bodies `name := value` is a raw mov and `name +:= value` a raw add.
PROGRAMS = {
    "an alias": ("b := 7\nY[0] = b\nY[1] = c", [7, 5]),
    "both aliases": ("b := 7\nc := 8\nd = c\nc := 9\nY[0], Y[1], Y[2] = b, c, d", [7, 9, 8]),
    "an alias of a loop variable": (
        "for i in range(3):\n    j = i\n    j := 50\n    Y[i] = i\n    Y[4 + i] = j",
        [0, 1, 2, 0, 50, 50, 50],
    ),
    "a loop variable": (
        "for i in range(3):\n    Y[i] = i\n    i := 7\n    Y[3] += i\nY[4] = i",
        [0, 1, 2, 21, 7],
    ),
    "a loop's bound": (
        "for i in range(b):\n    b +:= 1\n    Y[i] = b\nY[5] = b",
        [6, 7, 8, 9, 10, 10],
    ),
    "a coordinate": ("w = T.cuda.lane_id()\nv = w\nw := 7\nY[0] = w\nY[1] = v", [7, 0]),
    "a helper's parameter": ("Y[1] = overwrites(b)\nY[0] = b", [5, 9]),
    "a local function's parameter": (
        "def g(b, n):\n    for i in range(n):\n        b +:= n\n        if b > 9:\n"
        "            return b\n    return b + 100\nY[0] = g(b, b)\nY[1] = g(b, z)\nY[2] = b",
        [10, 105, 5],
    ),
    "tuples": ("t, u = (b, 1), Pair(b, b)\nb := 7\nY[0], Y[1], Y[2] = t[0], u.x, b", [5, 5, 7]),
    "in and out": ('b +:= 3\nT.ptx["add.s32"](b, b, c)\nY[0], Y[1] = b, c', [13, 5]),
    "a guard": (
        'T.ptx["mov.b32"](b, T.int32(9), pred=z > 0, preserve_dst=True)\nY[0] = b\n'
        'T.ptx["mov.b32"](b, T.int32(9), pred=z == 0, preserve_dst=True)\nY[1], Y[2] = b, c',
        [5, 9, 5],
    ),
    "while": (
        "n = z\nwhile n < 3:\n    c = b\n    b +:= 3\n    n +:= 1\n    Y[n] = b - c\nY[0] = b",
        [14, 3, 3, 3],
    ),
    "if": (
        "if z == 0:\n    b +:= 3\nelse:\n    b +:= 4\nif z == 1:\n    b +:= 9\nY[0], Y[1] = b, c",
        [8, 5],
    ),
    "break": (
        "for i in range(5):\n    c = b\n    b +:= 3\n    if i == 2:\n        b := 1\n        break\n"
        "    b +:= 1\n    Y[i] = b\nelse:\n    b := 2\nY[3], Y[4] = b, c",
        [9, 13, 0, 1, 13],
    ),
    "unrolled break": (
        "for i in T.unroll(5):\n    c = b\n    b +:= 3\n    if b > 12:\n        b := 1\n        break\n"
        "    Y[i] = b\nelse:\n    b := 2\nY[3], Y[4] = b, c",
        [8, 11, 0, 1, 11],
    ),
    "a group": (
        'a, d = z, b\nT.ptx["ld.shared.v4.b32"]((a, b, c, d), s.ptr_to([0]))\n'
        "Y[0], Y[1], Y[2], Y[3] = a, b, c, d\n"
        'T.ptx["ld.shared.v4.b32"](b, a, d, c, s.ptr_to([0]))\n'
        "Y[4], Y[5], Y[6], Y[7] = a, b, c, d",
        [1, 2, 3, 4, 2, 1, 4, 3],
    ),
    "a name of a group": (
        "r = (b, b, c, c)\nq = r\nfor i in range(2):\n"
        '    T.ptx["ld.shared.v4.b32"](r, s.ptr_to([0]))\n'
        "Y[0], Y[1], Y[2], Y[3] = r\nY[4], Y[5] = q[0], b",
        [1, 2, 3, 4, 5, 5],
    ),
    "an atomic and the sink": (
        'T.ptx["atom.shared.add.s32"](b, s.ptr_to([3]), 1)\n'
        'T.ptx["atom.shared.add.s32"](T.ptx.SINK, s.ptr_to([3]), 1)\nY[0], Y[1], Y[2] = b, c, s[3]',
        [4, 5, 6],
    ),
    "predicates": (
        'p = z > 3\nq = p\nT.ptx["setp.eq.s32"](p, z, 0)\nY[0], Y[1] = T.int32(p), T.int32(q)\n'
        'T.ptx["setp.eq.s32"](T.ptx.pred(q), z, 0)\nY[2] = T.int32(q)',
        [1, 0, 1],
    ),
    "comprehensions": (
        'w = [T.ptx["mov.b32"](b, T.int32(i)) for i in range(3)]\nY[0], Y[1] = b, c\n'
        'q = [(v, T.ptx["mov.b32"](v, T.int32(1)), v) for v in (b, c)]\n'
        "Y[2], Y[3], Y[4], Y[5] = q[0][0], q[1][0], q[1][2], c",
        [2, 5, 2, 5, 1, 5],
    ),
    "an expression around it": ('Y[0] = b + T.int32(T.ptx["mov.b32"](b, T.int32(7)) is None) + b', [13]),
    "a name, and a source that stores": (
        "for i in range(3):\n    b += 1\n    T.ptx['mov.b32'](b, stores(b, Y))\nY[0] = b",
        [11, 0, 0, 0, 0, 0, 0, 10],
    ),
    "an element, and a source that stores": (
        'r = T.alloc_local((2,), "int32", layout="default")\nj = z\nfor i in range(1):\n    j += 1\n'
        'T.ptx["ld.shared.v2.b32"]((r[0], r[j]), s.ptr_to([stores(b, Y) - 4]))\n'
        'T.ptx["mov.b32"](r[0], r[1] + stores(b, Y))\nY[0], Y[1] = r[0], r[1]',
        [10, 4, 0, 0, 0, 0, 0, 5],
    ),
    "a source that a later one changes": (
        'def g(n):\n    s[0] = n\n    if n > 9:\n        return n\n    return n + 1\n'
        'T.ptx["add.s32"](b, s[0], g(b))\nY[0], Y[1] = b, s[0]',
        [7, 5],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_names_hold_values(name: str) -> None:
    body, expected = PROGRAMS[name]
    assert run(body) == expected + [0] * (8 - len(expected))


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        ('t = Pair(b, b)\nT.ptx["mov.b32"](t.x, T.int32(7))', "destination", "mov.b32 writes t.x"),
        ('t = (b, b)\nT.ptx["mov.b32"](t[0], T.int32(7))', "destination", "mov.b32 writes t[0]"),
        ('r = (b, c)\nT.ptx["ld.shared.v2.b32"](*r, s.ptr_to([0]))', "destination", "writes *r"),
        ('T.ptx["mov.b32"](b if True else c, T.int32(7))', "destination", "expected a name"),
        ("def g():\n    b := 7\ng()\nY[0] = b", "nonlocal", "return the value"),
    ],
)
def test_values_are_no_places(body: str, code: str, says: str) -> None:
    with pytest.raises(tile.TileError) as caught:
        run(body)
    assert caught.value.codes == (f"frontend/{code}",)
    assert says in str(caught.value)


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    """Every assignment of a random program is followed by an alias and a raw write."""
    python = re.sub(
        r"^( *)(\w) %= 97$",
        r"\1\2 = \2 % 97 + zero\n\1u = \2\n\1\2 = \2 + 1\n\1out[7] = (out[7] + u) % 1000",
        Writer(seed).program(), flags=re.M,
    )  # fmt: skip
    raw, writes = re.subn(r"(\w) = \1 \+ 1$", r'T.ptx["add.s32"](\1, \1, 1)', python, flags=re.M)
    assert writes
    for n in (0, 3, 6):
        expected = [0] * 8
        scope: dict[str, Any] = {"T": type("PythonT", (), {"unroll": range})}
        exec(f"def k(out, n, zero):\n{textwrap.indent(python, '    ')}", scope)
        scope["k"](expected, n, 0)
        kernel = make(f"def k(out, n, zero):\n{textwrap.indent(raw, '    ')}")
        assert results(kernel, n=n, zero=0) == expected, raw
