"""Generated pages are up to date, and every tutorial runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import summary
from tests import evidence_page, language_page

ROOT = Path(__file__).parent.parent
TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))


def test_evidence_page_is_up_to_date() -> None:
    assert evidence_page.PAGE.read_text() == evidence_page.page(), "run `make docs`"


def test_language_page_is_up_to_date() -> None:
    assert language_page.PAGE.read_text() == language_page.page(), "run `make docs`"


def test_readme_results_are_up_to_date() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == summary.page(text), "run `make docs`"


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda p: p.stem)
def test_tutorial_runs(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]


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
