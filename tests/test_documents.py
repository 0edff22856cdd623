"""Generated pages are up to date, and the marked code of every page runs (tutorials: ``tests/ir``)."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import summary
from tests import evidence_page, language_page

ROOT = Path(__file__).parent.parent
RUNNABLE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def program(page: Path) -> str:
    """A page's blocks marked ``python run``, as one module in which each line has its number in the page."""
    text = page.read_text()
    lines = [""] * text.count("\n")
    for block in RUNNABLE.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines[first : first + block[1].count("\n")] = block[1].splitlines()
    return "\n".join(lines)


PAGES = [
    p for p in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if program(p).strip()
]


def test_evidence_page_is_up_to_date() -> None:
    assert evidence_page.PAGE.read_text() == evidence_page.page(), "run `make docs`"


def test_language_page_is_up_to_date() -> None:
    assert language_page.PAGE.read_text() == language_page.page(), "run `make docs`"


def test_readme_results_are_up_to_date() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == summary.page(text), "run `make docs`"


@pytest.mark.parametrize("name", sorted(summary.LADDER_PAGES))
def test_ladder_is_up_to_date(name: str) -> None:
    text = summary.LADDER_PAGES[name].read_text()
    assert text == summary.ladder(name, text), "run `make docs`"


def test_pages_with_programs_are_marked() -> None:
    assert {"README.md", "layouts.md"} <= {page.name for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_code_on_a_page_runs(page: Path, tmp_path: Path) -> None:
    module = tmp_path / f"{page.stem}.py"
    module.write_text(program(page))
    runpy.run_path(str(module), run_name="__main__")


def test_demo_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tilejit.demo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "error" in done.stdout and "registers" in done.stdout
