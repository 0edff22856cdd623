"""The documentation site: Sphinx reads the Markdown pages of this folder, and the tutorials as pages of their cells.

    python -m sphinx -q -W --keep-going -b html docs build/site

``tests/test_site.py`` builds it too. Nothing in the site is fetched from elsewhere.
Not here: what is generated into the pages (``tests/*_page.py``, ``tests/error_index.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "tilejit"
author = "the tilejit authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown", ".py": "percent"}
root_doc = "index"
html_theme = "furo"
html_title = "tilejit"
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": False}
myst_heading_anchors = 4
pygments_style = "friendly"
pygments_dark_style = "monokai"
exclude_patterns = ["conf.py"]

ROOT = Path(__file__).resolve().parent.parent
ERRORS = ROOT / "docs" / "errors"
CODE = re.compile(r"[a-z_0-9]+/[a-zA-Z0-9-]+")
CELL = re.compile(r"^# %%.*\n", re.MULTILINE)
ELSEWHERE = {"benchmarks/notes": "notes", "CHANGELOG": "changelog", "CONTRIBUTING": "contributing"}
"""Pages that lie outside this folder, with a symbolic link in it. ``tutorials`` is one, too."""


class Percent(MystParser):
    """Scripts in the percent format: cells of Markdown in comments, cells of code."""

    supported = ("percent",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        starts = list(CELL.finditer(inputstring))
        ends = [start.start() for start in starts[1:]] + [len(inputstring)]
        cells = [
            _cell("[markdown]" in start[0], inputstring[start.end() : end])
            for start, end in zip(starts, ends, strict=True)
        ]
        super().parse("\n\n".join(cells), document)


def _cell(prose: bool, text: str) -> str:
    if prose:
        return "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.splitlines())
    return f"```python\n{text.strip()}\n```"


class CodesAreLinks(SphinxTransform):
    """An error code in a page's text leads to its page."""

    default_priority = 500

    def apply(self) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            page = _page_of(literal.astext())
            linked = isinstance(literal.parent, nodes.reference | addnodes.pending_xref)
            if page is None or linked or page == self.env.docname:
                continue
            link = addnodes.pending_xref(
                "", refdomain="std", reftype="doc", reftarget=f"/{page}", refdoc=self.env.docname,
                refexplicit=True, refwarn=True,
            )  # fmt: skip
            literal.replace_self(link)
            link += literal


def _page_of(code: str) -> str | None:
    """The page of ``family/condition``: its own, or the one of its condition."""
    if not CODE.fullmatch(code):
        return None
    family, condition = code.split("/")
    for folder in (family, "any"):
        if (ERRORS / folder / f"{condition}.md").exists():
            return f"errors/{folder}/{condition}"
    return None


class LinksFollow(SphinxTransform):
    """A link to a page outside this folder, as it is right in the repository, leads to the page of the site."""

    default_priority = 500

    def apply(self) -> None:
        for link in self.document.findall(addnodes.pending_xref):
            target = Path(link["reftarget"])
            if target.is_absolute() and target.is_relative_to(ROOT):
                name = target.relative_to(ROOT).as_posix()
                link["reftarget"] = ELSEWHERE.get(name, name)


def _is_error(page: str) -> bool:
    return page.count("/") == 2 and page.startswith("errors/")


def _leave_out_of_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Hundreds of error pages would fill the side bar; the index lists them."""
    if _is_error(page):
        app.env.metadata[page]["orphan"] = True


_of_first_error: dict[str, Callable[..., str]] = {}


def _share_navigation(
    app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object
) -> None:
    """No error page is in the side bar, so one side bar is right for all: making it takes half of a page's time."""
    if _is_error(page):
        context["toctree"] = _of_first_error.setdefault("toctree", cache(context["toctree"]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_parser(Percent)
    app.add_transform(CodesAreLinks)
    app.add_transform(LinksFollow)
    app.connect("source-read", _leave_out_of_navigation)
    app.connect("html-page-context", _share_navigation, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
