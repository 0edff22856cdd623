"""Asynchronous matrix multiply-accumulate of a warpgroup, D = A·B (+ D), on sm_90a alone.

A is a shared-memory descriptor or four b32 registers, B always a descriptor. The spelling does not say
which: each has two forms. ``scale_d`` false leaves the old D out. Not here: sparse forms, sub-byte
types other than one bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "wgmma"
TARGET = "sm_90a"

FLOAT_COLUMNS: tuple[int, ...] = tuple(range(8, 257, 8))
INTEGER_COLUMNS: tuple[int, ...] = (8, 16, 24, *range(32, 257, 16))
"""N of an instruction, by what the multiplier computes with."""

_EFFECTS: tuple[Effect, ...] = ("reads_memory", "convergent", "async")
_ORDERS: tuple[Effect, ...] = ("convergent", "volatile", "reads_memory", "writes_memory")

_F8 = "(a=.e4m3|.e5m2)(b=.e4m3|.e5m2)"
_I8 = "(a=.s8|.u8)(b=.s8|.u8)"
_SCALES = "#scale_a:-1|1 #scale_b:-1|1"


def _pair(head: str, d: str, tail: str, majors: bool = False) -> Iterator[Row]:
    """The forms with A in shared memory and in registers. ``majors``: of 16-bit types a descriptor's
    operand may run along M (or N), which a literal says."""
    for a, transposed in (
        ("b64", "#transpose_a:0|1 #transpose_b:0|1"),
        ("b32*4", "#transpose_b:0|1"),
    ):
        operands = f"+d:{d} a:{a} b:b64 scale_d:pred {tail} {transposed if majors else ''}"
        yield Row(f"wgmma.mma_async.sync.aligned.{head}", operands, TARGET, _EFFECTS)


def _floats(n: int) -> Iterator[Row]:
    f32, f16 = f"f32*{n // 2}", f"b32*{{{n // 4}}}"
    yield from _pair(f"m64n{n}k16.f32(ab=.f16.f16|.bf16.bf16)", f32, _SCALES, majors=True)
    yield from _pair(f"m64n{n}k16.f16.f16.f16", f16, _SCALES, majors=True)
    yield from _pair(f"m64n{n}k8.f32.tf32.tf32", f32, _SCALES)
    yield from _pair(f"m64n{n}k32.f32{_F8}", f32, _SCALES)
    yield from _pair(f"m64n{n}k32.f16{_F8}", f16, _SCALES)


def _integers(n: int) -> Iterator[Row]:
    yield from _pair(f"m64n{n}k32[.satfinite].s32{_I8}", f"s32*{n // 2}", "")
    yield from _pair(f"m64n{n}k256.s32.b1.b1.and.popc", f"s32*{n // 2}", "")


ROWS: tuple[Row, ...] = (
    *(row for n in FLOAT_COLUMNS for row in _floats(n)),
    *(row for n in INTEGER_COLUMNS for row in _integers(n)),
    Row("wgmma.fence.sync.aligned", "", TARGET, _ORDERS, tile=False),
    Row("wgmma.commit_group.sync.aligned", "", TARGET, _ORDERS, tile=False),
    Row("wgmma.wait_group.sync.aligned", "#pending:0..7", TARGET, _ORDERS, tile=False),
)
