"""Public cases of section F: numbers mean one thing, at compile time, at run time, in every place."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.pitfalls.one_thread import kernel, results
from tilejit import SyntaxUnsupported, T, dtypes, jit
from tilejit.ir import nodes, views, walk
from tilejit.ir.signature import TensorArg
from tilejit.ptx.spelling import SpellingError, lookup

PAIRS = [(a, b) for a in (-7, -6, 0, 6, 7) for b in (-3, -2, 2, 3)]


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)


@pytest.mark.parametrize("kind", ["run time", "compile time", "tile"])
def test_l126_c18_integer_division_is_pythons(device: str, kind: str) -> None:
    a, b = (torch.tensor(c, dtype=torch.int32) for c in zip(*PAIRS))
    if kind == "tile":
        q, r = _by_tiles(device, a, b)
    elif kind == "run time":
        body = """
            for i in range(len(A)):
                out[i] = A[i] // B[i]
                out[i + 20] = A[i] % B[i]
                out[i + 40] = T.ceildiv(A[i], B[i])
        """
        found = results(device, body, size=60, A=a, B=b)
        q, r = found[:20], found[20:40]
        assert found[40:] == [ceildiv(*p) for p in PAIRS]
    else:
        lines = [
            f"out[{i}] = {a} // {b} + n\nout[{i + 20}] = {a} % {b} + n\nout[{i + 40}] = T.ceildiv({a}, {b}) + n"
            for i, (a, b) in enumerate(PAIRS)
        ]
        found = results(device, "\n".join(lines), size=60, n=0)
        q, r = found[:20], found[20:40]
        assert found[40:] == [ceildiv(*p) for p in PAIRS]
    assert q == [a // b for a, b in PAIRS] and r == [a % b for a, b in PAIRS]


@jit
def divide(A: T.Tensor((20,), "int32"), B: T.Tensor((20,), "int32"), out: T.Tensor((40,), "int32")):
    """Elements of a register tile, by the body of an ``ewise``."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    a = T.alloc_local((20,), "int32", layout="default")
    b = T.alloc_local((20,), "int32", layout="default")
    q = T.alloc_local((20,), "int32", layout="default")
    r = T.alloc_local((20,), "int32", layout="default")
    for i in T.unroll(20):
        a[i] = A[i]
        b[i] = B[i]

    def quotient(x: T.int32, y: T.int32) -> T.int32:
        return x // y

    def rest(x: T.int32, y: T.int32) -> T.int32:
        return x % y

    T.cuda.tile.ewise(quotient, q[:], a[:], b[:])
    T.cuda.tile.ewise(rest, r[:], a[:], b[:])
    for i in T.unroll(20):
        out[i] = q[i]
        out[i + 20] = r[i]


def _by_tiles(device: str, a: torch.Tensor, b: torch.Tensor) -> tuple[list[int], list[int]]:
    out = torch.zeros(40, dtype=torch.int32, device=device)
    divide(a.to(device), b.to(device), out)
    return out[:20].tolist(), out[20:].tolist()


@pytest.mark.parametrize(
    ("a", "b"), [(-5.0, 3.0), (5.5, -3.0), (-5.5, -3.0), (6.0, 3.0), (-0.0, 3.0)]
)
def test_l127_float_remainder_is_one_answer(device: str, a: float, b: float) -> None:
    body = f"""
        out[0] = a % b
        out[1] = {a} % {b} + 0 * a
        out[2] = a // b
        out[3] = {a} // {b} + 0 * a
    """
    found = results(device, body, dtype=torch.float32, a=a, b=b)[:4]
    assert found == [a % b, a % b, a // b, a // b]
    assert math.copysign(1, found[0]) == math.copysign(1, a % b)


def test_l129_c17_offsets_past_32_bits(device: str) -> None:
    """Of a tensor they are 64 bits wide whatever its index is; of plain numbers as wide as these are."""
    body = """
        out[0] = T.int64(n) * stride
        out[1] = T.int64(n * stride)
    """
    found = results(device, body, dtype=torch.int64, n=319, stride=7864320)
    assert found[:2] == [2508718080, 2508718080 - 2**32]

    k = kernel("out[0] = X[n, 5]", "out, X, n: T.int32")
    x = TensorArg(dtypes.int32, (320, 7864320), (7864320, 1), 16)
    function = k.check(TensorArg(dtypes.int32, (1,), (1,), 16), x, 319).function
    (load,) = (n for n in walk.descend(function.body) if isinstance(n, nodes.Load))
    assert views.element_offset(load.view, load.indices).type == nodes.INT64


def test_l131_typed_constants_are_refused_or_exact() -> None:
    for text in ("T.uint32(-3)", "T.int8(300)", "T.uint8(256)", "T.int64(2**63)"):
        with pytest.raises(SyntaxUnsupported, match="does not fit|literal"):
            results("cpu", f"out[0] = {text}", n=0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("T.float16(0.2)", float(np.float16(0.2))),
        ("T.bfloat16(0.2)", float(torch.tensor(0.2, dtype=torch.bfloat16))),
        ("T.float32(0.1)", float(np.float32(0.1))),
        ("T.float64(0.1)", 0.1),
        ("T.uint8(255) + n", 255.0),
        ("T.int8(-128)", -128.0),
    ],
)
def test_l131_typed_constants_are_rounded_once(device: str, text: str, value: float) -> None:
    assert results(device, f"out[0] = {text}", dtype=torch.float64, n=0)[0] == value


def test_l132_l146_a_name_is_as_precise_as_what_it_names(device: str) -> None:
    body = """
        c = 0.1
        out[0] = x * c
        out[1] = x * 0.1
        out[2] = x * TENTH
    """
    annotations = {"x": "T.float64"}
    found = results(
        device, body, dtype=torch.float64, x=1.0, annotations=annotations, names={"TENTH": 0.1}
    )
    assert found[:3] == [0.1] * 3
    body = "big = 9007199254740993\nout[0] = x + big\nout[1] = x + 9007199254740993"
    found = results(device, body, dtype=torch.int64, x=0, annotations={"x": "T.int64"})
    assert found[:2] == [2**53 + 1] * 2


def test_l136_bools_are_zero_and_one(device: str) -> None:
    body = """
        flag = n > 2
        out[0] = flag
        out[1] = flag + flag
        out[2] = -flag
        out[3] = T.int64(flag) << 40
        out[4] = T.int8(flag)
        out[5] = T.uint16(n) + T.uint64(1 << 40)
    """
    assert results(device, body, dtype=torch.int64, n=3)[:6] == [
        1,
        2,
        -1,
        1 << 40,
        1,
        (1 << 40) + 3,
    ]


def test_l137_there_is_no_float_maximum_in_memory() -> None:
    """What PTX does not have is no spelling; nothing is made of integer ones behind anybody's back."""
    for text in ("atom.global.max.f32", "red.global.min.f32", "atom.shared.max.f64"):
        with pytest.raises(SpellingError):
            lookup(text)


@jit
def eights(out: T.Tensor((64,), "int8"), n: T.int8):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    words = T.alloc_local((16,), "int8", layout="default")
    shared = T.alloc_shared((16,), "int8", layout="default")
    for i in T.unroll(16):
        words[i] = -7
        shared[i] = n
    for i in T.unroll(16):
        out[i] = words[i]
        out[i + 16] = shared[i]
    for i in range(16):
        out[i + 32] = -7
        out[i + 48] = n


def test_l141_every_lane_of_a_word_of_bytes(device: str) -> None:
    out = torch.zeros(64, dtype=torch.int8, device=device)
    eights(out, -7)
    assert out.tolist() == [-7] * 64


EIGHTS = [1.125, 1.0625001, 1.0625, 0.0, -0.0, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 448.0, 1e9, -1e9]  # fmt: skip


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_l142_l144_c28_eight_bit_floats_are_rounded_once(device: str, name: str, wide: str) -> None:
    """float64 too: a value that lies beside a tie by less than float32 can tell."""
    beside = [1.0625 + 2.0**-40] if wide == "float64" else []
    values = torch.tensor([*EIGHTS, *beside, math.nan, math.inf], dtype=getattr(torch, wide))
    body = f"""
        for i in range(len(X)):
            out[i] = T.cast(T.cast(X[i], "{name}"), "float32")
    """
    found = results(device, body, dtype=torch.float32, size=len(values), X=values)
    beyond = {"float8_e4m3fn": (448.0, math.nan), "float8_e5m2": (57344.0, math.inf)}[name]
    bits = {"float8_e4m3fn": (3, -6), "float8_e5m2": (2, -14)}[name]
    for value, got in zip(values.tolist(), found):
        expected = _rounded(value, *bits, *beyond)
        if math.isnan(expected):
            assert math.isnan(got), value
        else:
            assert got == expected, value
            assert math.copysign(1, got) == math.copysign(1, value)


def _rounded(value: float, fraction_bits: int, least: int, largest: float, beyond: float) -> float:
    """To nearest, ties to even; exact, since a double holds the quotient."""
    if math.isnan(value) or value == 0:
        return value
    if not math.isinf(value):
        step = 2.0 ** (max(math.frexp(value)[1] - 1, least) - fraction_bits)
        value = round(value / step) * step
    return value if abs(value) <= largest else math.copysign(beyond, value)


def test_l147_c27_nothing_becomes_tf32_by_itself() -> None:
    with pytest.raises(SyntaxUnsupported, match="has no meaning"):
        results("cpu", "x = n @ n", n=1)
    forms = lookup("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    assert forms and all("tf32" in form.spelling for form in forms)
    with pytest.raises(SpellingError):
        lookup("mma.sync.aligned.m16n8k8.row.col.f32.f32.f32.f32")


def test_l149_bfloat16_adds_numbers(device: str) -> None:
    x = torch.tensor([1.5, 2.25, -0.5, math.nan], dtype=torch.bfloat16)
    body = """
        total = X[0]
        for i in range(1, 3):
            total = total + X[i]
        out[0] = total
        out[1] = total + X[3]
        out[2] = max(total, X[1])
    """
    found = results(device, body, dtype=torch.bfloat16, X=x)
    assert found[0] == 3.25 and math.isnan(found[1]) and found[2] == 3.25


def test_l134_l154_scalars_have_the_types_of_expressions(device: str) -> None:
    body = """
        out[0] = 0.5 * B[0]
        out[1] = B[0] * 2 - 30
        out[2] = max(H[0], 0.0) / 3
        out[3] = H[0] * 2 + B[0]
    """
    b, h = torch.tensor([200], dtype=torch.uint8), torch.tensor([1.5], dtype=torch.float16)
    found = results(device, body, dtype=torch.float64, B=b, H=h)
    third = float(np.float16(1.5) / np.float16(3))
    # uint8 wraps: 400 - 256 - 30
    assert found[:4] == [100.0, 114.0, third, 203.0]


def test_l157_shapes_of_stores_agree() -> None:
    for text in ("out[0:4] = n", "out[0, 0] = n", "out = n + out"):
        with pytest.raises(SyntaxUnsupported):
            results("cpu", text, n=1)


def swapped(x: torch.Tensor, device: str) -> torch.Tensor:
    @jit
    def k(X: T.Tensor((2, 3, 4), "float32"), Y: T.Tensor((2, 4, 3), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
        turned = X.permute(0, 2, 1)
        for b in T.unroll(2):
            for i in T.unroll(4):
                for j in T.unroll(3):
                    Y[b, i, j] = turned[b, i, j]

    y = torch.zeros(2, 4, 3, device=device)
    k(x.to(device), y)
    return y.cpu()


def test_l159_a_transpose_names_its_axes(device: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(swapped(x, device), x.transpose(1, 2))
