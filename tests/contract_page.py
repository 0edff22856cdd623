"""``python -m tests.contract_page``: write the reference below ``docs/contract`` from the families' own data.

``index.md`` lists the families. ``forms/<family>.md`` has each family's spellings, operands, targets and error codes. What the
instructions mean, their keywords and their contract is written by hand, in the page that ``Family.contract`` names.

Not here: the error pages (``error_index``), what ran where (``evidence_page``).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tests import error_index
from tilejit.families import FAMILIES
from tilejit.ptx import spelling, tables
from tilejit.ptx.forms import TYPE_BITS
from tilejit.ptx.rows import Row, Slot
from tilejit.tile.family import Family

PAGES = Path(__file__).parent.parent / "docs" / "contract"
LEAST_TARGET = "sm_80"
"""Where tilejit starts: rows may name older targets."""
_NUMBER = re.compile(r"\d+")
_COUNT = re.compile(r"\*(?:\d+|\{\d+\})")
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_FIRST_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)

INDEX = r"""# Contract reference

What an instruction asks of its operands is on one page per family, which the checker's messages name. The lists of spellings, operands
and targets below `forms/` are made by `make docs` from the tables that the checker, the emitter and the simulator read.

The families' pages suppose two others: [operands](operands.md) says what a coordinate and an address of an operand are, and
[execution groups](groups.md) which threads execute. [Raw instructions](raw.md) are those that are no tile operation.

## How to read the forms

A spelling may have several operand lists; the operands that are given choose among them.

| in a spelling | means | in an operand list | means |
|---|---|---|---|
| `[.a\|.b]` | one of these, or none | `=d:f32`, `+d:f32`, `d:f32` | a register that is written, read and written, read |
| `(.a\|.b)` | one of these | `a:b32*4` | four registers in braces; `*n`: as many as the spelling says |
| `{8..256/8}` | 8, 16, … 256 | `a:$type`, `a:%type`, `*$vec` | the type, a bit container as wide, the count that was chosen there |
| `type=`, `vec=` | a name for the choice | `[a:b32@global]` | an address, what is accessed there, and the space |
| | | `[map,{2}]` | a tensor map and two coordinates |
| | | `#n:4\|8`, `a:b32:0..7` | a literal, a register or a literal, of these values |
| | | `a:b32~`, `a:b32~~` | the sink `_` may stand there, must stand there |

Targets are the lowest that have the form: `sm_90a` that one alone, `sm_100f` it and its family. *Raw only*: for `T.ptx[…](…)`, not for
`apply`.

## Families

| family | contract | forms | of them for `apply` | keywords | codes |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Group:
    """Rows that differ in the choices of their slots only."""

    mnemonic: str
    slots: tuple[Slot, ...]
    operands: str
    target: str
    tile: bool
    forms: int

    @property
    def pattern(self) -> str:
        """The notation of ``ptx.rows``, with names only where an operand refers to them."""
        return self.mnemonic + "".join(self._slot(slot) for slot in self.slots)

    def _slot(self, slot: Slot) -> str:
        texts = ["".join(f".{token}" for token in choice) for choice in slot.choices if choice]
        if len(texts) == 1 and not slot.optional:
            return texts[0]
        name = f"{slot.name}=" if re.search(rf"[$%]{slot.name}\b", self.operands) else ""
        text = name + (_series(texts) or "|".join(texts))
        return f"[{text}]" if slot.optional else f"({text})"

    @property
    def operand_list(self) -> str:
        """The operands, with what the only choice of a slot makes of them."""
        text = self.operands
        for slot in self.slots:
            if len(slot.choices) == 1:
                value = ".".join(slot.choices[0])
                lanes = value.removeprefix("v") if slot.name == "vec" else value
                text = re.sub(rf"\${slot.name}\b", lanes, text)
                if value in TYPE_BITS:
                    text = re.sub(rf"%{slot.name}\b", f"b{TYPE_BITS[value]}", text)
        return text


def _group(row: Row) -> Group:
    target = LEAST_TARGET if row.min_target == "sm_75" else row.min_target
    forms = 1
    for slot in row.slots:
        forms *= len(slot.choices)
    return Group(
        row.mnemonic, row.slots, row.operands.strip(), target.replace("|", ", "), row.tile, forms
    )


def groups(family: str) -> list[Group]:
    """The family's rows, those that differ in one slot joined, as far as that goes."""
    found = [_group(row) for name, row in tables.rows() if name == family]
    while True:
        for position in range(max((len(group.slots) for group in found), default=0)):
            joined = _joined(found, position)
            if len(joined) < len(found):
                found = joined
                break
        else:
            return found


def _joined(rows: Iterable[Group], position: int) -> list[Group]:
    """Rows that are alike but for the choices at ``position``, and for how many registers that takes."""
    alike: dict[object, list[Group]] = defaultdict(list)
    for row in rows:
        rest = tuple(slot.choices for i, slot in enumerate(row.slots) if i != position)
        counts = _COUNT.sub("*n", row.operands)
        alike[row.mnemonic, len(row.slots), rest, counts, row.target, row.tile].append(row)
    return [_union(rows, position) for rows in alike.values()]


def _union(rows: list[Group], position: int) -> Group:
    first = rows[0]
    if len(rows) == 1:
        return first
    choices = tuple(dict.fromkeys(choice for row in rows for choice in row.slots[position].choices))
    slots = list(first.slots)
    slots[position] = Slot(first.slots[position].name, choices)
    same = len({row.operands for row in rows}) == 1
    operands = first.operands if same else _COUNT.sub("*n", first.operands)
    return replace(
        first, slots=tuple(slots), operands=operands, forms=sum(row.forms for row in rows)
    )


def _series(texts: list[str]) -> str | None:
    """Choices that differ in one number, as its ranges: ``.m64n{8..256/8}k16``."""
    numbers = [_NUMBER.findall(text) for text in texts]
    if len(texts) < 4 or len({_NUMBER.sub("#", text) for text in texts}) > 1:
        return None
    varying = [i for i, column in enumerate(zip(*numbers)) if len(set(column)) > 1]
    if len(varying) != 1:
        return None
    values = _ranges([int(row[varying[0]]) for row in numbers])
    places = list(_NUMBER.finditer(texts[0]))
    place = places[varying[0]]
    return f"{texts[0][: place.start()]}{{{values}}}{texts[0][place.end() :]}"


def _ranges(values: list[int]) -> str:
    """Ascending numbers, four and more at equal steps as ``first..last/step``."""
    parts: list[str] = []
    while values:
        step = values[1] - values[0] if len(values) > 1 else 0
        length = 1
        while length < len(values) and values[length] - values[length - 1] == step:
            length += 1
        if length < 4:
            length = 1
            parts.append(str(values[0]))
        else:
            parts.append(f"{values[0]}..{values[length - 1]}/{step}")
        values = values[length:]
    return ",".join(parts)


# --- pages


def forms_page(family: Family) -> str:
    contract = Path(family.contract).name
    lines = [
        f"# Forms of `{family.name}`", "",
        f"Generated by `make docs`; do not edit. Contract: {_sections(contract)}.",
        "[How to read this](../index.md#how-to-read-the-forms).", "",
        "| spelling | operands | targets | forms |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for tile, title in ((True, "tile"), (False, "raw only")):
        rows = [group for group in groups(family.name) if group.tile is tile]
        if rows:
            lines.append(f"| **{title}** | | | {sum(row.forms for row in rows)} |")
        lines += [
            f"| {_cell(row.pattern)} | {_operands(row)} | `{row.target}` | {row.forms} |"
            for row in rows
        ]
    return "\n".join([*lines, "", "## Codes", "", *_codes(family.name)]) + "\n"


def _operands(group: Group) -> str:
    return " ".join(map(_cell, group.operand_list.split())) or "none"


def _cell(text: str) -> str:
    """Code in a table."""
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`"


def _sections(contract: str) -> str:
    """Links to a contract page and to its sections."""
    text = (PAGES / contract).read_text()
    title = _FIRST_TITLE.findall(text)[0]
    parts = [f"[{name}](../{contract}#{_anchor(name)})" for name in _HEADING.findall(text)]
    return ": ".join(filter(None, (f"[{title}](../{contract})", ", ".join(parts))))


def _anchor(heading: str) -> str:
    """As forges and the site make them."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def codes(family: str) -> dict[str, str]:
    """The family's own codes, and where each is explained."""
    pages = error_index.page_of_codes()
    return {code: page for code, page in sorted(pages.items()) if code.startswith(f"{family}/")}


def _codes(family: str) -> list[str]:
    own = codes(family)
    listed = ", ".join(f"[`{code}`](../../errors/{page}.md)" for code, page in own.items())
    if not own:
        return ["None of its own: operands are checked one by one (`ptx/…`)."]
    return [
        f"{listed}. Any family: `scope/…` and `tile/…` in the [error index](../../errors/index.md)."
    ]


def index() -> str:
    lines = [INDEX.rstrip("\n")]
    for name, family in sorted(FAMILIES.items()):
        forms = spelling.forms_of_family(name)
        contract = Path(family.contract).name
        title = _FIRST_TITLE.findall((PAGES / contract).read_text())[0]
        keywords = ", ".join(f"`{param.name}`" for param in family.params) or "–"
        count = f"[{len(forms)}](forms/{name}.md)" if forms else "–"
        lines.append(
            f"| `{name}` | [{title}]({contract}) | {count} | {sum(form.tile for form in forms)} "
            f"| {keywords} | {len(codes(name))} |"
        )
    lines += ["", *_toctree("Contracts", [path.stem for path in _written()])]
    lines += ["", *_toctree("Forms", [f"forms/{name}" for name in sorted(with_forms())])]
    return "\n".join(lines) + "\n"


def _toctree(caption: str, pages: list[str]) -> list[str]:
    return ["```{toctree}", f":caption: {caption}", ":hidden:", ":maxdepth: 1", "", *pages, "```"]


def _written() -> list[Path]:
    """The pages written by hand."""
    return sorted(path for path in PAGES.glob("*.md") if path.name != "index.md")


def with_forms() -> list[str]:
    """The families that the table has rows of."""
    return [name for name in FAMILIES if spelling.forms_of_family(name)]


def pages() -> dict[Path, str]:
    """Every generated page."""
    found = {PAGES / "forms" / f"{name}.md": forms_page(FAMILIES[name]) for name in with_forms()}
    return {PAGES / "index.md": index(), **found}


if __name__ == "__main__":
    (PAGES / "forms").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text)
    print(f"wrote {len(pages())} pages of the contract reference")
