"""The contract of tensor copies: boxes end to end, the nearest illegal values, the text that is emitted.

The oracle is numpy and the contract, element by element: a box's elements are those at ``coords + index
* element_strides``, what lies outside the tensor is filled, a store leaves it alone. That the hardware's
swizzle is the layout's shows in reading the image through the layout.
"""

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.sim.written import kernel, reports
from tests.tile import kit
from tests.tile.kit import apply, buffer, codes, hw, i32, issues, region, text, whole
from tilejit import T
from tilejit.errors import LaunchError
from tilejit.families import cp_async_bulk_tensor as family
from tilejit.ir import nodes, tensor_map
from tilejit.layout import parse
from tilejit.ptx import spelling
from tilejit.tile.family import TensorBox

pytestmark = pytest.mark.usefixtures("round_trips")

BYTES = "mbarrier::complete_tx::bytes"


def load(rank: int, space: str = "shared::cta", mode: str = ".tile", tail: str = "") -> str:
    return f"cp.async.bulk.tensor.{rank}d.{space}.global{mode}.{BYTES}{tail}"


def store(rank: int, operation: str = "", mode: str = ".tile", tail: str = "") -> str:
    head = "cp.reduce" if operation else "cp"
    return f"{head}.async.bulk.tensor.{rank}d.global.shared::cta{operation}{mode}.bulk_group{tail}"


class Case:
    """What the kernels are specialised on; ``str`` is the test's id."""

    def __init__(self, dtype: str, tensor: tuple[int, ...], box: tuple[int, ...], **options: Any):
        self.dtype, self.tensor, self.box = dtype, tensor, box
        self.rank = len(box)
        self.options = options
        self.coords = options.get("coords", (0,) * self.rank)
        self.steps = options.get("element_strides", (1,) * self.rank)
        self.swizzle = options.get("swizzle", 0)
        self.interleave = options.get("interleave", 0)
        self.fill = options.get("oob_fill", 0)
        self.format = options.get("format", dtype)
        self.repeats = options.get("repeats", ())
        self.coord_steps = options.get("coord_steps", ())
        self.opcode = options.get("opcode", load(self.rank))
        size = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
        taken = tuple(-(-b // s) for b, s in zip(box, self.steps))
        self.image = taken
        if self.interleave:
            self.image = (taken[0], 1, *taken[2:], 16 * self.interleave // size)
        self.shape = (*self.repeats, *self.image)
        self.nbytes = int(np.prod(self.shape)) * size
        self.element_bytes = size
        self.layout = "default"
        if self.swizzle:
            per = {1: 4, 2: 3, 4: 2, 8: 1}[size]
            self.layout = f"swizzle({per},{self.swizzle},3) o {rows_apart(self)}"

    def __repr__(self) -> str:
        shown = "x".join(map(str, self.tensor)), "x".join(map(str, self.box))
        return "-".join((self.dtype, *shown, *(f"{k}={v}" for k, v in self.options.items())))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Case) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def values(self) -> torch.Tensor:
        """A tensor whose bytes all differ from their neighbours'."""
        count = int(np.prod(self.tensor)) * self.element_bytes
        data = np.arange(count, dtype=np.int64) * 131 % 251
        dtype = getattr(torch, self.dtype)
        return torch.from_numpy(data.astype(np.uint8)).view(dtype).reshape(self.tensor).clone()

    def nan(self) -> bytes:
        return b"\xff" * (self.element_bytes - 1) + b"\x7f"

    def expected(self, x: torch.Tensor) -> np.ndarray:
        """The image, byte by byte: shape (*shape, element bytes)."""
        data = bytes_of(x).reshape(*x.shape, self.element_bytes)
        fill = np.frombuffer(self.nan() if self.fill else bytes(self.element_bytes), np.uint8)
        out = np.empty((*self.shape, self.element_bytes), np.uint8)
        for index in itertools.product(*map(range, self.shape)):
            repeat, inside = index[: len(self.repeats)], index[len(self.repeats) :]
            start = list(self.coords)
            for number, row in zip(repeat, self.coord_steps):
                start = [s + number * r for s, r in zip(start, row)]
            at = [s + i * step for s, i, step in zip(start, inside, self.steps)]
            at += inside[self.rank :]  # the channels of a slice
            whole_ = all(0 <= a < n for a, n in zip(at, x.shape))
            out[index] = data[tuple(at)] if whole_ else fill
        return out


def rows_apart(case: Case) -> str:
    """The shape with rows as far apart as the swizzle reaches: 32, 64 or 128 bytes."""
    strides = [1]
    pitch = max(case.shape[-1], (16 << case.swizzle) // case.element_bytes)
    for extent in case.shape[:0:-1]:
        strides.append(pitch if len(strides) == 1 else strides[-1] * extent)
    return f"({','.join(map(str, case.shape))}):({','.join(map(str, strides[::-1]))})"


def bytes_of(x: torch.Tensor) -> np.ndarray:
    return x.contiguous().view(torch.uint8).numpy()


@tile.jit
def wait_for(mbar, nbytes: T.constexpr, thread):
    """Thread 0 initialises and announces; everybody is there when the copies may be issued."""
    if thread == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
            T.ptx.SINK, mbar.ptr_to([0]), T.uint32(nbytes)
        )
    T.cuda.cta_sync()


@tile.jit
def loaded(X: T.Tensor(None, align=32), Y, c: T.constexpr):
    """Y = the bytes of the image of one box (or one per repeat) of X."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared(c.shape, X.dtype, layout=c.layout, align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, c.nbytes, t)
    if t == 0:
        T.cuda.tile.apply(T.ptx[c.opcode], s, X, box=c.box, coords=c.coords,
                          coord_steps=c.coord_steps, element_strides=c.steps, swizzle=c.swizzle,
                          interleave=c.interleave, oob_fill=c.fill, format=c.format,
                          mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    image = s.view("uint8").view(c.nbytes)
    for i in range(t, c.nbytes, 32):
        Y[i] = image[i]


DTYPES = (
    "uint8",
    "float16",
    "bfloat16",
    "int32",
    "float32",
    "int64",
    "float64",
    "float8_e4m3fn",
    "int8",
)


def sized(dtype: str, nbytes: int) -> int:
    return nbytes // torch.empty(0, dtype=getattr(torch, dtype)).element_size()


LOADS = [
    # every dtype, every rank
    *(Case(d, (5, sized(d, 64)), (4, sized(d, 32))) for d in DTYPES),
    Case("float32", (40,), (16,), coords=(8,)),
    Case("float16", (3, 5, 16), (2, 4, 8), coords=(1, 1, 8)),
    Case("float16", (2, 3, 5, 16), (2, 2, 3, 8), coords=(0, 1, 1, 0)),
    Case("float16", (2, 2, 3, 3, 16), (1, 2, 2, 3, 16), coords=(1, 0, 1, 0, 0)),
    # swizzles: rows as wide as the swizzle, and narrower ones
    *(Case(d, (40, sized(d, 128)), (24, sized(d, 16 << s)), swizzle=s)
      for d in ("uint8", "float16", "float32", "float64") for s in (1, 2, 3)),
    *(Case("float16", (40, 64), (32, 8 << narrow), swizzle=s)
      for s in (1, 2, 3) for narrow in range(s)),
    Case("float16", (3, 20, 64), (2, 12, 64), swizzle=3, coords=(1, 3, 0)),
    # outside the tensor, on every side
    *(Case("float16", (10, 40), (8, 16), coords=c, oob_fill=f)
      for c in ((-3, 0), (0, -8), (5, 32), (4, 40), (20, 0), (-9, -24)) for f in (0, 1)),
    *(Case("float16", (40, 64), (32, 64), coords=c, swizzle=3) for c in ((-3, 0), (-3, -8), (0, -64))),
    Case("float16", (40, 64), (32, 16), coords=(-30, -48)),
    Case("float32", (10, 36), (8, 32), coords=(5, -8), swizzle=3, oob_fill=1),
    Case("int32", (10, 36), (8, 32), coords=(5, 8), swizzle=3),
    # sampled
    *(Case("float32", (20, 8), (9, 4), element_strides=(s, 1), coords=(2, 0)) for s in (2, 3, 8)),
    Case("float16", (9, 20, 16), (4, 9, 16), element_strides=(3, 4, 1), swizzle=1),
    # slices of channels
    Case("uint16", (2, 4, 11, 16), (1, 1, 8), interleave=2, swizzle=1, coords=(1, 2, 2)),
    Case("float16", (2, 4, 11, 8), (2, 3, 8), interleave=1, coords=(0, 3, 5)),
    Case("float32", (2, 4, 5, 6, 4), (1, 1, 3, 4), interleave=1, coords=(1, 1, 1, 4)),
    Case("uint16", (2, 4, 11, 16), (1, 1, 8), interleave=2, swizzle=1, repeats=(3,),
         coord_steps=((0, 1, 0),)),
    # repeats
    Case("float16", (40, 128), (8, 64), swizzle=3, repeats=(2, 3), coord_steps=((0, 64), (8, 0))),
    Case("float32", (64,), (32,), repeats=(2,), coord_steps=((32,),)),
]  # fmt: skip


def test_tf32_maps_round_to_nearest_even(device: str) -> None:
    """As seen on an H200; every NaN becomes the canonical one."""
    seen = {
        0x3F800000: 0x3F800000, 0x3F800001: 0x3F800000, 0x3F800FFF: 0x3F800000,
        0x3F801000: 0x3F800000, 0x3F801001: 0x3F802000, 0x3F803000: 0x3F804000,
        0xBF801000: 0xBF800000, 0xBF803000: 0xBF804000, 0xBF803FFF: 0xBF804000,
        0x00001000: 0x00000000, 0x00001001: 0x00002000, 0x80001001: 0x80002000,
        0x00003000: 0x00004000, 0x7F7FEFFF: 0x7F7FE000, 0x7F7FF000: 0x7F800000,
        0x7F800000: 0x7F800000, 0x7F800001: 0x7FFFE000, 0x7FC00000: 0x7FFFE000,
        0x00000000: 0x00000000, 0x80000000: 0x80000000,
    }  # fmt: skip
    words = np.array([*seen, *[0] * (256 - len(seen))], np.uint32)
    case = Case("float32", (8, 32), (8, 32), swizzle=3, format="tf32")
    x = torch.from_numpy(words.view(np.float32)).reshape(8, 32).clone().to(device)
    y = torch.full((case.nbytes,), 7, dtype=torch.uint8, device=device)
    loaded(x, y, case)
    got = y.cpu().numpy().view(np.uint32)[: len(seen)]
    assert [hex(word) for word in got] == [hex(word) for word in seen.values()]


@pytest.mark.parametrize("case", LOADS, ids=repr)
def test_boxes_arrive(case: Case, device: str) -> None:
    x = case.values().to(device)
    y = torch.full((case.nbytes,), 7, dtype=torch.uint8, device=device)
    loaded(x, y, case)
    got = y.cpu().numpy().reshape(*case.shape, case.element_bytes)
    expected = case.expected(x.cpu())
    if case.fill:
        got, expected = (canonical(a, case) for a in (got, expected))
    assert np.array_equal(got, expected)


def canonical(data: np.ndarray, case: Case) -> np.ndarray:
    """Every NaN alike: which one fills is not documented."""
    values = torch.from_numpy(data.copy()).view(getattr(torch, case.dtype)).double()
    return values.nan_to_num(nan=12345.0).numpy()


# --- rows narrower than the swizzle


@tile.jit
def dumped(X: T.Tensor((32, 64), "float16", align=16), Y, swizzle: T.constexpr, width: T.constexpr):
    """Y = the first element of every 16 bytes of shared memory, in order: -1 where the box of ``width``
    columns has written nothing."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    pitch = 8 << swizzle
    bytes_ = T.alloc_shared((32 * pitch,), "float16", layout="default", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    for i in T.unroll(pitch):
        bytes_[i * 32 + t] = T.float16(-1)
    T.ptx["fence.proxy.async.shared::cta"]()
    wait_for(mbar, 32 * width * 2, t)
    rows = bytes_.view(32, pitch, layout=f"swizzle(3,{swizzle},3) o (32,{pitch})")
    if t == 0:
        T.cuda.tile.apply(T.ptx[load(2)], rows[:, 0:width], X, box=(32, width), coords=(0, 0),
                          swizzle=swizzle, mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(pitch // 8):
        Y[i * 32 + t] = bytes_[(i * 32 + t) * 8]


def dump(swizzle: int, width: int, device: str) -> list[int]:
    """By 16 bytes of shared memory: 10 * row + number in the row; -1 in the gaps."""
    row, column = torch.arange(32)[:, None], torch.arange(64)[None, :]
    x = (10 * row + column // 8).to(torch.float16).to(device)
    y = torch.zeros(32 << swizzle, dtype=torch.float16, device=device)
    dumped(x, y, swizzle, width)
    return [int(v) for v in y.cpu().tolist()]


def test_narrow_rows_lie_as_the_h200_has_them(device: str) -> None:
    gap = -1
    assert dump(1, 8, device)[:16] == [
        0, gap, 10, gap, 20, gap, 30, gap, gap, 40, gap, 50, gap, 60, gap, 70
    ]  # fmt: skip
    assert dump(3, 16, device)[:24] == [
        0, 1, gap, gap, gap, gap, gap, gap, 11, 10, gap, gap, gap, gap, gap, gap,
        gap, gap, 20, 21, gap, gap, gap, gap,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("swizzle", "width"), [(s, 8 << narrow) for s in (1, 2, 3) for narrow in range(s + 1)]
)
def test_gaps_between_rows_are_not_written(swizzle: int, width: int, device: str) -> None:
    expected = [-1] * (32 << swizzle)
    for row, piece in itertools.product(range(32), range(width // 8)):
        address = row * (16 << swizzle) + 16 * piece
        place = address ^ ((address >> 7 & ((1 << swizzle) - 1)) << 4)
        expected[place // 16] = 10 * row + piece
    assert dump(swizzle, width, device) == expected


# --- what varies at run time


@tile.jit
def moved(
    X: T.Tensor((T.dynamic("m"), T.dynamic("n")), "float32", align=16),
    Y: T.Tensor((T.dynamic("m"), T.dynamic("n")), "float32", align=16),
    column: T.int32,
    c: T.constexpr,
):
    """Y = X, a row of tiles per CTA from ``column`` on, by loads and stores of (8, 32) boxes in two stages."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(X.shape[0] + 7) // 8, block=32))
    T.assume(X.shape[0] < 1 << 31)
    T.assume(0 <= column < 1 << 20)
    T.assume(column % 4 == 0)
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((2, 8, 32), "float32", layout="swizzle(2,3,3) o (2,8,32)", align=1024)
    mbar = T.alloc_shared((2,), "uint64", align=8)
    row = T.cuda.block_idx("x") * 8
    if t == 0:
        for i in T.unroll(2):
            T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([i]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        for i in range(c):
            stage, parity = i % 2, (i // 2) % 2
            T.ptx["cp.async.bulk.wait_group.read"](1)
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                T.ptx.SINK, mbar.ptr_to([stage]), T.uint32(1024)
            )
            T.cuda.tile.apply(T.ptx[load(2, mode="")], s.sub[stage, :, :], X, box=(8, 32), swizzle=3,
                              coords=(row, column + i * 32), mbar=mbar.ptr_to([stage]))  # fmt: skip
            T.cuda.mbarrier_wait(mbar.ptr_to([stage]), parity)
            T.cuda.tile.apply(T.ptx[store(2, mode="")], Y, s.sub[stage, :, :], box=(8, 32), swizzle=3,
                              coords=(row, column + i * 32))  # fmt: skip
            T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize(("m", "n"), [(16, 96), (21, 100), (1, 4), (8, 60), (9, 61), (3, 95)])
@pytest.mark.parametrize("column", [0, 32, 4])
def test_sizes_strides_and_coordinates_of_the_launch(
    m: int, n: int, column: int, device: str
) -> None:
    """Also of rows that end within 16 bytes."""
    pitch = -(-n // 4) * 4
    x = torch.arange(m * pitch, dtype=torch.float32, device=device).reshape(m, pitch)[:, :n]
    y = torch.full((m + 2, pitch + 4), -1.0, device=device)[1 : m + 1, :n]  # rows farther apart
    moved(x, y, column, 3)
    expected = torch.full((m, n), -1.0)
    first, last = column, min(column + 96, n)
    expected[:, first:last] = x.cpu()[:, first:last]
    assert torch.equal(y.cpu(), expected)
    known = len(moved.variants)
    wider = torch.zeros(m + 9, pitch + 4, device=device)
    moved(torch.zeros(m + 7, pitch, device=device)[:, :n], wider[1 : m + 8, :n], column, 3)
    assert len(moved.variants) == known  # other sizes are other maps of the same kernel


@tile.jit
def window(
    X: T.Tensor((T.dynamic("m"), "N"), "float16", align=16), Y, row: T.int32, column: T.int32
):
    """Y = the (8, 16) box of X at a place known at run time only, which may lie outside on any side."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    T.assume(column % 8 == 0)
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((8, 16), "float16", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 256, t)
    if t == 0:
        T.cuda.tile.apply(T.ptx[load(2)], s, X, box=(8, 16), coords=(row, column),
                          mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(4):
        Y[2 * i + t // 16, t % 16] = s[2 * i + t // 16, t % 16]


@pytest.mark.parametrize(
    ("row", "column"), [(0, -8), (-3, 16), (-3, -16), (7, 24), (-8, 0), (2, 8)]
)
def test_loads_on_any_side_of_the_tensor(row: int, column: int, device: str) -> None:
    x = torch.arange(12 * 32, dtype=torch.float32).to(torch.float16).reshape(12, 32)
    y = torch.full((8, 16), -1.0, dtype=torch.float16, device=device)
    window(x.to(device), y, row, column)
    padded = torch.zeros(12 + 32, 32 + 64, dtype=torch.float16)
    padded[16:28, 32:64] = x
    assert torch.equal(y.cpu(), padded[16 + row : 24 + row, 32 + column : 48 + column])


def test_what_was_promised_of_a_coordinate_is_watched() -> None:
    x, y = torch.zeros(12, 32, dtype=torch.float16), torch.zeros(8, 16, dtype=torch.float16)
    with pytest.raises(tile.SimulationFault) as caught:
        window(x, y, 0, 3)
    assert "sim/assume" in caught.value.codes


@tile.jit
def parts(X, Y, Z, c: T.constexpr):
    """A region of X at an offset, coordinates relative to it, into a part of a swizzled tile; Z: where
    rows start."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((16, 64), "float16", layout="swizzle(3,3,3) o (16,64)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    for i in T.unroll(16 * 64 // 32):
        s.view(16 * 64)[i * 32 + t] = T.float16(0)
    T.ptx["fence.proxy.async.shared::cta"]()
    wait_for(mbar, 4 * 64 * 2, t)
    if t == 0:
        region_ = X[c.row : c.row + 5, 8 : 8 + 72] if c.region else X.sub[c.row : c.row + 5, 8:80]
        T.cuda.tile.apply(T.ptx[load(2)], s[c.at : c.at + 4, :], region_, box=(4, 64), coords=(2, 0),
                          swizzle=3, mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(16):
        Y[i, 2 * t] = s[i, 2 * t]
        Y[i, 2 * t + 1] = s[i, 2 * t + 1]


class Part:
    def __init__(self, row: int, at: int, region: bool) -> None:
        self.row, self.at, self.region = row, at, region


@pytest.mark.parametrize("region", [True, False], ids=["region", "view"])
@pytest.mark.parametrize("at", range(0, 13))
def test_regions_and_parts_of_a_swizzled_tile(at: int, region: bool, device: str) -> None:
    """Rows that start in the middle of a swizzle period: the hardware applies the phase once."""
    x = torch.arange(20 * 96, dtype=torch.float32).remainder(2039).to(torch.float16).reshape(20, 96)
    y = torch.zeros(16, 64, dtype=torch.float16)
    x, y = x.to(device), y.to(device)
    parts(x, y, None, Part(3, at, region))
    expected = torch.zeros(16, 64, dtype=torch.float16)
    expected[at : at + 3] = x.cpu()[
        5:8, 8:72
    ]  # rows 5, 6, 7 of the region's 5: the last is outside
    assert torch.equal(y.cpu(), expected)


@tile.jit
def any_row(X: T.Tensor((16, 64), "float16"), Y: T.Tensor((16, 64), "float16"), first: T.int32):
    """One row of a swizzled tile at a time, in an order known at run time only."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((16, 64), "float16", layout="swizzle(3,3,3) o (16,64)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 2048, t)
    if t == 0:
        for i in range(16):
            row = (i + first) & 15
            T.cuda.tile.apply(T.ptx[load(2)], s[row, 0:64], X, box=(1, 64), coords=(row, 0), swizzle=3,
                              mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(16):
        Y[i, 2 * t] = s[i, 2 * t]
        Y[i, 2 * t + 1] = s[i, 2 * t + 1]


def test_a_row_in_the_middle_of_a_swizzle_period(device: str) -> None:
    x = torch.arange(1024, dtype=torch.float32).to(torch.float16).reshape(16, 64).to(device)
    y = torch.zeros_like(x)
    any_row(x, y, 5)
    assert torch.equal(x.cpu(), y.cpu())


@tile.jit
def per_lane(
    X: T.Tensor((64, 32), "float32", align=16), Y: T.Tensor((64, 32), "float32", align=16)
):
    """Every lane of a warp moves two boxes of one row: the group axis and the repeat axis."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((32, 2, 1, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 64 * 128, t)
    T.cuda.tile.apply(T.ptx[load(2)], s, X, box=(1, 32), coords=(0, 0), coord_steps=((1, 0), (32, 0)),
                      scope="warp", mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    T.cuda.tile.apply(T.ptx[store(2)], Y, s, box=(1, 32), coords=(63, 0), coord_steps=((-1, 0), (-32, 0)),
                      scope="warp", pred=t < 31)  # fmt: skip
    T.ptx["cp.async.bulk.commit_group"]()
    T.ptx["cp.async.bulk.wait_group"](0)


def test_group_axes_and_predicates(device: str) -> None:
    x = torch.arange(64 * 32, dtype=torch.float32, device=device).reshape(64, 32)
    y = torch.zeros_like(x)
    per_lane(x, y)
    expected = x.cpu().flip(0)
    expected[[0, 32]] = 0  # lane 31's
    assert torch.equal(y.cpu(), expected)


# --- stores and reductions


@tile.jit
def stored(X, Y, c: T.constexpr):
    """A box of Y becomes X, or is reduced with it."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared(c.shape, X.dtype, layout=c.layout, align=1024)
    image, given = s.view(X.size), X.view(X.size)
    for i in range(t, X.size, 32):
        image[i] = given[i]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(T.ptx[c.opcode], Y, s, box=c.box, coords=c.coords, swizzle=c.swizzle,
                          element_strides=c.steps)  # fmt: skip
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def run_store(x: torch.Tensor, y: torch.Tensor, case: Case, device: str) -> np.ndarray:
    x, y = x.to(device), y.to(device)
    stored(x, y, case)
    return y.cpu().numpy()


STORES = [
    Case("float32", (40,), (16,), coords=(8,), opcode=store(1)),
    Case("int32", (12, 40), (8, 32), coords=(2, 4), swizzle=3, opcode=store(2)),
    Case("float16", (12, 40), (8, 16), coords=(7, 32), swizzle=1, opcode=store(2)),
    Case("float32", (6, 10, 20), (2, 4, 16), coords=(5, 8, 12), swizzle=2, opcode=store(3)),
    # rows narrower than the swizzle
    *(
        Case("float16", (40, 64), (32, 8 << narrow), coords=(8, 8), swizzle=s, opcode=store(2))
        for s in (1, 2, 3)
        for narrow in range(s)
    ),
    # up to the last element and beyond it
    *(
        Case(
            "float32", (12, 40), (8, 32), coords=c, opcode=store(2), **({"swizzle": s} if s else {})
        )
        for s in (0, 3)
        for c in ((0, 0), (2, 4), (3, 8), (10, 4), (0, 36), (0, 64), (40, 0))
    ),
    Case("float32", (2, 3, 4, 5, 8), (1, 2, 2, 3, 8), coords=(1, 1, 1, 1, 0), opcode=store(5)),
    Case("float32", (20, 16), (9, 16), coords=(2, 0), element_strides=(3, 1), opcode=store(2)),
    Case("float32", (20, 16), (8, 16), coords=(20, 0), opcode=store(2)),  # nothing is inside
]


def written(case: Case) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(index in the box, index in the tensor) of every element that is stored."""
    found = []
    for index in itertools.product(*map(range, case.shape)):
        at = tuple(s + i * step for s, i, step in zip(case.coords, index, case.steps))
        if all(0 <= a < n for a, n in zip(at, case.tensor)):
            found.append((index, at))
    return found


@pytest.mark.parametrize("case", STORES, ids=repr)
def test_stores_leave_what_is_outside_alone(case: Case, device: str) -> None:
    dtype = getattr(torch, case.dtype)
    x = (
        torch.arange(1, 1 + int(np.prod(case.shape)), dtype=torch.float32)
        .to(dtype)
        .reshape(case.shape)
    )
    y = torch.full(case.tensor, -1, dtype=dtype)
    expected = y.numpy().copy()
    for index, at in written(case):
        expected[at] = x.numpy()[index]
    assert np.array_equal(run_store(x, y, case, device), expected)


REDUCTIONS: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "inc": lambda old, limit: old * 0 if old >= limit else old + 1,
    "dec": lambda old, limit: limit if old == 0 or old > limit else old - 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [(o, d) for o in REDUCTIONS for d in family.REDUCTIONS[o] if d != "bfloat16"],
)
def test_reductions(operation: str, dtype: str, device: str) -> None:
    opcode = store(2, f".{operation}", mode="")
    case = Case(dtype, (6, 40), (4, sized(dtype, 32)), coords=(3, sized(dtype, 16)), opcode=opcode)
    kind = np.dtype(dtype)
    low, high = (-40, 40) if kind.kind in "if" else (0, 80)
    random = np.random.default_rng(5)
    x = torch.from_numpy(random.integers(low, high, case.shape).astype(kind))
    y = torch.from_numpy(random.integers(low, high, case.tensor).astype(kind))
    expected = y.numpy().copy()
    for index, at in written(case):
        expected[at] = REDUCTIONS[operation](expected[at], x.numpy()[index]).astype(kind)
    assert np.array_equal(run_store(x, y, case, device), expected)


@pytest.mark.parametrize("swizzle", [0, 3])
@pytest.mark.parametrize(
    "coords", [(0, 0), (2, 4), (3, 8), (10, 4), (0, 36), (0, 64), (40, 0)], ids=str
)
def test_sums_beyond_the_last_element(coords: tuple[int, int], swizzle: int, device: str) -> None:
    options = {"swizzle": swizzle} if swizzle else {}
    case = Case("float32", (12, 40), (8, 32), coords=coords, opcode=store(2, ".add"), **options)
    x = torch.arange(1, 257, dtype=torch.float32).reshape(8, 32)
    y = torch.full((12, 40), -1.0)
    expected = y.numpy().copy()
    for index, at in written(case):
        expected[at] += x.numpy()[index]
    assert np.array_equal(run_store(x, y, case, device), expected)


def test_float32_sums_keep_subnormals(device: str) -> None:
    """As those of whole chunks do on an H200 (test_cp_async_bulk.py)."""
    case = Case("float32", (4, 8), (4, 8), opcode=store(2, ".add"))
    x, y = torch.full((4, 8), 1e-40), torch.full((4, 8), 2e-40)
    expected = (x + y).numpy()
    assert expected.all()  # numpy keeps them, too
    assert np.array_equal(run_store(x, y, case, device), expected)


def test_a_bfloat16_sum(device: str) -> None:
    case = Case("bfloat16", (4, 16), (4, 16), opcode=store(2, ".add"))
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    y = torch.randn(4, 16, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    result = y.clone().to(device)
    stored(x.to(device), result, case)
    assert torch.equal(result.cpu(), (x.float() + y.float()).to(torch.bfloat16))


@tile.jit
def spread(X, Y):
    """Y = a box of a tensor whose rows are one and the same."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((8, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 1024, t)
    if t == 0:
        T.cuda.tile.apply(T.ptx[load(2)], s, X, box=(8, 32), coords=(0, 0), mbar=mbar.ptr_to([0]))
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(8):
        Y[i, t] = s[i, t]


def test_a_dimension_without_stride_repeats(device: str) -> None:
    x = torch.arange(32, dtype=torch.float32, device=device).expand(8, 32)
    y = torch.zeros(8, 32, device=device)
    spread(x, y)
    assert torch.equal(y.cpu(), x.cpu())


# --- what the simulator finds


@tile.jit
def careless(X: T.Tensor((8, 32), "float32"), Y: T.Tensor((8, 32), "float32"), c: T.constexpr):
    """Y = X, without the step that ``c`` names."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((8, 32), "float32", layout="swizzle(2,3,3) o (8,32)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 512 if c == "bytes" else 1024, t)
    if t == 0:
        T.cuda.tile.apply(T.ptx[load(2)], s, X, box=(8, 32), coords=(0, 0), swizzle=3,
                          mbar=mbar.ptr_to([0]))  # fmt: skip
    if c != "wait":
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(8):
        s[i, t] = s[i, t] + T.float32(1)
    if c != "fence":
        T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(T.ptx[store(2)], Y, s, box=(8, 32), coords=(0, 0), swizzle=3)
        T.ptx["cp.async.bulk.commit_group"]()
        if c != "group":
            T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize(
    ("left_out", "code"),
    [("wait", "sim/in-flight"), ("fence", "sim/proxy-fence"), ("group", "sim/in-flight"),
     ("bytes", "sim/mbarrier-bytes"), ("nothing", None)],
)  # fmt: skip
def test_a_step_left_out_is_found(left_out: str, code: str | None) -> None:
    x, y = torch.ones(8, 32), torch.zeros(8, 32)
    if code is None:
        careless(x, y, left_out)
        assert torch.equal(y, x + 1)
        return
    with pytest.raises(tile.SimulationFault) as caught:
        careless(x, y, left_out)
    assert code in caught.value.codes, caught.value


# --- clusters, policies, rows of one's own, packed float4


@tile.jit
def multicast(X: T.Tensor((8, 32), "float32", align=16), Y, mask: T.uint16, hint: T.constexpr):
    """CTA 0 sends a box to the CTAs of the mask; each waits on its own barrier."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32, cluster=4))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((8, 32), "float32", layout="swizzle(2,3,3) o (8,32)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    policy = T.alloc_local((1,), "uint64", layout="default")
    T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0])
    receives = (mask >> rank) & 1 == 1
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if receives:
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                T.ptx.SINK, mbar.ptr_to([0]), T.uint32(1024)
            )
    T.cuda.cluster_sync()
    if t == 0 and rank == 0:
        if hint:
            T.cuda.tile.apply(T.ptx[load(2, "shared::cluster", tail=".multicast::cluster.L2::cache_hint")],
                              s, X, box=(8, 32), coords=(0, 0), swizzle=3, mbar=mbar.ptr_to([0]),
                              cta_mask=mask, cache_policy=policy[0])  # fmt: skip
        else:
            T.cuda.tile.apply(T.ptx[load(2, "shared::cluster", tail=".multicast::cluster")],
                              s, X, box=(8, 32), coords=(0, 0), swizzle=3, mbar=mbar.ptr_to([0]),
                              cta_mask=mask)  # fmt: skip
    if receives:
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
        for i in T.unroll(8):
            Y[rank, i, t] = s[i, t]
    T.cuda.cluster_sync()


@pytest.mark.parametrize("hint", [False, True], ids=["plain", "policy"])
@pytest.mark.parametrize("mask", [0b1111, 0b0101, 0b1000])
def test_multicast(mask: int, hint: bool, device: str) -> None:
    x = torch.arange(256, dtype=torch.float32, device=device).reshape(8, 32)
    y = torch.zeros(4, 8, 32, device=device)
    multicast(x, y, mask, hint)
    for rank in range(4):
        assert torch.equal(y[rank].cpu(), x.cpu() if mask >> rank & 1 else torch.zeros(8, 32))


@tile.jit(target="sm_100a")
def paired(X: T.Tensor((16, 32), "float32", align=16), Y, leader: T.constexpr, opcode: T.constexpr):
    """Each CTA of a pair loads its half; the bytes of both complete on the barrier of one of them."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((8, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cluster_sync()
    if t == 0:
        if rank == leader:
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                T.ptx.SINK, mbar.ptr_to([0]), T.uint32(2 * 1024)
            )
        T.cuda.tile.apply(T.ptx[opcode], s, X, box=(8, 32), coords=(8 * rank, 0),
                          mbar=T.cuda.map_shared_rank(mbar.ptr_to([0]), leader))  # fmt: skip
    if rank == leader:
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    T.cuda.cluster_sync()
    for i in T.unroll(8):
        Y[rank, i, t] = s[i, t]


PAIR = ".cta_group::2"


@pytest.mark.parametrize("leader", [0, 1])
def test_both_ctas_of_a_pair_complete_on_one_barrier(leader: int) -> None:
    x = torch.arange(512, dtype=torch.float32).reshape(16, 32)
    for seed in range(5):
        y = torch.zeros(2, 8, 32)
        with tile.simulation(seed=seed):
            paired(x, y, leader, load(2, "shared::cluster", tail=PAIR))
        assert torch.equal(y.reshape(16, 32), x)


@pytest.mark.parametrize(
    ("opcode", "message"),
    [
        (load(2, "shared::cluster"), "mbar is in shared memory of rank 0, expected rank 1"),
        (load(2, "shared::cluster", tail=".cta_group::1"), "with .cta_group::2 its pair's other"),
        (load(2, tail=PAIR), "expected an address of one's own CTA"),
    ],
)
def test_the_barrier_of_the_other_cta_is_for_pairs(opcode: str, message: str) -> None:
    x, y = torch.zeros(16, 32), torch.zeros(2, 8, 32)
    with pytest.raises(tile.SimulationFault) as caught:
        paired(x, y, 0, opcode)
    (first, *_) = caught.value.diagnostics
    assert first.code == "sim/out-of-bounds" and message in first.message


@tile.jit(target="sm_100a")
def paired_multicast(
    X: T.Tensor((8, 32), "float32", align=16), Y, mask: T.uint16, barrier: T.constexpr, opcode: T.constexpr
):  # fmt: skip
    """CTA 0 sends a box to the CTAs of the mask; in every pair the even or the odd CTA is told."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32, cluster=4))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((8, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    both = (mask >> (rank & 2)) & 3
    boxes = (both & 1) + (both >> 1)
    told = (rank & 1) == (barrier & 1) and boxes != 0
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if told:
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                T.ptx.SINK, mbar.ptr_to([0]), T.cast(boxes, "uint32") * 1024
            )
    T.cuda.cluster_sync()
    if t == 0 and rank == 0:
        T.cuda.tile.apply(T.ptx[opcode], s, X, box=(8, 32), coords=(0, 0), cta_mask=mask,
                          mbar=T.cuda.map_shared_rank(mbar.ptr_to([0]), barrier))  # fmt: skip
    if told:
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    T.cuda.cluster_sync()
    if (mask >> rank) & 1 == 1:
        for i in T.unroll(8):
            Y[rank, i, t] = s[i, t]


@pytest.mark.parametrize("mask", [0b1111, 0b0110, 0b1000])
@pytest.mark.parametrize("barrier", [0, 1, 2, 3])
def test_a_multicast_tells_the_even_or_the_odd_cta_of_every_pair(mask: int, barrier: int) -> None:
    x, y = torch.arange(256, dtype=torch.float32).reshape(8, 32), torch.zeros(4, 8, 32)
    opcode = load(2, "shared::cluster", tail=f".multicast::cluster{PAIR}")
    paired_multicast(x, y, mask, barrier, opcode)
    for rank in range(4):
        assert torch.equal(y[rank], x if mask >> rank & 1 else torch.zeros(8, 32))
    # Of single CTAs each is told itself: the barriers of the pairs wait in vain, or get too much.
    with pytest.raises(tile.SimulationFault):
        paired_multicast(x, y, mask | 0b11, barrier, opcode.replace("group::2", "group::1"))


@tile.jit(target="sm_100a")
def gathered(X, Y, Z, rows: T.Tensor((4,), "int32"), c: T.constexpr):
    """Y = four rows of X; the same rows of Z become them."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    a, b, last, outside = rows[0], rows[1], rows[2], rows[3]
    T.assume(a >= 0 and b >= 0 and last >= 0 and outside >= 0)
    s = T.alloc_shared((2, 4, 32), "uint32", layout="swizzle(2,3,3) o (2,4,32)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 1024, t)
    if t == 0:
        T.cuda.tile.apply(T.ptx[load(2, mode=".tile::gather4")], s, X, box=(1, 32), coords=(0, c),
                          coord_steps=((0, 32),), swizzle=3, mbar=mbar.ptr_to([0]),
                          gather4=(a, b, last, outside))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(8):
        Y[i // 4, i % 4, t] = s[i // 4, i % 4, t]
    if t == 0:
        T.cuda.tile.apply(T.ptx[store(2, mode=".tile::scatter4")], Z, s, box=(1, 32), coords=(0, c),
                          coord_steps=((0, 32),), swizzle=3,
                          gather4=(a, b, last, outside))  # fmt: skip
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def test_gather4_and_scatter4() -> None:
    x = torch.arange(20 * 72, dtype=torch.int32).view(torch.uint32).reshape(20, 72)
    y, z = torch.zeros(2, 4, 32, dtype=torch.uint32), torch.zeros(20, 72, dtype=torch.uint32)
    rows = torch.tensor([7, 3, 19, 20], dtype=torch.int32)  # the last is outside
    gathered(x, y, z, rows, 12)
    picked = np.zeros((4, 64), np.uint32)
    picked[:3, :60] = x.numpy()[[7, 3, 19], 12:72]
    assert np.array_equal(y.numpy().transpose(1, 0, 2).reshape(4, 64), picked)
    expected = np.zeros((20, 72), np.uint32)
    expected[[7, 3, 19], 12:72] = picked[:3, :60]
    assert np.array_equal(z.numpy(), expected)


@tile.jit(target="sm_100a")
def packed(X: T.Tensor(None, "uint8", align=32), Y, c: T.constexpr):
    """The padded image of packed float4 rows, the eight payload bytes of each sixteen."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((8, 128), "uint8", layout=c.layout, align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 8 * 64, t)
    if t == 0:
        if c.viewed:
            T.cuda.tile.apply(T.ptx[load(2)], s, X.view("float4_e2m1fn"), box=(8, 128), coords=(1, 128),
                              swizzle=c.swizzle, mbar=mbar.ptr_to([0]))  # fmt: skip
        else:
            T.cuda.tile.apply(T.ptx[load(2)], s, X, format="float4_e2m1fn", box=(8, 128), coords=(1, 128),
                              swizzle=c.swizzle, mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(16):
        row, byte = (i * 32 + t) // 64, (i * 32 + t) % 64
        Y[row, byte] = s[row, byte // 8 * 16 + byte % 8]


class Packed:
    def __init__(self, swizzle: int, viewed: bool) -> None:
        self.swizzle, self.viewed = swizzle, viewed
        self.layout = "swizzle(4,3,3) o (8,128)" if swizzle else "default"


@pytest.mark.parametrize("viewed", [True, False], ids=["view", "format"])
@pytest.mark.parametrize("swizzle", [0, 3])
def test_packed_float4(swizzle: int, viewed: bool) -> None:
    x = torch.arange(7 * 128).remainder(251).to(torch.uint8).reshape(7, 128)
    y = torch.zeros(8, 64, dtype=torch.uint8)
    packed(x, y, Packed(swizzle, viewed))
    expected = np.zeros((8, 64), np.uint8)
    expected[:6] = x.numpy()[1:, 64:]
    assert np.array_equal(y.numpy(), expected)


@tile.jit(target="sm_100a")
def gathered_float4(X: T.Tensor(None, "uint8", align=32), Y, rows: T.Tensor((4,), "int32")):
    """Four rows of packed float4, without their padding."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((4, 128), "uint8", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 4 * 64, t)
    if t == 0:
        T.cuda.tile.apply(T.ptx[load(2, mode=".tile::gather4")], s, X.view("float4_e2m1fn"), box=(1, 128),
                          coords=(0, 128), mbar=mbar.ptr_to([0]),
                          gather4=(rows[0], rows[1], rows[2], rows[3]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(8):
        row, byte = (i * 32 + t) // 64, (i * 32 + t) % 64
        Y[row, byte] = s[row, byte // 8 * 16 + byte % 8]


def test_gather4_of_packed_float4() -> None:
    x = torch.arange(7 * 128).remainder(251).to(torch.uint8).reshape(7, 128)
    y = torch.zeros(4, 64, dtype=torch.uint8)
    gathered_float4(x, y, torch.tensor([5, 0, 6, 2], dtype=torch.int32))
    assert torch.equal(y, x[[5, 0, 6, 2], 64:])


@tile.jit
def loaded_in_part(
    X: T.Tensor((32, 32), "float32", align=16), Y: T.Tensor((32, 32), "float32"), n: T.int32
):
    """The first ``n`` lanes load a row each; the barrier expects no bytes of the others."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((32, 1, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    for i in T.unroll(32):
        s[i, 0, t] = T.float32(-1)
    T.ptx["fence.proxy.async.shared::cta"]()
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
            T.ptx.SINK, mbar.ptr_to([0]), T.cast(n * 128, "uint32")
        )
    T.cuda.cta_sync()
    T.cuda.tile.apply(T.ptx[load(2)], s, X, box=(1, 32), coords=(0, 0), coord_steps=((1, 0),), scope="warp",
                      mbar=mbar.ptr_to([0]), pred=t < n)  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(32):
        Y[i, t] = s[i, 0, t]


@pytest.mark.parametrize("n", [0, 1, 17, 32])
def test_a_skipped_load_completes_no_bytes(n: int, device: str) -> None:
    x = torch.arange(1024, dtype=torch.float32, device=device).reshape(32, 32)
    y = torch.zeros_like(x)
    loaded_in_part(x, y, n)
    expected = x.cpu().clone()
    expected[n:] = -1
    assert torch.equal(y.cpu(), expected)


# --- maps of the caller's own


@tile.jit
def by_pointer(
    map_: T.Tensor((128,), "uint8", align=64), X, Y: T.Tensor((8, 32), "float32"), c: T.constexpr
):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((8, 32), "float32", layout="swizzle(2,3,3) o (8,32)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 1024, t)
    if t == 0:
        if c == "raw":
            T.ptx["prefetch.tensormap"](map_.ptr_to([0]))
            T.ptx[load(2)](
                s.ptr_to([0, 0]), map_.ptr_to([0]), (T.int32(4), T.int32(2)), mbar.ptr_to([0])
            )
        elif c == "raw literals":
            T.ptx[load(2)](s.ptr_to([0, 0]), map_.ptr_to([0]), (4, 2), mbar.ptr_to([0]))
        elif c == "raw literals in a row":
            T.ptx[load(2)](s.ptr_to([0, 0]), map_.ptr_to([0]), 4, 2, mbar.ptr_to([0]))
        else:
            T.cuda.tile.apply(T.ptx[load(2)], s, map_.ptr_to([0]), box=(8, 32), coords=(2, 4), swizzle=3,
                              mbar=mbar.ptr_to([0]))  # fmt: skip
    T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    for i in T.unroll(8):
        Y[i, t] = s[i, t]


@pytest.mark.parametrize("how", ["tile", "raw", "raw literals", "raw literals in a row"])
def test_a_map_that_the_caller_encoded(how: str, device: str) -> None:
    x = torch.arange(12 * 40, dtype=torch.float32, device=device).reshape(12, 40)
    map_ = tile.encode_tensor_map(x, box=(8, 32), swizzle=3)
    aligned = torch.empty(192, dtype=torch.uint8, device=device)
    start = -aligned.data_ptr() % 64
    aligned = aligned[start : start + 128].copy_(map_)
    y = torch.zeros(8, 32, device=device)
    by_pointer(aligned, x, y, how)
    assert torch.equal(y.cpu(), x.cpu()[2:10, 4:36])


@pytest.mark.parametrize("how", ["({}, {})", "{}, {}"])
@pytest.mark.parametrize("c", [-8, 4, "1 << 40", 2.0, "T.uint32(4)"])
def test_literal_coordinates_are_int32(how: str, c: Any) -> None:
    text = f"""
def k(map_: T.Tensor((128,), "uint8", align=64)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    T.ptx["{PREFETCH}"](map_.ptr_to([0]), {how.format(c, 0)})
"""
    map_ = tile.encode_tensor_map(torch.zeros(12, 40), box=(8, 32))
    if c in (-8, 4):
        assert reports(kernel(text), map_) == []
        return
    (fault,) = reports(kernel(text), map_)
    found = {"1 << 40": "int64", 2.0: "float32"}.get(c, "uint32")
    assert f"coordinate 0 of {PREFETCH} is {found}, expected int32" in fault.message


def test_bytes_that_are_no_map_are_a_fault() -> None:
    x, y = torch.zeros(12, 40), torch.zeros(8, 32)
    nothing = tile.encode_tensor_map(x, box=(8, 32))
    nothing[:] = 0
    with pytest.raises(tile.SimulationFault, match="sim/tensor-map"):
        by_pointer(nothing, x, y, "tile")


@tile.jit
def astray(map_: T.Tensor((128,), "uint8", align=64), X, what: T.constexpr):
    """A raw load by CTA 0 of a cluster of two, into shared memory that may be the other's."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=1, cluster=2))
    s = T.alloc_shared((8, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    wait_for(mbar, 1024, T.cuda.cluster_cta_id("x"))
    T.cuda.cluster_sync()
    if T.cuda.cluster_cta_id("x") == 0:
        bar = mbar.ptr_to([0])
        at = (T.int32(0), T.int32(0))
        if what == "dst":
            T.ptx[load(2)](T.cuda.map_shared_rank(s.ptr_to([0, 0]), 1), map_.ptr_to([0]), at, bar)
        elif what == "mbar":
            T.ptx[load(2)](s.ptr_to([0, 0]), map_.ptr_to([0]), at, T.cuda.map_shared_rank(bar, 1))
        else:
            T.ptx[load(2)](s.ptr_to([0, 0]), map_.ptr_to([0]), at, bar)
        T.cuda.mbarrier_wait(bar, 0)
    T.cuda.cluster_sync()


@pytest.mark.parametrize("what", ["dst", "mbar"])
def test_a_load_into_ones_own_memory_is_into_ones_own(what: str) -> None:
    x = torch.zeros(8, 32)
    map_ = tile.encode_tensor_map(x, box=(8, 32))
    astray(map_, x, "nothing")
    with pytest.raises(
        tile.SimulationFault, match="expected an address of one's own CTA"
    ) as caught:
        astray(map_, x, what)
    assert caught.value.diagnostics[0].code == "sim/out-of-bounds"


@tile.jit
def anywhere(
    map_: T.Tensor((128,), "uint8", align=64), X, row: T.int32, column: T.int32, opcode: T.constexpr
):
    """A box of the map's tensor, which is X, where the caller says, without a check before the launch."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    s = T.alloc_shared((8, 32), "float32", layout="default", align=128)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    for i in range(256):
        s.view(256)[i] = T.float32(1)
    T.ptx["fence.proxy.async.shared::cta"]()
    if opcode.startswith("cp.async.bulk.prefetch"):
        T.ptx[opcode](map_.ptr_to([0]), (column, row))
    elif "complete_tx" in opcode:
        wait_for(mbar, 1024, 0)
        T.ptx[opcode](s.ptr_to([0, 0]), map_.ptr_to([0]), (column, row), mbar.ptr_to([0]))
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
    else:
        T.ptx[opcode](map_.ptr_to([0]), (column, row), s.ptr_to([0, 0]))
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


PREFETCH = "cp.async.bulk.prefetch.tensor.2d.L2.global.tile"
UNALIGNED = [(2, 5), (2, 1), (0, 37), (0, 39), (-3, 30), (0, -5)]
NEGATIVE = [(-1, 0), (-3, 32), (-8, 0), (-20, 0), (0, -4), (0, -8), (0, -32), (0, -64)]
"""Coordinates of a (12, 40) float32 tensor that were illegal instructions on an H200: all of those, and
for stores and reductions these."""


@pytest.mark.parametrize("at", [*UNALIGNED, *NEGATIVE], ids=str)
@pytest.mark.parametrize("opcode", [load(2), PREFETCH, store(2), store(2, ".add")])
def test_illegal_coordinates_at_run_time_are_a_fault(opcode: str, at: tuple[int, int]) -> None:
    x = torch.zeros(12, 40)
    map_ = tile.encode_tensor_map(x, box=(8, 32))
    if at in NEGATIVE and opcode in (load(2), PREFETCH):
        anywhere(map_, x, *at, opcode)
        return
    with pytest.raises(tile.SimulationFault) as caught:
        anywhere(map_, x, *at, opcode)
    assert "sim/coordinates" in caught.value.codes
    assert str(at) in str(caught.value)
    assert not x.any()  # nothing moved


def test_an_unknown_format_asks_nothing_of_a_prefetch() -> None:
    @tile.jit
    def k(map_: T.Tensor((128,), "uint8", align=64), column: T.int32, format_: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
        T.cuda.tile.apply(
            T.ptx[PREFETCH], map_.ptr_to([0]), box=(8, 32), coords=(0, column), format=format_
        )

    map_ = tile.encode_tensor_map(torch.zeros(12, 40), box=(8, 32))
    k.check(map_, 0, None)
    with pytest.raises(tile.ContractError, match="expected a multiple of 4 float32 elements"):
        k.check(map_, 0, "float32")


# --- the nearest illegal values

SHARED = nodes.PointerType("shared")
X = buffer("X", (16, 64), "float16", space="global")
S = buffer("S", (8, 64), "float16", "shared", "swizzle(3,3,3) o (8,64)", align=1024)
M = buffer("M", (2,), "uint64", "shared", align=8)
LEGAL: dict[str, Any] = {
    "shared": whole(S), "tensor": whole(X), "box": (8, 64), "coords": (0, 0), "swizzle": 3,
    "mbar": nodes.Address(M, i32(0), SHARED),
}  # fmt: skip


def expression(value: Any) -> nodes.Expr:
    if isinstance(value, tuple) and any(isinstance(v, nodes.Expr) for v in value):
        return nodes.Tuple(tuple(i32(v) if isinstance(v, int) else v for v in value))
    if isinstance(value, tuple):
        return nodes.Static(value)
    if isinstance(value, str):
        return nodes.Text(value)
    return i32(value) if isinstance(value, int) else value


def kernel_of(
    opcode: str = load(2),
    *,
    order: tuple[str, ...] = ("shared", "tensor"),
    launch: dict[str, Any] | None = None,
    **changes: Any,
) -> nodes.Function:
    """One legal load but for ``changes``; None leaves a keyword out."""
    given = {**LEGAL, **changes}
    operands = [given[name] for name in order]
    keywords = {
        name: expression(value)
        for name, value in given.items()
        if name not in ("shared", "tensor") and value is not None
    }
    buffers = {o.view.buffer if isinstance(o, nodes.Region) else o.buffer
               for o in operands if isinstance(o, nodes.View | nodes.Region)}  # fmt: skip
    shared = [b for b in (*buffers, M) if b.type.space == "shared"]
    params = tuple(sorted((b for b in buffers if b.type.space == "global"), key=lambda b: b.name))
    sizes = tuple({d for b in params for d in b.type.shape if isinstance(d, nodes.Var)})
    options = {"block": (1,), "params": (*params, *sizes), **(launch or {})}
    return kit.kernel(
        *(nodes.AllocTensor(b) for b in dict.fromkeys(shared)),
        apply(opcode, *operands, **keywords),
        **options,
    )


def test_the_legal_call_is_legal() -> None:
    assert codes(kernel_of()) == []
    (issue,) = issues(kernel_of())
    assert issue.form.spelling == load(2)
    box = issue.operands[1]
    assert isinstance(box, TensorBox)
    assert box.map.box == (64, 8)  # type: ignore[union-attr]


def shared(
    shape: tuple[int, ...], notation: str = "default", dtype: str = "float16", align: int = 1024
) -> Any:
    return whole(buffer("S", shape, dtype, "shared", notation, align=align))


def global_(
    shape: tuple[int, ...], notation: str = "default", dtype: str = "float16", align: int = 16
) -> Any:
    return whole(buffer("X", shape, dtype, "global", notation, align=align))


def named(what: str) -> str:
    return f"cp_async_bulk_tensor/{what}"


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no box": ({"box": None}, "missing-keyword", "box"),
    "no coordinates": ({"coords": None}, "missing-keyword", "coords"),
    "box of another rank": ({"box": (64,)}, "box", "2 integers"),
    "box beyond 256": ({"box": (257, 64), "shared": shared((257, 64), "swizzle(3,3,3) o (257,64)")}, "box", "1 to 256"),
    "box of nothing": ({"box": (0, 64)}, "box", "1 to 256"),
    "row that is no 16 bytes": ({"box": (8, 60), "swizzle": 0, "shared": shared((8, 60))}, "box", "120 bytes"),
    "row longer than the swizzle": ({"box": (8, 128), "shared": shared((8, 128), "swizzle(3,3,3) o (8,128)")}, "box", "at most 128 bytes"),
    "row longer than swizzle 1": ({"box": (8, 32), "swizzle": 1, "shared": shared((8, 32), "swizzle(3,1,3) o (8,32)")}, "box", "at most 32 bytes"),
    "coordinates of another rank": ({"coords": (0,)}, "coords", "expected 2"),
    "a coordinate that is no integer": ({"coords": (i32(0), nodes.Const(0.5, nodes.FLOAT32))}, "coords", "coords is (0, 0.5), expected 2 integers"),
    "coordinates that are no tuple": ({"coords": i32(0)}, "coords", "coords is 0, expected 2 integers"),
    "a coordinate beyond int32": ({"coords": (nodes.Const(2**31, nodes.INT64), i32(0))}, "coords", "int32"),
    "sampled beyond 8": ({"element_strides": (9, 1), "shared": shared((1, 64), "swizzle(3,3,3) o (1,64)")}, "element-strides", "1 to 8"),
    "innermost sampled": ({"element_strides": (1, 2), "shared": shared((8, 32), "swizzle(3,3,3) o (8,32)")}, "element-strides", "innermost"),
    "swizzle 4": ({"swizzle": 4}, "swizzle", "0 to 3"),
    "interleave 3": ({"interleave": 3}, "interleave", "0 to 2"),
    "interleave of rank 2": ({"interleave": 1, "swizzle": 0, "tensor": global_((2, 16, 8)), "box": (1, 8), "shared": shared((1, 1, 8))}, "interleave", "rank 3"),
    "l2 promotion 4": ({"l2_promotion": 4}, "l2-promotion", "0 to 3"),
    "fill 2": ({"oob_fill": 2}, "oob-fill", "0 to 1"),
    "NaN in integers": ({"oob_fill": 1, "tensor": global_((16, 64), dtype="uint16"), "shared": shared((8, 64), "swizzle(3,3,3) o (8,64)", "uint16")}, "oob-fill", "NaN"),
    "a format of other elements": ({"format": "tf32"}, "format", "float16"),
    "shared elements of another type": ({"shared": shared((8, 64), "swizzle(3,3,3) o (8,64)", "bfloat16")}, "operand-type", "float16"),
    "a tensor of another rank": ({"tensor": global_((2, 8, 64))}, "rank", "3 dimensions"),
    "an unaligned row": ({"tensor": global_((16, 60))}, "stride", "120 bytes"),
    "a strided innermost dimension": ({"tensor": global_((16, 64), "(16,64):(128,2)")}, "stride", "expected 1"),
    "a base of 8 bytes": ({"tensor": global_((16, 64), align=8)}, "base", "8 bytes"),
    "a region off 16 bytes": ({"tensor": region(whole(X), (0, 4), (16, 60))}, "base", "8 bytes into X"),
    "a region that the device places": ({"tensor": region(whole(X), (hw("ctaid.x"), 0), (8, 64))}, "base", "coords="),
    "no barrier": ({"mbar": None}, "mbar", "needs mbar"),
    "a barrier that is no address": ({"mbar": 7}, "mbar", "shared address"),
    "a mask without multicast": ({"cta_mask": 1}, "cta-mask", "has no cta_mask"),
    "rows without gather": ({"gather4": (0, 1, 2, 3)}, "gather4", "has no gather4"),
    "a policy without hint": ({"cache_policy": nodes.Const(0, nodes.UINT64)}, "cache-policy", "no cache-policy"),
    "steps without repeats": ({"coord_steps": ((8, 0),)}, "coord-steps", "0 rows"),
    "steps out of int32": ({"coord_steps": ((2**31, 0),), "shared": shared((2, 8, 64), "swizzle(3,3,3) o (2,8,64)")}, "coord-steps", "2147483648 elements"),
    "steps that add up beyond int32": ({"coord_steps": ((2**30, 0),), "shared": shared((3, 8, 64), "swizzle(3,3,3) o (3,8,64)")}, "coord-steps", "2147483648 elements"),
    "a nameless format": ({"format": ""}, "format", "format '' is none"),
    "repeats without steps": ({"shared": shared((2, 8, 64), "swizzle(3,3,3) o (2,8,64)")}, "coord-steps", "1 rows of 2"),
    "an image without its swizzle": ({"shared": shared((8, 64))}, "image", "swizzle 0: it is one"),
    "an image of another swizzle": ({"shared": shared((8, 64), "swizzle(3,2,3) o (8,64)")}, "image", "repeat (), element"),
    "an unaligned column": ({"coords": (0, 3), "box": (32, 8), "swizzle": 0, "shared": shared((32, 8))}, "coordinates", "coords[1] is 3, 6 bytes off, expected a multiple of 8 float16 elements, 16 bytes"),
    "an unaligned negative column": ({"coords": (0, -5)}, "coordinates", "coords[1] is -5, 6 bytes off"),
    "a column that the device gives": ({"coords": (0, hw("ctaid.x"))}, "coordinates", "only known to be a multiple of 1"),
    "an unaligned step": ({"shared": shared((2, 8, 64), "swizzle(3,3,3) o (2,8,64)"), "coord_steps": ((0, 4),)}, "coordinates", "coords[1] + 4 is 4"),
    "a barrier of 4 bytes": ({"mbar": nodes.Address(M, i32(4), SHARED)}, "mbar-alignment", "4 bytes above a multiple of 8"),
    "rows of 16 bytes without gaps": ({"box": (32, 8), "swizzle": 1, "shared": shared((32, 8), "swizzle(3,1,3) o (32,8)")}, "image", "expected 32: rows of 16 bytes lie 32 bytes apart with swizzle 1"),
    "rows of 32 bytes without gaps": ({"box": (32, 16), "shared": shared((32, 16), "swizzle(3,3,3) o (32,16)")}, "image", "rows of 32 bytes lie 128 bytes apart with swizzle 3"),
    "rows too far apart": ({"box": (32, 8), "swizzle": 1, "shared": shared((32, 8), "swizzle(3,1,3) o (32,8):(32,1)")}, "image", "64 bytes from the box's first element, expected 32"),
    "an image whose rows lie apart": ({"shared": shared((8, 64), "swizzle(3,3,3) o (8,64):(128,1)")}, "image", "256 bytes"),
    "columns before rows": ({"shared": shared((8, 64), "(8,64):(1,8)"), "swizzle": 0}, "image", "16 bytes"),
    "a swizzled tile off its period": ({"shared": shared((8, 64), "swizzle(3,3,3) o (8,64)", align=512)}, "alignment", "1024"),
    "an origin of 64 bytes": ({"shared": shared((8, 64), align=64), "swizzle": 0}, "alignment", "128"),
}  # fmt: skip


def interleaved(
    notation: str = "default", slices: int = 8, mode: int = 1, align: int = 32
) -> dict[str, Any]:
    """A rank-3 call on (N, C slices, W, channels) float16."""
    elements = 8 * mode
    return {
        "opcode": load(3),
        "tensor": global_((2, 4, 16, slices), notation, align=align), "box": (1, 1, 8), "coords": (0, 0, 0),
        "swizzle": mode - 1, "interleave": mode,
        "shared": shared((1, 1, 8, elements), "default" if mode == 1 else "swizzle(3,1,3) o (1,1,8,16)"),
    }  # fmt: skip


POINTER = nodes.Address(
    buffer("maps", (128,), "uint8", "global", align=64), i32(0), nodes.PointerType("global")
)
MORE_REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a box that is no tuple": ({"box": 8}, "box", "box is 8, expected 2 integers"),
    "strides of another rank": ({"element_strides": (1,)}, "element-strides", "2 integers"),
    "steps that are no rows": ({"coord_steps": (8,), "shared": shared((2, 8, 64), "swizzle(3,3,3) o (2,8,64)")}, "coord-steps", "1 rows of 2"),
    "a dimension of two strides": ({"tensor": global_((16, 64), "(4,4,64):(1024,64,1)")}, "strides", "dimension 0 of tensor has more than one stride"),
    "a swizzled tensor": ({"tensor": global_((16, 64), "swizzle(3,3,3) o (16,64)")}, "strides", "swizzled or replicated"),
    "a transposed tensor": ({"tensor": global_((16, 64), "(16,64):(1,16)")}, "stride", "innermost stride of tensor is 16 elements"),
    "a missing policy": ({"opcode": load(2, tail=".L2::cache_hint")}, "cache-policy", "needs cache_policy"),
    "a tensor in registers": ({"tensor": whole(buffer("r", (8, 64), "float16"))}, "space", "expected global"),
    "an image in registers": ({"shared": whole(buffer("r", (8, 64), "float16"))}, "space", "expected shared"),
    "a map at a shared address": ({"tensor": nodes.Address(M, i32(0), SHARED)}, "map", "encoded tensor map"),
    "a number for the image": ({"shared": i32(3)}, "tensor-operand", "must be a tensor"),
    "origins 64 bytes apart": ({"swizzle": 0, "box": (1, 32), "shared": shared((2, 1, 32)), "coord_steps": ((1, 0),)}, "alignment", "64 bytes above a multiple of 128"),
    "the second row of swizzle 1": ({"swizzle": 1, "box": (4, 16), "shared": region(shared((8, 16), "swizzle(3,1,3) o (8,16)"), (1, 0), (4, 16))}, "alignment", "32 bytes above a multiple of 128"),
    "a tile of swizzle 1 off its period": ({"swizzle": 1, "box": (8, 16), "shared": shared((8, 16), "swizzle(3,1,3) o (8,16)", align=128)}, "alignment", "256"),
    "a tile of swizzle 2 off its period": ({"swizzle": 2, "box": (8, 32), "shared": shared((8, 32), "swizzle(3,2,3) o (8,32)", align=256)}, "alignment", "512"),
    "an image with replicas": ({"swizzle": 0, "shared": shared((8, 64), "(8,64):(64,1) + R[2:512]")}, "image", "replicated"),
    "slices of another width": (interleaved(slices=16), "interleave", "expected one slice of 16 bytes"),
    "slices apart": (interleaved("(2,4,16,8):(1024,256,16,1)"), "stride", "innermost spatial stride of tensor is 16 elements, expected 8 elements: one slice"),
    "interleave 2 without swizzle 1": ({**interleaved(slices=16, mode=2), "swizzle": 0, "shared": shared((1, 1, 8, 16))}, "swizzle", "interleave 2 needs swizzle 1"),
    "interleave 2 from 16 bytes on": (interleaved(slices=16, mode=2, align=16), "base", "32-byte aligned start"),
    "interleaved without the axis of channels": ({**interleaved(), "tensor": global_((2, 4, 16))}, "rank", "channels of a slice"),
    "a long row through a map of one's own": ({"tensor": POINTER, "swizzle": 1, "box": (8, 64), "launch": {"params": (POINTER.buffer,)}}, "box", "at most 32 bytes"),
}  # fmt: skip
"""More of them: each is one step from a call that ``test_the_nearest_legal_values_are_legal`` has, or from
``interleaved``."""
REFUSED.update(MORE_REFUSED)


@pytest.mark.parametrize("mode", [1, 2])
def test_interleaved_calls_are_legal(mode: int) -> None:
    f = kernel_of(**interleaved(slices=8 * mode, mode=mode))
    assert codes(f) == [], text(f)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    changes, what, shown = REFUSED[name]
    function = kernel_of(**changes)
    assert named(what) in codes(function), text(function)
    assert shown in text(function)


@pytest.mark.parametrize("swizzle", [0, 3])
@pytest.mark.parametrize("at", [*UNALIGNED, *NEGATIVE], ids=str)
def test_illegal_coordinates_are_refused(at: tuple[int, int], swizzle: int) -> None:
    layout = f"swizzle(2,{swizzle},3) o (8,32)" if swizzle else "default"
    boxes = {
        "tensor": global_((12, 40), dtype="float32"), "box": (8, 32), "coords": at, "swizzle": swizzle,
        "shared": shared((8, 32), layout, "float32"),
    }  # fmt: skip
    loaded_ = codes(kernel_of(**boxes))
    assert loaded_ == ([] if at in NEGATIVE else [named("coordinates")])
    for opcode in (store(2), store(2, ".add")):
        function = kernel_of(opcode, order=("tensor", "shared"), **{**boxes, "mbar": None})
        assert codes(function) == [named("coordinates")]
        off = f"coords[1] is {at[1]}, {at[1] % 4 * 4} bytes off"
        shown = f"is {min(at)}, expected 0 or more" if at[0] < 0 or at in NEGATIVE else off
        assert shown in text(function)


@tile.jit
def put(X, row: T.int32, column: T.int32, c: T.constexpr):
    """Stores each lane's row of a tile; ``c`` says what is known of where."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    s = T.alloc_shared((32, 1, 32), "float32", layout="default", align=128)
    if "row" in c:
        T.assume(0 <= row < 1 << 20)
    if "column" in c:
        T.assume(0 <= column < 1 << 20)
    if "multiple" in c:
        T.assume(column % 4 == 0)
    step = -1 if "up" in c else 1
    T.cuda.tile.apply(T.ptx[store(2)], X, s, box=(1, 32), coords=(row, column), coord_steps=((step, 0),),
                      scope="warp")  # fmt: skip


@pytest.mark.parametrize(
    ("known", "message"),
    [
        (("row", "column", "multiple"), None),
        (("row", "column"), "coords[1] is column, only known to be a multiple of 1, expected a multiple of 4"),
        (("row", "multiple"), "could not prove coords[1] ≥ 0: it is column, ranging -2147483648"),
        (("column", "multiple"), "could not prove coords[0] ≥ 0: it is"),
        (("row", "column", "multiple", "up"), "could not prove coords[0] ≥ 0"),
    ],
)  # fmt: skip
def test_what_must_be_known_of_a_store(known: tuple[str, ...], message: str | None) -> None:
    x = torch.zeros(64, 64)
    if message is None:
        put.check(x, 0, 0, known)
        return
    with pytest.raises(tile.ContractError) as caught:
        put.check(x, 0, 0, known)
    assert caught.value.codes == (named("coordinates"),)
    assert message in str(caught.value)
    assert "T.assume(x" in str(caught.value)


def test_the_lane_whose_box_is_illegal_is_named() -> None:
    @tile.jit
    def k(X: T.Tensor((64, 64), "float32"), steps: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        s = T.alloc_shared((32, 1, 32), "float32", layout="default", align=128)
        T.cuda.tile.apply(T.ptx[store(2)], X, s, box=(1, 32), coords=(8, 0), coord_steps=(steps,),
                          scope="warp")  # fmt: skip

    x = torch.zeros(64, 64)
    k.check(x, (1, 4))
    with pytest.raises(
        tile.ContractError, match=r"coords\[0\] is -1, expected 0 or more(?s:.*)lane 9"
    ):
        k.check(x, (-1, 0))
    with pytest.raises(tile.ContractError, match=r"coords\[1\] is 2, 8 bytes off(?s:.*)lane 1\)"):
        k.check(x, (1, 2))


def test_the_nearest_legal_values_are_legal() -> None:
    for changes in (
        {"box": (256, 64), "shared": shared((256, 64), "swizzle(3,3,3) o (256,64)")},
        {"box": (8, 16), "swizzle": 1, "shared": shared((8, 16), "swizzle(3,1,3) o (8,16)", align=256)},
        {"element_strides": (8, 1), "shared": shared((1, 64), "swizzle(3,3,3) o (1,64)")},
        {"tensor": region(whole(X), (0, 8), (16, 56))},
        {"shared": shared((8, 64), align=128), "swizzle": 0},
        {"oob_fill": 1},
        {"coords": (-7, -8)},
        {"coords": (0, nodes.Binary("mul", hw("ctaid.x"), i32(8), nodes.INT32))},
        {"box": (32, 8), "swizzle": 1, "shared": shared((32, 8), "swizzle(3,1,3) o (32,8):(16,1)")},
        {"box": (32, 16), "shared": shared((32, 16), "swizzle(3,3,3) o (32,16):(64,1)")},
        {"box": (1, 8), "shared": shared((1, 8), "swizzle(3,3,3) o (1,8)")},  # one row has no next
        {"shared": shared((1, 64), align=1024), "box": (1, 64)},  # one row has phase 0
    ):  # fmt: skip
        function = kernel_of(**changes)
        assert codes(function) == [], text(function)


def test_a_row_without_a_swizzle_of_its_own_has_phase_0() -> None:
    """One plain row is the image of a swizzled box where a swizzle period begins, and nowhere else."""
    stage = hw("ctaid.x")  # 0 to 3
    rows, stages = shared((8, 64)), shared((4, 8, 64))
    assert codes(kernel_of(shared=region(rows, (0, 0), (1, 64)), box=(1, 64))) == []
    assert codes(kernel_of(shared=region(rows, (1, 0), (1, 64)), box=(1, 64))) == [named("image")]
    f = kernel_of(shared=region(rows, (stage, 0), (1, 64)), box=(1, 64))
    assert codes(f) == [named("image")]
    assert "its offset is not known to be whole swizzle periods" in text(f)
    staged = region(stages, (stage, 0, 0), (1, 1, 64))
    assert codes(kernel_of(shared=staged, box=(1, 64), coord_steps=((0, 0),))) == []


def test_every_field_reaches_the_map() -> None:
    given = {"box": (6, 4, 16), "coords": (0, 0, 0), "element_strides": (3, 2, 1), "swizzle": 2,
             "l2_promotion": 3, "oob_fill": 1, "tensor": global_((8, 12, 64)),
             "shared": shared((2, 2, 16), "swizzle(3,2,3) o (2,2,16):(64,32,1)")}  # fmt: skip
    (issue,) = issues(kernel_of(load(3), **given))
    box = issue.operands[1]
    assert isinstance(box, TensorBox)
    assert box.map == tensor_map.TensorMapSpec(
        "X", 0, "float16", (64, 12, 8), (128, 1536), (16, 4, 6), (1, 2, 3), 0, 2, 3, 1
    )


def test_a_barrier_of_another_cta_is_a_cluster_address() -> None:
    far = nodes.Call("cuda.map_shared_rank", (LEGAL["mbar"], i32(0)), nodes.UINT32)
    assert codes(kernel_of(load(2, "shared::cluster"), mbar=far)) == []


def test_a_copy_of_pairs_needs_clusters_of_pairs() -> None:
    far = load(2, "shared::cluster", tail=PAIR)
    launches = {(): 1, (1,): 1, (2,): 0, (3,): 1, (4,): 0}
    for cluster, faults in launches.items():
        launch = {"cluster": cluster, "grid": (12,), "target": "sm_100a", "params": (X,)}
        found = codes(kernel_of(far, launch=launch))
        assert found == [named("cta-pair")] * faults, cluster
    one = {"cluster": (), "grid": (12,), "target": "sm_100a", "params": (X,)}
    assert codes(kernel_of(load(2, "shared::cluster", tail=".cta_group::1"), launch=one)) == []


def test_a_prefetch_names_a_format_or_none() -> None:
    def prefetch(format_: str | None) -> list[str]:
        return codes(kernel_of(PREFETCH, order=("tensor",), tensor=POINTER, mbar=None, swizzle=0, format=format_,
                               launch={"params": (POINTER.buffer,)}))  # fmt: skip

    assert prefetch(None) == prefetch("tf32") == []
    assert prefetch("float16x") == [named("format")]


def test_operands_the_wrong_way_round() -> None:
    assert codes(kernel_of(order=("tensor", "shared"))) == [named("direction")]
    swapped = kernel_of(store(2), order=("shared", "tensor"), mbar=None)
    assert codes(swapped) == [named("direction")]
    assert codes(kernel_of(store(2), order=("tensor", "shared"), mbar=None)) == []
    assert codes(kernel_of(store(2), order=("tensor", "shared"))) == [named("mbar")]
    assert codes(kernel_of(order=("shared",))) == [named("operand-count")]


def test_multicasts_need_a_mask_of_16_bits() -> None:
    far = load(2, "shared::cluster", tail=".multicast::cluster")
    cluster = {"launch": {"cluster": (2,), "grid": (4,), "block": (1,)}}
    cluster["launch"]["params"] = (X,)
    assert codes(kernel_of(far, **cluster)) == [named("cta-mask")]
    assert codes(kernel_of(far, cta_mask=3, **cluster)) == []
    assert codes(kernel_of(far, cta_mask=4, **cluster)) == [named("cta-mask")]
    assert codes(kernel_of(far, cta_mask=0, **cluster)) == [named("cta-mask")]


@pytest.mark.parametrize("operation", REDUCTIONS)
def test_reductions_have_their_types(operation: str) -> None:
    for dtype in (
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "uint8",
    ):
        function = kernel_of(
            store(2, f".{operation}"), order=("tensor", "shared"), mbar=None, swizzle=0, box=(8, 16),
            tensor=global_((16, 64), dtype=dtype), shared=shared((8, 16), dtype=dtype),
        )  # fmt: skip
        legal = dtype in family.REDUCTIONS[operation]
        assert codes(function) == ([] if legal else [named("format")]), dtype


def test_gathers_take_boxes_of_one_row() -> None:
    on = {"launch": {"target": "sm_100a", "block": (1,), "params": (X,)}}
    four = {
        "gather4": (0, 5, 2, 9),
        "box": (1, 64),
        "shared": shared((4, 64), "swizzle(3,3,3) o (4,64)"),
    }
    gather = load(2, mode=".tile::gather4")
    assert codes(kernel_of(gather, **four, **on)) == []
    assert codes(kernel_of(gather, **{**four, "box": (4, 64)}, **on)) == [named("box")]
    assert codes(kernel_of(gather, **{**four, "gather4": (0, 1, 2)}, **on)) == [named("gather4")]
    assert codes(kernel_of(gather, **{**four, "gather4": None}, **on)) == [named("gather4")]
    assert codes(kernel_of(gather, **four)) == ["target/unsupported"]
    assert codes(kernel_of(gather, **{**four, "coords": (3, 8)}, **on)) == []  # rows are gather4's
    assert codes(kernel_of(gather, **{**four, "coords": (0, 3)}, **on)) == [named("coordinates")]
    assert codes(kernel_of(gather, **{**four, "gather4": (0, -5, 2, 9)}, **on)) == []
    scatter = {"order": ("tensor", "shared"), "mbar": None}
    opcode = store(2, mode=".tile::scatter4")
    assert codes(kernel_of(opcode, **scatter, **four, **on)) == []
    stepped = {
        **four,
        "shared": shared((2, 4, 64), "swizzle(3,3,3) o (2,4,64)"),
        "coord_steps": ((4, 0),),
    }
    assert codes(kernel_of(gather, **stepped, **on)) == [named("coord-steps")]
    assert codes(kernel_of(gather, interleave=1, **four, **on)) == [named("box")]
    four["gather4"] = (0, -5, 2, 9)
    function = kernel_of(opcode, **scatter, **four, **on)
    assert codes(function) == [named("coordinates")]
    assert "gather4[1] is -5" in text(function)


def test_float4_is_loaded_only_in_rows_of_128() -> None:
    tensor = whole(buffer("X", (16, 256), "float4_e2m1fn", "global", align=32))
    good: dict[str, Any] = {
        "tensor": tensor,
        "box": (8, 128),
        "swizzle": 0,
        "shared": shared((8, 128), dtype="uint8"),
    }
    assert codes(kernel_of(**good)) == []
    assert codes(
        kernel_of(**{**good, "box": (8, 64), "shared": shared((8, 64), dtype="uint8")})
    ) == [named("box")]
    assert named("swizzle") in codes(kernel_of(**{**good, "swizzle": 1}))
    assert named("format") in codes(
        kernel_of(store(2), order=("tensor", "shared"), **{**good, "mbar": None})
    )
    short = whole(buffer("X", (16, 192), "float4_e2m1fn", "global", align=32))
    assert codes(kernel_of(**{**good, "tensor": short})) == [named("extent")]
    low = whole(buffer("X", (16, 256), "float4_e2m1fn", "global", align=16))
    assert codes(kernel_of(**{**good, "tensor": low})) == [named("base")]


@pytest.mark.parametrize(
    ("start", "pitch", "code"),
    [(0, 512, None), (64, 512, None), (1, 512, "strides"), (65, 512, "strides"), (32, 512, "base"),
     (0, 513, "strides"), (0, 520, "stride"), (0, 576, None)],
)  # fmt: skip
def test_float4_tensors_start_and_go_on_at_whole_bytes(
    start: int, pitch: int, code: str | None
) -> None:
    """Two elements share a byte: what starts at the second of them is not what starts at the first."""
    full = whole(
        buffer("X", (16, 512), "float4_e2m1fn", "global", f"(16,512):({pitch},1)", align=32)
    )
    f = kernel_of(tensor=region(full, (0, start), (16, 256)), box=(8, 128), swizzle=0,
                  shared=shared((8, 128), dtype="uint8"))  # fmt: skip
    assert codes(f) == ([] if code is None else [named(code)]), text(f)


def test_a_read_only_tensor_is_not_stored_to() -> None:
    broadcast = global_((16, 64), "(16,64):(0,1)")
    assert codes(kernel_of(tensor=broadcast)) == []
    assert codes(kernel_of(store(2), order=("tensor", "shared"), mbar=None, tensor=broadcast)) == [
        "tile/read-only"
    ]


def test_the_launch_checks_what_only_it_knows() -> None:
    @tile.jit
    def k(A: T.Tensor((T.dynamic("m"), T.dynamic("n")), "float32", align=16)):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        s = T.alloc_shared((8, 32), "float32", layout="default", align=128)
        if T.cuda.thread_idx("x") == 0:
            T.cuda.tile.apply(T.ptx[store(2)], A, s, box=(8, 32), coords=(0, 0))

    with pytest.raises(LaunchError, match="the stride of dimension 0 is 392 bytes"):
        k(torch.zeros(16, 98))


# --- the text that is emitted


def statements(variant: Any) -> list[str]:
    return re.findall(
        r'asm volatile\("(?:\{[^"]*?)?(?:@\w+ )?((?:cp|prefetch)\.[^"]*?);', variant.cuda
    )


@pytest.mark.parametrize("rank", range(1, 6))
def test_exact_spelling_and_one_instruction_per_repeat(rank: int) -> None:
    box = (1,) * (rank - 1) + (32,)

    @tile.jit
    def k(A, r: T.constexpr, box: T.constexpr, steps: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32))
        s = T.alloc_shared((3, *box), "float32", layout="default", align=128)
        mbar = T.alloc_shared((1,), "uint64", align=8)
        at = T.cuda.block_idx("x") * 4
        if T.cuda.thread_idx("x") == 0:
            for space in ("shared::cta", "shared::cluster"):
                T.cuda.tile.apply(T.ptx[load(r, space)], s, A, box=box, coords=(*box[1:], at),
                                  coord_steps=(steps,), mbar=mbar.ptr_to([0]))  # fmt: skip
            T.cuda.tile.apply(T.ptx[store(r, ".add")], A, s, box=box, coords=(*box[1:], at),
                              coord_steps=(steps,))  # fmt: skip
            T.cuda.tile.apply(T.ptx[f"cp.async.bulk.prefetch.tensor.{r}d.L2.global"], A, box=box,
                              coords=(*box[1:], at))  # fmt: skip

    variant = k.compile(
        torch.zeros((2,) * (rank - 1) + (64,)), rank, box, (0,) * (rank - 1) + (32,)
    )
    found = [s.split(" ")[0] for s in statements(variant)]
    expected = [load(rank)] * 3 + [load(rank, "shared::cluster")] * 3 + [store(rank, ".add")] * 3
    assert found == [*expected, f"cp.async.bulk.prefetch.tensor.{rank}d.L2.global"]
    assert len(variant.artifact.tensor_maps) == 1  # one tensor, one box: one map


@tile.jit
def several(A, B, c: T.constexpr):
    """Maps of two tensors, of one tensor with two boxes, and twice the same."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=4, block=32))
    s = T.alloc_shared((4, 8, 32), "float32", layout="swizzle(2,3,3) o (4,8,32)", align=1024)
    mbar = T.alloc_shared((1,), "uint64", align=8)
    if T.cuda.thread_idx("x") == 0:
        for i in range(c):
            for tensor in (A, B, A):
                T.cuda.tile.apply(T.ptx[load(2)], s.sub[i % 4, :, :], tensor, box=(8, 32), swizzle=3,
                                  coords=(T.cuda.block_idx("x"), i * 32), mbar=mbar.ptr_to([0]))  # fmt: skip
        T.cuda.tile.apply(T.ptx[load(2)], s.sub[0, 0:4, :], A,
                          box=(4, 32), swizzle=3, coords=(0, 0), mbar=mbar.ptr_to([0]))  # fmt: skip


def test_equal_maps_are_one_parameter() -> None:
    a = torch.zeros(64, 256)
    variant = several.compile(a, a.clone(), 8)
    maps = variant.artifact.tensor_maps
    assert [(m.buffer, m.box) for m in maps] == [("A", (32, 8)), ("B", (32, 8)), ("A", (32, 4))]
    assert variant.cuda.count("const __grid_constant__ tj_tensor_map") == 3
    assert variant.ptx.count(".param .align 64 .b8") == 3
    assert len(statements(variant)) == 4


def test_a_stage_costs_one_addition() -> None:
    """The unswizzled origin of a stage is the base and a multiple of the stage: no swizzle arithmetic."""
    source = several.compile(torch.zeros(64, 256), torch.zeros(64, 256), 8).cuda
    (line,) = {l.strip() for l in source.splitlines() if "const u32 s_at0_" in l}
    assert re.fullmatch(r"const u32 s_at0_ = \(tj_smem32 \+ \(u32\)\(.* \* 1024\)\);", line), line
    assert "^" not in source


def test_maps_survive_the_disk_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    x = torch.zeros(16, 100)
    first = moved.compile(x, x, 0, 3, fresh=True)
    again = moved.compile(x, x, 0, 3, fresh=True)
    assert again.origin == "from the disk cache"
    assert again.artifact.tensor_maps == first.artifact.tensor_maps
    (a, b) = again.artifact.tensor_maps
    assert (a.buffer, b.buffer) == ("X", "Y")
    assert not isinstance(a.dims[0], int)


def test_what_only_sm_100_has_assembles() -> None:
    """Also that the map says float4 elements, however the tensor does."""
    x, y = torch.zeros(7, 128, dtype=torch.uint8), torch.zeros(8, 64, dtype=torch.uint8)
    maps = [packed.compile(x, y, Packed(3, v)).artifact.tensor_maps for v in (True, False)]
    assert maps[0] == maps[1]
    assert (maps[0][0].format, maps[0][0].dims, maps[0][0].strides_bytes) == (
        "float4_e2m1fn",
        (256, 7),
        (128,),
    )
    z = torch.zeros(20, 72, dtype=torch.uint32)
    rows = torch.zeros(4, dtype=torch.int32)
    assert gathered.compile(z, torch.zeros(2, 4, 32, dtype=torch.uint32), z, rows, 12).cubin
    wide, y2 = torch.zeros(16, 32), torch.zeros(4, 8, 32)
    for target in ("sm_100a", "sm_103a"):
        far = load(2, "shared::cluster", tail=PAIR)
        assert paired.compile(wide, y2, 0, far, target=target).cubin
        many = load(2, "shared::cluster", tail=f".multicast::cluster{PAIR}")
        assert paired_multicast.compile(wide[:8], y2, 3, 1, many, target=target).cubin


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_120a"])
def test_it_assembles(target: str) -> None:
    a = torch.zeros(64, 256)
    assert several.compile(a, a.clone(), 8, target=target).cubin
    assert spelling.lookup(load(2))[0].min_target == "sm_90"


# --- the swizzle, against its own statement


@pytest.mark.parametrize("mode", [1, 2, 3])
def test_the_hardware_swizzle_is_the_layouts(mode: int) -> None:
    layout = parse(f"swizzle(4,{mode},3) o (4096)")
    at = np.arange(4096)
    assert np.array_equal(tensor_map.swizzled(at, mode), layout.positions((4096,))["m"])
