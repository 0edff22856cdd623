"""What the ready kernels' plans depend on of a device.

Not here: the plans (each kernel); limits of a target (``tilejit.target``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from tilejit import target_of


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's multiprocessors, its compute capability times ten, the shared memory of an SM, and whether code
    for it may use what other generations lack, as for sm_100a, or only what they have, too, as for sm_100."""

    sms: int = 132
    sm: int = 90
    shared_bytes_per_sm: int = 228 * 1024
    specific: bool = True

    def __str__(self) -> str:
        plain = f" without what sm_{self.sm}a adds to sm_{self.sm}"
        return f"compute capability {self.sm / 10}{'' if self.specific else plain}"

    @property
    def has_wgmma(self) -> bool:
        return self.specific and self.sm == 90

    @property
    def has_tcgen05(self) -> bool:
        return self.specific and self.sm in (100, 103, 110)

    @property
    def has_big_clusters(self) -> bool:
        """Of 16 CTAs, with shared memory for rows of a quarter of a megabyte."""
        return self.sm // 10 in (9, 10)


H200 = Device()

_SMS = {90: 132, 100: 148, 103: 148}
"""That the simulator's devices have, where it is not 132: a B200's and a B300's."""


def device_of(device) -> Device:
    """The device that calls on tensors of a torch device run on; on the CPU the simulator's, whose target
    is ``tilejit.target_of``'s."""
    if device.type == "cuda":
        return _gpu(device.index)
    target = target_of(device)
    return Device(
        _SMS.get(target.sm, 132), target.sm, target.limits.smem_per_sm_bytes, target.suffix != ""
    )


def simulated(device) -> str | None:
    """What tells calls on the CPU apart that differ in nothing else: their target. None on a GPU."""
    return None if device.type == "cuda" else target_of(device).name


@cache
def _gpu(index: int) -> Device:
    import torch

    found = torch.cuda.get_device_properties(index)
    return Device(
        found.multi_processor_count, 10 * found.major + found.minor,
        found.shared_memory_per_block_optin + RESERVED_BYTES,
    )  # fmt: skip


RESERVED_BYTES = 1024
"""Of the SM's shared memory, for every CTA on it."""
