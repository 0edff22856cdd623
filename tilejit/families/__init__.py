"""The instruction families, by the name that their forms carry in the PTX table.

One module per family: parameters · operands · legality · code generation · what the hardware does.
Families never import each other.
"""

from __future__ import annotations

from tilejit.families import (
    atom_red,
    cp_async,
    ewise,
    ld_st,
    ldmatrix_stmatrix,
    mbarrier,
    mma_sync,
    prefetch_policy,
    registers,
    sync,
)
from tilejit.tile.family import FamilyIndex

FAMILIES: FamilyIndex = {
    module.FAMILY.name: module.FAMILY
    for module in (
        registers,
        ld_st,
        ewise,
        sync,
        mbarrier,
        prefetch_policy,
        atom_red,
        mma_sync,
        cp_async,
        ldmatrix_stmatrix,
    )
}
"""Every family that the checker, the emitter and the simulator know."""
