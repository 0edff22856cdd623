"""Tensor maps: what the tensor memory accelerator is told about a tensor in global memory.

A ``TensorMapSpec`` is a kernel's: which parameter it describes, with sizes, strides and offset that a
launch may still have to compute. A ``TensorMap`` is one of a launch, in numbers. ``faults`` is the
hardware's rules as data: the checker asks it about what is known at compile time, the launch about
the rest. Every list of dimensions begins with the innermost.

Not here: encoding (``runtime.driver``), boxes in shared memory (``families.cp_async_bulk_tensor``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import LaunchError, Report, Span
from tilejit.ir import serial
from tilejit.ir.nodes import Expr

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAP_BYTES = 128
MAP_ALIGN_BYTES = 64
MAX_RANK = 5
MAX_EXTENT = 1 << 32
MAX_STRIDE_BYTES = (1 << 40) - 1
MAX_BOX = 256
MAX_ELEMENT_STRIDE = 8
SWIZZLE_BYTES = (0, 32, 64, 128)
"""By swizzle mode: the longest row that it permutes."""
INTERLEAVE_BYTES = (0, 16, 32)
"""By interleave mode: one slice of channels."""
CHUNK_BYTES = 16
"""What a swizzle moves, and the unit of a row of a box."""


@dataclass(frozen=True, slots=True)
class Format:
    """``code``: CUtensorMapDataType. ``bits``: of one element. ``fills_nan``: NaN may stand for what
    lies outside the tensor."""

    code: int
    bits: int
    fills_nan: bool = False


FORMATS: dict[str, Format] = {
    "uint8": Format(0, 8), "uint16": Format(1, 16), "uint32": Format(2, 32), "int32": Format(3, 32),
    "uint64": Format(4, 64), "int64": Format(5, 64), "float16": Format(6, 16, True),
    "float32": Format(7, 32, True), "float64": Format(8, 64, True), "bfloat16": Format(9, 16, True),
    "tf32": Format(11, 32, True), "float4_e2m1fn": Format(14, 4),
}  # fmt: skip
PADDED = "float4_e2m1fn"
"""16U4_ALIGN16B: sixteen elements in the low half of each 16 bytes of shared memory."""
PADDED_ROW_ELEMS = 128
PADDED_SWIZZLES = (0, 3)

_AS_BITS = {
    "bool": "uint8", "int8": "uint8", "int16": "uint16",
    "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8",
}  # fmt: skip


def default_format(dtype: DType) -> str | None:
    """The format of a tensor of ``dtype``; None where a tensor map has none."""
    name = _AS_BITS.get(dtype.name, dtype.name)
    return name if name in FORMATS else None


def format_of(dtype: DType, wanted: str | None) -> str | None:
    """The format that ``wanted`` (a dtype's name, ``tf32``; None: the dtype's own) means for a tensor
    of ``dtype``; None where that is none."""
    if wanted is None or wanted == dtype.name:
        return default_format(dtype)
    if wanted == "tf32" and dtype == dtypes.float32:
        return wanted
    return wanted if wanted == PADDED and dtype == dtypes.uint8 else None


# --- a kernel's map

Number: TypeAlias = int | Expr
"""Known, or an expression of the kernel's sizes, strides and scalars."""


@dataclass(frozen=True, slots=True)
class TensorMapSpec:
    """``buffer``: the parameter whose address, ``offset_bytes`` further, is the tensor's origin.
    ``strides_bytes``: of all dimensions but the innermost. ``box``: elements walked over along each
    dimension, of which every ``element_strides``-th is moved."""

    buffer: str
    offset_bytes: Number
    format: str
    dims: tuple[Number, ...]
    strides_bytes: tuple[Number, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0
    span: Span | None = field(default=None, compare=False, repr=False)

    def numbers(self) -> Iterator[Number]:
        """What a launch computes: offset, sizes, strides."""
        yield self.offset_bytes
        yield from self.dims
        yield from self.strides_bytes

    def evaluate(self, address: int, value_of: Callable[[Expr], int]) -> TensorMap:
        """The map of one launch; ``address`` is the buffer's."""

        def known(number: Number) -> int:
            return number if isinstance(number, int) else value_of(number)

        return TensorMap(
            address + known(self.offset_bytes), self.format, tuple(map(known, self.dims)),
            tuple(map(known, self.strides_bytes)), self.box, self.element_strides, self.interleave,
            self.swizzle, self.l2_promotion, self.oob_fill,
        )  # fmt: skip


def to_data(spec: TensorMapSpec) -> dict[str, Any]:
    """``spec`` in JSON's terms, without its span."""
    plain = {
        name: getattr(spec, name) for name in TensorMapSpec.__dataclass_fields__ if name != "span"
    }
    return {name: serial.encode(value) for name, value in plain.items()}


def from_data(data: dict[str, Any]) -> TensorMapSpec:
    """The inverse of ``to_data``; ``TypeError`` or ``KeyError`` for anything else."""
    return TensorMapSpec(**{name: serial.decode(value) for name, value in data.items()})


# --- a launch's map


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map in numbers. None: not known yet."""

    address: int | None
    format: str
    dims: tuple[int | None, ...]
    strides_bytes: tuple[int | None, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int = 0
    swizzle: int = 0
    l2_promotion: int = 0
    oob_fill: int = 0

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def align_bytes(self) -> int:
        """What its address and strides are multiples of."""
        return 32 if self.interleave == 2 or self.format == PADDED else 16

    def settled(self) -> TensorMap:
        """With the least legal stride along dimensions of one element, where none is ever taken."""
        strides = tuple(
            self.align_bytes if extent == 1 else stride
            for extent, stride in zip(self.dims[1:], self.strides_bytes)
        )
        return self if strides == self.strides_bytes else replace(self, strides_bytes=strides)

    def describe(self) -> str:
        """Its numbers, outermost first, for messages."""
        start = "?" if self.address is None else f"{self.address:#x}"
        strides = self.strides_bytes[::-1]
        return f"start {start}, sizes {self.dims[::-1]}, strides {strides} bytes"

    def known(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Address, sizes and strides, of a launch's map."""
        dims = tuple(n for n in self.dims if n is not None)
        strides = tuple(n for n in self.strides_bytes if n is not None)
        assert self.address is not None
        assert (len(dims), len(strides)) == (self.rank, self.rank - 1)
        return self.address, dims, strides

    @property
    def span_bytes(self) -> int:
        """From the first to the last byte of a launch's tensor."""
        _, (row, *dims), strides = self.known()
        steps = sum((extent - 1) * stride for extent, stride in zip(dims, strides))
        return steps + row * FORMATS[self.format].bits // 8

    def taken(self) -> tuple[int, ...]:
        """Elements of a box along each dimension that are moved."""
        return tuple(-(-b // s) for b, s in zip(self.box, self.element_strides))


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that a map breaks. ``field`` names it (``base``, ``stride``, …) in diagnostics' codes."""

    field: str
    message: str
    help: str | None = None


@lru_cache(maxsize=256)
def faults(map_: TensorMap) -> tuple[Fault, ...]:
    """Every rule that what is known of ``map_`` breaks. Dimensions are called as the kernel's author
    counts them, outermost first."""
    found = tuple(_shape_faults(map_))
    if found:
        return found  # the other rules speak of as many dimensions and known modes
    return (*_size_faults(map_), *_box_faults(map_), *_mode_faults(map_))


def refuse(map_: TensorMap, what: str, span: Span | None) -> None:
    """``LaunchError``, ``tma/…``, with every rule that a map breaks; ``what`` it is."""
    report = Report()
    for found in faults(map_):
        report.error(
            f"tma/{found.field}", f"{what}: {found.message}", span=span, help=found.help,
            where=map_.describe(),
        )  # fmt: skip
    report.raise_if_failed(LaunchError)


def _shape_faults(m: TensorMap) -> Iterator[Fault]:
    if m.format not in FORMATS:
        yield Fault("format", f"no tensor map has the format {m.format!r}")
    if not 1 <= m.rank <= MAX_RANK:
        yield Fault("rank", f"a tensor map has 1 to {MAX_RANK} dimensions, got {m.rank}")
    for name, values in (("box", m.box), ("element_strides", m.element_strides)):
        if len(values) != m.rank:
            yield Fault(
                name.replace("_", "-"),
                f"{name} has {len(values)} entries, expected one for each of {m.rank} dimensions",
            )
    for name, value, most in (
        ("swizzle", m.swizzle, 3), ("interleave", m.interleave, 2),
        ("l2_promotion", m.l2_promotion, 3), ("oob_fill", m.oob_fill, 1),
    ):  # fmt: skip
        if not 0 <= value <= most:
            yield Fault(name.replace("_", "-"), f"{name} is {value}, expected 0 to {most}")


def _named(values: Sequence[Any], rank: int, first: int = 0) -> Iterator[tuple[int, Any]]:
    """Values with the number of their dimension, outermost 0; ``first``: the innermost one's place."""
    for place, value in enumerate(values):
        yield rank - 1 - first - place, value


def _size_faults(m: TensorMap) -> Iterator[Fault]:
    align = m.align_bytes
    why = "" if align == 16 else f" for {_why_32(m)}"
    if m.address is not None and m.address % align:
        yield Fault(
            "base",
            f"the tensor starts {m.address % align} bytes above a multiple of {align}, expected a "
            f"{align}-byte aligned start{why}",
        )
    for d, extent in _named(m.dims, m.rank):
        if extent is not None and not 1 <= extent <= MAX_EXTENT:
            yield Fault("extent", f"dimension {d} has {extent} elements, expected 1 to 2**32")
    for d, stride in _named(m.strides_bytes, m.rank, 1):
        if stride is None:
            continue
        if stride % align:
            yield Fault(
                "stride",
                f"the stride of dimension {d} is {stride} bytes, expected a multiple of {align} "
                f"bytes{why}",
                "pad the rows of the tensor",
            )
        elif not 0 <= stride <= MAX_STRIDE_BYTES:
            yield Fault(
                "stride",
                f"the stride of dimension {d} is {stride} bytes, expected 0 to 2**40 - 1 bytes",
            )


def _why_32(m: TensorMap) -> str:
    return "interleave 2" if m.interleave == 2 else f"format {m.format}"


def _box_faults(m: TensorMap) -> Iterator[Fault]:
    for d, extent in _named(m.box, m.rank):
        if not 1 <= extent <= MAX_BOX:
            yield Fault("box", f"box dimension {d} is {extent} elements, expected 1 to {MAX_BOX}")
    for d, step in _named(m.element_strides, m.rank):
        if not 1 <= step <= MAX_ELEMENT_STRIDE:
            yield Fault(
                "element-strides",
                f"element stride {d} is {step} elements, expected 1 to {MAX_ELEMENT_STRIDE}",
            )
    if m.interleave:
        return
    if m.element_strides[0] != 1:
        yield Fault(
            "element-strides",
            f"the innermost element stride is {m.element_strides[0]}, expected 1: without "
            "interleaving, rows are moved whole",
        )
    if m.format == PADDED:
        return
    row_bits = m.box[0] * FORMATS[m.format].bits
    if row_bits % (8 * CHUNK_BYTES):
        yield Fault(
            "box",
            f"a row of the box is {m.box[0]} elements of {m.format}, {row_bits // 8} bytes, expected "
            f"a multiple of {CHUNK_BYTES} bytes",
        )
    longest = SWIZZLE_BYTES[m.swizzle]
    if m.swizzle and row_bits > 8 * longest:
        yield Fault(
            "box",
            f"a row of the box is {row_bits // 8} bytes, expected at most {longest} bytes with "
            f"swizzle {m.swizzle}",
            "issue one copy per part of the row: a repeat axis with coord_steps",
        )


def _mode_faults(m: TensorMap) -> Iterator[Fault]:
    if m.oob_fill == 1 and not FORMATS[m.format].fills_nan:
        yield Fault(
            "oob-fill",
            f"oob_fill 1 fills with NaN, which {m.format} elements of a tensor map do not have",
            "0 fills with zeros",
        )
    if m.interleave and m.rank < 3:
        yield Fault("interleave", f"interleave needs rank 3 to 5, this map has rank {m.rank}")
    if m.interleave == 2 and m.swizzle != 1:
        yield Fault("swizzle", f"interleave 2 needs swizzle 1, got {m.swizzle}")
    if m.format == PADDED:
        yield from _padded_faults(m)


def _padded_faults(m: TensorMap) -> Iterator[Fault]:
    if m.interleave:
        yield Fault("interleave", f"{PADDED} has no interleaved layout")
    if m.swizzle not in PADDED_SWIZZLES:
        yield Fault("swizzle", f"{PADDED} takes swizzle 0 or 3, got {m.swizzle}")
    if m.dims[0] is not None and m.dims[0] % PADDED_ROW_ELEMS:
        yield Fault(
            "extent",
            f"the innermost dimension has {m.dims[0]} {PADDED} elements, expected a multiple of "
            f"{PADDED_ROW_ELEMS}",
        )
    if m.box[0] != PADDED_ROW_ELEMS:
        yield Fault(
            "box", f"a row of the box is {m.box[0]} {PADDED} elements, expected {PADDED_ROW_ELEMS}"
        )


# --- a box in shared memory


def row_pitch_bytes(row_bytes: int, swizzle: int, interleave: int) -> int:
    """Bytes from row to row of a box in shared memory, before the swizzle. Rows that are narrower than
    what a swizzle permutes lie that far apart all the same, with gaps (seen on an H200)."""
    return row_bytes if interleave else max(row_bytes, SWIZZLE_BYTES[swizzle])


def swizzled(address_bytes: npt.NDArray[np.int64], swizzle: int) -> npt.NDArray[np.int64]:
    """Where the hardware puts in shared memory what a box has at these addresses: bits 4… are flipped
    by bits 7…"""
    flips = (address_bytes >> 7) & ((1 << swizzle) - 1)
    return address_bytes ^ (flips << 4)


# --- coordinates


def innermost_step_elems(format_: str, interleave: int) -> int:
    """What the innermost coordinate of a box is a multiple of: 16 bytes of the tensor; any other is an
    illegal instruction (seen on an H200). An interleaved tensor counts whole slices there, and padded
    rows are never taken apart (PTX ISA, of sub-byte types)."""
    if interleave:
        return 1
    return PADDED_ROW_ELEMS if format_ == PADDED else 8 * CHUNK_BYTES // FORMATS[format_].bits


# --- maps in CPU memory

_PICTURE = b"tilejit tensor map "
"""What 128 bytes begin with that only the simulator reads; a number of ``_pictures`` follows."""
_pictures: list[TensorMap] = []


def picture(map_: TensorMap) -> bytes:
    """The bytes that stand for ``map_`` in CPU memory, in this process."""
    if map_ not in _pictures:
        _pictures.append(map_)
    return (_PICTURE + str(_pictures.index(map_)).encode()).ljust(MAP_BYTES, b"\0")


def pictured(image: bytes) -> TensorMap | None:
    """The map that ``picture`` made these bytes of; None for any others."""
    number = image.removeprefix(_PICTURE).rstrip(b"\0")
    if not image.startswith(_PICTURE) or not number.isdigit() or int(number) >= len(_pictures):
        return None
    return _pictures[int(number)]
