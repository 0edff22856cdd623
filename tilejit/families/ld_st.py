"""Memory loads and stores: ld, st.

Contract: docs/contract/ld_st.md. Not here: which spellings exist (``ptx.tables.ld_st``).
"""

from __future__ import annotations

import numpy as np

from tilejit.errors import Report
from tilejit.ir.nodes import Space
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.tile import contracts, ownership
from tilejit.tile.addresses import memory_operands, registers
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import (
    CACHE_POLICY,
    PRED,
    PRESERVE_DST,
    BitArray,
    Family,
    Issue,
    Machine,
    NativeOperand,
    Registers,
    Step,
    Value,
)
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/ld_st.md"

# --- parameters

PARAMS = (CACHE_POLICY, PRED, PRESERVE_DST)

# --- operands
#
# dst_registers, src_memory for ld; dst_memory, src_registers for st. Both are
# (*group, *repeat, V) with V the opcode's vector length.

SPACES: dict[str, Space] = {
    "global": "global", "shared": "shared", "shared::cta": "shared", "local": "local",
}  # fmt: skip


def _form(call: TileCall) -> Form:
    """One spelling of ld and st is one form."""
    return call.forms[0]


def _tensor_specs(form: Form) -> tuple[OperandSpec, ...]:
    return form.operands[:2]


# --- legality


def check(call: TileCall, report: Report) -> None:
    form = _form(call)
    contracts.cache_policy(call, report)
    if len(call.operands) != 2:
        order = "registers, memory" if form.mnemonic == "ld" else "memory, registers"
        report.error(
            "ld_st/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes 2: {order}",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip
        return
    walks: list[Walk] = []
    for spec, operand in zip(_tensor_specs(form), call.operands):
        laid = _check_operand(call, form, spec, operand, report)
        if laid is not None:
            walks.append(laid)
    if len(walks) == 2:
        contracts.repeats_agree(call, walks, report)
        _check_alias(call, walks, report)


def _check_operand(
    call: TileCall,
    form: Form,
    spec: OperandSpec,
    operand: TensorOperand | ScalarOperand,
    report: Report,
) -> Walk | None:
    if not contracts.is_tensor(operand, call, report):
        return None
    memory = spec.kind == "addr"
    space: Space = SPACES[spec.space] if memory else "local"
    if not contracts.in_space(call, operand, (space,), report):
        return None
    if not types.accepts(spec, operand.dtype):
        report.error(
            "ld_st/operand-type",
            f"{operand.name} of {form.spelling} is {operand.dtype} ({operand.dtype.bits} bits), "
            f"expected scalar elements of {spec.bits} bits",
            span=operand.span,
            declared=operand.declared(),
            contract=CONTRACT,
            help=f'.view("uint{spec.bits}") shows the same bits in that width',
        )
        return None
    laid = contracts.shaped(call, operand, (spec.lanes,), report)
    if laid is None:
        return None
    if memory:
        right = contracts.chunks(call, laid, spec.lanes * spec.bits // 8, report)
        return laid if right else None
    return _check_registers(call, spec, laid, report)


def _check_registers(call: TileCall, spec: OperandSpec, laid: Walk, report: Report) -> Walk | None:
    if not ownership.owned(call, laid, report):
        return None
    if "w" in spec.direction and not ownership.distinct_slots(call, laid, report):
        return None
    return laid


def _check_alias(call: TileCall, walks: list[Walk], report: Report) -> None:
    """Local memory has addresses, registers have none: one buffer cannot be both."""
    first, second = (walk.operand for walk in walks)
    if first.view.buffer == second.view.buffer:
        report.error(
            "ld_st/local-alias",
            f"{first.view.buffer.name} is both the registers and the addressed local memory",
            span=first.span, declared=first.declared(),
            contract=f"{CONTRACT}: addressable local memory is distinct from register operands",
        )  # fmt: skip


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """For each repeat one ld or st: the address of word zero, the V slots in word order."""
    form = _form(call)
    first, second = call.walk_of(0), call.walk_of(1)
    memory, local = (first, second) if form.mnemonic == "st" else (second, first)
    lets, places = memory_operands(call, memory)
    steps: list[Step] = list(lets)
    policy = call.params["cache_policy"]
    extra: tuple[NativeOperand, ...] = (Registers((Value(policy),)),) if policy is not None else ()
    for place, values, coordinate in zip(places, registers(local), memory.repeat_coordinates()):
        operands: tuple[NativeOperand, ...]
        if form.mnemonic == "st":
            operands = (place, values, *extra)
        else:
            operands = (values, place, *extra)
        steps.append(Issue(form, operands, call.pred, call.preserve_dst, coordinate, call.span))
    return steps


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Moves V words between consecutive bytes of memory and registers, little-endian."""
    form = issue.form
    spec = next(s for s in form.operands if s.kind == "reg")
    if spec.bits == 128:
        machine.unsimulated(f"{form.spelling}: 128-bit registers")
    width = spec.bits // 8
    nbytes = spec.lanes * width
    container = np.dtype(f"<u{width}")
    if form.mnemonic == "ld":
        registers_, memory = issue.operands[:2]
        data = np.ascontiguousarray(machine.load(memory, nbytes)).view(container)
        machine.write(registers_, [data[..., i] for i in range(spec.lanes)])
        return
    memory, registers_ = issue.operands[:2]
    machine.store(memory, _bytes(machine.read(registers_), container))


def _bytes(words: list[BitArray], container: np.dtype) -> np.ndarray:
    """Words of a lane one after another: shape (warps, 32, bytes)."""
    full = np.broadcast_shapes(*(w.shape for w in words))
    columns = [np.broadcast_to(w, full).astype(container) for w in words]
    return np.ascontiguousarray(np.stack(columns, axis=-1)).view(np.uint8)


FAMILY = Family(
    name="ld_st", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="all but 128-bit registers", contract=CONTRACT,
)  # fmt: skip
