"""Public cases of section C: launches, arguments, notebooks."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.pitfalls.one_thread import results
from tilejit import T, dtypes, jit
from tilejit.ir.signature import TensorArg


@jit
def mixed(a: T.int8, X: T.Tensor((T.dynamic("M"), T.dynamic("N")), "float32"), b: T.int64,
          flag: T.bool_, Y: T.Tensor((T.dynamic("N"),), "int16"), c: T.float32, d, out, e: T.uint16):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
    out[0] = a
    out[1] = b
    out[2] = flag
    out[3] = c
    out[4] = d
    out[5] = e
    out[6] = X[X.shape[0] - 1, X.shape[1] - 1]
    out[7] = Y[Y.shape[0] - 1]
    out[8] = X.shape[0] * 1000 + X.shape[1]


def test_l69_scalars_of_every_width_between_strided_tensors(device: str) -> None:
    base = torch.arange(600, dtype=torch.float32, device=device).reshape(20, 30)
    for turn in range(4):  # the first by the slow way, later ones by the launchers
        x, y = base[: 7 + turn, 2:26:3], torch.arange(16, dtype=torch.int16, device=device)[::2]
        out = torch.zeros(9, dtype=torch.float64, device=device)
        mixed(
            -128 + turn,
            x,
            -(2**40) - turn,
            turn % 2 == 0,
            y,
            0.5 + turn,
            7 + turn,
            out,
            65535 - turn,
        )
        expected = [
            -128 + turn, -(2**40) - turn, turn % 2 == 0, 0.5 + turn, 7 + turn, 65535 - turn,
            float(x[-1, -1]), float(y[-1]), (7 + turn) * 1000 + 8,
        ]  # fmt: skip
        assert out.tolist() == expected


@pytest.mark.parametrize("value", [np.int32(-5), np.int64(-5), np.array(-5), np.int8(-5), np.array(-5, np.int64)])  # fmt: skip
def test_l71_numpy_numbers_are_numbers(device: str, value: Any) -> None:
    assert results(device, "out[0] = n * 2", n=value)[0] == -10
    body = "out[0] = n * 2"
    found = results(device, body, dtype=torch.int64, n=value, annotations={"n": "T.int64"})
    assert found[0] == -10


def test_l74_c22_lines_of_notebook_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cubin's line table and the PTX name the cell and its lines."""
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path))
    text = (
        "@jit\ndef k(X: T.Tensor(('N',), 'int32')):\n"
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
        "    x = X[0]\n"
        "    X[1] = x + 3\n"
    )
    file = "/tmp/ipykernel_17/1234567.py"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {"T": T, "jit": jit, "__name__": "__main__"}
    exec(compile(text, file, "exec"), space)
    made = space["k"].compile(TensorArg(dtypes.int32, (32,), (1,), 16), target="sm_90a")  # type: ignore[attr-defined]
    (number,) = (line.split()[1] for line in made.ptx.splitlines() if f'"{file}"' in line)
    lines = {
        int(line.split()[2])
        for line in made.ptx.splitlines()
        if line.split()[:2] == [".loc", number]
    }
    assert {4, 5} <= lines


def test_l62_grids_of_all_kinds(device: str) -> None:
    @jit
    def count(out):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=None, block=1))
        out[T.cuda.block_idx("x") + 4 * T.cuda.block_idx("y")] = 1

    def ran(grid: Any) -> int:
        out = torch.zeros(8, dtype=torch.int32, device=device)
        count[grid](out)
        return int(out.sum())

    assert [ran(g) for g in (3, (2, 2), [2, 2], (3, 1, 1), lambda _: [4, 2], lambda _: 3)] == [
        3,
        4,
        4,
        3,
        8,
        3,
    ]
    assert [ran(g) for g in (0, (2, 0), [0, 2], lambda _: 0)] == [0] * 4
