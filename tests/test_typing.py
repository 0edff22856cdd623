"""What an editor and a type checker see of tilejit: the kernel language, ``jit``, and what the wheel ships."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tilejit.families import FAMILIES
from tilejit.frontend import intrinsics
from tilejit.language.tile import Parameters, Scope

ROOT = Path(__file__).parent.parent

USER = """# mypy: disable-error-code="valid-type"
import torch

import tilejit as tile
from tilejit import T


@tile.jit
def kernel(X: T.Tensor(("M", 4), "uint32", align=16), Y: T.Tensor | None, a: T.float32, c: T.constexpr = 3) -> None:
    T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0] // 32, block=(32,)))
    t = T.cuda.thread_idx("x")
    r = T.alloc_local((1, 4), T.uint32, layout="default")
    T.cuda.tile.apply(T.ptx["ld.global.v4.b32"], r, X[t, :], scope="thread", pred=t > 3)
    T.ptx.add.rn.f32(r[0, 0], a, a)
    if t == 0:
        T.cuda.mbarrier_wait(r.ptr_to([0]), 0)


@tile.custom_op("mine::op", mutates=("y",))
def op(x: torch.Tensor, y: torch.Tensor) -> None:
    kernel(x, y, 2.0)


kernel[4](torch.ones(3), None, a=2.0)
variant = kernel.compile(torch.ones(3), None, 2.0, target="sm_90a")
"""

REVEALED = {
    "T.Tensor((3,))": "tilejit.language.annotations.Tensor",
    "T.dynamic('n')": "tilejit.language.annotations.DynamicDim",
    "T.constexpr(3)": "int",
    "T.float32": "tilejit.dtypes.DType",
    "T.cuda.LaunchConfig(grid=1)": "tilejit.language.annotations.LaunchConfig",
    "T.ptx['add.rn.f32']": "tilejit.ptx.instruction.Instruction",
    "T.ptx.add.rn": "tilejit.ptx.instruction.PtxPrefix",
    "T.ptx.SINK": "tilejit.ptx.instruction.Sink",
    "kernel": "tilejit.runtime.jit.JitFunction",
    "kernel.check(1)": "tilejit.runtime.variant.Variant",
    "variant.written": "frozenset[str]",
    "variant.asm": "tilejit.runtime.variant.Assembly",
}

MISTAKES = {
    "T.cuda.tile.apply(T.ptx['add.rn.f32'], 1, 2, 3, scope='wrap')": "has incompatible type \"Literal['wrap']\"",
    "T.cuda.tile.apply(T.ptx['add.rn.f32'], 1, 2, 3, chunk_byte=4)": "chunk_byte",
    "T.cuda.tile.apply('add.rn.f32', 1, 2, 3)": '"Instruction | PtxPrefix"',
    "T.cuda.thread_idx('w')": "Literal['x', 'y', 'z']",
    "T.cuda.LaunchConfig(blocks=3)": "blocks",
    "T.float23": "float23",
    "kernel.compiled(1)": "compiled",
    "tile.custom_op('a::b', mutate=('y',))": "No overload variant",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """mypy's words by line, about the user's file with one line per case behind it."""
    pytest.importorskip("mypy")
    text = (
        USER
        + "".join(f"reveal_type({e})\n" for e in REVEALED)
        + "".join(f"{m}\n" for m in MISTAKES)
    )
    folder = tmp_path_factory.mktemp("user")
    (folder / "user.py").write_text(text)
    run = [
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent",
        "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(folder / "cache"), "user.py",
    ]  # fmt: skip
    done = subprocess.run(
        run, cwd=folder, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    words: dict[int, list[str]] = {}
    for line in done.stdout.splitlines():
        place = re.match(r"user\.py:(\d+): (.*)", line)
        assert place is not None, line
        words.setdefault(int(place[1]), []).append(place[2])
    return words


FIRST = USER.count("\n") + 1


def test_a_users_module_is_clean(said: dict[int, list[str]]) -> None:
    assert {n: words for n, words in said.items() if n < FIRST} == {}


@pytest.mark.parametrize("expression", REVEALED)
def test_types(said: dict[int, list[str]], expression: str) -> None:
    (words,) = said[FIRST + list(REVEALED).index(expression)]
    assert words == f'note: Revealed type is "{REVEALED[expression]}"'


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found_while_writing(said: dict[int, list[str]], mistake: str) -> None:
    words = said[FIRST + len(REVEALED) + list(MISTAKES).index(mistake)]
    assert MISTAKES[mistake] in "\n".join(words)


def test_the_keywords_of_apply_are_the_families() -> None:
    named = {param.name for family in FAMILIES.values() for param in family.params}
    assert named == set(Parameters.__annotations__)
    assert get_args(Scope) == intrinsics.SCOPES


def test_static_keywords_have_the_families_types() -> None:
    hints: dict[str, Any] = get_type_hints(Parameters)
    for family in FAMILIES.values():
        for param in family.params:
            hint = hints[param.name]
            if param.kind == "static":
                stated = str(hint).removeprefix("<class '").partition("'")[0].partition("[")[0]
                assert stated.split(" ")[0] == param.type.split(" ")[0], (family.name, param)
            else:
                assert hint is Any or hint == tuple[Any, ...], (family.name, param)


def test_what_the_wheel_ships(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    for name in ("pyproject.toml", "setup.py", "README.md"):
        shutil.copy(ROOT / name, tmp_path)
    leave = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "tilejit", tmp_path / "tilejit", ignore=leave)
    build = "import setuptools.build_meta as b; b.build_wheel('made')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = (tmp_path / "made").glob("*.whl")
    shipped = set(zipfile.ZipFile(wheel).namelist())
    written = {str(p.relative_to(tmp_path)) for p in (tmp_path / "tilejit").rglob("*.py")}
    assert written <= shipped
    assert {"tilejit/py.typed", "tilejit/runtime/_launcher.c"} <= shipped
    assert not [name for name in shipped if "tests" in name.split("/")]
