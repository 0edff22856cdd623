"""Asynchronous matrix multiply-accumulate of tensor memory, D = A·B (+ D): dense, ``.ws``, block-scaled.

D is in tensor memory, A there or in shared memory (a 64-bit matrix descriptor), B always in shared
memory. The spelling says neither where A is nor which optional operands follow: each has its own form.
``enable_input_d`` false leaves the old D out. What no parameter of the tile operation says is for raw
calls: scaling the old D by a power of two, and ``.ashift``.
Not here: sparse forms (``.sp``), shapes and formats, which the instruction descriptor says.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row
from tilejit.ptx.tables.tcgen05 import EXACT_TARGET, PAIR, TARGET

FAMILY = "tcgen05_mma"

INTEGER_TARGET = "sm_100a|sm_110a"
SCALED_D_TARGET = "sm_100f"

_EFFECTS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "async", "volatile")
_HALVES = "(kind=.kind::f16|.kind::tf32)"
_BYTES = "(kind=.kind::f8f6f4)"
_INTEGERS = "(kind=.kind::i8)"
_KINDS = ((_HALVES, TARGET), (_BYTES, TARGET), (_INTEGERS, INTEGER_TARGET))

_IN_SHARED = "a:b64"
_IN_TMEM = "[a:b32@tmem]"
_OLD_D = "enable_input_d:pred"


def _collector(buffers: str, uses: str) -> str:
    each = "|".join(f".collector::{b}::{use}" for b in buffers.split() for use in uses.split())
    return f"[collector={each}]"


_COLLECTOR_A = _collector("a", "fill use lastuse discard")
_COLLECTOR_SHIFTED = _collector("a", "lastuse discard")
_COLLECTOR_B = _collector("b0 b1 b2 b3", "fill use lastuse discard")


def _operands(a: str, *rest: str) -> str:
    return " ".join(("+[d:b32@tmem]", a, "b:b64 idesc:b32", *filter(None, rest)))


def _dense(kind: str, least: str, ctas: int) -> Iterator[Row]:
    """Four words of 32 lanes in each CTA say which lanes keep the old D."""
    pair = f"(pair=.cta_group::{ctas})"
    for keeps in ("", f"disable_output_lane:b32*{4 * ctas}"):
        for scale, target in (("", least), ("#scale_input_d:0..15", SCALED_D_TARGET)):
            if scale and kind != _HALVES:
                continue
            for a in (_IN_SHARED, _IN_TMEM):
                yield Row(
                    f"tcgen05.mma{pair}{kind}{_COLLECTOR_A}",
                    _operands(a, keeps, _OLD_D, scale), target, _EFFECTS, tile=not scale,
                )  # fmt: skip
            yield Row(
                f"tcgen05.mma{pair}{kind}.ashift{_COLLECTOR_SHIFTED}",
                _operands(_IN_TMEM, keeps, _OLD_D, scale), target, _EFFECTS, tile=False,
            )  # fmt: skip


def _weight_stationary(kind: str, least: str) -> Iterator[Row]:
    for a in (_IN_SHARED, _IN_TMEM):
        for mask in ("", "zero_column_mask:b64"):
            yield Row(
                f"tcgen05.mma.ws(pair=.cta_group::1){kind}{_COLLECTOR_B}",
                _operands(a, _OLD_D, mask), least, _EFFECTS,
            )  # fmt: skip


def _block_scaled(kind: str, scales: str, least: str) -> Iterator[Row]:
    for a in (_IN_SHARED, _IN_TMEM):
        yield Row(
            f"tcgen05.mma{PAIR}(kind=.kind::{kind}).block_scale{scales}{_COLLECTOR_A}",
            _operands(a, "[sfa:b32@tmem] [sfb:b32@tmem]", _OLD_D), least, _EFFECTS,
        )  # fmt: skip


ROWS: tuple[Row, ...] = (
    *(row for kind, least in _KINDS for ctas in (1, 2) for row in _dense(kind, least, ctas)),
    *(row for kind, least in _KINDS for row in _weight_stationary(kind, least)),
    *_block_scaled("mxf8f6f4", "[block=.block32]", TARGET),
    *_block_scaled("mxf8f6f4", "(scale_vec=.scale_vec::1X)", EXACT_TARGET),
    *_block_scaled("mxf4", "[block=.block32]", TARGET),
    *_block_scaled("mxf4", "(scale_vec=.scale_vec::2X)", EXACT_TARGET),
    *_block_scaled("mxf4nvf4", "(block=.block16|.block32)", TARGET),
    *_block_scaled("mxf4nvf4", "(scale_vec=.scale_vec::2X|.scale_vec::4X)", EXACT_TARGET),
)
