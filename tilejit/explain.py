"""The pages of the error index, by code: ``python -m tilejit explain sim/race``.

``error_pages`` is the folder ``docs/errors`` (a link in the repository, files in an installed package).
Not here: what a page says, and the proof that each code has one (``tests/test_error_index.py``).
"""

from __future__ import annotations

import difflib
from pathlib import Path

PAGES = Path(__file__).parent / "error_pages"
SHARED = "any"
"""The folder of conditions that several families refuse alike."""


def page(code: str) -> str:
    """The page that explains ``code``, as markdown. ``LookupError`` for what is no code."""
    family, _, condition = code.partition("/")
    for folder in (family, SHARED):
        path = PAGES / folder / f"{condition}.md"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    near = difflib.get_close_matches(code, codes(), n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise LookupError(f"no error has the code {code!r}{hint}")


def codes() -> list[str]:
    """Codes that have a page of their own, and ``any/…`` for conditions that families share."""
    return sorted(f"{path.parent.name}/{path.stem}" for path in PAGES.glob("*/*.md"))
