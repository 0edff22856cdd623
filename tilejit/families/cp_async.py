"""Asynchronous copies of one short chunk from global to shared memory: cp.async, and their groups.

Contract: docs/contract/cp_async.md. Not here: which spellings exist (``ptx.tables.cp_async``), when
the bytes arrive in the simulator (``sim.copies``), bulk and tensor copies.
"""

from __future__ import annotations

import numpy as np

from tilejit.errors import Report
from tilejit.ir import nodes
from tilejit.ptx.forms import Form
from tilejit.tile import contracts
from tilejit.tile.addresses import memory_operands
from tilejit.tile.call import ScalarOperand, TensorOperand, TileCall
from tilejit.tile.family import (
    CACHE_POLICY,
    PRED,
    Family,
    Immediate,
    Issue,
    Machine,
    NativeOperand,
    Param,
    Registers,
    Step,
    Value,
)
from tilejit.tile.region import Walk

CONTRACT = "docs/contract/cp_async.md"

# --- parameters

CHUNK_BYTES = Param(
    "chunk_bytes", "static", "int", None,
    "Bytes of one copy: 4, 8 or 16; .cg copies 16.", required=True,
)  # fmt: skip
SRC_SIZE = Param(
    "src_size", "runtime", "uint32 or int32", None,
    "Bytes that are copied, 0..chunk_bytes; the rest of the chunk becomes zeros.",
)  # fmt: skip
IGNORE_SRC = Param(
    "ignore_src", "runtime", "bool", None, "Where true, the whole chunk becomes zeros."
)
PARAMS = (CHUNK_BYTES, SRC_SIZE, IGNORE_SRC, CACHE_POLICY, PRED)

FILLS = ("src_size", "ignore_src")
"""Parameters that select an operand list of their own."""

# --- operands
#
# dst_shared, src_global, both (*group, *repeat, chunk_bytes * 8 / storage bits).


def _form(call: TileCall) -> Form | None:
    """The form with the zero-fill operand that is given; None where both are."""
    given = {name for name in FILLS if call.params[name] is not None}
    for form in call.forms:
        if {spec.name for spec in form.operands}.intersection(FILLS) == given:
            return form
    return None


# --- legality


def check(call: TileCall, report: Report) -> None:
    if len(call.operands) != 2:
        report.error(
            "cp_async/operand-count",
            f"{call.spelling} was given {len(call.operands)} operands, it takes 2: dst_shared, "
            "src_global",
            span=call.span, contract=CONTRACT,
            help="the size and the other operands are keywords: chunk_bytes=, src_size=, cache_policy=",
        )  # fmt: skip
        return
    sized = _check_chunk(call, report)
    _check_fill(call, report)
    contracts.cache_policy(call, report)
    if not _check_direction(call, report) or not sized:
        return
    walks: list[Walk] = []
    spaces: tuple[nodes.Space, ...] = ("shared", "global")
    for operand, space in zip(call.operands, spaces):
        laid = _check_operand(call, operand, space, report)
        if laid is not None:
            walks.append(laid)
    if len(walks) == 2:
        contracts.repeats_agree(call, walks, report)


def _check_chunk(call: TileCall, report: Report) -> bool:
    form = call.forms[0]
    (spec,) = (spec for spec in form.operands if spec.kind == "imm")
    legal, level = spec.values or (), form.modifiers[1]
    size = call.params["chunk_bytes"]
    if isinstance(size, int) and not isinstance(size, bool) and size in legal:
        return True
    report.error(
        "cp_async/chunk-bytes",
        f"chunk_bytes is {size!r}, expected {' or '.join(map(str, legal))} bytes for .{level}",
        span=call.span, contract=CONTRACT,
        help=".ca copies 4, 8 or 16 bytes" if level == "cg" else
        "more bytes are more repeats: shape (*repeat, elements of one chunk)",
    )  # fmt: skip
    return False


def _check_fill(call: TileCall, report: Report) -> None:
    size = call.params["src_size"]
    if size is not None and call.params["ignore_src"] is not None:
        report.error(
            "cp_async/zero-fill",
            f"{call.spelling} was given src_size and ignore_src, expected at most one: they are "
            "alternative operands",
            span=call.span, contract=CONTRACT,
            help="src_size=T.if_then_else(ignored, T.uint32(0), bytes) says both",
        )  # fmt: skip
    if size is None:
        return
    if not _is_byte_count(size):
        report.error(
            "cp_async/keyword-type",
            f"src_size is {size.type}, expected uint32 or int32 bytes",
            span=call.span, contract=CONTRACT,
            help="a condition is ignore_src=…: where it is true the chunk becomes zeros"
            if size.type == nodes.BOOL
            else "T.uint32(…) converts what is known to be in 0..chunk_bytes; min and max clamp it",
        )  # fmt: skip
        return
    limit = call.params["chunk_bytes"]
    least, most = call.context.range(call.evaluator.integer(size))
    if isinstance(limit, int) and (least > limit or most < 0):
        found = str(least) if least == most else f"{least}..{most}"
        report.error(
            "cp_async/src-size",
            f"src_size is {found} bytes, expected 0..{limit}, the bytes of one chunk",
            span=call.span, contract=CONTRACT,
        )  # fmt: skip


def _is_byte_count(size: nodes.Expr) -> bool:
    if isinstance(size, nodes.Const):
        return bool(size.type.dtype.is_integer)
    return size.type in (nodes.UINT32, nodes.INT32)


def _check_direction(call: TileCall, report: Report) -> bool:
    """The one mistake with a name of its own: the operands the wrong way round."""
    spaces = tuple(o.space for o in call.operands if isinstance(o, TensorOperand))
    if spaces != ("global", "shared"):
        return True
    report.error(
        "cp_async/direction",
        f"{call.spelling} was given a global destination and a shared source, expected "
        "dst_shared, src_global: it copies from global to shared memory only",
        span=call.span, contract=CONTRACT,
        help="store registers with st.global, or copy out with cp.async.bulk (sm_90)",
    )  # fmt: skip
    return False


def _check_operand(
    call: TileCall, operand: TensorOperand | ScalarOperand, space: nodes.Space, report: Report
) -> Walk | None:
    if not contracts.is_tensor(operand, call, report):
        return None
    if not contracts.in_space(call, operand, (space,), report):
        return None
    size, bits = call.params["chunk_bytes"], operand.dtype.bits
    if bits % 8:
        report.error(
            "cp_async/operand-type",
            f"{operand.name} has elements of {bits} bits, expected whole bytes",
            span=operand.span, declared=operand.declared(), contract=CONTRACT,
            help='.view("uint8") shows the same bytes',
        )  # fmt: skip
        return None
    if size * 8 % bits:
        report.error(
            "cp_async/operand-type",
            f"{operand.name} has elements of {bits // 8} bytes, expected whole elements in a chunk "
            f"of {size} bytes",
            span=operand.span, declared=operand.declared(), contract=CONTRACT,
            help='.view("uint32") shows the same bytes as narrower elements',
        )  # fmt: skip
        return None
    laid = contracts.shaped(call, operand, (size * 8 // bits,), report)
    return laid if laid is not None and contracts.chunks(call, laid, size, report) else None


# --- code generation


def bind(call: TileCall) -> list[Step]:
    """For each repeat one copy: the addresses of both chunks, the size, the zero fill, the policy."""
    form = _form(call)
    assert form is not None
    shared, global_ = call.walk_of(0), call.walk_of(1)
    shared_lets, destinations = memory_operands(call, shared)
    global_lets, sources = memory_operands(call, global_)
    extra = (Immediate(call.params["chunk_bytes"]), *_extra(call))
    coordinates = shared.repeat_coordinates()
    steps: list[Step] = [*shared_lets, *global_lets]
    for destination, source, coordinate in zip(destinations, sources, coordinates):
        operands = (destination, source, *extra)
        steps.append(Issue(form, operands, call.pred, False, coordinate, call.span))
    return steps


def _extra(call: TileCall) -> list[NativeOperand]:
    found: list[NativeOperand] = []
    for name in (*FILLS, "cache_policy"):
        value = call.params[name]
        if value is None:
            continue
        if name == "src_size" and isinstance(value, nodes.Const):
            found.append(Immediate(int(value.value)))
        else:
            found.append(Registers((Value(value),)))
    return found


# --- what the hardware does


def execute(issue: Issue, machine: Machine) -> None:
    """A copy joins the thread's open group; ``commit_group`` closes it; a wait is for whole groups."""
    kind = issue.form.modifiers[1]
    if kind == "commit_group":
        machine.commit_group()
    elif kind == "wait_group":
        (pending,) = issue.operands
        assert isinstance(pending, Immediate)
        machine.wait_group(pending.value)
    elif kind == "wait_all":
        machine.wait_group(None)
    elif kind == "mbarrier":
        machine.mbarrier_arrive_on_copies(issue.operands[0], "noinc" in issue.form.modifiers)
    else:
        _copy(issue, machine)


def _copy(issue: Issue, machine: Machine) -> None:
    operands = {spec.name: o for spec, o in zip(issue.form.operands, issue.operands)}
    size = operands["chunk_bytes"]
    assert isinstance(size, Immediate)
    kept = np.full((1, 1), size.value, np.uint32)
    if "src_size" in operands:
        kept = machine.read(operands["src_size"])[0].astype(np.uint32)
    elif "ignore_src" in operands:
        ignored = machine.read(operands["ignore_src"])[0] != 0
        kept = np.where(ignored, np.uint32(0), np.uint32(size.value))
    machine.copy_async(operands["dst"], operands["src"], size.value, kept)


FAMILY = Family(
    name="cp_async", params=PARAMS, check=check, bind=bind, execute=execute,
    simulated="yes", contract=CONTRACT,
)  # fmt: skip
