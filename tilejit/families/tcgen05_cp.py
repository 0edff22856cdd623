"""Copies of a shared image into tensor memory: tcgen05.cp.

Contract: docs/contract/tcgen05_cp.md. Not here: which spellings exist (``ptx.tables.tcgen05_cp``), how a
shared operand becomes a descriptor (``tile.descriptor``), when a copy runs (the simulator), its commit
(``families.tcgen05``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

import numpy as np
import numpy.typing as npt

from tilejit.errors import Report
from tilejit.ir.tensor_memory import split_address
from tilejit.ptx.forms import Form
from tilejit.sim.numeric import packing
from tilejit.tile import contracts, cta_pair, descriptor, tensor_memory
from tilejit.tile.addresses import memory_operands
from tilejit.tile.affine import Affine, IntArray
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.descriptor import Descriptor, Fields
from tilejit.tile.family import (
    PRED,
    Family,
    Issue,
    Machine,
    Memory,
    NativeOperand,
    Param,
    Registers,
    SharedBlocks,
    Step,
    TensorCells,
    TensorOperation,
    Value,
    only,
)
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/tcgen05_cp.md"

# --- parameters

PARAMS: tuple[Param, ...] = (PRED,)

# --- operands
#
# dst_tmem, src_shared, both (*group, *repeat, rows, words) of 32-bit elements.

NAMES = ("dst_tmem", "src_shared")
WORD_BITS = 32
ORIGIN_COLUMNS = 4
"""Copies start at multiples of so many columns: 128 bits."""
DESCRIPTOR_ROWS = 8
"""Rows that a descriptor counts at once: what an atom of four needs in shared memory."""


@dataclass(frozen=True, slots=True)
class Image:
    """What one instruction writes. ``lanes``: of row r, after the origin's; ``copies``: where else every
    row is written, in lanes after its own."""

    rows: int
    words: int
    lanes: tuple[int, ...]
    copies: tuple[int, ...] = (0,)

    @property
    def atom(self) -> tuple[int, int]:
        return self.rows, self.words

    def layout(self) -> str:
        """The atom's layout in tensor memory, in notation."""
        if self.lanes == tuple(range(self.rows)):
            rows, strides = str(self.rows), "1@TLane"
        elif self.rows == DESCRIPTOR_ROWS // 2:
            rows, strides = str(self.rows), "32@TLane"
        else:
            rows, strides = "2,32", "64@TLane,1@TLane"
        text = f"({rows},{self.words}):({strides},1@TCol)"
        return text if len(self.copies) == 1 else f"{text} + {self.copies_text()}"

    def copies_text(self) -> str:
        """The replica, in notation."""
        if len(self.copies) == 1:
            return "no replica"
        return f"R[{len(self.copies)}:{self.copies[1]}@TLane]"


_ALL_LANES = tuple(range(128))
IMAGES: dict[tuple[str, str | None], Image] = {
    ("128x256b", None): Image(128, 8, _ALL_LANES),
    ("128x128b", None): Image(128, 4, _ALL_LANES),
    ("4x256b", None): Image(4, 8, (0, 32, 64, 96)),
    ("64x128b", "warpx2::02_13"): Image(64, 4, _ALL_LANES[:64], (0, 64)),
    ("64x128b", "warpx2::01_23"): Image(
        64, 4, tuple(64 * (r // 32) + r % 32 for r in range(64)), (0, 32)
    ),
    ("32x128b", "warpx4"): Image(32, 4, _ALL_LANES[:32], (0, 32, 64, 96)),
}
"""By shape and multicast."""


@cache
def shape_of(form: Form) -> str:
    """``128x256b`` of ``tcgen05.cp.cta_group::1.128x256b``."""
    return form.modifiers[2]


@cache
def image_of(form: Form) -> Image:
    return IMAGES[shape_of(form), next((m for m in form.modifiers if m.startswith("warpx")), None)]


@cache
def compression_of(form: Form) -> packing.Compressed | None:
    """What 16 bytes of shared memory hold, if not 16 bytes."""
    names = get_args(packing.Compressed)
    return next((name for name in names if name in form.modifiers), None)


# --- legality


def check(call: TileCall, report: Report) -> None:
    image = image_of(call.forms[0])
    if len(call.operands) != len(NAMES):
        report.error(
            "tcgen05_cp/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes 2: {', '.join(NAMES)}",
            span=call.span,
            contract=CONTRACT,
            help="the descriptor is made from the shared operand's layout",
        )
        return
    # The form's operands are those of the instruction: names of the call's own.
    call = replace(call, operands=tuple(replace(o, name=n) for o, n in zip(call.operands, NAMES)))
    cta_pair.check(call, report)
    if not _check_direction(call, report):
        return
    walks = [_check_destination(call, image, report), _check_source(call, image, report)]
    found = [walk for walk in walks if walk is not None]
    if len(found) == len(walks):
        contracts.repeats_agree(call, found, report)


def _check_direction(call: TileCall, report: Report) -> bool:
    """The one mistake with a name of its own: the operands the wrong way round."""
    spaces = [o.space for o in call.operands if isinstance(o, TensorOperand)]
    if spaces != ["shared", "tmem"]:
        return True
    report.error(
        "tcgen05_cp/direction",
        f"{call.spelling} was given a shared destination and a source in tensor memory, expected "
        f"{', '.join(NAMES)}",
        span=call.span,
        contract=CONTRACT,
        help="out of tensor memory the way is through registers: tcgen05.ld, then st.shared",
    )
    return False


def _check_elements(call: TileCall, operand: TensorOperand, report: Report) -> bool:
    if operand.dtype.bits == WORD_BITS:
        return True
    report.error(
        "tcgen05_cp/operand-type",
        f"{operand.name} has elements of {operand.dtype.bits} bits ({operand.dtype}), expected 32-bit words",
        span=operand.span,
        declared=operand.declared(),
        contract=CONTRACT,
        help='.view("uint32") shows the same bits as words; cells declared otherwise, scale factors say, are '
        "declared once more as words: T.cuda.decl_tmem at the same address, with the copy's layout",
    )
    return False


def _check_destination(call: TileCall, image: Image, report: Report) -> Walk | None:
    operand = call.operands[0]
    if not contracts.is_tensor(operand, call, report):
        return None
    if not contracts.in_space(call, operand, ("tmem",), report):
        return None
    if not _check_elements(call, operand, report):
        return None
    laid = tensor_memory.laid(call, operand, image.atom, report)
    if laid is None:
        return None
    right = _check_image(call, image, laid, report)
    right = _check_copies(call, image, operand, report) and right
    return (
        laid
        if tensor_memory.starts_at_columns(call, laid, ORIGIN_COLUMNS, report) and right
        else None
    )


def _check_image(call: TileCall, image: Image, laid: Walk, report: Report) -> bool:
    """Every word is where the instruction puts it, and the first one in one lane for all threads."""
    words = np.tile(np.arange(image.words), image.rows)
    wrong = tensor_memory.misplaced(laid, np.repeat(image.lanes, image.words), words * WORD_BITS)
    if wrong is not None:
        index, found, expected = wrong
        origin = tensor_memory.cell(laid, (*index[:2], 0))
        what, of, unit = ("lane", 0, 1) if found[0] != expected[0] else ("column", 1, WORD_BITS)
        there, wanted = ((origin[of] + place[of]) // unit for place in (found, expected))
        _report_image(
            call, image, laid, f"an element lies in {what} {there} of its buffer, expected {what} {wanted}",
            laid.where(index), report,
        )  # fmt: skip
        return False
    lanes = tensor_memory.lanes(laid)
    if bool((lanes[..., 0] != lanes[:1, :, 0]).any()):
        a = int(np.argwhere(lanes[..., 0] != lanes[:1, :, 0])[0][0])
        _report_image(
            call, image, laid, "its first lane differs between threads, expected one lane that is known",
            laid.group.describe(a), report,
        )  # fmt: skip
        return False
    return True


def _check_copies(call: TileCall, image: Image, operand: TensorOperand, report: Report) -> bool:
    if tensor_memory.copied_to(operand) == image.copies:
        return True
    report.error(
        "tcgen05_cp/replicas",
        f"{operand.name} states {tensor_memory.replicas_text(operand)}, {call.spelling} writes "
        f"{_copies_words(image)}",
        span=operand.span,
        declared=operand.declared(),
        contract=f"{CONTRACT}: the destination layout states the copies",
        help=f"the layout of an atom ends in {image.copies_text()}: {image.layout()}"
        if len(image.copies) > 1
        else f"a layout without R[…]: {image.layout()}",
    )
    return False


def _copies_words(image: Image) -> str:
    count = len(image.copies)
    if count == 1:
        return "every row once"
    return f"every row {count} times, {image.copies[1]} lanes apart: {image.copies_text()}"


def _report_image(
    call: TileCall, image: Image, laid: Walk, what: str, where: str, report: Report
) -> None:
    report.error(
        "tcgen05_cp/image",
        f"{laid.operand.name}: {what}",
        span=laid.operand.span,
        where=where,
        declared=laid.operand.declared(),
        contract=CONTRACT,
        help=f"one atom of {call.spelling} lies in tensor memory as {image.layout()}, in 32-bit elements",
    )


def _check_source(call: TileCall, image: Image, report: Report) -> Walk | None:
    operand = call.operands[1]
    if not contracts.is_tensor(operand, call, report):
        return None
    if not contracts.in_space(call, operand, ("shared",), report):
        return None
    if not _check_elements(call, operand, report):
        return None
    laid = contracts.shaped(call, operand, image.atom, report)
    if laid is None:
        return None
    found = descriptor.extract(
        call, laid, "k", report, role="image of rows of words", advice=_SOURCE_ADVICE
    )
    if found is None or not _check_backing(call, image, found, report):
        return None
    return laid


_SOURCE_ADVICE = (
    'T.cuda.tcgen05_shared_layout((rows, words), "uint32") lays rows of words out so, swizzled; without a '
    "swizzle eight rows are 16 bytes apart, and further groups and 16-byte chunks of a row a fixed number of "
    "bytes on"
)


def _check_backing(call: TileCall, image: Image, found: Descriptor, report: Report) -> bool:
    """Four rows have room for eight: shared memory is read in groups of them."""
    operand, extent = found.starts.operand, contracts.buffer_extent(call, found.starts.operand)
    if image.rows >= DESCRIPTOR_ROWS or extent is None:
        return True
    walk = descriptor.canonical_bits(
        (DESCRIPTOR_ROWS, image.words), WORD_BITS, "k",
        found.mode, found.leading_bytes, found.stride_bytes,
    )  # fmt: skip
    row_bits = 8 * descriptor.row_bytes(found.mode)
    moves = found.starts.symbolic.scaled(WORD_BITS)
    slack = 0 if call.context.divisible(moves, row_bits) else row_bits - descriptor.CHUNK_BITS
    last = int(found.starts.places[..., 0].max()) * WORD_BITS + int(walk.max())
    end = (last // row_bits + 1) * row_bits + slack
    size, _ = extent
    if call.context.prove_nonnegative(size - (moves + Affine(end))):
        return True
    report.error(
        "tcgen05_cp/backing",
        f"{operand.name} has {image.rows} rows, and the copy reads groups of {DESCRIPTOR_ROWS}: with "
        f"{DESCRIPTOR_ROWS} rows it would end {_bytes_text(moves + Affine(end))} into a buffer of "
        f"{_bytes_text(size)}",
        span=operand.span,
        declared=operand.declared(),
        contract=f"{CONTRACT}: four rows need the storage of eight",
        help="allocate eight rows and copy the first four",
    )
    return False


def _bytes_text(bits: Affine) -> str:
    return f"({bits}) bits" if bits.constant is None else f"{bits.constant // 8} bytes"


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """One instruction per repeat. Where the source starts is encoded once for all repeats that differ by
    constants, which are added to the descriptor."""
    cells, source = call.walk_of(0), call.walk_of(1)
    lanes: list[int] = tensor_memory.lanes(cells)[0, :, 0].tolist()
    lets, places = memory_operands(call, cells, lanes=lanes)
    steps: list[Step] = [*lets]
    more, values = descriptor.sm_100_descriptors(call, source.findings.descriptors["k"])
    steps += more
    for coordinate, place, value in zip(cells.repeat_coordinates(), places, values):
        operands = (place, Registers((Value(value),)))
        steps.append(Issue(call.forms[0], operands, call.pred, False, coordinate, call.span))
    return steps


# --- what the hardware does

Blocks = npt.NDArray[np.uint8]
Cells = npt.NDArray[np.uint32]


def execute(issue: Issue, machine: Machine) -> None:
    """Each thread's copy is one operation: in every CTA it works on, blocks of the shared memory there
    become cells of the tensor memory there."""
    form, (place, source) = issue.form, issue.operands
    assert isinstance(place, Memory)
    addresses = machine.address(place)
    bits = np.broadcast_to(machine.read(source)[0], machine.active().shape)
    for thread in machine.threads():
        address = int(addresses[thread])
        fields = _fields(machine, int(bits[thread]))
        if not _aligned(machine, thread, address):
            continue
        ctas = cta_pair.ranks(machine, form, thread)
        if ctas:
            operation = _operation(form, place, source, address, fields, ctas)
            machine.tensor_issue(thread, operation)


def _fields(machine: Machine, bits: int) -> Fields:
    found = descriptor.sm_100_fields(bits)
    if found is None or found.mode not in descriptor.MODES:
        machine.unsimulated(
            f"a matrix descriptor 0x{bits:x} of tcgen05.cp, with a base offset, an absolute LDO, a swizzle "
            "of 32-byte atoms or bits that none has"
        )
    assert found is not None
    return found


def _aligned(machine: Machine, thread: tuple[int, int], address: int) -> bool:
    _, column = split_address(address)
    if column % ORIGIN_COLUMNS == 0:
        return True
    machine.fault(
        "sim/tmem-alignment",
        f"tcgen05.cp to column {column}, expected a multiple of {ORIGIN_COLUMNS} columns (128 bits)",
        only(machine, thread),
    )
    return False


def _operation(
    form: Form,
    place: NativeOperand,
    source: NativeOperand,
    address: int,
    fields: Fields,
    ctas: tuple[int, ...],
) -> TensorOperation:
    image = image_of(form)
    blocks = descriptor.chunk_addresses(fields, image.atom, WORD_BITS, "k").reshape(-1)
    lanes, columns = _cells(image)
    lane, column = split_address(address)

    def run(found: list[Blocks]) -> list[Cells]:
        return [_copied(form, image, data) for data in found]

    return TensorOperation(
        kind="cp",
        pair=cta_pair.works_on_pair(form),
        pipe=shape_of(form),
        sources=tuple(SharedBlocks(source, cta, blocks) for cta in ctas),
        destinations=tuple(TensorCells(place, cta, lanes + lane, columns + column) for cta in ctas),
        run=run,
    )


@cache
def _cells(image: Image) -> tuple[IntArray, IntArray]:
    """Lane and column after the address of every cell written: copy by copy, row by row."""
    lanes = np.add.outer(np.asarray(image.copies), np.asarray(image.lanes))
    shape = (*lanes.shape, image.words)
    return (
        np.broadcast_to(lanes[..., None], shape).reshape(-1),
        np.broadcast_to(np.arange(image.words), shape).reshape(-1),
    )


def _copied(form: Form, image: Image, blocks: Blocks) -> Cells:
    """The cells that the blocks of one CTA become."""
    source = compression_of(form)
    if source is not None:
        blocks = packing.decompressed(source, blocks)
    words = np.ascontiguousarray(blocks).view("<u4").reshape(-1)
    return np.tile(words, len(image.copies))


FAMILY = Family(
    name="tcgen05_cp", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
