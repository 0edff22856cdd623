"""The contract of tcgen05.cp: what arrives in which lane and column, on the simulator and on a GPU that has
it; what is emitted and assembles; refusals at the nearest illegal value.

The oracle is numpy and the contract's formulas: the walk of a shared descriptor, the table of lanes, the
packing of 4- and 6-bit values. It imports nothing from the family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.families.case import Case
from tests.lib.blackwell import TARGETS, need_tcgen05
from tests.tile import kit
from tests.tile.kit import apply, buffer, codes, issues, region, text, whole
from tests.tile.test_descriptor import BASES, evaluate
from tilejit import T, dtypes, layout
from tilejit.errors import SimulationFault, TargetError
from tilejit.families import FAMILIES
from tilejit.ir import nodes, views
from tilejit.ptx.spelling import forms_of_family, lookup
from tilejit.tile.family import TensorOperation

# --- the oracle


@dataclass(frozen=True)
class Shape:
    """A row of the contract's table: extents of an atom, the lanes of row r in every copy."""

    opcode: str
    rows: int
    words: int

    def lane(self, row: int) -> list[int]:
        match self.opcode:
            case "4x256b":
                return [32 * row]
            case "64x128b.warpx2::02_13":
                return [row, row + 64]
            case "64x128b.warpx2::01_23":
                return [64 * (row // 32) + row % 32, 64 * (row // 32) + row % 32 + 32]
            case "32x128b.warpx4":
                return [row, row + 32, row + 64, row + 96]
            case _:
                return [row]

    @property
    def layout(self) -> str:
        """Of an atom in tensor memory, copies included."""
        rows, strides, copies = {
            "4x256b": ("4", "32@TLane", ""),
            "64x128b.warpx2::02_13": ("64", "1@TLane", " + R[2:64@TLane]"),
            "64x128b.warpx2::01_23": ("2,32", "64@TLane,1@TLane", " + R[2:32@TLane]"),
            "32x128b.warpx4": ("32", "1@TLane", " + R[4:32@TLane]"),
        }.get(self.opcode, (str(self.rows), "1@TLane", ""))
        return f"({rows},{self.words}):({strides},1@TCol){copies}"

    def repeated(self, repeats: int, pitch: int) -> str:
        """The layout of (repeats, rows, words), ``pitch`` columns from one to the next."""
        return re.sub(r"^\((.*)\):\(", rf"({repeats},\1):({pitch}@TCol,", self.layout)


SHAPES = [
    Shape("128x256b", 128, 8),
    Shape("128x128b", 128, 4),
    Shape("4x256b", 4, 8),
    Shape("64x128b.warpx2::02_13", 64, 4),
    Shape("64x128b.warpx2::01_23", 64, 4),
    Shape("32x128b.warpx4", 32, 4),
]
BY_NAME = {shape.opcode: shape for shape in SHAPES}
FORMATS = ("", ".b8x16.b4x16_p64", ".b8x16.b6x16_p32")


def source_bytes(shape: Shape, swizzle: int, leading: int, stride: int) -> np.ndarray:
    """Where in shared memory the words of an atom lie, after its start: the contract's walk."""
    r, w = np.arange(shape.rows)[:, None], np.arange(shape.words)
    start = r // 8 * stride + r % 8 * (16 << swizzle)
    return start + (w // 4 * leading + w % 4 * 4 if swizzle == 0 else 4 * w)


def swizzled(address: np.ndarray, swizzle: int) -> np.ndarray:
    return address ^ (address >> 7 & (1 << swizzle) - 1) << 4


def expanded(words: np.ndarray, source: str) -> np.ndarray:
    """Rows of words with packed values, as rows of words with a byte per value."""
    if not source:
        return words
    bits = 4 if source.endswith("p64") else 6
    blocks = np.ascontiguousarray(words).view(np.uint8).reshape(-1, 16)
    values = np.zeros((len(blocks), 16), np.uint8)
    for n, block in enumerate(blocks):
        packed = int.from_bytes(block.tobytes(), "little")
        for i in range(16):
            value = packed >> i * bits & (1 << bits) - 1
            values[n, i] = value << 2 if bits == 4 else value
    return values.view(np.uint32).reshape(words.shape)


# --- one kernel for every form

COLUMNS = 32
"""Columns of tensor memory that a case looks at."""
SHARED_WORDS = 8192


@tile.jit
def copy(X, Y, opcode: T.constexpr, pair: T.constexpr, plan: T.constexpr):
    """X (CTA, words) as it lies in shared memory; Y (CTA, lane, column), zeros where nothing was copied."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=128, cluster=plan.cluster))
    t, rank = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    slot = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default")
    words = T.alloc_shared((X.shape[1],), "uint32", layout="default", align=1024)
    for i in range(t, X.shape[1], 128):
        words[i] = X[rank, i]
    if plan.fenced:
        T.ptx["fence.proxy.async.shared::cta"]()
    if T.cuda.warp_id() == 0:
        T.ptx[f"tcgen05.alloc.{pair}.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), 32)
        T.ptx[f"tcgen05.relinquish_alloc_permit.{pair}.sync.aligned"]()
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    cells = T.cuda.decl_tmem(slot[0], (4, 32, COLUMNS), "uint32", layout=plan.slabs)
    found = T.alloc_local((4, 32, COLUMNS), "uint32", layout=plan.registers)
    mine = found.view(COLUMNS, layout="default")
    for i in T.unroll(COLUMNS):
        mine[i] = T.uint32(0)
    T.cuda.tile.apply(
        T.ptx["tcgen05.st.sync.aligned.32x32b.x32.b32"], cells, found, scope="warpgroup"
    )
    T.ptx["tcgen05.wait::st.sync.aligned"]()
    T.ptx["tcgen05.fence::before_thread_sync"]()
    synchronise(plan.cluster)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    if t == 0 and rank % plan.group == 0:
        D = T.cuda.decl_tmem(slot[0] + plan.shift, plan.d_shape, "uint32", layout=plan.d_layout)
        source = words.view(*plan.s_shape, layout=plan.s_layout)
        T.cuda.tile.apply(T.ptx[opcode], D, source)
        commit(done, pair, plan.group)
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x32.b32"], found, cells, scope="warpgroup"
    )
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for i in T.unroll(COLUMNS):
        Y[rank, t, i] = mine[i]
    T.ptx["tcgen05.fence::before_thread_sync"]()
    synchronise(plan.cluster)
    if T.cuda.warp_id() == 0:
        T.ptx[f"tcgen05.dealloc.{pair}.sync.aligned.b32"](slot[0], 32)


@tile.jit
def synchronise(cluster: T.constexpr):
    if cluster is None:
        T.cuda.cta_sync()
    else:
        T.cuda.cluster_sync()


@tile.jit
def commit(done, pair: T.constexpr, group: T.constexpr):
    """Arrives in both CTAs of a pair."""
    if group == 1:
        T.ptx[f"tcgen05.commit.{pair}.mbarrier::arrive::one.shared::cluster.b64"](done.ptr_to([0]))
    else:
        T.ptx[
            f"tcgen05.commit.{pair}.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        ](done.ptr_to([0]), T.uint16(3))


def plan_of(
    shape: Shape, swizzle: int, repeats: int, group: int, *, fenced: bool = True, shift: int = 0
) -> Case:
    """``shift``: columns by which the destination's address is too high. Repeats lie one after another in columns, in shared memory ``REPEAT_BYTES`` apart."""
    leading, stride = strides(shape, swizzle)
    shared = [f"{shape.rows}" if shape.rows < 8 else f"{shape.rows // 8},8", f"{shape.words}"]
    by_row = f"{4 << swizzle}" if shape.rows < 8 else f"{stride // 4},{4 << swizzle}"
    by_word = "1"
    if swizzle == 0 and shape.words > 4:
        shared[1], by_word = f"{shape.words // 4},4", f"{leading // 4},1"
    notation = (
        f"({repeats},{','.join(shared)}):({start_bytes(shape, swizzle) // 4},{by_row},{by_word})"
    )
    return Case(
        cluster=None if group == 1 else (group, 1, 1),
        group=group,
        fenced=fenced,
        shift=shift,
        slabs="(4,32,32):(32@TLane,1@TLane,1@TCol)",
        registers=T.cuda.tcgen05_ld_layout("32x32b", COLUMNS, warps=(4,)),
        d_shape=(repeats, shape.rows, shape.words),
        d_layout=shape.repeated(repeats, shape.words),
        s_shape=(repeats, shape.rows, shape.words),
        s_layout=f"swizzle(2,{swizzle},3) o {notation}" if swizzle else notation,
    )


def strides(shape: Shape, swizzle: int) -> tuple[int, int]:
    """LDO and SDO of a case. Without a swizzle there are gaps behind groups and chunks."""
    group = 8 * (16 << swizzle)
    stride = group if swizzle else group + 16
    return stride * max(1, shape.rows // 8) + 16, stride


def start_bytes(shape: Shape, swizzle: int) -> int:
    """From one repeat to the next: further along the rows while they are wide enough, else behind."""
    if (16 << swizzle) > 4 * shape.words:
        return 4 * shape.words
    leading, _ = strides(shape, swizzle)
    return -(-leading * (shape.words // 4) // 1024) * 1024


def run(device: str, opcode: str, shape: Shape, swizzle: int, repeats: int, group: int) -> None:
    source = opcode.partition(".b8x16")[2]
    plan = plan_of(shape, swizzle, repeats, group)
    rng = np.random.default_rng(11)
    x = rng.integers(0, 1 << 32, (group, SHARED_WORDS), np.uint32)
    expected = np.zeros((group, 128, COLUMNS), np.uint32)
    walk = source_bytes(shape, swizzle, *strides(shape, swizzle))
    for repeat in range(repeats):
        places = swizzled(walk + repeat * start_bytes(shape, swizzle), swizzle) // 4
        for cta in range(group):
            words = expanded(x[cta][places], source)
            for row in range(shape.rows):
                for lane in shape.lane(row):
                    first = repeat * shape.words
                    expected[cta, lane, first : first + shape.words] = words[row]
    y = torch.full((group, 128, COLUMNS), 7, dtype=torch.uint32, device=device)
    with tile.simulation(target="sm_100a"):
        copy(torch.from_numpy(x).to(device), y, opcode, f"cta_group::{group}", plan)
    assert np.array_equal(y.cpu().numpy(), expected)


def opcode_of(shape: Shape, group: int, source: str = "") -> str:
    return f"tcgen05.cp.cta_group::{group}.{shape.opcode}{source}"


# --- which spellings


def test_the_opcodes() -> None:
    wanted = {opcode_of(s, group, f) for s in SHAPES for group in (1, 2) for f in FORMATS}
    assert {form.spelling for form in forms_of_family("tcgen05_cp")} == wanted
    assert all(form.tile for form in forms_of_family("tcgen05_cp"))


# --- copies


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("swizzle", range(4))
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", BY_NAME)
def test_copies(device: str, name: str, group: int, swizzle: int, repeats: int) -> None:
    need_tcgen05(device)
    shape = BY_NAME[name]
    run(device, opcode_of(shape, group), shape, swizzle, repeats, group)


@pytest.mark.parametrize("source", FORMATS[1:])
@pytest.mark.parametrize("name", BY_NAME)
def test_packed_values_are_expanded(device: str, name: str, source: str) -> None:
    need_tcgen05(device)
    shape = BY_NAME[name]
    run(device, opcode_of(shape, 1, source), shape, 1, 1, 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("code", "mistake"),
    [("sim/proxy-fence", {"fenced": False}), ("sim/tmem-alignment", {"shift": 2})],
)
def test_mistakes_are_faults(code: str, mistake: dict[str, Any], seed: int) -> None:
    shape = BY_NAME["128x128b"]
    plan = plan_of(shape, 1, 1, 1, **mistake)
    x, y, _ = arguments(shape, 1, 1, 1)
    with (
        tile.simulation(target="sm_100a", seed=seed),
        pytest.raises(SimulationFault, match=re.escape(code)),
    ):
        copy(x, y, opcode_of(shape, 1), "cta_group::1", plan)


# --- what is emitted and assembles


def arguments(shape: Shape, swizzle: int, repeats: int, group: int) -> tuple[Any, ...]:
    x = torch.zeros((group, SHARED_WORDS), dtype=torch.uint32)
    y = torch.zeros((group, 128, COLUMNS), dtype=torch.uint32)
    return x, y, plan_of(shape, swizzle, repeats, group)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", BY_NAME)
def test_every_opcode_assembles(name: str, group: int, target: str) -> None:
    """With every swizzle, too."""
    shape = BY_NAME[name]
    for swizzle in range(4):
        opcode = opcode_of(shape, group, FORMATS[swizzle % len(FORMATS)])
        repeats = 1 + swizzle // 2
        x, y, plan = arguments(shape, swizzle, repeats, group)
        made = copy.compile(x, y, opcode, f"cta_group::{group}", plan, target=target)
        assert made.ptx.count(f"{opcode} [") == repeats


@tile.jit
def scale_factors(N, P: T.constexpr):
    """Bytes as the contract's page copies them, for all threads or where ``P`` says."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    laid = T.cuda.tcgen05_shared_layout((32, 16), "uint8", 0)
    scales = T.alloc_shared((32, 16), "uint8", layout=laid, align=128)
    layout_ = "(32,4):(1@TLane,1@TCol) + R[4:32@TLane]"
    dst = T.cuda.decl_tmem(T.uint32(N[0]), (32, 4), "uint32", layout=layout_)
    pred = N[1] > T.cuda.thread_idx("x") if P else None
    T.cuda.tile.apply(
        T.ptx["tcgen05.cp.cta_group::1.32x128b.warpx4"], dst, scales.view("uint32"), pred=pred
    )


@pytest.mark.parametrize("predicated", [False, True])
def test_bytes_and_predicates(predicated: bool) -> None:
    numbers = torch.zeros(2, dtype=torch.int32)
    made = scale_factors.compile(numbers, predicated, target="sm_100a")
    (line,) = [text for text in made.ptx.splitlines() if "tcgen05.cp" in text]
    guard = r"@%?\w+ " if predicated else r"\t"
    assert re.search(rf"{guard}tcgen05\.cp\.cta_group::1\.32x128b\.warpx4 \[%r\d+\], %rd\d+;", line)


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a"])
def test_other_targets_have_none(target: str) -> None:
    shape = BY_NAME["128x256b"]
    x, y, plan = arguments(shape, 1, 1, 1)
    with pytest.raises(TargetError, match="needs sm_100f"):
        copy.check(x, y, opcode_of(shape, 1), "cta_group::1", plan, target=target)


# --- steps


def shared(shape: Shape, swizzle: int, repeats: int = 1, align: int = 1024) -> nodes.View:
    flat = whole(buffer("s", (SHARED_WORDS,), "uint32", "shared", align=align))
    plan = plan_of(shape, swizzle, repeats, 1)
    return views.with_layout(flat, plan.s_shape, layout.parse(plan.s_layout))


def tmem(shape: tuple[int, ...], notation: str, dtype: str = "uint32") -> nodes.View:
    kind = nodes.TensorType(shape, dtypes.dtype(dtype), layout.parse(notation), "tmem", 4)
    return whole(nodes.Var("d", kind))


def cells(shape: Shape, repeats: int = 1, pitch: int | None = None) -> nodes.View:
    notation = shape.repeated(repeats, shape.words if pitch is None else pitch)
    return tmem((repeats, shape.rows, shape.words), notation)


def program(
    dst: Any, src: Any, name: str = "128x256b", group: int = 1, **options: Any
) -> nodes.Function:
    """A kernel that declares ``d`` at the address 0 and copies to it."""
    keywords = {k: options.pop(k) for k in ("scope", "pred") if k in options}
    cluster = options.pop("cluster", None if group == 1 else (2,))
    buffers = [o.view.buffer if isinstance(o, nodes.Region) else o.buffer for o in (dst, src)]
    declared = [
        nodes.DeclTmem(b, nodes.Const(0, nodes.UINT32)) for b in buffers if b.type.space == "tmem"
    ]
    return kit.kernel(
        *declared, apply(opcode_of(BY_NAME[name], group), dst, src, **keywords),
        target="sm_100a", cluster=cluster, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", BY_NAME)
def test_one_instruction_per_repeat(name: str) -> None:
    shape = BY_NAME[name]
    found = issues(program(cells(shape, 4, 8), shared(shape, 1, 4), name))
    assert [issue.repeat for issue in found] == [(0,), (1,), (2,), (3,)]
    assert [issue.operands[0].offset_bytes for issue in found] == [0, 8, 16, 24]
    assert {issue.form.spelling for issue in found} == {opcode_of(shape, 1)}


def test_the_predicate_is_the_instructions() -> None:
    shape = BY_NAME["128x256b"]
    flag = nodes.Binary("lt", nodes.HardwareId("tid"), kit.i32(1), nodes.BOOL)
    found = issues(program(cells(shape, 2), shared(shape, 0, 2), pred=flag))
    assert [issue.pred for issue in found] == [flag, flag]
    assert "tcgen05_cp/unknown-keyword" in codes(
        kit.kernel(
            nodes.DeclTmem(cells(shape).buffer, nodes.Const(0, nodes.UINT32)),
            apply(opcode_of(shape, 1), cells(shape), shared(shape, 0), accum=flag), target="sm_100a",
        )
    )  # fmt: skip


def test_lanes_and_columns_of_a_region() -> None:
    """Rows 5, 37, 69, 101 of a declared tile, from column 12 on."""
    tile_ = tmem((128, 64), "(128,64):(1@TLane,1@TCol)")
    part = views.permute(views.reshape(tile_, (4, 32, 64)), (1, 0, 2))
    dst = region(part, (5, 0, 12), (1, 4, 8))
    (found,) = issues(program(dst, shared(BY_NAME["4x256b"], 1), "4x256b"))
    assert found.operands[0].offset_bytes == 5 << 16 | 12


def test_a_group_axis_gives_every_thread_a_copy() -> None:
    shape = BY_NAME["32x128b.warpx4"]
    dst = tmem((32, 32, 4), shape.repeated(32, 4))
    src = views.with_layout(
        whole(buffer("s", (SHARED_WORDS,), "uint32", "shared", align=1024)), (32, 32, 4),
        layout.parse("(32,4,8,4):(128,32,4,1)"),
    )  # fmt: skip
    assert codes(program(dst, src, "32x128b.warpx4", scope="warp")) == []
    assert len(issues(program(dst, src, "32x128b.warpx4", scope="warp"))) == 1


# --- refusals at the nearest illegal value


def refused(code: str, *words: str, **options: Any) -> None:
    f = program(**options)
    assert codes(f) == [code], text(f)
    for word in words:
        assert word in text(f), text(f)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_right_operands_are_right(name: str) -> None:
    shape = BY_NAME[name]
    for swizzle in range(4):
        assert codes(program(cells(shape, 2), shared(shape, swizzle, 2), name)) == []


@pytest.mark.parametrize(
    ("name", "notation", "code", "words"),
    [
        ("128x256b", "(1,128,8):(0,1@TLane,2@TCol)", "image", "column 2 of its buffer, expected column 1"),
        ("128x256b", "(1,2,64,8):(0,1@TLane,2@TLane,1@TCol)", "image", "lane 2 of its buffer, expected lane 1"),
        ("4x256b", "(1,4,8):(0,1@TLane,1@TCol)", "image", "lane 1 of its buffer, expected lane 32"),
        ("64x128b.warpx2::02_13", "(1,64,4):(0,1@TLane,1@TCol)", "replicas", "states no replica"),
        ("64x128b.warpx2::02_13", "(1,64,4):(0,1@TLane,1@TCol) + R[2:32@TLane]", "replicas",
         "states R[2:32@TLane], tcgen05.cp.cta_group::1.64x128b.warpx2::02_13 writes every row 2 times, 64"),
        ("64x128b.warpx2::02_13", "(1,64,4):(0,1@TLane,1@TCol) + R[2:64@TCol]", "replicas", "@TCol"),
        ("64x128b.warpx2::01_23", "(1,64,4):(0,1@TLane,1@TCol) + R[2:32@TLane]", "image",
         "lane 32 of its buffer, expected lane 64"),
        ("64x128b.warpx2::01_23", "(1,2,32,4):(0,64@TLane,1@TLane,1@TCol)", "replicas", "R[2:32@TLane]"),
        ("32x128b.warpx4", "(1,32,4):(0,1@TLane,1@TCol) + R[2:32@TLane]", "replicas", "R[4:32@TLane]"),
        ("128x128b", "(1,128,4):(0,1@TLane,1@TCol) + R[2:4@TCol]", "replicas", "writes every row once"),
        ("128x256b", "(1,128,8):(0,1@TLane,1@TCol) + 2@TCol", "column", "2 columns after a multiple of 4"),
        ("32x128b.warpx4", "(1,32,4):(0,1@TLane,1@TCol) + R[4:32@TLane] + 6@TCol", "column", "2 columns"),
    ],
)  # fmt: skip
def test_images_in_tensor_memory(name: str, notation: str, code: str, words: str) -> None:
    shape = BY_NAME[name]
    dst = tmem((1, shape.rows, shape.words), notation)
    refused(f"tcgen05_cp/{code}", words, dst=dst, src=shared(shape, 1), name=name)


def test_other_spellings_of_the_copies_are_the_same() -> None:
    """Four copies are two times two."""
    shape = BY_NAME["32x128b.warpx4"]
    dst = tmem((1, 32, 4), "(1,32,4):(0,1@TLane,1@TCol) + R[(2,2):(64@TLane,32@TLane)]")
    assert codes(program(dst, shared(shape, 1), "32x128b.warpx4")) == []


@pytest.mark.parametrize("name", [name for name in BY_NAME if name != "4x256b"])
def test_copies_stay_in_128_lanes(name: str) -> None:
    """One row further down, the last copy has no lane 128."""
    shape = BY_NAME[name]
    moved = tmem((1, shape.rows, shape.words), f"{shape.repeated(1, 0)} + 1@TLane")
    refused("tile/bounds", "has 128 lanes", dst=moved, src=shared(shape, 1), name=name)


def test_four_rows_start_in_any_lane_of_a_slab() -> None:
    shape = BY_NAME["4x256b"]
    last = tmem((1, 4, 8), f"{shape.repeated(1, 0)} + 31@TLane")
    assert codes(program(last, shared(shape, 1), "4x256b")) == []
    beyond = tmem((1, 4, 8), f"{shape.repeated(1, 0)} + 32@TLane")
    refused("tile/bounds", "needs lane 128", dst=beyond, src=shared(shape, 1), name="4x256b")


def test_columns_end_at_512() -> None:
    shape = BY_NAME["128x256b"]
    tile_ = tmem((128, 512), "(128,512):(1@TLane,1@TCol)")
    last = region(views.reshape(tile_, (1, 128, 512)), (0, 0, 504), (1, 128, 8))
    assert codes(program(last, shared(shape, 1))) == []
    beyond = region(views.reshape(tile_, (1, 128, 512)), (0, 0, 508), (1, 128, 8))
    refused("tile/bounds", "outside 0..512", dst=beyond, src=shared(shape, 1))


def test_a_run_time_column_keeps_128_bits() -> None:
    column = nodes.Var("column", nodes.INT32)
    tile_ = tmem((128, 512), "(128,512):(1@TLane,1@TCol)")
    shape = BY_NAME["128x256b"]

    def counted(step: int) -> nodes.Function:
        start = kit.op("mul", column, step)
        dst = region(views.reshape(tile_, (1, 128, 512)), (0, 0, start), (1, 128, 8))
        first, last, by = (kit.i32(v) for v in (0, 504 // step, 1))
        body = apply(opcode_of(shape, 1), dst, shared(shape, 1))
        declared = nodes.DeclTmem(tile_.buffer, nodes.Const(0, nodes.UINT32))
        return kit.kernel(declared, nodes.For(column, first, last, by, (body,)), target="sm_100a")

    assert codes(counted(4)) == []
    assert codes(counted(2)) == ["tcgen05_cp/column"]


@tile.jit(target="sm_100a")
def backwards(X: T.Tensor((128, 24), "uint32"), Y: T.Tensor((128, 24), "uint32")):
    """Y = X through tensor memory: its last columns first, and all of them through a tensor that is
    declared 8 columns before what is allocated, in column 0."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t, pair = T.cuda.thread_idx("x"), "cta_group::1"
    slot = T.alloc_shared((1,), "uint32", layout="default")
    done = T.alloc_shared((1,), "uint64", layout="default")
    words = T.alloc_shared(
        (128, 24), "uint32", layout=T.cuda.tcgen05_shared_layout((128, 24), "uint32", 0), align=128
    )
    for i in range(24):
        words[t, i] = X[t, i]
    T.ptx["fence.proxy.async.shared::cta"]()
    if T.cuda.warp_id() == 0:
        T.ptx[f"tcgen05.alloc.{pair}.sync.aligned.shared::cta.b32"](slot.ptr_to([0]), 512)
    if t == 0:
        T.ptx["mbarrier.init.shared::cta.b64"](done.ptr_to([0]), T.uint32(1))
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    T.ptx["tcgen05.fence::after_thread_sync"]()
    early = T.cuda.decl_tmem(slot[0] - 8, (128, 32), "uint32", layout="(128,32):(1@TLane,1@TCol)")
    if t == 0:
        for j in range(2):
            T.cuda.tile.apply(
                T.ptx[f"tcgen05.cp.{pair}.128x256b"],
                early[:, 24 - 8 * j : 32 - 8 * j], words[:, 16 - 8 * j : 24 - 8 * j],
            )  # fmt: skip
        T.cuda.tile.apply(T.ptx[f"tcgen05.cp.{pair}.128x256b"], early[:, 8:16], words[:, 0:8])
        T.ptx[f"tcgen05.commit.{pair}.mbarrier::arrive::one.shared::cluster.b64"](done.ptr_to([0]))
    T.cuda.mbarrier_wait(done.ptr_to([0]), 0)
    T.ptx["tcgen05.fence::after_thread_sync"]()
    found = T.alloc_local((3, 8), "uint32", layout="default")
    T.cuda.tile.apply(
        T.ptx["tcgen05.ld.sync.aligned.32x32b.x8.b32"],
        found.view(4, 3, 32, 8, layout="(4,3,32,8):(1@wid_in_wg,8,1@laneid,1)"),
        early.view(4, 32, 4, 8).permute(0, 2, 1, 3)[:, 1:], scope="warpgroup",
    )  # fmt: skip
    T.ptx["tcgen05.wait::ld.sync.aligned"]()
    for i in T.unroll(24):
        Y[t, i] = found[i // 8, i % 8]
    T.ptx["tcgen05.fence::before_thread_sync"]()
    T.cuda.cta_sync()
    if T.cuda.warp_id() == 0:
        T.ptx[f"tcgen05.dealloc.{pair}.sync.aligned.b32"](slot[0], 512)


def test_columns_that_fall() -> None:
    """No base lies before the tensor, and where a declared address does, the sum is one of 32 bits."""
    x = torch.arange(128 * 24, dtype=torch.int64).reshape(128, 24).to(torch.uint32)
    y = torch.zeros_like(x)
    backwards(x, y)
    assert torch.equal(x, y)
    backwards.compile(x, y)
    assert "early_ + (u32)(24 - (j_ * 8))" in backwards.asm["cuda"]


def test_words_have_32_bits() -> None:
    shape = BY_NAME["128x256b"]
    narrow = tmem((1, 128, 16), "(1,128,16):(0,1@TLane,1@TCol)", "uint16")
    refused(
        "tcgen05_cp/operand-type",
        "dst_tmem has elements of 16 bits",
        dst=narrow,
        src=shared(shape, 1),
    )
    flat = whole(buffer("s", (2048,), "float16", "shared", align=1024))
    src = views.with_layout(flat, (1, 128, 16), layout.row_major((1, 128, 16)))
    refused("tcgen05_cp/operand-type", "src_shared", '.view("uint32")', dst=cells(shape), src=src)


def test_spaces() -> None:
    shape = BY_NAME["128x256b"]
    refused("tcgen05_cp/direction", "dst_tmem, src_shared", dst=shared(shape, 1), src=cells(shape))
    local = whole(buffer("l", (1, 128, 8), "uint32"))
    refused("tcgen05_cp/space", "expected shared", dst=cells(shape), src=local)


def test_two_operands() -> None:
    shape = BY_NAME["128x256b"]
    declared = nodes.DeclTmem(cells(shape).buffer, nodes.Const(0, nodes.UINT32))
    f = kit.kernel(declared, apply(opcode_of(shape, 1), cells(shape)), target="sm_100a")
    assert codes(f) == ["tcgen05_cp/operand-count"]
    f = kit.kernel(declared, apply(opcode_of(shape, 1), cells(shape), kit.i32(0)), target="sm_100a")
    assert codes(f) == ["tcgen05_cp/tensor-operand"]


@pytest.mark.parametrize("name", BY_NAME)
def test_extents_are_the_opcodes(name: str) -> None:
    shape = BY_NAME[name]
    other = BY_NAME["128x128b" if shape.words == 8 else "128x256b"]
    refused("tile/atom-shape", dst=cells(shape), src=shared(other, 1), name=name)
    f = program(cells(other), shared(shape, 1), name)
    assert codes(f) == ["tile/atom-shape"]


def test_repeats_agree() -> None:
    shape = BY_NAME["128x256b"]
    refused("tile/repeats", dst=cells(shape, 2), src=shared(shape, 1, 3))


@pytest.mark.parametrize("cluster", [None, (1,), (3,)])
def test_a_pair_needs_a_cluster_of_pairs(cluster: tuple[int, ...] | None) -> None:
    shape = BY_NAME["128x256b"]
    refused(
        "tcgen05_cp/cta-pair", "pair of CTAs", dst=cells(shape), src=shared(shape, 1), group=2,
        cluster=cluster, grid=(12,),
    )  # fmt: skip


@pytest.mark.parametrize("swizzle", [1, 2, 3])
def test_the_backing_is_aligned_to_the_period(swizzle: int) -> None:
    shape, period = BY_NAME["128x256b"], 8 * (16 << swizzle)
    assert codes(program(cells(shape), shared(shape, swizzle, align=period))) == []
    refused(
        "tcgen05_cp/descriptor", f"aligned to {period // 2} bytes, expected {period}",
        dst=cells(shape), src=shared(shape, swizzle, align=period // 2),
    )  # fmt: skip


def source(notation: str, shape: Shape, start: int = 0, words: int = SHARED_WORDS) -> nodes.View:
    flat = whole(buffer("s", (words,), "uint32", "shared", align=1024))
    part = views.sub(flat, ((start, words, None),))
    return views.with_layout(part, (1, shape.rows, shape.words), layout.parse(notation))


@pytest.mark.parametrize(
    ("notation", "start", "code", "words"),
    [
        # Groups of eight rows 256 bytes apart, chunks of a row 128 bytes; dense rows of 32 bytes.
        ("(1,16,8,2,4):(0,64,4,32,1)", 0, None, ""),
        ("(1,128,8):(0,8,1)", 0, "descriptor", "lies 32 bytes after the first, expected 16"),
        ("(1,16,8,2,4):(0,66,4,32,1)", 0, "descriptor", "SDO would be 264 bytes, expected a multiple of 16"),
        ("(1,16,8,2,4):(0,68,4,32,1)", 0, None, ""),
        ("(1,16,8,2,4):(0,0,4,32,1)", 0, None, ""),
        ("(1,16,8,2,4):(0,-32,4,516,1)", 512, "descriptor", "SDO would be -128 bytes"),
        ("(1,16,8,2,4):(0,32,4,514,1)", 0, "descriptor", "LDO would be 2056 bytes"),
        ("(1,16,8,2,4):(0,32,4,516,1)", 0, None, ""),
        ("(1,16,8,2,4):(0,64,4,32,1)", 2, "alignment", "8 bytes above a multiple of 16"),
        ("(1,16,8,2,4):(0,64,4,32,1)", 4, None, ""),
        ("swizzle(2,3,4) o (1,128,8):(0,32,1)", 0, "descriptor", "no matrix descriptor walks this image"),
    ],
)  # fmt: skip
def test_walks_of_shared_memory(notation: str, start: int, code: str | None, words: str) -> None:
    shape = BY_NAME["128x256b"]
    f = program(cells(shape), source(notation, shape, start))
    assert codes(f) == ([] if code is None else [f"tcgen05_cp/{code}"]), text(f)
    assert words in text(f)


@pytest.mark.parametrize("swizzle", [32, 64, 128])
@pytest.mark.parametrize("name", BY_NAME)
def test_tiles_of_the_layout_helper(name: str, swizzle: int) -> None:
    """Two copies of a tile of two images side by side."""
    shape = BY_NAME[name]
    rows, columns = max(8, shape.rows), 2 * shape.words * swizzle // 32
    laid = T.cuda.tcgen05_shared_layout((rows, columns), "uint32", swizzle)
    kind = nodes.TensorType((rows, columns), dtypes.uint32, laid, "shared", 1024)
    tile_ = whole(nodes.Var("s", kind))
    images = views.permute(
        views.reshape(tile_, (rows, columns // shape.words, shape.words)), (1, 0, 2)
    )
    src = region(images, (0, 0, 0), (2, shape.rows, shape.words))
    first, second = fields(program(cells(shape, 2), src, name))
    assert first[3] == second[3] == CODES[swizzle.bit_length() - 5]
    assert second[0] - first[0] == (
        4 * shape.words if 4 * shape.words < swizzle else rows * swizzle
    )


def test_what_is_wrong_with_every_mode_is_told() -> None:
    shape = BY_NAME["128x256b"]
    shown = text(program(cells(shape), source("(1,128,8):(0,12,1)", shape)))
    for mode in ("no swizzle", "32-byte swizzle", "64-byte swizzle", "128-byte swizzle"):
        assert f"{mode}: " in shown


@pytest.mark.parametrize("apart", [1 << 16, (1 << 16) - 4])
def test_strides_have_fourteen_bits(apart: int) -> None:
    """Bytes from one group of 8 rows to the next: below 2**18."""
    shape = BY_NAME["128x256b"]
    f = program(cells(shape), source(f"(1,16,8,8):(0,{apart},8,1)", shape, 0, 16 * apart + 64))
    assert ("SDO would be 262144 bytes" in text(f)) == (apart == 1 << 16)


@pytest.mark.parametrize(
    ("notation", "words"),
    [
        # Eight rows of 32, 64, 128 bytes; of 16 bytes in chunks 64 bytes, 128 bytes apart.
        ("swizzle(2,1,3) o (1,4,8):(0,8,1)", 64),
        ("swizzle(2,2,3) o (1,4,8):(0,16,1)", 128),
        ("swizzle(2,3,3) o (1,4,8):(0,32,1)", 256),
        ("(1,4,2,4):(0,4,16,1)", 48),
        ("(1,4,2,4):(0,4,32,1)", 64),
    ],
)
def test_four_rows_need_room_for_eight(notation: str, words: int) -> None:
    shape = BY_NAME["4x256b"]
    assert codes(program(cells(shape), source(notation, shape, 0, words), "4x256b")) == []
    short = source(notation, shape, 0, words - 4)
    refused(
        "tcgen05_cp/backing", f"{4 * words} bytes into", dst=cells(shape), src=short, name="4x256b"
    )


# --- descriptors


def fields(f: nodes.Function) -> list[tuple[int, int, int, int]]:
    """Start address, LDO, SDO and swizzle code of every instruction."""
    ((_, steps),) = kit.checked(f).calls()
    known: dict[str, int] = {}
    found = []
    for step in steps:
        if isinstance(step, kit.Let):
            if step.var.type == nodes.UINT32:
                known[step.var.name] = evaluate(step.value, known)
            continue
        bits = evaluate(step.operands[1].items[0].expr, known)
        assert bits & ~(0x3FFF << 32 | 0x3FFF << 16 | 0x3FFF | 7 << 61) == 1 << 46
        start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        found.append((start, leading, stride, bits >> 61))
    return found


@pytest.mark.parametrize("swizzle", range(4))
@pytest.mark.parametrize("name", BY_NAME)
def test_descriptors_say_the_layout(name: str, swizzle: int) -> None:
    shape = BY_NAME[name]
    leading, stride = strides(shape, swizzle)
    found = fields(program(cells(shape, 3), shared(shape, swizzle, 3), name))
    used_leading = leading if swizzle == 0 and shape.words > 4 else 16
    used_stride = stride if shape.rows > 8 else 0
    apart = start_bytes(shape, swizzle)
    assert found == [
        (BASES["s"] + i * apart, used_leading, used_stride, CODES[swizzle]) for i in range(3)
    ]


# --- what the hardware does, one operation at a time


class OneThread:
    """As much of a machine as one thread of the CTA ``rank`` sees."""

    def __init__(self, address: int, bits: int, rank: int = 0, cluster_size: int = 1) -> None:
        self.bits, self.rank, self.cluster_size = bits, rank, cluster_size
        self.place = address
        self.issued: list[TensorOperation] = []
        self.faults: list[str] = []

    def threads(self) -> list[tuple[int, int]]:
        return [(0, 7)]

    def active(self) -> np.ndarray:
        return np.arange(32).reshape(1, 32) == 7

    def read(self, operand: Any) -> list[np.ndarray]:
        return [np.full((1, 32), self.bits, np.uint64)]

    def address(self, operand: Any) -> np.ndarray:
        return np.full((1, 32), self.place, np.int64)

    def cluster_rank(self) -> np.ndarray:
        return np.full((1, 1), self.rank)

    def fault(self, code: str, message: str, lanes: np.ndarray) -> None:
        assert np.array_equal(lanes, self.active())
        self.faults.append(f"{code}: {message}")

    def unsimulated(self, what: str) -> Any:
        raise NotImplementedError(what)

    def tensor_issue(self, thread: tuple[int, int], operation: TensorOperation) -> None:
        assert thread == (0, 7)
        self.issued.append(operation)


def executed(machine: OneThread, name: str, group: int = 1, source: str = "") -> None:
    (found,) = issues(program(cells(BY_NAME[name]), shared(BY_NAME[name], 1), name, group))
    (form,) = lookup(opcode_of(BY_NAME[name], group, source))
    FAMILIES["tcgen05_cp"].execute(replace(found, form=form), machine)


CODES = (0, 6, 4, 2)
"""Bits 61 to 63 of a descriptor, by swizzle."""


def encoded(start: int, leading: int, stride: int, swizzle: int) -> int:
    return CODES[swizzle] << 61 | 1 << 46 | stride >> 4 << 32 | leading >> 4 << 16 | start >> 4


@pytest.mark.parametrize("source", FORMATS)
@pytest.mark.parametrize("swizzle", range(4))
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("name", BY_NAME)
def test_one_operation(name: str, group: int, swizzle: int, source: str) -> None:
    """From a descriptor's bits to cells, in one CTA or in both of a pair."""
    shape, column = BY_NAME[name], 20
    leading, stride = strides(shape, swizzle)
    start = 2048 + 1024 * swizzle
    machine = OneThread(column, encoded(start, leading, stride, swizzle), 3, 2 + group * 2)
    executed(machine, name, group, source)
    (operation,) = machine.issued
    assert (operation.kind, operation.pair) == ("cp", group == 2)
    assert operation.pipe == name.partition(".")[0]
    ctas = [3] if group == 1 else [2, 3]
    assert [s.cta for s in operation.sources] == [d.cta for d in operation.destinations] == ctas
    memory = np.random.default_rng(4).integers(0, 256, (4, 1 << 16), np.uint8)
    blocks = [memory[s.cta][s.addresses[:, None] + np.arange(16)] for s in operation.sources]
    written = operation.run(blocks)
    places = swizzled(start + source_bytes(shape, swizzle, leading, stride), swizzle)
    for cta, cells_, data in zip(ctas, operation.destinations, written):
        words = expanded(memory[cta].view(np.uint32)[places // 4], source)
        expected = {
            (lane, column + w): int(words[row, w])
            for row in range(shape.rows) for lane in shape.lane(row) for w in range(shape.words)
        }  # fmt: skip
        found = dict(zip(zip(cells_.lanes.tolist(), cells_.columns.tolist()), data.tolist()))
        assert found == expected and len(data) == len(expected)


def test_misaligned_columns_are_a_fault() -> None:
    machine = OneThread(6, encoded(2048, 16, 256, 1))
    executed(machine, "128x256b")
    assert machine.faults == [
        "sim/tmem-alignment: tcgen05.cp to column 6, expected a multiple of 4 columns (128 bits)"
    ]
    assert not machine.issued


@pytest.mark.parametrize(("rank", "size"), [(0, 1), (2, 3)])
def test_a_cta_without_a_peer_is_a_fault(rank: int, size: int) -> None:
    machine = OneThread(0, encoded(2048, 16, 256, 1), rank, size)
    executed(machine, "128x256b", 2)
    (fault,) = machine.faults
    assert fault.startswith("sim/cta-pair: ") and f"rank {rank} has no peer" in fault
    assert not machine.issued


@pytest.mark.parametrize("bits", [1 << 46, 1 << 49, 1 << 52, 1 << 53, (6 ^ 1) << 61])
def test_other_descriptors_are_not_simulated(bits: int) -> None:
    """Other constant bits, a base offset, an absolute LDO; 32-byte atoms."""
    machine = OneThread(0, encoded(2048, 16, 256, 1) ^ bits)
    with pytest.raises(NotImplementedError, match="a matrix descriptor 0x"):
        executed(machine, "128x256b")
