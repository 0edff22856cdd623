"""Scalar meaning on silicon: generated code against Python and numpy, bit for bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.conftest import need_gpu
from tests.cuda.kit import Program, binary, load, store
from tilejit import cuda, dtypes
from tilejit.dtypes import DType
from tilejit.ir import nodes as ir
from tilejit.runtime import nvrtc
from tilejit.target import Target

pytestmark = pytest.mark.gpu

NUMPY = {d.name: d.name for d in dtypes.ARITHMETIC if d != dtypes.bfloat16} | {"bool": "bool"}


@pytest.fixture(scope="module", autouse=True)
def _gpu(request: pytest.FixtureRequest) -> None:
    need_gpu(request.config)


def launch(program: Program, arrays: list[np.ndarray[Any, Any]], blocks: int) -> None:
    """Runs the program on the arrays, in place."""
    import torch
    from cuda.bindings import driver

    program.target = Target.of_capability(*torch.cuda.get_device_capability()).name
    source = cuda.emit(program)
    compiled = nvrtc.compile_cubin(source.text, program.target, source.entry)
    tensors = [torch.from_numpy(a.view(np.uint8).reshape(-1)).cuda() for a in arrays]
    pointers = [np.array([t.data_ptr()], np.uint64) for t in tensors]
    table = np.array([p.ctypes.data for p in pointers], np.uint64)
    code, library = driver.cuLibraryLoadData(compiled.cubin, [], [], 0, [], [], 0)
    assert not int(code)
    code, kernel = driver.cuLibraryGetKernel(library, source.entry.encode())
    assert not int(code)
    stream = torch.cuda.current_stream().cuda_stream
    (code,) = driver.cuLaunchKernel(
        driver.CUfunction(int(kernel)), blocks, 1, 1, 128, 1, 1, 0, stream, table.ctypes.data, 0
    )
    assert not int(code), code
    torch.cuda.synchronize()
    for array, tensor in zip(arrays, tensors):
        array.view(np.uint8).reshape(-1)[:] = tensor.cpu().numpy()


def index() -> ir.Expr:
    block = binary("mul", ir.HardwareId("ctaid.x"), ir.Const(128, ir.INT32))
    return binary("add", block, ir.HardwareId("tid"))


def samples(dtype: DType) -> list[Any]:
    if dtype.is_integer:
        low, high = dtypes.integer_range(dtype)
        middle = [
            v for v in (-7, -6, -3, -2, -1, 0, 1, 2, 3, 5, 7, 8, 31, 63, 64) if low <= v <= high
        ]
        return [low, low + 1, high // 2, high - 1, high, *middle]
    finite = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -2.5, 3.0, -5.0, 7.25, 1e-4, 6e4, -6e4, 2**-24, 1e-7]
    return [*finite, 3e38, -3e38, 1e-40, math.inf, -math.inf, math.nan]


def pairs(dtype: DType) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    values = np.array(samples(dtype), NUMPY[dtype.name] if dtype.is_integer else np.float64)
    with np.errstate(all="ignore"):
        values = values.astype(NUMPY[dtype.name])
    a, b = (x.reshape(-1) for x in np.meshgrid(values, values))
    pad = -len(a) % 128
    return np.pad(a, (0, pad), constant_values=1), np.pad(b, (0, pad), constant_values=1)


def run_binary(op: ir.BinaryOp, dtype: DType) -> tuple[np.ndarray[Any, Any], ...]:
    a, b = pairs(dtype)
    out = np.zeros_like(a)
    p = Program()
    buffers = [p.param(n, dtype, (len(a),)) for n in ("A", "B", "C")]
    p.add(
        store(buffers[2], index(), binary(op, load(buffers[0], index()), load(buffers[1], index())))
    )
    arrays = [np.ascontiguousarray(a), np.ascontiguousarray(b), out]
    launch(p, arrays, len(a) // 128)
    return a, b, arrays[2]


INTEGERS = [d for d in dtypes.ARITHMETIC if d.is_integer]
EXACT = {
    "add": lambda a, b, n: a + b, "sub": lambda a, b, n: a - b, "mul": lambda a, b, n: a * b,
    "floordiv": lambda a, b, n: a // b if b else 0, "mod": lambda a, b, n: a % b if b else 0,
    "shl": lambda a, b, n: a << b if 0 <= b < n else 0,
    "shr": lambda a, b, n: a >> b if 0 <= b < n else -(a < 0),
    "bitand": lambda a, b, n: a & b, "bitor": lambda a, b, n: a | b, "bitxor": lambda a, b, n: a ^ b,
    "min": lambda a, b, n: min(a, b), "max": lambda a, b, n: max(a, b),
}  # fmt: skip


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("op", EXACT)
def test_integers_are_pythons_modulo_their_width(op: ir.BinaryOp, dtype: DType) -> None:
    a, b, got = run_binary(op, dtype)
    mask = (1 << dtype.bits) - 1
    expected = [EXACT[op](int(x), int(y), dtype.bits) & mask for x, y in zip(a, b)]
    assert [int(v) & mask for v in got] == expected


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "truediv", "floordiv", "mod", "min", "max"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_floats_are_numpys(op: ir.BinaryOp, dtype: DType) -> None:
    a, b, got = run_binary(op, dtype)
    function = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide,
        "floordiv": np.floor_divide, "mod": np.remainder, "min": np.fmin, "max": np.fmax,
    }[op]  # fmt: skip
    wide = np.float32 if dtype == dtypes.float16 else a.dtype
    with np.errstate(all="ignore"):
        expected = function(a.astype(wide), b.astype(wide)).astype(a.dtype)
    wrong = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    if op not in ("min", "max"):  # which zero is the smaller is not said
        wrong |= ~np.isnan(expected) & (np.signbit(got) != np.signbit(expected))
    assert not wrong.any(), [(a[i], b[i], got[i], expected[i]) for i in np.flatnonzero(wrong)[:5]]


@pytest.mark.parametrize("target", INTEGERS, ids=str)
@pytest.mark.parametrize("source", [dtypes.float16, dtypes.float32, dtypes.float64], ids=str)
def test_floats_to_integers_saturate(source: DType, target: DType) -> None:
    low, high = dtypes.integer_range(target)
    values = [*samples(source), low, high, high + 1, low - 1, 127.6, 255.9, -0.9, -128.7]
    with np.errstate(all="ignore"):
        a = np.resize(np.array(values, np.float64).astype(source.name), 128)
    out = np.zeros(128, target.name)
    p = Program()
    x, y = p.param("A", source, (128,)), p.param("B", target, (128,))
    p.add(store(y, index(), ir.Cast(load(x, index()), ir.ScalarType(target))))
    arrays = [a, out]
    launch(p, arrays, 1)
    expected = [
        0 if math.isnan(v) else high if v >= high + 1 else low if v <= low - 1 else int(v)
        for v in a.astype(np.float64).tolist()
    ]  # fmt: skip
    assert arrays[1].tolist() == expected


def exact_bfloat16(value: int | float) -> int:
    """Bits of the nearest bfloat16, by exact rational arithmetic."""
    from fractions import Fraction

    if value == 0:
        return 0
    sign, exact = (0x8000, -Fraction(value)) if value < 0 else (0, Fraction(value))
    exponent = max(exact.numerator.bit_length() - exact.denominator.bit_length(), -126)
    while exact < Fraction(2) ** exponent and exponent > -126:
        exponent -= 1
    steps = round(exact / Fraction(2) ** (exponent - 7))
    return sign | min(((exponent + 126) << 7) + steps, 0x7F80)


@pytest.mark.parametrize(
    "source", [dtypes.int32, dtypes.int64, dtypes.uint64, dtypes.float64], ids=str
)
def test_bfloat16_conversions_round_once(source: DType) -> None:
    rng = np.random.default_rng(3)
    if source.is_integer:
        bits = rng.integers(1, source.bits - (source.kind == "int"), 4096 - 256)
        values = [int(rng.integers(0, 2**62)) >> max(0, 62 - int(b)) for b in bits]
        # Just beyond a tie of bfloat16, where rounding to float32 first lands on the tie.
        values += [
            ((0x81 << 23) + (1 << 22) + d) & ((1 << source.bits - 1) - 1) for d in (-1, 0, 1)
        ] * 85 + [0]
        a = np.array(values, np.uint64).astype(source.name)
    else:
        a = np.ldexp(rng.uniform(-2, 2, 4096), rng.integers(-140, 127, 4096))
        a[:3] = [1 + 2**-8 + 2**-40, 1 + 2**-8, 1 + 2**-8 - 2**-40]
    out = np.zeros(len(a), np.uint16)
    p = Program()
    x, y = p.param("A", source, (len(a),)), p.param("B", dtypes.bfloat16, (len(a),))
    p.add(store(y, index(), ir.Cast(load(x, index()), ir.ScalarType(dtypes.bfloat16))))
    arrays = [a, out]
    launch(p, arrays, len(a) // 128)
    expected = [exact_bfloat16(v) for v in a.tolist()]
    wrong = [
        i
        for i, (g, e) in enumerate(zip(arrays[1].tolist(), expected))
        if g & 0x7FFF != e & 0x7FFF or (g != e and g != 0x8000)
    ]
    assert not wrong, [(a[i], hex(arrays[1][i]), hex(expected[i])) for i in wrong[:5]]


@pytest.mark.parametrize("mode", ["idx", "xor", "up", "down"])
@pytest.mark.parametrize("dtype", [d for d in dtypes.ARITHMETIC if d != dtypes.bfloat16], ids=str)
def test_shuffles_move_every_type(mode: str, dtype: DType) -> None:
    a = (np.arange(128) * 37 % 101).astype(dtype.name)
    p = Program()
    x, y = p.param("A", dtype, (128,)), p.param("B", dtype, (128,))
    call = ir.Call(
        f"cuda.shfl_{mode}", (load(x, index()), ir.Const(3, ir.INT32)), ir.ScalarType(dtype)
    )
    p.add(store(y, index(), call))
    arrays = [a, np.zeros_like(a)]
    launch(p, arrays, 1)
    lane = np.arange(32)
    source = {"idx": 0 * lane + 3, "xor": lane ^ 3, "up": np.where(lane < 3, lane, lane - 3),
              "down": np.where(lane + 3 > 31, lane, lane + 3)}[mode]  # fmt: skip
    assert arrays[1].tolist() == a.reshape(4, 32)[:, source].reshape(-1).tolist()


def test_rounds_of_a_loop_at_the_end_of_its_type() -> None:
    """range(2**31 - 5, 2**31 - 1, 3) has two rounds and ends, as has its mirror image."""
    p = Program()
    y = p.param("Y", dtypes.int32, (2,))
    limits = np.array([2**31 - 5, 2**31 - 1, -(2**31) + 4, -(2**31)], np.int32)
    x = p.param("X", dtypes.int32, (4,))
    for k, step in ((0, 3), (1, -3)):
        ends = [load(x, ir.Const(2 * k + e, ir.INT32)) for e in (0, 1)]
        one = binary("add", load(y, ir.Const(k, ir.INT32)), ir.Const(1, ir.INT32))
        body = (store(y, k, one),)
        loop = ir.For(ir.Var(f"i{k}", ir.INT32), ends[0], ends[1], ir.Const(step, ir.INT32), body)
        p.add(ir.If(binary("eq", ir.HardwareId("tid"), ir.Const(0, ir.INT32)), (loop,), ()))
    arrays = [np.zeros(2, np.int32), limits]
    launch(p, arrays, 1)
    assert arrays[0].tolist() == [2, 2]


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_eight_bit_floats_are_torchs(name: str) -> None:
    import torch

    dtype, kind = dtypes.dtype(name), getattr(torch, name)
    ties = (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)
    near = ((np.arange(2**16, dtype=np.uint32) << 16) + 1).view(np.float32)
    a = np.concatenate([ties, near, -near])
    p = Program()
    x, y = p.param("A", dtypes.float32, (len(a),)), p.param("B", dtype, (len(a),))
    p.add(store(y, index(), ir.Cast(load(x, index()), ir.ScalarType(dtype))))
    arrays = [a, np.zeros(len(a), np.uint8)]
    launch(p, arrays, len(a) // 128)
    expected = torch.from_numpy(a).to(kind)
    number = ~torch.isnan(expected.float()).numpy()
    assert (arrays[1] == expected.view(torch.uint8).numpy())[number].all()

    back = Program()
    x, y = back.param("A", dtype, (256,)), back.param("B", dtypes.float32, (256,))
    back.add(store(y, index(), ir.Cast(load(x, index()), ir.FLOAT32)))
    arrays = [np.arange(256, dtype=np.uint8), np.zeros(256, np.float32)]
    launch(back, arrays, 2)
    wanted = torch.arange(256, dtype=torch.uint8).view(kind).float().numpy()
    assert np.array_equal(arrays[1], wanted, equal_nan=True)
