"""What one ``tcgen05.mma`` may multiply: kinds, formats, M, N, K, scale factors and their targets, as data.

The opcode names the kind, the CTA group, ``.ws`` and the scale vector; M, N, the formats and the major
orders are in the instruction descriptor, which no assembler reads. So these tables are what stands
between a wrong shape and a wrong result. M and N count both CTAs of a group.

Where sources differ, a shape is here if all have it: for floats without scale factors table 39 has N in
steps of 8 with M=128 of one CTA; CUTLASS and TIRx ask for 16.

Source: PTX ISA 9.0, "Matrix shape" (table 39) and its target note, "Instruction descriptor" (tables 42
to 44), "Transpose and negate operations" (49, 50), "Valid combinations of type-size, major-ness and
swizzling" (52), "Block scaling" (54, 55). Not here: opcodes (``ptx.tables.tcgen05_mma``), where operands
lie (``language.tensor_memory_layouts``, ``tile.descriptor``), sparse forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ptx.tables.tcgen05 import TARGET
from tilejit.ptx.tables.tcgen05_mma import INTEGER_TARGET

Major = Literal["k", "mn"]


@dataclass(frozen=True, slots=True)
class Format:
    """Numbers of A and B. ``name``: what ``a_format=`` and ``b_format=`` say. ``ptx``: the ISA's name.
    ``code``: in the instruction descriptor. ``stored``: an element of the operand; the unsigned container
    of its width will do. ``bits``: of a value; fewer than those of ``stored`` where it lies in a
    container."""

    name: str
    ptx: str
    code: int
    stored: DType
    bits: int


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Numbers of D, and the names of the formats that A and B may have with them."""

    dtype: DType
    ptx: str
    code: int
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ScaleFormat:
    """Numbers of the scale factors, and their code in the instruction descriptor."""

    dtype: DType
    ptx: str
    code: int


@dataclass(frozen=True, slots=True)
class Scale:
    """One factor for every ``block`` elements along K, of one of ``formats``."""

    block: int
    formats: tuple[ScaleFormat, ...]

    def factors(self, k: int) -> int:
        """Factors of a row of A or a column of B."""
        return k // self.block

    def qualifiers(self, k: int) -> tuple[str, ...]:
        """How an opcode says it: ``block32``, and ``scale_vec::NX`` where that has a spelling."""
        factors = self.factors(k)
        vector = (f"scale_vec::{factors}X",) if factors in (1, 2, 4) else ()
        return (f"block{self.block}", *vector)

    def ids(self, k: int) -> tuple[int, ...]:
        """Bytes of a cell that the first factor may be in: the scale factor data ID."""
        return _IDS[self.factors(k)]


_IDS = {1: (0, 1, 2, 3), 2: (0, 2), 3: (0, 1, 2, 3), 4: (0,), 6: (0, 2)}


@dataclass(frozen=True, slots=True)
class Shape:
    """A row of the ISA's table. ``min_target``: where it is not the kind's."""

    cta_group: int
    ws: bool
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: int
    min_target: str | None = None

    def columns(self, b: Format, b_major: Major) -> tuple[int, ...]:
        """N with such a B: fewer where 8-bit elements run along N."""
        if b_major == "k" or b.bits != 8:
            return self.n
        return tuple(n for n in self.n if n % (TRANSPOSED_BYTES_STEP * self.cta_group) == 0)


TRANSPOSED_BYTES_STEP = 16
"""N of a CTA goes in such steps when B has 8-bit elements and is N-major."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``.kind::name``. ``transposes``: A and B in shared memory may be MN-major (``mn_major``).
    ``negates``, ``saturates``: whether the descriptor's bits may be set. ``scales``: empty without
    ``.block_scale``."""

    name: str
    formats: tuple[Format, ...]
    accumulators: tuple[Accumulator, ...]
    shapes: tuple[Shape, ...]
    scales: tuple[Scale, ...] = ()
    transposes: bool = True
    negates: bool = True
    saturates: bool = False
    min_target: str = TARGET

    def format(self, name: str) -> Format | None:
        """The format that a_format= or b_format= calls ``name``."""
        return next((f for f in self.formats if f.name == name), None)

    def accumulator(self, dtype: DType) -> Accumulator | None:
        """D of this type."""
        return next((a for a in self.accumulators if a.dtype is dtype), None)

    def scale(self, qualifier: str | None, k: int) -> Scale | None:
        """The scales of an opcode with ``block32`` or ``scale_vec::2X`` and the like, at this K; of one
        that says nothing where the kind has one scale only."""
        if qualifier is None:
            return self.scales[0] if len(self.scales) == 1 else None
        return next((s for s in self.scales if qualifier in s.qualifiers(k)), None)

    def issued(self, cta_group: int, ws: bool) -> tuple[Shape, ...]:
        """The shapes of an opcode with this CTA group, with or without ``.ws``; none: no such opcode."""
        return tuple(s for s in self.shapes if (s.cta_group, s.ws) == (cta_group, ws))

    def depths(self, cta_group: int, ws: bool) -> tuple[int, ...]:
        """K of such an opcode."""
        return tuple(s.k for s in self.issued(cta_group, ws))

    def shape(self, cta_group: int, ws: bool, m: int, k: int) -> Shape | None:
        """The row with this M and K."""
        return next((s for s in self.issued(cta_group, ws) if m in s.m and k == s.k), None)

    def mn_major(self, format_: Format) -> bool:
        """Whether such elements may run along M or N in shared memory: not those of 4 and 6 bits."""
        return self.transposes and format_.bits >= 8

    def targets(self, shape: Shape) -> str:
        """Where a shape of this kind runs, as ``Target.supports`` reads it."""
        return shape.min_target or self.min_target


# --- the tables

_STEPS_OF_8 = tuple(range(8, 257, 8))
_STEPS_OF_16 = tuple(range(16, 257, 16))
_STEPS_OF_32 = tuple(range(32, 257, 32))
_INTEGER_STEPS = (8, 16, 24, *range(32, 257, 16))
_WS_COLUMNS = (64, 128, 256)

_F16 = Format("float16", "f16", 0, dtypes.float16, 16)
_BF16 = Format("bfloat16", "bf16", 1, dtypes.bfloat16, 16)
_TF32 = Format("tf32", "tf32", 2, dtypes.float32, 32)
_U8 = Format("uint8", "u8", 0, dtypes.uint8, 8)
_S8 = Format("int8", "s8", 1, dtypes.int8, 8)
_F8F6F4 = (
    Format("float8_e4m3fn", "e4m3", 0, dtypes.float8_e4m3fn, 8),
    Format("float8_e5m2", "e5m2", 1, dtypes.float8_e5m2, 8),
    Format("float6_e2m3fn", "e2m3", 3, dtypes.uint8, 6),
    Format("float6_e3m2fn", "e3m2", 4, dtypes.uint8, 6),
    Format("float4_e2m1fn", "e2m1", 5, dtypes.uint8, 4),
)
_PACKED_F4 = (Format("float4_e2m1fn", "e2m1", 1, dtypes.float4_e2m1fn, 4),)

_UE4M3 = ScaleFormat(dtypes.float8_e4m3fn, "ue4m3", 0)
_UE8M0 = ScaleFormat(dtypes.float8_e8m0fnu, "ue8m0", 1)


def _to_f16(*formats: Format) -> Accumulator:
    return Accumulator(dtypes.float16, "f16", 0, tuple(f.name for f in formats))


def _to_f32(*formats: Format) -> Accumulator:
    return Accumulator(dtypes.float32, "f32", 1, tuple(f.name for f in formats))


def _to_s32(*formats: Format) -> Accumulator:
    return Accumulator(dtypes.int32, "s32", 2, tuple(f.name for f in formats))


def _floats(k: int) -> tuple[Shape, ...]:
    return (
        Shape(1, False, (64,), _STEPS_OF_8, k),
        Shape(1, False, (128,), _STEPS_OF_16, k),
        Shape(2, False, (128, 256), _STEPS_OF_16, k),
        Shape(1, True, (32, 64, 128), _WS_COLUMNS, k),
    )


_INTEGER_SHAPES = (
    Shape(1, False, (64, 128), _INTEGER_STEPS, 32),
    Shape(2, False, (128, 256), _STEPS_OF_32, 32),
    Shape(1, True, (32, 64, 128), _WS_COLUMNS, 32),
)


def _scaled(k: int) -> tuple[Shape, ...]:
    return (
        Shape(1, False, (128,), _STEPS_OF_8, k),
        Shape(2, False, (128, 256), _STEPS_OF_16, k),
    )


_PACKED_F4_SHAPES = (*_scaled(64), Shape(2, False, (256,), _STEPS_OF_16, 96, "sm_103a"))

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("f16", (_F16, _BF16), (_to_f16(_F16), _to_f32(_F16, _BF16)), _floats(16)),
        Kind("tf32", (_TF32,), (_to_f32(_TF32),), _floats(8)),
        Kind("f8f6f4", _F8F6F4, (_to_f16(*_F8F6F4), _to_f32(*_F8F6F4)), _floats(32)),
        Kind(
            "i8", (_U8, _S8), (_to_s32(_U8, _S8),), _INTEGER_SHAPES,
            negates=False, saturates=True, min_target=INTEGER_TARGET,
        ),
        Kind(
            "mxf8f6f4", _F8F6F4, (_to_f32(*_F8F6F4),), _scaled(32),
            scales=(Scale(32, (_UE8M0,)),),
        ),
        Kind(
            "mxf4", _PACKED_F4, (_to_f32(*_PACKED_F4),), _PACKED_F4_SHAPES,
            scales=(Scale(32, (_UE8M0,)),), transposes=False,
        ),
        Kind(
            "mxf4nvf4", _PACKED_F4, (_to_f32(*_PACKED_F4),), _PACKED_F4_SHAPES,
            scales=(Scale(32, (_UE8M0,)), Scale(16, (_UE8M0, _UE4M3))), transposes=False,
        ),
    )
}  # fmt: skip
"""Every kind by name."""


# --- for messages


def nearest(value: int, legal: Iterable[int]) -> tuple[int, ...]:
    """The legal values next to ``value``: the greatest below and the least above, one if there is one."""
    below = [v for v in legal if v <= value]
    above = [v for v in legal if v > value]
    if below and max(below) == value:
        return (value,)
    return (*([max(below)] if below else []), *([min(above)] if above else []))


def ranges_text(values: Sequence[int]) -> str:
    """Ascending values in words: ``8, 16, 24 and 32 to 256 in steps of 16``."""
    parts: list[str] = []
    start = 0
    while start < len(values):
        stop = _progression_end(values, start)
        if stop - start >= MIN_PROGRESSION:
            step = values[start + 1] - values[start]
            parts.append(f"{values[start]} to {values[stop - 1]} in steps of {step}")
            start = stop
        else:
            parts.append(str(values[start]))
            start += 1
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else parts[0]


MIN_PROGRESSION = 5
"""Values in equal steps from which on a range is shorter than a list."""


def _progression_end(values: Sequence[int], start: int) -> int:
    """Where the values from ``start`` on stop going in equal steps."""
    stop = min(start + 2, len(values))
    while (
        stop < len(values) and values[stop] - values[stop - 1] == values[start + 1] - values[start]
    ):
        stop += 1
    return stop
