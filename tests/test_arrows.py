"""Import arrows: each room may import only the rooms its row allows, lazy imports included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tilejit"

BASE = {"errors", "dtypes"}
IR = BASE | {"layout", "target", "ir"}
TILE = IR | {"ptx", "tile", "shared_banks"}
ALLOWED: dict[str, set[str]] = {
    "markup": set(),
    "shared_banks": set(),
    "pictures": {"markup", "shared_banks"},
    "errors": {"markup"},
    "dtypes": set(),
    "layout": BASE | {"markup", "pictures", "shared_banks"},
    "target": BASE,
    "ir": BASE | {"layout", "target", "ir"},
    "ptx": BASE | {"target", "ptx"},
    "tile": TILE,
    "cuda": TILE | {"cuda"},
    "sim": TILE | {"sim"},
    "families": TILE | {"sim", "families"},
    "language": IR | {"ptx", "language"},
    "frontend": IR | {"ptx", "language", "frontend"},
    "runtime": BASE | {"target", "ir", "runtime"},
    "rendering": TILE | {"markup", "runtime", "rendering"},
    "pipeline": TILE
    | {"cuda", "sim", "families", "frontend", "language", "runtime", "rendering", "pipeline"},
    "lib": {"language", "__init__", "lib"},
    "kernels": {"language", "__init__", "lib", "kernels"},
    "tune": {"__init__", "dtypes", "errors", "markup", "runtime", "target", "testing", "tune"},
    "testing": {"errors", "markup", "testing"},
    "ops": {"errors", "runtime"},
    "explain": set(),
    "cli": BASE
    | {
        "target",
        "ir",
        "language",
        "runtime",
        "families",
        "kernels",
        "tune",
        "explain",
        "__init__",
        "cli",
    },
    "__main__": {"cli"},
    "demo": {"__init__", "kernels", "errors", "runtime"},
    "__init__": BASE
    | {"language", "runtime", "pipeline", "ir", "layout", "ops", "testing", "tune"},
}


def room(path: Path) -> str:
    relative = path.relative_to(PACKAGE).with_suffix("")
    return relative.parts[0]


def imported_rooms(path: Path) -> set[str]:
    rooms: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module == "tilejit":
                names = [f"tilejit.{alias.name}" for alias in node.names]
            else:
                names = [node.module]
        for name in names:
            parts = name.split(".")
            if parts[0] == "tilejit":
                known = len(parts) > 1 and (
                    (PACKAGE / parts[1]).is_dir() or (PACKAGE / f"{parts[1]}.py").exists()
                )
                rooms.add(parts[1] if known else "__init__")
    return rooms


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_follow_the_arrows(path: Path) -> None:
    own = room(path)
    assert own in ALLOWED, f"room {own} has no row in the table of arrows"
    wrong = imported_rooms(path) - ALLOWED[own]
    assert not wrong, f"{path.relative_to(PACKAGE)} may not import {sorted(wrong)}"


def test_no_relative_imports() -> None:
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path


def test_families_never_import_each_other() -> None:
    stems = {p.stem for p in (PACKAGE / "families").glob("*.py")} - {"__init__"}
    for stem in stems:
        text = (PACKAGE / "families" / f"{stem}.py").read_text()
        for other in stems - {stem}:
            assert f"tilejit.families.{other}" not in text, f"{stem} imports {other}"
