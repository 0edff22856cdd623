"""Public cases of section B: what a compiled kernel depends on, and nothing else."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tilejit import T, dtypes, jit, pipeline
from tilejit.ir.signature import ScalarArg, TensorArg
from tilejit.runtime import nvrtc
from tilejit.runtime.variant import Variant

VECTOR = TensorArg(dtypes.int32, (32,), (1,), 16)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEJIT_TARGET", "sm_90a")
    pipeline.STEPS._texts.clear()
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("pitfall_"):
            del sys.modules[name]


KERNEL = """
from tilejit import T, jit
import pitfall_helper

@jit
def k(X: T.Tensor(("N",), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = pitfall_helper.outer(1)
"""
HELPER = """
LIMIT = 7

def inner(x):
    return x + 100

def outer(x):
    return inner(x) * LIMIT
"""


def load(folder: Path, name: str, text: str) -> Any:
    """A module of this text, as a new process would have it."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    exec(compile(text, path, "exec"), vars(module))
    import linecache

    linecache.checkcache(str(path))
    return module


@pytest.mark.parametrize(
    ("old", "new"),
    [("+ 100", "+ 200"), ("LIMIT = 7", "LIMIT = 8"), ("inner(x) *", "inner(x) -")],
    ids=["helper of a helper", "its global", "helper"],
)
def test_l32_l34_c4_an_edited_helper_is_compiled(tmp_path: Path, old: str, new: str) -> None:
    """An undecorated function of another file, what that calls, and what it reads."""

    def made(helper: str) -> Variant:
        load(tmp_path, "pitfall_helper", helper)
        variant: Variant = load(tmp_path, "pitfall_kernel", KERNEL).k.compile(VECTOR)
        return variant

    before = made(HELPER)
    assert "707" in before.cuda and before.origin.startswith("compiled")
    assert made(HELPER).origin == "from the disk cache"
    # Of another length, since the time of an edit may be that of the file before.
    after = made(HELPER.replace(old, new) + "# edited\n")
    assert after.artifact.key != before.artifact.key and "707" not in after.cuda
    assert made(HELPER).artifact.key == before.artifact.key


@jit
def fill(X: T.Tensor(("N",), "int32"), n: T.int32):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    X[T.cuda.thread_idx("x")] = n


def test_l36_launch_options_are_in_every_key() -> None:
    config = T.cuda.LaunchConfig
    made = {
        fill[launch].compile(VECTOR, 1).artifact.key
        for launch in (
            config(grid=1, block=32), config(grid=1, block=64), config(grid=1, block=32, cluster=2),
            config(grid=1, block=32, min_blocks_per_sm=2), config(grid=2, block=32),
        )
    }  # fmt: skip
    assert len(made) == 5
    assert len({v.signature.launch.block for v in fill.variants}) >= 2


def test_l42_keys_do_not_count_earlier_kernels() -> None:
    def build(value: int) -> Any:
        @jit
        def main(X: T.Tensor(("N",), "int32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            X[T.cuda.thread_idx("x")] = value

        return main

    first = build(3).compile(VECTOR)
    for other in range(4, 8):
        build(other).compile(VECTOR)
    again = build(3).compile(VECTOR)
    assert again.artifact.key == first.artifact.key and again.origin == "from the disk cache"


def test_l49_another_compiler_is_another_key() -> None:
    first = fill.compile(VECTOR, 1, fresh=True)
    with mock.patch.object(nvrtc, "version", lambda: (13, 99)):
        other = fill.compile(VECTOR, 1, fresh=True)
    assert other.artifact.key != first.artifact.key


def test_l51_targets_and_signatures_share_text_and_nothing_else() -> None:
    """Variants of one text are compiled once, and each keeps its own parameters, bounds and shapes."""
    on = [fill.compile(VECTOR, 1, target=t, fresh=True) for t in ("sm_90a", "sm_80", "sm_100a")]
    assert len({v.artifact.key for v in on}) == len({v.cubin for v in on}) == 3
    shapes = [TensorArg(dtypes.int32, (n,), (1,), 16) for n in (64, 128)]
    some = [fill.compile(shape, ScalarArg(dtypes.int32), fresh=True) for shape in shapes]
    assert some[1].origin == "same text as another variant" and some[0].cubin == some[1].cubin
    assert [v.function.params[0].type.shape for v in some] == [(64,), (128,)]  # type: ignore[union-attr]
    assert some[0].artifact.key != some[1].artifact.key
    again = fill.compile(shapes[1], ScalarArg(dtypes.int32), fresh=True)
    assert again.origin == "from the disk cache" and again.artifact.key == some[1].artifact.key


def test_l44_times_of_files_do_not_count(tmp_path: Path) -> None:
    load(tmp_path, "pitfall_helper", HELPER)
    first = load(tmp_path, "pitfall_kernel", KERNEL).k.compile(VECTOR)
    for path in tmp_path.glob("pitfall_*.py"):
        os.utime(path, (1, 1))
    again = load(tmp_path, "pitfall_kernel", KERNEL).k.compile(VECTOR)
    assert again.artifact.key == first.artifact.key and again.origin == "from the disk cache"
