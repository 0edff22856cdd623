"""The register contract at its nearest legal and nearest illegal values, and what is issued."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tile.kit import (
    apply,
    buffer,
    checked,
    codes,
    guard,
    hw,
    i32,
    issues,
    kernel,
    op,
    raw,
    region,
    text,
    var,
    views,
    whole,
)  # fmt: skip
from tilejit import dtypes, layout
from tilejit.errors import ContractError, TargetError
from tilejit.ir import nodes
from tilejit.tile.family import Immediate, Registers, Value, Variable

F32 = nodes.FLOAT32


def regs(name="r", shape=(8, 1), dtype="float32", notation="default"):
    return buffer(name, shape, dtype, "local", notation)


def one(
    *operands, opcode="add.rn.f32", scope="thread", target="sm_90a", params=(), block=(128,), **kw
):
    return kernel(
        apply(opcode, *operands, scope=scope, **kw), target=target, params=params, block=block
    )


A, B, C = (whole(regs(n)) for n in "abc")
PRED = op("lt", hw("tid"), 5)


def slots(issue):
    return [tuple(getattr(i, "slot", None) for i in o.items) for o in issue.operands]


def test_one_issue_per_repeat_in_row_major_order():
    wide = regs("w", (2, 3, 1))
    f = one(whole(wide), whole(wide), whole(wide))
    found = issues(f)
    assert [i.repeat for i in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [slots(i)[0] for i in found] == [(k,) for k in range(6)]
    assert {i.form.spelling for i in found} == {"add.rn.f32"}


def test_no_repeat_axis_is_one_issue():
    r = whole(regs("r", (1,)))
    assert len(issues(one(r, r, r))) == 1


def test_operands_end_in_the_register_group():
    flat = whole(regs("f", (8,)))
    assert codes(one(A, B, C)) == []
    assert codes(one(A, B, flat)) == ["registers/register-group"]
    assert ".view" in text(one(A, B, flat))


def test_operand_count():
    assert codes(one(A, B)) == ["registers/operand-count"]
    assert codes(one(A, B, C, A)) == ["registers/operand-count"]


def test_repeats_agree():
    short = whole(regs("s", (7, 1)))
    assert codes(one(A, B, short)) == ["tile/repeats"]


def test_operands_are_registers():
    s = buffer("s", (8, 1), space="shared")
    assert codes(one(A, B, whole(s))) == ["registers/space"]


@pytest.mark.parametrize(
    ("opcode", "dtype", "other"),
    [
        ("add.rn.f32", "float32", "int32"),
        ("add.rn.f32", "uint32", "float16"),
        ("add.rn.f16x2", "uint32", "float32"),
        ("mul.rn.bf16x2", "uint32", "bfloat16"),
        ("add.s32", "int32", "float32"),
        ("mov.b32", "float32", "float64"),
        ("abs.s32", "int32", "float32"),
        ("ex2.approx.ftz.f32", "float32", "int32"),
    ],
)
def test_types_are_the_forms_or_its_container(opcode, dtype, other):
    count = 2 if opcode[:3] in ("mov", "abs", "ex2") else 3
    right = [whole(regs(n, dtype=dtype)) for n in "abc"][:count]
    wrong = [*right[:-1], whole(regs("x", dtype=other))]
    assert codes(one(*right, opcode=opcode)) == []
    assert codes(one(*wrong, opcode=opcode)) == ["registers/operand-type"]


def test_scalars_broadcast_and_are_never_written():
    alpha = var("alpha", F32)
    found = issues(one(A, B, alpha, params=(alpha,)))
    assert len(found) == 8 and all(i.operands[2] == Registers((Value(alpha),)) for i in found)
    assert codes(one(alpha, B, C, params=(alpha,))) == ["registers/destination"]
    assert codes(one(A, B, i32(1), opcode="sub.rn.f32")) == []
    n = var("n")
    assert codes(one(A, B, n, params=(n,))) == ["registers/operand-type"]


def test_literals_take_the_operands_type():
    half = [whole(regs(n, dtype="float16")) for n in "ab"]
    literal = nodes.Const(0.5, F32)
    (issue, *_) = issues(one(*half, literal, opcode="mul.rn.f16"))
    assert issue.operands[2].items[0].expr.type.dtype == dtypes.float16
    assert codes(one(A, nodes.Const(1.0, F32), opcode="mov.b32")) == ["registers/ambiguous-literal"]
    assert "or mov.f32, which takes the number" in text(
        one(A, nodes.Const(1.0, F32), opcode="mov.b32")
    )
    assert codes(one(A, i32(0), opcode="mov.b32")) == []
    packed = [whole(regs(n, dtype="uint32")) for n in "ab"]
    assert codes(one(*packed, nodes.Const(1.0, F32), opcode="add.rn.f16x2")) == [
        "registers/ambiguous-literal"
    ]
    assert ", or" not in text(one(*packed, nodes.Const(1.0, F32), opcode="add.rn.f16x2"))


def test_destination_slots_do_not_overlap():
    r = regs()
    spread = views.with_layout(whole(r), (4, 1), layout.parse("(4,1):(2,1)"))
    folded = views.with_layout(whole(r), (4, 1), layout.parse("(2,2,1):(2,0,1)"))
    assert codes(one(spread, spread, spread)) == []
    assert [slots(i)[0] for i in issues(one(spread, spread, spread))] == [(0,), (2,), (4,), (6,)]
    assert codes(one(spread, folded, spread)) == []  # inputs may be broadcast
    assert codes(one(folded, spread, spread)) == ["registers/overlap"]
    assert "element (0,)" in text(one(folded, spread, spread))


def test_layout_stays_inside_the_allocation():
    r = regs()
    fits = replace(whole(r), shape=(4, 1), layout=layout.parse("(4,1):(2,1) + 1"))
    past = replace(whole(r), shape=(4, 1), layout=layout.parse("(4,1):(2,1) + 2"))
    assert codes(one(fits, fits, fits)) == []
    assert codes(one(A, B, C, opcode="add.rn.f32")) == []
    assert codes(one(past, fits, fits)) == ["tile/bounds"]


def test_values_belong_to_the_executing_thread():
    notation = "(4,32,2,1):(1@warpid,1@laneid,1,1)"
    good = whole(regs("g", (4, 32, 2, 1), notation=notation))
    swapped = whole(regs("s", (4, 32, 2, 1), notation="(4,32,2,1):(1@laneid,1@warpid,1,1)"))
    single = whole(regs("o", (4, 32, 2, 1), notation="(4,32,2,1):(0,1@laneid,1,1)"))
    assert codes(one(good, good, good, scope="cta")) == []
    assert codes(one(swapped, good, good, scope="cta")) == ["registers/owner"]
    assert codes(one(single, good, good, scope="cta")) == ["registers/owner"]
    message = text(one(single, good, good, scope="cta"))
    assert "warp 0 lane 0, expected warp 1 lane 0" in message


@pytest.mark.parametrize(
    "notation",
    ["(4,32,1):(32@tx,1@tx,1)", "(4,32,1):(1@wid_in_wg,1@laneid,1)",
     "(4,32,1):(32@tid_in_wg,1@tid_in_wg,1)", "(1,4,32,1):(1@wgid,1@wid_in_wg,1@laneid,1)"],
)  # fmt: skip
def test_equivalent_owners(notation):
    r = whole(regs("r", (4, 32, 1), notation=notation))
    assert codes(one(r, r, r, scope="cta")) == []
    assert codes(one(r, r, r, scope="warpgroup")) == []


def test_guarded_lanes_need_their_own_owners():
    low = whole(regs("l", (16, 1), notation="(16,1):(1@laneid,1)"))
    high = whole(regs("h", (16, 1), notation="(16,1):(1@laneid,1) + 16@laneid"))
    upper = op("ge", hw("laneid"), 16)
    for tile, expected in ((high, []), (low, ["registers/owner"])):
        call = apply("add.rn.f32", tile, tile, tile, scope="warp")
        assert sorted(set(codes(kernel(guard(upper, call))))) == expected
    full = whole(regs("f", (32, 1), notation="(32,1):(1@laneid,1)"))
    part = region(full, (16, 0), (16, 1))
    assert codes(kernel(guard(upper, apply("mov.b32", part, part, scope="warp")))) == []


def test_one_slot_for_all_threads():
    r = whole(regs("r", (32, 1), notation="(32,1):(1,1)"))
    assert "registers/slot-per-thread" in codes(one(r, r, r, scope="warp"))
    t = hw("tid")
    wide = whole(regs("w", (128, 1)))
    assert codes(
        one(region(wide, (t, 0), (1, 1)), region(A, (0, 0), (1, 1)), region(A, (0, 0), (1, 1)))
    ) == ["registers/slot-per-thread"]


def test_register_index_is_static():
    i, r = var("i"), whole(regs("r", (8, 1)))
    part = region(r, (i, 0), (1, 1))
    call = apply("mov.b32", part, part)
    loop = nodes.For(i, i32(0), i32(8), nodes.Const(1, nodes.INT32), (call,))
    assert set(codes(kernel(loop))) == {"registers/register-index"}
    assert "unroll" in text(kernel(loop))


def test_region_starts_stay_inside():
    assert (
        codes(one(region(A, (4, 0), (4, 1)), region(B, (0, 0), (4, 1)), region(C, (4, 0), (4, 1))))
        == []
    )
    out = region(A, (5, 0), (4, 1))
    found = one(out, region(B, (0, 0), (4, 1)), region(C, (4, 0), (4, 1)))
    assert codes(found) == ["tile/bounds"]
    assert "ends at 9, outside 0..8" in text(found)


def test_packing_moves_have_explicit_slots():
    d = whole(regs("d", (1,), "uint64"))
    parts = whole(regs("p", (2,), "uint32"))
    (packed,) = issues(one(d, parts, opcode="mov.b64"))
    assert [len(o.items) for o in packed.operands] == [1, 2]
    (unpacked,) = issues(one(parts, d, opcode="mov.b64"))
    assert [len(o.items) for o in unpacked.operands] == [2, 1]
    halves = whole(regs("h", (4,), "uint16"))
    assert codes(one(d, halves, opcode="mov.b64")) == []
    assert codes(one(d, whole(regs("h", (3,), "uint16")), opcode="mov.b64")) == [
        "registers/register-group"
    ]


def test_three_input_maximum_needs_its_target():
    assert codes(one(A, B, C, opcode="max.f32", target="sm_90a")) == []
    with pytest.raises(TargetError):
        checked(one(A, B, C, opcode="add.rn.f32x2", target="sm_90a"))
    assert len(issues(one(A, B, C, A, opcode="max.f32", target="sm_100a"))) == 8
    assert codes(one(A, B, C, A, opcode="max.f32", target="sm_90a")) == ["registers/operand-count"]


def test_packed_conversion_has_two_sources():
    d = whole(regs("d", (8, 1), "uint32"))
    assert len(issues(one(d, A, B, opcode="cvt.rn.f16x2.f32"))) == 8
    assert codes(one(d, A, opcode="cvt.rn.f16x2.f32")) == ["registers/operand-count"]
    h = whole(regs("h", (8, 1), "uint16"))
    assert codes(one(h, A, opcode="cvt.rn.f16.f32")) == []
    assert codes(one(A, h, opcode="cvt.f32.f16")) == []


def test_keywords():
    assert codes(one(A, B, C, pred=PRED)) == []
    keep = nodes.Const(True, nodes.BOOL)
    (issue, *_) = issues(one(A, B, C, pred=PRED, preserve_dst=keep))
    assert issue.pred == PRED and issue.preserve_dst
    assert codes(one(A, B, C, preserve_dst=keep)) == ["registers/preserve-dst"]
    assert codes(one(A, B, C, pred=i32(1))) == ["registers/pred-type"]
    assert codes(one(A, B, C, vector=i32(4))) == ["registers/unknown-keyword"]
    assert "did you mean pred?" in text(one(A, B, C, pre=PRED))
    moving = nodes.Binary("lt", hw("ctaid.x"), i32(3), nodes.BOOL)
    assert codes(one(A, B, C, pred=PRED, preserve_dst=moving)) == ["registers/static-keyword"]


def test_unknown_spelling_and_raw_only():
    assert codes(one(A, B, C, opcode="add.rn.f33")) == ["ptx/spelling"]
    assert codes(one(A, B, C, opcode="and.b32")) == ["tile/raw-only"]


def test_all_faults_come_at_once():
    flat = whole(regs("f", (8,)))
    f = kernel(apply("add.rn.f32", A, B, flat), apply("add.rn.f32", A, B))
    with pytest.raises(ContractError) as caught:
        checked(f)
    assert caught.value.codes == ("registers/register-group", "registers/operand-count")


def test_raw_calls_are_one_issue():
    x, y = var("x", nodes.UINT32), var("y", nodes.UINT32)
    body = [nodes.Declare(x, nodes.Const(3, nodes.UINT32)), nodes.Declare(y, None)]
    f = kernel(*body, raw("lop3.b32", y, x, x, x, i32(0x80), pred=PRED))
    (issue,) = issues(f)
    assert issue.operands[0] == Registers((Variable(y),)) and issue.pred == PRED
    assert issue.operands[4] == Immediate(0x80)
    for wrong in (x, i32(-1), i32(256), nodes.Const(1.0, F32)):
        assert codes(kernel(*body, raw("lop3.b32", y, x, x, x, wrong))) == ["ptx/immediate"]
    assert codes(kernel(*body, raw("lop3.b32", y, x, x))) == ["ptx/operands"]
    assert codes(kernel(*body, raw("lop3.b32", i32(1), x, x, x, i32(1)))) == ["ptx/destination"]
    assert codes(kernel(*body, raw("lop3.b32", nodes.Text("_"), x, x, x, i32(1)))) == ["ptx/sink"]
    assert codes(kernel(*body, raw("lop3.b32", y, nodes.Const(1.0, F32), x, x, i32(1)))) == [
        "ptx/ambiguous-literal"
    ]
    assert codes(kernel(*body, raw("lop3.b32", y, x, x, x, i32(1), scope=i32(0)))) == [
        "ptx/unknown-keyword"
    ]


AT = nodes.Var("bar", nodes.PointerType("shared"))
SINK = nodes.Text("_")


def u32(value: int) -> nodes.Const:
    return nodes.Const(value, nodes.UINT32)


@pytest.mark.parametrize(
    ("spelling", "before", "legal", "beyond"),
    [
        ("mbarrier.init.shared::cta.b64", [AT], (1, 2**20 - 1), (0, 2**20, 2**32 - 1)),
        ("mbarrier.arrive.shared::cta.b64", [SINK, AT], (1, 2**20 - 1), (0, 2**20)),
        ("mbarrier.arrive.expect_tx.shared::cta.b64", [SINK, AT], (0, 2**20 - 1), (2**20,)),
        ("mbarrier.arrive.expect_tx.shared::cluster.b64", [SINK, AT], (0, 2**20 - 1), (2**20,)),
        ("bar.sync", [u32(1)], (32, 1024), (0, 48, 1056)),
    ],
)
def test_literals_in_place_of_registers(
    spelling: str, before: list[nodes.Expr], legal: tuple[int, ...], beyond: tuple[int, ...]
) -> None:
    def found(value: nodes.Expr) -> list[str]:
        where = nodes.Cast(u32(0), AT.type)
        return codes(kernel(raw(spelling, *(where if b is AT else b for b in before), value)))

    assert [found(u32(v)) for v in legal] == [[]] * len(legal)
    assert [found(u32(v)) for v in beyond] == [["ptx/literal-range"]] * len(beyond)
    assert found(nodes.Cast(hw("tid"), nodes.UINT32)) == []  # at run time it is the author's


def test_an_arrival_in_another_block_has_no_result() -> None:
    state, where = var("state", nodes.UINT64), u32(64)
    arrive = "mbarrier.arrive.shared::{}.b64"
    for space, to, expected in (
        ("cta", state, []), ("cta", SINK, []), ("cluster", SINK, []), ("cluster", state, ["ptx/sink"]),
    ):  # fmt: skip
        body = nodes.Declare(state, None), raw(arrive.format(space), to, where)
        assert codes(kernel(*body)) == expected


def test_unreached_calls_have_no_steps():
    call = apply("add.rn.f32", A, B, C)
    result = checked(kernel(guard(op("ge", hw("tid"), 128), call)))
    assert result.steps(call.call) == ()
