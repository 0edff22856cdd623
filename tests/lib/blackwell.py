"""The ``device`` of cases that need Blackwell's tensor cores. Not a test module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tilejit import simulation
from tilejit.target import Target

TARGETS = ("sm_100a", "sm_103a")


def need_tcgen05(device: str) -> None:
    """Skips the case on a GPU without tensor memory."""
    if device != "cuda":
        return
    found = Target.of_capability(*torch.cuda.get_device_capability())
    if not found.limits.tmem_columns:
        pytest.skip(f"tcgen05 is sm_100's, sm_103's and sm_110's; this is {found}")


@contextmanager
def blackwell(device: str, *, seed: int = 0) -> Iterator[None]:
    """Calls on the CPU run as on sm_100a; the case is skipped on a GPU without tensor memory."""
    need_tcgen05(device)
    with simulation(target=TARGETS[0], seed=seed):
        yield
