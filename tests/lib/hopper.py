"""The ``device`` of cases that need Hopper's instructions. Not a test module."""

from __future__ import annotations

import pytest
import torch


def need_hopper(device: str) -> None:
    """Skips the case on a GPU that is no sm_90."""
    if device == "cuda" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is sm_90a's")
