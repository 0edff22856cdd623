"""The contract of ldmatrix, stmatrix and movmatrix: every map, its nearest illegal values, the text.

The oracle is numpy and the contract's formulas: where a row lies, and which lane and half of a
register holds an element of a matrix.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilejit as tile
from tests.families.test_ld_st import addresses
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
    views,
    whole,
)
from tilejit import T, layout
from tilejit.errors import TargetError
from tilejit.ir import nodes
from tilejit.tile.family import Memory

pytestmark = pytest.mark.usefixtures("round_trips")


# --- the kernel: shared words and registers as written out, one load or store between them


@tile.jit
def transfer(
    X: T.Tensor("words", "uint32"),
    Y,
    Z: T.Tensor("words", "uint32"),
    one: T.int32,
    c: T.constexpr,
):
    """X are the shared words; Y[thread, slot] the registers, before a store and after a load; Z the
    shared words after a store. ``one`` is 1 where a start is not known at compile time."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=c.threads))
    t = T.cuda.thread_idx("x")
    held = T.alloc_shared((c.words * c.packed,), c.storage, layout="default", align=c.align)
    words = held.view("uint32")
    for i in T.unroll(-(-c.words // c.threads)):
        if i * c.threads + t < c.words:
            words[i * c.threads + t] = X[i * c.threads + t]
    r = T.alloc_local((c.slots * c.packed,), c.storage, layout="default")
    raw = r.view("uint32")
    for i in T.unroll(c.slots):
        raw[i] = Y[t, i]
    T.cuda.cta_sync()
    shared = held.view(c.container).view(c.dims, layout=c.shared_layout)
    registers = r.view(c.container).view(c.register_shape, layout=c.register_layout)
    if c.guarded:
        if T.cuda.warp_id() == c.warps - 1:
            move(shared, registers, one, c)
    else:
        move(shared, registers, one, c)
    T.cuda.cta_sync()
    for i in T.unroll(c.slots):
        Y[t, i] = raw[i]
    for i in T.unroll(-(-c.words // c.threads)):
        if i * c.threads + t < c.words:
            Z[i * c.threads + t] = words[i * c.threads + t]


@tile.jit
def move(shared, registers, one, c):
    if c.start == "per warp":
        p = T.cuda.warp_id() % 2
    elif c.start == "symbolic":
        T.assume(one >= 0)
        T.assume(one <= 1)
        p = one
    else:
        p = 1
    k, n, row, word = c.origin
    if c.scope == "warp":
        unit = shared.sub[T.cuda.warp_id() // c.unit_warps, T.cuda.warp_id() % c.unit_warps]
        region = unit[
            p * k : p * k + c.repeats,
            p * n : p * n + c.count,
            p * row : p * row + 8,
            p * word : p * word + 4,
        ]
    else:
        unit = shared.sub[T.cuda.warpgroup_id() if c.scope == "warpgroup" else 0]
        first = c.unit_warps - 1 if c.guarded else 0
        region = unit[
            first : c.unit_warps,
            p * k : p * k + c.repeats,
            p * n : p * n + c.count,
            p * row : p * row + 8,
            p * word : p * word + 4,
        ]
    if c.load:
        T.cuda.tile.apply(T.ptx[c.opcode], registers, region, scope=c.scope)
    else:
        T.cuda.tile.apply(T.ptx[c.opcode], region, registers, scope=c.scope)


# --- cases


@dataclass(frozen=True)
class Case:
    """One call. Storage of a warp: ``extents`` (repeat, matrix, row, word) with ``strides`` in words,
    then the swizzle; register ``i`` of repeat ``t`` is slot ``slot_strides · (t, i)``.

    ``permuted``: the registers of x4 are slots 0, 2, 1, 3 (times the matrix' slot stride).
    """

    load: bool = True
    count: int = 4
    trans: bool = False
    space: str = "shared"
    scope: str = "warp"
    units: int = 2
    unit_warps: int = 1
    guarded: bool = False
    repeats: int = 1
    extents: tuple[int, int, int, int] | None = None
    strides: tuple[int, int, int, int] | None = None
    warp_words: int | None = None
    swizzle: tuple[int, int, int] | None = None
    start: str = "constant"
    origin: tuple[int, int, int, int] = (0, 0, 0, 0)
    slot_strides: tuple[int, int] | None = None
    permuted: bool = False
    storage: str = "uint32"
    container: str = "uint32"
    align: int = 1024

    @property
    def packed(self) -> int:
        """Elements of the storage in a word."""
        return 2 if self.storage in ("float16", "bfloat16") else 1

    @property
    def warps(self) -> int:
        return self.units * self.unit_warps

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def opcode(self) -> str:
        name = "ldmatrix" if self.load else "stmatrix"
        trans = ".trans" if self.trans else ""
        return f"{name}.sync.aligned.m8n8.x{self.count}{trans}.{self.space}.b16"

    @property
    def box(self) -> tuple[int, int, int, int]:
        return self.extents or (self.repeats, self.count, 8, 4)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        if self.strides:
            return self.strides
        _, n, rows, words = self.box
        return (n * rows * words, rows * words, words, 1)

    @property
    def apart(self) -> int:
        """Words between the storages of two warps."""
        reach = 1 + sum((e - 1) * s for e, s in zip(self.box, self.steps))
        return self.warp_words or -(-reach // 4) * 4

    @property
    def words(self) -> int:
        used = self.warps * self.apart
        return -(-used // 256) * 256 if self.swizzle else used

    @property
    def dims(self) -> tuple[int, ...]:
        return (self.units, self.unit_warps, *self.box)

    @property
    def shared_layout(self) -> str:
        strides = (self.unit_warps * self.apart, self.apart, *self.steps)
        tile_ = f"{self.dims}:{strides}"
        if self.swizzle is None:
            return tile_
        return f"swizzle({','.join(map(str, self.swizzle))}) o {tile_}"

    @property
    def matrix_slots(self) -> tuple[int, int]:
        return self.slot_strides or (self.count, 1)

    def slot(self, t: int, i: int) -> int:
        if self.permuted:
            i = (0, 2, 1, 3)[i]
        return t * self.matrix_slots[0] + i * self.matrix_slots[1]

    @property
    def slots(self) -> int:
        return 1 + max(self.slot(t, i) for t in range(self.repeats) for i in range(self.count))

    @property
    def register_shape(self) -> tuple[int, ...]:
        group = {"warp": (), "warpgroup": (self.unit_warps,), "cta": (self.unit_warps,)}[self.scope]
        return (*((1,) if self.guarded and group else group), self.repeats, self.count, 8, 4)

    @property
    def register_layout(self) -> str:
        p, r = self.matrix_slots
        extents: list[Any] = [self.repeats, self.count, 8, 4]
        strides: list[Any] = [p, r, "4@laneid", "1@laneid"]
        if self.permuted:
            extents[1:2], strides[1:2] = [2, 2], [r, 2 * r]
        offset = ""
        if self.scope != "warp":
            axis = "warpid" if self.scope == "cta" else "wid_in_wg"
            extents.insert(0, self.register_shape[0])
            strides.insert(0, f"1@{axis}")
            if self.guarded:
                offset = f" + {self.warps - 1}@{axis}"
        return f"({','.join(map(str, extents))}):({','.join(map(str, strides))}){offset}"

    # the contract's formulas

    def executes(self, warp: int) -> bool:
        return not self.guarded or warp == self.warps - 1

    def address_words(self, warp: int, t: int, i: int, row: int) -> int:
        """The word where a shared row starts."""
        moved = warp % 2 if self.start == "per warp" else 1
        at = [moved * o + x for o, x in zip(self.origin, (t, i, row, 0))]
        address = warp * self.apart + sum(a * s for a, s in zip(at, self.steps))
        if self.swizzle:
            low, bits, distance = self.swizzle
            address ^= ((address >> (low + distance)) % (1 << bits)) << low
        return address


def expected(c: Case, shared: np.ndarray, registers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The registers and the shared words afterwards."""
    shared, registers = shared.copy(), registers.copy()
    memory = shared.view(np.uint16)
    halves = registers.view(np.uint16).reshape(c.threads, c.slots, 2)
    lane = np.arange(32)
    for warp in filter(c.executes, range(c.warps)):
        own = halves[32 * warp : 32 * warp + 32]
        for t, i, h in product(range(c.repeats), range(c.count), range(2)):
            starts = np.array([2 * c.address_words(warp, t, i, row) for row in range(8)])
            matrix = starts.reshape(8, 1) + np.arange(8)
            image = matrix.T if c.trans else matrix
            place = image[lane // 4, 2 * (lane % 4) + h]
            if c.load:
                own[:, c.slot(t, i), h] = memory[place]
            else:
                memory[place] = own[:, c.slot(t, i), h]
    return registers, shared


def run(c: Case, device: str) -> None:
    if device == "cuda" and not c.load and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("stmatrix needs sm_90")
    rng = np.random.default_rng(5)
    shared = rng.permutation(2 * c.words).astype(np.uint16).view(np.uint32)
    registers = rng.integers(0, 2**32, (c.threads, c.slots), dtype=np.uint32)
    y = torch.from_numpy(registers.copy()).to(device)
    z = torch.zeros(c.words, dtype=torch.uint32, device=device)
    transfer(torch.from_numpy(shared).to(device), y, z, 1, c)
    wanted, stored = expected(c, shared, registers)
    assert np.array_equal(y.cpu().numpy(), wanted)
    assert np.array_equal(z.cpu().numpy(), stored)


FORMS = [Case(load=d, count=n, trans=tr) for d in (True, False) for n in (1, 2, 4) for tr in (False, True)]  # fmt: skip


@pytest.mark.parametrize("case", FORMS, ids=lambda c: c.opcode)
def test_every_form(device: str, case: Case) -> None:
    run(case, device)


def pitched(c: Case, pitch_bytes: int) -> Case:
    """Rows ``pitch_bytes`` apart, matrices one under another."""
    row = pitch_bytes // 4
    return replace(c, strides=(8 * c.count * row, 8 * row, row, 1), repeats=2)


def interleaved(c: Case) -> Case:
    """Row j of all matrices, then row j + 1; repeats behind one another."""
    return replace(c, strides=(8 * 4 * c.count, 4, 4 * c.count, 1), repeats=2)


def started(c: Case, start: str, *, dense: bool = False) -> Case:
    """A region that starts at (1, 1, 3, 4) of storage that is larger in every dimension."""
    box = (3, c.count + 1, 12, 8)
    c = replace(c, extents=box, origin=(1, 1, 3, 4), start=start, repeats=2)
    return c if dense else replace(c, strides=(box[1] * 12 * 12, 12 * 12, 12, 1))


def swizzled(c: Case, atom_bytes: int, start: str = "constant") -> Case:
    """Rows of ``atom_bytes``, 16-byte pieces flipped by the row; matrices lie side by side in the
    row, further ones below; two repeats below those."""
    bits = {32: 1, 64: 2, 128: 3}[atom_bytes]
    row = atom_bytes // 4
    across = min(c.count, atom_bytes // 16)
    c = replace(c, repeats=2, swizzle=(2, bits, 3), start=start)
    if across == c.count:
        moved = {"origin": (1, 0, 0, 4 * (atom_bytes // 16 - across))}
        box = (3, c.count, 8, 4 * (1 + atom_bytes // 16 - across))
        return replace(c, extents=box, strides=(8 * row, 4, row, 1), warp_words=4096, **moved)
    return replace(c, strides=(16 * row * c.count, 8 * row, row, 1), warp_words=4096)


VARIETIES = {
    "row pitch 64": lambda c: pitched(c, 64),
    "row pitch 80": lambda c: pitched(c, 80),
    "row pitch 144": lambda c: pitched(c, 144),
    "interleaved": interleaved,
    "three repeats": lambda c: replace(c, repeats=3),
    "start known": lambda c: started(c, "constant"),
    "start symbolic": lambda c: started(c, "symbolic"),
    "start per warp": lambda c: started(c, "per warp"),
    "start dense": lambda c: started(c, "symbolic", dense=True),
    "swizzle 32": lambda c: swizzled(c, 32),
    "swizzle 64": lambda c: swizzled(c, 64),
    "swizzle 128": lambda c: swizzled(c, 128),
    "swizzle 128 symbolic": lambda c: swizzled(c, 128, "symbolic"),
    "swizzle 64 per warp": lambda c: swizzled(c, 64, "per warp"),
    "gapped slots": lambda c: replace(c, repeats=2, slot_strides=(2 * c.count + 1, 2)),
    "matrix outermost": lambda c: replace(c, repeats=3, slot_strides=(1, 3)),
    "int32": lambda c: replace(c, storage="int32", container="int32"),
    "float32": lambda c: replace(c, storage="float32", container="float32"),
    "float16": lambda c: replace(c, storage="float16", repeats=2),
    "bfloat16": lambda c: replace(c, storage="bfloat16", container="int32"),
    "shared::cta": lambda c: replace(c, space="shared::cta"),
}
SAMPLE = (
    Case(count=1, trans=True), Case(count=2), Case(count=4), Case(count=4, trans=True),
    Case(load=False, count=1), Case(load=False, count=2, trans=True), Case(load=False, count=4),
)  # fmt: skip


@pytest.mark.parametrize("variety", VARIETIES)
@pytest.mark.parametrize("case", SAMPLE, ids=lambda c: c.opcode.replace(".sync.aligned.m8n8", ""))
def test_storage(device: str, case: Case, variety: str) -> None:
    run(VARIETIES[variety](case), device)


@pytest.mark.parametrize("load", [True, False], ids=["ldmatrix", "stmatrix"])
def test_permuted_registers(device: str, load: bool) -> None:
    run(Case(load=load, permuted=True, repeats=2, slot_strides=(8, 2)), device)


SCOPES = {
    "warp": {"units": 3},
    "warpgroup": {"scope": "warpgroup", "units": 2, "unit_warps": 4},
    "cta": {"scope": "cta", "units": 1, "unit_warps": 3},
    "one warp of a cta": {"scope": "cta", "units": 1, "unit_warps": 3, "guarded": True},
    "one warp": {"units": 3, "guarded": True},
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("case", SAMPLE[1:], ids=lambda c: c.opcode.replace(".sync.aligned.m8n8", ""))  # fmt: skip
def test_scopes(device: str, case: Case, scope: str) -> None:
    run(pitched(replace(case, **SCOPES[scope]), 80), device)


@pytest.mark.parametrize("scope", ["warpgroup", "cta", "one warp of a cta"])
@pytest.mark.parametrize("load", [True, False], ids=["ldmatrix", "stmatrix"])
def test_scopes_with_swizzle_and_start(device: str, load: bool, scope: str) -> None:
    case = replace(Case(load=load, trans=True), **SCOPES[scope])
    run(swizzled(case, 128, "symbolic"), device)
    run(started(case, "symbolic"), device)


# --- a swizzled tile as kernels declare it: f16 elements, a stage, matrices cut from it by views


STAGES, TILE_ROWS, TILE_COLUMNS = 4, 32, 64


@tile.jit
def staged(
    X: T.Tensor((STAGES, TILE_ROWS, TILE_COLUMNS), "float16"),
    Y: T.Tensor((STAGES, 4, 32, 4), "uint32"),
    rounds: T.int32,
):
    """Every stage by ldmatrix.x4, warp w the columns 16·w to 16·w + 15 of all rows."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    lane, warp = T.cuda.lane_id(), T.cuda.warp_id()
    s = T.alloc_shared(
        X.shape, "float16", layout="swizzle(3,3,3) o (4,32,64):(2048,64,1)", align=1024
    )
    for i in T.unroll(STAGES * TILE_ROWS // 2):
        row = 2 * i + warp // 2
        s[row // 32, row % 32, warp % 2 * 32 + lane] = X[row // 32, row % 32, warp % 2 * 32 + lane]
    T.cuda.cta_sync()
    for i in range(rounds):
        stage = i % STAGES
        words = s.view("uint32").sub[stage].view(4, 8, 4, 2, 4)
        matrices = words.permute(2, 0, 3, 1, 4)  # column pair, row block, half, row, word
        for half in T.unroll(2):
            r = T.alloc_local((4,), "uint32", layout="default")
            spread = r.view(4, 8, 4, layout="(4,8,4):(1,4@laneid,1@laneid)")
            source = matrices.sub[warp, :, half]
            T.cuda.tile.apply(
                T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"], spread, source, scope="warp"
            )
            for j in T.unroll(2):
                Y[stage, 2 * half + j, lane, warp] = r[2 * j] ^ (r[2 * j + 1] << 1)


def test_a_staged_swizzled_tile(device: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.permutation(STAGES * TILE_ROWS * TILE_COLUMNS).astype(np.uint16)
    x = x.reshape(STAGES, TILE_ROWS, TILE_COLUMNS)
    y = torch.zeros((STAGES, 4, 32, 4), dtype=torch.uint32, device=device)
    staged(torch.from_numpy(x).view(torch.float16).to(device), y, STAGES)
    # (stage, row block, row, column pair, half, 8 columns) -> words of lane 4·row + word
    words = x.view(np.uint32).reshape(STAGES, 4, 8, 4, 2, 4)
    lanes = words.transpose(0, 4, 1, 2, 5, 3).reshape(STAGES, 2, 2, 2, 32, 4)
    wanted = lanes[:, :, :, 0] ^ (lanes[:, :, :, 1] << np.uint32(1))
    assert np.array_equal(y.cpu().numpy(), wanted.reshape(STAGES, 4, 32, 4))


def test_the_stage_stays_outside_the_swizzle() -> None:
    x, y = torch.zeros(4, 32, 64, dtype=torch.float16), torch.zeros(4, 4, 32, 4).view(torch.uint32)
    cuda = staged.compile(x, y, 4, target="sm_90a").asm["cuda"]
    bases = [line.split("=", 1)[1] for line in cuda.splitlines() if re.search(r" s_at\d+_ =", line)]
    assert len(bases) == 2  # one for each half of the columns
    for base in bases:
        flipped, _, behind = base.partition(" ^ ")[2].partition("+ (stage_ * 4096)")
        assert behind and "^" not in behind, base
        assert "stage" not in base.partition(" ^ ")[0] and "stage" not in flipped


# --- raw calls


@tile.jit
def one_matrix(
    X: T.Tensor((64,), "uint32"), Y: T.Tensor((2, 32), "uint32"), Z: T.Tensor((64,), "uint32")
):
    """Lanes 8 to 31 of .x1 provide no row, whatever address they give."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    s = T.alloc_shared((64,), "uint32", layout="default", align=16)
    s[lane], s[lane + 32] = X[lane], X[lane + 32]
    T.cuda.cta_sync()
    r = T.alloc_local((2,), "uint32", layout="default")
    row = 4 * lane if lane < 8 else 32
    T.ptx["ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16"](r[0], s.ptr_to([row]))
    T.ptx["movmatrix.sync.aligned.m8n8.trans.b16"](r[1], r[0])
    Y[0, lane], Y[1, lane] = r[0], r[1]
    T.cuda.cta_sync()
    T.ptx["stmatrix.sync.aligned.m8n8.x1.shared::cta.b16"](s.ptr_to([row]), r[0])
    T.cuda.cta_sync()
    Z[lane], Z[lane + 32] = s[lane], s[lane + 32]


def test_raw_calls_and_lanes_without_a_row(device: str) -> None:
    x = np.arange(128, dtype=np.uint16) * 3
    y = torch.zeros((2, 32), dtype=torch.uint32, device=device)
    z = torch.zeros(64, dtype=torch.uint32, device=device)
    one_matrix(torch.from_numpy(x.view(np.uint32)).to(device), y, z)
    matrix = x[:64].reshape(8, 8)
    transposed, again = y.cpu().numpy().view(np.uint16).reshape(2, 8, 8)
    assert np.array_equal(transposed, matrix.T) and np.array_equal(again, matrix)
    stored = z.cpu().numpy().view(np.uint16)
    assert np.array_equal(stored[:64].reshape(8, 8), matrix.T)
    assert np.array_equal(stored[64:], x[64:])


# --- what the simulator reports


@tile.jit
def own_rows(
    X: T.Tensor((32, 4), "uint32"), trans: T.constexpr, load: T.constexpr, sync: T.constexpr
):
    """Each lane writes or reads the row whose address it provides: other lanes have the other end."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    s = T.alloc_shared((4, 8, 4), "uint32", layout="default", align=16)
    rows = s.view(32, 4)
    r = T.alloc_local((4, 8, 4), "uint32", layout="(4,8,4):(1,4@laneid,1@laneid)")
    own = r.view(4, layout="(4):(1)")
    for i in T.unroll(4):
        own[i] = X[lane, i]
    form = "m8n8.x4.trans.shared.b16" if trans else "m8n8.x4.shared.b16"
    if load:
        T.cuda.tile.apply(T.ptx["st.shared.v4.b32"], rows.sub[lane], own)
        if sync:
            T.cuda.warp_sync()
        T.cuda.tile.apply(T.ptx["ldmatrix.sync.aligned." + form], r, s, scope="warp")
    else:
        T.cuda.tile.apply(T.ptx["stmatrix.sync.aligned." + form], s, r, scope="warp")
        if sync:
            T.cuda.warp_sync()
        T.cuda.tile.apply(T.ptx["ld.shared.v4.b32"], own, rows.sub[lane])
    for i in T.unroll(4):
        X[lane, i] = own[i]


@pytest.mark.parametrize("load", [True, False], ids=["ldmatrix", "stmatrix"])
@pytest.mark.parametrize("trans", [False, True], ids=["", "trans"])
def test_the_provider_of_a_row_is_not_its_owner(trans: bool, load: bool) -> None:
    x = torch.arange(128, dtype=torch.int32).view(32, 4).view(torch.uint32)
    own_rows(x, trans, load, True)
    with pytest.raises(tile.SimulationFault) as caught:
        own_rows(x, trans, load, False)
    assert caught.value.codes == ("sim/race",)
    assert "32 accesses" in str(caught.value) or not load


@tile.jit
def misaligned(X: T.Tensor((32,), "uint32"), load: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    s = T.alloc_shared((64,), "uint32", layout="default", align=16)
    s[lane], s[lane + 32] = 0, 0
    T.cuda.cta_sync()
    r = T.alloc_local((1,), "uint32", layout="default")
    r[0] = lane
    row = s.ptr_to([lane % 8 * 4 + 2])
    if load:
        T.ptx["ldmatrix.sync.aligned.m8n8.x1.shared.b16"](r[0], row)
    else:
        T.ptx["stmatrix.sync.aligned.m8n8.x1.shared.b16"](row, r[0])
    X[lane] = r[0]


@pytest.mark.parametrize("load", [True, False], ids=["ldmatrix", "stmatrix"])
def test_raw_rows_are_aligned_to_16_bytes(load: bool) -> None:
    with pytest.raises(tile.SimulationFault) as caught:
        misaligned(torch.zeros(32, dtype=torch.uint32), load)
    assert caught.value.codes == ("sim/misaligned",)
    assert "8 bytes past a multiple of 16" in str(caught.value)


@tile.jit
def hazards(X: T.Tensor((128,), "uint32"), what: T.constexpr, last: T.int32):
    """One matrix operation among accesses of the same words, with a barrier missing, or lanes."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    lane = T.cuda.lane_id()
    s = T.alloc_shared((4, 8, 4), "uint32", layout="default", align=16)
    flat = s.view(128)
    r = T.alloc_local((4, 8, 4), "uint32", layout="(4,8,4):(1,4@laneid,1@laneid)")
    own = r.view(4, layout="(4):(1)")
    for i in T.unroll(4):
        own[i] = lane
    if what != "unwritten" and what != "store first":
        for i in T.unroll(4 if what != "row unwritten" else 3):
            flat[32 * i + lane] = X[32 * i + lane]
    if what == "load early":
        T.cuda.tile.apply(T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"], r, s, scope="warp")
    T.cuda.cta_sync()
    if what == "divergent":
        if lane < last:
            T.ptx["ldmatrix.sync.aligned.m8n8.x1.shared.b16"](own[0], s.ptr_to([0, lane % 8, 0]))
    elif what == "predicated":
        T.ptx["ldmatrix.sync.aligned.m8n8.x1.shared.b16"](
            own[0], s.ptr_to([0, lane % 8, 0]), pred=lane < last
        )
    elif what == "exited":
        if lane >= last:
            return
        T.ptx["movmatrix.sync.aligned.m8n8.trans.b16"](own[0], own[1])
    elif what == "store first" or what == "store late":
        T.cuda.tile.apply(T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"], s, r, scope="warp")
        if what == "store first":  # word 31 - lane is of another lane
            X[lane] = flat[31 - lane]
    else:
        T.cuda.tile.apply(T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"], r, s, scope="warp")
    if what == "overwritten":
        flat[lane] = 0
    if what == "store late":
        T.cuda.cta_sync()
        X[lane] = flat[lane]
    X[lane] = own[0]


def faults(what: str, last: int = 32) -> tuple[tuple[str, ...], str]:
    with pytest.raises(tile.SimulationFault) as caught:
        hazards(torch.zeros(128, dtype=torch.uint32), what, last)
    return caught.value.codes, str(caught.value)


@pytest.mark.parametrize(
    ("what", "code", "parts"),
    [
        ("load early", "sim/race", ("ldmatrix", "reads here")),
        ("overwritten", "sim/race", ("ldmatrix", "reads at")),
        ("store first", "sim/race", ("stmatrix", "writes at")),
        ("unwritten", "sim/unwritten-read", ("ldmatrix",)),
        ("row unwritten", "sim/unwritten-read", ("ldmatrix",)),
    ],
)
def test_races_and_unwritten_rows(what: str, code: str, parts: tuple[str, ...]) -> None:
    codes, text = faults(what)
    assert codes == (code,)
    assert all(part in text for part in parts), text


@pytest.mark.parametrize("what", ["whole", "store late"])
def test_ordered_accesses_are_no_fault(what: str) -> None:
    hazards(torch.zeros(128, dtype=torch.uint32), what, 32)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("divergent", "lanes 31 are not here: they took another branch"),
        ("predicated", "lanes 31 are not here: they took another branch"),
        ("exited", "lanes 31 are not here: they have exited"),
    ],
)
def test_all_lanes_of_a_warp_execute_a_raw_call(what: str, why: str) -> None:
    for last in (0, 32):
        hazards(torch.zeros(128, dtype=torch.uint32), what, last)
    codes, text = faults(what, 31)
    assert codes == ("sim/inactive-lane",) and why in text


# --- legality, at the nearest illegal values

LOAD = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
STORE = "stmatrix.sync.aligned.m8n8.x4.shared.b16"
LANE, WARP, START = hw("laneid"), hw("warpid"), var("n")
ELECTED = nodes.Call("cuda.elect_sync", (), nodes.BOOL)
OWNERS = "4@laneid,1@laneid"


def regs(
    shape: tuple[int, ...] = (4, 8, 4),
    notation: str = f"(4,8,4):(1,{OWNERS})",
    dtype: str = "uint32",
) -> nodes.View:
    return whole(buffer("r", shape, dtype, "local", notation))


def smem(
    shape: tuple[int, ...] = (4, 8, 4), notation: str = "default", align: int = 128,
    space: nodes.Space = "shared", dtype: str = "uint32",
) -> nodes.View:  # fmt: skip
    return whole(buffer("s", shape, dtype, space, notation, align))


def call(
    *operands: nodes.Expr, opcode: str = LOAD, scope: str = "warp", under: nodes.Expr | None = None,
    block: int = 32, target: str = "sm_90a", params: tuple[nodes.Var, ...] = (), **keywords: nodes.Expr,
) -> nodes.Function:  # fmt: skip
    statement: nodes.Stmt = apply(opcode, *operands, scope=scope, **keywords)
    if under is not None:
        statement = guard(under, statement)
    return kernel(statement, block=(block,), params=params, target=target)


def within(low: int, high: int, divisor: int = 1) -> nodes.Expr:
    """``low <= n <= high``, and n is a multiple of ``divisor``."""
    bounds = op("and", op("ge", START, low), op("le", START, high))
    return op("and", bounds, op("eq", op("mod", START, divisor), 0))


def swizzled_piece(words: int) -> nodes.View:
    """Four words at ``n`` of a plain buffer, as eight rows in one place whose address is swizzled."""
    piece = at(smem((words,)), (START, op("add", START, 4), None))
    return views.with_layout(piece, (1, 8, 4), layout.parse("swizzle(2,1,2) o (1,8,4):(0,0,1)"))


FAMILY = "ldmatrix_stmatrix/"
FAULTS = {
    "scope thread": (call(regs(), smem(), scope="thread"), "scope/collective", "by whole warps"),
    "lane < 31": (call(regs(), smem(), under=op("lt", LANE, 31)), "scope/partial-warp", "31 active"),
    "one lane": (call(regs(), smem(), under=ELECTED), "scope/partial-warp", "leaves one lane"),
    "run-time lanes": (
        call(regs(), smem(), under=op("lt", LANE, START), params=(START,)),
        "scope/divergent", "differ between the threads of a warp",
    ),
    "row 8 bytes off": (
        call(regs(), region(smem((4, 8, 8)), (0, 0, 2), (4, 8, 4))),
        FAMILY + "alignment", "8 bytes above a multiple of 16",
    ),
    "row pitch 72": (
        call(regs(), smem(notation="(4,8,4):(144,18,1)")),
        FAMILY + "alignment", "element (0, 1, 0)",
    ),
    "matrices 8 bytes off": (
        call(regs(), smem(notation="(4,8,4):(34,4,1)")), FAMILY + "alignment", "element (1, 0, 0)",
    ),
    "start of 8 bytes": (
        call(regs(), region(smem((4, 8, 16)), (0, 0, START), (4, 8, 4)), under=within(0, 12, 2), params=(START,)),
        FAMILY + "alignment", "only known to be a multiple of 8",
    ),
    "gap in a row": (
        call(regs(), smem(notation="(4,8,4):(64,8,2)")),
        FAMILY + "contiguity", "element 1 lies 2 elements after the first",
    ),
    "words exchanged": (
        call(regs(), smem(notation="(4,8,2,2):(32,4,1,2)")),
        FAMILY + "contiguity", "the 4 elements of a row are not consecutive: element 1 lies 2",
    ),
    "swizzle of 8 bytes": (
        call(regs(), region(smem((20, 8, 4), "swizzle(1,3,3) o (20,8,4):(32,4,1)"), (START, 0, 0), (4, 8, 4)),
             under=within(0, 16), params=(START,)),
        FAMILY + "alignment", "moves 8-byte pieces and its offset is not known to be whole swizzle periods",
    ),
    "buffer aligned to 8": (
        call(regs(), smem(align=8)), FAMILY + "alignment", "s is only known to be aligned to 8 bytes",
    ),
    "lanes transposed": (
        call(regs(notation="(4,8,4):(1,1@laneid,8@laneid)"), smem()),
        FAMILY + "owner", "register 0 of lane 1 holds (0, 0, 1); register 0 of lane 4 holds (0, 1, 0)",
    ),
    "lanes transposed with .trans": (
        call(regs(notation="(4,8,4):(1,1@laneid,8@laneid)"), smem(), opcode=LOAD.replace(".x4", ".x4.trans")),
        FAMILY + "owner", "belongs to lane 8, expected lane 1",
    ),
    "no owners": (call(regs(notation="default"), smem()), FAMILY + "owner", "belongs to lane 0, expected lane 1"),
    "slot by lane": (
        call(regs(notation="(4,8,4):(8,1,1@laneid)"), smem()), FAMILY + "owner", "expected lane 4",
    ),
    "lane axis in front": (
        call(regs((32, 4, 8, 4), "(32,4,8,4):(1@laneid,32,4,1)"), smem((32, 4, 8, 4))),
        FAMILY + "owner", "expected lane 1",
    ),
    "another warp's registers": (
        call(regs((2, 4, 8, 4), f"(2,4,8,4):(1@warpid,1,{OWNERS}) + 1@warpid"), smem((2, 4, 8, 4)), scope="cta", block=64),
        FAMILY + "owner", "belongs to warp 1 lane 0, expected warp 0 lane 0",
    ),
    "two outputs in one slot": (
        call(regs(notation=f"(4,8,4):(0,{OWNERS})"), smem()),
        FAMILY + "overlap", "element (0, 0, 0) and repeat (), element (1, 0, 0) are one register slot",
    ),
    "rows stored to one place": (
        call(smem(notation="(2,2,8,4):(0,32,4,1)"), regs(), opcode=STORE),
        FAMILY + "overlap", "element (0, 0, 0) and repeat (), element (2, 0, 0) are one row of 16 bytes",
    ),
    "rows stored to one place, swizzled by a run-time start": (
        call(region(smem((20, 8, 4), "swizzle(2,1,3) o (20,8,4):(32,0,1)"), (START, 0, 0), (4, 8, 4)), regs(),
             opcode=STORE, under=within(0, 16), params=(START,)),
        FAMILY + "overlap", "element (0, 0, 0) and repeat (), element (0, 1, 0) are one row of 16 bytes",
    ),
    "repeats overlap": (
        call(regs((2, 4, 8, 4), f"(2,4,8,4):(3,1,{OWNERS})"), smem((2, 4, 8, 4))),
        FAMILY + "overlap", "repeat (0,), element (3, 0, 0) and repeat (1,), element (0, 0, 0)",
    ),
    "register start not known": (
        call(region(regs((8, 8, 4), f"(8,8,4):(1,{OWNERS})"), (START, 0, 0), (4, 8, 4)), smem(), under=within(0, 4), params=(START,)),
        FAMILY + "register-index", "must be known at compile time",
    ),
    "pred": (
        call(regs(), smem(), pred=op("eq", WARP, 0)), FAMILY + "unknown-keyword", "it takes scope",
    ),
    "b16 suffix": (
        call(regs(), smem((4, 8, 8))), "tile/atom-shape", "ends in (4, 8, 8), expected (4, 8, 4)",
    ),
    "x2 suffix": (
        call(regs((2, 8, 4), f"(2,8,4):(1,{OWNERS})"), smem()), "tile/atom-shape", "ends in (2, 8, 4)",
    ),
    "no matrix axis": (
        call(regs((1, 8, 4), f"(1,8,4):(1,{OWNERS})"), smem((8, 4)), opcode=LOAD.replace("x4", "x1")),
        "tile/atom-shape", ".view(1, 8, 4)",
    ),
    "no warp axis": (
        call(regs((2, 4, 8, 4), f"(2,4,8,4):(1@warpid,1,{OWNERS})"), smem(), scope="cta", block=64),
        "tile/group-shape", "begins with (), expected the group axes (2,)",
    ),
    "other repeats": (
        call(regs((2, 4, 8, 4), f"(2,4,8,4):(4,1,{OWNERS})"), smem((3, 4, 8, 4))),
        "tile/repeats", "src_shared repeats (3,), dst_registers repeats (2,)",
    ),
    "f16 without a view": (
        call(regs(), smem((4, 8, 8), dtype="float16")),
        FAMILY + "operand-type", '.view("uint32") shows the same bits',
    ),
    "f16 registers": (
        call(regs((4, 8, 4), dtype="float16"), smem()), FAMILY + "operand-type", "dst_registers",
    ),
    "global source": (
        call(regs(), smem(space="global")), FAMILY + "space", "in global memory, expected shared",
    ),
    "exchanged": (
        call(smem(), regs()),
        FAMILY + "operand-order", "takes dst_registers, src_shared, got a shared tensor and then a local one",
    ),
    "exchanged store": (
        call(regs(), smem(), opcode=STORE), FAMILY + "operand-order", "takes dst_shared, src_registers",
    ),
    "one operand": (call(regs()), FAMILY + "operand-count", "given 1 operand, it takes 2"),
    "scalar": (call(regs(), i32(3)), FAMILY + "tensor-operand", "src_shared"),
    "past the end": (
        call(regs(), region(smem((5, 8, 4)), (2, 0, 0), (4, 8, 4))), "tile/bounds", "ends at 6",
    ),
    "swizzled past the end": (  # word 16 is stored as word 20
        call(regs((1, 8, 4), f"(1,8,4):(1,{OWNERS})"), swizzled_piece(20), opcode=LOAD.replace("x4", "x1"),
             under=within(0, 16, 4), params=(START,)),
        "tile/bounds", "may reach after its buffer of 20 elements",
    ),
    "start by lane": (
        call(regs(), region(smem((40, 8, 4)), (LANE, 0, 0), (4, 8, 4))), "tile/origin", "differs between the threads",
    ),
    "movmatrix": (
        call(regs(), regs(), opcode="movmatrix.sync.aligned.m8n8.trans.b16"), "tile/raw-only", "raw instruction",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    function, code, part = FAULTS[name]
    assert codes(function) == [code]
    assert part in text(function), text(function)


LEGAL = {
    "swizzled inside": call(
        regs((1, 8, 4), f"(1,8,4):(1,{OWNERS})"), swizzled_piece(24), opcode=LOAD.replace("x4", "x1"),
        under=within(0, 16, 4), params=(START,),
    ),
    "swizzled rows of a tile that ends inside a period": call(
        regs((1, 1, 8, 4), f"(1,1,8,4):(1,1,{OWNERS})"),
        region(smem((2, 1, 8, 4), "swizzle(2,1,2) o (2,1,8,4):(8,16,20,1)"), (START, 0, 0, 0), (1, 1, 8, 4)),
        opcode=LOAD.replace("x4", "x1"), under=within(0, 1), params=(START,),
    ),
    "load": call(regs(), smem()),
    "store": call(smem(), regs(), opcode=STORE),
    "16-byte alignment": call(regs(), smem(align=16)),
    "row pitch 80": call(regs(), smem(notation="(4,8,4):(160,20,1)")),
    "start of 16 bytes": call(
        regs(), region(smem((4, 8, 16)), (0, 0, START), (4, 8, 4)), under=within(0, 12, 4), params=(START,)
    ),
    "any row of a 16-byte swizzle": call(
        regs(), region(smem((20, 8, 4), "swizzle(2,3,3) o (20,8,4):(32,4,1)"), (START, 0, 0), (4, 8, 4)),
        under=within(0, 16), params=(START,),
    ),
    "stored outputs in one slot": call(smem(), regs(notation=f"(4,8,4):(0,{OWNERS})"), opcode=STORE),
    "rows in one place": call(regs(), smem(notation="(4,8,4):(0,0,1)")),
    "whole warps": call(regs(), smem(), under=op("lt", hw("tid"), 64), block=128),
    "run-time warps": call(regs(), smem(), under=op("lt", WARP, START), block=128, params=(START,)),
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_neighbours(name: str) -> None:
    assert codes(LEGAL[name]) == []


def test_a_run_time_row_pitch_is_of_global_memory_only() -> None:
    pitch, rows = var("pitch", nodes.INT64), var("m")
    tensor = buffer("x", (rows, 4), "uint32", "global", "(1,4):(0,1)")
    rows_of_4 = views.whole(tensor, ((0, pitch),))
    found = codes(call(regs(), region(rows_of_4, (0, 0), (8, 4)), params=(rows, pitch, tensor)))
    assert found == ["ldmatrix_stmatrix/space"]


def test_targets() -> None:
    load = call(regs(), smem(), target="sm_80")
    assert codes(load) == []
    with pytest.raises(TargetError, match=r"needs sm_90, this kernel is compiled for sm_80"):
        checked(call(smem(), regs(), opcode=STORE, target="sm_80"))


# --- addresses and text


def immediates(function: nodes.Function) -> list[int]:
    return [
        operand.offset_bytes
        for issue in issues(function)
        for operand in issue.operands
        if isinstance(operand, Memory)
    ]


def test_repeats_share_a_base() -> None:
    r = regs((3, 4, 8, 4), f"(3,4,8,4):(4,1,{OWNERS})")
    f = call(r, smem((3, 4, 8, 4)))
    assert len(lets(f)) == 1 and immediates(f) == [0, 512, 1024]
    slots = [[i.slot for i in issue.operands[0].items] for issue in issues(f)]
    assert slots == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    padded = call(r, smem((3, 4, 8, 4), "(3,4,8,4):(8,160,20,1)"))
    assert len(lets(padded)) == 1 and immediates(padded) == [0, 32, 64]


def test_repeats_across_a_swizzled_row_have_bases_of_their_own() -> None:
    """Four pairs of 16-byte pieces across a 128-byte row, two blocks of 8 rows below each other."""
    s = smem((2, 8, 4, 2, 4), "swizzle(2,3,3) o (2,8,4,2,4):(256,32,8,4,1)")
    r = regs((4, 2, 2, 8, 4), f"(4,2,2,8,4):(4,2,1,{OWNERS})")
    f = call(r, views.permute(s, (2, 0, 3, 1, 4)), opcode=LOAD.replace("x4", "x2"))
    assert len(issues(f)) == 8 and len(lets(f)) == 4
    assert {b - a for a, b in zip(immediates(f)[::2], immediates(f)[1::2])} == {1024}


def test_two_repeat_axes_expand_row_major() -> None:
    r = regs((2, 3, 1, 8, 4), f"(2,3,1,8,4):(1,2,1,{OWNERS})")
    f = call(r, smem((2, 3, 1, 8, 4)), opcode=LOAD.replace("x4", "x1"))
    assert [i.operands[0].items[0].slot for i in issues(f)] == [0, 2, 4, 1, 3, 5]
    assert [i.repeat for i in issues(f)] == [(a, b) for a in range(2) for b in range(3)]


@pytest.mark.parametrize(
    ("notation", "step"),
    [("(4,96):(100,1)", 100), ("swizzle(2,1,2) o (4,96):(100,1)", 100), ("(4,96):(96,1)", 96)],
)
def test_rows_of_a_layout_that_straddles_dimensions(notation: str, step: int) -> None:
    """Three repeats of four matrices, cut from four pieces of 96 words."""
    r = regs((3, 4, 8, 4), f"(3,4,8,4):(4,1,{OWNERS})")
    f = call(r, smem((3, 4, 8, 4), notation))
    assert codes(f) == []
    word = (np.arange(3).reshape(3, 1) * 32 + np.arange(32)) * 4
    wanted = word // 96 * step + word % 96
    if notation.startswith("swizzle"):
        wanted ^= (wanted >> 4 & 1) << 2
    assert np.array_equal(addresses(f), 4 * wanted)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("case", FORMS, ids=lambda c: c.opcode)
def test_text_and_assembly(case: Case, target: str) -> None:
    if target == "sm_80" and not case.load:
        pytest.skip("stmatrix needs sm_90")
    case = replace(case, repeats=3)
    words = torch.zeros(case.words, dtype=torch.uint32)
    y = torch.zeros(case.threads, case.slots, dtype=torch.uint32)
    asm = transfer.compile(words, y, words, 1, case, target=target).asm
    group = r"\{%\w+(, %\w+){" + str(case.count - 1) + r"}\}"
    memory = r"\[%\w+(\+\d+)?\]"
    operands = f"{group}, {memory}" if case.load else f"{memory}, {group}"
    found = re.findall(rf"{re.escape(case.opcode)} {operands};", asm["ptx"])
    assert len(found) == asm["ptx"].count("matrix.sync") == case.repeats


# --- random layouts: every address is the layout at the provider's coordinate


@st.composite
def layouts(draw: st.DrawFn) -> tuple[nodes.Function, list[int], Callable[[int], np.ndarray]]:
    """A legal call, the values of its symbol, and the byte addresses (issues, threads) at a value."""
    count, warps = draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 3)))
    box = [warps, draw(st.integers(1, 3)), draw(st.integers(1, 2)), count, 8]
    extents = [b + draw(st.integers(0, 3)) for b in box] + [4 * draw(st.integers(1, 4))]
    extents[4] = draw(st.sampled_from((8, 10, 12, 16)))
    # Iters, outermost first of each dimension: rows may be split in two.
    split = draw(st.sampled_from((1, 2))) if extents[4] % 4 == 0 else 1
    pieces = [(d, e) for d, e in enumerate(extents[:4])]
    pieces += [(4, 2), (4, extents[4] // 2)] if split == 2 else [(4, extents[4])]
    strides, reach = {}, extents[5]
    for piece in draw(st.permutations(range(len(pieces)))):
        strides[piece] = reach + 4 * draw(st.integers(0, 3))
        reach = strides[piece] * pieces[piece][1]
    order = [*range(len(pieces))]
    shard = [(pieces[p][1], strides[p]) for p in order] + [(extents[5], 1)]
    notation = f"({','.join(str(e) for e, _ in shard)}):({','.join(str(s) for _, s in shard)})"
    length = draw(st.integers(0, 3))
    low, distance = draw(st.integers(2, 3)), length + draw(st.integers(0, 3))
    if length:
        notation = f"swizzle({low},{length},{distance}) o {notation}"
    fixed = [draw(st.integers(0, e - b)) for e, b in zip(extents[:5], box)]
    fixed.append(4 * draw(st.integers(0, extents[5] // 4 - 1)))
    moving = draw(st.sampled_from((None, *range(4), 5) + ((4,) if split == 1 else ())))
    if moving == 0 and warps > 1 and extents[0] == warps:
        moving = None
    step = 4 if moving == 5 else 1
    top = 0 if moving is None else extents[moving] - ([*box, 4][moving]) - fixed[moving]
    starts: list[Any] = [*fixed]
    if moving is not None:
        starts[moving] = op("add", START, fixed[moving])
    shared = region(smem(tuple(extents), notation, 1024), tuple(starts), (*box, 4))
    repeats = box[1] * box[2]
    registers = regs(
        (*box, 4), f"({warps},{box[1]},{box[2]},{count},8,4):(1@warpid,{box[2] * count},{count},1,{OWNERS})"
    )  # fmt: skip
    name = f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16"
    function = call(
        registers, shared, opcode=name, scope="cta", block=32 * warps,
        under=within(0, top, step), params=(START,),
    )  # fmt: skip

    def place(at: list[int]) -> int:
        inner = extents[4] // 2
        digits = at[:4] + ([at[4] // inner, at[4] % inner] if split == 2 else [at[4]])
        address = at[5] + sum(digit * strides[p] for p, digit in enumerate(digits))
        if length:
            address ^= ((address >> (low + distance)) % (1 << length)) << low
        return 4 * address

    def wanted(value: int) -> np.ndarray:
        start = [*fixed]
        if moving is not None:
            start[moving] += value
        rows = []
        for repeat in range(repeats):
            row = []
            for thread in range(32 * warps):
                lane = thread % 32
                inside = [thread // 32, *divmod(repeat, box[2]), lane // 8 % count, lane % 8, 0]
                row.append(place([s + i for s, i in zip(start, inside)]))
            rows.append(row)
        return np.array(rows)

    return function, [*range(0, top + 1, step)], wanted


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_addresses_are_the_layout_at_the_providers_coordinate(
    drawn: tuple[nodes.Function, list[int], Callable[[int], np.ndarray]],
) -> None:
    function, values, wanted = drawn
    assert codes(function) == [], text(function)
    for value in values:
        assert np.array_equal(addresses(function, {"n": value}), wanted(value))
