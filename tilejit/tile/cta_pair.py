"""CTA pairs: the two CTAs of a cluster, of ranks that differ in the last bit, whose tensor cores one
``.cta_group::2`` instruction uses.

Not here: what an instruction does in each of them (``families``).
"""

from __future__ import annotations

from tilejit.errors import Report
from tilejit.ptx.forms import Form
from tilejit.tile.call import TileCall
from tilejit.tile.family import Machine, only


def works_on_pair(form: Form) -> bool:
    return "cta_group::2" in form.modifiers


def check(call: TileCall, report: Report) -> bool:
    """A ``.cta_group::2`` opcode needs a cluster that is pairs."""
    size = call.launch.cluster_ctas
    if not works_on_pair(call.forms[0]) or size % 2 == 0:
        return True
    found = f"clusters of {size} CTAs" if call.launch.cluster else "no cluster"
    report.error(
        f"{call.family}/cta-pair",
        f"{call.spelling} works on a pair of CTAs; this kernel is launched with {found}",
        span=call.span,
        contract=call.contract,
        help="LaunchConfig(cluster=(2, 1, 1)): the CTAs of ranks 0 and 1, 2 and 3, … are pairs; or "
        ".cta_group::1 in the opcode",
    )
    return False


def ranks(machine: Machine, form: Form, thread: tuple[int, int]) -> tuple[int, ...]:
    """The CTAs that a thread's instruction works on, by rank, the even one first; none, with a fault
    reported, where a pair has one CTA only."""
    own = int(machine.cluster_rank()[thread[0], 0])
    if not works_on_pair(form):
        return (own,)
    if (own | 1) < machine.cluster_size:
        return own & ~1, own | 1
    machine.fault(
        "sim/cta-pair",
        f"{form.spelling} works on a pair of CTAs, and the cluster has {machine.cluster_size}: rank {own} "
        "has no peer",
        only(machine, thread),
    )
    return ()
