"""Which thread owns a register operand's values, and in which slots: the conditions families share.

Source: contract "register instructions". Not here: shapes, bounds, memory (``tile.contracts``).
"""

from __future__ import annotations

import numpy as np

from tilejit.errors import Report
from tilejit.tile.affine import IntArray
from tilejit.tile.call import TileCall
from tilejit.tile.region import Walk

OWNER_SPAN = {"thread": 1, "warp": 32, "warpgroup": 128, "cta": 1 << 20, "cluster": 1 << 20}
"""How many consecutive threads of a CTA an owner must single out in a scope."""
OWNER_WEIGHT = {
    "laneid": 1, "warpid": 32, "wid_in_wg": 32, "wgid": 128, "tx": 1, "tid_in_wg": 1,
}  # fmt: skip
"""tx = 32·warpid + laneid, tid_in_wg = 32·wid_in_wg + laneid, warpid = wid_in_wg + 4·wgid."""
OWNER_EXTENT = {"laneid": 32, "wid_in_wg": 4, "tid_in_wg": 128}
CTA_AXES = ("cbx", "cby", "cbz")


def owned(call: TileCall, laid: Walk, report: Report) -> bool:
    """Every value belongs to the thread that executes, in one slot known at compile time."""
    findings = laid.findings
    if not findings.owned:
        findings.owned = (
            slots_static(call, laid, report)
            and owners_match(call, laid, _own_number(call), report)
            and ctas_match(call, laid, report)
        )
    return findings.owned


def slots_static(call: TileCall, laid: Walk, report: Report) -> bool:
    """Every slot is known at compile time and alike for all threads."""
    operand = laid.operand
    if laid.symbolic.terms or laid.dynamic or not laid.period_multiple:
        report.error(
            f"{call.family}/register-index",
            f"{operand.name}: registers have no addresses, so its slot must be known at compile "
            f"time; it depends on {laid.symbolic}",
            span=operand.span,
            declared=operand.declared(),
            contract=call.contract,
            help="unroll the loop (T.unroll) so that the index is a number",
        )
        return False
    slots = laid.physical()
    if slots.shape[0] > 1:
        wrong = slots != slots[:1]
        if wrong.any():
            a, r, k = (int(i) for i in np.argwhere(wrong)[0])
            report.error(
                f"{call.family}/slot-per-thread",
                f"{operand.name}: the register slot differs between threads: "
                f"{laid.group.describe(0)} uses slot {int(slots[0, r, k])}, "
                f"{laid.group.describe(a)} slot {int(slots[a, r, k])}",
                span=operand.span,
                where=laid.coordinate(r, k),
                declared=operand.declared(),
                contract=call.contract,
                help="give the axis that tells threads apart an owner: 1@laneid, 1@warpid",
            )
            return False
    return True


def _own_number(call: TileCall) -> IntArray:
    """The number in its CTA of each active thread, along the first axis of a walk."""
    return (call.group.threads % call.group.per_cta).reshape(-1, 1, 1)


def owners_match(
    call: TileCall, laid: Walk, numbers: IntArray, report: Report, help_: str | None = None
) -> bool:
    """Every value belongs to the thread of its CTA that ``numbers`` says; it broadcasts against a
    walk's (active thread, repeat, element)."""
    operand, owners = laid.operand, laid.owners
    present = {axis for axis in owners if axis in OWNER_WEIGHT}
    for axis in present & OWNER_EXTENT.keys():
        if int(owners[axis].max()) >= OWNER_EXTENT[axis] or int(owners[axis].min()) < 0:
            report.error(
                f"{call.family}/owner",
                f"{operand.name}: {axis} reaches {int(owners[axis].max())}, there are "
                f"{OWNER_EXTENT[axis]}",
                span=operand.span,
                declared=operand.declared(),
                contract=call.contract,
            )
            return False
    span = max(OWNER_SPAN[call.scope], _axes_span(present))
    if span == 1:
        return True
    owner = sum((owners[a] * OWNER_WEIGHT[a] for a in present), np.zeros((1, 1, 1), np.int64))
    expected = numbers % span
    wrong = np.broadcast_to(owner != expected, np.broadcast(owner, expected, laid.memory).shape)
    if wrong.any():
        a, r, k = (int(i) for i in np.argwhere(wrong)[0])
        shown = np.broadcast_to(owner, wrong.shape)[a, r, k]
        wanted = np.broadcast_to(expected, wrong.shape)[a, r, k]
        report.error(
            f"{call.family}/owner",
            f"{operand.name}: the value belongs to {_owner_text(int(shown), span)}, expected "
            f"{_owner_text(int(wanted), span)}",
            span=operand.span,
            where=laid.where((a, r, k)),
            declared=operand.declared(),
            contract=call.contract,
            help=help_ or _owner_help(call, present),
        )
        return False
    return True


def _axes_span(present: set[str]) -> int:
    """How many threads the layout's own axes tell apart."""
    if present & {"warpid", "tx", "wgid"}:
        return 1 << 20
    if present & {"wid_in_wg", "tid_in_wg"}:
        return 128
    return 32 if "laneid" in present else 1


def _owner_text(linear: int, span: int) -> str:
    if span == 32:
        return f"lane {linear}"
    return f"warp {linear // 32} lane {linear % 32}" + (" of the warpgroup" if span == 128 else "")


def _owner_help(call: TileCall, present: set[str]) -> str | None:
    missing = {
        "warp": ("laneid",),
        "cta": ("warpid", "laneid"),
        "warpgroup": ("wid_in_wg", "laneid"),
    }
    wanted = missing.get(call.scope, ())
    if call.scope == "thread" and present:
        return (
            "the tile is spread over threads: did you mean scope=" + _scope_of(present) + "? At "
            'scope="thread" every thread handles the whole tile it is given'
        )
    if present or not wanted:
        return None
    return "its layout names no owner; the group axes need strides " + ", ".join(
        f"1@{axis}" for axis in wanted
    )


def _scope_of(present: set[str]) -> str:
    """The scope that a layout with these owner axes is most likely meant for."""
    if present <= {"laneid"}:
        return '"warp"'
    return '"warpgroup"' if present <= {"laneid", "wid_in_wg", "tid_in_wg"} else '"cta"'


def ctas_match(call: TileCall, laid: Walk, report: Report) -> bool:
    """Every value belongs to the executing thread's CTA, where the layout or the scope tells CTAs
    apart."""
    if call.scope != "cluster" and not laid.owners.keys() & set(CTA_AXES):
        return True
    cluster = tuple(call.launch.cluster or ()) + (1,) * (3 - len(call.launch.cluster or ()))
    inner = (laid.group.threads // laid.group.per_cta).reshape(-1, 1, 1)
    for axis, extent in zip(CTA_AXES, cluster):
        expected = inner % extent
        inner = inner // extent
        if axis not in laid.owners and call.scope != "cluster":
            continue
        owner = laid.owners.get(axis, np.zeros((1, 1, 1), np.int64))
        wrong = np.broadcast_to(owner != expected, np.broadcast(owner, expected, laid.memory).shape)
        if wrong.any():
            a, r, k = (int(i) for i in np.argwhere(wrong)[0])
            report.error(
                f"{call.family}/owner",
                f"{laid.operand.name}: the value belongs to {axis} "
                f"{int(np.broadcast_to(owner, wrong.shape)[a, r, k])}, expected "
                f"{int(np.broadcast_to(expected, wrong.shape)[a, r, k])}",
                span=laid.operand.span,
                where=laid.where((a, r, k)),
                declared=laid.operand.declared(),
                contract=call.contract,
            )
            return False
    return True


def distinct_slots(
    call: TileCall, laid: Walk, report: Report, elements: IntArray | None = None
) -> bool:
    """No two coordinates of a destination share a register slot of one thread.

    ``elements``: the positions in an atom that one thread holds; all of them by default.
    """
    if laid.findings.distinct:
        return True
    held = np.arange(laid.memory.shape[2]) if elements is None else elements
    slots = laid.physical()[0][:, held].reshape(-1)
    if len(set(slots.tolist())) == slots.size:
        laid.findings.distinct = elements is None
        return True
    order = np.argsort(slots, kind="stable")
    same = np.flatnonzero(np.diff(slots[order]) == 0)
    first, second = sorted((int(order[same[0]]), int(order[same[0] + 1])))
    places = [
        laid.coordinate(repeat, int(held[k]))
        for repeat, k in (divmod(first, held.size), divmod(second, held.size))
    ]
    report.error(
        f"{call.family}/overlap",
        f"{laid.operand.name}: {places[0]} and {places[1]} are one register slot "
        f"({int(slots[first])}), and both are written",
        span=laid.operand.span,
        declared=laid.operand.declared(),
        contract=call.contract,
        help="a destination has a slot for every coordinate; only inputs may be broadcast",
    )
    return False
