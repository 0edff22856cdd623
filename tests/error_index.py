"""The error index: one page per code in ``docs/errors``, its examples and what they really say.

    python -m tests.error_index             renews the messages in all pages, and index.md
    python -m tests.error_index sim tile    only these families' messages, and index.md
    python -m tests.error_index --missing   lists codes that have no page yet (families may follow)

A page is ``docs/errors/<family>/<condition>.md``:

    # sim/race
                                       (one sentence: what is wrong; it is the row in index.md)
    Two threads touch the same bytes, …
                                       (why: what the hardware or Python does, which section says so)
    ## Why
                                       (a complete program that raises this code and no other)
    ```python fails
    ```
                                       (written by the generator: the first lines of the message)
    ```text
    ```
                                       (the same program, right: runs without error or warning)
    ```python mended
    ```

A page may have several pairs; ``python fails ld_st/space`` names a code other than the page's own. What
several families of instructions refuse alike has one page, ``docs/errors/any/<condition>.md``, whose
examples name their codes; a family's own page comes before it.

Examples run in one process, so they are given no GPU, subprocess or file of their own. A code that needs
more has no ``fails`` block but a line of its own, ``Needs: gpu: `tests/….py::test_…``` (or ``toolchain``,
``internal``): a test that raises it without the real thing. Its example, as ``python sketch``, is not run.

Not here: which codes there are (``error_codes``).
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import sys
import types
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import error_codes
from tilejit.errors import Diagnostic, TileError
from tilejit.families import FAMILIES

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "docs" / "errors"
INDEX = PAGES / "index.md"
SHARED = "any"
"""The folder of what several families refuse alike."""
SHOWN_LINES = 12
NEEDS = ("gpu", "toolchain", "internal")

_BLOCK = re.compile(r"^```python (fails|mended)(?: (\S+))?\n(.*?)^```\n", re.M | re.S)
_MESSAGE = re.compile(r"\n```text\n.*?^```\n", re.M | re.S)
_NEEDS = re.compile(r"^Needs: (\w+): `(\S+?)::(\w+)`$", re.M)
_ADDRESS = re.compile(r"0x[0-9a-f]{9,}")
_FAMILIES = re.compile(r"^Families: .*\n", re.M)


@dataclass(frozen=True)
class Example:
    page: Path
    number: int
    fails: bool
    code: str
    text: str

    @property
    def file(self) -> str:
        return f"{self.page.stem.replace('-', '_')}.py"

    @property
    def name(self) -> str:
        what = "fails" if self.fails else "mended"
        return f"{self.page.parent.name}/{self.page.stem}-{what}{self.number or ''}"


@dataclass(frozen=True)
class Page:
    path: Path
    text: str

    @property
    def code(self) -> str:
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def sentence(self) -> str:
        """The first paragraph below the title."""
        return " ".join(self.text.split("\n\n")[1].split())

    @property
    def needs(self) -> tuple[str, Path, str] | None:
        """What its example needs, and the test that raises the code without it."""
        found = _NEEDS.search(self.text)
        return (found[1], ROOT / found[2], found[3]) if found else None

    @property
    def examples(self) -> list[Example]:
        found: list[Example] = []
        code = self.code
        for number, block in enumerate(_BLOCK.finditer(self.text)):
            fails = block[1] == "fails"
            code = block[2] or (self.code if fails else code)
            found.append(Example(self.path, number // 2, fails, code, block[3]))
        return found


def pages(*families: str) -> list[Page]:
    found = sorted(p for p in PAGES.glob("*/*.md") if not families or p.parent.name in families)
    return [Page(path, path.read_text()) for path in found]


@cache
def page_of_codes() -> dict[str, str]:
    """The page of each code: its own, or the one of its condition."""
    own = {page.code for page in pages()}
    found: dict[str, str] = {}
    for code in error_codes.codes():
        family, condition = code.split("/")
        shared = f"{SHARED}/{condition}"
        if code in own:
            found[code] = code
        elif shared in own and family in (*FAMILIES, "ptx"):
            found[code] = shared
    return found


def missing(*families: str) -> list[str]:
    """Codes without a page."""
    left = error_codes.codes() - page_of_codes().keys()
    return sorted(c for c in left if not families or c.split("/")[0] in families)


# --- running examples


def run(example: Example) -> None:
    """Executes the program as a module of its own name, whose source Python can find."""
    lines = example.text.splitlines(keepends=True)
    linecache.cache[example.file] = (len(example.text), None, lines, example.file)
    module = types.ModuleType(f"page_{example.page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module  # dataclasses look there
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(compile(example.text, example.file, "exec"), module.__dict__)
    finally:
        del sys.modules[module.__name__]


def raised(example: Example) -> list[Diagnostic]:
    """What the program raises; a warning of the compiler counts, too."""
    from tilejit.pipeline import CompilerWarning

    try:
        run(example)
    except TileError as error:
        return list(error.diagnostics)
    except CompilerWarning as warning:
        code, _, message = str(warning).partition("[")[2].partition("]: ")
        return [Diagnostic(code, message)]
    return []


def message(example: Example) -> str:
    """The first lines of the first fault, as the program prints them."""
    found = raised(example)
    wrong = {d.code for d in found} ^ {example.code}
    if wrong:
        raise AssertionError(f"{example.name}: raises {[d.code for d in found] or 'nothing'}")
    lines = found[0].render().splitlines()
    shown = lines[:SHOWN_LINES] + ["   …"] * (len(lines) > SHOWN_LINES)
    text = "\n".join(line.rstrip() for line in shown)
    return _ADDRESS.sub("0x7f…", text)  # of this run only


# --- writing


def renewed(page: Page) -> str:
    """The page with the messages that its examples raise, and the families of a shared page."""
    parts, end = [], 0
    for block, example in zip(_BLOCK.finditer(page.text), page.examples):
        parts.append(page.text[end : block.end()])
        end = block.end()
        if example.fails:
            old = _MESSAGE.match(page.text, end)
            end = old.end() if old else end
            parts.append(f"\n```text\n{message(example)}\n```\n")
    text = "".join((*parts, page.text[end:]))
    if page.path.parent.name == SHARED:
        names = sorted(c.split("/")[0] for c, p in page_of_codes().items() if p == page.code)
        line = "Families: " + ", ".join(f"`{name}`" for name in names) + ".\n"
        if _FAMILIES.search(text):
            return _FAMILIES.sub(lambda _: line, text)
        title, sentence, rest = text.split("\n\n", 2)
        return "\n\n".join((title, sentence, f"{line}\n{rest}"))
    return text


def index() -> str:
    sentences = {page.code: page.sentence for page in pages()}
    by_family: dict[str, list[str]] = {}
    for code, page in sorted(page_of_codes().items()):
        row = f"| [`{code}`]({page}.md) | {sentences[page].replace('|', chr(92) + '|')} |"
        by_family.setdefault(code.split("/")[0], []).append(row)
    lines = [
        "# Error index", "",
        "Generated by `make docs`; do not edit. Every message of tilejit begins with its code, `error[family/condition]`.",
        "`python -m tilejit explain sim/race` prints a code's page. Each page has a program that raises the code, what it",
        "prints, and the program mended; both are run by the tests. Families, from the outside in: `launch` (a call's",
        "arguments), `frontend` (the kernel's Python), `scope` and `tile` (any tile instruction), `ptx` (raw instructions),",
        "one per family of instructions, `sim` (what a run in the simulator finds), and those of the tools.",
    ]  # fmt: skip
    for family, rows in sorted(by_family.items()):
        lines += ["", f"## {family}", "", "| code | what is wrong |", "|---|---|", *rows]
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    families = [a for a in arguments if not a.startswith("-")]
    if "--missing" in arguments:
        print("\n".join(missing(*families)))
        return 0
    wrong = 0
    for page in pages(*families):
        try:
            page.path.write_text(renewed(page))
        except Exception as error:  # the author mends one page after another
            wrong += 1
            print(f"{page.code}: {type(error).__name__}: {error}", file=sys.stderr)
    INDEX.write_text(index())
    print(f"wrote {INDEX.relative_to(ROOT)}; {wrong} pages are wrong, {len(missing())} missing")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
