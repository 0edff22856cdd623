"""Runs the command line in this process, and writes the files that it is run on."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tilejit.cli.main import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def tilejit(capsys: pytest.CaptureFixture[str]) -> Any:
    """``tilejit("check", path)``: exit code and output."""

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as left:
            assert isinstance(left.code, int)
            code = left.code
        said = capsys.readouterr()
        return Ran(code, said.out, said.err)

    return run


def write(folder: Path, text: str, name: str = "kernels.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


GOOD = '''\
import tilejit as tile
from tilejit import T

WIDTH = 4


@tile.jit
def helper(x):
    return x + 1.0


@tile.jit(examples=[dict(X=("float32", (64, 32)), block=32), dict(X=("float32", (64, 64)), block=64)])
def shown(X: T.Tensor((T.dynamic("M"), "N")), block: T.constexpr):
    """X + 1."""
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=block))
    i = T.cuda.thread_idx("x")
    if i < N:
        X[T.cuda.block_idx("x"), i] = helper(X[T.cuda.block_idx("x"), i])


@tile.jit
def static(X: T.Tensor((32,), "int32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = n


@tile.jit
def open_(X: T.Tensor((T.dynamic("M"), "N")), Y: T.Tensor(), plan: T.constexpr, n):
    M, N = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=M, block=32))
    i = T.cuda.thread_idx("x")
    if i < N:
        X[T.cuda.block_idx("x"), i] = X[T.cuda.block_idx("x"), i] * plan
'''

BAD = """\
import tilejit as tile
from tilejit import T


@tile.jit
def move(r, X):
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X)


@tile.jit
def owner(X: T.Tensor((2, 32, 4), "float32", align=16)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=64))
    r = T.alloc_local((2, 32, 4), "float32", layout=T.layout("(2,32,4):(1@warpid,1@laneid,1)"))
    move(r, X)


@tile.jit(examples=[dict(X=("float32", (3,)))])
def language(X: T.Tensor(("N",))):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[0] = unknown_name


@tile.jit(examples=[dict(X=("float32", (3,)), Z=3)])
def example(X: T.Tensor(("N",))):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[0] = 1.0
"""
