"""The documentation is built without a warning, and the site fetches nothing from elsewhere.

A broken link, anchor or code block is a warning of Sphinx or MyST. Not here: the pages' code (``test_documents``).
"""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("furo", reason="the site needs the extra 'docs'")
pytest.importorskip("myst_parser", reason="the site needs the extra 'docs'")

ROOT = Path(__file__).parent.parent
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""Elements whose target a browser loads by itself, and where they name it."""
FETCHED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""")
OUTSIDE = re.compile(r"^(?:[a-z]+:)?//", re.IGNORECASE)


class Fetches(HTMLParser):
    """What a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        target = dict(attrs).get(FETCHED.get(tag, ""))
        if target is not None:
            self.targets.append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
        + ["-d", str(folder / "trees"), "docs", str(folder / "html")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return folder / "html"


def test_every_page_is_there(site: Path) -> None:
    pages = [path for path in (ROOT / "docs").rglob("*.md")]
    tutorials = [ROOT / "docs/tutorials" / path.name for path in (ROOT / "tutorials").glob("*.py")]
    for page in (*pages, *tutorials):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists()


def test_error_codes_are_links(site: Path) -> None:
    assert 'href="errors/sim/race.html"' in (site / "simulator.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    fetched = [t for page in site.rglob("*.html") for t in fetches(page.read_text())]
    styles = [t for s in site.rglob("*.css") for t in FETCHED_BY_STYLE.findall(s.read_text())]
    assert fetched and styles
    assert not [target for target in (*fetched, *styles) if OUTSIDE.match(target)]


def fetches(page: str) -> list[str]:
    parser = Fetches()
    parser.feed(page)
    return parser.targets


def test_a_fetch_from_elsewhere_would_be_seen() -> None:
    (target,) = fetches('<p><script src="https://example.org/x.js"></script></p>')
    assert OUTSIDE.match(target) and not OUTSIDE.match("_static/x.js")
