"""Instruction descriptors of tcgen05.mma against the tables of the PTX ISA, written here a second time as
fields from bit to bit; and zero-column masks against its examples."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tilejit import dtypes
from tilejit.ptx import tcgen05_shapes as shapes
from tilejit.tile import column_mask
from tilejit.tile.instruction_descriptor import Instruction, decode, encode

DENSE = {
    "saturate": (3, 1), "d": (4, 2), "a": (7, 3), "b": (10, 3), "negate_a": (13, 1), "negate_b": (14, 1),
    "transpose_a": (15, 1), "transpose_b": (16, 1), "n/8": (17, 6), "m/16": (24, 5), "max_shift": (30, 2),
}  # fmt: skip
SCALED = {
    "sfb_byte": (4, 2), "a": (7, 3), "b": (10, 3), "negate_a": (13, 1), "negate_b": (14, 1),
    "transpose_a": (15, 1), "transpose_b": (16, 1), "n/8": (17, 6), "scale": (23, 1), "m/128": (27, 2),
    "sfa_byte": (29, 2), "long": (31, 1),
}  # fmt: skip
"""First bit and width of each field; all others are 0 (bits 0 to 2: a dense A)."""

FLOATS = {
    "float8_e4m3fn": 0, "float8_e5m2": 1, "float6_e2m3fn": 3, "float6_e3m2fn": 4, "float4_e2m1fn": 5,
}  # fmt: skip
INPUTS = {
    "f16": {"float16": 0, "bfloat16": 1}, "tf32": {"tf32": 2}, "f8f6f4": FLOATS,
    "i8": {"uint8": 0, "int8": 1}, "mxf8f6f4": FLOATS, "mxf4": {"float4_e2m1fn": 1},
    "mxf4nvf4": {"float4_e2m1fn": 1},
}  # fmt: skip
RESULTS = {"float16": 0, "float32": 1, "int32": 2}
SCALES = {"float8_e4m3fn": 0, "float8_e8m0fnu": 1}


def fields(bits: int, table: dict[str, tuple[int, int]]) -> dict[str, int]:
    """The fields; nothing is set outside them."""
    found = {name: bits >> at & (1 << width) - 1 for name, (at, width) in table.items()}
    rest = sum(((1 << width) - 1) << at for at, width in table.values())
    assert bits & ~rest == 0 and bits < 1 << 32
    return found


def instruction(kind: str, a: str, b: str, d: str, scale: str | None = None, **more: Any) -> Any:
    table = shapes.KINDS[kind]
    scales = {f.dtype: f for s in table.scales for f in s.formats}
    formats = table.format(a), table.format(b), table.accumulator(dtypes.dtype(d))
    assert None not in formats
    found = None if scale is None else scales[dtypes.dtype(scale)]
    return Instruction(
        a=table.format(a),
        b=table.format(b),
        d=table.accumulator(dtypes.dtype(d)),
        scale=found,
        **more,
    )


@pytest.mark.parametrize("kind", INPUTS)
def test_formats_have_the_tables_codes(kind: str) -> None:
    scaled = bool(shapes.KINDS[kind].scales)
    results = {"f16": ("float16", "float32"), "f8f6f4": ("float16", "float32"), "i8": ("int32",)}
    for (a, code_a), (b, code_b) in itertools.product(INPUTS[kind].items(), repeat=2):
        for d in results.get(kind, ("float32",)):
            scale = "float8_e8m0fnu" if scaled else None
            bits = encode(instruction(kind, a, b, d, scale, m=128, n=64))
            found = fields(bits, SCALED if scaled else DENSE)
            assert (found["a"], found["b"]) == (code_a, code_b)
            assert scaled or found["d"] == RESULTS[d]


@pytest.mark.parametrize(("m", "n"), [(32, 64), (64, 8), (128, 256), (256, 40)])
def test_shapes(m: int, n: int) -> None:
    found = fields(encode(instruction("f16", "float16", "float16", "float32", m=m, n=n)), DENSE)
    assert (found["m/16"], found["n/8"]) == (m // 16, n // 8)
    if m < 128:
        return
    scaled = encode(
        instruction("mxf4", *["float4_e2m1fn"] * 2, "float32", "float8_e8m0fnu", m=m, n=n)
    )
    found = fields(scaled, SCALED)
    assert (found["m/128"], found["n/8"]) == (m // 128, n // 8)


@pytest.mark.parametrize(
    "name",
    [
        "negate_a",
        "negate_b",
        "transpose_a",
        "transpose_b",
        "saturate",
        "sfa_byte",
        "sfb_byte",
        "long",
    ],
)
def test_single_fields(name: str) -> None:
    """Each sets its own field and no other."""
    dense, value = (
        name not in ("sfa_byte", "sfb_byte", "long"),
        2 if name.endswith("byte") else True,
    )
    table = DENSE if dense else SCALED
    args: tuple[str, ...] = ("i8", "int8", "int8", "int32")
    if not dense:
        args = ("mxf4nvf4", "float4_e2m1fn", "float4_e2m1fn", "float32", "float8_e4m3fn")
    plain = fields(encode(instruction(*args, m=128, n=64)), table)
    changed = fields(encode(instruction(*args, m=128, n=64, **{name: value})), table)
    assert {k: v for k, v in changed.items() if v != plain[k]} == {name: int(value)}


def test_the_scales_format() -> None:
    for scale, code in SCALES.items():
        given = instruction("mxf4nvf4", *["float4_e2m1fn"] * 2, "float32", scale, m=128, n=64)
        assert fields(encode(given), SCALED)["scale"] == code


def test_a_descriptor_as_other_programs_write_it() -> None:
    """bf16, 128 by 128, accumulated in f32."""
    assert encode(instruction("f16", "bfloat16", "bfloat16", "float32", m=128, n=128)) == 0x08200490


@pytest.mark.parametrize("kind", INPUTS)
def test_decoding_is_the_reverse(kind: str) -> None:
    table = shapes.KINDS[kind]
    flags = {"negate_a": True, "transpose_b": True}
    if table.scales:
        flags |= {"sfa_byte": 2, "sfb_byte": 3}
    else:
        flags |= {"saturate": table.saturates, "max_shift": 16}
    for a, b in itertools.product(table.formats, repeat=2):
        for d, scale in itertools.product(
            table.accumulators, [f for s in table.scales for f in s.formats] or [None]
        ):
            what = Instruction(a=a, b=b, d=d, scale=scale, m=128, n=48, **flags)
            assert decode(table, encode(what)) == what


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        ("f16", 1 << 0), ("f16", 1 << 2), ("f16", 1 << 6), ("f16", 1 << 23), ("f16", 1 << 29), ("f16", 2 << 7),
        ("f16", 2 << 4), ("tf32", 1 << 7), ("f8f6f4", 2 << 10), ("mxf8f6f4", 1 << 3), ("mxf8f6f4", 1 << 31),
        ("mxf8f6f4", 1 << 24), ("mxf4", 1 << 12), ("mxf4", 1 << 26), ("i8", 7 << 7),
    ],
)  # fmt: skip
def test_what_says_nothing(kind: str, bits: int) -> None:
    """Reserved bits, sparse A, codes of no format."""
    table = shapes.KINDS[kind]
    scale = table.scales[0].formats[0] if table.scales else None
    plain = encode(
        Instruction(
            a=table.formats[0],
            b=table.formats[0],
            d=table.accumulators[-1],
            scale=scale,
            m=128,
            n=64,
        )
    )
    assert decode(table, plain) is not None
    assert decode(table, plain ^ bits) is None


# --- zero-column masks: the ISA's examples, the lowest column last


def mask(
    starts: tuple[int, ...], firsts: tuple[int, ...], skip: int, use: int, generated: int = 1
) -> int:
    """``starts`` and ``firsts``: of the first part of the columns first."""
    bits = skip << 40 | use << 48 | generated << 39
    for part, (start, first) in enumerate(zip(starts, firsts)):
        bits |= start << 8 * part | first << 32 + part
    return bits


@pytest.mark.parametrize(
    ("bits", "parts", "wanted"),
    [
        (mask((0,), (0,), 4, 3, generated=0), 1, [""]),
        (mask((0,), (0,), 2, 3), 1, ["11100001110000"]),
        (mask((0, 0), (1, 0), 2, 3), 2, ["11100001110000111", "00001110000111 0000"]),
        (
            mask((0, 1, 2, 1), (1, 1, 0, 0), 2, 3), 4,
            ["00001110000111", "0000111000011", "111000011100", "1110000111000"],
        ),
    ],
)  # fmt: skip
def test_the_isas_masks(bits: int, parts: int, wanted: list[str]) -> None:
    found = column_mask.zeros(bits, 64 * parts, parts)
    assert found is not None
    for part, text in enumerate(wanted):
        digits = [int(c) for c in reversed(text.replace(" ", ""))]
        assert found[64 * part : 64 * part + len(digits)].astype(int).tolist() == digits
    if not any(wanted):
        assert not np.any(found)


def test_starts_past_the_first_run_are_open() -> None:
    assert column_mask.zeros(mask((3,), (0,), 2, 3), 64, 1) is not None
    assert column_mask.zeros(mask((4,), (0,), 2, 3), 64, 1) is None
    assert column_mask.zeros(mask((3,), (1,), 2, 3), 64, 1) is None


def test_the_shift() -> None:
    assert column_mask.shift(5 << 56 | mask((0,), (0,), 2, 3)) == 5
