"""Register instructions: mov, add/sub/mul, div/rcp/sqrt, min/max, fma, cvt, ex2/lg2, abs/neg.

Contract: docs/contract/registers.md. Not here: which spellings exist (``ptx.tables.registers``,
``ptx.tables.conversions``), the arithmetic itself (``sim.numeric``).
"""

from __future__ import annotations

from tilejit.errors import Report
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.sim import numeric
from tilejit.tile import contracts, ownership, raw
from tilejit.tile.addresses import registers
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import (
    PRED,
    PRESERVE_DST,
    BitArray,
    Family,
    Issue,
    Machine,
    Registers,
    Step,
    Value,
)
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/registers.md"

# --- parameters

PARAMS = (PRED, PRESERVE_DST)

# --- operands
#
# dst, then the sources in PTX order. A tensor is (*group, *repeat, registers of this operand); a
# single register that is read may be a scalar expression.


def _fits(form: Form, call: TileCall) -> bool:
    """Operand count, and each operand's number of registers."""
    if len(form.operands) != len(call.operands):
        return False
    for spec, operand in zip(form.operands, call.operands):
        if isinstance(operand, ScalarOperand):
            if spec.lanes != 1:
                return False
        elif not operand.extents or operand.extents[-1] != spec.lanes:
            return False
    return True


def _types_fit(form: Form, call: TileCall) -> bool:
    return all(
        isinstance(operand, ScalarOperand) or types.accepts(spec, operand.dtype)
        for spec, operand in zip(form.operands, call.operands)
    )


def choose_form(call: TileCall) -> Form | None:
    """The form that the operands' number and register groups select; types decide a tie."""
    fitting = [form for form in call.forms if _fits(form, call)]
    if len(fitting) > 1:
        fitting = [form for form in fitting if _types_fit(form, call)] or fitting
    return fitting[0] if fitting else None


# --- legality


def check(call: TileCall, report: Report) -> None:
    form = choose_form(call)
    if form is None:
        _no_form(call, report)
        return
    walks: list[Walk] = []
    for spec, operand in zip(form.operands, call.operands):
        if isinstance(operand, ScalarOperand):
            _check_scalar(call, form, spec, operand, report)
            continue
        laid = _check_tensor(call, form, spec, operand, report)
        if laid is not None:
            walks.append(laid)
    if walks:
        contracts.repeats_agree(call, walks, report)


def _no_form(call: TileCall, report: Report) -> None:
    counts = {len(form.operands) for form in call.forms}
    takes = " or ".join(_described(form) for form in call.forms)
    if len(call.operands) not in counts:
        report.error(
            "registers/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes "
            f"{' or '.join(map(str, sorted(counts)))}",
            span=call.span, contract=CONTRACT, help=takes,
        )  # fmt: skip
        return
    last = [
        f"{o.name} a scalar" if isinstance(o, ScalarOperand) else f"{o.name} {o.extents}"
        for o in call.operands
    ]
    report.error(
        "registers/register-group",
        f"{call.spelling}: the operands' last extents are not the instruction's register groups: "
        f"{', '.join(last)}",
        span=call.span,
        contract=f"{CONTRACT}: the final extent equals that operand's native register count",
        help=f"it takes {takes}; .view(*shape, 1) makes single registers",
    )


def _described(form: Form) -> str:
    parts = (f"{s.name} (…, {s.lanes})" for s in form.operands)
    return ", ".join(parts)


def _check_scalar(
    call: TileCall, form: Form, spec: OperandSpec, operand: ScalarOperand, report: Report
) -> None:
    if "w" in spec.direction:
        contracts.scalar_destination(call, operand, report)
        return
    raw.check_scalar(form, spec, operand.expr, report, operand.span, "registers")


def _check_tensor(
    call: TileCall, form: Form, spec: OperandSpec, operand: TensorOperand, report: Report
) -> Walk | None:
    if not contracts.in_space(call, operand, ("local",), report):
        return None
    if not types.accepts(spec, operand.dtype):
        report.error(
            "registers/operand-type",
            f"{operand.name} of {form.spelling} is {operand.dtype}, expected {types.describe(spec)}",
            span=operand.span,
            declared=operand.declared(),
            contract=CONTRACT,
            help='.view("…") gives the same bits another type; cvt converts values',
        )
        return None
    laid = contracts.shaped(call, operand, (spec.lanes,), report)
    if laid is None or not ownership.owned(call, laid, report):
        return None
    if "w" in spec.direction and not ownership.distinct_slots(call, laid, report):
        return None
    return laid


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """One issue per repeat, row-major; each operand's registers in increasing order."""
    form = choose_form(call)
    assert form is not None
    coordinates = call.walk_of(0).repeat_coordinates()
    columns = [
        _native(spec, operand, call.walks.get(position), len(coordinates))
        for position, (spec, operand) in enumerate(zip(form.operands, call.operands))
    ]
    pred, preserve_dst = call.pred, call.preserve_dst
    return [
        Issue(form, operands, pred, preserve_dst, coordinate, call.span)
        for coordinate, operands in zip(coordinates, zip(*columns))
    ]


def _native(
    spec: OperandSpec, operand: ScalarOperand | TensorOperand, walk: Walk | None, repeats: int
) -> list[Registers]:
    """An operand for every repeat."""
    if walk is not None:
        return registers(walk)
    assert isinstance(operand, ScalarOperand)
    return [Registers((Value(raw.literal(spec, operand.expr)),))] * repeats


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Reads the sources, computes each lane on its own, writes the destinations."""
    inputs: list[BitArray] = []
    for spec, operand in zip(issue.form.operands, issue.operands):
        if "r" in spec.direction:
            inputs.extend(machine.read(operand))
    results = numeric.compute(issue.form, inputs)
    position = 0
    for spec, operand in zip(issue.form.operands, issue.operands):
        if "w" in spec.direction:
            machine.write(operand, results[position : position + spec.lanes])
            position += spec.lanes


FAMILY = Family(
    name="registers", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="all but cvt.rs and mov.b128", contract=CONTRACT,
)  # fmt: skip
