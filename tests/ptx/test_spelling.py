"""Spellings: canonical order, several forms, what is refused and what the refusal says."""

from __future__ import annotations

import random
import re

import pytest

from tilejit.ptx import spelling, tables
from tilejit.ptx.forms import OperandSpec
from tilejit.ptx.rows import Row
from tilejit.ptx.spelling import SpellingError, forms_of_family, lookup


def refusal(text: str) -> SpellingError:
    with pytest.raises(SpellingError) as caught:
        lookup(text)
    return caught.value


def shape(text: str) -> list[list[tuple[str, str, int, bool]]]:
    return [
        [(o.direction, o.type, o.lanes, o.braces) for o in form.operands] for form in lookup(text)
    ]


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("ld.v4.global.b32", "ld.global.v4.b32"),
        ("ld.global.L2::128B.L2::cache_hint.v4.b32", "ld.global.L2::cache_hint.L2::128B.v4.b32"),
        ("ld.global.L1::no_allocate.nc.b32", "ld.global.nc.L1::no_allocate.b32"),
        ("ld.global.relaxed.gpu.b32", "ld.relaxed.gpu.global.b32"),
        ("cvt.f16.rn.f32", "cvt.rn.f16.f32"),
        ("cvt.relu.rn.f16x2.f32", "cvt.rn.relu.f16x2.f32"),
        ("add.f32.ftz.rn", "add.rn.ftz.f32"),
        ("max.NaN.ftz.f32", "max.ftz.NaN.f32"),
        ("red.add.global.f32", "red.global.add.f32"),
        ("griddepcontrol.wait", "griddepcontrol.wait"),
        ("tcgen05.ld.32x32b.x4.sync.aligned.b32", "tcgen05.ld.sync.aligned.32x32b.x4.b32"),
        ("tcgen05.mma.kind::f16.cta_group::2", "tcgen05.mma.cta_group::2.kind::f16"),
        ("tcgen05.cp.32x128b.warpx4.cta_group::1", "tcgen05.cp.cta_group::1.32x128b.warpx4"),
    ],
)
def test_modifiers_may_stand_in_any_order(written: str, canonical: str) -> None:
    assert {form.spelling for form in lookup(written)} == {canonical}


def test_types_never_change_places() -> None:
    assert lookup("cvt.f32.f16")[0].spelling == "cvt.f32.f16"
    assert "rounding" in refusal("cvt.f16.f32").message
    assert lookup("cvt.s32.u16")[0].operands[0].type == "s32"
    assert lookup("cvt.u16.s32")[0].operands[0].type == "u16"
    refusal("add.f16.f32")
    swapped = lookup("createpolicy.fractional.L2::evict_last.L2::evict_first.b64")[0]
    assert swapped.spelling == "createpolicy.fractional.L2::evict_last.L2::evict_first.b64"


def test_any_order_of_any_form_finds_the_same_form() -> None:
    chance = random.Random(5)
    for form in chance.sample(spelling.FORMS, 300):
        tokens = list(form.modifiers)
        single = [
            t for t in tokens if t in ("rn", "sat", "ftz", "v4", "global", "relu", "nc", "ca")
        ]
        if any(t.startswith("shared") for t in tokens):
            single = [t for t in single if t != "global"]  # the order of spaces is a direction
        if not single:
            continue
        moved = chance.choice(single)
        tokens.remove(moved)
        tokens.insert(chance.randrange(len(tokens) + 1), moved)
        assert form in lookup(".".join((form.mnemonic, *tokens)))


def test_one_spelling_with_several_operand_lists() -> None:
    assert [len(form.operands) for form in lookup("max.f32")] == [3, 4]
    assert [form.min_target for form in lookup("max.f32")] == ["sm_75", "sm_100"]
    assert [len(form.operands) for form in lookup("bar.sync")] == [1, 2]
    assert shape("mov.b64")[:2] == [
        [("w", "b64", 1, False), ("r", "b64", 1, False)],
        [("w", "b64", 1, False), ("r", "b32", 2, True)],
    ]


def test_operands_of_the_contracts_examples() -> None:
    assert shape("cvt.rn.f16x2.f32") == [
        [("w", "f16x2", 1, False), ("r", "f32", 1, False), ("r", "f32", 1, False)]
    ]
    assert shape("mul.wide.u32")[0][0] == ("w", "u64", 1, False)
    assert shape("ld.global.v4.b32") == [[("w", "b32", 4, True), ("r", "b32", 4, False)]]
    assert shape("ld.global.b32") == [[("w", "b32", 1, False), ("r", "b32", 1, False)]]
    assert shape("st.shared.v2.b16")[0][0] == ("w", "b16", 2, False)
    hinted = lookup("st.global.L2::cache_hint.v4.b32")[0]
    assert [o.name for o in hinted.operands] == ["a", "b", "cache_policy"]
    assert hinted.operands[0].space == "global"
    assert lookup("elect.sync")[0].operands[1].joined


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("add.rn.bf16x2", "sm_90"),
        ("fma.rn.bf16x2", "sm_80"),
        ("add.rn.f32x2", "sm_100"),
        ("cvt.rn.satfinite.e4m3x2.f32", "sm_89"),
        ("cvt.rn.satfinite.e2m1x2.f32", "sm_100f|sm_110f|sm_120f"),
        ("ld.global.v8.b32", "sm_100"),
        ("ld.global.L2::256B.b32", "sm_80"),
        ("ld.global.L2::128B.b32", "sm_75"),
        ("max.xorsign.abs.f32", "sm_86"),
        ("ex2.approx.ftz.bf16x2", "sm_90"),
    ],
)
def test_least_targets_of_the_reference(text: str, target: str) -> None:
    assert lookup(text)[0].min_target == target


@pytest.mark.parametrize(
    ("text", "in_message", "in_help"),
    [
        ("ld.global.v3.b32", "2, 4 or 8", "'.v2' or '.v4'"),
        ("ld.global.v8.b16", "crashes", ".v4.b32"),
        ("ld.relaxed.cluster.global.v8.b32", "crashes", ".gpu"),
        ("ld.shared.v4.b64", "global memory only", ".v2.b64"),
        ("ld.global.v8.b64", "too wide", ".v4.b64"),
        ("ld.global.L2::evict_last.v4.b32", "32-byte", "createpolicy"),
        ("st.global.L2::64B.v4.b32", "prefetch", "load"),
        ("cvt.f32x2.f16x2", "packed widening", "cvt.f32.f16"),
        ("fma.f32", "rounding", "fma.rn"),
        ("ex2.approx.bf16x2", "mandatory", "ex2.approx.ftz"),
        ("tcgen05.wait::ld", "mandatory", "tcgen05.wait::ld.sync.aligned"),
        (
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cta.b64",
            "space",
            "shared address",
        ),
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64", "not fully", ".shared::cluster"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared.b32", ".shared", "'.shared::cta'?"),
        ("tcgen05.mma.ws.cta_group::2.kind::f16", "one block", "'.cta_group::1'"),
        ("tcgen05.mma.cta_group::1.kind::mxf4", "not fully", ".block_scale"),
        ("tcgen05.mma.cta_group::1.kind::f16.block_scale", "no block", "'.kind::mxf4'"),
        (
            "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale",
            "not fully",
            "block .block16 .block32; scale_vec .scale_vec::2X .scale_vec::4X",
        ),
        ("tcgen05.mma.cta_group::1.kind::mxf4.block_scale.block16", "two scales", ".block32"),
        ("tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::1X", "two or four", "4X"),
        ("tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::2X", "one scale", "1X"),
        ("tcgen05.mma.cta_group::1.kind::f16.collector::b0::use", "holds A", "collector::a::use"),
        ("tcgen05.mma.ws.cta_group::1.kind::f16.collector::a::use", "holds B", "b0::use"),
        ("tcgen05.mma.cta_group::1.kind::f16.ashift.collector::a::use", "shifted A", "lastuse"),
        (
            "tcgen05.mma.cta_group::3.kind::f16",
            "not a modifier",
            "did you mean '.cta_group::2' or '.cta_group::1'?; open here: pair .cta_group::1",
        ),
        ("tcgen05.cp.cta_group::1.64x128b", "two pairs of warps", "warpx2::02_13"),
        ("tcgen05.cp.cta_group::1.32x128b", "four warps", "'.32x128b.warpx4'"),
        (
            "tcgen05.cp.cta_group::1.128x256b.warpx4",
            "cannot be combined",
            "legal is 'tcgen05.cp.cta_group::1.128x256b'",
        ),
        ("tcgen05.cp.cta_group::1.128x256b.b4x16_p64", "must be written", "'.b8x16.b4x16_p64'"),
        ("tcgen05.ld.sync.aligned.16x128b.x128.b32", "more than 128 registers", "'.x64'"),
        ("tcgen05.st.sync.aligned.16x256b.x64.b32", "more than 128 registers", "'.x32'"),
        ("tcgen05.ld.sync.aligned.32x32b.b32", "not fully specified", "num .x1 .x2"),
        ("tcgen05.st.sync.aligned.32x32b.x1.pack::16b.b32", "a store unpacks", "'.unpack::16b'"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.unpack::16b.b32", "a load packs", "'.pack::16b'"),
        ("ld.b32", "address space", ".global"),
        ("ld.global", "not fully specified", ".b32"),
        ("add.rn", "not fully specified", "type"),
        ("ld.global.vv4.b32", "'.vv4' is not a modifier", "did you mean '.v4'"),
        ("add.rq.f32", "'.rq' is not a modifier", "rounding .rn .rz .rm .rp"),
        ("ld.global.nc.volatile.b32", "cannot be combined", "legal is 'ld.global.nc.b32'"),
        ("max.relu.f32", "cannot be combined", "type .s32 .s16x2"),
        ("adde.f32", "no instruction", "did you mean 'add'"),
        ("ld.global.b32 %0", "not the spelling", "operands"),
        ("", "not the spelling", "mnemonic"),
    ],
)
def test_refusals_say_what_is_legal(text: str, in_message: str, in_help: str) -> None:
    error = refusal(text)
    assert in_message in error.message
    assert in_help in error.help


def test_no_spelling_that_crashes_the_assembler_is_a_form() -> None:
    for form in spelling.FORMS:
        if "v8" in form.modifiers and form.mnemonic in ("ld", "st"):
            assert form.modifiers[-1][1:] == "32"
            assert "cluster" not in form.modifiers


def test_no_form_is_also_listed_as_refused() -> None:
    spellings = {form.spelling for form in spelling.FORMS if form.mnemonic not in ("atom", "red")}
    patterns = [re.compile(refused.pattern) for refused in tables.refusals()]
    assert not [text for text in spellings for p in patterns if p.fullmatch(text)]


def test_every_refused_pattern_is_a_regular_expression_with_a_repair() -> None:
    for refused in tables.refusals():
        re.compile(refused.pattern)
        assert refused.reason and refused.use


def test_table_rows_are_sound() -> None:
    assert len(set(spelling.FORMS)) == len(spelling.FORMS)
    names = {form.family for form in spelling.FORMS}
    assert {"registers", "ld_st", "sync", "prefetch_policy", "atom_red"} <= names
    assert sum(map(len, map(forms_of_family, names))) == len(spelling.FORMS)
    assert forms_of_family("nothing") == ()
    for form in spelling.FORMS:
        seen_read = False
        for spec in form.operands:
            seen_read |= spec.direction == "r"
            assert spec.direction == "r" or not seen_read
            assert (spec.kind == "addr") == bool(spec.space)
            assert spec.braces or spec.lanes == 1 or spec.kind == "addr"


def test_the_row_notation() -> None:
    row = Row(
        "op[.x|.y.z](vec=.v2|.v4)(type=.b32|.f64)",
        "=d:$type*$vec~ +[a:%type*$vec@global] #n #m:4|8 #k:24..256/8",
    )
    assert [row.spelling(choice) for choice in row.choices()][:3] == [
        "op.v2.b32", "op.v2.f64", "op.v4.b32",
    ]  # fmt: skip
    form = row.form((("y", "z"), ("v4",), ("f64",)), "family")
    assert form.spelling == "op.y.z.v4.f64"
    assert form.operands == (
        OperandSpec("d", "w", "reg", "f64", lanes=4, braces=True, sinkable=True),
        OperandSpec("a", "rw", "addr", "b64", lanes=4, space="global"),
        OperandSpec("n", "r", "imm"),
        OperandSpec("m", "r", "imm", values=(4, 8)),
        OperandSpec("k", "r", "imm", values=range(24, 257, 8)),
    )
    limited = Row("op.w", "=s:b64~~ a:b32:1..8 b:b32:0..64/16 c:b32:32|64").form(
        ((("w",)),), "family"
    )
    assert limited.operands == (
        OperandSpec("s", "w", "reg", "b64", sinkable=True, sink_only=True),
        OperandSpec("a", "r", "reg", "b32", values=range(1, 9)),
        OperandSpec("b", "r", "reg", "b32", values=range(0, 65, 16)),
        OperandSpec("c", "r", "reg", "b32", values=(32, 64)),
    )
    box = Row("op(rank=.1d|.3d)", "=[map,{$rank}] [other,{5}]").form((("3d",),), "family")
    assert box.operands == (
        OperandSpec("map", "w", "map", "s32", lanes=3, braces=True),
        OperandSpec("other", "r", "map", "s32", lanes=5, braces=True),
    )
