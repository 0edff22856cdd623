"""Raw cache control: prefetches, eviction policies, priorities.

Nothing here changes what a load returns, so the simulated machine only needs the policy's value to
be something. Not here: spellings (``ptx.tables.prefetch_policy``).
"""

from __future__ import annotations

import numpy as np

from tilejit.tile.family import Issue, Machine
from tilejit.tile.raw_only import raw_family

OPAQUE_POLICY = np.uint64(0x14F0000000000000)
"""What ``createpolicy`` gives in the simulator. Real policies are opaque too."""


def execute(issue: Issue, machine: Machine) -> None:
    """``createpolicy`` writes an opaque value; hints do nothing; ``discard`` is not modelled."""
    if issue.form.mnemonic == "discard":
        machine.unsimulated(f"{issue.form.spelling}: contents become undefined")
        return
    for spec, operand in zip(issue.form.operands, issue.operands):
        if spec.kind == "reg" and "w" in spec.direction:
            machine.write(operand, [np.full(machine.active().shape, OPAQUE_POLICY)])


FAMILY = raw_family("prefetch_policy", "docs/contract/raw.md", execute, "all but discard")
