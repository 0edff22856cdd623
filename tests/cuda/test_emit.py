"""Registers, instructions and statements: text fragments, and the PTX that NVRTC makes of them."""

from __future__ import annotations

import itertools
import re

import pytest

from tests.cuda.kit import (
    TARGETS,
    Program,
    at,
    binary,
    const,
    count,
    issue,
    load,
    regs,
    span,
    store,
    values,
    var,
    variables,
)
from tilejit import cuda, dtypes
from tilejit.ir import nodes as ir
from tilejit.ir import views
from tilejit.runtime import nvrtc
from tilejit.target import Target
from tilejit.tile.family import Element, Registers, ScalarApply, Value


def emitted(program: Program) -> str:
    return cuda.emit(program).text


def compiled(program: Program) -> nvrtc.Compiled:
    source = cuda.emit(program)
    return nvrtc.compile_cubin(source.text, program.target, source.entry)


def scale_rows(target: str = "sm_90a") -> Program:
    """Four loads, sixteen products, four predicated stores."""
    p = Program(target=target)
    x, y = (p.param(n, dtypes.float32, (1 << 16,)) for n in "XY")
    alpha = p.param("alpha", dtypes.float32)
    r = p.local("half", dtypes.float32, 16)
    start = binary("mul", ir.Cast(ir.HardwareId("tid"), ir.INT64), const(16, dtypes.int64))
    inside = binary("lt", ir.HardwareId("tid"), const(100))
    words = dtypes.uint32
    for i in range(4):
        slots = range(4 * i, 4 * i + 4)
        p.add(
            issue(
                "ld.global.nc.v4.b32", regs(r, words, *slots), at(x, start, 2048 * i), span=span(3)
            )
        )
    for i in range(16):
        f = dtypes.float32
        p.add(issue("mul.rn.f32", regs(r, f, i), regs(r, f, i), values(alpha), span=span(4)))
    for i in range(4):
        slots = range(4 * i, 4 * i + 4)
        p.add(
            issue(
                "st.global.v4.b32",
                at(y, start, 2048 * i),
                regs(r, words, *slots),
                pred=inside,
                span=span(5),
            )
        )
    return p


@pytest.mark.parametrize("target", TARGETS)
def test_exact_instruction_count_on_every_target(target: str) -> None:
    ptx = compiled(scale_rows(target)).ptx
    assert count(ptx, "ld.global.nc.v4.b32") == 4
    assert count(ptx, "mul.rn.f32") == 16
    assert count(ptx, "st.global.v4.b32") == 4
    assert not re.search(r"\b(ld|st)\.local", ptx)
    assert ptx.count("// tilejit:op=") == 24
    assert re.search(r"tilejit:op=24 /user/kernel.py:5$", ptx, re.M)
    assert '"/user/kernel.py"' in ptx


def test_parameters_are_const_unless_written() -> None:
    text = emitted(scale_rows())
    assert "tile_kernel(const u8* X_, u8* Y_, const f32 alpha_)" in text
    assert text.count("#include") == 0


def test_effects_decide_volatile_and_clobber() -> None:
    text = emitted(scale_rows())
    nc, mul, store_ = (
        next(line for line in text.splitlines() if op in line)
        for op in ("ld.global.nc", "mul.rn", "st.global")
    )
    assert "asm volatile" in nc and '"memory"' not in nc
    assert "asm(" in mul
    assert "asm volatile" in store_ and '"memory"' in store_
    assert "@p0 st.global" in store_ and "setp.ne.b32 p0" in store_


def half_word_program() -> tuple[Program, ir.Var, ir.Var]:
    p = Program()
    y = p.param("Y", dtypes.uint32, (16,))
    r = p.local("r", dtypes.uint16, 4)
    return p, y, r


def test_container_is_the_widest_access_and_narrow_ones_move_bits() -> None:
    p, y, r = half_word_program()
    p.add(
        issue("ld.global.v2.b32", regs(r, dtypes.uint32, 0, 1), at(y)),
        issue("cvt.f32.f16", variables(var("f", dtypes.float32)), regs(r, dtypes.uint16, 3)),
        issue("mov.b16", regs(r, dtypes.uint16, 1), values(const(5, dtypes.uint16))),
        issue("st.global.v2.b32", at(y), regs(r, dtypes.uint32, 0, 1)),
    )
    p.body.insert(0, ir.Declare(var("f", dtypes.float32), None))
    text = emitted(p)
    assert "u32 r_0 = 0, r_1 = 0;" in text
    assert '"h"((u16)(r_1 >> 16))' in text
    assert "r_0 = (u32)((r_0 & 65535u) | ((u32)tj_t0 << 16));" in text


def test_one_type_keeps_its_own_scalars() -> None:
    p = Program()
    y = p.param("Y", dtypes.float32, (16,))
    r = p.local("r", dtypes.float32, 2)
    p.add(
        store(r, 0, load(y, const(3))),
        store(r, 1, load(r, const(0))),
        store(y, 0, load(r, const(1))),
    )
    text = emitted(p)
    assert "f32 r_0, r_1;" in text and "r_1 = r_0;" in text


@pytest.mark.parametrize("value", [0x1234, 0xFFFF])
@pytest.mark.parametrize("slot", range(4))
def test_inserted_bits_reach_memory(slot: int, value: int) -> None:
    """The compiler folds constants, so the stored words are in the PTX."""
    p, y, r = half_word_program()
    p.add(*(store(r, i, const(value if i == slot else i, dtypes.uint16)) for i in range(4)))
    wide = views.with_dtype(views.whole(r), dtypes.uint32)
    p.add(*(store(y, i, ir.Load(wide, (const(i),), ir.UINT32)) for i in range(2)))
    halves = [value if i == slot else i for i in range(4)]
    assert stored_words(compiled(p).ptx) == [
        halves[0] | halves[1] << 16,
        halves[2] | halves[3] << 16,
    ]


def test_wide_value_is_split() -> None:
    p = Program()
    y = p.param("Y", dtypes.uint32, (16,))
    r = p.local("r", dtypes.uint64, 1)
    p.add(store(r, 0, const(0x1122334455667788, dtypes.uint64)))
    for bits, base in ((32, 0), (16, 2), (8, 6)):
        dtype = dtypes.container(bits)
        narrow = views.with_dtype(views.whole(r), dtype)
        for i in range(64 // bits):
            element = ir.Load(narrow, (const(i),), ir.ScalarType(dtype))
            p.add(store(y, base + i, element if bits == 32 else ir.Cast(element, ir.UINT32)))
    expected = [0x55667788, 0x11223344, 0x7788, 0x5566, 0x3344, 0x1122]
    expected += [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]
    assert stored_words(compiled(p).ptx) == expected


def stored_words(ptx: str) -> list[int]:
    """Constants that scalar stores write, by address, as unsigned 32-bit words."""
    known: dict[str, int] = {}
    found: dict[int, int] = {}
    for line in ptx.splitlines():
        line = line.strip()
        if moved := re.match(r"mov\.\w+\s+(%\w+), (-?\d+);", line):
            known[moved[1]] = int(moved[2])
        elif stored := re.match(r"st\.global\.(v\d\.)?\w+\s+\[%\w+(?:\+(\d+))?\], (.*);", line):
            registers = stored[3].strip("{}").split(", ")
            for i, register in enumerate(registers):
                found[int(stored[2] or 0) + 4 * i] = known[register] & 0xFFFFFFFF
    return [found[a] for a in sorted(found)]


def test_floor_division_and_shifts_fold_to_pythons_values() -> None:
    p = Program()
    y = p.param("Y", dtypes.int32, (1024,))
    expected: list[int] = []
    zero = p.local("zero", dtypes.int32, 1)  # a register, so that the text cannot fold anything
    p.add(store(zero, 0, const(0)))
    for a in (-7, -6, -1, 0, 1, 6, 7, -(2**31), 2**31 - 1):
        for b in (-3, -1, 0, 1, 2, 3, 31, 32, 2**31 - 1):
            left = binary("bitxor", load(zero, const(0)), const(a))
            right = binary("bitxor", load(zero, const(0)), const(b))
            ops = {
                "floordiv": a // b if b else 0, "mod": a % b if b else 0,
                "shl": a << b if 0 <= b < 32 else 0,
                "shr": a >> b if 0 <= b < 32 else -(a < 0), "min": min(a, b), "max": max(a, b),
            }  # fmt: skip
            for op, value in ops.items():
                p.add(store(y, len(expected), binary(op, left, right)))
                expected.append(value & 0xFFFFFFFF)
    assert stored_words(compiled(p).ptx) == expected


def test_a_run_time_index_makes_an_array_and_an_address_too() -> None:
    p = Program()
    y, n = p.param("Y", dtypes.float32, (16,)), p.param("n", dtypes.int32)
    indexed = p.local("a", dtypes.float32, 8)
    addressed = p.local("b", dtypes.float32, 8)
    r = p.local("r", dtypes.float32, 1)
    p.add(
        store(indexed, n, const(1.0, dtypes.float32)),
        issue("st.local.b32", at(addressed, 4), values(const(2.0, dtypes.float32))),
        issue("ld.local.b32", regs(r, dtypes.float32, 0), at(addressed, 4)),
        store(y, 0, load(indexed, n)),
        store(y, 1, load(r, const(0))),
    )
    text = emitted(p)
    assert "__align__(16) u8 a_[32];" in text and "__align__(16) u8 b_[32];" in text
    ptx = compiled(p).ptx
    assert count(ptx, "st.local.b32") == 1 and count(ptx, "ld.local.b32") == 1


def test_a_buffer_used_outside_its_block_is_declared_at_the_top() -> None:
    p = Program()
    y, n = p.param("Y", dtypes.float32, (4,)), p.param("n", dtypes.int32)
    inner = ir.Var("r", ir.TensorType((1,), dtypes.float32, None, "local", 16))
    p.add(
        ir.If(
            binary("lt", n, const(3)),
            (ir.AllocTensor(inner), store(inner, 0, const(1.0, dtypes.float32))),
            (),
        ),
        store(y, 0, load(inner, const(0))),
    )
    text = emitted(p)
    assert text.index("f32 r_0;") < text.index("if (")
    compiled(p)


def test_preserved_destinations_are_read_and_written() -> None:
    p, y, r = half_word_program()
    n = p.param("n", dtypes.int32)
    guard = binary("lt", n, const(4))
    w = p.local("w", dtypes.uint32, 1)
    more = {"pred": guard, "preserve_dst": True}
    p.add(
        store(w, 0, const(1, dtypes.uint32)),
        issue("ld.global.b32", regs(w, dtypes.uint32, 0), at(y), **more),
        issue("mov.b32", regs(r, dtypes.uint32, 0), regs(w, dtypes.uint32, 0)),
        issue("ld.global.b16", regs(r, dtypes.uint16, 1), at(y), **more),
    )
    text = emitted(p)
    assert '"+r"(w_0)' in text
    assert "u16 tj_t" in text and "= (u16)(r_0 >> 16);" in text and '"+h"(tj_t' in text
    compiled(p)


def test_predicates_bytes_sinks_and_elements() -> None:
    p = Program(target="sm_100a")
    y, n = p.param("Y", dtypes.uint8, (64,)), p.param("n", dtypes.int32)
    flag, old = var("flag", dtypes.bool_), var("old", dtypes.uint32)
    q = p.local("q", dtypes.uint8, 2)
    r = p.local("r", dtypes.uint32, 2)
    element = Registers((Element(ir.Load(views.whole(r), (const(1),), ir.UINT32)),))
    full = values(const(0xFFFFFFFF, dtypes.uint32))
    p.add(
        ir.Declare(flag, None), ir.Declare(old, None),
        issue("setp.lt.s32", variables(flag), values(n), values(const(5))),
        issue("elect.sync", variables(None), variables(flag), full),
        issue("selp.b32", element, full, values(const(2, dtypes.uint32)), values(flag)),
        issue("ld.global.b8", regs(q, dtypes.uint8, 1), at(y)),
        issue("cvt.rn.satfinite.e2m1x2.f32", regs(q, dtypes.uint8, 0), *(values(const(1.0, dtypes.float32)),) * 2),
        issue("cvt.rn.f16x2.e2m1x2", regs(r, dtypes.uint32, 0), regs(q, dtypes.uint8, 0)),
        issue("st.global.b8", at(y, 1), regs(q, dtypes.uint8, 1)),
        issue("atom.global.add.u32", variables(old), at(y, 8), regs(r, dtypes.uint32, 1)),
        issue("st.global.b32", at(y, 12), regs(r, dtypes.uint32, 0)),
    )  # fmt: skip
    text = emitted(p)
    assert "elect.sync _|p" in text and "flag_ = (tj_t" in text and '"=r"(r_1)' in text
    ptx = compiled(p).ptx
    for opcode in (
        "cvt.rn.satfinite.e2m1x2.f32",
        "cvt.rn.f16x2.e2m1x2",
        "elect.sync",
        "ld.global.b8",
        "st.global.b8",
    ):
        assert count(ptx, opcode) == 1, opcode


def test_float_registers_go_only_where_they_assemble() -> None:
    p = Program()
    y = p.param("Y", dtypes.float32, (16,))
    r = p.local("r", dtypes.float32, 2)
    p.add(
        issue("ld.global.u32", regs(r, dtypes.float32, 0), at(y)),
        issue("cvt.rna.tf32.f32", regs(r, dtypes.float32, 1), regs(r, dtypes.float32, 0)),
        issue("st.global.b32", at(y), regs(r, dtypes.float32, 1)),
    )
    assert "f32 r_0, r_1;" in emitted(p)
    for target in TARGETS:
        p.target = target
        compiled(p)


def test_unrolled_loops_keep_named_registers_and_their_jumps() -> None:
    p = Program()
    y, n = p.param("Y", dtypes.int32, (8,)), p.param("n", dtypes.int32)
    r = p.local("r", dtypes.int32, 4)
    j = var("j")
    body = (
        ir.If(binary("eq", n, j), (ir.Continue(),), ()),
        ir.If(binary("eq", n, const(77)), (ir.Break(),), ()),
        store(r, j, j),
    )
    p.add(*(store(r, i, const(9)) for i in range(4)))
    p.add(ir.For(j, const(0), const(4), const(1), body, unroll=True))
    p.add(*(store(y, i, load(r, const(i))) for i in range(4)))
    text = emitted(p)
    assert "r_3 = 3;" in text and "goto tj_next1_3;" in text and "tj_leave1:;" in text
    compiled(p)


def test_ewise_is_written_in_place() -> None:
    p = Program()
    y = p.param("Y", dtypes.float32, (8,))
    r = p.local("r", dtypes.float32, 2)
    x, f = var("x", dtypes.float32), ir.FLOAT32
    clamp = ir.LambdaExpr(
        "clamp", (x,),
        (ir.If(binary("lt", x, const(0.0, dtypes.float32)), (ir.Return(const(0.0, dtypes.float32)),), ()),
         ir.Return(binary("mul", x, x))), f,
    )  # fmt: skip
    square = ir.LambdaExpr("square", (x,), (ir.Return(binary("mul", x, x)),), f)
    one, other = (regs(r, dtypes.float32, i).items[0] for i in (0, 1))
    p.add(
        store(r, 0, load(y, const(0))),
        p.apply(ScalarApply(clamp, one, (one,)), op="tile.apply"),  # type: ignore[arg-type]
        p.apply(ScalarApply(square, other, (Value(load(y, const(1))),)), op="tile.apply"),  # type: ignore[arg-type]
        store(y, 0, load(r, const(0))), store(y, 1, load(r, const(1))),
    )  # fmt: skip
    text = emitted(p)
    assert "tj_value1 = 0.0f; break;" in text and "} while (0);" in text
    assert "r_1 = (x_ * x_);" in text
    ptx = compiled(p).ptx
    assert count(ptx, "mul.f32") + count(ptx, "mul.rn.f32") == 2 and "fma" not in ptx


def test_elements_share_a_function_text_only_where_their_inputs_are_alike() -> None:
    p = Program()
    r = p.local("r", dtypes.int32, 5)
    x = var("x")
    double = ir.LambdaExpr("double", (x,), (ir.Return(binary("add", x, x)),), ir.INT32)
    items = regs(r, dtypes.int32, *range(5)).items
    inputs = (Value(const(3)), Value(const(5)), items[0], items[1], Value(const(3)))
    p.add(p.apply(*map(ScalarApply, (double,) * 5, items, zip(inputs)), op="tile.apply"))  # type: ignore[arg-type]
    text = emitted(p)
    for i, value in enumerate(("(3 + 3)", "(5 + 5)", None, None, "(3 + 3)")):
        assert f"r_{i} = {value or '(i32)((u32)x_ + (u32)x_)'};" in text


def shared_program(elems: int, declared: int | None = None) -> Program:
    p = Program(launch=ir.LaunchConfig(None, (128,), dynamic_smem_bytes=declared))
    y = p.param("Y", dtypes.float32, (8,))
    first = p.local("a", dtypes.uint8, 3, "shared")
    second = p.local("b", dtypes.float32, elems, "shared")
    r = p.local("r", dtypes.float32, 1)
    p.add(
        store(first, 0, const(1, dtypes.uint8)),
        issue("ld.shared.b32", regs(r, dtypes.float32, 0), at(second, 4)),
        store(y, 0, load(r, const(0))),
        store(y, 1, load(second, ir.HardwareId("tid"))),
    )
    return p


def test_shared_buffers_have_fixed_places() -> None:
    source = cuda.emit(shared_program(256))
    assert source.dynamic_smem_bytes == 1040
    assert "extern __shared__ __align__(1024) u8 tj_smem[];" in source.text
    assert "[%1+4]" in source.text and "(tj_smem32 + 16u)" in source.text
    compiled(shared_program(256))
    assert cuda.emit(shared_program(256, 2000)).dynamic_smem_bytes == 2000


def every_operation(target: str) -> Program:
    """Each operation of ``ir.ops`` in each type it takes."""
    from tilejit.ir import ops

    p = Program(
        target=target, launch=ir.LaunchConfig(None, (32, 4), (2,) if target != "sm_80" else None)
    )
    floats = [dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64]
    ints = [d for d in dtypes.ARITHMETIC if d.is_integer]
    outputs = {d.name: p.param(f"Y{d.name}", d, (64,)) for d in dtypes.ARITHMETIC}
    shared = p.local("S", dtypes.uint64, 4, "shared")
    lane = ir.HardwareId("laneid")
    fixed: dict[str, list[ir.Expr]] = {
        "shared": [ir.Address(shared, const(8, dtypes.int64), ir.PointerType("shared")),
                   load(outputs["uint32"], lane)],
        "static": [ir.Static(64)],
        "int32": [const(3), load(outputs["int32"], lane)],
    }  # fmt: skip
    for op in ops.OPS.values():
        if "text" in op.args or not Target.parse(target).supports(op.min_target):
            continue
        words = {"T:float": floats, "T:int": ints, "T:any": list(dtypes.ARITHMETIC)}
        kinds = next((words[a] for a in op.args if a in words), [dtypes.int32])
        for t in kinds:
            choices = [
                fixed[a] if a in fixed else [load(outputs[t.name if a in words else a], lane)]
                for a in op.args
            ]
            for args in itertools.product(*choices):
                if op.result == "void":
                    p.add(ir.Evaluate(ir.Call(op.name, args)))
                    continue
                result = t if op.result == "T" else dtypes.dtype(op.result)
                call = ir.Call(op.name, args, ir.ScalarType(result))
                p.add(store(outputs[result.name], 1, call))
    condition = binary("lt", ir.HardwareId("tid"), const(4))
    values_ = [load(y, const(0)) for y in outputs.values()]
    p.add(
        ir.Evaluate(ir.Call("print", (ir.Text("100% {{}} " + "{} " * len(values_)), *values_))),
        ir.Evaluate(
            ir.Call("device_assert", (condition, ir.Text('is "small" 100%'))), span=span(9)
        ),
        ir.Evaluate(ir.Call("assume", (condition,))),
    )
    return p


@pytest.mark.parametrize("target", TARGETS)
def test_every_operation_compiles(target: str) -> None:
    program = every_operation(target)
    result = compiled(program)
    assert "warning" not in result.log
    for opcode in ("fma.rn.f16", "fma.rn.bf16", "sqrt.rn.f32", "sqrt.rn.f64"):
        assert count(result.ptx, opcode), opcode


@pytest.mark.parametrize("target", TARGETS)
def test_every_conversion_and_operator_compiles(target: str) -> None:
    p = Program(target=target)
    kinds = dtypes.ARITHMETIC
    buffers = {d.name: p.param(f"Y{d.name}", d, (64,)) for d in kinds}
    at_lane = {d.name: load(buffers[d.name], ir.HardwareId("laneid")) for d in kinds}
    for d in kinds:
        a, b = at_lane[d.name], load(buffers[d.name], const(3))
        for e in kinds:
            p.add(store(buffers[e.name], 2, ir.Cast(a, ir.ScalarType(e))))
        for op in ("lt", "eq", "ne"):
            p.add(store(buffers["bool"], 0, binary(op, a, b)))
        arithmetic = ["add", "sub", "mul", "min", "max", "floordiv", "mod"]
        arithmetic += ["truediv"] if d.is_float else ["bitand", "bitor", "bitxor", "shl", "shr"]
        if d.kind != "bool":
            p.add(*(store(buffers[d.name], 1, binary(op, a, b)) for op in arithmetic))
            unary = ("neg", "abs") if d.is_float else ("neg", "abs", "invert")
            p.add(*(store(buffers[d.name], 1, ir.Unary(op, a, a.type)) for op in unary))
        p.add(store(buffers[d.name], 4, ir.Select(at_lane["bool"], a, b, a.type)))
        container = ir.ScalarType(dtypes.container(d.bits))
        back = ir.Bitcast(ir.Bitcast(a, container), a.type)
        p.add(store(buffers[d.name], 5, back))
    assert "warning" not in compiled(p).log


def test_warp_roles_read_their_number_from_one_lane() -> None:
    p = Program()
    y = p.param("Y", dtypes.int32, (8,))
    p.add(store(y, 0, ir.HardwareId("warpid")))
    assert "const i32 tj_warpid = tj_tid >> 5;" in emitted(p)
    assert "const i32 tj_tid = (i32)threadIdx.x;" in emitted(p)
