"""Occupancy from a target's limits, against the numbers of NVIDIA's occupancy calculator."""

from __future__ import annotations

import pytest

from tilejit.runtime.artifact import blocks_per_sm
from tilejit.target import Target


@pytest.mark.parametrize(
    ("target", "threads", "registers", "shared_bytes", "blocks"),
    [
        ("sm_90a", 128, 32, 0, 16),  # threads: 2048 / 128
        ("sm_90a", 32, 16, 0, 32),  # the most blocks of an SM
        ("sm_90a", 128, 64, 0, 8),  # registers: 65536 / (64 * 128)
        ("sm_90a", 128, 65, 0, 7),  # 65 rounds up to 72 registers
        ("sm_90a", 256, 255, 0, 1),
        ("sm_90a", 384, 168, 0, 1),
        ("sm_90a", 128, 32, 113 * 1024, 2),  # 2 * (113 + 1) KiB = 228 KiB
        ("sm_90a", 128, 32, 113 * 1024 + 1, 1),
        ("sm_90a", 128, 32, 227 * 1024, 1),
        ("sm_90a", 128, 32, 227 * 1024 + 1, 0),
        ("sm_89", 256, 40, 0, 6),  # 1536 threads
        ("sm_90a", 1024, 64, 0, 1),
        ("sm_90a", 1025, 32, 0, 0),
    ],
)
def test_blocks_per_sm(
    target: str, threads: int, registers: int, shared_bytes: int, blocks: int
) -> None:
    limits = Target.parse(target).limits
    assert blocks_per_sm(limits, threads, registers, shared_bytes) == blocks
