"""The contract of tcgen05.ld and tcgen05.st: every image, its nearest illegal values, the text.

The oracle is numpy and the contract's formulas: which lane and register of a warp has which row and column,
and where these lie in tensor memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.tile.kit import (
    apply,
    at,
    buffer,
    checked,
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
    whole,
)
from tilejit import T, layout
from tilejit.errors import TargetError
from tilejit.ir import nodes
from tilejit.language.tmem_register_layouts import tcgen05_ld_layout
from tilejit.ptx.spelling import lookup
from tilejit.tile.family import Immediate, Memory, Registers

pytestmark = pytest.mark.usefixtures("round_trips")


@pytest.fixture(autouse=True)
def _blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    """What CPU tensors are compiled for; a GPU's tensors have its own target."""
    monkeypatch.setenv("TILEJIT_TARGET", "sm_100a")


# --- the contract's tables, written out

REGISTERS = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
COLUMNS = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 1}
NUMS = {shape: [n for n in (1, 2, 4, 8, 16, 32, 64, 128) if n * REGISTERS[shape] <= 128] for shape in REGISTERS}  # fmt: skip


def coordinate(shape: str, l: Any, r: Any) -> tuple[Any, Any, Any]:  # noqa: E741
    """(access, row, column) of the word in register ``r`` of lane ``l``."""
    if shape == "32x32b":
        return 0 * l, l + 0 * r, r
    if shape == "16x64b":
        return 0 * l, l // 4 + 8 * (l % 2), l // 2 % 2 + 2 * r
    if shape == "16x128b":
        return 0 * l, l // 4 + 8 * (r % 2), l % 4 + 4 * (r // 2)
    if shape == "16x256b":
        return 0 * l, l // 4 + 8 * (r // 2 % 2), r % 2 + 2 * (l % 4) + 8 * (r // 4)
    return l // 16, l % 16 + 0 * r, r + 0 * l


# --- the kernel: tensor memory and registers as written out, one load or store between them


@tile.jit
def transfer(
    X: T.Tensor((128, "columns"), "uint32"),
    Y,
    Z: T.Tensor((128, "read"), "uint32"),
    one: T.int32,
    c: T.constexpr,
):
    """X are the cells; Y[thread, slot] the registers, before a store and after a load; Z the cells
    afterwards, of packed forms the low halves, two by two. ``one`` is 1 and not known when compiling."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=c.threads))
    t = T.cuda.thread_idx("x")
    slot = T.alloc_shared((1,), "uint32")
    if T.cuda.warp_id() == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](
            slot.ptr_to([0]), c.allocated
        )
    meet()
    D = T.cuda.decl_tmem(
        slot[0], (128, c.elements), c.storage, layout=f"(128,{c.elements}):(1@TLane,1@TCol)"
    )
    if T.cuda.warp_id() < 4:
        fill(D.view("uint32"), X, c.columns)
    meet()
    r = T.alloc_local((c.slots * c.per_word,), c.register_storage, layout="default")
    raw = r.view("uint32")
    for i in T.unroll(c.slots):
        raw[i] = Y[t, i]
    registers = r.view(c.register_type).view(c.register_shape, layout=c.register_layout)
    if c.warp is None:
        move(D, registers, one, c)
    else:
        if T.cuda.warp_id() == c.warp:
            move(D, registers, one, c)
    for i in T.unroll(c.slots):
        Y[t, i] = raw[i]
    meet()
    if T.cuda.warp_id() < 4:
        if c.packed:
            read_halves(D.view("uint16"), Z, c.columns // 2)
        else:
            read(D.view("uint32"), Z, c.columns)
    meet()
    if T.cuda.warp_id() == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], c.allocated)


@tile.jit
def meet():
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()


@tile.jit
def fill(cells, X, columns):
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((16,), "uint32", layout="default")
    words = r.view(4, 32, 16, layout="(4,32,16):(1@warpid,1@laneid,1)")
    for j in T.unroll(columns // 16):
        for i in T.unroll(16):
            r[i] = X[t, 16 * j + i]
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x16.b32"],
            cells.view(4, 32, columns)[:, :, 16 * j : 16 * j + 16], words, scope="cta",
        )  # fmt: skip
    T.ptx["tcgen05.wait::st.sync.aligned"]()


@tile.jit
def read(cells, Z, columns):
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((16,), "uint32", layout="default")
    words = r.view(4, 32, 16, layout="(4,32,16):(1@warpid,1@laneid,1)")
    for j in T.unroll(columns // 16):
        T.cuda.tile.apply(
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x16.b32"],
            words, cells.view(4, 32, columns)[:, :, 16 * j : 16 * j + 16], scope="cta",
        )  # fmt: skip
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for i in T.unroll(16):
            Z[t, 16 * j + i] = r[i]


@tile.jit
def read_halves(cells, Z, columns):
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((16,), "uint32", layout="default")
    words = r.view(4, 32, 16, layout="(4,32,16):(1@warpid,1@laneid,1)")
    low = cells.view(4, 32, columns, 2, 2).sub[:, :, :, :, 0]
    for j in T.unroll(columns // 16):
        T.cuda.tile.apply(
            T.ptx["tcgen05.ld.sync.aligned.32x32b.x16.pack::16b.b32"],
            words, low[:, :, 16 * j : 16 * j + 16, :], scope="cta",
        )  # fmt: skip
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
        for i in T.unroll(16):
            Z[t, 16 * j + i] = r[i]


@tile.jit
def move(D, registers, one, c):
    """Cells as (warp, block, half of the slab, row, column), a warp from 4 on further to the right."""
    G, K, P = c.groups, c.blocks, c.pitch
    if c.packed:
        halves = D.view(c.packed_type).view(4, 32 // c.rows, c.rows, G, K, P, 2, 2)
        cells = halves.sub[:, :, :, :, :, :, :, 0].permute(3, 0, 4, 1, 2, 5, 6)
    else:
        cells = D.view(c.cell_type).view(4, 32 // c.rows, c.rows, G, K, P).permute(3, 0, 4, 1, 2, 5)
    if c.start == "symbolic":
        T.assume(one >= 0)
        T.assume(one <= 1)
        p = one
    else:
        p = 1
    if c.split:
        low = part(cells, p, c.half, 0, c)
        high = part(cells, p, c.second_half, c.second_column - c.column, c)
        if c.load:
            T.cuda.tile.apply(
                T.ptx[c.opcode], registers, low, high, scope=c.scope, imm_half_splitoff=c.splitoff
            )
        else:
            T.cuda.tile.apply(
                T.ptx[c.opcode], low, high, registers, scope=c.scope, imm_half_splitoff=c.splitoff
            )
    else:
        if c.load:
            T.cuda.tile.apply(
                T.ptx[c.opcode], registers, part(cells, p, c.half, 0, c), scope=c.scope
            )
        else:
            T.cuda.tile.apply(
                T.ptx[c.opcode], part(cells, p, c.half, 0, c), registers, scope=c.scope
            )
    if c.load:
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
    else:
        T.ptx["tcgen05.wait::st.sync.aligned"]()


@tile.jit
def part(cells, p, half, further, c):
    """The region of the call, from (block, half, 0, column) on, or so many columns further."""
    k = p * c.block
    col = p * c.column + further
    if c.scope == "warp" and c.warp is None:
        w = T.cuda.warp_id()
        return cells[
            w // 4 : w // 4 + 1, w % 4 : w % 4 + 1,
            k : k + c.repeats, half : half + c.halves, :, col : col + c.width,
        ]  # fmt: skip
    if c.scope == "warp":
        unit = cells.sub[c.warp // 4, c.warp % 4]
        return unit[k : k + c.repeats, half : half + c.halves, :, col : col + c.width]
    if c.scope == "warpgroup":
        unit = cells.sub[T.cuda.warpgroup_id()]
    else:
        unit = cells.view(4 * c.groups, c.blocks, 32 // c.rows, c.rows, *cells.shape[5:])
    return unit[:, k : k + c.repeats, half : half + c.halves, :, col : col + c.width]


# --- cases


@dataclass(frozen=True)
class Case:
    """One call. A group of four warps has ``blocks`` blocks of ``pitch`` words in a row; the call takes
    ``repeats`` blocks from ``block`` on times ``halves`` halves of the slab from ``half`` on, in each the
    columns from ``column`` on. ``warp``: the only one that executes. Register i of repeat t is slot
    ``slot_strides · (t, i)``.
    """

    shape: str = "32x32b"
    num: int = 4
    packed: bool = False
    load: bool = True
    scope: str = "warpgroup"
    groups: int = 1
    warp: int | None = None
    blocks: int = 1
    pitch: int = 0
    block: int = 0
    repeats: int = 1
    half: int = 0
    halves: int = 1
    column: int = 0
    second_half: int = 1
    second_column: int = 0
    start: str = "constant"
    slot_strides: tuple[int, int] | None = None
    storage: str = "uint32"
    cell_type: str = "uint32"
    packed_type: str = "uint16"
    register_storage: str = "uint32"
    register_type: str = "uint32"

    @property
    def opcode(self) -> str:
        name, packing = ("ld", "pack") if self.load else ("st", "unpack")
        middle = f".{packing}::16b" if self.packed else ""
        return f"tcgen05.{name}.sync.aligned.{self.shape}.x{self.num}{middle}.b32"

    @property
    def split(self) -> bool:
        return self.shape == "16x32bx2"

    @property
    def rows(self) -> int:
        return 32 if self.shape == "32x32b" else 16

    @property
    def width(self) -> int:
        """Columns of words."""
        return COLUMNS[self.shape] * self.num

    @property
    def cells_per_word(self) -> int:
        return 2 if self.packed else 1

    @property
    def count(self) -> int:
        return REGISTERS[self.shape] * self.num

    @property
    def columns(self) -> int:
        """Columns of tensor memory in use."""
        return self.groups * self.blocks * self.pitch * self.cells_per_word

    @property
    def elements(self) -> int:
        """Of the declared tensor in a lane."""
        return self.columns * (2 if self.storage == "bfloat16" else 1)

    @property
    def allocated(self) -> int:
        return max(32, 1 << (self.columns - 1).bit_length())

    @property
    def threads(self) -> int:
        return 128 * self.groups

    @property
    def per_word(self) -> int:
        return 2 if self.register_storage in ("float16", "bfloat16") else 1

    @property
    def splitoff(self) -> int:
        apart = (self.second_column - self.column) * self.cells_per_word
        return ((self.second_half - self.half) * 16 << 16) + apart

    @property
    def strides(self) -> tuple[int, int]:
        return self.slot_strides or (self.count, 1)

    def slot(self, t: int, r: int) -> int:
        return t * self.strides[0] + r * self.strides[1]

    @property
    def slots(self) -> int:
        return self.slot(self.repeats * self.halves - 1, self.count - 1) + 1

    @property
    def register_shape(self) -> tuple[int, ...]:
        group = {"warp": (1, 1), "warpgroup": (4,), "cta": (4 * self.groups,)}[self.scope]
        if self.warp is not None and self.scope == "warp":
            group = ()
        accesses = (2,) if self.split else ()
        return (*group, self.repeats, self.halves, *accesses, self.rows, self.width)

    @property
    def register_layout(self) -> str:
        p, s = self.strides
        n = self.num
        atom = {
            "32x32b": ([32, n], ["1@laneid", s]),
            "16x64b": ([2, 8, n, 2], ["1@laneid", "4@laneid", s, "2@laneid"]),
            "16x128b": ([2, 8, n, 4], [s, "4@laneid", 2 * s, "1@laneid"]),
            "16x256b": ([2, 8, n, 4, 2], [2 * s, "4@laneid", 4 * s, "1@laneid", s]),
            "16x32bx2": ([2, 16, n], ["16@laneid", "1@laneid", s]),
        }[self.shape]
        extents: list[Any] = [
            self.repeats,
            self.halves,
            *atom[0],
        ]  # ones of "each warp" need no stride
        strides: list[Any] = [p * self.halves, p, *atom[1]]
        if self.scope != "warp":
            extents.insert(0, self.register_shape[0])
            strides.insert(0, "1@warpid" if self.scope == "cta" else "1@wid_in_wg")
        return f"({','.join(map(str, extents))}):({','.join(map(str, strides))})"

    # the contract's formulas

    def executes(self, warp: int) -> bool:
        return self.warp is None or warp == self.warp

    def places(self, warp: int, k: int, h: int) -> tuple[np.ndarray, np.ndarray]:
        """Lane and first column of the word in each (lane of the warp, register)."""
        lane, register = np.arange(32).reshape(32, 1), np.arange(self.count)
        access, row, column = coordinate(self.shape, lane, register)
        half = np.where(access, self.second_half, self.half) + h
        first = np.where(access, self.second_column, self.column)
        block = (warp // 4 * self.blocks + self.block + k) * self.pitch
        return 32 * (warp % 4) + 16 * half + row, (block + first + column) * self.cells_per_word


def expected(c: Case, cells: np.ndarray, registers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The registers and the cells afterwards."""
    cells, registers = cells.copy(), registers.copy()
    for warp in filter(c.executes, range(4 * c.groups)):
        own = registers[32 * warp : 32 * warp + 32]
        for k, h in product(range(c.repeats), range(c.halves)):
            lanes, columns = c.places(warp, k, h)
            slots = [c.slot(k * c.halves + h, r) for r in range(c.count)]
            if c.load and c.packed:
                own[:, slots] = cells[lanes, columns] & 0xFFFF | cells[lanes, columns + 1] << 16
            elif c.load:
                own[:, slots] = cells[lanes, columns]
            elif c.packed:
                cells[lanes, columns] = own[:, slots] & 0xFFFF
                cells[lanes, columns + 1] = own[:, slots] >> 16
            else:
                cells[lanes, columns] = own[:, slots]
    return registers, cells


def low_halves(cells: np.ndarray) -> np.ndarray:
    return cells[:, 0::2] & 0xFFFF | cells[:, 1::2] << 16


def whole_chunks(c: Case) -> Case:
    """With a pitch for the call's columns; in all whole chunks of 16 words, as the kernel moves them."""
    needed = max(c.column, c.second_column if c.split else 0) + c.width
    while (c.groups * c.blocks * max(c.pitch, needed)) % 16:
        needed += 1
    return replace(c, pitch=max(c.pitch, needed))


def run(c: Case, device: str) -> None:
    if device == "cuda" and torch.cuda.get_device_capability()[0] not in (10, 11):
        pytest.skip("tensor memory needs sm_100, sm_103 or sm_110")
    c = whole_chunks(c)
    assert c.columns <= 512
    rng = np.random.default_rng(5)
    cells = rng.integers(0, 2**32, (128, c.columns), dtype=np.uint32)
    registers = rng.integers(0, 2**32, (c.threads, c.slots), dtype=np.uint32)
    y = torch.from_numpy(registers.copy()).to(device)
    z = torch.zeros(128, c.columns // c.cells_per_word, dtype=torch.uint32, device=device)
    transfer(torch.from_numpy(cells).to(device), y, z, 1, c)
    wanted, stored = expected(c, cells, registers)
    assert np.array_equal(y.cpu().numpy(), wanted)
    assert np.array_equal(z.cpu().numpy(), low_halves(stored) if c.packed else stored)


FORMS = [
    Case(shape, num, packed, load)
    for shape in REGISTERS for num in NUMS[shape]
    for packed in (False, True) for load in (True, False)
]  # fmt: skip
"""The two accesses of 16x32bx2 are one below the other."""


def test_the_forms_are_those_of_the_table() -> None:
    table = {form.spelling for c in FORMS for form in lookup(c.opcode)}
    assert table == {c.opcode for c in FORMS} and len(table) == 148


@pytest.mark.parametrize("case", FORMS, ids=lambda c: c.opcode)
def test_every_form(device: str, case: Case) -> None:
    run(case, device)


VARIETIES = {
    "repeats": {"blocks": 4, "block": 1, "repeats": 3},
    "column": {"column": 3},
    "column symbolic": {"column": 4, "start": "symbolic", "blocks": 3, "block": 1, "repeats": 2},
    "gapped slots": {"slot_strides": (2, 5), "blocks": 2, "repeats": 2},
    "one warp": {"scope": "warp", "warp": 2},
    "each warp": {"scope": "warp", "groups": 2, "column": 2},
    "two warpgroups": {"groups": 2, "blocks": 2, "block": 1},
    "cta": {"scope": "cta"},
    "cta of eight warps": {"scope": "cta", "groups": 2, "blocks": 2, "repeats": 2},
    "float32": {"storage": "float32", "cell_type": "float32", "packed_type": "float16", "register_storage": "float32", "register_type": "float32"},
    "bfloat16": {"storage": "bfloat16", "cell_type": "int32", "packed_type": "bfloat16", "register_storage": "float16"},
}  # fmt: skip
SAMPLE = [
    Case(shape, num, packed, load)
    for shape, num in (("32x32b", 8), ("16x64b", 4), ("16x128b", 2), ("16x256b", 2), ("16x32bx2", 4))
    for packed, load in ((False, True), (True, False), (False, False), (True, True))
]  # fmt: skip


def varied(c: Case, variety: str) -> Case:
    changed = dict(VARIETIES[variety])
    if c.split and "column" in changed:
        changed["second_column"] = changed["column"] + 5
    return replace(c, **changed)


@pytest.mark.parametrize("variety", VARIETIES)
@pytest.mark.parametrize("case", SAMPLE, ids=lambda c: c.opcode)
def test_storage_and_scopes(device: str, case: Case, variety: str) -> None:
    run(varied(case, variety), device)


@pytest.mark.parametrize("case", [c for c in SAMPLE if c.rows == 16 and not c.split], ids=lambda c: c.opcode)  # fmt: skip
def test_either_half_of_the_slab(device: str, case: Case) -> None:
    run(replace(case, half=1), device)
    run(replace(case, halves=2, blocks=2, repeats=2), device)


SPLITS = {
    "next to each other": {"half": 0, "second_half": 0, "second_column": 4},
    "apart": {"half": 1, "second_half": 1, "column": 1, "second_column": 9},
    "back": {"half": 0, "second_half": 0, "column": 8, "second_column": 1},
    "up": {"half": 1, "second_half": 0, "column": 0, "second_column": 6},
    "up and back": {"half": 1, "second_half": 0, "column": 6, "second_column": 0},
    "down and back": {"half": 0, "second_half": 1, "column": 6, "second_column": 0},
    "same column": {"half": 0, "second_half": 1, "column": 5, "second_column": 5},
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("case", [c for c in SAMPLE if c.split], ids=lambda c: c.opcode)
def test_split_accesses(device: str, case: Case, split: str) -> None:
    run(replace(case, **SPLITS[split]), device)
    run(replace(case, **SPLITS[split], scope="warp", warp=1, blocks=2, repeats=2), device)


@pytest.mark.parametrize("packed", [False, True])
def test_halves_that_are_loaded_may_be_one_place(device: str, packed: bool) -> None:
    run(Case("16x32bx2", 8, packed, second_half=0), device)
    run(Case("16x32bx2", 8, packed, second_half=0, second_column=3), device)


@pytest.mark.parametrize("shape", REGISTERS)
def test_the_language_constructs_the_map(shape: Any) -> None:
    """``T.cuda.tcgen05_ld_layout`` is the layout that a case writes out, and has the contract's map."""
    for num in NUMS[shape]:
        c = Case(shape, num, repeats=3, halves=2)
        made = tcgen05_ld_layout(shape, num, (3, 2), warps=4)
        shape_ = c.register_shape
        found, written = made.positions(shape_), layout.parse(c.register_layout).positions(shape_)
        assert all((found[axis] == written[axis]).all() for axis in ("wid_in_wg", "laneid", "m"))
        lane, register = np.arange(32).reshape(32, 1), np.arange(c.count)
        access, row, column = coordinate(shape, lane, register)
        where = (2, 1, 1, *((access,) if c.split else ()), row, column)
        assert (found["laneid"][where] == lane).all() and (found["wid_in_wg"][2] == 2).all()
        assert (found["m"][where] == 3 * c.count + register).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("16x512b", 1), "shapes of tcgen05.ld are 32x32b, 16x64b"),
        (("32x32b", 3), "x1 to .x128 in powers of two, got 3"),
        (("32x32b", 256), "x1 to .x128"),
        (("16x128b", 128), "x1 to .x64"),
        (("16x256b", 64), "x1 to .x32"),
        (("16x64b", True), "got True"),
        (("16x64b", 0), "got 0"),
    ],
)
def test_layouts_that_no_instruction_has(arguments: Any, message: str) -> None:
    with pytest.raises(layout.LayoutError, match=re.escape(message)):
        tcgen05_ld_layout(*arguments)


def test_warps_of_a_layout() -> None:
    of_cta = tcgen05_ld_layout("32x32b", 4, 2, warps=8, warp_axis="warpid")
    assert of_cta == layout.parse("(8,2,32,4):(1@warpid,4,1@laneid,1)")
    with pytest.raises(layout.LayoutError, match="8 warps along wid_in_wg, expected at most 4"):
        tcgen05_ld_layout("32x32b", 4, warps=8)


# --- text and assembly


@tile.jit
def alone(Y, address: T.uint32, c: T.constexpr):
    """The call of ``transfer``, of tensor memory that somebody else allocated."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=c.threads))
    t = T.cuda.thread_idx("x")
    D = T.cuda.decl_tmem(
        address, (128, c.columns), c.storage, layout=f"(128,{c.columns}):(1@TLane,1@TCol)"
    )
    r = T.alloc_local((c.slots,), "uint32", layout="default")
    for i in T.unroll(c.slots):
        r[i] = Y[t, i]
    move(D, r.view(c.register_shape, layout=c.register_layout), 1, c)
    for i in T.unroll(c.slots):
        Y[t, i] = r[i]


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
@pytest.mark.parametrize("load", [True, False], ids=["ld", "st"])
@pytest.mark.parametrize("packed", [False, True], ids=["", "16b"])
@pytest.mark.parametrize("shape", REGISTERS)
def test_text_and_assembly(shape: str, packed: bool, load: bool, target: str) -> None:
    """Every xN of a shape, spelt exactly and as often as there are repeats. For sm_103a the first and the
    last: that it has the others, too, is ``tests/ptx/test_assembles.py``'s."""
    nums = NUMS[shape]
    for num in nums if target == "sm_100a" else (nums[0], nums[-1]):
        c = Case(shape, num, packed, load)
        if c.count <= 16:
            c = replace(c, blocks=2, repeats=2)
        c = whole_chunks(c)
        y = torch.zeros(c.threads, c.slots, dtype=torch.uint32)
        ptx = alone.compile(y, 1, c, target=target).asm["ptx"]
        group = r"\{%\w+(, %\w+){" + str(c.count - 1) + r"}\}"
        memory, splitoff = r"\[%\w+(\+\d+)?\]", f", {c.splitoff}" if c.split else ""
        operands = f"{group}, {memory}{splitoff}" if load else f"{memory}{splitoff}, {group}"
        found = re.findall(rf"{re.escape(c.opcode)} {operands};", ptx)
        assert len(found) == len(re.findall(r"tcgen05\.(ld|st)\.", ptx)) == c.repeats


@pytest.mark.parametrize("variety", VARIETIES)
def test_varieties_assemble(variety: str) -> None:
    for c in SAMPLE[::3]:
        assembled(whole_chunks(varied(c, variety)), "sm_100a")


def assembled(c: Case, target: str) -> str:
    """The PTX of ``transfer``; assembling it is part of compiling."""
    cells = torch.zeros(128, c.columns, dtype=torch.uint32)
    y = torch.zeros(c.threads, c.slots, dtype=torch.uint32)
    z = torch.zeros(128, c.columns // c.cells_per_word, dtype=torch.uint32)
    return transfer.compile(cells, y, z, 1, c, target=target).asm["ptx"]


# --- what the simulator reports


@tile.jit(target="sm_100a")
def careless(Y: T.Tensor((128, 8), "uint32"), c: T.constexpr):
    """Stores, of c == "halves" the low halves of cells alone, then loads whole cells."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    slot = T.alloc_shared((1,), "uint32")
    if T.cuda.warp_id() == 0:
        T.ptx["tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), 32)
    meet()
    D = T.cuda.decl_tmem(slot[0], (128, 32), "uint32", layout="(128,32):(1@TLane,1@TCol)")
    r = T.alloc_local((8,), "uint32", layout="default")
    words = r.view(4, 32, 8, layout="(4,32,8):(1@wid_in_wg,1@laneid,1)")
    for i in T.unroll(8):
        r[i] = T.uint32(t)
    whole_cells = D.view(4, 32, 32)[:, :, :8]
    if c == "halves":
        low = D.view("uint16").view(4, 32, 16, 2, 2).sub[:, :, :, :, 0]
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x8.unpack::16b.b32"],
            low[:, :, :8, :],
            words,
            scope="warpgroup",
        )
    else:
        T.cuda.tile.apply(
            T.ptx["tcgen05.st.sync.aligned.32x32b.x8.b32"], whole_cells, words, scope="warpgroup"
        )
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x8.b32"], words, whole_cells, scope="warpgroup"
    )
    if c != "no wait":
        T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for i in T.unroll(8):
        Y[t, i] = r[i]
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    meet()
    if T.cuda.warp_id() == 0:
        T.ptx["tcgen05.dealloc.cta_group::1.sync.aligned.b32"](slot[0], 32)


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("no wait", r"sim/in-flight.*is read while a tcgen05.ld that writes it"),
        ("halves", r"sim/unwritten-read.*a cell of tensor memory that nobody has written"),
    ],
)
def test_the_simulator_reports(what: str, found: str) -> None:
    with pytest.raises(tile.SimulationFault, match=found):
        careless(torch.zeros(128, 8, dtype=torch.uint32), what)


def test_waited_for_in_time() -> None:
    y = torch.zeros(128, 8, dtype=torch.uint32)
    careless(y, "")
    assert (y.numpy() == np.arange(128).reshape(128, 1)).all()


# --- legality: each fault, and its nearest legal neighbour

LD, ST = "tcgen05.ld.sync.aligned", "tcgen05.st.sync.aligned"
START = var("n")
WARP = hw("warpid")
FAMILY = "tcgen05_ld_st/"
SPLITOFF = (16 << 16) + 8


def tmem(
    shape: tuple[int, ...] = (4, 32, 64),
    notation: str = "(4,32,64):(32@TLane,1@TLane,1@TCol)",
    dtype: str = "uint32",
) -> nodes.View:
    return whole(buffer("m", shape, dtype, "tmem", notation))


def regs(
    shape: tuple[int, ...] = (4, 32, 8),
    notation: str = "(4,32,8):(1@wid_in_wg,1@laneid,1)",
    dtype: str = "uint32",
) -> nodes.View:
    return whole(buffer("r", shape, dtype, "local", notation))


def cells(view: nodes.View, *starts: Any, extents: tuple[int, ...]) -> nodes.Region:
    return region(view, starts, extents)


def call(
    *operands: Any,
    opcode: str = f"{LD}.32x32b.x8.b32",
    scope: str = "warpgroup",
    under: nodes.Expr | None = None,
    block: int = 128,
    params: tuple[nodes.Var, ...] = (),
    target: str = "sm_100a",
    **keywords: nodes.Expr,
) -> nodes.Function:
    """A kernel of one call; its buffers are declared in front of it."""
    declared: dict[str, nodes.Stmt] = {}
    for operand in operands:
        view = operand.view if isinstance(operand, nodes.Region) else operand
        if isinstance(view, nodes.View):
            address = nodes.Const(0, nodes.UINT32)
            made = (
                nodes.DeclTmem(view.buffer, address)
                if view.space == "tmem"
                else nodes.AllocTensor(view.buffer)
            )
            declared[view.buffer.name] = made
    body: nodes.Stmt = apply(opcode, *operands, scope=scope, **keywords)
    if under is not None:
        body = guard(under, body)
    return kernel(*declared.values(), body, params=params, block=(block,), target=target)


def within(low: int, high: int) -> nodes.Expr:
    return op("and", op("ge", START, low), op("lt", START, high))


def first_columns(
    columns: int = 8, column: Any = 0, view: nodes.View | None = None
) -> nodes.Region:
    view = tmem() if view is None else view
    return cells(view, 0, 0, column, extents=(4, view.shape[1], columns))


def half_regs(words: int = 8) -> nodes.View:
    """Registers of 16x64b."""
    return regs(
        (4, 16, words), f"(4,2,8,{words // 2},2):(1@wid_in_wg,1@laneid,4@laneid,1,2@laneid)"
    )


def split_regs(num: int = 4) -> nodes.View:
    return regs((4, 2, 16, num), f"(4,2,16,{num}):(1@wid_in_wg,16@laneid,1@laneid,1)")


def split(
    low: Any = None,
    high: Any = None,
    *,
    load: bool = True,
    splitoff: nodes.Expr | None = i32(SPLITOFF),
    **more: Any,
) -> nodes.Function:
    """The contract's example: rows 0 to 15 and 16 to 31 of every warp, four columns of each."""
    low = cells(tmem(), 0, 0, 0, extents=(4, 16, 4)) if low is None else low
    high = cells(tmem(), 0, 16, 8, extents=(4, 16, 4)) if high is None else high
    if splitoff is not None:
        more["imm_half_splitoff"] = splitoff
    if load:
        return call(split_regs(), low, high, opcode=f"{LD}.16x32bx2.x4.b32", **more)
    return call(low, high, split_regs(), opcode=f"{ST}.16x32bx2.x4.b32", **more)


PACKED = tmem((4, 32, 16, 2), "(4,32,16,2):(32@TLane,1@TLane,4@TCol,2@TCol)", "uint16")
DENSE = tmem((4, 32, 16, 2), "(4,32,16,2):(32@TLane,1@TLane,2@TCol,1@TCol)", "uint16")
ONE_WARP = regs((32, 8), "(32,8):(1@laneid,1)")
SHIFTED = tmem((4, 32, 16, 2), "(4,32,16,2):(32@TLane,1@TLane,4@TCol,2@TCol) + 1@TCol", "uint16")


def packed(view: nodes.View = PACKED, *, load: bool = True, **more: Any) -> nodes.Function:
    piece = cells(view, 0, 0, 0, 0, extents=(4, 32, 8, 2))
    if load:
        return call(regs(), piece, opcode=f"{LD}.32x32b.x8.pack::16b.b32", **more)
    return call(piece, regs(), opcode=f"{ST}.32x32b.x8.unpack::16b.b32", **more)


FAULTS = {
    "scope thread": (call(regs(), first_columns(), scope="thread"), "scope/collective", "executed by whole warps"),
    "half a warp": (
        call(ONE_WARP, cells(at(tmem(), 0, ..., ...), 0, 0, extents=(32, 8)), scope="warp",
             under=op("lt", hw("tid"), 16)), "scope/partial-warp", "has 16 active",
    ),
    "a warp that is not known": (
        call(ONE_WARP, cells(at(tmem(), 0, ..., ...), 0, 0, extents=(32, 8)), scope="warp"),
        FAMILY + "lanes", "warp 1 would access lanes 0 to 31, its own are 32 to 63",
    ),
    "a warp known at run time only": (
        call(ONE_WARP, cells(at(tmem(), 1, ..., ...), 0, 0, extents=(32, 8)), scope="warp",
             under=op("eq", WARP, START), params=(START,)),
        FAMILY + "lanes", "warp 0 would access lanes 32 to 63, its own are 0 to 31",
    ),
    "the next warp's rows": (
        call(ONE_WARP, cells(at(tmem(), 1, ..., ...), 0, 0, extents=(32, 8)), scope="warp",
             under=op("eq", WARP, 2)),
        FAMILY + "lanes", "guard the call with the warp whose rows they are",
    ),
    "warps exchanged": (
        call(regs(), first_columns(view=tmem(notation="(2,2,32,64):(32@TLane,64@TLane,1@TLane,1@TCol)"))),
        FAMILY + "lanes", "warp 1 would access lanes 64 to 95, its own are 32 to 63",
    ),
    "one slab for all warps": (
        call(regs(), first_columns(view=tmem(notation="(4,32,64):(0@TLane,1@TLane,1@TCol)"))),
        FAMILY + "lanes", "has stride 32@TLane",
    ),
    "rows 8 to 23": (
        call(half_regs(), cells(tmem(), 0, 8, 0, extents=(4, 16, 8)), opcode=f"{LD}.16x64b.x4.b32"),
        FAMILY + "lanes", "16 rows from lane 8 on, expected a multiple of 16",
    ),
    "half of a slab for 32 rows": (
        call(regs(), first_columns(view=tmem(notation="(4,32,64):(32@TLane,1@TLane,1@TCol) + 16@TLane"))),
        "frontend", "",
    ),
    "another half for each warp": (
        call(half_regs(), cells(tmem((4, 16, 64), "(2,2,16,64):(64@TLane,48@TLane,1@TLane,1@TCol)"), 0, 0, 0, extents=(4, 16, 8)),
             opcode=f"{LD}.16x64b.x4.b32"),
        FAMILY + "lanes", "this warp's rows begin 16 lanes into its 32, those of the first warp 0",
    ),
    "a lane known at run time only": (
        call(half_regs(), cells(tmem(), 0, START, 0, extents=(4, 16, 8)), opcode=f"{LD}.16x64b.x4.b32",
             under=within(0, 17), params=(START,)),
        "tile/symbolic-start", "chooses a lane (TLane) and is not known",
    ),
    "rows two lanes apart": (
        call(half_regs(), cells(tmem((4, 16, 64), "(4,16,64):(32@TLane,2@TLane,1@TCol)"), 0, 0, 0, extents=(4, 16, 8)),
             opcode=f"{LD}.16x64b.x4.b32"),
        FAMILY + "image", "element (1, 0) lies 2 lanes and 0 columns after the first element, expected 1 lanes and 0",
    ),
    "every other column": (
        call(regs(), first_columns(view=tmem((4, 32, 8), "(4,32,8):(32@TLane,1@TLane,2@TCol)"))),
        FAMILY + "image", "element (0, 1) lies 0 lanes and 2 columns after the first element, expected 0 lanes and 1",
    ),
    "rows and columns exchanged": (
        call(half_regs(16), cells(tmem((4, 16, 16), "(4,16,16):(32@TLane,1@TCol,1@TLane)"), 0, 0, 0, extents=(4, 16, 16)),
             opcode=f"{LD}.16x64b.x8.b32"),
        FAMILY + "image", "element (0, 1) lies 1 lanes and 0 columns",
    ),
    "both halves of a cell": (
        packed(DENSE), FAMILY + "image", "element (0, 0, 1) lies 0 lanes and 0.5 columns after the first element, expected 0 lanes and 1 columns",
    ),
    "both halves of a cell stored": (packed(DENSE, load=False), FAMILY + "image", "4@TCol and the half's 2@TCol"),
    "high halves": (packed(SHIFTED), FAMILY + "column", "16 bits of a column after a multiple of 1 column"),
    "packed cells": (
        call(regs(), first_columns(), opcode=f"{LD}.32x32b.x8.pack::16b.b32"),
        FAMILY + "operand-type", "expected 16-bit elements, the low halves of cells",
    ),
    "plain halves": (
        call(regs(), cells(PACKED, 0, 0, 0, 0, extents=(4, 32, 8, 1))), FAMILY + "operand-type",
        '.view("uint32") shows whole cells',
    ),
    "16-bit registers": (
        call(regs(dtype="float16"), first_columns()), FAMILY + "operand-type", "expected b32 words",
    ),
    "x4 registers": (
        call(regs((4, 32, 4), "(4,32,4):(1@wid_in_wg,1@laneid,1)"), first_columns()),
        "tile/atom-shape", "registers ends in (32, 4), expected (32, 8)",
    ),
    "x16 columns": (call(regs(), first_columns(16)), "tile/atom-shape", "tmem ends in (32, 16), expected (32, 8)"),
    "no axis of halves": (
        call(regs(), cells(at(PACKED, ..., ..., ..., 0), 0, 0, 0, extents=(4, 32, 8)), opcode=f"{LD}.32x32b.x8.pack::16b.b32"),
        "tile/atom-shape", "expected (32, 8, 2)",
    ),
    "no warp axis": (
        call(regs(), cells(at(tmem(), 0, ..., ...), 0, 0, extents=(32, 8))),
        "tile/group-shape", "expected the group axes (4,)",
    ),
    "other repeats": (
        call(regs((4, 2, 32, 8), "(4,2,32,8):(1@wid_in_wg,8,1@laneid,1)"), first_columns()),
        "tile/repeats", "tmem repeats (), registers repeats (2,)",
    ),
    "owner of 16x64b": (
        call(regs((4, 16, 8), "(4,2,8,4,2):(1@wid_in_wg,2@laneid,4@laneid,1,1@laneid)"),
             cells(tmem(), 0, 0, 0, extents=(4, 16, 8)), opcode=f"{LD}.16x64b.x4.b32"),
        FAMILY + "owner", "register 0 of lane 1 holds (8, 0)",
    ),
    "another slot in the upper rows": (
        call(regs((4, 32, 8), "(4,2,16,8):(1@wid_in_wg,16@laneid,1@laneid,1)"), first_columns()),
        "legal", "",
    ),
    "slots by lane": (
        call(regs((4, 32, 8), "(4,2,16,8):(1@wid_in_wg,8,1@laneid,1)"), first_columns()),
        FAMILY + "owner", "expected",
    ),
    "two words in one slot": (
        call(regs(notation="(4,32,8):(1@wid_in_wg,1@laneid,0)"), first_columns()),
        FAMILY + "overlap", "are one register slot (0), and both are written",
    ),
    "register start not known": (
        call(cells(regs((4, 32, 16), "(4,32,16):(1@wid_in_wg,1@laneid,1)"), 0, 0, START, extents=(4, 32, 8)), first_columns(),
             under=within(0, 9), params=(START,)),
        FAMILY + "register-index", "must be known at compile time",
    ),
    "past the last column": (call(regs(), first_columns(column=57)), "tile/bounds", "ends at 65"),
    "past the last column at run time": (
        call(regs(), first_columns(column=START), under=within(0, 58), params=(START,)),
        "tile/bounds", "could not prove n + 8 ≤ 64",
    ),
    "a column by lane": (
        call(regs(), first_columns(column=op("mod", hw("laneid"), 2))), "tile/origin", "differs between the threads",
    ),
    "copies that are stored": (
        call(first_columns(view=tmem((4, 16, 64), "(4,16,64):(32@TLane,1@TLane,1@TCol) + R[2:16@TLane]")), half_regs(),
             opcode=f"{ST}.16x64b.x4.b32"),
        FAMILY + "replica", "has copies in its layout",
    ),
    "shared operand": (
        call(regs(), region(whole(buffer("s", (4, 32, 8), "uint32", "shared")), (0, 0, 0), (4, 32, 8))),
        FAMILY + "space", "tmem is in shared memory, expected tmem",
    ),
    "exchanged": (
        call(first_columns(), regs()), FAMILY + "operand-order", "takes registers, tmem, got tensors in tmem, local memory",
    ),
    "exchanged store": (
        call(regs(), first_columns(), opcode=f"{ST}.32x32b.x8.b32"), FAMILY + "operand-order", "takes tmem, registers",
    ),
    "one operand": (call(regs()), FAMILY + "operand-count", "given 1 operand, it takes 2: registers, tmem"),
    "scalar": (call(regs(), i32(3)), FAMILY + "tensor-operand", "must be a tensor"),
    "pred": (call(regs(), first_columns(), pred=op("eq", WARP, 0)), FAMILY + "unknown-keyword", "it takes scope, imm_half_splitoff"),
    "splitoff of one access": (
        call(regs(), first_columns(), imm_half_splitoff=i32(8)), FAMILY + "half-splitoff", "makes one access and has no imm_half_splitoff",
    ),
    "no splitoff": (split(splitoff=None), FAMILY + "half-splitoff", "imm_half_splitoff is not given"),
    "splitoff that is no integer": (
        split(splitoff=nodes.Const(True, nodes.BOOL)), FAMILY + "half-splitoff", "imm_half_splitoff is True",
    ),
    "splitoff one column off": (
        split(splitoff=i32(SPLITOFF + 1)), FAMILY + "half-splitoff",
        "tmem_high lies 16 lanes and 8 columns after tmem_low: expected (16 << 16) + 8 = 1048584",
    ),
    "splitoff without the lanes": (split(splitoff=i32(8)), FAMILY + "half-splitoff", "imm_half_splitoff is 8"),
    "splitoff of one repeat": (
        call(regs((4, 2, 2, 16, 4), "(4,2,2,16,4):(1@wid_in_wg,4,16@laneid,1@laneid,1)"),
             cells(tmem((4, 2, 16, 32), "(4,2,16,32):(32@TLane,4@TCol,1@TLane,1@TCol)"), 0, 0, 0, 0, extents=(4, 2, 16, 4)),
             cells(tmem((4, 2, 16, 32), "(4,2,16,32):(32@TLane,4@TCol,1@TLane,1@TCol)"), 0, 0, 0, 8, extents=(4, 2, 16, 4)),
             opcode=f"{LD}.16x32bx2.x4.b32", imm_half_splitoff=i32(9)),
        FAMILY + "half-splitoff", "= 8",
    ),
    "splitoff at run time": (
        split(high=cells(tmem(), 0, 16, START, extents=(4, 16, 4)), under=within(0, 61), params=(START,)),
        FAMILY + "half-splitoff", "depends on n (elements)",
    ),
    "splitoff that is a variable": (
        split(splitoff=START, params=(START,)), FAMILY + "static-keyword", "must be known at compile time",
    ),
    "halves of two tensors": (
        split(high=cells(whole(buffer("m2", (4, 32, 64), "uint32", "tmem", "(4,32,64):(32@TLane,1@TLane,1@TCol)")), 0, 16, 8, extents=(4, 16, 4))),
        FAMILY + "half-splitoff", "tmem_low is a part of m, tmem_high of m2",
    ),
    "two operands of the split": (
        call(split_regs(), cells(tmem(), 0, 0, 0, extents=(4, 16, 4)), opcode=f"{LD}.16x32bx2.x4.b32", imm_half_splitoff=i32(SPLITOFF)),
        FAMILY + "operand-count", "given 2 operands, it takes 3: registers, tmem_low, tmem_high",
    ),
    "split store in the load's order": (
        call(split_regs(), cells(tmem(), 0, 0, 0, extents=(4, 16, 4)), cells(tmem(), 0, 16, 8, extents=(4, 16, 4)),
             opcode=f"{ST}.16x32bx2.x4.b32", imm_half_splitoff=i32(SPLITOFF)),
        FAMILY + "operand-order", "takes tmem_low, tmem_high, registers",
    ),
    "high rows of another warp": (
        split(high=cells(tmem((4, 32, 64), "(4,32,64):(32@TLane,1@TLane,1@TCol) "), 0, 8, 8, extents=(4, 16, 4))),
        FAMILY + "lanes", "tmem_high: 16 rows from lane 8 on",
    ),
    "stored packed halves share cells": (
        call(cells(PACKED, 0, 0, 0, 0, extents=(4, 16, 4, 2)), cells(PACKED, 0, 0, 3, 0, extents=(4, 16, 4, 2)),
             split_regs(), opcode=f"{ST}.16x32bx2.x4.unpack::16b.b32", imm_half_splitoff=i32(6)),
        FAMILY + "overlap", "they are 6 columns apart, and one instruction writes 8 columns of each",
    ),
    "stored halves share cells": (
        split(high=cells(tmem(), 0, 0, 3, extents=(4, 16, 4)), load=False, splitoff=i32(3)),
        FAMILY + "overlap", "they are 3 columns apart, and one instruction writes 4 columns of each",
    ),
}  # fmt: skip
del FAULTS["half of a slab for 32 rows"], FAULTS["another slot in the upper rows"]


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    function, code, part_of_it = FAULTS[name]
    assert codes(function) == [code], text(function)
    assert part_of_it in text(function), text(function)


LEGAL = {
    "load": call(regs(), first_columns()),
    "store": call(first_columns(), regs(), opcode=f"{ST}.32x32b.x8.b32"),
    "last columns": call(regs(), first_columns(column=56)),
    "any column": call(regs(), first_columns(column=START), under=within(0, 57), params=(START,)),
    "known warp": call(
        ONE_WARP, cells(at(tmem(), 2, ..., ...), 0, 0, extents=(32, 8)), scope="warp", under=op("eq", WARP, 2)
    ),
    "the warp of another warpgroup": call(
        ONE_WARP, cells(at(tmem(), 2, ..., ...), 0, 0, extents=(32, 8)), scope="warp", under=op("eq", WARP, 6),
        block=256,
    ),
    "upper rows": call(half_regs(), cells(tmem(), 0, 16, 0, extents=(4, 16, 8)), opcode=f"{LD}.16x64b.x4.b32"),
    "one warp of a cta": call(
        regs((1, 32, 8), "(1,32,8):(1@warpid,1@laneid,1) + 3@warpid"), cells(tmem(), 3, 0, 0, extents=(1, 32, 8)),
        scope="cta", under=op("eq", WARP, 3),
    ),
    "packed": packed(),
    "unpacked": packed(load=False),
    "bfloat16 halves": packed(tmem((4, 32, 16, 2), "(4,32,16,2):(32@TLane,1@TLane,4@TCol,2@TCol)", "bfloat16")),
    "copies that are loaded": call(
        half_regs(), first_columns(view=tmem((4, 16, 64), "(4,16,64):(32@TLane,1@TLane,1@TCol) + R[2:16@TLane]")),
        opcode=f"{LD}.16x64b.x4.b32",
    ) ,
    "words of one slot that are stored": call(
        first_columns(), regs(notation="(4,32,8):(1@wid_in_wg,1@laneid,0)"), opcode=f"{ST}.32x32b.x8.b32"
    ),
    "split": split(),
    "split stored": split(load=False),
    "split at one run-time column": split(
        cells(tmem(), 0, 0, START, extents=(4, 16, 4)), cells(tmem(), 0, 16, op("add", START, 8), extents=(4, 16, 4)),
        under=within(0, 53), params=(START,),
    ),
    "loaded halves share cells": split(high=cells(tmem(), 0, 0, 3, extents=(4, 16, 4)), splitoff=i32(3)),
    "stored halves next to each other": split(
        high=cells(tmem(), 0, 0, 4, extents=(4, 16, 4)), load=False, splitoff=i32(4)
    ),
    "stored packed halves next to each other": call(
        cells(PACKED, 0, 0, 0, 0, extents=(4, 16, 4, 2)), cells(PACKED, 0, 0, 4, 0, extents=(4, 16, 4, 2)),
        split_regs(), opcode=f"{ST}.16x32bx2.x4.unpack::16b.b32", imm_half_splitoff=i32(8),
    ),
    "stored halves of the same columns": split(
        high=cells(tmem(), 0, 16, 0, extents=(4, 16, 4)), load=False, splitoff=i32(16 << 16)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_neighbours(name: str) -> None:
    assert codes(LEGAL[name]) == [], text(LEGAL[name])


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_targets(target: str) -> None:
    with pytest.raises(TargetError, match=rf"needs sm_100f.*compiled for {target}"):
        checked(call(regs(), first_columns(), target=target))


# --- addresses and order


def native(function: nodes.Function) -> list[tuple[int, list[int], int | None]]:
    """Of every instruction what is added to its base, its slots, its immediate."""
    found = []
    for issue in issues(function):
        kinds = {type(o): o for o in issue.operands}
        slots = [item.slot for item in kinds[Registers].items]
        immediate = kinds.get(Immediate)
        found.append(
            (kinds[Memory].offset_bytes, slots, None if immediate is None else immediate.value)
        )
    return found


def test_repeats_share_a_base_and_expand_row_major() -> None:
    """Two halves of every slab times three blocks of columns; the lane is the warp's own, 0 or 16."""
    r = regs((4, 2, 3, 16, 4), "(4,2,3,2,8,2,2):(1@wid_in_wg,6,2,1@laneid,4@laneid,1,2@laneid)")
    m = tmem((4, 2, 3, 16, 20), "(4,2,3,16,20):(32@TLane,16@TLane,20@TCol,1@TLane,1@TCol)")
    f = call(r, cells(m, 0, 0, 0, 0, 5, extents=(4, 2, 3, 16, 4)), opcode=f"{LD}.16x64b.x2.b32")
    assert codes(f) == [], text(f)
    assert not lets(f)
    assert native(f) == [
        ((16 * h << 16) + 20 * k + 5, [6 * h + 2 * k, 6 * h + 2 * k + 1], None)
        for h in range(2)
        for k in range(3)
    ]
    assert [i.repeat for i in issues(f)] == list(product(range(2), range(3)))


def test_run_time_columns_are_bound_once() -> None:
    r = regs((4, 2, 32, 8), "(4,2,32,8):(1@wid_in_wg,8,1@laneid,1)")
    m = tmem((4, 4, 32, 16), "(4,4,32,16):(32@TLane,16@TCol,1@TLane,1@TCol)")
    f = call(
        r, cells(m, 0, START, 0, 3, extents=(4, 2, 32, 8)), under=within(0, 3), params=(START,)
    )
    assert codes(f) == [], text(f)
    assert len(lets(f)) == 1 and [offset for offset, _, _ in native(f)] == [3, 19]


def test_packed_columns_are_cells() -> None:
    f = call(
        regs(),
        cells(PACKED, 0, 0, 3, 0, extents=(4, 32, 8, 2)),
        opcode=f"{LD}.32x32b.x8.pack::16b.b32",
    )
    assert [offset for offset, _, _ in native(f)] == [6]


def test_the_contracts_split_example() -> None:
    assert native(split()) == [(0, [0, 1, 2, 3], SPLITOFF)]
    assert native(split(load=False)) == [(0, [0, 1, 2, 3], SPLITOFF)]
    order = [type(o).__name__ for o in issues(split(load=False))[0].operands]
    assert order == ["Memory", "Immediate", "Registers"]


def test_a_warp_has_its_own_columns() -> None:
    """The second warpgroup's warps lie to the right: the column depends on the warp, the lane does not."""
    r = regs((8, 32, 8), "(8,32,8):(1@warpid,1@laneid,1)")
    m = tmem((8, 32, 8), "(2,4,32,8):(8@TCol,32@TLane,1@TLane,1@TCol)")
    f = call(r, cells(m, 0, 0, 0, extents=(8, 32, 8)), scope="cta", block=256)
    assert codes(f) == [], text(f)
    assert len(lets(f)) == 1 and native(f) == [(0, list(range(8)), None)]


@pytest.mark.parametrize("load", [True, False], ids=["ld", "st"])
@pytest.mark.parametrize(("num", "most"), [(32, 1024), (64, 640), (128, 384)])
def test_the_registers_of_one_instruction_are_there_at_launch(
    num: int, most: int, load: bool
) -> None:
    """``most``: threads of the largest block whose threads have ``num`` + 24 registers of an SM's 65536, by
    eights; a quarter of its warps, rounded up, shares a quarter of them. NVRTC 13.0 takes the same blocks."""

    def program(block: int) -> nodes.Function:
        r = regs((4, 32, num), f"(4,32,{num}):(1@wid_in_wg,1@laneid,1)")
        m = cells(
            tmem((4, 32, 128), "(4,32,128):(32@TLane,1@TLane,1@TCol)"),
            0,
            0,
            0,
            extents=(4, 32, num),
        )
        operands = (r, m) if load else (m, r)
        return call(
            *operands, opcode=f"{LD if load else ST}.32x32b.x{num}.b32", block=block,
            under=op("lt", WARP, 4),
        )  # fmt: skip

    assert codes(program(most)) == [], text(program(most))
    if most < 1024:
        refused = program(most + 32)
        assert codes(refused) == [FAMILY + "registers"], text(refused)
        assert f"needs {num} registers and about 24 others" in text(refused)
