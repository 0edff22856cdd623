"""Raw stores and reductions of registers to another block's shared memory: st.async, red.async.

Not here: spellings (``ptx.tables.st_async``), when the bytes move (``sim.transfers``).
"""

from __future__ import annotations

import numpy as np

from tilejit.sim.numeric import reduction
from tilejit.tile.family import NO_SOURCE, Chunks, Issue, Machine, Memory, Transfer
from tilejit.tile.raw_only import raw_family


def execute(issue: Issue, machine: Machine) -> None:
    """Each lane's registers arrive at its address some time later, and their bytes on its barrier."""
    form = issue.form
    place, registers, mbar = issue.operands
    assert isinstance(place, Memory) and isinstance(mbar, Memory)
    to, barriers = machine.address(place), machine.address(mbar)
    spec = form.operands[0]
    nbytes = spec.lanes * spec.bits // 8
    shape, word = machine.active().shape, np.dtype(f"<u{spec.bits // 8}")
    words = [np.broadcast_to(bits, shape).astype(word) for bits in machine.read(registers)]
    data = np.ascontiguousarray(np.stack(words, axis=-1)).view(np.uint8)
    combine = reduction.combine(form) if form.mnemonic == "red" else None
    for thread in machine.threads():
        dst = Chunks(place, "shared", to[thread][None], nbytes)
        src = Chunks(registers, "shared", np.array([NO_SOURCE]), nbytes)
        barrier = int(barriers[thread])
        machine.transfer(
            thread, Transfer(dst, src, data[thread], combine, barrier, nbytes, "generic")
        )


FAMILY = raw_family("st_async", "docs/contract/raw.md", execute, "yes")
