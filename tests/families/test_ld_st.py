"""The ld/st contract at its nearest legal and nearest illegal values; every address, thread by thread."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tile.kit import (
    apply,
    at,
    buffer,
    codes,
    guard,
    hw,
    i32,
    issues,
    kernel,
    lets,
    op,
    region,
    text,
    var,
    views,
    whole,
)  # fmt: skip
from tilejit import dtypes, layout
from tilejit.errors import TargetError
from tilejit.families import FAMILIES
from tilejit.ir import nodes
from tilejit.tile.checker import check

TID = hw("tid")


def glob(name="x", shape=(16, 64), dtype="float32", align=16, notation="default"):
    return buffer(name, shape, dtype, "global", notation, align)


def regs(shape, name="r", dtype="float32", notation="default"):
    return buffer(name, shape, dtype, "local", notation)


def load(
    dst, src, opcode="ld.global.v4.b32", scope="thread", wrap=lambda s: s, params=(), **launch
):
    statement = apply(opcode, dst, src, scope=scope)
    return kernel(wrap(statement), params=params, **launch)


# --- an oracle for address expressions


def numbers(expr: nodes.Expr, ids: dict[str, np.ndarray], env: dict[str, int]):
    """The value of an index expression in every thread, by Python's integers (as objects)."""
    match expr:
        case nodes.Const(value=value):
            return np.full_like(ids["tid"], int(value))
        case nodes.HardwareId(name=name):
            return ids[name]
        case nodes.Var(name=name):
            return np.full_like(ids["tid"], env[name])
        case nodes.Cast(operand=a):
            return numbers(a, ids, env)
        case nodes.Binary(op=name, lhs=a, rhs=b):
            x, y = numbers(a, ids, env), numbers(b, ids, env)
            return {
                "add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y,
                "floordiv": lambda: x // y, "mod": lambda: x % y, "shl": lambda: x << y,
                "shr": lambda: x >> y, "bitand": lambda: x & y, "bitxor": lambda: x ^ y,
                "min": lambda: np.minimum(x, y),
            }[name]()  # fmt: skip
        case nodes.Call(op="bits.popc", args=(a,)):
            return np.array([bin(int(v)).count("1") for v in numbers(a, ids, env)])
    raise AssertionError(expr)


def addresses(function: nodes.Function, env: dict[str, int] | None = None) -> np.ndarray:
    """Byte offset of every memory access: shape (issues, threads)."""
    tid = np.arange(function.launch.threads, dtype=np.int64)
    ids = {
        "tid": tid, "tid.x": tid, "laneid": tid % 32, "warpid": tid // 32,
        "warp_in_warpgroup": tid // 32 % 4, "ctaid.x": np.zeros_like(tid),
    }  # fmt: skip
    bases: dict[nodes.Var, np.ndarray] = {}
    rows = []
    for _, steps in check(function, FAMILIES).calls():
        for step in steps:
            if hasattr(step, "value"):
                bases[step.var] = numbers(step.value.offset_bytes, ids, env or {})
                continue
            memory = next(o for o in step.operands if hasattr(o, "base"))
            if isinstance(memory.base, nodes.Var):
                base = bases[memory.base]
            else:
                base = numbers(memory.base.offset_bytes, ids, env or {})
            rows.append(base + memory.offset_bytes)
    return np.array(rows)


# --- legality


def test_vector_length_is_the_last_extent():
    r = whole(regs((16, 4)))
    x = views.reshape(at(whole(glob()), 0, ...), (16, 4))
    assert codes(load(r, x)) == []
    assert len(issues(load(r, x))) == 16
    assert codes(load(r, views.reshape(x, (32, 2)))) == ["tile/atom-shape"]
    assert codes(load(views.reshape(r, (64, 1)), views.reshape(x, (64, 1)), "ld.global.b32")) == []


def test_word_width_is_the_opcodes():
    r, x = regs((16, 4)), glob(dtype="float16")
    assert codes(load(whole(r), region(whole(x), (0, 0), (16, 4)))) == ["ld_st/operand-type"]
    ints = glob(dtype="int32")
    assert codes(load(whole(r), region(whole(ints), (0, 0), (16, 4)))) == []


def test_space_is_the_opcodes():
    r = whole(regs((4,)))
    s = at(whole(buffer("s", (16, 64), space="shared")), 0, (0, 4, None))
    assert codes(load(r, s, "ld.shared.v4.b32")) == []
    assert codes(load(r, s, "ld.shared::cta.v4.b32")) == []
    assert codes(load(r, s)) == ["ld_st/space"]
    assert codes(load(s, s, "ld.shared.v4.b32")) == ["ld_st/space"]


def test_local_memory_is_not_its_own_registers():
    r, m = whole(regs((4,))), whole(regs((4,), "m"))
    assert codes(load(r, m, "ld.local.v4.b32")) == []
    assert codes(load(r, r, "ld.local.v4.b32")) == ["ld_st/local-alias"]


@pytest.mark.parametrize(("column", "expected"), [(0, []), (4, []), (2, ["ld_st/alignment"])])
def test_start_alignment(column, expected):
    x = region(whole(glob()), (0, column), (1, 4))
    assert codes(load(whole(regs((1, 4))), x)) == expected


def test_declared_alignment_counts():
    r = whole(regs((1, 4)))
    assert codes(load(r, region(whole(glob(align=16)), (0, 0), (1, 4)))) == []
    weak = load(r, region(whole(glob(align=8)), (0, 0), (1, 4)))
    assert codes(weak) == ["ld_st/alignment"]
    assert "aligned to 8 bytes" in text(weak)


def test_row_pitch_alignment_names_the_repeat():
    pitch = glob(notation="(16,64):(66,1)")
    f = load(whole(regs((2, 4))), region(whole(pitch), (0, 0), (2, 4)))
    assert codes(f) == ["ld_st/alignment"]
    assert "repeat (1,)" in text(f) and "8 bytes above" in text(f)


def test_alignment_of_a_run_time_start():
    n, r = var("n"), whole(regs((1, 4)))
    x = region(whole(glob(shape=(16, 4096))), (0, n), (1, 4))
    inside = op("and", op("ge", n, 0), op("le", n, 4092))

    def wrap(promise):
        return lambda s: guard(op("and", inside, promise), s)

    aligned = op("eq", op("mod", n, 4), 0)
    assert codes(load(r, x, wrap=wrap(aligned), params=(n,))) == []
    halfway = op("eq", op("mod", n, 2), 0)
    assert codes(load(r, x, wrap=wrap(halfway), params=(n,))) == ["ld_st/alignment"]


def test_atoms_are_consecutive():
    strided = glob(notation="(16,64):(64,1)")
    r = whole(regs((4, 4)))
    every_other = views.with_layout(whole(strided), (4, 4), layout.parse("(4,4):(16,2)"))
    f = load(r, every_other)
    assert codes(f) == ["ld_st/contiguity"]
    assert "element 1 lies 2 elements after the first" in text(f)
    gapped_rows = views.with_layout(whole(strided), (4, 4), layout.parse("(4,4):(20,1)"))
    assert codes(load(r, gapped_rows)) == []


def test_destination_slots_are_distinct_and_may_be_gapped():
    x = region(whole(glob()), (0, 0), (2, 4))
    r = regs((16,))
    gapped = views.with_layout(whole(r), (2, 4), layout.parse("(2,4):(1,2)"))
    folded = views.with_layout(whole(r), (2, 4), layout.parse("(2,4):(0,1)"))
    f = load(gapped, x)
    assert [i.slot for i in issues(f)[1].operands[0].items] == [1, 3, 5, 7]
    assert codes(load(folded, x)) == ["ld_st/overlap"]
    store = kernel(apply("st.global.v4.b32", x, folded))
    assert codes(store) == []  # stored registers may be one


def test_guarded_row_is_in_bounds():
    m, row = var("m"), var("row")
    x = region(whole(glob(shape=(m, 64), notation="(1,64):(64,1)")), (row, 0), (1, 4))
    r = whole(regs((1, 4)))

    def with_guard(condition):
        call = apply("ld.global.v4.b32", r, x)
        start = nodes.Declare(row, op("add", op("mul", hw("ctaid.x"), 4), hw("warpid")))
        return kernel(start, guard(condition, call), params=(m,))

    assert codes(with_guard(op("lt", row, m))) == []
    assert codes(with_guard(op("le", row, m))) == ["tile/bounds"]
    assert "could not prove" in text(with_guard(op("le", row, m)))


def test_counter_example_names_the_thread():
    x = region(whole(glob(shape=(8, 64))), (op("add", hw("warpid"), 5), 0), (1, 4))
    f = load(whole(regs((1, 4))), x)
    assert codes(f) == ["tile/bounds"]
    assert "thread 96 (warp 3, lane 0)" in text(f) and "ends at 9, outside 0..8" in text(f)


def test_sub_offset_stays_in_the_buffer():
    i = var("i")
    x = at(whole(glob(shape=(16, 64))), i, (0, 4, None))
    r = whole(regs((4,)))

    def inside(stop):
        call = apply("ld.global.v4.b32", r, x)
        return kernel(nodes.For(i, i32(0), i32(stop), nodes.Const(1, nodes.INT32), (call,)))

    assert codes(inside(16)) == []
    assert codes(inside(17)) == ["tile/bounds"]
    assert "i = 16" in text(inside(17))


def test_origin_does_not_depend_on_the_thread_in_a_group():
    r = whole(regs((32, 4), notation="(32,4):(1@laneid,1)"))
    base = views.reshape(
        at(
            whole(glob(shape=(4096,))),
            (op("mul", hw("warpid"), 128), op("add", op("mul", hw("warpid"), 128), 128), None),
        ),
        (32, 4),
    )
    assert codes(load(r, base, scope="warp")) == []
    lane = region(whole(glob(shape=(64, 4))), (hw("laneid"), 0), (32, 4))
    f = load(r, lane, scope="warp")
    assert codes(f) == ["tile/origin"]
    assert "lane 0) has 0" in text(f) and "lane 1) has 1" in text(f)


def test_tensors_need_a_layout():
    x = glob(notation=None)
    assert codes(load(whole(regs((4,))), nodes.Region(whole(x), (i32(0), i32(0)), (1, 4)))) == [
        "tile/layout"
    ]


def test_run_time_extents_are_refused():
    m = var("m")
    x = glob(shape=(m, 4), notation="(1,4):(4,1)")
    assert codes(load(whole(regs((1, 4))), whole(x), params=(m,))) == ["tile/extent"]


def test_cache_policy():
    pol = var("pol", nodes.UINT64)
    x, r = region(whole(glob()), (0, 0), (1, 4)), whole(regs((1, 4)))
    hint = "ld.global.L2::cache_hint.v4.b32"

    def call(opcode, **kw):
        return kernel(apply(opcode, r, x, **kw), params=(pol,))

    (issue,) = issues(call(hint, cache_policy=pol))
    assert len(issue.operands) == 3
    assert codes(call(hint)) == ["ld_st/cache-policy"]
    assert codes(call("ld.global.v4.b32", cache_policy=pol)) == ["ld_st/cache-policy"]
    assert codes(call(hint, cache_policy=TID)) == ["ld_st/keyword-type"]
    assert codes(call("ld.global.v4.b32", vector=i32(4))) == ["ld_st/unknown-keyword"]


def test_wide_vectors_need_their_target():
    x, r = region(whole(glob(align=32)), (0, 0), (1, 8)), whole(regs((1, 8)))
    assert codes(load(r, x, "ld.global.v8.b32", target="sm_100a")) == []
    with pytest.raises(TargetError):
        check(load(r, x, "ld.global.v8.b32"), FAMILIES)


def test_stores_preserve_nothing():
    x, r = region(whole(glob()), (0, 0), (1, 4)), whole(regs((1, 4)))
    keep = nodes.Const(True, nodes.BOOL)
    pred = op("lt", TID, 3)
    assert codes(kernel(apply("st.global.v4.b32", x, r, pred=pred))) == []
    assert codes(kernel(apply("st.global.v4.b32", x, r, pred=pred, preserve_dst=keep))) == [
        "ld_st/preserve-dst"
    ]


def test_operand_count_and_scalars():
    x, r = region(whole(glob()), (0, 0), (1, 4)), whole(regs((1, 4)))
    assert codes(kernel(apply("ld.global.v4.b32", r))) == ["ld_st/operand-count"]
    assert codes(kernel(apply("ld.global.v4.b32", r, i32(3)))) == ["ld_st/tensor-operand"]
    assert codes(kernel(apply("ld.global.v4.b32", r, x, x))) == ["ld_st/operand-count"]


# --- addresses


def test_cta_rows_are_one_multiplication():
    r = whole(regs((4, 32, 2, 4), notation="(4,32,2,4):(1@warpid,1@laneid,4,1)"))
    x = views.permute(views.reshape(whole(glob(shape=(1024,))), (2, 4, 32, 4)), (1, 2, 0, 3))
    f = load(r, x, scope="cta")
    assert len(lets(f)) == 1 and [i.operands[1].offset_bytes for i in issues(f)] == [0, 2048]
    assert "warpid" not in str(lets(f)[0].value)
    tid = np.arange(128)
    assert np.array_equal(addresses(f), [tid * 16, tid * 16 + 2048])


def test_guarded_warps_and_lanes():
    x = views.reshape(whole(glob(shape=(512,))), (2, 16, 4, 4))
    r = whole(
        regs((2, 16, 4, 4), notation="(2,16,4,4):(2@warpid,1@laneid,4,1) + 1@warpid + 8@laneid")
    )
    lanes = op("and", op("ge", hw("laneid"), 8), op("lt", hw("laneid"), 24))
    warps = op("or", op("eq", hw("warpid"), 1), op("eq", hw("warpid"), 3))
    f = load(r, x, scope="cta", wrap=lambda s: guard(op("and", warps, lanes), s))
    got = addresses(f)
    for warp in (1, 3):
        for lane in range(8, 24):
            base = ((warp - 1) // 2 * 16 + (lane - 8)) * 16 * 4
            assert list(got[:, warp * 32 + lane]) == [base + 16 * k for k in range(4)]


def test_irregular_lanes_are_counted():
    f_guard = op(
        "or", op("lt", op("mod", hw("laneid"), 8), 2), op("eq", op("mod", hw("laneid"), 8), 5)
    )
    x = views.reshape(whole(glob(shape=(48,))), (12, 4))
    call = apply("st.global.v4.b32", x, whole(regs((12, 4), notation="(12,4):(0,1)")), scope="warp")
    # Owners cannot be these lanes in one stride, so only the address is looked at here.
    assert codes(kernel(guard(f_guard, call), block=(32,))) == ["ld_st/owner"]


def test_shared_swizzle_addresses():
    """128-byte swizzle: 16-byte chunks of a row are XORed with the row number."""
    s = buffer("s", (64, 64), "float16", "shared", "swizzle(3,3,3) o (64,64):(64,1)", 128)
    words = views.with_dtype(whole(s), dtypes.uint32)
    r = whole(regs((32, 2, 8, 4), dtype="uint32", notation="(32,2,8,4):(1@laneid,32,4,1)"))
    view = views.permute(views.reshape(words, (2, 32, 8, 4)), (1, 0, 2, 3))
    f = load(r, view, "ld.shared.v4.b32", "warp", block=(32,))
    got = addresses(f)
    lane = np.arange(32)
    want = [
        (half * 32 + lane) * 128 + ((chunk ^ (lane % 8)) * 16)
        for half in range(2)
        for chunk in range(8)
    ]
    assert np.array_equal(got, want)
    assert len(lets(f)) == 8  # one address per chunk; the halves are whole periods apart


def test_swizzled_offset_by_whole_periods_is_added_outside():
    stage = var("stage")
    s = buffer("s", (4, 64, 64), "float16", "shared", "swizzle(3,3,3) o (4,64,64):(4096,64,1)", 128)
    words = views.with_dtype(at(whole(s), stage, ..., ...), dtypes.uint32)
    r = whole(regs((32, 1, 4), dtype="uint32", notation="(32,1,4):(1@laneid,4,1)"))
    view = at(views.reshape(words, (64, 8, 4)), (0, 32, None), (2, 3, None), ...)
    call = apply("ld.shared.v4.b32", r, view, scope="warp")
    f = kernel(nodes.For(stage, i32(0), i32(4), nodes.Const(1, nodes.INT32), (call,)), block=(32,))
    lane = np.arange(32)
    for number in range(4):
        want = number * 8192 + lane * 128 + ((2 ^ (lane % 8)) * 16)
        assert np.array_equal(addresses(f, {"stage": number}), [want])


def test_symbolic_row_and_column():
    row = var("row")
    x = at(whole(glob(shape=(16, 64))), row, ...)
    lanes = views.reshape(x, (16, 4))
    r = whole(regs((16, 4), notation="(16,4):(1@laneid,1)"))
    call = apply("ld.global.v4.b32", r, lanes, scope="warp")
    f = kernel(nodes.For(row, i32(0), i32(16), nodes.Const(1, nodes.INT32),
                         (guard(op("lt", hw("laneid"), 16), call),)), block=(32,))  # fmt: skip
    assert np.array_equal(addresses(f, {"row": 5})[0, :16], 5 * 256 + np.arange(16) * 16)


def test_run_time_row_stride():
    pitch, row = var("pitch", nodes.INT64), var("row")
    m = var("m")
    tensor = glob(shape=(m, 64), notation="(1,64):(0,1)")
    view = views.whole(tensor, ((0, pitch),))
    part = region(view, (row, 0), (2, 4))
    body = guard(
        op("and", op("ge", row, 0), op("lt", row, op("sub", m, 1))),
        guard(op("eq", nodes.Binary("mod", pitch, nodes.Const(4, nodes.INT64), nodes.INT64), nodes.Const(0, nodes.INT64)),
              apply("ld.global.v4.b32", whole(regs((2, 4))), part)),
    )  # fmt: skip
    f = kernel(body, params=(m, pitch, row, tensor), block=(32,))
    assert codes(f) == []
    got = addresses(f, {"row": 3, "pitch": 100})
    assert np.array_equal(got[:, 0], [3 * 400, 4 * 400])
