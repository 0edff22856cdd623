"""Bulk copies and reductions of contiguous chunks: cp.async.bulk, cp.reduce.async.bulk, their groups.

Contract: docs/contract/cp_async_bulk.md. Not here: which spellings exist (``ptx.tables.cp_async_bulk``),
when bytes move in the simulator (``sim.transfers``), tensor copies.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tilejit import dtypes
from tilejit.errors import Report
from tilejit.ir import build, nodes
from tilejit.ptx import types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.ptx.spelling import lookup
from tilejit.sim.numeric import reduction
from tilejit.tile import cluster, contracts
from tilejit.tile.addresses import memory_operands
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import (
    CACHE_POLICY,
    PRED,
    Chunks,
    Family,
    Immediate,
    Issue,
    Let,
    Machine,
    Memory,
    NativeOperand,
    Param,
    Registers,
    Step,
    Transfer,
    Value,
    Variable,
)
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/cp_async_bulk.md"

CHUNK_GRANULE_BYTES = 16
"""Chunks are multiples of this, and start at multiples of it."""
MAX_CHUNK_BYTES = (1 << 20) - CHUNK_GRANULE_BYTES
"""The transaction count of an mbarrier has no more."""

# --- parameters

CHUNK_BYTES = Param(
    "chunk_bytes", "static", "int", None,
    "Bytes of one copy, a multiple of 16 below 2^20.", required=True,
)  # fmt: skip
MBAR = Param(
    "mbar", "runtime", "shared address", None,
    "Local shared address of the mbarrier that completes the bytes, in forms with .mbarrier::…: its "
    "counterpart in the destination CTA is used.",
)  # fmt: skip
REMOTE_CTA_ID = Param(
    "remote_cta_id", "runtime", "integer", None,
    "Rank within the cluster of the destination CTA, in forms from .shared::cta to .shared::cluster.",
)  # fmt: skip
CTA_MASK = Param(
    "cta_mask", "runtime", "uint16", None,
    "Bit r: the CTA of rank r gets the bytes, in .multicast::cluster forms.",
)  # fmt: skip
PARAMS = (CHUNK_BYTES, MBAR, REMOTE_CTA_ID, CTA_MASK, CACHE_POLICY, PRED)

_HELP = {
    "mbar": "mbar=barrier.ptr_to([i]), the local address: it is mapped to the destination CTA",
    "remote_cta_id": "remote_cta_id=rank, the destination CTA's rank in the cluster",
    "cta_mask": "cta_mask=T.uint16(0b11) sends the bytes to the CTAs of rank 0 and 1",
}

# --- operands
#
# dst, src (a prefetch has src only), all (*group, *repeat, chunk_bytes * 8 / storage bits).

SPACES: dict[str, nodes.Space] = {
    "global": "global", "shared::cta": "shared", "shared::cluster": "shared",
}  # fmt: skip


def _form(call: TileCall) -> Form:
    """One spelling is one form."""
    return call.forms[0]


def _tensors(form: Form) -> list[OperandSpec]:
    return [spec for spec in form.operands if spec.name in ("dst", "src")]


def _is_remote(form: Form) -> bool:
    """Whether the destination is another CTA's shared memory, whose addresses ``mapa`` gives."""
    return [spec.space for spec in _tensors(form)] == ["shared::cluster", "shared::cta"]


def _is_reduction(form: Form) -> bool:
    return "reduce" in form.modifiers


# --- legality


def check(call: TileCall, report: Report) -> None:
    form = _form(call)
    specs = _tensors(form)
    sized = _check_chunk(call, report)
    _check_keywords(call, form, report)
    contracts.cache_policy(call, report)
    if len(call.operands) != len(specs):
        report.error(
            "cp_async_bulk/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes {len(specs)}: "
            + ", ".join(_role(spec) for spec in specs),
            span=call.span, contract=CONTRACT,
            help="the rest are keywords: chunk_bytes=, mbar=, remote_cta_id=, cta_mask=, cache_policy=",
        )  # fmt: skip
        return
    if not _check_direction(call, specs, report) or not sized:
        return
    walks: list[Walk] = []
    for spec, operand in zip(specs, call.operands):
        laid = _check_operand(call, spec, operand, report)
        if laid is not None:
            walks.append(laid)
    if len(walks) == 2:
        contracts.repeats_agree(call, walks, report)


def _role(spec: OperandSpec) -> str:
    return f"{spec.name}_{SPACES[spec.space]}"


def _check_chunk(call: TileCall, report: Report) -> bool:
    size = call.params["chunk_bytes"]
    whole = isinstance(size, int) and not isinstance(size, bool)
    if whole and 0 < size <= MAX_CHUNK_BYTES and size % CHUNK_GRANULE_BYTES == 0:
        return True
    help_ = None
    if whole and 0 < size < CHUNK_GRANULE_BYTES:
        help_ = "shorter pieces are copied by cp.async (4, 8 or 16 bytes) or by st.async"
    elif whole and size > MAX_CHUNK_BYTES:
        help_ = "longer pieces are several chunks: a repeat axis in front"
    report.error(
        "cp_async_bulk/chunk-bytes",
        f"chunk_bytes is {size!r}, expected a multiple of {CHUNK_GRANULE_BYTES} bytes from "
        f"{CHUNK_GRANULE_BYTES} to {MAX_CHUNK_BYTES}",
        span=call.span, contract=CONTRACT, help=help_,
    )  # fmt: skip
    return False


def _check_keywords(call: TileCall, form: Form, report: Report) -> None:
    """Each keyword is given exactly where the opcode has an operand for it."""
    names = {spec.name for spec in form.operands}
    wanted = {
        "mbar": "mbar" in names,
        "remote_cta_id": _is_remote(form),
        "cta_mask": "cta_mask" in names,
    }
    for name, needed in wanted.items():
        given = call.params[name] is not None
        if needed and not given:
            report.error(
                "cp_async_bulk/missing-keyword", f"{call.spelling} needs {name}=",
                span=call.span, contract=CONTRACT, help=_HELP[name],
            )  # fmt: skip
        elif given and not needed:
            report.error(
                "cp_async_bulk/excess-keyword", f"{call.spelling} has no {name} operand",
                span=call.span, contract=CONTRACT, help=_excess_help(name, form),
            )  # fmt: skip
        elif given:
            _CHECKS[name](call, call.params[name], report)


def _excess_help(name: str, form: Form) -> str:
    if name == "cta_mask":
        return "cta_mask goes with .multicast::cluster in the opcode"
    if name == "remote_cta_id":
        return "only copies from .shared::cta to .shared::cluster go to a CTA of one's choice"
    if "bulk_group" in form.modifiers:
        return "it completes in a bulk group: cp.async.bulk.commit_group, then .wait_group"
    return "a prefetch has no completion"


def _check_barrier(call: TileCall, mbar: nodes.Expr, report: Report) -> None:
    if not isinstance(mbar.type, nodes.PointerType) or mbar.type.space != "shared":
        report.error(
            "cp_async_bulk/keyword-type",
            f"mbar is {mbar.type}, expected an address in shared memory",
            span=mbar.span or call.span, contract=CONTRACT, help=_HELP["mbar"],
        )  # fmt: skip
        return
    contracts.barrier_aligned(call, mbar, report)


def _check_rank(call: TileCall, rank: nodes.Expr, report: Report) -> None:
    if not isinstance(rank.type, nodes.ScalarType) or not rank.type.dtype.is_integer:
        report.error(
            "cp_async_bulk/keyword-type", f"remote_cta_id is {rank.type}, expected an integer",
            span=rank.span or call.span, contract=CONTRACT, help=_HELP["remote_cta_id"],
        )  # fmt: skip
        return
    size = call.launch.cluster_ctas
    low, high = call.context.range(call.evaluator.integer(rank))
    if high >= 0 and low < size:
        return
    found = str(low) if low == high else f"{low}..{high}"
    report.error(
        "cp_async_bulk/remote-cta",
        f"remote_cta_id is {found}, expected a rank in 0..{size - 1}: the cluster has {size} CTAs",
        span=rank.span or call.span, contract=CONTRACT,
        help="it is the rank within the cluster, not a block index; launch with cluster=…",
    )  # fmt: skip


_CHECKS = {"mbar": _check_barrier, "remote_cta_id": _check_rank, "cta_mask": contracts.cta_mask}


def _check_direction(call: TileCall, specs: list[OperandSpec], report: Report) -> bool:
    """The one mistake with a name of its own: the operands the wrong way round."""
    wanted = [SPACES[spec.space] for spec in specs]
    found = [o.space for o in call.operands if isinstance(o, TensorOperand)]
    if len(set(wanted)) < 2 or found != wanted[::-1]:
        return True
    report.error(
        "cp_async_bulk/direction",
        f"{call.spelling} was given a {found[0]} destination and a {found[1]} source, expected "
        + ", ".join(_role(spec) for spec in specs),
        span=call.span, contract=CONTRACT,
        help="the other way is cp.async.bulk.global.shared::cta.bulk_group"
        if found[0] == "global" else
        "the other way is cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes",
    )  # fmt: skip
    return False


def _check_operand(
    call: TileCall, spec: OperandSpec, operand: TensorOperand | ScalarOperand, report: Report
) -> Walk | None:
    if not contracts.is_tensor(operand, call, report):
        return None
    if not contracts.in_space(call, operand, (SPACES[spec.space],), report):
        return None
    if not _check_elements(call, spec, operand, report):
        return None
    laid = contracts.shaped(
        call, operand, (call.params["chunk_bytes"] * 8 // operand.dtype.bits,), report
    )
    if laid is None:
        return None
    right = contracts.contiguous(call, laid, report)
    return laid if contracts.aligned(call, laid, CHUNK_GRANULE_BYTES, report) and right else None


def _check_elements(
    call: TileCall, spec: OperandSpec, operand: TensorOperand, report: Report
) -> bool:
    """Copies take elements of whole bytes, reductions elements of their type."""
    bits = operand.dtype.bits
    if _is_reduction(_form(call)):
        if types.accepts(spec, operand.dtype):
            return True
        message = f"{operand.name} is {operand.dtype}, expected elements of .{spec.type}"
        help_ = "the type at the end of the opcode is that of both sides"
    elif bits % 8:
        message = f"{operand.name} has elements of {bits} bits, expected whole bytes"
        help_ = '.view("uint8") shows the same bytes'
    else:
        return True
    report.error(
        "cp_async_bulk/operand-type", message,
        span=operand.span, declared=operand.declared(), contract=CONTRACT, help=help_,
    )  # fmt: skip
    return False


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """For each repeat one instruction. To another CTA: one ``mapa`` for the barrier, and one per repeat
    for the destination."""
    form = _form(call)
    steps: list[Step] = []
    rank = _rank(call, steps) if _is_remote(form) else None
    after = _after(call, rank, steps)
    sides: list[list[Memory]] = []
    for position in range(len(call.operands)):
        lets, places = memory_operands(call, call.walk_of(position))
        steps += lets
        sides.append(places)
    for coordinate, addresses in zip(call.walk_of(0).repeat_coordinates(), map(list, zip(*sides))):
        if rank is not None:
            addresses[0] = _mapped(call, _pointer(addresses[0]), rank, "dst", steps, coordinate)
        steps.append(Issue(form, (*addresses, *after), call.pred, False, coordinate, call.span))
    return steps


def _after(call: TileCall, rank: nodes.Var | None, steps: list[Step]) -> list[NativeOperand]:
    """The operands behind the addresses of a chunk, the same for every repeat."""
    found: list[NativeOperand] = [Immediate(call.params["chunk_bytes"])]
    mbar: nodes.Expr | None = call.params["mbar"]
    if mbar is not None:
        if rank is not None:
            found.append(_mapped(call, mbar, rank, "mbar", steps))
        else:
            found.append(Memory(_once(call, mbar, "mbar", steps), 0, "shared"))
    for name in ("cta_mask", "cache_policy"):
        if call.params[name] is not None:
            found.append(Registers((Value(call.params[name]),)))
    return found


_MAPA = "mapa.shared::cluster.u32"


def _rank(call: TileCall, steps: list[Step]) -> nodes.Var:
    rank = nodes.Var(call.names.fresh("rank"), nodes.UINT32, span=call.span)
    steps.append(Let(rank, build.cast(call.params["remote_cta_id"], dtypes.uint32)))
    return rank


def _once(call: TileCall, pointer: nodes.Expr, stem: str, steps: list[Step]) -> nodes.Expr:
    """A pointer that costs nothing to read again."""
    if isinstance(pointer, nodes.Var):
        return pointer
    if isinstance(pointer, nodes.Address) and isinstance(pointer.offset_bytes, nodes.Const):
        return pointer
    var = nodes.Var(call.names.fresh(stem), _SHARED, span=pointer.span)
    steps.append(Let(var, pointer))
    return var


def _mapped(
    call: TileCall,
    local: nodes.Expr,
    rank: nodes.Var,
    stem: str,
    steps: list[Step],
    repeat: tuple[int, ...] = (),
) -> Memory:
    """The place in the CTA of that rank which corresponds to the address ``local``."""
    (form,) = lookup(_MAPA)
    var = nodes.Var(call.names.fresh(stem), nodes.UINT32, span=call.span)
    operands = (Registers((Variable(var),)), _register(local), _register(rank))
    steps += [Let(var, None), Issue(form, operands, repeat=repeat, span=call.span)]
    return Memory(nodes.Bitcast(var, _SHARED, span=call.span), 0, "shared")


def _register(value: nodes.Expr) -> Registers:
    if isinstance(value.type, nodes.PointerType):
        value = nodes.Bitcast(value, nodes.UINT32, span=value.span)
    return Registers((Value(value),))


_SHARED = nodes.PointerType("shared")


def _pointer(place: Memory) -> nodes.Expr:
    """A memory operand as one expression."""
    base, offset = place.base, place.offset_bytes
    if isinstance(base, nodes.Address):
        whole = build.add(base.offset_bytes, build.const(offset, build.dtype_of(base.offset_bytes)))
        return nodes.Address(base.buffer, whole, base.type, span=base.span)
    if offset == 0:
        return base
    number = nodes.Bitcast(base, nodes.UINT32, span=base.span)
    return nodes.Bitcast(build.add(number, build.const(offset, dtypes.uint32)), _SHARED)


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """Each thread's copy is one transfer, a multicast one per destination; ``commit_group`` closes the
    thread's open group; a wait is for whole groups. A prefetch changes nothing."""
    modifiers = issue.form.modifiers
    if "commit_group" in modifiers:
        machine.commit_bulk()
    elif "wait_group" in modifiers:
        (pending,) = issue.operands
        assert isinstance(pending, Immediate)
        machine.wait_bulk(pending.value, read="read" in modifiers)
    elif "prefetch" not in modifiers:
        _transfers(issue, machine)


def _transfers(issue: Issue, machine: Machine) -> None:
    form = issue.form
    operands = {spec.name: o for spec, o in zip(form.operands, issue.operands)}
    places = {name: _address(machine, operands[name]) for name in operands if name in _PLACES}
    numbers = {name: _number(machine, operands[name]) for name in operands if name in _NUMBERS}
    for side in ("dst", "src"):
        machine.check_aligned(operands[side], CHUNK_GRANULE_BYTES, np.ones(32, np.bool_))
    cluster.check_own(machine, form.operands, issue.operands)
    _check_sizes(machine, numbers["chunk_bytes"])
    combine = reduction.combine(form) if _is_reduction(form) else None
    for thread in machine.threads():
        size = int(numbers["chunk_bytes"][thread])
        if size == 0 or size % CHUNK_GRANULE_BYTES:
            continue
        kept = int(numbers["byte_mask"][thread]) if "byte_mask" in numbers else None
        at, nbytes = _pieces(form, size, kept)
        dst, src = (
            Chunks(operands[spec.name], _space(spec), places[spec.name][thread] + at, nbytes)
            for spec in _tensors(form)
        )
        barrier = int(places["mbar"][thread]) if "mbar" in places else None
        copy = Transfer(dst, src, None, combine, barrier, size if barrier is not None else 0)
        mask = int(numbers["cta_mask"][thread]) if "cta_mask" in numbers else None
        for one in cluster.to_each(machine, thread, copy, mask):
            machine.transfer(thread, one)


_PLACES = ("dst", "src", "mbar")
_NUMBERS = ("chunk_bytes", "cta_mask", "byte_mask")
_Lanes: TypeAlias = npt.NDArray[np.int64]


def _address(machine: Machine, operand: NativeOperand) -> _Lanes:
    assert isinstance(operand, Memory)
    return machine.address(operand)


def _number(machine: Machine, operand: NativeOperand) -> _Lanes:
    return np.broadcast_to(machine.read(operand)[0], machine.active().shape).astype(np.int64)


def _space(spec: OperandSpec) -> Literal["global", "shared"]:
    return "global" if spec.space == "global" else "shared"


def _check_sizes(machine: Machine, sizes: _Lanes) -> None:
    wrong = machine.active() & (sizes % CHUNK_GRANULE_BYTES != 0)
    if wrong.any():
        machine.fault(
            "sim/copy-size",
            f"a bulk copy of {int(sizes[wrong][0])} bytes, expected a multiple of {CHUNK_GRANULE_BYTES}",
            wrong,
        )


def _pieces(form: Form, size: int, byte_mask: int | None) -> tuple[_Lanes, int]:
    """Where the pieces of a copy lie in its chunk, and their bytes: the whole chunk, the elements of a
    reduction, or the bytes whose bit is set for their place in 16."""
    if _is_reduction(form):
        width = reduction.element_bytes(form)
        return np.arange(0, size, width), width
    if byte_mask is None:
        return np.zeros(1, np.int64), size
    at = np.arange(size)
    return at[(byte_mask >> at % CHUNK_GRANULE_BYTES) & 1 != 0], 1


FAMILY = Family(
    name="cp_async_bulk", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
