"""Warp matrix multiply-accumulate on register fragments: mma.sync.

Contract: docs/contract/mma_sync.md. Not here: which spellings exist (``ptx.tables.mma_sync``), how a
tensor core rounds (``sim.numeric.mma``), loading fragments (``ldmatrix``).
"""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.sim.numeric import mma as numeric
from tilejit.tile import contracts, matrices, raw
from tilejit.tile.affine import IntArray
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import BitArray, Family, Issue, Machine, Registers, Step, Value
from tilejit.tile.fragments import (
    LANES,
    Fragment,
    collective,
    fragment_registers,
    laid_fragment,
)
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/mma_sync.md"

# --- parameters: none but the scope

# --- operands
#
# D, A, B, C. After the warp axes of the scope and any batch axes: D and C (M_repeat, N_repeat, m, n),
# A (M_repeat, K_repeat, m, words), B (N_repeat, K_repeat, n, words). Columns of D are words too: an
# f16 accumulator's atom is (16, 4).

NAMES = ("D", "A", "B", "C")


class Fragments(NamedTuple):
    """The maps of D (and C), A and B."""

    d: Fragment
    a: Fragment
    b: Fragment


@cache
def fragments(form: Form) -> Fragments:
    """PTX ISA, "matrix fragments for mma": the same maps for every type, in words of its registers.

    A lane's registers of A alternate between rows ``lane//4`` and 8 on, then go on by 4 words.
    An accumulator has two adjacent columns: two registers, or one word of two f16.
    """
    height = re.match(r"m(\d+)", form.modifiers[2])
    assert height is not None
    rows = int(height[1])
    d, a, b, _ = form.operands
    columns, words = d.lanes * LANES // rows, a.lanes * LANES // rows
    return Fragments(
        Fragment.of((rows, columns), d.lanes, _packed_pair if columns == 4 else _two_columns),
        Fragment.of(
            (rows, words),
            a.lanes,
            lambda lane, r: (lane // 4 + 8 * (r % 2), lane % 4 + 4 * (r // 2)),
        ),
        Fragment.of((8, words), b.lanes, lambda lane, r: (lane // 4, lane % 4 + 4 * r)),
    )


def _two_columns(lane: int, r: int) -> tuple[int, int]:
    return lane // 4 + 8 * (r // 2), 2 * (lane % 4) + r % 2


def _packed_pair(lane: int, r: int) -> tuple[int, int]:
    return lane // 4 + 8 * r, lane % 4


def _form(call: TileCall) -> Form:
    """One spelling of mma is one form."""
    return call.forms[0]


# --- legality


def check(call: TileCall, report: Report) -> None:
    form = _form(call)
    if not collective(call, report):
        return
    if len(call.operands) != 4:
        report.error(
            "mma_sync/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes 4: D, A, B, C",
            span=call.span, contract=CONTRACT,
            help="C may be D itself, to accumulate, or a scalar such as 0",
        )  # fmt: skip
        return
    d, a, b = fragments(form)
    walks: list[Walk | None] = []
    for position, fragment in enumerate((d, a, b, d)):
        walks.append(_check_operand(call, form, position, fragment, report))
    matrices.repeats_agree(call, zip(NAMES, walks), report)
    if not report.failed:
        _check_sources(call, walks, report)


def _check_operand(
    call: TileCall, form: Form, position: int, fragment: Fragment, report: Report
) -> Walk | None:
    operand, spec = call.operands[position], form.operands[position]
    if isinstance(operand, ScalarOperand):
        _check_scalar(call, form, spec, operand, position, report)
        return None
    if not types.accepts(spec, operand.dtype):
        report.error(
            "mma_sync/operand-type",
            f"{operand.name} ({NAMES[position]}) of {form.spelling} is {operand.dtype}, expected "
            f"{_element_text(form, spec, position)}",
            span=operand.span,
            declared=operand.declared(),
            contract=CONTRACT,
            help='.view("…") gives the same bits another type; it converts no values',
        )
        return None
    laid = laid_fragment(call, operand, fragment, report, written=position == 0)
    if laid is None:
        return None
    return laid if matrices.has_axes(call, NAMES[position], laid, report) else None


def _element_text(form: Form, spec: OperandSpec, position: int) -> str:
    kinds = form.modifiers[-4:]
    kind = kinds[position]
    packed = {"f16": 2, "bf16": 2, "e4m3": 4, "e5m2": 4, "s8": 4, "u8": 4}.get(kind)
    if packed is not None:
        axis = "column" if position in (0, 3) else "K"
        return f"32-bit words (uint32) of {packed} adjacent {axis} values in {kind}"
    names = (types.scalar_type(spec.type), types.container_type(spec.type))
    return f"{' or '.join(str(n) for n in names)} elements (.{kind})"


def _check_scalar(
    call: TileCall,
    form: Form,
    spec: OperandSpec,
    operand: ScalarOperand,
    position: int,
    report: Report,
) -> None:
    if position == 0:
        contracts.scalar_destination(call, operand, report)
    elif position == 3 and spec.type == "b32" and _is_float_literal(operand.expr):
        report.error(
            "mma_sync/ambiguous-literal",
            f"{operand.name} (C) of {call.spelling} is a float literal, expected a uint32 of two f16 "
            "values",
            span=operand.span, contract=CONTRACT, help="0x3C003C00 is (1.0, 1.0); 0 is two zeros",
        )  # fmt: skip
    elif position == 3:
        raw.check_scalar(form, spec, operand.expr, report, operand.span, "mma_sync")
    else:
        report.error(
            "mma_sync/tensor-operand",
            f"{operand.name} ({NAMES[position]}) of {call.spelling} must be a register tensor, not "
            "a scalar expression",
            span=operand.span, contract=CONTRACT, help="only C may be a scalar",
        )  # fmt: skip


def _is_float_literal(expr: nodes.Expr) -> bool:
    return isinstance(expr, nodes.Const) and isinstance(expr.value, float)


def _check_sources(call: TileCall, walks: list[Walk | None], report: Report) -> None:
    """D is written before the last source is read: a source shares no slot with it, but that C may
    be D itself."""
    d = walks[0]
    assert d is not None
    for name, walk in zip(NAMES[1:], walks[1:]):
        if walk is None or walk.operand.view.buffer != d.operand.view.buffer:
            continue
        if name == "C" and _same_registers(walk, d):
            continue
        shared = _words(walk) & _words(d)
        if shared:
            report.error(
                "mma_sync/source-overlap",
                f"{walk.operand.name} ({name}) and {d.operand.name} (D) share "
                f"{len(shared)} of {d.operand.view.buffer.name}'s 32-bit registers, the first at "
                f"word {min(shared)}; D is written while later instructions still read {name}",
                span=walk.operand.span,
                declared=walk.operand.declared(),
                contract=CONTRACT,
                help="C is D itself, coordinate for coordinate, or a tile of its own"
                if name == "C"
                else None,
            )


def _same_registers(first: Walk, second: Walk) -> bool:
    return first.operand.dtype.bits == second.operand.dtype.bits and (
        first.memory is second.memory or np.array_equal(first.physical()[0], second.physical()[0])
    )


def _words(walk: Walk) -> set[int]:
    """The 32-bit words of its buffer that an operand occupies."""
    each = walk.operand.dtype.bits // 32
    slots: IntArray = walk.physical()[0].reshape(-1, 1) * each + np.arange(each)
    return set(slots.reshape(-1).tolist())


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """Batch, M, N, K: C at the first K, the D just written afterwards."""
    form = _form(call)
    fragment = fragments(form)
    d, a, b = (
        fragment_registers(call.walk_of(position), part) for position, part in enumerate(fragment)
    )
    c = _initial(call, form, fragment.d, len(d))
    *batch, rows, columns = call.walk_of(0).repeat
    depth = call.walk_of(1).repeat[-1]
    steps: list[Step] = []
    for row, where in enumerate(product(*map(range, (*batch, rows)))):
        tile = row // rows  # rows are counted over all batches
        for column in range(columns):
            target = d[row * columns + column]
            source = c[row * columns + column]
            for k in range(depth):
                operands = (
                    target, a[row * depth + k], b[(tile * columns + column) * depth + k], source,
                )  # fmt: skip
                steps.append(Issue(form, operands, repeat=(*where, column, k), span=call.span))
                source = target
    return steps


def _initial(call: TileCall, form: Form, fragment: Fragment, repeats: int) -> list[Registers]:
    """C for every repeat of D; a scalar fills all registers."""
    operand = call.operands[3]
    if isinstance(operand, TensorOperand):
        return fragment_registers(call.walk_of(3), fragment)
    spec = form.operands[3]
    return [Registers((Value(raw.literal(spec, operand.expr)),) * spec.lanes)] * repeats


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Gathers A, B and C of each warp from its lanes, multiplies, and scatters D."""
    form = issue.form
    d, a, b = fragments(form)
    warps = machine.active().shape[0]
    operands = [
        _gathered(machine.read(operand), fragment, warps)
        for operand, fragment in zip(issue.operands[1:], (a, b, d))
    ]
    result = numeric.multiply_accumulate(form, *operands)
    flat = result.reshape(warps, -1)
    machine.write(issue.operands[0], [flat[:, d.elements[:, r]] for r in range(d.count)])


def _gathered(bits: list[BitArray], fragment: Fragment, warps: int) -> npt.NDArray[np.generic]:
    """The atom of each warp, in registers' words: shape (warps, rows, words)."""
    columns = [np.broadcast_to(b, (warps, LANES)) for b in bits]
    found = np.empty((warps, *fragment.atom), dtype=columns[0].dtype)
    flat = found.reshape(warps, -1)
    for register, column in enumerate(columns):
        flat[:, fragment.elements[:, register]] = column
    return found


FAMILY = Family(
    name="mma_sync", params=(), check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
