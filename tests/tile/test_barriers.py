"""What is certain of barriers before the launch: where mbarriers lie, counts that are no literals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tilejit as tile
from tilejit import T
from tilejit.errors import TileError

CHECKOUT = Path(__file__).parents[2]


@tile.jit
def barriers(n: T.uint32, big: T.uint64, WHAT: T.constexpr, INDEX: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    small = T.alloc_shared((1,), "uint32")
    words = T.alloc_shared((4,), "uint32")
    right = T.alloc_shared((2,), "uint64", align=8)
    thread = T.cuda.thread_idx("x")
    none = T.uint32(thread // 64)
    if WHAT == "small":
        T.ptx["mbarrier.init.shared.b64"](small.ptr_to([0]), 1)
    if WHAT == "words":
        T.ptx["mbarrier.init.shared.b64"](words.ptr_to([INDEX]), 1)
    if WHAT == "wait":
        T.cuda.mbarrier_wait(words.ptr_to([INDEX]), 0)
    if WHAT == "right":
        T.ptx["mbarrier.init.shared.b64"](right.ptr_to([thread % 2]), none + 1)
    if WHAT == "zero":
        T.ptx["mbarrier.init.shared.b64"](right.ptr_to([0]), none)
    if WHAT == "guarded":
        T.ptx["mbarrier.init.shared.b64"](right.ptr_to([0]), none, pred=none > 0)
    if WHAT == "large":
        T.ptx["mbarrier.init.shared.b64"](right.ptr_to([0]), none + (1 << 20))
    if WHAT == "maybe":
        T.ptx["mbarrier.init.shared.b64"](right.ptr_to([0]), n)
    if WHAT == "local":
        T.ptx["prefetch.local.L2"](big)


def report(what: str, index: int = 0) -> str:
    try:
        barriers.check(1, 1, what, index, target="sm_90a")
    except TileError as error:
        return str(error)
    return ""


def test_an_mbarrier_is_a_uint64() -> None:
    text = report("small")
    assert "ptx/mbarrier" in text
    assert (
        "mbar takes 8 bytes and does not lie in small of 4 bytes, whose elements are uint32" in text
    )
    assert 'T.alloc_shared((stages,), "uint64", align=8)' in text
    text = report("words", 1)
    assert "4 bytes above a multiple of 8 in words, whose elements are uint32 of 4 bytes" in text
    text = report("wait", 3)
    assert "tile/mbarrier" in text and "a barrier is a uint64" in text


@pytest.mark.parametrize("what", ["words", "wait", "right", "maybe", "guarded"])
def test_bytes_that_can_be_a_barrier_are_one(what: str) -> None:
    assert report(what, 2) == ""


def test_a_count_that_cannot_be() -> None:
    assert "count of mbarrier.init.shared.b64 is 0 here, expected 1 to 1048575" in report("zero")
    assert "is 1048576 here" in report("large")


def test_a_number_is_no_local_address() -> None:
    """NVRTC 13.0 dies of a kernel's parameter as one."""
    assert "ptx/address" in report("local")


COMPILE = """
import tilejit as tile
from tilejit import T

@tile.jit
def k(n: T.uint32, m: T.int32, WHAT: T.constexpr):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    bar = T.alloc_shared((1,), "uint64", align=8)
    if WHAT == "xor":
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), n ^ n)
    if WHAT == "loop":
        count = n
        for i in range(3):
            count = count >> T.uint32(16)
        T.ptx["mbarrier.init.shared::cta.b64"](bar.ptr_to([0]), count)
    if WHAT == "element":
        counts = T.alloc_local((1,), "uint32", layout="default")
        counts[0] = n & (n ^ T.uint32(0xFFFFFFFF))
        T.ptx["mbarrier.init.shared.b64"](bar.ptr_to([0]), counts[0])

for target in ("sm_80", "sm_90a", "sm_100a", "sm_120a"):
    for what in ("xor", "loop", "element"):
        assert len(k.compile(1, 1, what, target=target, fresh=True).artifact.cubin) > 0
"""


def test_a_count_that_only_the_assembler_finds_to_be_zero_does_not_kill_it(tmp_path: Path) -> None:
    """In a process of its own, which would die (NVRTC 13.0)."""
    script = tmp_path / "script.py"
    script.write_text(COMPILE)
    done = subprocess.run(
        [sys.executable, script], cwd=CHECKOUT, capture_output=True, text=True,
        env={"PYTHONPATH": str(CHECKOUT), "TILEJIT_CACHE_DIR": str(tmp_path / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
