"""The contract of cp.async.bulk and its relatives: copies, multicasts and reductions end to end, the
nearest illegal values, the text that is emitted.

The oracle is numpy and the contract: which bytes of which chunk arrive where.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tilejit as tile
from tests.families.case import Case
from tests.tile import kit
from tests.tile.kit import (
    apply,
    buffer,
    codes,
    hw,
    i32,
    issues,
    lets,
    op,
    region,
    text,
    var,
    whole,
)
from tilejit import T
from tilejit.errors import SimulationFault
from tilejit.ir import nodes
from tilejit.ptx import spelling
from tilejit.ptx.forms import Form

TARGETS = ("sm_90a", "sm_100a")
ARRIVES = "mbarrier::complete_tx::bytes"
LOAD = f"cp.async.bulk.shared::cluster.global.{ARRIVES}"
LOAD_CTA = f"cp.async.bulk.shared::cta.global.{ARRIVES}"
MULTICAST = f"{LOAD}.multicast::cluster"
SEND = f"cp.async.bulk.shared::cluster.shared::cta.{ARRIVES}"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
PREFETCH = "cp.async.bulk.prefetch.L2.global"
ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"
ADD_FAR = f"cp.reduce.async.bulk.shared::cluster.shared::cta.{ARRIVES}.add.u32"
HINT = ".L2::cache_hint"

pytestmark = pytest.mark.usefixtures("round_trips")


THREADS = 64
ISSUERS = {"thread": 1, "warp": 32, "cta": THREADS}


def random_bytes(*shape: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def on(device: str, x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(x.copy()).to(device)


# --- from global to shared memory and back, chunk by chunk


@tile.jit
def loaded(X, Y, valid: T.int32, c: T.constexpr):
    """Y = what shared memory full of 7 holds after chunks of X's rows have arrived in its rows."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared(Y.shape, "uint8", layout="default", align=128)
    bars = T.alloc_shared((3,), "uint64", align=8)
    for row in range(t, Y.shape[0], THREADS):
        for i in range(Y.shape[1]):
            s[row, i] = 7
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bars.ptr_to([c.bar]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        rows = min(valid, Y.shape[0]) if c.fill == "pred" else Y.shape[0]
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
            T.ptx.SINK, bars.ptr_to([c.bar]), T.uint32(rows * c.chunk_bytes)
        )
    T.cuda.cta_sync()
    from_, to = X.view(c.source), s.view(c.stored)
    n = c.chunk_bytes * 8 // from_.dtype.bits, c.chunk_bytes * 8 // to.dtype.bits
    if c.scope == "thread":
        if t == 33:
            load(to[:, 0 : n[1]], from_[:, 0 : n[0]], bars, t, valid, c)
    elif c.scope == "warp":
        if t < 32:
            load(
                to.view(32, c.repeats, to.shape[1])[:, :, 0 : n[1]],
                from_.view(32, c.repeats, from_.shape[1])[:, :, 0 : n[0]], bars, t, valid, c,
            )  # fmt: skip
    else:
        load(
            to.view(2, 32, c.repeats, to.shape[1])[:, :, :, 0 : n[1]],
            from_.view(2, 32, c.repeats, from_.shape[1])[:, :, :, 0 : n[0]], bars, t, valid, c,
        )  # fmt: skip
    T.cuda.mbarrier_wait(bars.ptr_to([c.bar]), 0)
    for row in range(t, Y.shape[0], THREADS):
        for i in range(Y.shape[1]):
            Y[row, i] = s[row, i]


@tile.jit
def load(to, from_, bars, t, valid, c):
    mbar = bars.ptr_to([c.bar])
    if c.fill == "policy":
        policy = T.alloc_local((1,), "uint64", layout="default")
        T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0])
        T.cuda.tile.apply(
            T.ptx["cp.async.bulk.prefetch.L2.global.L2::cache_hint"], from_,
            chunk_bytes=c.chunk_bytes, cache_policy=policy[0], scope=c.scope,
        )  # fmt: skip
        T.cuda.tile.apply(T.ptx[c.opcode], to, from_, chunk_bytes=c.chunk_bytes, mbar=mbar,
                          cache_policy=policy[0], scope=c.scope)  # fmt: skip
    elif c.fill == "pred":
        first = t * c.repeats
        T.cuda.tile.apply(T.ptx[c.opcode], to, from_, chunk_bytes=c.chunk_bytes, mbar=mbar,
                          pred=first < valid, scope=c.scope)  # fmt: skip
    else:
        T.cuda.tile.apply(T.ptx["cp.async.bulk.prefetch.L2.global"], from_,
                          chunk_bytes=c.chunk_bytes, scope=c.scope)  # fmt: skip
        T.cuda.tile.apply(
            T.ptx[c.opcode], to, from_, chunk_bytes=c.chunk_bytes, mbar=mbar, scope=c.scope
        )


def load_case(
    opcode: str, chunk_bytes: int, *, repeats: int = 1, scope: str = "thread", pitch: tuple[int, int] = (0, 0),
    source: str = "uint8", stored: str = "uint8", fill: str = "", bar: int = 0,
) -> Case:  # fmt: skip
    """``pitch``: bytes between the starts of chunks beyond ``chunk_bytes``, at the source and here."""
    return Case(
        opcode=opcode, chunk_bytes=chunk_bytes, repeats=repeats, scope=scope, pitch=pitch,
        source=source, stored=stored, fill=fill, bar=bar,
    )  # fmt: skip


LOADS = [
    *(load_case(opcode, n) for opcode in (LOAD, LOAD_CTA) for n in (16, 48, 256, 4096)),
    *(load_case(LOAD, 256, repeats=8, pitch=p) for p in ((0, 0), (256, 0), (0, 256), (16, 80))),
    *(
        load_case(LOAD_CTA, 32, repeats=2, scope=s, pitch=(16, 48))
        for s in ("thread", "warp", "cta")
    ),
    *(load_case(f"{opcode}{HINT}", 64, repeats=3, fill="policy") for opcode in (LOAD, LOAD_CTA)),
    load_case(LOAD, 64, repeats=2, source="float16", stored="uint32", bar=2),
    load_case(LOAD, 32, repeats=2, source="float64", stored="int8"),
    load_case(LOAD, 16, scope="warp", fill="pred"),
    load_case(LOAD_CTA, 32, repeats=2, scope="cta", fill="pred"),
]


def rows_of(case: Case) -> int:
    return ISSUERS[case.scope] * case.repeats


def arrived(case: Case, x: np.ndarray, pitch: int, kept_rows: int, rest: int) -> np.ndarray:
    expected = np.full((rows_of(case), case.chunk_bytes + pitch), rest, np.uint8)
    expected[:kept_rows, : case.chunk_bytes] = x[:kept_rows, : case.chunk_bytes]
    return expected


@pytest.mark.parametrize("case", LOADS, ids=repr)
def test_loads(device: str, case: Case) -> None:
    rows = rows_of(case)
    valid = rows // 2 if case.fill == "pred" else rows
    x = random_bytes(rows, case.chunk_bytes + case.pitch[0])
    out = torch.zeros((rows, case.chunk_bytes + case.pitch[1]), dtype=torch.uint8, device=device)
    loaded(on(device, x), out, valid, case)
    assert np.array_equal(out.cpu().numpy(), arrived(case, x, case.pitch[1], valid, 7))


@tile.jit
def stored(X, Y, c: T.constexpr):
    """Chunks of Y's rows = those of X's rows, through shared memory."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=THREADS))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared(X.shape, "uint8", layout="default", align=128)
    for row in range(t, X.shape[0], THREADS):
        for i in range(X.shape[1]):
            s[row, i] = X[row, i]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    from_, to = s.view(c.source), Y.view(c.stored)
    n = c.chunk_bytes * 8 // from_.dtype.bits, c.chunk_bytes * 8 // to.dtype.bits
    if c.scope == "thread":
        if t == 5:
            store(to[:, 0 : n[1]], from_[:, 0 : n[0]], c)
    elif c.scope == "warp":
        if t < 32:
            store(
                to.view(32, c.repeats, to.shape[1])[:, :, 0 : n[1]],
                from_.view(32, c.repeats, from_.shape[1])[:, :, 0 : n[0]], c,
            )  # fmt: skip
    else:
        store(
            to.view(2, 32, c.repeats, to.shape[1])[:, :, :, 0 : n[1]],
            from_.view(2, 32, c.repeats, from_.shape[1])[:, :, :, 0 : n[0]], c,
        )  # fmt: skip


@tile.jit
def store(to, from_, c):
    if c.fill == "policy":
        policy = T.alloc_local((1,), "uint64", layout="default")
        T.ptx["createpolicy.fractional.L2::evict_first.b64"](policy[0])
        T.cuda.tile.apply(T.ptx[c.opcode], to, from_, chunk_bytes=c.chunk_bytes, cache_policy=policy[0],
                          scope=c.scope)  # fmt: skip
    else:
        T.cuda.tile.apply(T.ptx[c.opcode], to, from_, chunk_bytes=c.chunk_bytes, scope=c.scope)
    T.ptx["cp.async.bulk.commit_group"]()
    T.ptx["cp.async.bulk.wait_group"](0)


STORES = [
    *(load_case(STORE, n) for n in (16, 48, 4096)),
    *(load_case(STORE, 256, repeats=8, pitch=p) for p in ((0, 0), (256, 0), (0, 256), (16, 80))),
    *(load_case(STORE, 32, repeats=2, scope=s, pitch=(16, 48)) for s in ("thread", "warp", "cta")),
    load_case(f"{STORE}{HINT}", 64, repeats=3, fill="policy"),
    load_case(STORE, 64, repeats=2, source="float16", stored="uint32"),
]


@pytest.mark.parametrize("case", STORES, ids=repr)
def test_stores(device: str, case: Case) -> None:
    rows = rows_of(case)
    x = random_bytes(rows, case.chunk_bytes + case.pitch[0])
    out = torch.full((rows, case.chunk_bytes + case.pitch[1]), 9, dtype=torch.uint8, device=device)
    stored(on(device, x), out, case)
    assert np.array_equal(out.cpu().numpy(), arrived(case, x, case.pitch[1], rows, 9))


@tile.jit
def streamed(
    X: T.Tensor((T.dynamic("M"), 64), "float32", align=16),
    Y: T.Tensor((T.dynamic("M"), 64), "float32", align=16),
):
    """Y = X + 1 row by row: two buffers, each stored while the other is filled again."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((2, 64), "float32", layout="default", align=16)
    for row in range(X.shape[0]):
        if t == 0:
            T.ptx["cp.async.bulk.wait_group.read"](1)
        T.cuda.cta_sync()
        s[row % 2, t] = X[row, t] + 1.0
        T.ptx["fence.proxy.async.shared::cta"]()
        T.cuda.cta_sync()
        if t == 0:
            T.cuda.tile.apply(T.ptx["cp.async.bulk.global.shared::cta.bulk_group"], Y.sub[row, :],
                              s.sub[row % 2, :], chunk_bytes=256)  # fmt: skip
            T.ptx["cp.async.bulk.commit_group"]()
    if t == 0:
        T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_a_source_is_written_again_once_it_has_been_read(device: str, rows: int) -> None:
    x = torch.arange(rows * 64, dtype=torch.float32).reshape(rows, 64)
    out = torch.zeros_like(x).to(device)
    streamed(x.to(device), out)
    assert torch.equal(out.cpu(), x + 1)


# --- to other CTAs of the cluster


@tile.jit
def sent(X, Y, c: T.constexpr):
    """Each CTA sends its rows of X to the next one, which adds nothing and stores what it holds."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=c.ctas, block=32, cluster=c.ctas))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((X.shape[1], X.shape[2]), c.type, layout="default", align=16)
    d = T.alloc_shared((Y.shape[1], Y.shape[2]), c.type, layout="default", align=16)
    bars = T.alloc_shared((2,), "uint64", align=8)
    for i in range(t, X.shape[2], 32):
        for row in range(X.shape[1]):
            s[row, i] = X[rank, row, i]
    for i in range(t, Y.shape[2], 32):
        for row in range(Y.shape[1]):
            d[row, i] = Y[rank, row, i]
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bars.ptr_to([1]), T.uint32(1))
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
            T.ptx.SINK, bars.ptr_to([1]), T.uint32(X.shape[1] * c.chunk_bytes)
        )
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cluster_sync()
    elements = c.chunk_bytes * 8 // s.dtype.bits
    if t == 0:
        T.cuda.tile.apply(
            T.ptx[c.opcode], d[:, 0:elements], s[:, 0:elements], chunk_bytes=c.chunk_bytes,
            mbar=bars.ptr_to([1]), remote_cta_id=(rank + 1) % c.ctas,
        )  # fmt: skip
    T.cuda.mbarrier_wait_acquire_cluster(bars.ptr_to([1]), 0)
    for i in range(t, Y.shape[2], 32):
        for row in range(Y.shape[1]):
            Y[rank, row, i] = d[row, i]
    T.cuda.cluster_sync()


@pytest.mark.parametrize("ctas", [1, 2, 4, 8])
@pytest.mark.parametrize("pitch", [(256, 256), (256, 128), (128, 136)])
def test_copies_to_another_cta(device: str, ctas: int, pitch: tuple[int, int]) -> None:
    """The contract's float16 view (8,128):(256,1) with chunks of 256 bytes, and other outer strides."""
    x = np.random.default_rng(1).integers(-9, 9, (ctas, 8, pitch[0])).astype(np.float16)
    out = torch.full((ctas, 8, pitch[1]), 7, dtype=torch.float16, device=device)
    sent(on(device, x), out, Case(opcode=SEND, type="float16", chunk_bytes=256, ctas=ctas))
    expected = np.full((ctas, 8, pitch[1]), 7, np.float16)
    expected[..., :128] = np.roll(x, 1, axis=0)[..., :128]
    assert np.array_equal(out.cpu().numpy(), expected)


@tile.jit
def sent_in_part(
    X: T.Tensor((2, 4, 32), "float32"), Y: T.Tensor((2, 4, 32), "float32"), stage: T.int32, sends: T.int32
):  # fmt: skip
    """Each CTA sends one of four rows, chosen at run time, to the other; only ``sends`` CTAs do."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
    T.assume(0 <= stage < 4)
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((4, 32), "float32", layout="default", align=16)
    d = T.alloc_shared((4, 32), "float32", layout="default", align=16)
    bars = T.alloc_shared((1,), "uint64", align=8)
    for row in range(4):
        s[row, t] = X[rank, row, t]
        d[row, t] = T.float32(7)
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bars.ptr_to([0]), T.uint32(1))
        expected = T.uint32(128) if 1 - rank < sends else T.uint32(0)
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](T.ptx.SINK, bars.ptr_to([0]), expected)
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cluster_sync()
    if t == 0:
        T.cuda.tile.apply(
            T.ptx["cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"],
            d.sub[stage, :], s.sub[stage, :], chunk_bytes=128, mbar=bars.ptr_to([0]),
            remote_cta_id=1 - rank, pred=rank < sends,
        )  # fmt: skip
    T.cuda.mbarrier_wait_acquire_cluster(bars.ptr_to([0]), 0)
    for row in range(4):
        Y[rank, row, t] = d[row, t]
    T.cuda.cluster_sync()


@pytest.mark.parametrize(("stage", "sends"), [(0, 2), (3, 2), (2, 1), (1, 0)])
def test_a_stage_at_run_time_and_a_skipped_send(device: str, stage: int, sends: int) -> None:
    """What is skipped completes nothing: its receiver expects no bytes of it."""
    x = torch.arange(256, dtype=torch.float32).reshape(2, 4, 32)
    out = torch.zeros_like(x).to(device)
    sent_in_part(x.to(device), out, stage, sends)
    expected = torch.full_like(x, 7)
    for sender in range(sends):
        expected[1 - sender, stage] = x[sender, stage]
    assert torch.equal(out.cpu(), expected)


@tile.jit
def waits_for_groups(X: T.Tensor((32,), "float32"), Y: T.Tensor((32,), "float32"), c: T.constexpr):
    """A load that is waited for with its barrier, or with the groups of other copies."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared((32,), "float32", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", align=8)
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](T.ptx.SINK, bar.ptr_to([0]), T.uint32(128))
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(T.ptx[LOAD], s, X, chunk_bytes=128, mbar=bar.ptr_to([0]))
        T.ptx[f"{c}.commit_group"]()
        T.ptx[f"{c}.wait_group"](0)
        Y[0] = s[0]
    T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    Y[t] = s[t]


@pytest.mark.parametrize("groups", ["cp.async", "cp.async.bulk"])
def test_groups_do_not_complete_what_a_barrier_does(groups: str) -> None:
    with pytest.raises(SimulationFault) as caught:
        waits_for_groups(torch.ones(32), torch.zeros(32), groups)
    assert "sim/in-flight" in caught.value.codes


@tile.jit
def multicast(X, Y, mask: T.uint16, c: T.constexpr):
    """CTA ``c.sender`` loads X for the CTAs of the mask; Y[r] = what CTA r holds then."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=c.ctas, block=32, cluster=c.ctas))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((X.shape[0], X.shape[1]), "float32", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", align=8)
    for i in range(t, X.shape[1], 32):
        for row in range(X.shape[0]):
            s[row, i] = 7.0
    mine = (T.cast(mask, ty="int32") >> rank) % 2 == 1
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if mine:
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
                T.ptx.SINK, bar.ptr_to([0]), T.uint32(X.shape[0] * X.shape[1] * 4)
            )
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cluster_sync()
    if t == 0 and rank == c.sender:
        if c.fill == "policy":
            policy = T.alloc_local((1,), "uint64", layout="default")
            T.ptx["createpolicy.fractional.L2::evict_last.b64"](policy[0])
            T.cuda.tile.apply(T.ptx[c.opcode], s, X, chunk_bytes=X.shape[1] * 4, mbar=bar.ptr_to([0]),
                              cta_mask=mask, cache_policy=policy[0])  # fmt: skip
        else:
            T.cuda.tile.apply(
                T.ptx[c.opcode],
                s,
                X,
                chunk_bytes=X.shape[1] * 4,
                mbar=bar.ptr_to([0]),
                cta_mask=mask,
            )
    if mine:
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    for i in range(t, X.shape[1], 32):
        for row in range(X.shape[0]):
            Y[rank, row, i] = s[row, i]
    T.cuda.cluster_sync()


@pytest.mark.parametrize(
    ("ctas", "sender", "mask"),
    [(2, 0, 0b11), (2, 0, 0b10), (2, 1, 0b01), (4, 0, 0b1111), (4, 2, 0b1011), (4, 3, 0b0100)],
)
@pytest.mark.parametrize("fill", ["", "policy"])
def test_multicasts(device: str, ctas: int, sender: int, mask: int, fill: str) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (3, 32)).astype(np.float32)
    out = torch.zeros((ctas, 3, 32), device=device)
    case = Case(opcode=MULTICAST + HINT * (fill == "policy"), ctas=ctas, sender=sender, fill=fill)
    multicast(on(device, x), out, mask, case)
    expected = [x if mask >> r & 1 else np.full_like(x, 7) for r in range(ctas)]
    assert np.array_equal(out.cpu().numpy(), np.stack(expected))


# --- reductions


def reductions(prefix: str, family: str = "cp_async_bulk") -> list[Form]:
    return [f for f in spelling.forms_of_family(family) if f.spelling.startswith(prefix)]


GLOBAL_REDUCTIONS = [
    f for f in reductions("cp.reduce.async.bulk.global") if HINT[1:] not in f.modifiers
]
FAR_REDUCTIONS = reductions("cp.reduce.async.bulk.shared::cluster")
RED_ASYNC = reductions("red.async", "st_async")
DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "u32": "uint32",
          "s32": "int32", "u64": "uint64", "s64": "int64", "b32": "uint32", "b64": "uint64"}  # fmt: skip


def operation(form: Form) -> str:
    names = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
    return next(m for m in form.modifiers if m in names)


def numbers(type_: str, count: int, seed: int) -> torch.Tensor:
    """Values over the type's range; floats with few enough bits that their sums are exact."""
    chance = np.random.default_rng(seed)
    if "f" in type_:
        return torch.from_numpy(chance.integers(-60, 60, count) / 4).to(
            getattr(torch, DTYPES[type_])
        )
    dtype = np.dtype(DTYPES[type_])
    info = np.iinfo(dtype)
    wide = chance.integers(info.min, info.max, count, dtype, endpoint=True)
    small = chance.integers(0, 5, count).astype(dtype)
    return torch.from_numpy(np.where(chance.random(count) < 0.5, wide, small))


def combined(name: str, old: torch.Tensor, new: torch.Tensor) -> np.ndarray:
    if old.dtype.is_floating_point:
        a, b = old.double().numpy(), new.double().numpy()
        return {"add": np.add, "min": np.minimum, "max": np.maximum}[name](a, b)
    a, b = old.numpy(), new.numpy()
    if name == "inc":
        return np.where(a >= b, 0, a + a.dtype.type(1))
    if name == "dec":
        return np.where((a == 0) | (a > b), b, a - a.dtype.type(1))
    return {
        "add": np.add, "min": np.minimum, "max": np.maximum,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[name](a, b)  # fmt: skip


def as_numbers(x: torch.Tensor) -> np.ndarray:
    return x.cpu().double().numpy() if x.dtype.is_floating_point else x.cpu().numpy()


@tile.jit
def reduced(X, Y, c: T.constexpr):
    """Y = Y op X, through shared memory, in two chunks."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    t = T.cuda.thread_idx("x")
    s = T.alloc_shared(X.shape, c.type, layout="default", align=16)
    for i in range(t, X.shape[0], 32):
        s[i] = X[i]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(T.ptx[c.opcode], Y.view(2, Y.shape[0] // 2), s.view(2, X.shape[0] // 2),
                          chunk_bytes=X.shape[0] // 2 * X.dtype.bytes)  # fmt: skip
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize("form", GLOBAL_REDUCTIONS, ids=lambda f: ".".join(f.modifiers[5:]))
def test_reductions_to_global_memory(device: str, form: Form) -> None:
    type_ = form.modifiers[-1]
    old, new = numbers(type_, 64, 1), numbers(type_, 64, 2)
    out = old.clone().to(device)
    reduced(new.to(device), out, Case(opcode=form.spelling, type=DTYPES[type_]))
    assert np.array_equal(as_numbers(out), combined(operation(form), old, new))


@pytest.mark.parametrize("form", FAR_REDUCTIONS, ids=lambda f: ".".join(f.modifiers[5:]))
def test_reductions_to_another_cta(device: str, form: Form) -> None:
    type_ = form.modifiers[-1]
    old, new = numbers(type_, 2 * 64, 1), numbers(type_, 2 * 64, 2)
    out = old.clone().reshape(2, 2, 32).to(device)
    chunk = 32 * old.element_size()
    case = Case(opcode=form.spelling, type=DTYPES[type_], chunk_bytes=chunk, ctas=2)
    sent(new.reshape(2, 2, 32).to(device), out, case)
    swapped = new.reshape(2, 64).flip(0).reshape(-1)
    expected = combined(operation(form), old, swapped)
    assert np.array_equal(as_numbers(out).reshape(-1), expected)


@tile.jit
def summed(X: T.Tensor((8, 64), "float32", align=16), Y: T.Tensor((64,), "float32", align=16)):
    """Y += the rows of X, one per CTA, at once."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=8, block=64))
    t, row = T.cuda.thread_idx("x"), T.cuda.block_idx("x")
    s = T.alloc_shared((64,), "float32", layout="default", align=16)
    s[t] = X[row, t]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.cuda.tile.apply(T.ptx["cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"], Y, s,
                          chunk_bytes=256)  # fmt: skip
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def test_ctas_reduce_into_the_same_elements(device: str) -> None:
    x = torch.randint(-50, 50, (8, 64), generator=torch.Generator().manual_seed(1)).float()
    out = torch.ones(64, device=device)
    summed(x.to(device), out)
    assert torch.equal(out.cpu(), 1 + x.sum(dim=0))


def test_float32_sums_keep_subnormals(device: str) -> None:
    """As an H200 has it; the PTX ISA says that they are flushed."""
    old = torch.tensor([1e-40, 0.0, -1e-40, 1.0] * 16)
    new = torch.tensor([1e-40, 1e-40, -1e-40, -1e-40] * 16)
    out = old.clone().to(device)
    opcode = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32"
    reduced(new.to(device), out, Case(opcode=opcode, type="float32"))
    expected = torch.from_numpy(old.numpy() + new.numpy())
    assert expected.count_nonzero() == 64  # numpy keeps them, too
    assert torch.equal(out.cpu(), expected)


# --- registers to another CTA


@tile.jit
def registers_sent(X, Y, c: T.constexpr):
    """Each thread sends its numbers of X[rank] to its place in the next CTA: Y[rank] = Y[rank] op those."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
    t, rank = T.cuda.thread_idx("x"), T.cuda.cluster_cta_id("x")
    d = T.alloc_shared((32, c.vector), c.type, layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", align=8)
    r = T.alloc_local((c.vector,), c.type, layout="default")
    for i in T.unroll(c.vector):
        d[t, i] = Y[rank, t, i]
        r[i] = X[rank, t, i]
    if t == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](
            T.ptx.SINK, bar.ptr_to([0]), T.uint32(32 * c.vector * X.dtype.bytes)
        )
        T.ptx["fence.mbarrier_init.release.cluster"]()
    T.cuda.cluster_sync()
    to = T.cuda.map_shared_rank(d.ptr_to([t, 0]), 1 - rank)
    there = T.cuda.map_shared_rank(bar.ptr_to([0]), 1 - rank)
    if c.vector == 4:
        T.ptx[c.opcode](to, (r[0], r[1], r[2], r[3]), there)
    elif c.vector == 2:
        T.ptx[c.opcode](to, (r[0], r[1]), there)
    else:
        T.ptx[c.opcode](to, r[0], there)
    T.cuda.mbarrier_wait_acquire_cluster(bar.ptr_to([0]), 0)
    for i in T.unroll(c.vector):
        Y[rank, t, i] = d[t, i]
    T.cuda.cluster_sync()


ST_ASYNC = [f for f in reductions("st.async", "st_async") if "weak" not in f.modifiers]


@pytest.mark.parametrize(
    "form", [*ST_ASYNC, *RED_ASYNC], ids=lambda f: f.spelling.rpartition("bytes.")[2]
)
def test_registers_to_another_cta(device: str, form: Form) -> None:
    type_, vector = form.modifiers[-1], form.operands[1].lanes
    old, new = numbers(type_, 64 * vector, 1), numbers(type_, 64 * vector, 2)
    out = old.clone().reshape(2, 32, vector).to(device)
    case = Case(opcode=form.spelling, type=DTYPES[type_], vector=vector)
    registers_sent(new.reshape(2, 32, vector).to(device), out, case)
    swapped = new.reshape(2, -1).flip(0).reshape(-1)
    expected = (
        combined(operation(form), old, swapped) if form.mnemonic == "red" else as_numbers(swapped)
    )
    assert np.array_equal(as_numbers(out).reshape(-1), expected)


# --- raw copies


@tile.jit
def raw_copy(X, Y, nbytes: T.uint32):
    """The first ``nbytes`` of Y = those of X, through shared memory."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    s = T.alloc_shared((256,), "uint8", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", align=8)
    if T.cuda.thread_idx("x") == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        T.ptx["mbarrier.arrive.expect_tx.shared.b64"](T.ptx.SINK, bar.ptr_to([0]), nbytes)
        T.ptx["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"](
            s.ptr_to([0]), X.ptr_to([0]), nbytes, bar.ptr_to([0])
        )
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group"](Y.ptr_to([0]), s.ptr_to([0]), nbytes)
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


@pytest.mark.parametrize("nbytes", [16, 112, 256])
def test_raw_copies_of_a_run_time_size(device: str, nbytes: int) -> None:
    x = random_bytes(256)
    out = torch.full((256,), 9, dtype=torch.uint8, device=device)
    raw_copy(on(device, x), out, nbytes)
    expected = np.where(np.arange(256) < nbytes, x, 9)
    assert np.array_equal(out.cpu().numpy(), expected)


@pytest.mark.parametrize("nbytes", [8, 100, 272])
def test_a_run_time_size_must_be_right(nbytes: int) -> None:
    out = torch.zeros(256, dtype=torch.uint8)
    with pytest.raises(SimulationFault) as caught:
        raw_copy(torch.zeros(256, dtype=torch.uint8), out, nbytes)
    found = {d.code for d in caught.value.diagnostics}
    assert found & ({"sim/out-of-bounds"} if nbytes == 272 else {"sim/copy-size"})


@tile.jit
def astray(X, what: T.constexpr):
    """A raw copy by CTA 0 of a cluster of two with one address or mask that is wrong."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=2, block=32, cluster=2))
    rank = T.cuda.cluster_cta_id("x")
    s = T.alloc_shared((64,), "uint8", layout="default", align=16)
    bar = T.alloc_shared((1,), "uint64", align=8)
    if T.cuda.thread_idx("x") == 0:
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), T.uint32(1))
        T.ptx["fence.mbarrier_init.release.cluster"]()
        if rank == 0:
            T.ptx["mbarrier.arrive.expect_tx.shared.b64"](T.ptx.SINK, bar.ptr_to([0]), 32)
    T.cuda.cluster_sync()
    if T.cuda.thread_idx("x") == 0 and rank == 0:
        if what == "nothing":
            raw_load(s.ptr_to([0]), X.ptr_to([0]), bar.ptr_to([0]))
        elif what == "dst":
            raw_load(T.cuda.map_shared_rank(s.ptr_to([0]), 1), X.ptr_to([0]), bar.ptr_to([0]))
        elif what == "mbar":
            raw_load(s.ptr_to([0]), X.ptr_to([0]), T.cuda.map_shared_rank(bar.ptr_to([0]), 1))
        elif what == "dst alignment":
            raw_load(s.ptr_to([8]), X.ptr_to([0]), bar.ptr_to([0]))
        elif what == "src alignment":
            raw_load(s.ptr_to([0]), X.ptr_to([4]), bar.ptr_to([0]))
        else:
            T.ptx[
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
            ](s.ptr_to([0]), X.ptr_to([0]), 32, bar.ptr_to([0]), T.uint16(5))
        T.cuda.mbarrier_wait(bar.ptr_to([0]), 0)
    T.cuda.cluster_sync()


@tile.jit
def raw_load(to, source, bar):
    T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"](to, source, 32, bar)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("dst", "sim/out-of-bounds"), ("mbar", "sim/out-of-bounds"), ("mask", "sim/cta-mask"),
        ("dst alignment", "sim/misaligned"), ("src alignment", "sim/misaligned"),
    ],
)  # fmt: skip
def test_raw_copies_astray(what: str, code: str) -> None:
    x = torch.zeros(64, dtype=torch.uint8)
    astray(x, "nothing")
    with pytest.raises(SimulationFault) as caught:
        astray(x, what)
    assert caught.value.diagnostics[0].code == code


@tile.jit(target="sm_100a")
def masked_store(X, Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    s = T.alloc_shared((64,), "uint8", layout="default", align=16)
    t = T.cuda.thread_idx("x")
    s[t], s[t + 32] = X[t], X[t + 32]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    if t == 0:
        T.ptx["cp.async.bulk.global.shared::cta.bulk_group.cp_mask"](
            Y.ptr_to([0]), s.ptr_to([0]), 64, T.uint16(0x00F5)
        )
        T.ptx["cp.async.bulk.commit_group"]()
        T.ptx["cp.async.bulk.wait_group"](0)


def test_a_byte_mask_keeps_bytes() -> None:
    x, out = random_bytes(64), torch.full((64,), 9, dtype=torch.uint8)
    masked_store(torch.from_numpy(x), out)
    kept = (0x00F5 >> np.arange(64) % 16) & 1 == 1
    assert np.array_equal(out.numpy(), np.where(kept, x, 9))


# --- any order


@pytest.mark.parametrize("seed", range(1, 9))
def test_any_order_gives_the_same(seed: int) -> None:
    """The simulator chooses when bytes move, and who goes first, by the seed."""
    with tile.simulation(seed=seed):
        for load_ in (LOADS[9], LOADS[14], LOADS[-1]):
            test_loads("cpu", load_)
        test_stores("cpu", STORES[-3])
        test_a_source_is_written_again_once_it_has_been_read("cpu", 7)
        test_copies_to_another_cta("cpu", 4, (256, 128))
        test_multicasts("cpu", 4, 2, 0b1011, "")
        test_reductions_to_another_cta("cpu", FAR_REDUCTIONS[0])
        test_ctas_reduce_into_the_same_elements("cpu")
        test_registers_to_another_cta("cpu", ST_ASYNC[0])
        test_registers_to_another_cta("cpu", RED_ASYNC[0])


# --- the text


def emitted(cuda: str) -> list[str]:
    lines = [line for line in cuda.splitlines() if re.search(r"asm.*(cp\.|mapa)", line)]
    found = [re.sub(r'.*asm(?: volatile)?\("([^/]*;) //.*', r"\1", line) for line in lines]
    return [re.sub(r"%\d+", "%", f) for f in found]


@pytest.mark.parametrize("target", TARGETS)
def test_emitted_instructions(target: str) -> None:
    x = torch.zeros((4, 3, 256), dtype=torch.float16)
    case = Case(opcode=SEND, type="float16", chunk_bytes=256, ctas=4)
    variant = sent.compile(x, x.clone(), case, target=target)
    mapped = "mapa.shared::cluster.u32 %, %, %;"
    assert emitted(variant.asm["cuda"]) == [
        mapped,
        mapped, f"{SEND} [%], [%], 256, [%];",
        mapped, f"{SEND} [%], [%+512], 256, [%];",
        mapped, f"{SEND} [%], [%+1024], 256, [%];",
    ]  # fmt: skip
    copies = [line for line in variant.asm["cuda"].splitlines() if "cp.async.bulk" in line]
    assert all("asm volatile(" in line and line.endswith(': "memory");') for line in copies)
    assert variant.asm["ptx"].count("cp.async.bulk") == 3


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", [LOADS[0], LOADS[9], LOADS[14], *LOADS[-2:]], ids=repr)
def test_loads_assemble(case: Case, target: str) -> None:
    x = torch.zeros((rows_of(case), case.chunk_bytes + case.pitch[0]), dtype=torch.uint8)
    y = torch.zeros((rows_of(case), case.chunk_bytes + case.pitch[1]), dtype=torch.uint8)
    variant = loaded.compile(x, y, 5, case, target=target)
    copies = [line for line in emitted(variant.asm["cuda"]) if line.startswith(case.opcode + " [")]
    assert len(copies) == case.repeats or (case.fill == "pred" and not copies)
    assert len(variant.cubin) > 0


@pytest.mark.parametrize("target", TARGETS)
def test_multicasts_and_reductions_assemble(target: str) -> None:
    x, y = torch.zeros((3, 32)), torch.zeros((4, 3, 32))
    case = Case(opcode=MULTICAST + HINT, ctas=4, sender=0, fill="policy")
    lines = emitted(multicast.compile(x, y, 15, case, target=target).asm["cuda"])
    assert lines[0] == f"{MULTICAST}{HINT} [%], [%], 128, [%], %, %;"
    for form in (GLOBAL_REDUCTIONS[0], GLOBAL_REDUCTIONS[5]):
        old = numbers(form.modifiers[-1], 64, 1)
        case = Case(opcode=form.spelling, type=DTYPES[form.modifiers[-1]])
        assert len(reduced.compile(old, old.clone(), case, target=target).cubin) > 0
    for form in (ST_ASYNC[0], RED_ASYNC[0]):
        old = numbers(form.modifiers[-1], 64, 1).reshape(2, 32, 1)
        case = Case(opcode=form.spelling, type=DTYPES[form.modifiers[-1]], vector=1)
        assert len(registers_sent.compile(old, old.clone(), case, target=target).cubin) > 0


def test_a_byte_mask_needs_sm_100() -> None:
    x = torch.zeros(64, dtype=torch.uint8)
    cuda = masked_store.compile(x, x.clone()).asm["cuda"]
    assert f"{STORE}.cp_mask [%], [%], %, %;" in re.sub(r"%\d", "%", cuda)
    places = [nodes.Address(b, i32(0), nodes.PointerType(b.type.space)) for b in (X, S)]
    call_ = kit.raw(
        f"{STORE}.cp_mask", *places, i32(16), nodes.Const(3, nodes.ScalarType(tile.dtypes.uint16))
    )
    assert codes(kit.kernel(call_, target="sm_100a")) == []
    assert codes(kit.kernel(call_, target="sm_90a")) == ["target/unsupported"]


# --- the nearest illegal values

X = buffer("x", (64, 64), "float32", "global")
Y = buffer("y", (64, 64), "float32", "global")
S = buffer("s", (64, 64), "float32", "shared")
D = buffer("d", (64, 64), "float32", "shared")
BARS = buffer("bars", (4,), "uint64", "shared", align=8)
TID = hw("tid")
MASK, POLICY = var("mask", nodes.ScalarType(tile.dtypes.uint16)), var("policy", nodes.UINT64)
SHARED = nodes.PointerType("shared")
MBAR = nodes.Address(BARS, i32(8), SHARED)


def row(
    buffer_: nodes.Var, elements: int = 4, start: tuple[Any, Any] = (0, 0), rows: int = 1
) -> nodes.Region:
    return region(whole(buffer_), start, (rows, elements))


def call(
    name: str, *operands: Any, size: int | None = 16, scope: str = "thread", cluster: int = 4, **kw: Any
) -> nodes.Function:  # fmt: skip
    keywords = {"chunk_bytes": i32(size)} if size is not None else {}
    made = apply(name, *operands, scope=scope, **keywords, **kw)
    return kit.kernel(made, params=(MASK, POLICY), cluster=(cluster,))


def load_call(dst: Any = None, src: Any = None, name: str = LOAD, **kw: Any) -> nodes.Function:
    return call(name, dst or row(S), src or row(X), **{"mbar": MBAR, **kw})


def send_call(dst: Any = None, src: Any = None, name: str = SEND, **kw: Any) -> nodes.Function:
    return call(name, dst or row(D), src or row(S), **{"mbar": MBAR, "remote_cta_id": i32(1), **kw})


def store_call(dst: Any = None, src: Any = None, name: str = STORE, **kw: Any) -> nodes.Function:
    return call(name, dst or row(X), src or row(S), **kw)


LEGAL = {
    LOAD: load_call, LOAD_CTA: lambda **kw: load_call(name=LOAD_CTA, **kw),
    MULTICAST: lambda **kw: load_call(name=MULTICAST, **{"cta_mask": MASK, **kw}),
    SEND: send_call, STORE: store_call,
}  # fmt: skip


@pytest.mark.parametrize("name", LEGAL)
def test_legal_calls(name: str) -> None:
    assert codes(LEGAL[name]()) == []


def test_a_send_maps_the_barrier_once_and_every_destination() -> None:
    found = [i.form.spelling for i in issues(send_call(row(D, rows=3), row(S, rows=3)))]
    mapped = "mapa.shared::cluster.u32"
    assert found == [mapped, *[mapped, SEND] * 3]
    assert [step.value is None for step in lets(send_call())] == [False, True, True]


@pytest.mark.parametrize("size", [0, -16, 8, 15, 17, 24, 2, True, 1024, 48])
def test_chunk_bytes(size: int) -> None:
    legal = size in (48, 1024)
    elements = size // 4 if legal else 4
    wide = [buffer(n, (4, 256), "float32", s) for n, s in (("x", "global"), ("s", "shared"))]
    got = codes(store_call(row(wide[0], elements), row(wide[1], elements), size=size))
    assert got == ([] if legal else ["cp_async_bulk/chunk-bytes"])


@pytest.mark.parametrize("size", [2**20 - 16, 2**20, 2**20 + 16])
def test_the_longest_chunk(size: int) -> None:
    """Beyond it the assembler refuses the instruction; only a prefetch can come so far."""
    long = whole(buffer("x", (2**20 + 16,), "uint8", "global"))
    f = call(PREFETCH, region(long, (0,), (size,)), size=size)
    assert codes(f) == ([] if size < 2**20 else ["cp_async_bulk/chunk-bytes"])
    assert size < 2**20 or "expected a multiple of 16 bytes from 16 to 1048560" in text(f)


def test_chunk_bytes_is_required_and_static() -> None:
    assert codes(store_call(size=None)) == ["cp_async_bulk/missing-keyword"]
    assert codes(store_call(size=None, chunk_bytes=TID)) == ["cp_async_bulk/static-keyword"]


NEEDED = [(LOAD, "mbar"), (LOAD_CTA, "mbar"), (MULTICAST, "mbar"), (MULTICAST, "cta_mask"),
          (SEND, "mbar"), (SEND, "remote_cta_id")]  # fmt: skip
GIVEN = {"mbar": MBAR, "remote_cta_id": i32(0), "cta_mask": MASK}


@pytest.mark.parametrize("keyword", GIVEN)
@pytest.mark.parametrize("name", LEGAL)
def test_keywords_go_with_their_operands(name: str, keyword: str) -> None:
    if (name, keyword) in NEEDED:
        absent = nodes.Static(None)
        assert codes(LEGAL[name](**{keyword: absent})) == ["cp_async_bulk/missing-keyword"]
        assert f"{keyword}=" in text(LEGAL[name](**{keyword: absent}))
    else:
        assert codes(LEGAL[name](**{keyword: GIVEN[keyword]})) == ["cp_async_bulk/excess-keyword"]


def test_unknown_keywords() -> None:
    for keyword in ("src_size", "barrier", "preserve_dst"):
        value = nodes.Const(True, nodes.BOOL) if keyword == "preserve_dst" else i32(1)
        assert codes(store_call(**{keyword: value})) == ["cp_async_bulk/unknown-keyword"]


def test_the_barrier() -> None:
    assert codes(load_call(mbar=i32(0))) == ["cp_async_bulk/keyword-type"]
    in_global = nodes.Address(X, i32(0), nodes.PointerType("global"))
    assert codes(load_call(mbar=in_global)) == ["cp_async_bulk/keyword-type"]
    assert codes(load_call(mbar=nodes.Address(BARS, i32(4), SHARED))) == [
        "cp_async_bulk/mbar-alignment"
    ]
    mapped = nodes.Call("cuda.map_shared_rank", (MBAR, i32(1)), nodes.UINT32)
    for make in (load_call, send_call):
        assert codes(make(mbar=mapped)) == ["cp_async_bulk/keyword-type"]
        assert "the local address" in text(make(mbar=mapped))
    each = nodes.Address(BARS, op("mul", TID, 8), SHARED)
    assert codes(load_call(mbar=each)) == []
    narrow = buffer("bars", (4,), "uint32", "shared", align=4)
    assert codes(load_call(mbar=nodes.Address(narrow, i32(8), SHARED))) == [
        "cp_async_bulk/mbar-alignment"
    ]


def test_a_run_time_barrier_is_evaluated_once() -> None:
    each = nodes.Address(BARS, op("mul", TID, 8), SHARED)
    several = load_call(row(S, rows=4), row(X, rows=4), mbar=each)
    assert len(issues(several)) == 4 and [s.value for s in lets(several)] == [each]


def test_ranks() -> None:
    for legal in (i32(0), i32(3), TID, nodes.Cast(TID, nodes.UINT32)):
        assert codes(send_call(remote_cta_id=legal)) == []
    for wrong in (i32(4), i32(-1), op("add", TID, 4)):
        assert codes(send_call(remote_cta_id=wrong)) == ["cp_async_bulk/remote-cta"]
    half = nodes.Const(1.0, nodes.FLOAT32)
    assert codes(send_call(remote_cta_id=half)) == ["cp_async_bulk/keyword-type"]
    assert codes(send_call(cluster=1)) == ["cp_async_bulk/remote-cta"]
    assert codes(send_call(cluster=1, remote_cta_id=i32(0))) == []


def test_masks() -> None:
    for legal in (1, 8, 15):
        assert codes(LEGAL[MULTICAST](cta_mask=i32(legal))) == []
    for wrong in (0, 16, 31):
        assert codes(LEGAL[MULTICAST](cta_mask=i32(wrong))) == ["cp_async_bulk/cta-mask"]
    for wrong_type in (i32(1 << 16), TID):
        assert codes(LEGAL[MULTICAST](cta_mask=wrong_type)) == ["cp_async_bulk/keyword-type"]


def test_cache_policy() -> None:
    for name, make in ((LOAD, load_call), (STORE, store_call)):
        assert codes(make(name=name + HINT, cache_policy=POLICY)) == []
        assert codes(make(name=name + HINT)) == ["cp_async_bulk/cache-policy"]
        assert codes(make(name=name, cache_policy=POLICY)) == ["cp_async_bulk/cache-policy"]
    hinted = LEGAL[MULTICAST](cta_mask=MASK)
    (issue,) = issues(hinted)
    assert [s.name for s in issue.form.operands[2:]] == ["chunk_bytes", "mbar", "cta_mask"]


@pytest.mark.parametrize(
    ("make", "name"),
    [(load_call, LOAD), (load_call, LOAD_CTA), (store_call, STORE), (store_call, ADD)],
)
def test_directions(make: Any, name: str) -> None:
    there, here = (row(S), row(X)) if make is store_call else (row(X), row(S))
    assert codes(make(there, here, name)) == ["cp_async_bulk/direction"]
    assert "the other way is cp.async.bulk." in text(make(there, here, name))


def test_spaces() -> None:
    registers = whole(buffer("r", (1, 4)))
    assert (
        codes(load_call(dst=registers))
        == codes(load_call(src=registers))
        == ["cp_async_bulk/space"]
    )
    assert codes(load_call(dst=row(Y))) == codes(load_call(src=row(D))) == ["cp_async_bulk/space"]
    assert codes(store_call(src=row(Y))) == ["cp_async_bulk/space"]
    assert codes(send_call(dst=row(X))) == codes(send_call(src=row(X))) == ["cp_async_bulk/space"]
    assert codes(store_call(src=i32(3))) == ["cp_async_bulk/tensor-operand"]


def test_operand_counts() -> None:
    assert codes(call(STORE, row(X))) == ["cp_async_bulk/operand-count"]
    assert codes(call(STORE, row(X), row(S), i32(16))) == ["cp_async_bulk/operand-count"]
    assert codes(call(PREFETCH, row(X))) == []
    assert codes(call(PREFETCH, row(X), row(S))) == ["cp_async_bulk/operand-count"]


def test_the_chunk_is_the_last_axis() -> None:
    for wrong in (2, 8):
        assert codes(load_call(dst=row(S, wrong))) == ["tile/atom-shape"]
        assert codes(load_call(src=row(X, wrong))) == ["tile/atom-shape"]
    for dtype, elements in (("uint8", 16), ("float16", 8), ("float64", 2)):
        assert codes(load_call(dst=row(buffer("o", (64, 64), dtype, "shared"), elements))) == []


def test_elements_are_whole_bytes() -> None:
    packed = region(whole(buffer("s", (64,), "float4_e2m1fn", "shared")), (0,), (32,))
    assert codes(load_call(packed, region(whole(buffer("x", (64,), "uint8", "global")), (0,), (16,)))) == [
        "cp_async_bulk/operand-type"
    ]  # fmt: skip
    assert "elements of 4 bits, expected whole bytes" in text(load_call(packed))


def test_reductions_have_elements_of_their_type() -> None:
    def add(dtypes: tuple[str, str], type_: str) -> list[str]:
        sides = [buffer(n, (4, 64), d, s) for n, s, d in zip("xs", ("global", "shared"), dtypes)]
        elements = [16 // tile.dtypes.dtype(d).bytes for d in dtypes]
        return codes(store_call(row(sides[0], elements[0]), row(sides[1], elements[1]),
                                ADD.replace("u32", type_)))  # fmt: skip

    wrong = "cp_async_bulk/operand-type"
    assert add(("uint32", "uint32"), "u32") == []
    assert add(("int32", "int32"), "s32") == []
    assert add(("float32", "float32"), "u32") == [wrong] * 2
    assert add(("float32", "float64"), "f32") == [wrong]
    assert add(("uint8", "uint32"), "u32") == [wrong]
    assert codes(send_call(name=ADD_FAR)) == [wrong] * 2


def test_contiguity() -> None:
    for turned in range(2):
        sides = [buffer(n, (64, 64), "float32", s, "(64,64):(1,64)" if i == turned else "default")
                 for i, (n, s) in enumerate((("s", "shared"), ("x", "global")))]  # fmt: skip
        assert codes(load_call(*(row(b) for b in sides))) == ["cp_async_bulk/contiguity"]


def test_a_chunk_does_not_run_across_a_gap() -> None:
    """The contract's gapped view as one larger chunk."""
    gapped = buffer("s", (8, 128), "float16", "shared", "(8,128):(256,1)")
    flat = buffer("x", (8, 128), "float16", "global")
    legal = load_call(row(gapped, 128, rows=8), row(flat, 128, rows=8), size=256)
    assert codes(legal) == [] and len(issues(legal)) == 8
    one = load_call(whole(gapped), whole(flat), size=2048)
    assert codes(one) == ["tile/atom-shape"] * 2


@pytest.mark.parametrize("make", [load_call, store_call, send_call])
def test_alignment(make: Any) -> None:
    bases = {load_call: (S, X), store_call: (X, S), send_call: (D, S)}[make]
    for side in range(2):
        for column in range(4):
            starts = [(0, column if i == side else 0) for i in range(2)]
            sides = [row(b, start=s) for b, s in zip(bases, starts)]
            assert codes(make(*sides)) == ([] if column == 0 else ["cp_async_bulk/alignment"])
        made = [
            buffer(b.name, (64, 64), "float32", b.type.space, align=8 if i == side else 16)
            for i, b in enumerate(bases)
        ]
        assert codes(make(*(row(b) for b in made))) == ["cp_async_bulk/alignment"]


def test_alignment_is_16_bytes_however_long_the_chunk() -> None:
    wide = [buffer(n, (4, 256), "float32", s) for n, s in (("s", "shared"), ("x", "global"))]
    for column in (0, 4, 12):
        sides = [row(b, 64, (0, column)) for b in wide]
        assert codes(load_call(*sides, size=256)) == []


def test_swizzles_keep_16_bytes_together() -> None:
    def swizzled(elements: int, size: int) -> list[str]:
        s = buffer("s", (64, 32), "float32", "shared", "swizzle(2,3,3) o (64,32):(32,1)", 128)
        return codes(load_call(row(s, elements, (1, 16)), row(X, elements), size=size))

    assert swizzled(4, 16) == []
    assert swizzled(8, 32) == ["cp_async_bulk/contiguity"]


def test_bounds_and_repeats_and_groups() -> None:
    assert codes(load_call(row(S, rows=3), row(X, rows=2))) == ["tile/repeats"]
    assert codes(load_call(row(S, start=(64, 0)))) == ["tile/bounds"]
    assert codes(load_call(row(S, rows=32), row(X, rows=32), scope="warp")) == []
    assert (
        codes(load_call(row(S, rows=31), row(X, rows=31), scope="warp")) == ["tile/group-shape"] * 2
    )


def test_predicates() -> None:
    found = issues(send_call(pred=op("lt", TID, 3)))
    assert [i.pred is not None for i in found] == [False, False, True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cp.async.bulk.commit_group", "tile/raw-only"),
        ("cp.async.bulk.wait_group.read", "tile/raw-only"),
        (f"{STORE}.cp_mask", "tile/raw-only"),
        ("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "tile/raw-only"),
        (f"cp.async.bulk.shared::cta.shared::cta.{ARRIVES}", "ptx/spelling"),
        (f"{LOAD_CTA}.multicast::cluster", "ptx/spelling"),
        ("cp.async.bulk.global.shared::cta", "ptx/spelling"),
        (ADD.replace("u32", "f16"), "ptx/spelling"),
        (ADD_FAR.replace("u32", "f32"), "ptx/spelling"),
        ("cp.async.bulk.global.global.bulk_group", "ptx/spelling"),
    ],
)
def test_other_spellings(name: str, expected: str) -> None:
    assert codes(call(name, row(X), row(S))) == [expected]


@pytest.mark.parametrize("read", ["", ".read"])
@pytest.mark.parametrize("pending", [0, 2, 2**31 - 1, -1, 2**31])
def test_pending_groups(pending: int, read: str) -> None:
    number = nodes.Const(pending, nodes.INT64)
    wrong = [] if 0 <= pending < 2**31 else ["ptx/immediate"]
    assert codes(kit.kernel(kit.raw(f"cp.async.bulk.wait_group{read}", number))) == wrong


def test_older_targets_have_none() -> None:
    made = kit.kernel(apply(STORE, row(X), row(S), chunk_bytes=i32(16)), target="sm_89")
    assert codes(made) == ["target/unsupported"]
