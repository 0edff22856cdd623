"""Every code has a page, every page a code; the failing examples raise what they say, the mended run."""

from __future__ import annotations

import ast
import sys

import pytest

from tests import error_codes, error_index
from tests.error_index import Example, Page
from tilejit import explain
from tilejit.errors import SimulationFault, fault

PAGES = error_index.pages()
EXAMPLES = [example for page in PAGES for example in page.examples]


def test_every_code_has_a_page() -> None:
    assert not error_index.missing()


def test_every_page_has_a_code() -> None:
    used = set(error_index.page_of_codes().values())
    assert {page.code for page in PAGES} <= used


def test_the_walk_follows_tables_wrappers_and_families() -> None:
    """One code of each way a code can reach its diagnostic."""
    codes = error_codes.codes()
    assert {
        "launch/grid", "frontend/zero-division", "launch/cluster", "tma/element-strides", "sim/tmem-race",
        "wgmma/instruction-shape", "nvrtc/C7519", "cp_async_bulk_tensor/l2-promotion",
        "tcgen05_mma/saturation", "sim/instruction-descriptor", "ptx/pred-type", "ld_st/unknown-keyword",
    } <= codes  # fmt: skip
    assert "ewise/alignment" not in codes, "registers have no alignment"


def test_index_is_up_to_date() -> None:
    assert error_index.INDEX.read_text() == error_index.index(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.code)
def test_page_has_its_parts(page: Page) -> None:
    assert page.text.startswith(f"# {page.code}\n\n")
    assert page.sentence.endswith(".") and "\n## Why\n" in page.text
    kinds = [example.fails for example in page.examples]
    if page.needs is not None:
        what, path, name = page.needs
        assert what in error_index.NEEDS
        found = {
            n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)
        }
        assert name in found, f"{path} has no {name}"
        text = path.read_text()
        assert any(c in text for c, p in error_index.page_of_codes().items() if p == page.code)
    else:
        assert kinds
    assert kinds == [True, False] * (len(kinds) // 2), (
        "each failing example is followed by its mended one"
    )
    for example in page.examples:
        assert error_index.page_of_codes()[example.code] == page.code


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.code)
def test_failing_examples_raise_what_the_page_shows(page: Page) -> None:
    assert error_index.renewed(page) == page.text, "run `make docs`"


@pytest.mark.parametrize("example", [e for e in EXAMPLES if not e.fails], ids=lambda e: e.name)
def test_mended_example_runs(example: Example) -> None:
    error_index.run(example)


def test_pages_can_be_read_without_the_documentation() -> None:
    assert explain.page("sim/race").startswith("# sim/race\n")
    assert explain.page("wgmma/space").startswith("# any/space\n")
    with pytest.raises(LookupError, match="did you mean sim/race"):
        explain.page("sim/rase")


def test_an_error_that_nobody_catches_names_its_page(capsys: pytest.CaptureFixture[str]) -> None:
    error = fault(SimulationFault, "sim/race", "two threads …")
    sys.excepthook(SimulationFault, error, None)
    assert capsys.readouterr().err.endswith("more about it: python -m tilejit explain sim/race\n")
    assert error._render_traceback_()[-1].endswith("explain sim/race")
