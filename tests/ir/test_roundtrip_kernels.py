"""Every kernel of the library survives its script and its JSON.

The kernels of ``tests/test_end_to_end.py`` and of the tutorials (``tests/test_notebooks.py``) are checked where
they run.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests import roundtrip
from tilejit.kernels import add, attention_mma, matmul_mma, norm, softmax, transpose

WIDTHS = (6, 72, 1016, 2072, 33008)
"""Widths that no other test uses: a kernel specialised before is not lowered again."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def row_kernels(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, width).to(dtype)
    softmax.softmax(x)
    weight = torch.ones(width, dtype=dtype)
    norm.rms_norm(x, weight)
    norm.layer_norm(x, weight, weight)
    add.add(x[0].clone(), x[1].clone())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_kernels(width: int, dtype: torch.dtype) -> None:
    with roundtrip.lowered_functions() as found:
        row_kernels(width, dtype)
    one_of_two = {f.name.removesuffix("_rows").removesuffix("_clusters") for f in found}
    assert {"softmax", "norm"} <= one_of_two
    for function in found:
        roundtrip.check(function)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_tile_kernels(dtype: torch.dtype) -> None:
    """Of sizes, pitches and a plan that no other test uses."""
    a, b = torch.randn(24, 104).to(dtype), torch.randn(104, 152).to(dtype)
    q = torch.randn(1, 1, 9, 136).to(dtype)[..., :64]
    plan = replace(transpose.plan_tiles(2, 8, 8), order_rows=7)
    with roundtrip.lowered_functions() as found:
        matmul_mma.matmul(a, b)
        attention_mma.attention(q, q, q, causal=True)
        transpose.transpose_tiles(a.view(-1), a.clone().view(-1), 24, 104, 13, 3, plan)
    assert {"matmul_tiles", "attention_rows", "transpose_tiles"} == {f.name for f in found}
    for function in found:
        roundtrip.check(function)
