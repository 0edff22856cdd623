"""Raw mbarrier instructions: their state is the simulated machine's, which completes and waits.

Asked to execute one here, it is reported as not modelled. Not here: spellings
(``ptx.tables.mbarrier``).
"""

from __future__ import annotations

from tilejit.tile.family import Issue, Machine
from tilejit.tile.raw_only import raw_family


def execute(issue: Issue, machine: Machine) -> None:
    machine.unsimulated(issue.form.spelling)


FAMILY = raw_family("mbarrier", "docs/contract/raw.md", execute, "no")
