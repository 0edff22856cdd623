"""The contract of cp.async: copies end to end, the nearest illegal values, the text that is emitted.

The oracle is numpy and the contract: bytes of the chunk, zeros behind ``src_size``.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.families import case
from tests.tile import kit
from tests.tile.kit import apply, at, buffer, codes, hw, i32, issues, op, region, text, var, whole
from tilejit import T
from tilejit.ir import nodes
from tilejit.ptx import spelling

TARGETS = ("sm_80", "sm_90a", "sm_100a")
ONE = "cp.async.ca.shared.global"
SIXTEEN = "cp.async.cg.shared.global"
SIZES = ("", ".L2::64B", ".L2::128B", ".L2::256B")


pytestmark = pytest.mark.usefixtures("round_trips")


# --- end to end

ROWS, WARPS = 64, 2


@tile.jit
def copied(X, Y, valid: T.int32, c: T.constexpr):
    """Y = the bytes of X through shared memory, row by row, each row ``c.chunks`` chunks long.

    X and Y are uint8 (rows, chunks * chunk bytes); the copies see them as ``c.source`` and ``c.stored``.
    """
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=ROWS))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared(X.shape, "uint8", layout="default", align=16)
    for i in T.unroll(X.shape[1]):
        s[t, i] = 7
    T.cuda.cta_sync()
    source, stored = X.view(c.source), s.view(c.stored)
    elements = c.chunk_bytes * 8 // source.dtype.bits, c.chunk_bytes * 8 // stored.dtype.bits
    if c.scope == "thread":
        from_ = source.view(ROWS, c.chunks, elements[0]).sub[t, :, :]
        to = stored.view(ROWS, c.chunks, elements[1]).sub[t, :, :]
    elif c.scope == "warp":
        first = T.cuda.warp_id() * 32
        from_ = source.view(ROWS, c.chunks, elements[0]).sub[first : first + 32, :, :]
        to = stored.view(ROWS, c.chunks, elements[1]).sub[first : first + 32, :, :]
    else:
        from_ = source.view(WARPS, 32, c.chunks, elements[0])
        to = stored.view(WARPS, 32, c.chunks, elements[1])
    instruction = T.ptx[c.opcode]
    if c.fill == "src_size":
        kept = T.if_then_else(t < valid, T.uint32(c.chunk_bytes - 1), T.uint32(0))
        T.cuda.tile.apply(
            instruction, to, from_, chunk_bytes=c.chunk_bytes, src_size=kept, scope=c.scope
        )
    elif c.fill == "constant":
        T.cuda.tile.apply(
            instruction, to, from_, chunk_bytes=c.chunk_bytes, src_size=2, scope=c.scope
        )
    elif c.fill == "ignore_src":
        T.cuda.tile.apply(instruction, to, from_, chunk_bytes=c.chunk_bytes, ignore_src=t >= valid,
                          scope=c.scope)  # fmt: skip
    elif c.fill == "pred":
        T.cuda.tile.apply(
            instruction, to, from_, chunk_bytes=c.chunk_bytes, pred=t < valid, scope=c.scope
        )
    elif c.fill == "policy":
        policy = T.alloc_local((1,), "uint64", layout="default")
        T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0])
        kept = T.if_then_else(t < valid, c.chunk_bytes, 0)
        T.cuda.tile.apply(instruction, to, from_, chunk_bytes=c.chunk_bytes, src_size=kept,
                          cache_policy=policy[0], scope=c.scope)  # fmt: skip
    else:
        T.cuda.tile.apply(instruction, to, from_, chunk_bytes=c.chunk_bytes, scope=c.scope)
    T.ptx["cp.async.commit_group"]()
    T.ptx["cp.async.wait_group"](0)
    T.cuda.cta_sync()
    other = (t + 33) % ROWS
    for i in T.unroll(X.shape[1]):
        Y[other, i] = s[other, i]


class Case(case.Case):
    """What ``copied`` is specialised on."""

    def __init__(
        self, opcode: str, chunk_bytes: int, fill: str = "", scope: str = "thread", source: str = "uint8",
        stored: str = "uint8", chunks: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(
            opcode=opcode, chunk_bytes=chunk_bytes, fill=fill, scope=scope, source=source, stored=stored,
            chunks=chunks,
        )  # fmt: skip

    def expected(self, x: np.ndarray, valid: int) -> np.ndarray:
        chunks = x.reshape(ROWS, self.chunks, self.chunk_bytes).copy()
        past = np.arange(ROWS)[:, None, None] >= valid
        byte = np.arange(self.chunk_bytes)
        if self.fill == "src_size":
            chunks[np.broadcast_to(past | (byte >= self.chunk_bytes - 1), chunks.shape)] = 0
        elif self.fill == "constant":
            chunks[..., 2:] = 0
        elif self.fill in ("ignore_src", "policy"):
            chunks[np.broadcast_to(past, chunks.shape)] = 0
        elif self.fill == "pred":
            chunks[np.broadcast_to(past, chunks.shape)] = 7
        return chunks.reshape(x.shape)


CASES = [
    *(Case(f"cp.async.ca.{near}.global", n) for near in ("shared", "shared::cta") for n in (4, 8, 16)),
    *(Case(f"cp.async.{level}.shared.global{size}", 16) for level in ("ca", "cg") for size in SIZES),
    *(Case(ONE, n, fill) for fill in ("src_size", "constant", "ignore_src", "pred") for n in (4, 8, 16)),
    *(Case(SIXTEEN, 16, fill) for fill in ("src_size", "constant", "ignore_src", "pred")),
    *(Case(f"cp.async.{level}.shared::cta.global.L2::cache_hint{size}", 16, "policy")
      for level in ("ca", "cg") for size in SIZES),
    *(Case(SIXTEEN, 16, scope=scope, chunks=3) for scope in ("thread", "warp", "cta")),
    *(Case(ONE, 8, "src_size", scope, chunks=2) for scope in ("warp", "cta")),
    Case(SIXTEEN, 16, source="float16", stored="float16"),
    Case(SIXTEEN, 16, source="float16", stored="uint32", chunks=2),
    Case(ONE, 4, source="float32", stored="int8"),
    Case(ONE, 8, source="uint8", stored="float64"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_copies(device: str, case: Case) -> None:
    x = np.random.default_rng(3).integers(0, 256, (ROWS, case.chunks * case.chunk_bytes), np.uint8)
    out = torch.zeros(x.shape, dtype=torch.uint8, device=device)
    copied(torch.from_numpy(x).to(device), out, 41, case)
    assert np.array_equal(out.cpu().numpy(), case.expected(x, 41))


@tile.jit
def pipelined(X: T.Tensor((T.dynamic("M"), 64), "float32", align=16), Y: T.Tensor((T.dynamic("M"),), "float32"),
              stages: T.constexpr):  # fmt: skip
    """Y = sums of rows, 8 columns of 32 rows per stage; a row is added by another thread than copies it."""
    M = X.shape[0]
    T.device_entry(launch=T.cuda.LaunchConfig(grid=T.ceildiv(M, 32), block=64))
    t = T.cuda.thread_idx("x")
    ring = T.alloc_shared((stages, 32, 8), "float32", layout="default", align=16)
    row = T.cuda.block_idx("x") * 32 + t // 2
    T.assume(row >= 0)
    inside = min(row, M - 1)
    kept = T.if_then_else(row < M, T.uint32(16), T.uint32(0))
    for n in T.unroll(stages - 1):
        stage(ring, X, n, n, t, inside, kept)
    total = 0.0
    for n in range(8):
        T.ptx["cp.async.wait_group"](stages - 2)
        T.cuda.cta_sync()
        if t < 32:
            for i in T.unroll(8):
                total += ring[n % stages, 31 - t, i]
        if n + stages - 1 < 8:
            stage(ring, X, (n + stages - 1) % stages, n + stages - 1, t, inside, kept)
        else:
            T.ptx["cp.async.commit_group"]()
    mine = T.cuda.block_idx("x") * 32 + 31 - t
    if t < 32 and mine < M:
        Y[mine] = total


@tile.jit
def stage(ring, X, slot, n, t, row, kept):
    to = ring.view(ring.shape[0], 32, 2, 4).sub[slot, t // 2, t % 2, :]
    source = X.sub[row, :].view(8, 2, 4).sub[n, t % 2, :]
    T.cuda.tile.apply(
        T.ptx["cp.async.cg.shared.global.L2::128B"], to, source, chunk_bytes=16, src_size=kept
    )
    T.ptx["cp.async.commit_group"]()


@pytest.mark.parametrize("rows", [32, 50, 97])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_pipelines_of_some_depth_and_a_ragged_end(device: str, stages: int, rows: int) -> None:
    x = torch.randint(-9, 10, (rows, 64), generator=torch.Generator().manual_seed(rows)).float()
    out = torch.full((rows,), -1.0, device=device)
    pipelined(x.to(device), out, stages)
    assert torch.equal(out.cpu(), x.sum(dim=1))


# --- the text


@pytest.mark.parametrize("target", TARGETS)
def test_emitted_instructions(target: str) -> None:
    case = Case(SIXTEEN, 16, "src_size", "cta", chunks=3)
    x = torch.zeros(ROWS, 48, dtype=torch.uint8)
    variant = copied.compile(x, x.clone(), 5, case, target=target)
    lines = [line for line in variant.asm["cuda"].splitlines() if "cp.async" in line]
    assert all(line.lstrip().startswith("asm volatile(") for line in lines)
    assert all(line.endswith(': "memory");') for line in lines)
    found = [re.sub(r".*asm volatile\(\"([^/]*);? //.*", r"\1", line) for line in lines]
    assert [re.sub(r"%\d+", "%", f) for f in found] == [
        "cp.async.cg.shared.global [%], [%], 16, %;",
        "cp.async.cg.shared.global [%+16], [%+16], 16, %;",
        "cp.async.cg.shared.global [%+32], [%+32], 16, %;",
        "cp.async.commit_group;",
        "cp.async.wait_group 0;",
    ]
    assert variant.asm["ptx"].count("cp.async.cg.shared.global") == 3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES[::5], ids=repr)
def test_cases_assemble(case: Case, target: str) -> None:
    x = torch.zeros(ROWS, case.chunks * case.chunk_bytes, dtype=torch.uint8)
    assert len(copied.compile(x, x.clone(), 5, case, target=target).cubin) > 0


@pytest.mark.parametrize(
    ("fill", "printed"),
    [
        ("src_size", "[%0], [%1], 4, %2;"),
        ("constant", "[%0], [%1], 4, 2;"),
        ("ignore_src", "[%0], [%1], 4, p0;"),
        ("", "[%0], [%1], 4;"),
    ],
)
def test_operand_lists(fill: str, printed: str) -> None:
    x = torch.zeros(ROWS, 4, dtype=torch.uint8)
    cuda = copied.compile(x, x.clone(), 5, Case(ONE, 4, fill), target="sm_80").asm["cuda"]
    (line,) = [line for line in cuda.splitlines() if "cp.async.ca" in line]
    assert re.sub(r"%\d", "%", printed) in re.sub(r"%\d", "%", line)


# --- the nearest illegal values

X = buffer("x", (64, 64), "float32", "global")
S = buffer("s", (64, 64), "float32", "shared")
DST, SRC = region(whole(S), (0, 0), (1, 4)), region(whole(X), (0, 0), (1, 4))
TID = hw("tid")
U64, U32 = var("policy", nodes.UINT64), var("size", nodes.UINT32)


def copy(
    dst: Any = DST, src: Any = SRC, name: str = SIXTEEN, bytes_: Any = 16, *extra: Any, scope: str = "thread", **kw: Any
) -> nodes.Function:  # fmt: skip
    keywords = {"chunk_bytes": i32(bytes_)} if isinstance(bytes_, int) else {}
    call = apply(name, dst, src, *extra, scope=scope, **keywords, **kw)
    return kit.kernel(call, params=(U64, U32))


def test_the_example_of_the_contract_is_legal() -> None:
    assert codes(copy()) == []
    (issue,) = issues(copy())
    assert [type(o).__name__ for o in issue.operands] == ["Memory", "Memory", "Immediate"]


@pytest.mark.parametrize(
    ("name", "size", "elements", "expected"),
    [
        (SIXTEEN, 16, 4, []), (ONE, 16, 4, []), (ONE, 8, 2, []), (ONE, 4, 1, []),
        (SIXTEEN, 8, 2, ["cp_async/chunk-bytes"]), (SIXTEEN, 4, 1, ["cp_async/chunk-bytes"]),
        (ONE, 32, 8, ["cp_async/chunk-bytes"]), (ONE, 2, 1, ["cp_async/chunk-bytes"]),
        (ONE, 0, 1, ["cp_async/chunk-bytes"]), (ONE, 12, 3, ["cp_async/chunk-bytes"]),
    ],
)  # fmt: skip
def test_chunk_bytes(name: str, size: int, elements: int, expected: list[str]) -> None:
    sides = [region(whole(b), (0, 0), (1, elements)) for b in (S, X)]
    assert codes(copy(*sides, name, size)) == expected


def test_chunk_bytes_is_required_and_static() -> None:
    assert codes(copy(bytes_=None)) == ["cp_async/missing-keyword"]
    assert codes(copy(bytes_=None, chunk_bytes=TID)) == ["cp_async/static-keyword"]


def test_the_chunk_is_the_last_axis() -> None:
    for wrong in (2, 8):
        assert codes(copy(dst=region(whole(S), (0, 0), (1, wrong)))) == ["tile/atom-shape"]
        assert codes(copy(src=region(whole(X), (0, 0), (1, wrong)))) == ["tile/atom-shape"]
    one = region(whole(S), (0, 0), (1, 1))
    assert "operands end in 1: .view(1)\n" in text(copy(one, at(whole(X), 0, 0), ONE, 4)) + "\n"


def test_sides_may_have_different_elements_of_whole_chunks() -> None:
    for dtype, elements in (("uint8", 16), ("float16", 8), ("float64", 2), ("uint32", 4)):
        other = buffer("o", (64, 64), dtype, "shared")
        assert codes(copy(dst=region(whole(other), (0, 0), (1, elements)))) == []
    wide = [region(whole(buffer(n, (64, 64), "float64", s)), (0, 0), (1, 1)) for n, s in
            (("s", "shared"), ("x", "global"))]  # fmt: skip
    assert codes(copy(*wide, ONE, 8)) == []
    assert codes(copy(*wide, ONE, 4)) == ["cp_async/operand-type"] * 2
    assert "elements of 8 bytes, expected whole elements in a chunk of 4 bytes" in text(
        copy(*wide, ONE, 4)
    )


def test_spaces() -> None:
    assert codes(copy(dst=SRC, src=DST)) == ["cp_async/direction"]
    assert "from global to shared memory only" in text(copy(dst=SRC, src=DST))
    registers = whole(buffer("r", (1, 4)))
    assert codes(copy(dst=registers)) == ["cp_async/space"]
    assert codes(copy(src=registers)) == ["cp_async/space"]
    assert codes(copy(dst=SRC)) == ["cp_async/space"]
    assert codes(copy(src=DST)) == ["cp_async/space"]


def test_the_opcode_says_the_direction_too() -> None:
    with pytest.raises(spelling.SpellingError, match="from global to shared memory only"):
        spelling.lookup("cp.async.cg.global.shared")
    with pytest.raises(spelling.SpellingError, match="cache level"):
        spelling.lookup("cp.async.shared.global")


def test_operands() -> None:
    assert codes(copy(DST, SRC, SIXTEEN, 16, i32(3))) == ["cp_async/operand-count"]
    assert codes(copy(src=i32(3))) == ["cp_async/tensor-operand"]


def test_contiguity() -> None:
    for dst, src in ((True, False), (False, True)):
        tall = [buffer(n, (64, 64), "float32", s, "(64,64):(1,64)") if turned else b
                for n, s, turned, b in (("s", "shared", dst, S), ("x", "global", src, X))]  # fmt: skip
        sides = [region(whole(b), (0, 0), (1, 4)) for b in tall]
        assert codes(copy(*sides)) == ["cp_async/contiguity"]


@pytest.mark.parametrize(("name", "size"), [(SIXTEEN, 16), (ONE, 8), (ONE, 4)])
def test_alignment_is_the_chunks(name: str, size: int) -> None:
    elements = size // 4
    for side in range(2):
        starts = [(0, 0), (0, 0)]
        for column in range(4):
            starts[side] = (0, column)
            sides = [region(whole(b), s, (1, elements)) for b, s in zip((S, X), starts)]
            expected = [] if column % elements == 0 else ["cp_async/alignment"]
            assert codes(copy(*sides, name, size)) == expected
        made = [buffer(n, (64, 64), "float32", s, align=size // 2 if i == side else 16)
                for i, (n, s) in enumerate((("s", "shared"), ("x", "global")))]  # fmt: skip
        sides = [region(whole(b), (0, 0), (1, elements)) for b in made]
        assert codes(copy(*sides, name, size)) == ["cp_async/alignment"]


def test_swizzles_move_whole_chunks() -> None:
    def swizzled(per_element: int) -> nodes.Function:
        s = buffer(
            "s", (64, 32), "float32", "shared", f"swizzle({per_element},3,3) o (64,32):(32,1)", 128
        )
        return copy(dst=region(whole(s), (1, 16), (1, 4)))

    assert codes(swizzled(2)) == []
    assert codes(swizzled(1)) == ["cp_async/contiguity", "cp_async/alignment"]


def test_bounds_are_proved_with_zero_fill_too() -> None:
    row = var("row")

    def loop(stop: int, **keywords: nodes.Expr) -> nodes.Function:
        src = at(whole(X), row, (0, 4, None))
        call = apply(SIXTEEN, at(whole(S), 0, (0, 4, None)), src, chunk_bytes=i32(16), **keywords)
        return kit.kernel(nodes.For(row, i32(0), i32(stop), nodes.Const(1, nodes.INT32), (call,)))

    nothing = {"src_size": i32(0)}
    assert codes(loop(64)) == codes(loop(64, **nothing)) == []
    assert codes(loop(65)) == codes(loop(65, **nothing)) == ["tile/bounds"]


def test_repeats_agree() -> None:
    two, three = (region(whole(S), (0, 0), (n, 4)) for n in (2, 3))
    from_ = region(whole(X), (0, 0), (2, 4))
    assert codes(copy(two, from_)) == [] and len(issues(copy(two, from_))) == 2
    assert codes(copy(three, from_)) == ["tile/repeats"]


def test_group_axes() -> None:
    def lanes(count: int) -> nodes.Function:
        sides = [region(whole(b), (0, 0), (count, 4)) for b in (S, X)]
        return copy(*sides, scope="warp")

    assert codes(lanes(32)) == []
    assert codes(lanes(31)) == ["tile/group-shape"] * 2


def test_src_size() -> None:
    for right in (i32(0), i32(16), nodes.Const(5, nodes.UINT32), U32, op("mul", TID, 4)):
        assert codes(copy(src_size=right)) == []
    for wrong in (i32(17), i32(-1), op("add", TID, 17)):
        assert codes(copy(src_size=wrong)) == ["cp_async/src-size"]
    assert codes(copy(bytes_=8, name=ONE, dst=region(whole(S), (0, 0), (1, 2)),
                      src=region(whole(X), (0, 0), (1, 2)), src_size=i32(9))) == ["cp_async/src-size"]  # fmt: skip
    assert codes(copy(src_size=U64)) == ["cp_async/keyword-type"]
    assert codes(copy(src_size=nodes.Const(4.0, nodes.FLOAT32))) == ["cp_async/keyword-type"]


def test_ignore_src() -> None:
    assert codes(copy(ignore_src=op("lt", TID, 3))) == []
    assert codes(copy(ignore_src=TID)) == ["cp_async/keyword-type"]
    both = copy(ignore_src=op("lt", TID, 3), src_size=i32(4))
    assert codes(both) == ["cp_async/zero-fill"]


def test_cache_policy() -> None:
    hinted = "cp.async.cg.shared.global.L2::cache_hint"
    assert codes(copy(name=hinted, cache_policy=U64)) == []
    assert codes(copy(name=hinted)) == ["cp_async/cache-policy"]
    assert codes(copy(cache_policy=U64)) == ["cp_async/cache-policy"]
    assert codes(copy(name=hinted, cache_policy=TID)) == ["cp_async/keyword-type"]
    (issue,) = issues(copy(name=hinted, cache_policy=U64, src_size=U32))
    assert [s.name for s in issue.form.operands[3:]] == ["src_size", "cache_policy"]


def test_predicates_and_unknown_keywords() -> None:
    (issue,) = issues(copy(pred=op("lt", TID, 3)))
    assert issue.pred is not None and not issue.preserve_dst
    assert codes(copy(preserve_dst=nodes.Const(True, nodes.BOOL))) == ["cp_async/unknown-keyword"]
    assert codes(copy(mbar=i32(0))) == ["cp_async/unknown-keyword"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cp.async.commit_group", "tile/raw-only"),
        ("cp.async.wait_group", "tile/raw-only"),
        ("cp.async.cg.shared.global.L2::512B", "ptx/spelling"),
        ("cp.async.cg.shared::cluster.global", "ptx/spelling"),
    ],
)
def test_other_spellings_are_no_tile_copies(name: str, expected: str) -> None:
    assert codes(copy(name=name)) == [expected]


@pytest.mark.parametrize("pending", [0, 2, 2**31 - 1, -1, 2**31])
def test_pending_groups(pending: int) -> None:
    """ptxas takes any number here, and what a negative one waits for is nobody's word."""
    word = nodes.Const(pending, nodes.INT64)
    wrong = [] if 0 <= pending < 2**31 else ["ptx/immediate"]
    assert codes(kit.kernel(kit.raw("cp.async.wait_group", word))) == wrong


@pytest.mark.parametrize("chunk_bytes", [-4, 0, 4, 8, 12, 16, 2**33 + 16])
@pytest.mark.parametrize("level", ["ca", "cg"])
def test_a_raw_copy_has_the_chunks_of_its_level(level: str, chunk_bytes: int) -> None:
    to, source = buffer("s", (4,), "float32", "shared"), buffer("X", (4,), "float32")
    call = kit.raw(
        f"cp.async.{level}.shared.global",
        nodes.Address(to, i32(0), nodes.PointerType("shared")),
        nodes.Address(source, i32(0), nodes.PointerType("global")),
        nodes.Const(chunk_bytes, nodes.INT64),
    )
    legal = {"ca": (4, 8, 16), "cg": (16,)}[level]
    expected = [] if chunk_bytes in legal else ["ptx/immediate"]
    assert codes(kit.kernel(call)) == expected
