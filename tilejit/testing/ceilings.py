"""What a machine can do at best, measured: how fast it copies memory and multiplies matrices.

Datasheets promise more than a card gives under its power limit; a percentage of what was measured in the
same process says how much is left to gain.
Not here: what is held against it (``report``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from tilejit.testing import timing

_COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
"""Many times the caches."""
_PRODUCT_SIZE = {"cuda": 8192, "cpu": 512}
_SECONDS = 0.3
"""Of settling, and of measuring: twice each."""


@dataclass(frozen=True)
class Ceiling:
    """``bytes_per_second``: of a large copy, read and written bytes together. ``flops_per_second``: of a
    large product of ``dtype`` matrices of random numbers, by torch's library."""

    device: str
    bytes_per_second: float
    flops_per_second: float
    dtype: str

    def __str__(self) -> str:
        return (
            f"{self.device}: copies {self.bytes_per_second / 1e12:.3g} TB/s, "
            f"multiplies {self.dtype} matrices at {self.flops_per_second / 1e12:.3g} TFLOP/s"
        )

    def least_seconds(self, nbytes: float, flops: float) -> float:
        """What no call that moves so many bytes and does so many operations is faster than."""
        return max(nbytes / self.bytes_per_second, flops / self.flops_per_second)


def ceiling(device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> Ceiling:
    """That of ``device`` (by default the current GPU, else the CPU) and of products of ``dtype`` (bfloat16 on
    a GPU, float32 on the CPU). Takes about two seconds once per process."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", torch.cuda.current_device())
    fallback = torch.bfloat16 if chosen.type == "cuda" else torch.float32
    return _measured(chosen, dtype or fallback)


@lru_cache(maxsize=64)
def _measured(device: torch.device, dtype: torch.dtype) -> Ceiling:
    count, size = _COPY_BYTES[device.type], _PRODUCT_SIZE[device.type]
    source = torch.randint(256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    contenders: timing.Contenders = {
        "copy": lambda: target.copy_(source),
        "product": lambda: torch.matmul(a, b, out=out),
    }
    if device.type == "cuda":
        with torch.cuda.device(device):
            timings = timing.sustained(contenders, _SECONDS, _SECONDS)
        name = torch.cuda.get_device_name(device)
    else:
        timings = timing.interleaved(contenders, rounds=5, clock=timing.by_host_clock)
        name = "CPU"
    return Ceiling(
        name,
        2 * count / timings["copy"].median,
        2 * size**3 / timings["product"].median,
        str(dtype).removeprefix("torch."),
    )
