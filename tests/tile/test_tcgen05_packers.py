"""tilejit's descriptors, addresses and data paths of tcgen05 against the packers of
tests/evidence/tcgen05_packers.py, which were written from the ISA's text without looking at them.

Whole kernels, too: what every product of tests/families/test_tcgen05_mma.py issues in the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evidence import tcgen05_packers as packers
from tests.evidence.tcgen05_packers import Cell, ZeroColumns
from tests.families import test_tcgen05_mma as products
from tests.families.test_tcgen05_mma import Call
from tests.tile import test_descriptor_tcgen05 as walks
from tests.tile.kit import apply, buffer, guard, hw, issues, kernel, op, region, whole
from tilejit import T, dtypes
from tilejit.families import tcgen05_ld_st, tcgen05_mma
from tilejit.ir import nodes, views
from tilejit.ptx import tables
from tilejit.ptx import tcgen05_shapes as shapes
from tilejit.ptx.forms import Form
from tilejit.tile import column_mask, descriptor, instruction_descriptor
from tilejit.tile.datapath import datapath, factor_cells
from tilejit.tile.family import Memory, Registers
from tilejit.tile.instruction_descriptor import Instruction

FLAGS = ("negate_a", "negate_b", "transpose_a", "transpose_b", "saturate")

# --- the packers themselves, against the ISA's own examples


@pytest.mark.parametrize("m", [32, 64, 128])
def test_the_isas_masks(m: int) -> None:
    """Examples 1 to 4 of the zero-column mask descriptor: masks as they are printed, bit 0 last."""
    spans = {"skip": 2, "use": 3}
    if m == 128:
        assert not any(ZeroColumns(nonzero=0, **spans).zeros(m, 128))
        printed = ["111 0000 111 0000"]
        mask = ZeroColumns(**spans)
    elif m == 64:
        printed = ["111 0000 111 0000 111", "0000 111 0000 111 0000"]
        mask = ZeroColumns(first=(1, 0, 0, 0), **spans)
    else:
        printed = ["0000 111 0000 111", "0000 111 0000 11", "111 0000 111 00", "111 0000 111 000"]
        mask = ZeroColumns(start=(0, 1, 2, 1), first=(1, 1, 0, 0), shift=2, **spans)
    found = np.array(mask.zeros(m, 128)).reshape(len(printed), -1)
    for bank, bits in zip(found, printed):
        expected = [bit == "1" for bit in reversed(bits.replace(" ", ""))]
        assert bank[: len(expected)].tolist() == expected


# --- shapes


@pytest.mark.parametrize("kind", packers.SHAPES)
def test_shapes_are_the_tables_rows(kind: str) -> None:
    found = {(s.cta_group, s.ws, s.m, s.n, s.k) for s in shapes.KINDS[kind].shapes}
    assert found == {tuple(row) for row in packers.SHAPES[kind]}
    assert shapes.KINDS[kind].transposes == packers.TRANSPOSES[kind]
    assert shapes.KINDS[kind].negates == packers.NEGATES[kind]


SCALE_BLOCKS = {
    "mxf8f6f4": {("ue8m0", 32)},
    "mxf4": {("ue8m0", 32)},
    "mxf4nvf4": {("ue8m0", 32), ("ue8m0", 16), ("ue4m3", 16)},
}
"""PTX table 55."""


@pytest.mark.parametrize("kind", packers.SHAPES)
def test_formats_are_the_tables(kind: str) -> None:
    ours = shapes.KINDS[kind]
    assert {f.ptx: f.code for f in ours.formats} == packers.INPUT_TYPES[kind]
    results = {d.ptx: d.code for d in ours.accumulators}
    assert results == packers.D_TYPES.get(kind, {"f32": 1})
    found = {(f.ptx, s.block) for s in ours.scales for f in s.formats}
    assert found == SCALE_BLOCKS.get(kind, set())
    assert ours.saturates == (kind == "i8")


def test_every_kind_has_packers() -> None:
    assert set(shapes.KINDS) == set(packers.SHAPES) == set(packers.FIELDS)


@pytest.mark.parametrize("kind", packers.SHAPES)
def test_columns_of_8_bit_elements_along_n(kind: str) -> None:
    """PTX table 50."""
    for row, format_ in itertools.product(shapes.KINDS[kind].shapes, shapes.KINDS[kind].formats):
        step = 16 * row.cta_group if format_.bits == 8 else 1
        assert row.columns(format_, "mn") == tuple(n for n in row.n if n % step == 0)
        assert row.columns(format_, "k") == row.n


# --- instruction descriptors


@dataclass(frozen=True)
class Said:
    """What a descriptor is to say, in the packers' words and in tilejit's."""

    kind: str
    words: dict[str, Any]
    ours: Instruction

    @property
    def bits(self) -> int:
        return packers.instruction_descriptor(self.kind, **self.words)


def said(
    kind: str, a: Any, b: Any, d: Any, scale: Any, row: Any, n: int, m: int, flags: dict[str, bool],
    ids: tuple[int, int] = (0, 0),
) -> Said:  # fmt: skip
    words = {"a": a.ptx, "b": b.ptx, "d": d.ptx, "m": m, "n": n, "k": row.k, **flags}
    ours = Instruction(m=m, n=n, a=a, b=b, d=d, scale=scale, long=row.k == 96, **flags)
    if scale is not None:
        words |= {"scale": scale.ptx, "scale_a_id": ids[0], "scale_b_id": ids[1]}
        ours = replace(ours, sfa_byte=ids[0], sfb_byte=ids[1])
    return Said(kind, words, ours)


def scales_of(kind: shapes.Kind, k: int) -> list[tuple[Any, tuple[int, ...]]]:
    """Every format of scale factors, with its IDs at this K."""
    return [(f, s.ids(k)) for s in kind.scales for f in s.formats] or [(None, (0,))]


def flag_sets(kind: shapes.Kind) -> list[dict[str, bool]]:
    free = {
        "negate_a": kind.negates, "negate_b": kind.negates, "transpose_a": kind.transposes,
        "transpose_b": kind.transposes, "saturate": kind.saturates,
    }  # fmt: skip
    choices = [(False, True) if free[name] else (False,) for name in FLAGS]
    return [dict(zip(FLAGS, values)) for values in itertools.product(*choices)]


def every_shape(kind: shapes.Kind) -> Iterator[Said]:
    """Formats × M × N × K × scale formats; flags and IDs in turn."""
    flags = itertools.cycle(flag_sets(kind))
    for row, d in itertools.product(kind.shapes, kind.accumulators):
        able = [f for f in kind.formats if f.name in d.inputs]
        factors = [(f, id_) for f, ids in scales_of(kind, row.k) for id_ in ids]
        turn = itertools.cycle(factors)
        for a, b, m, n in itertools.product(able, able, row.m, row.n):
            (scale, id_a), (_, id_b) = next(turn), factors[n % len(factors)]
            if scale is not None and id_b not in dict(scales_of(kind, row.k))[scale]:
                id_b = 0
            yield said(kind.name, a, b, d, scale, row, n, m, next(flags), (id_a, id_b))


def every_flag(kind: shapes.Kind) -> Iterator[Said]:
    """Flags × scale formats × both IDs × K, of the last M and N of a row."""
    a, b, d = kind.formats[0], kind.formats[-1], kind.accumulators[-1]
    for row, flags in itertools.product(kind.shapes, flag_sets(kind)):
        for scale, ids in scales_of(kind, row.k):
            for pair in itertools.product(ids, ids):
                yield said(kind.name, a, b, d, scale, row, row.n[-1], row.m[-1], flags, pair)


@pytest.mark.parametrize("kind", packers.FIELDS)
@pytest.mark.parametrize("which", [every_shape, every_flag])
def test_instruction_descriptors(kind: str, which: Any) -> None:
    count = 0
    for each in which(shapes.KINDS[kind]):
        bits = each.bits
        assert instruction_descriptor.encode(each.ours) == bits, each
        assert instruction_descriptor.decode(shapes.KINDS[kind], bits) == each.ours, each
        count += 1
    assert count > 1


@pytest.mark.parametrize(("code", "columns"), [(0, 0), (1, 8), (2, 16), (3, 32)])
@pytest.mark.parametrize("kind", ["f16", "tf32", "f8f6f4", "i8"])
def test_maximum_shifts(kind: str, code: int, columns: int) -> None:
    each = next(every_shape(shapes.KINDS[kind]))
    values = packers.unpacked(packers.UNSCALED, each.bits) | {"max_shift": code}
    bits = packers.packed(packers.UNSCALED, values)
    ours = replace(each.ours, max_shift=columns)
    assert instruction_descriptor.encode(ours) == bits
    assert instruction_descriptor.decode(shapes.KINDS[kind], bits) == ours


def reading(kind: str, bits: int) -> dict[str, Any] | None:
    """A dense descriptor in words; None if the tables have no such."""
    try:
        fields = packers.unpacked(packers.FIELDS[kind], bits)
    except ValueError:
        return None
    if fields["sparse"] or fields.get("sparsity_selector"):
        return None
    if fields.get("saturate") and kind != "i8":
        return None
    names = {
        "a": (packers.INPUT_TYPES, "a_type"), "b": (packers.INPUT_TYPES, "b_type"),
        "d": (packers.D_TYPES, "d_type"), "scale": (packers.SCALE_TYPES, "scale_type"),
    }  # fmt: skip
    found: dict[str, Any] = {name: bool(fields.get(name)) for name in FLAGS}
    for name, (table, field) in names.items():
        if kind in table:
            known = {code: type_ for type_, code in table[kind].items()}
            if fields[field] not in known:
                return None
            found[name] = known[fields[field]]
    found["m"] = 16 * fields["m_over_16"] if "m_over_16" in fields else 128 * fields["m_over_128"]
    found |= {
        "n": 8 * fields["n_over_8"],
        "ids": (fields.get("scale_a_id"), fields.get("scale_b_id")),
    }
    return {**found, "long": bool(fields.get("dense_k96"))}


def our_reading(kind: str, bits: int) -> dict[str, Any] | None:
    says = instruction_descriptor.decode(shapes.KINDS[kind], bits)
    if says is None:
        return None
    scaled = says.scale is not None
    found: dict[str, Any] = {name: getattr(says, name) for name in FLAGS}
    found |= {"a": says.a.ptx, "b": says.b.ptx, "m": says.m, "n": says.n, "long": says.long}
    found["ids"] = (says.sfa_byte, says.sfb_byte) if scaled else (None, None)
    return found | ({"scale": says.scale.ptx} if says.scale is not None else {"d": says.d.ptx})


@pytest.mark.parametrize("kind", packers.FIELDS)
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_words_near_a_descriptor(kind: str, data: Any) -> None:
    """Some bits of a legal word the other way."""
    legal = [each.bits for each in itertools.islice(every_flag(shapes.KINDS[kind]), 64)]
    flipped = data.draw(st.lists(st.integers(0, 31), max_size=4, unique=True))
    word = data.draw(st.sampled_from(legal)) ^ sum(1 << bit for bit in flipped)
    assert our_reading(kind, word) == reading(kind, word)


@pytest.mark.parametrize("kind", packers.FIELDS)
def test_one_or_two_bits_away(kind: str) -> None:
    legal = next(every_shape(shapes.KINDS[kind])).bits
    refused = 0
    for a, b in itertools.combinations_with_replacement(range(32), 2):
        word = legal ^ (1 << a | 1 << b)
        expected = reading(kind, word)
        assert our_reading(kind, word) == expected, (a, b)
        refused += expected is None
    assert refused > 100


# --- shared memory descriptors

MODES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B, 32B atoms": 4}
"""tilejit's numbers of the swizzles."""
CHUNKS_OF_16_BYTES = st.integers(0, 0x3FFF)


@pytest.mark.parametrize("swizzle", packers.SWIZZLES)
@given(start=CHUNKS_OF_16_BYTES, leading=CHUNKS_OF_16_BYTES, stride=CHUNKS_OF_16_BYTES)
@settings(max_examples=200, deadline=None)
def test_fields_of_shared_descriptors(swizzle: str, start: int, leading: int, stride: int) -> None:
    bits = packers.shared_descriptor(16 * start, 16 * leading, 16 * stride, swizzle)
    expected = (16 * start, 16 * leading, 16 * stride, MODES[swizzle])
    assert descriptor.sm_100_fields(bits) == expected


def test_words_near_a_shared_descriptor() -> None:
    """One or two bits the other way: understood where the table has a relative offset without a base."""
    legal = packers.shared_descriptor(0x1230, 0x10, 0x400, "64B")
    refused = 0
    for a, b in itertools.combinations_with_replacement(range(64), 2):
        word = legal ^ (1 << a | 1 << b)
        try:
            fields = packers.unpacked(packers.SHARED, word)
        except ValueError:
            fields = {"swizzle": 7}
        known = {code: MODES[name] for name, code in packers.SWIZZLES.items()}.get(
            fields["swizzle"]
        )
        plain = known is not None and fields["version"] == 1
        plain = plain and not fields["base_offset"] and not fields["absolute"]
        expected = None
        if plain:
            expected = tuple(16 * fields[name] for name in ("start", "leading", "stride")) + (
                known,
            )
        assert descriptor.sm_100_fields(word) == expected, (a, b)
        refused += not plain
    assert refused > 500


@pytest.mark.parametrize(("dtype", "mode", "major"), walks.CASES)
@pytest.mark.parametrize("rows", [8, 64, 128])
def test_encoded_descriptors_walk_the_layout(dtype: str, mode: int, major: str, rows: int) -> None:
    """A tile's descriptors, and what the ISA reads with each of them, element by element."""
    depth, bits = walks.DEPTHS[dtype], dtypes.dtype(dtype).bits
    panel = (1024 if mode == 4 else 128 << mode) // bits
    if major == "k":
        tile = walks.shared(2 * rows, max(2 * depth, panel), dtype, mode)
    else:
        rows = max(rows, panel)
        tile = walks.shared(2 * depth, 2 * rows, dtype, mode)
    view = walks.matrices(tile, rows, depth, major)
    modes = descriptor.modes_of(bits, major)  # type: ignore[arg-type]
    found = walks.descriptors(walks.Matrix(view, rows, depth, major, modes))
    places = walks.expected(view).reshape(-1, rows, depth)
    assert len(found) == len(places) > 1
    for word, expected in zip(found, places):
        assert packers.unpacked(packers.SHARED, word)["version"] == 1
        assert MODES_OF_CODES[word >> 61] == mode
        for mn, k in itertools.product(range(rows), range(0, depth, 2)):
            byte = packers.shared_byte(word, major, bits, mn, k)
            assert 8 * byte == expected[mn, k], (mn, k)


MODES_OF_CODES = {packers.SWIZZLES[name]: mode for name, mode in MODES.items()}


@pytest.mark.parametrize("swizzle", packers.SWIZZLES)
@pytest.mark.parametrize("major", ["k", "mn"])
@given(start=CHUNKS_OF_16_BYTES, leading=st.integers(0, 255), stride=st.integers(0, 255))
@settings(max_examples=20, deadline=None)
def test_any_strides_are_walked(
    swizzle: str, major: Any, start: int, leading: int, stride: int
) -> None:
    """What the simulator reads of a descriptor whose strides no tile has."""
    word = packers.shared_descriptor(16 * start, 16 * leading, 16 * stride, swizzle)
    fields = descriptor.sm_100_fields(word)
    assert fields is not None
    rows, depth, bits = 64, 16, 16
    if MODES[swizzle] == 4 and major == "k":
        return  # no operand is K-major with atoms of 32 bytes
    found = descriptor.chunk_addresses(fields, (rows, depth), bits, major)
    if major == "k":
        expected = [
            [packers.shared_byte(word, "k", bits, mn, k) for k in (0, 8)] for mn in range(rows)
        ]
    else:
        expected = [
            [packers.shared_byte(word, "mn", bits, mn, k) for mn in range(0, rows, 8)]
            for k in range(depth)
        ]
    assert found.tolist() == expected


# --- zero-column masks

EIGHT_BITS = st.integers(0, 255)


@pytest.mark.parametrize("m", [32, 64, 128])
@given(
    start=st.tuples(*[EIGHT_BITS] * 4), first=st.tuples(*[st.integers(0, 1)] * 4),
    nonzero=st.integers(0, 1), spans=st.tuples(EIGHT_BITS, EIGHT_BITS), shift=st.integers(0, 63),
    n=st.sampled_from((64, 128, 256)),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_zero_columns(
    m: int, start: Any, first: Any, nonzero: int, spans: Any, shift: int, n: int
) -> None:
    skip, use = spans
    banks = 128 // m
    inside = tuple(s % ((skip if f else use) + 1) for s, f in zip(start, first))
    mask = ZeroColumns(inside, first, nonzero, skip, use, shift)
    found = column_mask.zeros(mask.packed(), n, banks)
    assert found is not None and found.tolist() == mask.zeros(m, n)
    assert column_mask.shift(mask.packed()) == shift
    assert not mask.packed() & column_mask.RESERVED_BITS
    # Where a start count passes the first run the text does not say what is skipped.
    passes = nonzero and any(s != i for s, i in zip(start[:banks], inside))
    unclear = column_mask.zeros(mask._replace(start=start).packed(), n, banks)
    assert (unclear is None) == bool(passes)


def test_reserved_bits_of_masks() -> None:
    used = sum((1 << count) - 1 << low for low, count in packers.ZERO_COLUMNS.values())
    assert used ^ (1 << 64) - 1 == column_mask.RESERVED_BITS


# --- registers of loads and stores

FORMS: list[Form] = [
    row.form(choice, family)
    for family, row in tables.rows()
    if family == "tcgen05_ld_st"
    for choice in row.choices()
]


def test_every_load_and_store_has_its_registers() -> None:
    """PTX table 49, with and without packing."""
    wanted = set()
    for shape, registers in packers.REGISTERS_OF_X1.items():
        times = [1 << i for i in range(8) if registers << i <= 128]
        for num, (action, pack) in itertools.product(times, (("ld", "pack"), ("st", "unpack"))):
            for words in ((), (f"{pack}::16b",)):
                wanted.add((action, shape, f"x{num}", *words))
    found = {(f.modifiers[0], *f.modifiers[3:-1]) for f in FORMS}
    assert found == wanted
    for form in FORMS:
        image = tcgen05_ld_st.image_of(form)
        num = int(form.modifiers[4][1:])
        assert image.registers == num * packers.REGISTERS_OF_X1[image.shape]
        assert image.columns == num * packers.COLUMNS_OF_X1[image.shape]
        assert image.rows == packers.LANES_OF[image.shape]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: ".".join((f.modifiers[0], *f.modifiers[3:])))
def test_the_cell_of_every_register(form: Form) -> None:
    """Of the check's fragment, of the simulator's figure, and of the layout that authors write."""
    image = tcgen05_ld_st.image_of(form)
    fragment = tcgen05_ld_st.fragment(image)
    count, apart = image.registers, 300
    splitoff = apart if image.accesses == 2 else 0
    figure = tcgen05_ld_st._cells(image.shape, count, image.packed, splitoff)
    layout = T.cuda.tcgen05_ld_layout(image.shape, int(form.modifiers[4][1:]))
    places = layout.positions(fragment.atom)
    holders, held = (places[axis].reshape(fragment.atom) for axis in ("laneid", "m"))
    for thread, register in itertools.product(range(32), range(count)):
        cell = packers.register_cell(image.shape, thread, register, apart)
        *access, row, column = fragment.coordinate(thread, register)
        assert (row, column + sum(access) * apart) == cell
        assert holders[(*access, row, column)] == thread
        assert held[(*access, row, column)] == register
        if not image.packed:
            assert (figure.lanes[thread, register], figure.columns[thread, register]) == cell
            continue
        half = cell.column // apart if splitoff else 0
        for i, expected in enumerate(packers.packed_columns(cell.column - half * apart)):
            found = figure.lanes[thread, 2 * register + i], figure.columns[thread, 2 * register + i]
            assert found == (cell.lane, expected + half * apart)
    assert figure.mask == (0xFFFF if image.packed else 0xFFFF_FFFF)


def test_a_split_may_change_the_lane() -> None:
    """immHalfSplitoff is added to the address, in which 16 bits of columns are below the lane."""
    further = packers.tensor_memory_address(Cell(16, 5))
    found = tcgen05_ld_st._cells("16x32bx2", 4, False, further)
    for thread, register in itertools.product(range(32), range(4)):
        cell = Cell(int(found.lanes[thread, register]), int(found.columns[thread, register]))
        assert cell == Cell(thread, register + (5 if thread >= 16 else 0))


# --- addresses of tensor memory


@pytest.mark.parametrize(("lane", "column"), [(0, 0), (0, 3), (16, 0), (16, 40)])
def test_addresses_of_halves(lane: int, column: int) -> None:
    """A warp's address: its lane in the slab above the column."""
    cells = whole(buffer("t", (32, 64), "uint32", "tmem", "(32,64):(1@TLane,1@TCol)", align=4))
    registers = whole(buffer("r", (16, 2), "uint32", "local", T_LAYOUT))
    part = region(cells, (lane, column), (16, 2))
    call = apply("tcgen05.ld.sync.aligned.16x64b.x1.b32", registers, part, scope="warp")
    (issue,) = issues(kernel(guard(op("lt", hw("tid"), 32), call), block=(128,), target="sm_100a"))
    (memory,) = (o for o in issue.operands if isinstance(o, Memory))
    assert memory.offset_bytes == packers.tensor_memory_address(Cell(lane, column))


T_LAYOUT = "(2,8,2):(1@laneid,4@laneid,2@laneid)"

# --- data paths

PATHS = [
    (kind, row.cta_group, row.ws, m, n)
    for kind in ("f16", "i8")
    for row in packers.SHAPES[kind]
    for m, n in itertools.product(row.m, row.n)
]


@pytest.mark.parametrize(("m", "ctas", "ws"), sorted({(p[3], p[1], p[2]) for p in PATHS}))
def test_accumulators(m: int, ctas: int, ws: bool) -> None:
    """Lane and column of every element of D: of the check, of the simulator's slabs, of the layouts."""
    letter, path = packers.data_path(m, ctas, ws), datapath(m, ctas, ws)
    assert path.letter == letter
    for n in sorted({p[4] for p in PATHS if (p[3], p[1], p[2]) == (m, ctas, ws)}):
        lanes, columns = path.accumulator(n)
        layout = T.cuda.tmem_datapath_layout(letter, m // ctas, n)
        places = [layout.positions((m // ctas, n))]
        if m != 32:
            made = T.cuda.tmem_mma_operand_layout(
                "D", (m // ctas, n), "float32", M=m, cta_group=ctas, ws=ws
            )
            places.append(made.positions((m // ctas, n)))
        for row, column in itertools.product(range(m), range(0, n, 8)):
            cta, cell = packers.accumulator_cell(letter, n, row, column)
            local = row - cta * (m // ctas)
            assert 0 <= local < m // ctas
            assert (lanes[local, column], columns[local, column]) == cell
            for found in places:
                assert at(found, (m // ctas, n), local, column) == cell
            slab_rows, slab_columns = path.slab(cell.lane // 32, n)
            assert local in range(m)[slab_rows] and column in range(n)[slab_columns]


def at(places: Any, shape: tuple[int, ...], *coordinate: int) -> Cell:
    """Lane and column of a coordinate; an axis that a layout lacks is 0."""
    zero = np.zeros(shape, np.int64)
    lane, column = (places.get(axis, zero).reshape(shape) for axis in ("TLane", "TCol"))
    return Cell(int(lane[coordinate]), int(column[coordinate]))


def test_half_of_the_lanes_from_16_on() -> None:
    places = T.cuda.tmem_datapath_layout("F", 64, 8, sub_slab=1).positions((64, 8))
    assert datapath(64, 1, False).first_lanes == (0, 16)
    for row in range(64):
        _, cell = packers.accumulator_cell("F", 8, row, 3)
        assert at(places, (64, 8), row, 3) == (cell.lane + 16, 3)


STORED_BITS = {
    "float16": 16, "float32": 32, "float8_e4m3fn": 8, "uint8": 8, "float4_e2m1fn": 4,
}  # fmt: skip


@pytest.mark.parametrize("dtype", STORED_BITS)
@pytest.mark.parametrize(
    ("m", "ctas", "ws"),
    [(64, 1, False), (64, 1, True), (128, 1, False), (128, 2, False), (256, 2, False)],
)
def test_a_in_tensor_memory(m: int, ctas: int, ws: bool, dtype: str) -> None:
    bits, rows = STORED_BITS[dtype], m // ctas
    depth = 256 // bits
    letter = packers.data_path(m, ctas, ws)
    banked = letter == "E"
    shape = (2, rows, depth) if banked else (rows, depth)
    layout = T.cuda.tmem_mma_operand_layout("A", shape, dtype, M=m, cta_group=ctas, ws=ws)
    places = layout.positions(shape)
    copies = [0]
    for replica in layout.replica:
        copies = [c + i * replica.stride for c in copies for i in range(replica.extent)]
    for row, k in itertools.product(range(rows), range(depth)):
        _, cells, bit = packers.a_cells(letter, bits, row, k)
        found = [
            at(places, shape, *((bank,) if banked else ()), row, k) for bank in range(1 + banked)
        ]
        lanes = [cell.lane + copy for cell in found for copy in copies]
        assert sorted(lanes) == sorted(cell.lane for cell in cells)
        assert {divmod(cell.column * bits, 32) for cell in found} == {(cells[0].column, bit)}


SCALED_PATHS = [(128, 1), (256, 2), (128, 2)]


@pytest.mark.parametrize(("m", "ctas"), SCALED_PATHS)
@pytest.mark.parametrize("factors", [1, 2, 4])
def test_scale_factors(m: int, ctas: int, factors: int) -> None:
    letter, rows = packers.data_path(m, ctas, False), m // ctas
    for operand, count, n in (
        ("SFA", rows, 64),
        ("SFB", 64, 64),
        ("SFB", 256, 256),
        ("SFB", 32, 32),
    ):
        repeats = 4 // factors
        shape = (repeats, count, factors)
        layout = T.cuda.tmem_mma_operand_layout(operand, shape, "uint8", M=m, cta_group=ctas)
        places = layout.positions(shape)
        copies = [0]
        for replica in layout.replica:
            copies = [c + i * replica.stride for c in copies for i in range(replica.extent)]
        parts = 1 if operand == "SFA" else packers.PATHS[letter].banks
        in_slab, columns = factor_cells(count, parts)
        for repeat, row, factor in np.ndindex(*shape):
            id_ = repeat * factors
            if operand == "SFA":
                cells, byte = packers.scale_a_cells(row, factor, id_)
            else:
                cells, byte = packers.scale_b_cells(letter, n, row, factor, id_)
            found = at(places, shape, repeat, row, factor)
            lanes = sorted(found.lane + copy for copy in copies)
            assert lanes == sorted(cell.lane for cell in cells), (operand, row)
            assert divmod(found.column, 4) == (cells[0].column, byte)
            assert (in_slab[row], columns[row]) == (cells[0].lane % 32, cells[0].column)


# --- whole kernels: what the products of the family's tests issue

PTX_NAMES = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "tf32": "tf32", "int8": "s8", "uint8": "u8",
    "int32": "s32", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "float6_e2m3fn": "e2m3",
    "float6_e3m2fn": "e3m2", "float4_e2m1fn": "e2m1",
}  # fmt: skip
SCALE_NAMES = {"float8_e8m0fnu": "ue8m0", "float8_e4m3fn": "ue4m3"}


@pytest.fixture
def issued(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[int]]]:
    """The operands of every instruction that the simulator executes, as numbers."""
    found: list[dict[str, list[int]]] = []
    operation = tcgen05_mma._Issued.operation

    def recorded(self: Any) -> Any:
        found.append(dict(self.given))
        return operation(self)

    monkeypatch.setattr(tcgen05_mma._Issued, "operation", recorded)
    return found


def descriptor_of(call: Call, id_: int) -> int:
    keywords = call.keywords
    flags = {
        "negate_a": keywords.get("neg_a", False), "negate_b": keywords.get("neg_b", False),
        "transpose_a": call.a_major == "mn", "transpose_b": call.b_major == "mn",
    }  # fmt: skip
    if not call.scale:
        flags["saturate"] = keywords.get("sat_d", False)
    return packers.instruction_descriptor(
        call.kind, a=PTX_NAMES[call.a], b=PTX_NAMES[call.b], d=PTX_NAMES[call.d],
        scale=SCALE_NAMES.get(call.scale, ""), m=call.m, n=call.n, k=call.k, scale_a_id=id_,
        scale_b_id=id_, **flags,
    )  # fmt: skip


def tile_byte(call: Call, side: str, row: int, k: int) -> int:
    """The byte of an element of a whole tile: panels as wide as the swizzle, rows one after another."""
    rows, deep, major, swizzle = call.tile(side)
    bits = call.number(side).stored_bits
    along, across, height = (k, row, rows) if major == "k" else (row, k, deep)
    panel, byte = max(swizzle, 16), along * bits // 8
    at_ = byte // panel * panel * height + across * panel + byte % panel
    name = {0: "none", 32: "32B", 64: "64B", 128: "128B"}[swizzle]
    if major == "mn" and bits == 32:
        name = "128B, 32B atoms"
    return packers.swizzled(at_, packers.CANONICAL[name])


def first_bytes(call: Call, side: str, word: int, first_row: int, first_k: int) -> set[int]:
    """Where the tile would begin, by every 16 bytes that the instruction reads."""
    chunk = 128 // call.number(side).stored_bits
    rows, major = (call.rows, call.a_major) if side == "a" else (call.n // call.ctas, call.b_major)
    row_step, k_step = (1, chunk) if major == "k" else (chunk, 1)
    return {
        packers.shared_byte(word, major, call.number(side).stored_bits, row, k)
        - tile_byte(call, side, first_row + row, first_k + k)
        for row, k in itertools.product(range(0, rows, row_step), range(0, call.k, k_step))
    }


@pytest.mark.parametrize("call", products.CASES, ids=repr)
def test_what_products_issue(call: Call, issued: list[dict[str, list[int]]]) -> None:
    products.run("cpu", call)
    many_m, many_n, many_k = call.repeats
    assert len(issued) == many_m * many_n * many_k
    first, base = call.first, issued[0]["d"][0]
    together = products.share(call.factors, many_k) if call.scale else 1
    width = call.n // packers.PATHS[packers.data_path(call.m, call.ctas, call.ws)].banks
    starts: dict[str, set[int]] = {"a": set(), "b": set()}
    for given_, (m, n, k) in zip(issued, itertools.product(*map(range, call.repeats))):

        def column(name: str, number: int, width: int) -> list[int]:
            return [base + packers.tensor_memory_address(Cell(0, first[name] + number * width))]

        id_ = k % together * call.factors
        assert given_["idesc"] == [descriptor_of(call, id_)]
        assert given_["d"] == column("d", m * many_n + n, width)
        assert given_["enable_input_d"] == [k > 0 or call.keywords.get("accum", False)]
        if call.a_space == "tmem":
            cells = call.k * call.number("a").stored_bits // 32
            assert given_["a"] == column("a", m * many_k + k, cells)
        else:
            starts["a"] |= first_bytes(call, "a", *given_["a"], m * call.rows, k * call.k)
        starts["b"] |= first_bytes(call, "b", *given_["b"], n * call.n // call.ctas, k * call.k)
        if call.scale:
            group, groups = k // together, many_k // together
            for name, number, rows in (("sfa", m, call.rows), ("sfb", n, call.n)):
                wide = scale_columns(call, name, rows)
                assert given_[name] == column(name, number * groups + group, wide)
        mask = call.keywords.get("zero_column_mask")
        assert given_.get("zero_column_mask", [0]) == [mask or 0]
        kept = call.keywords.get("disable_output_lane", ())
        assert given_.get("disable_output_lane", []) == list(kept)
    for side, found in starts.items():
        if side == "b" or call.a_space == "shared":
            (start,) = found
            assert start % 1024 == 0


@pytest.mark.parametrize(("a", "b"), [(a, b) for a in range(4) for b in range(4)])
def test_each_scale_matrix_has_an_id_of_its_own(a: int, b: int) -> None:
    """SFA and SFB begin in different bytes of a column."""
    call = products.MXF8

    def factors(name: str, rows: int, byte: int) -> nodes.View:
        notation = f"({rows // 32},32,1):(4@TCol,1@TLane,1@TCol) + R[4:32@TLane] + {byte}@TCol"
        view = products.tmem_view((rows, 1), notation, call.scale, name)
        return views.reshape(view, (1, 1, rows, 1))

    operands = {"sfa": factors("sfa", call.rows, a), "sfb": factors("sfb", call.n, b)}
    (issue,) = issues(products.program(call, **operands))
    word = issue.operands[3]
    assert isinstance(word, Registers)
    fields = packers.unpacked(packers.MXF8F6F4, descriptor_of(call, 0))
    bits = packers.packed(packers.MXF8F6F4, fields | {"scale_a_id": a, "scale_b_id": b})
    assert walks.evaluate(word.items[0].expr, {}) == bits


def scale_columns(call: Call, name: str, rows: int) -> int:
    """Columns of an operand's scale factors, from the cells of its last row."""
    if name == "sfa":
        cells, _ = packers.scale_a_cells(rows - 1, 0, 0)
    else:
        letter = packers.data_path(call.m, call.ctas, call.ws)
        cells, _ = packers.scale_b_cells(letter, call.n, rows - 1, 0, 0)
    return cells[0].column + 1
