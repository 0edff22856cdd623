"""The legal shapes of tcgen05.mma against the PTX ISA's tables, copied here a second time."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tests import tcgen05_page
from tilejit.dtypes import BY_NAME
from tilejit.ptx import spelling, tables
from tilejit.ptx.tcgen05_shapes import KINDS, Format, nearest, ranges_text
from tilejit.target import TARGETS, Target

F8F6F4 = "e4m3 e5m2 e2m3 e3m2 e2m1"

# Table 39 of PTX ISA 9.0, dense rows: kind, .ws, CTA group, dtype, atype and btype, M, N, K.
TABLE_39 = f"""
f16      | no .ws | 1 | f16     | f16       | 64 128    | 8..256 by 8             | 16
f16      | no .ws | 1 | f32     | f16 bf16  | 64 128    | 8..256 by 8             | 16
f16      | no .ws | 2 | f16     | f16       | 128 256   | 16..256 by 16           | 16
f16      | no .ws | 2 | f32     | f16 bf16  | 128 256   | 16..256 by 16           | 16
f16      | .ws    | 1 | f16     | f16       | 32 64 128 | 64 128 256              | 16
f16      | .ws    | 1 | f32     | f16 bf16  | 32 64 128 | 64 128 256              | 16
tf32     | no .ws | 1 | f32     | tf32      | 64 128    | 8..256 by 8             | 8
tf32     | no .ws | 2 | f32     | tf32      | 128 256   | 16..256 by 16           | 8
tf32     | .ws    | 1 | f32     | tf32      | 32 64 128 | 64 128 256              | 8
f8f6f4   | no .ws | 1 | f32 f16 | {F8F6F4}  | 64 128    | 8..256 by 8             | 32
f8f6f4   | no .ws | 2 | f32 f16 | {F8F6F4}  | 128 256   | 16..256 by 16           | 32
f8f6f4   | .ws    | 1 | f32 f16 | {F8F6F4}  | 32 64 128 | 64 128 256              | 32
mxf8f6f4 | no .ws | 1 | f32     | {F8F6F4}  | 128       | 8..256 by 8             | 32
mxf8f6f4 | no .ws | 2 | f32     | {F8F6F4}  | 128 256   | 16..256 by 16           | 32
i8       | no .ws | 1 | s32     | s8 u8     | 64 128    | 8..32 by 8, 48..256 by 16 | 32
i8       | no .ws | 2 | s32     | s8 u8     | 128 256   | 32..256 by 32           | 32
i8       | .ws    | 1 | s32     | s8 u8     | 32 64 128 | 64 128 256              | 32
mxf4     | no .ws | 1 | f32     | e2m1      | 128       | 8..256 by 8             | 64
mxf4     | no .ws | 2 | f32     | e2m1      | 128 256   | 16..256 by 16           | 64
mxf4     | no .ws | 2 | f32     | e2m1      | 256       | 16..256 by 16           | 96
mxf4nvf4 | no .ws | 1 | f32     | e2m1      | 128       | 8..256 by 8             | 64
mxf4nvf4 | no .ws | 2 | f32     | e2m1      | 128 256   | 16..256 by 16           | 64
mxf4nvf4 | no .ws | 2 | f32     | e2m1      | 256       | 16..256 by 16           | 96
"""

Case = tuple[str, bool, int, str, str, str, int, int, int]


def numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        if steps := re.fullmatch(r"\s*(\d+)\.\.(\d+) by (\d+)\s*", part):
            first, last, step = (int(n) for n in steps.groups())
            found += range(first, last + 1, step)
        else:
            found += [int(n) for n in part.split()]
    return found


def test_exactly_the_isas_combinations_are_legal() -> None:
    isa: set[Case] = set()
    for line in TABLE_39.strip().splitlines():
        kind, ws, group, d, ab, m, n, k = (c.strip() for c in line.split("|"))
        isa |= set(
            product(
                [kind], [ws == ".ws"], [int(group)], d.split(), ab.split(), ab.split(),
                numbers(m), numbers(n), numbers(k),
            )
        )  # fmt: skip
    # What CUTLASS and TIRx ask for beyond the table.
    coarse = {(1, 64): 8, (1, 128): 16, (2, 128): 16, (2, 256): 16}
    isa = {
        case
        for case in isa
        if case[0] not in ("f16", "tf32", "f8f6f4")
        or case[1]
        or case[7] % coarse[case[2], case[6]] == 0
    }
    ours: set[Case] = set()
    for name, kind in KINDS.items():
        names = {f.name: f.ptx for f in kind.formats}
        for ws, group in product((False, True), (1, 2)):
            for shape, sums in product(kind.issued(group, ws), kind.accumulators):
                inputs = [names[i] for i in sums.inputs]
                ours |= set(
                    product(
                        [name],
                        [ws],
                        [group],
                        [sums.ptx],
                        inputs,
                        inputs,
                        shape.m,
                        shape.n,
                        [shape.k],
                    )
                )
    assert ours == isa


def test_rows_are_found() -> None:
    for known in KINDS.values():
        for shape in known.shapes:
            for m in shape.m:
                found = known.shape(shape.cta_group, shape.ws, m, shape.k)
                assert found is not None and m in found.m and found.k == shape.k
                assert found.n == shape.n
        assert known.shape(1, False, 192, known.shapes[0].k) is None
        assert known.issued(2, True) == ()
    assert KINDS["mxf4"].depths(2, False) == (64, 96)
    assert KINDS["mxf4"].shape(2, False, 128, 96) is None
    assert KINDS["mxf4"].depths(1, False) == (64,)


# --- what the instruction descriptor says: tables 42, 43, 44 (codes) and 49 (transpose, negate)

CODES = {
    "f16": {"f16": 0, "bf16": 1},
    "tf32": {"tf32": 2},
    "f8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "i8": {"u8": 0, "s8": 1},
    "mxf8f6f4": {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5},
    "mxf4": {"e2m1": 1},
    "mxf4nvf4": {"e2m1": 1},
}
SUM_CODES = {"f16": 0, "f32": 1, "s32": 2}
SCALE_CODES = {"ue4m3": 0, "ue8m0": 1}
TRANSPOSED = {"tf32", "f16", "f8f6f4", "mxf8f6f4", "i8"}
NEGATED = {"tf32", "f16", "f8f6f4", "mxf8f6f4", "mxf4", "mxf4nvf4"}
SATURATED = {"i8"}


def test_codes_and_flags() -> None:
    assert {n: {f.ptx: f.code for f in k.formats} for n, k in KINDS.items()} == CODES
    for name, kind in KINDS.items():
        assert all(a.code == SUM_CODES[a.ptx] for a in kind.accumulators)
        assert all(f.code == SCALE_CODES[f.ptx] for s in kind.scales for f in s.formats)
        assert kind.transposes == (name in TRANSPOSED)
        assert kind.negates == (name in NEGATED)
        assert kind.saturates == (name in SATURATED)


def test_formats_have_contract_names_and_fit_what_stores_them() -> None:
    for kind in KINDS.values():
        for found in kind.formats:
            assert kind.format(found.name) is found
            assert found.stored.bits >= found.bits
            if found.name != "tf32":
                assert BY_NAME[found.name].bits == found.bits
        for sums in kind.accumulators:
            assert kind.accumulator(sums.dtype) is sums
            assert set(sums.inputs) <= {f.name for f in kind.formats}
        assert kind.format("float64") is None and kind.accumulator(BY_NAME["float64"]) is None
    stored = {(n, f.ptx): f.stored.name for n, k in KINDS.items() for f in k.formats}
    assert stored["tf32", "tf32"] == "float32"
    assert stored["f8f6f4", "e2m1"] == stored["mxf8f6f4", "e3m2"] == "uint8"  # 8-bit containers
    assert stored["mxf4", "e2m1"] == stored["mxf4nvf4", "e2m1"] == "float4_e2m1fn"  # packed


def test_major_orders() -> None:
    """Table 52: MN-major comes in 8, 16 and 32 bits."""
    allowed = {(n, f.ptx) for n, k in KINDS.items() for f in k.formats if k.mn_major(f)}
    assert allowed == {
        ("f16", "f16"), ("f16", "bf16"), ("tf32", "tf32"), ("i8", "u8"), ("i8", "s8"),
        ("f8f6f4", "e4m3"), ("f8f6f4", "e5m2"), ("mxf8f6f4", "e4m3"), ("mxf8f6f4", "e5m2"),
    }  # fmt: skip


def test_columns_of_a_transposed_b_of_bytes() -> None:
    """Table 50: 16 to 256 in steps of 16 for one CTA, 32 to 256 in steps of 32 for two."""

    def columns(kind: str, group: int, b: str, major: str, ws: bool = False) -> tuple[int, ...]:
        shape = KINDS[kind].issued(group, ws)[0]
        found = KINDS[kind].format(b)
        assert isinstance(found, Format)
        return shape.columns(found, major)  # type: ignore[arg-type]

    for kind, b in (("f8f6f4", "float8_e5m2"), ("mxf8f6f4", "float8_e4m3fn")):
        assert columns(kind, 1, b, "mn") == tuple(range(16, 257, 16))
        assert columns(kind, 2, b, "mn") == tuple(range(32, 257, 32))
        assert columns(kind, 1, b, "k") == tuple(range(8, 257, 8))
    assert columns("i8", 1, "int8", "mn") == tuple(range(16, 257, 16))
    assert columns("i8", 2, "int8", "mn") == columns("i8", 2, "int8", "k")
    assert columns("f16", 1, "float16", "mn") == tuple(range(8, 257, 8))
    assert columns("f8f6f4", 1, "float8_e5m2", "mn", ws=True) == (64, 128, 256)


# --- block scaling: tables 54 (shapes) and 55 (types)

SCALES = {
    # kind, K, qualifier: columns of scale_A, scale types
    ("mxf8f6f4", 32, "scale_vec::1X"): (1, "ue8m0"),
    ("mxf8f6f4", 32, "block32"): (1, "ue8m0"),
    ("mxf4", 64, "scale_vec::2X"): (2, "ue8m0"),
    ("mxf4", 64, "block32"): (2, "ue8m0"),
    ("mxf4", 96, "block32"): (3, "ue8m0"),
    ("mxf4nvf4", 64, "scale_vec::2X"): (2, "ue8m0"),
    ("mxf4nvf4", 64, "block32"): (2, "ue8m0"),
    ("mxf4nvf4", 64, "scale_vec::4X"): (4, "ue8m0 ue4m3"),
    ("mxf4nvf4", 64, "block16"): (4, "ue8m0 ue4m3"),
    ("mxf4nvf4", 96, "block32"): (3, "ue8m0"),
    ("mxf4nvf4", 96, "block16"): (6, "ue8m0 ue4m3"),
}
IDS = {1: (0, 1, 2, 3), 2: (0, 2), 4: (0,), 3: (0, 1, 2, 3), 6: (0, 2)}
"""Values of the scale factor data ID, by columns of scale_A."""


def test_exactly_the_isas_scales() -> None:
    ours = {
        (name, k, qualifier): (scale.factors(k), " ".join(f.ptx for f in scale.formats))
        for name, kind in KINDS.items()
        for k in sorted({s.k for s in kind.shapes})
        for scale in kind.scales
        for qualifier in scale.qualifiers(k)
    }
    assert ours == SCALES
    for (name, k, qualifier), (columns, _) in SCALES.items():
        scale = KINDS[name].scale(qualifier, k)
        assert scale is not None and scale.factors(k) == columns
        assert scale.ids(k) == IDS[columns]
    assert KINDS["mxf4"].scale("scale_vec::1X", 64) is None
    assert KINDS["mxf4"].scale("scale_vec::2X", 96) is None  # three factors have no such spelling


def test_a_scale_that_goes_without_saying() -> None:
    """mxf4nvf4 must say it; the others have one."""
    for name in ("mxf8f6f4", "mxf4"):
        found = KINDS[name].scale(None, KINDS[name].shapes[0].k)
        assert found is not None and found.block == 32
    assert KINDS["mxf4nvf4"].scale(None, 64) is None
    assert KINDS["f16"].scale(None, 16) is None


# --- the opcodes


def opcodes() -> set[tuple[str, bool, int, str]]:
    """(kind, .ws, CTA group, scale qualifier) of the instruction table."""
    found = set()
    for family, row in tables.rows():
        if family == "tcgen05_mma":
            for choice in row.choices():
                text = row.spelling(choice)
                kind, group = re.search(r"kind::(\w+)", text), re.search(r"cta_group::(\d)", text)
                assert kind and group
                scale = re.search(r"(block(?:16|32)|scale_vec::\dX)", text)
                found.add((kind[1], ".ws." in text, int(group[1]), scale[1] if scale else ""))
    return found


def test_opcodes_and_shapes_name_the_same() -> None:
    ours = set()
    for name, kind in KINDS.items():
        for shape in kind.shapes:
            qualifiers = {q for scale in kind.scales for q in scale.qualifiers(shape.k)}
            silent = {""} if kind.scale(None, shape.k) or not kind.scales else set()
            ours |= {(name, shape.ws, shape.cta_group, q) for q in qualifiers | silent}
    assert opcodes() == ours


def test_targets() -> None:
    """Where opcodes assemble; K=96 on sm_103a alone."""
    for name, kind in KINDS.items():
        for shape in kind.shapes:
            runs = {t for t, target in TARGETS.items() if target.supports(kind.targets(shape))}
            if shape.k == 96:
                assert runs == {"sm_103a"}
            elif name == "i8":
                assert runs == {"sm_100a", "sm_110a"}
            else:
                assert runs == {f"sm_{sm}{s}" for sm in (100, 103, 110) for s in "fa"}
    form = spelling.lookup("tcgen05.mma.cta_group::1.kind::i8")[0]
    assert not Target.parse("sm_103a").supports(form.min_target)


# --- words


@pytest.mark.parametrize(
    ("value", "legal", "expected"),
    [
        (20, (8, 16, 24), (16, 24)),
        (16, (8, 16, 24), (16,)),
        (7, (8, 16), (8,)),
        (300, (128, 256), (256,)),
        (40, KINDS["i8"].shapes[0].n, (32, 48)),
    ],
)
def test_nearest(value: int, legal: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert nearest(value, legal) == expected


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((128,), "128"),
        ((64, 128), "64 and 128"),
        ((64, 128, 256), "64, 128 and 256"),
        (tuple(range(8, 257, 8)), "8 to 256 in steps of 8"),
        (KINDS["i8"].shapes[0].n, "8, 16, 24 and 32 to 256 in steps of 16"),
    ],
)
def test_ranges_in_words(values: tuple[int, ...], text: str) -> None:
    assert ranges_text(values) == text


def test_page_is_up_to_date() -> None:
    text = tcgen05_page.PAGE.read_text()
    assert text == tcgen05_page.page(text), "run `make docs`"
