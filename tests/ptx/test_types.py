"""Which scalar types an operand takes: the type itself or its bit container, nothing else."""

from __future__ import annotations

import pytest

from tilejit import dtypes
from tilejit.ptx.forms import TYPE_BITS, OperandSpec
from tilejit.ptx.spelling import lookup
from tilejit.ptx.types import (
    accepts,
    container_type,
    describe,
    needs_byte_register,
    scalar_type,
    takes_float_register,
)


def spec(type_: str, kind: str = "reg", lanes: int = 1, space: str = "") -> OperandSpec:
    return OperandSpec("a", "r", kind, type_, lanes=lanes, space=space)  # type: ignore[arg-type]


ACCEPTED = {
    "f32": {"float32", "uint32"},
    "f64": {"float64", "uint64"},
    "s32": {"int32", "uint32"},
    "u32": {"uint32"},
    "s8": {"int8", "uint8"},
    "f16": {"float16", "uint16"},
    "bf16": {"bfloat16", "uint16"},
    "f16x2": {"uint32"},
    "bf16x2": {"uint32"},
    "f32x2": {"uint64"},
    "e4m3x2": {"uint16"},
    "e2m1x2": {"uint8"},
    "b16": {"int16", "uint16", "float16", "bfloat16"},
    "b32": {"int32", "uint32", "float32"},
    "b64": {"int64", "uint64", "float64"},
    "b128": set(),
}


@pytest.mark.parametrize("type_", ACCEPTED)
def test_accepted_types(type_: str) -> None:
    taken = {d.name for d in dtypes.ALL if accepts(spec(type_), d)}
    assert taken == ACCEPTED[type_]


def test_bytes_take_the_eight_bit_formats() -> None:
    taken = {d.name for d in dtypes.ALL if accepts(spec("b8"), d)}
    assert taken == {
        "bool", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    }  # fmt: skip


def test_predicates_and_immediates() -> None:
    assert accepts(spec("pred", "pred"), dtypes.bool_)
    assert not accepts(spec("pred", "pred"), dtypes.uint8)
    assert accepts(spec("b32", "imm"), dtypes.int32)
    assert not accepts(spec("b32", "imm"), dtypes.float32)


def test_every_type_has_a_width_that_its_container_shares() -> None:
    for name, bits in TYPE_BITS.items():
        container, scalar = container_type(name), scalar_type(name)
        assert container is None or container.bits == bits
        assert scalar is None or name == "pred" or scalar.bits == bits


def test_descriptions() -> None:
    assert describe(spec("f32")) == "one float32 or uint32 register (.f32)"
    assert describe(spec("b32", lanes=4)) == "four 32-bit registers (.b32)"
    assert describe(spec("f16x2")) == "one uint32 register (.f16x2)"
    assert describe(spec("u32")) == "one uint32 register (.u32)"
    assert (
        describe(spec("b32", "addr", 4, "global"))
        == "a global address of four 32-bit elements (.b32)"
    )
    assert "bool" in describe(spec("pred", "pred"))


def test_byte_registers() -> None:
    fp4 = lookup("cvt.rn.satfinite.e2m1x2.f32")[0]
    assert needs_byte_register(fp4, fp4.operands[0])
    load = lookup("ld.global.u8")[0]
    assert not needs_byte_register(load, load.operands[0])


@pytest.mark.parametrize(
    ("text", "operand", "taken"),
    [
        ("ld.global.v4.b32", 0, True),
        ("ld.global.v4.f32", 0, True),
        ("ld.global.u32", 0, False),
        ("st.shared.s32", 1, False),
        ("mov.b32", 0, True),
        ("mov.u32", 0, False),
        ("add.f32", 0, True),
        ("cvt.rna.tf32.f32", 0, False),
        ("cvt.rna.tf32.f32", 1, True),
        ("redux.sync.or.b32", 1, False),
        ("add.rn.f32x2", 0, False),
    ],
)
def test_where_a_float_register_may_stand(text: str, operand: int, taken: bool) -> None:
    form = lookup(text)[0]
    assert takes_float_register(form, form.operands[operand]) is taken
