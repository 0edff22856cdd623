"""What one tcgen05.mma multiplies, from a call's opcode, keywords and dtypes: the table's row it is.

The kind that operands and formats have must be the opcode's; M, N and K must be in the kind's table.

Source: contract "Tensor Core matrix multiply-accumulate"; ``ptx.tcgen05_shapes`` is the table. Not here:
where operands lie (``families.tcgen05_mma``), masks (``product_masks``), the descriptor's bits
(``instruction_descriptor``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.errors import Report
from tilejit.ptx import tcgen05_shapes as shapes
from tilejit.tile import contracts
from tilejit.tile.call import TensorOperand, TileCall
from tilejit.tile.datapath import Datapath, datapath
from tilejit.tile.faults import keyword_fault, listed, operand_fault
from tilejit.tile.instruction_descriptor import LONG_DEPTH

NAMES = ("D", "A", "B", "SFA", "SFB")
"""The operands, in order; the last two with ``.block_scale``."""


@dataclass(frozen=True, slots=True)
class Opcode:
    """What a spelling says. ``factors``: its qualifier of scale vectors, None where it says none."""

    kind: shapes.Kind
    ctas: int
    weight_stationary: bool
    factors: str | None

    @property
    def scaled(self) -> bool:
        return bool(self.kind.scales)

    @property
    def operands(self) -> tuple[str, ...]:
        return NAMES if self.scaled else NAMES[:3]


@cache
def opcode_of(spelling: str) -> Opcode:
    words = spelling.split(".")
    named = {word.partition("::")[0]: word.partition("::")[2] for word in words}
    factors = next((w for w in words if w.startswith(("scale_vec::", "block1", "block3"))), None)
    return Opcode(shapes.KINDS[named["kind"]], int(named["cta_group"]), "ws" in words, factors)


class Product(NamedTuple):
    """One instruction of a call, by formats and numbers. ``factors``: scale factors of a row."""

    opcode: Opcode
    m: int
    n: int
    k: int
    a: shapes.Format
    b: shapes.Format
    d: shapes.Accumulator
    scale: shapes.ScaleFormat | None = None
    factors: int = 0

    @property
    def path(self) -> Datapath:
        return datapath(self.m, self.opcode.ctas, self.opcode.weight_stationary)

    @property
    def columns(self) -> int:
        """Rows of B in each CTA."""
        return self.n // self.opcode.ctas

    @property
    def banks(self) -> int:
        """Matrices A in tensor memory: with .ws one for each part of D's columns."""
        return self.path.parts if self.opcode.weight_stationary else 1

    @property
    def first_bytes(self) -> tuple[int, ...]:
        """Bytes of a column where the scale factors of a row may start."""
        scale = self.opcode.kind.scale(self.opcode.factors, self.k)
        return scale.ids(self.k) if scale is not None else ()


# --- keywords


def keywords_fit(call: TileCall, opcode: Opcode, report: Report) -> bool:
    """Majors are such, and signs and saturation are what the kind has."""
    before = len(report.diagnostics)
    for name in ("a_major", "b_major"):
        given = call.params[name]
        if given not in ("k", "mn"):
            keyword_fault(call, "major", f'{name} is {given!r}, expected "k" or "mn"', report)
    for name in ("neg_a", "neg_b", "sat_d"):
        _bit_fits(call, opcode, name, report)
    return len(report.diagnostics) == before


def _bit_fits(call: TileCall, opcode: Opcode, name: str, report: Report) -> None:
    given, negates = call.params[name], name != "sat_d"
    code = "negation" if negates else "saturation"
    if not isinstance(given, bool):
        keyword_fault(call, code, f"{name} is {given!r}, expected True or False", report)
        return
    able = [k.name for k in shapes.KINDS.values() if (k.negates if negates else k.saturates)]
    if given and opcode.kind.name not in able:
        keyword_fault(
            call, code, f"{name}: kind::{opcode.kind.name} cannot do that, kind::"
            f"{' and kind::'.join(able)} can", report,
        )  # fmt: skip


# --- formats and shape


def product_of(call: TileCall, report: Report) -> Product | None:
    """What one instruction multiplies; None after a fault."""
    opcode = opcode_of(call.spelling)
    numbers = _numbers(call, report)
    tensors = [o for o in call.operands if contracts.is_tensor(o, call, report)]
    if len(tensors) < len(call.operands) or numbers is None:
        return None
    m, n, k = numbers
    d = _accumulator(call, opcode, tensors[0], report)
    a, b = (_format(call, opcode, tensors[i], i, report) for i in (1, 2))
    if d is None or a is None or b is None:
        return None
    fits = [
        _accumulates(call, tensors[0], d, (a, b), report),
        _majors_fit(call, tensors[1], (a, b), report),
        _shape_fits(call, opcode, (m, n, k), b, report),
    ]
    if not all(fits):
        return None
    what = Product(opcode, m, n, k, a, b, d)
    return what if not opcode.scaled else _with_factors(call, what, tensors[3:], report)


def _numbers(call: TileCall, report: Report) -> tuple[int, int, int] | None:
    given = call.params["instruction_shape"]
    if isinstance(given, tuple) and len(given) == 3:
        if all(isinstance(v, int) and not isinstance(v, bool) for v in given):
            return cast(tuple[int, int, int], given)
    keyword_fault(
        call, "instruction-shape", f"instruction_shape is {given!r}, expected (M, N, K) in integers",
        report,
    )  # fmt: skip
    return None


def _accumulator(
    call: TileCall, opcode: Opcode, operand: TensorOperand, report: Report
) -> shapes.Accumulator | None:
    found = opcode.kind.accumulator(operand.dtype)
    if found is None:
        legal = listed([a.dtype for a in opcode.kind.accumulators], "or")
        operand_fault(
            call, operand, "operand-type", f"D is {operand.dtype}, kind::{opcode.kind.name} accumulates in "
            f"{legal}", report, help_=f"declare D as {legal}; in registers, behind tcgen05.ld, sums become any type",
        )  # fmt: skip
    return found


def _format(
    call: TileCall, opcode: Opcode, operand: TensorOperand, position: int, report: Report
) -> shapes.Format | None:
    """A's or B's format: the keyword's, or the dtype's, of elements stored as it says."""
    keyword = "a_format" if position == 1 else "b_format"
    given = call.params[keyword]
    name = str(operand.dtype) if given is None else given
    found = opcode.kind.format(name) if isinstance(name, str) else None
    if found is None:
        said = f"is {name}" if given is None else f"has {keyword}={given!r}"
        legal = listed([f.name for f in opcode.kind.formats], "or")
        operand_fault(
            call, operand, "format", f"{NAMES[position]} {said}, kind::{opcode.kind.name} multiplies "
            f"{legal}", report, help_=_format_help(opcode, operand, keyword, given, name),
        )  # fmt: skip
        return None
    legal_types = dict.fromkeys((found.stored, *_container(found)))
    if operand.dtype not in legal_types:
        stored = listed(list(legal_types), "or")
        lying = f", {found.bits} bits in a container of 8" if found.bits < found.stored.bits else ""
        operand_fault(
            call, operand, "operand-type", f"{NAMES[position]} has elements of {operand.dtype}, "
            f"kind::{opcode.kind.name} takes {found.name} as {stored}{lying}", report,
            help_=f'declare it as {found.stored}, with {keyword}="{found.name}"'
            if lying else '.view("…") gives the same bits another type; it converts no values',
        )  # fmt: skip
        return None
    return found


def _format_help(
    opcode: Opcode, operand: TensorOperand, keyword: str, given: object, name: object
) -> str | None:
    stored = [f.name for f in opcode.kind.formats if operand.dtype in (f.stored, *_container(f))]
    if given is None and stored:
        options = " or ".join(f'{keyword}="{s}"' for s in stored)
        return f"{options} says what its {operand.dtype} elements are"
    able = [k.name for k in shapes.KINDS.values() if isinstance(name, str) and k.format(name)]
    if able and opcode.weight_stationary:
        able = [a for a in able if not shapes.KINDS[a].scales]
    return f"kind::{' and kind::'.join(able)} multiplies {name}" if able else None


def _container(format_: shapes.Format) -> tuple[DType, ...]:
    return () if format_.stored.bits < 8 else (dtypes.container(format_.stored.bits),)


def _accumulates(
    call: TileCall,
    operand: TensorOperand,
    d: shapes.Accumulator,
    inputs: tuple[shapes.Format, shapes.Format],
    report: Report,
) -> bool:
    for name, format_ in zip("AB", inputs):
        if format_.name not in d.inputs:
            operand_fault(
                call, operand, "operand-type", f"D is {d.dtype} and {name} {format_.name}: such a D takes "
                f"{listed(d.inputs, 'or')}", report, help_="accumulate in float32",
            )  # fmt: skip
            return False
    return True


def _majors_fit(
    call: TileCall,
    a: TensorOperand,
    inputs: tuple[shapes.Format, shapes.Format],
    report: Report,
) -> bool:
    opcode, before = opcode_of(call.spelling), len(report.diagnostics)
    for name, format_ in zip("ab", inputs):
        if call.params[f"{name}_major"] != "mn":
            continue
        if name == "a" and a.space == "tmem":
            message, help_ = 'a_major="mn" for A in tensor memory, whose rows run along K', None
        elif not opcode.kind.mn_major(format_):
            message = (
                f'{name}_major="mn": {format_.name} of kind::{opcode.kind.name} runs along K, 8, 16 and 32 '
                "bits may run along M or N"
            )
            help_ = "store the operand transposed, with rows along K"
        else:
            continue
        keyword_fault(call, "major", message, report, help_)
    return len(report.diagnostics) == before


def _shape_fits(
    call: TileCall, opcode: Opcode, numbers: tuple[int, int, int], b: shapes.Format, report: Report
) -> bool:
    m, n, k = numbers
    kind, ctas, ws = opcode.kind, opcode.ctas, opcode.weight_stationary
    of = f"kind::{kind.name} with cta_group::{ctas}{' and .ws' if ws else ''}"
    depths = kind.depths(ctas, ws)
    row = kind.shape(ctas, ws, m, k)
    if k == LONG_DEPTH and k in depths:
        message = f"K is {k}: its scale factors lie otherwise, and the contract does not say how"
        help_: str | None = "K is 64"
    elif k not in depths:
        message = (
            f"K is {k}, {of} has {listed(sorted({d for d in depths if d != LONG_DEPTH}), 'or')}"
        )
        help_ = "K counts elements, not bytes; more of K are repeats: the axis K_repeat"
    elif row is None:
        rows = sorted({m for s in kind.issued(ctas, ws) if s.k == k for m in s.m})
        message, help_ = f"M is {m}, {of} has {listed(rows, 'or')}", _rows_help(opcode, m)
    elif n not in row.columns(b, call.params["b_major"]):
        legal = row.columns(b, call.params["b_major"])
        near = listed(shapes.nearest(n, legal), "or")
        mn = " and 8-bit elements along N" if len(legal) < len(row.n) else ""
        message = f"N is {n}, {of}, M={m}{mn} has {shapes.ranges_text(legal)}"
        help_ = f"the nearest is {near}; more of N are repeats: the axis N_repeat"
    else:
        return True
    keyword_fault(
        call, "instruction-shape", f"instruction_shape is {numbers!r}: {message}", report, help_
    )
    return False


def _rows_help(opcode: Opcode, m: int) -> str | None:
    if opcode.ctas == 2:
        return "M counts both CTAs of the pair: each has M/2 rows"
    if opcode.scaled and m == 64:
        return "block scales come with 128 rows in a CTA"
    if m == 256:
        return "256 rows are those of two CTAs, cta_group::2; in one CTA they are M_repeat=2"
    return None


def _with_factors(
    call: TileCall, what: Product, operands: list[TensorOperand], report: Report
) -> Product | None:
    """With the scale factors' format, which both operands have."""
    opcode, k = what.opcode, what.k
    scale = opcode.kind.scale(opcode.factors, k)
    assert scale is not None, "the table of opcodes has such as the kind has"
    by_dtype = {f.dtype: f for f in scale.formats}
    for name, operand in zip(NAMES[3:], operands):
        if operand.dtype not in by_dtype:
            operand_fault(
                call, operand, "scale-format", f"{name} is {operand.dtype}, {call.spelling} scales by "
                f"{listed(list(by_dtype), 'or')}", report,
                help_='.view("float8_e8m0fnu") says what bytes are; ' + _scale_help(opcode),
            )  # fmt: skip
            return None
    first, second = (by_dtype[o.dtype] for o in operands)
    if first is not second:
        operand_fault(
            call, operands[1], "scale-format", f"SFB is {operands[1].dtype}, SFA {operands[0].dtype}: one bit "
            "says what both are", report,
        )  # fmt: skip
        return None
    return what._replace(scale=first, factors=scale.factors(k))


def _scale_help(opcode: Opcode) -> str:
    if opcode.kind.name == "mxf4nvf4":
        return "factors of float8_e4m3fn are for 16 elements: block16, scale_vec::4X"
    return "factors of float8_e4m3fn belong to kind::mxf4nvf4"
