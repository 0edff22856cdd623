"""Literals, names, #line mapping, intervals."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from tests.cuda.kit import Program, binary, const, span, store, var
from tilejit import cuda, dtypes
from tilejit.cuda import cxx, ranges
from tilejit.cuda.ranges import Interval
from tilejit.cuda.writer import Names, Writer
from tilejit.ir import nodes as ir


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (5, dtypes.int32, "5"),
        (-5, dtypes.int32, "(-5)"),
        (-(2**31), dtypes.int32, "(-2147483647 - 1)"),
        (2**31 - 1, dtypes.int32, "2147483647"),
        (2**32 - 1, dtypes.uint32, "4294967295u"),
        (-(2**63), dtypes.int64, "(-9223372036854775807ll - 1)"),
        (2**64 - 1, dtypes.uint64, "18446744073709551615ull"),
        (-128, dtypes.int8, "(i8)(-128)"),
        (True, dtypes.bool_, "true"),
        (1.5, dtypes.float32, "1.5f"),
        (-0.0, dtypes.float32, "(-0.0f)"),
        (1e300, dtypes.float32, "__uint_as_float(0x7f800000u)"),
        (math.nan, dtypes.float32, "__uint_as_float(0x7fc00000u)"),
        (0.1, dtypes.float64, "0.1"),
        (1.5, dtypes.float16, "(f16)0x3e00"),
        (65520.0, dtypes.float16, "(f16)0x7c00"),
        (65519.0, dtypes.float16, "(f16)0x7bff"),
        (1.0, dtypes.bfloat16, "(bf16)0x3f80"),
        (-math.inf, dtypes.bfloat16, "(bf16)0xff80"),
    ],
)
def test_literal(value: float, dtype: dtypes.DType, text: str) -> None:
    assert cxx.literal(value, dtype) == text


def test_float32_literals_round_trip() -> None:
    patterns = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)
    for value in patterns.view(np.float32):
        if np.isfinite(value):
            text = cxx.literal(float(value), dtypes.float32).strip("()").removesuffix("f")
            assert np.float32(float(text)).tobytes() == value.tobytes()


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16])
def test_narrow_literals_round_to_nearest_even(dtype: dtypes.DType) -> None:
    import torch

    rng = np.random.default_rng(1)
    exponents = rng.integers(-45, 20, 3000)
    values = [math.ldexp(m, int(e)) for m, e in zip(rng.uniform(-2, 2, 3000), exponents)]
    values += [1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-11, 1.0 + 3 * 2**-11, 2**-24, 2**-25, 0.0]
    kind = torch.float16 if dtype == dtypes.float16 else torch.bfloat16
    singles = torch.tensor(values, dtype=torch.float32)
    expected = singles.to(kind).view(torch.int16).numpy().view(np.uint16)
    got = [cxx.narrow_float_bits(float(v), dtype) for v in singles]
    assert got == expected.tolist()


def test_names_never_meet_keywords_or_each_other() -> None:
    names = Names()
    found = [names[n] for n in ("half", "int", "x", "x_", "x.1", "x 1", "α", "1st", "tj_smem")]
    assert found[:4] == ["half_", "int_", "x_", "x__"]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[A-Za-z_]\w*_", n) for n in found)
    assert names["x"] == "x_"


def test_line_directives_map_every_statement() -> None:
    writer = Writer()
    writer.span(span(7))
    writer.line("a;")
    writer.span(span(8))
    writer.line("b;")
    writer.line("c;")
    writer.span(span(3, 'C:\\new "file".py'))
    writer.open("if (x)")
    writer.line("d;")
    writer.close()
    mapped: dict[str, tuple[str, int]] = {}
    file, number = "", 0
    for line in writer.text().splitlines():
        if found := re.fullmatch(r'#line (\d+) "(.*)"', line):
            file, number = found[2], int(found[1])
        else:
            mapped[line.strip()] = (file, number)
            number += 1
    user = "/user/kernel.py"
    assert mapped["a;"] == (user, 7) and mapped["b;"] == (user, 8) and mapped["c;"] == (user, 8)
    assert mapped["d;"] == ('C:\\\\new \\"file\\".py', 3)
    assert writer.text().count("#line") == 4
    assert writer.files == [user, 'C:\\new "file".py']


def test_intervals_hold_every_result() -> None:
    rng = np.random.default_rng(2)
    functions = {
        "add": (ranges.add, lambda a, b: a + b), "sub": (ranges.sub, lambda a, b: a - b),
        "mul": (ranges.mul, lambda a, b: a * b), "mod": (ranges.mod, lambda a, b: a % b),
        "floordiv": (ranges.floordiv, lambda a, b: a // b),
        "bitand": (ranges.bitand, lambda a, b: a & b), "bitor": (ranges.bitor, lambda a, b: a | b),
        "bitxor": (ranges.bitor, lambda a, b: a ^ b),
    }  # fmt: skip
    for _ in range(300):
        a, b = (Interval(*sorted(rng.integers(-9, 10, 2).tolist())) for _ in range(2))
        for name, (interval, exact) in functions.items():
            found = interval(a, b)
            for x in range(a.low, a.high + 1):
                for y in range(b.low, b.high + 1):
                    if found is not None:
                        assert found.low <= exact(x, y) <= found.high, (name, a, b, x, y)


def _text(*statements: ir.Stmt, **more: object) -> str:
    program = Program(list(statements), **more)  # type: ignore[arg-type]
    return cuda.emit(program).text


def test_arithmetic_is_signed_only_where_it_cannot_overflow() -> None:
    program = Program(launch=ir.LaunchConfig(None, (128,)))
    out = program.param("Y", dtypes.int32, (4,))
    n = program.param("n", dtypes.int32)
    tid = ir.HardwareId("tid")
    program.add(
        store(out, 0, binary("add", tid, const(1))),
        store(out, 1, binary("add", n, const(1))),
        store(out, 2, binary("floordiv", tid, const(6))),
        store(out, 3, binary("floordiv", n, const(8))),
        store(out, 0, binary("mod", n, const(8))),
        store(out, 1, binary("mod", n, const(6))),
        store(out, 2, binary("mod", tid, const(128))),
        store(out, 3, binary("shl", n, const(31))),
        store(out, 3, binary("shl", n, n)),
    )
    text = cuda.emit(program).text
    for fragment in (
        "= (tj_tid + 1);", "= (i32)((u32)n_ + (u32)1);", "= (i32)((u32)tj_tid / (u32)6);",
        "= (i32)(n_ >> 3);", "= (i32)(n_ & 7);", "= tj_mod<i32>(n_, 6);", "= tj_tid;",
        "= (i32)((u32)n_ << 31);", "= tj_shl<i32>(n_, (u64)n_);",
    ):  # fmt: skip
        assert fragment in text, fragment


def test_modulo_by_a_range_is_not_taken_for_its_dividend() -> None:
    """0..9 modulo 1..10 has the interval of its dividend and is not its dividend."""
    program = Program(launch=ir.LaunchConfig(None, (10,)))
    out = program.param("Y", dtypes.int32, (4,))
    divisor = binary("add", ir.HardwareId("tid"), const(1))
    program.add(store(out, 0, binary("mod", ir.HardwareId("tid"), divisor)))
    assert "= (i32)((u32)tj_tid % (u32)(tj_tid + 1));" in cuda.emit(program).text


def test_loops_count_rounds_only_where_the_variable_could_overflow() -> None:
    program = Program()
    n = program.param("n", dtypes.int32)
    i = var("i")
    program.add(
        ir.For(i, const(0), n, const(1), ()),
        ir.For(var("j"), const(0), n, const(2), ()),
        ir.For(var("k"), const(5), const(-1), const(-2), ()),
    )
    text = cuda.emit(program).text
    assert '_Pragma("unroll 1") for (i32 i_ = 0; i_ < n_; ++i_) {' in text
    assert "for (; tj_rounds" in text and "j_ = (i32)((u32)j_ + 2)" in text
    assert "for (i32 k_ = 5; k_ > (-1); k_ -= 2) {" in text


def test_text_is_deterministic_and_shaped_by_the_launch() -> None:
    launch = ir.LaunchConfig(None, (64, 2), (2, 1), min_blocks_per_sm=3)
    first, second = (
        _text(ir.Evaluate(ir.Call("cuda.cluster_sync", ())), launch=launch, name="min")
        for _ in range(2)
    )
    assert first == second
    assert "__launch_bounds__(128, 3) __cluster_dims__(2, 1, 1)" in first and "tile_min()" in first
    capped = ir.LaunchConfig(None, (64,), max_registers_per_thread=40)
    assert "__maxnreg__(40)" in _text(launch=capped)
