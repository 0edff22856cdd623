"""Generated pages are up to date, and the code of every page is what its mark says.

``python run`` is run here, a page as one program; ``python fails`` and ``python mended`` in ``test_error_index``; ``python sketch``
is a part of a program, whose syntax, names and spellings are right. Code without a mark is refused.

Not here: the site (``test_site``), tutorials (``tests/ir``, ``test_notebooks``).
"""

from __future__ import annotations

import ast
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import summary
from tests import contract_page, evidence_page, language_page
from tilejit import T
from tilejit.families import FAMILIES
from tilejit.ptx import spelling
from tilejit.tile.family import Param

ROOT = Path(__file__).parent.parent
RUNNABLE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^ *```(\w.*)$", re.MULTILINE)
SKETCH = re.compile(r"^```python sketch\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKS = ("run", "sketch", "fails", "mended")
EVERY_PAGE = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def program(page: Path) -> str:
    """A page's blocks marked ``python run``, as one module in which each line has its number in the page."""
    text = page.read_text()
    lines = [""] * text.count("\n")
    for block in RUNNABLE.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines[first : first + block[1].count("\n")] = block[1].splitlines()
    return "\n".join(lines)


PAGES = [page for page in EVERY_PAGE if program(page).strip()]
SKETCHES = [
    pytest.param(block[1], id=f"{page.stem}-{number}")
    for page in EVERY_PAGE
    for number, block in enumerate(SKETCH.finditer(page.read_text()))
]


def test_evidence_page_is_up_to_date() -> None:
    assert evidence_page.PAGE.read_text() == evidence_page.page(), "run `make docs`"


def test_language_page_is_up_to_date() -> None:
    assert language_page.PAGE.read_text() == language_page.page(), "run `make docs`"


def test_contract_reference_is_up_to_date() -> None:
    found = contract_page.pages()
    for path, text in found.items():
        assert path.read_text() == text, "run `make docs`"
    assert {*(contract_page.PAGES / "forms").glob("*.md")} <= found.keys()


@pytest.mark.parametrize("family", sorted(contract_page.with_forms()))
def test_joined_rows_are_the_same_forms(family: str) -> None:
    """As many as before, and no spelling that was not there."""
    forms = spelling.forms_of_family(family)
    groups = contract_page.groups(family)
    assert sum(group.forms for group in groups) == len(forms)
    for group in groups:
        assert group.forms == math.prod(len(slot.choices) for slot in group.slots), group.pattern


KEYWORD_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)


def keywords(page: Path) -> dict[str, tuple[bool, bool]]:
    """name → (static, required) of a contract page's table of keywords."""
    section = re.search(r"^## Parameters\n(.*?)^## ", page.read_text(), re.MULTILINE | re.DOTALL)
    rows = KEYWORD_ROW.findall(section[1]) if section else []
    return {
        name: (kind.startswith("static"), default == "required")
        for names, kind, default in rows
        for name in re.findall(r"\w+", names)
        if name != "scope"
    }


@pytest.mark.parametrize(
    "family", sorted(n for n, f in FAMILIES.items() if "raw.md" not in f.contract)
)
def test_keywords_of_a_contract_are_the_family_s(family: str) -> None:
    def said(param: Param) -> tuple[bool, bool]:
        return param.kind == "static", param.required

    page = ROOT / FAMILIES[family].contract
    raw_only = not any(form.tile for form in spelling.forms_of_family(family))
    params = () if raw_only else FAMILIES[family].params
    assert keywords(page) == {param.name: said(param) for param in params}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_code_says_whether_it_runs(page: Path) -> None:
    marks = [fence.split() for fence in FENCE.findall(page.read_text())]
    assert not [mark for mark in marks if mark[0] in ("py", "python3", "pycon")]
    unmarked = [
        mark for mark in marks if mark[0] == "python" and (mark[1:] or [""])[0] not in MARKS
    ]
    assert not unmarked, f"write `python run`, or `python sketch` for a part of a program ({MARKS})"


@pytest.mark.parametrize("text", SKETCHES)
def test_sketch_uses_what_there_is(text: str) -> None:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            of_language(node)
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "T.ptx":
            if isinstance(node.slice, ast.Constant):
                assert spelling.lookup(node.slice.value)


def of_language(node: ast.Attribute) -> None:
    """``T.cuda.…``, as far as it is the language's own, names something."""
    names = ast.unparse(node).split(".")
    if names[0] != "T" or names[1] == "ptx" or not all(name.isidentifier() for name in names):
        return
    value = T
    for name in names[1:]:
        value = getattr(value, name)


def test_readme_results_are_up_to_date() -> None:
    text = (ROOT / "README.md").read_text()
    assert text == summary.page(text), "run `make docs`"


@pytest.mark.parametrize("name", sorted(summary.LADDER_PAGES))
def test_ladder_is_up_to_date(name: str) -> None:
    text = summary.LADDER_PAGES[name].read_text()
    assert text == summary.ladder(name, text), "run `make docs`"


def test_pages_with_programs_are_marked() -> None:
    assert {"README.md", "layouts.md"} <= {page.name for page in PAGES}


@pytest.mark.filterwarnings(
    "ignore::tilejit.tune.store.TuningWarning"
)  # pages run without a GPU, too
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
