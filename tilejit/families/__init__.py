"""The instruction families, by the name that their forms carry in the PTX table.

One module per family: parameters · operands · legality · code generation · what the hardware does.
Families never import each other.
"""

from __future__ import annotations

from tilejit.families import (
    atom_red,
    cp_async,
    cp_async_bulk,
    cp_async_bulk_tensor,
    ewise,
    ld_st,
    ldmatrix_stmatrix,
    mbarrier,
    mma_sync,
    prefetch_policy,
    registers,
    st_async,
    sync,
    tcgen05,
    tcgen05_cp,
    tcgen05_ld_st,
    tcgen05_mma,
    wgmma,
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
        cp_async_bulk,
        st_async,
        cp_async_bulk_tensor,
        ldmatrix_stmatrix,
        wgmma,
        tcgen05,
        tcgen05_cp,
        tcgen05_ld_st,
        tcgen05_mma,
    )
}
"""Every family that the checker, the emitter and the simulator know."""
