"""``Variant.read`` and ``Variant.written``: exact where the program says what it accesses, a superset
elsewhere, and never less than what the simulator sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilejit as tile
from tests.runtime.observed import launches
from tilejit import T
from tilejit.errors import Unsimulated
from tilejit.kernels import add, matmul_mma, norm, softmax, transpose

LOAD_BOX = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
STORE_BOX = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
ADD_BOX = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"


@tile.jit
def touch(A, B, C, address: T.uint64, c: T.constexpr):
    """One way, ``c``, to access A and B, float32 of shape (32, 4), and C, uint64 of 32 words."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((1, 4), "float32", layout="default")
    w = T.alloc_local((4,), "uint64", layout="default")
    s = T.alloc_shared((32, 4), "float32", layout="default", align=128)
    one = T.bitcast(T.float32(1.0), "uint32")
    for i in T.unroll(4):
        s[t, i] = 0.0
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    # plain statements
    if c == "elements":
        B[t, 0] = A[t, 1]
    elif c == "a condition":
        if A[t, 0] > 1.0:
            B[t, 0] = 1.0
    elif c == "an index":
        B[t, T.cast(C[t], "int32") % 4] = 1.0
    elif c == "a bound":
        for i in range(T.cast(C[0], "int32") % 4):
            B[t, i] = 1.0
    elif c == "never executed":
        if t > 40:
            B[t, 0] = A[t, 0]
    elif c == "in an inlined function":
        copied(A.sub[:, 0:2], B.sub[:, 0:2], t)
    # tile instructions
    elif c == "ld and st":
        T.cuda.tile.apply(T.ptx["ld.global.v4.f32"], r, A[t, :])
        T.cuda.tile.apply(T.ptx["st.global.v4.f32"], B[t, :], r)
    elif c == "ewise":
        T.cuda.tile.apply(T.ptx["ld.global.v4.f32"], r, A[t, :])
        T.cuda.tile.ewise(lambda x: x + 1.0, r, r)
        T.cuda.tile.apply(T.ptx["st.global.v4.f32"], B[t, :], r)
    elif c == "cp.async":
        T.cuda.tile.apply(
            T.ptx["cp.async.cg.shared.global"], s.sub[t, :], A.sub[t, :], chunk_bytes=16
        )
        T.ptx["cp.async.wait_all"]()
        B[t, 0] = s[t, 0]
    elif c == "bulk store" or c == "bulk reduction":
        if t == 0:
            if c == "bulk store":
                T.cuda.tile.apply(T.ptx["cp.async.bulk.global.shared::cta.bulk_group"],
                                  B[0:1, :], s[0:1, :], chunk_bytes=16)  # fmt: skip
            else:
                T.cuda.tile.apply(T.ptx["cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"],
                                  B.view("uint32")[0:1, :], s.view("uint32")[0:1, :], chunk_bytes=16)  # fmt: skip
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)
    elif c == "tensor store" or c == "tensor reduction":
        if t == 0:
            opcode = STORE_BOX if c == "tensor store" else ADD_BOX
            T.cuda.tile.apply(T.ptx[opcode], B, s, box=(32, 4), coords=(0, 0))
            T.ptx["cp.async.bulk.commit_group"]()
            T.ptx["cp.async.bulk.wait_group"](0)
    elif c == "tensor load":
        mbar = T.alloc_shared((1,), "uint64", align=8)
        if t == 0:
            T.ptx["mbarrier.init.shared::cta.b64"](mbar.ptr_to([0]), T.uint32(1))
            T.ptx["fence.mbarrier_init.release.cluster"]()
            T.ptx["mbarrier.arrive.expect_tx.shared::cta.b64"](
                T.ptx.SINK, mbar.ptr_to([0]), T.uint32(512)
            )
        T.cuda.cta_sync()
        if t == 0:
            T.cuda.tile.apply(
                T.ptx[LOAD_BOX], s, A, box=(32, 4), coords=(0, 0), mbar=mbar.ptr_to([0])
            )
        T.cuda.mbarrier_wait(mbar.ptr_to([0]), 0)
        B[t, 0] = s[t, 0]
    # raw instructions
    elif c == "atom":
        T.ptx["atom.global.add.f32"](r[0, 0], A.ptr_to([t, 0]), 1.0)
    elif c == "red":
        T.ptx["red.global.add.f32"](A.ptr_to([t, 0]), 1.0)
    elif c == "a destination in memory":
        T.ptx["add.rn.f32"](B[t, 0], A[t, 0], 1.0)
    elif c == "a predicate":
        T.ptx["st.global.f32"](B.ptr_to([t, 0]), one, pred=A[t, 0] > 0.0)
    elif c == "hints":
        T.ptx["prefetch.global.L2"](A.ptr_to([t, 0]))
        T.ptx["applypriority.global.L2::evict_normal"](C.ptr_to([0]), 128)
        T.cuda.tile.apply(
            T.ptx["cp.async.bulk.prefetch.L2.global"], B[t : t + 1, :], chunk_bytes=16
        )
    elif c == "discard":
        T.ptx["discard.global.L2"](C.ptr_to([0]), 128)
    # addresses
    elif c == "an address alone":
        if T.cast(A.ptr_to([t, 0]), "uint64") % 16 == 0:
            B[t, 0] = 1.0
    elif c == "a pointer":
        p = A.ptr_to([0, 0])
        for i in range(32):
            if i == t:
                p = A.ptr_to([i, 1])
        T.ptx["st.global.f32"](p, one)
    elif c == "arithmetic":
        p = T.cast(A.ptr_to([0, 0]), "uint64") + T.cast(t * 16, "uint64")
        T.ptx["ld.global.f32"](r[0, 0], p)
        B[t, 0] = r[0, 0]
    elif c == "arithmetic of instructions":
        T.ptx["add.u64"](w[0], T.cast(A.ptr_to([0, 0]), "uint64"), T.cast(t * 16, "uint64"))
        T.ptx["st.global.f32"](w[0], one)
    elif c == "one of two":
        p = A.ptr_to([t, 0]) if t % 2 == 0 else B.ptr_to([t, 0])
        T.ptx["st.global.f32"](p, one)
    elif c == "one of two from a tile":
        w[0] = T.cast(A.ptr_to([t, 0]), "uint64")
        w[1] = T.cast(B.ptr_to([t, 0]), "uint64")
        T.ptx["ld.global.f32"](r[0, 0], w[t % 2])
    elif c == "the caller's":
        T.ptx["st.global.f32"](address + T.cast(t * 4, "uint64"), one)
    elif c == "the caller's or one's own":
        p = T.cast(A.ptr_to([0, 0]), "uint64")
        if t < 16:
            p = address
        T.ptx["st.global.f32"](p + T.cast(t * 4, "uint64"), one)
    elif c == "from memory":
        T.ptx["ld.global.f32"](r[0, 0], C[t])
        B[t, 0] = r[0, 0]
    elif c == "kept in memory":
        C[t] = T.cast(A.ptr_to([t, 0]), "uint64")
    elif c == "kept by an instruction":
        T.ptx["st.global.b64"](C.ptr_to([t]), T.cast(A.ptr_to([t, 0]), "uint64"))


@tile.jit
def copied(X, Y, t):
    for i in T.unroll(2):
        Y[t, i] = X[t, i]


ELSEWHERE = "*"
CASES = {
    "elements": ("A", "B"),
    "a condition": ("A", "B"),
    "an index": ("C", "B"),
    "a bound": ("C", "B"),
    "never executed": ("A", "B"),
    "in an inlined function": ("A", "B"),
    "ld and st": ("A", "B"),
    "ewise": ("A", "B"),
    "cp.async": ("A", "B"),
    "bulk store": ("", "B"),
    "bulk reduction": ("B", "B"),
    "tensor store": ("", "B"),
    "tensor reduction": ("B", "B"),
    "tensor load": ("A", "B"),
    "atom": ("A", "A"),
    "red": ("A", "A"),
    "a destination in memory": ("A", "B"),
    "a predicate": ("A", "B"),
    "hints": ("", ""),
    "an address alone": ("", "B"),
    "a pointer": ("", "A"),
    "arithmetic": ("A", "B"),
    "arithmetic of instructions": ("", "A"),
    "one of two": ("", "AB"),
    "one of two from a tile": ("AB", ""),
    "the caller's": ("", "ABC*"),
    "the caller's or one's own": ("", "ABC*"),
    "from memory": ("ABC*", "B"),
    "kept in memory": ("A", "AC"),
    "kept by an instruction": ("A", "AC"),
}
"""What is claimed to be read and written; ``*``: through an address from elsewhere."""


@pytest.mark.parametrize("case", CASES)
def test_what_a_kernel_accesses(case: str) -> None:
    read, written = CASES[case]
    a, b = torch.ones(32, 4), torch.ones(32, 4)
    addresses = torch.full((32,), a.data_ptr(), dtype=torch.int64).view(torch.uint64)
    given = a, b, addresses, b.data_ptr(), case
    variant = touch.check(*given)
    assert variant.read == set(read) - {ELSEWHERE}
    assert variant.written == set(written) - {ELSEWHERE}
    assert variant.follows_addresses == (ELSEWHERE in read + written)
    with launches() as seen:
        touch(*given)
    assert seen[0].seen_read <= variant.read
    assert seen[0].seen_written <= variant.written


@tile.jit
def boxed(descriptor: T.Tensor((128,), "uint8", align=64), X, Y: T.Tensor((32, 4), "float32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((32, 4), "float32", layout="default", align=128)
    s[t, 0] = Y[t, 0]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.ptx[STORE_BOX](descriptor.ptr_to([0]), (0, 0), s.ptr_to([0, 0]))
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def test_a_map_of_the_callers_own_leads_anywhere() -> None:
    x = torch.zeros(32, 4)
    variant = boxed.check(torch.zeros(128, dtype=torch.uint8), x, x)
    assert variant.read == {"descriptor", "Y"}
    assert variant.written == {"descriptor", "X", "Y"}
    assert variant.follows_addresses


# --- the kernels that come with tilejit


def product() -> None:
    a, b = (torch.randn(128, 64, dtype=torch.float16) for _ in range(2))
    matmul_mma.matmul(a, b.T)


SHIPPED: dict[str, Any] = {
    "add": lambda: add.add(torch.ones(64), torch.ones(64)),
    "softmax": lambda: softmax.softmax(torch.ones(3, 40)),
    "norm": lambda: norm.rms_norm(torch.ones(3, 64), torch.ones(64)),
    "transpose": lambda: transpose.transpose(torch.ones(40, 64)),
    "product": product,
}
INPUTS = {"A", "B", "X", "W"}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_kernels_access_what_is_claimed(name: str) -> None:
    with launches() as seen:
        SHIPPED[name]()
    assert seen
    for launch in seen:
        assert launch.seen_read <= launch.read, launch
        assert launch.seen_written == launch.written, launch
        assert not launch.written & INPUTS


def test_the_recorder_sees_what_it_is_there_for() -> None:
    """A claim that leaves something out fails the comparison above."""
    with launches() as seen:
        touch(
            torch.ones(32, 4),
            torch.ones(32, 4),
            torch.zeros(32, dtype=torch.uint64),
            0,
            "ld and st",
        )
    (launch,) = seen
    assert launch.seen_read == {"A"} and launch.seen_written == {"B"}


def test_what_cannot_be_simulated_is_looked_at_all_the_same() -> None:
    given = torch.ones(32, 4), torch.ones(32, 4), torch.zeros(32, dtype=torch.uint64), 0, "discard"
    with pytest.raises(Unsimulated):
        touch(*given)
    assert touch.check(*given).written == {"C"}
