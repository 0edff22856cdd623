"""From the text of an opcode to its forms.

``lookup("ld.v4.global.b32")`` puts the modifiers in their canonical order and gives every form with
that spelling. Only a spelling that some row of a table derives is found; the error for any other
says what was open at the place where it went wrong.

Expansion is lazy: a lookup touches only the rows of its mnemonic, ``FORMS`` expands all of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tilejit.ptx import tables
from tilejit.ptx.forms import TYPE_BITS, Form
from tilejit.ptx.rows import Row, Slot

if TYPE_CHECKING:
    FORMS: tuple[Form, ...]
    """Every form of every table, expanded on first use."""

_TYPE = "|".join((*TYPE_BITS, r"e\dm\dx4"))
_PRIORITY = r"L2::evict_\w+"
_SPACE = r"global|local|shared(::\w+)?"

Choice = tuple[tuple[str, ...], ...]


class SpellingError(ValueError):
    """No form has this spelling. ``help`` says what would be legal, or what is open where."""

    def __init__(self, message: str, help: str):
        super().__init__(f"{message}\n  help: {help}")
        self.message = message
        self.help = help


class _Placement(NamedTuple):
    """Modifiers put into a row's slots: the disorder is the number of swapped pairs."""

    disorder: int
    row: Row
    family: str
    choice: Choice
    open_slots: tuple[Slot, ...]


@cache
def lookup(text: str) -> tuple[Form, ...]:
    """The forms spelled ``text``, whose modifiers may stand in any order.

    Several forms differ in their operands (``max.f32`` with two or three inputs). The order among
    types and among spaces carries meaning (``cvt.f32.f16``, to ``.shared`` from ``.global``) and is
    kept. Raises ``SpellingError``.
    """
    mnemonic, tokens = _split(text)
    placements = [p for p in _placements(mnemonic, tokens) if not p.open_slots]
    if not placements:
        raise _explain(text, mnemonic, tokens)
    least = min(p.disorder for p in placements)
    closest = [p for p in placements if p.disorder == least]
    spelling = closest[0].row.spelling(closest[0].choice)
    return tuple(
        p.row.form(p.choice, p.family) for p in closest if p.row.spelling(p.choice) == spelling
    )


@cache
def forms_of_family(name: str) -> tuple[Form, ...]:
    """Every form that family ``name`` owns, in table order; empty for a family without a table."""
    return tuple(
        row.form(choice, family)
        for family, row in tables.rows()
        if family == name
        for choice in row.choices()
    )


def mnemonics() -> tuple[str, ...]:
    """Every mnemonic that has a form."""
    return tuple(_index())


def __getattr__(name: str) -> object:
    if name == "FORMS":
        families = dict.fromkeys(family for family, _ in tables.rows())
        globals()["FORMS"] = tuple(form for family in families for form in forms_of_family(family))
        return globals()["FORMS"]
    raise AttributeError(name)


# --- placing modifiers into slots


@cache
def _index() -> dict[str, tuple[tuple[str, Row], ...]]:
    index: dict[str, list[tuple[str, Row]]] = {}
    for family, row in tables.rows():
        index.setdefault(row.mnemonic, []).append((family, row))
    return {mnemonic: tuple(rows) for mnemonic, rows in index.items()}


def _split(text: str) -> tuple[str, tuple[str, ...]]:
    if not re.fullmatch(r"\w+(\.\w+(::\w+)*)*", text):
        raise SpellingError(
            f"{text!r} is not the spelling of an opcode",
            "write the mnemonic and its modifiers only, such as 'ld.global.v4.b32';"
            " operands and pred= are arguments of the call",
        )
    mnemonic, *tokens = text.split(".")
    return mnemonic, tuple(tokens)


def _placements(
    mnemonic: str, tokens: Sequence[str], *, partial: bool = False
) -> Iterator[_Placement]:
    """Ways to place all tokens. Required slots must be filled unless ``partial``."""
    wanted = set(tokens)
    for family, row in _index().get(mnemonic, ()):
        slots = row.slots
        if not wanted <= _vocabulary(row.pattern, slots):
            continue
        if not partial and not all(_fits(slot, wanted) for slot in slots):
            continue
        for order, choice, open_slots in _fill(slots, tuple(enumerate(tokens)), partial):
            if _swaps_meaning(order, tokens):
                continue
            yield _Placement(_inversions(order), row, family, choice, open_slots)


def _fits(slot: Slot, wanted: set[str]) -> bool:
    return any(wanted.issuperset(choice) for choice in slot.choices)


@cache
def _vocabulary(pattern: str, slots: tuple[Slot, ...]) -> frozenset[str]:
    return frozenset(token for slot in slots for choice in slot.choices for token in choice)


_Fill = tuple[tuple[int, ...], Choice, tuple[Slot, ...]]


def _fill(
    slots: Sequence[Slot], left: tuple[tuple[int, str], ...], partial: bool
) -> Iterator[_Fill]:
    """Fills ``slots`` in order from the positioned tokens ``left``, using up all of them."""
    if not slots:
        if not left:
            yield (), (), ()
        return
    slot, rest = slots[0], slots[1:]
    for choice in slot.choices:
        if not choice:
            continue
        taken = _take(choice, left)
        if taken is None:
            continue
        positions, remaining = taken
        for order, filled, open_slots in _fill(rest, remaining, partial):
            yield positions + order, (choice, *filled), open_slots
    if slot.optional or partial:
        for order, filled, open_slots in _fill(rest, left, partial):
            still = (slot, *open_slots) if partial else open_slots
            yield order, ((), *filled), still


def _take(
    choice: tuple[str, ...], left: tuple[tuple[int, str], ...]
) -> tuple[tuple[int, ...], tuple[tuple[int, str], ...]] | None:
    positions: list[int] = []
    for token in choice:
        found = next((at for at, text in left if text == token and at not in positions), None)
        if found is None:
            return None
        positions.append(found)
    return tuple(positions), tuple(item for item in left if item[0] not in positions)


def _swaps_meaning(order: tuple[int, ...], tokens: Sequence[str]) -> bool:
    """Two types (or priorities, or spaces) change places: ``cvt.f16.f32`` is not ``cvt.f32.f16``."""
    for kind in (_TYPE, _PRIORITY, _SPACE):
        places = [at for at in order if re.fullmatch(kind, tokens[at])]
        if places != sorted(places):
            return True
    return False


def _inversions(order: tuple[int, ...]) -> int:
    return sum(a > b for i, a in enumerate(order) for b in order[i + 1 :])


# --- saying what is wrong


def _explain(text: str, mnemonic: str, tokens: tuple[str, ...]) -> SpellingError:
    for refused in tables.refusals():
        if re.fullmatch(refused.pattern, text):
            return SpellingError(f"{text!r}: {refused.reason}", f"use {refused.use}")
    if mnemonic not in _index():
        near = difflib.get_close_matches(mnemonic, _index(), n=3)
        hint = (
            f"did you mean {_quoted(near)}?" if near else "the table of forms lists all mnemonics"
        )
        return SpellingError(f"no instruction is called {mnemonic!r}", hint)
    unknown = next((i for i, token in enumerate(tokens) if not _known(mnemonic, token)), None)
    if unknown is not None:
        return _bad_modifier(mnemonic, tokens, unknown, "is not a modifier of", mnemonic)
    for count in range(1, len(tokens) + 1):
        if not any(_placements(mnemonic, tokens[:count], partial=True)):
            before = ".".join((mnemonic, *tokens[: count - 1]))
            return _bad_modifier(mnemonic, tokens, count - 1, "cannot be combined with", before)
    return SpellingError(
        f"{text!r} is not fully specified", f"still needed: {_missing(mnemonic, tokens)}"
    )


def _known(mnemonic: str, token: str) -> bool:
    return any(token in _vocabulary(row.pattern, row.slots) for _, row in _index()[mnemonic])


def _bad_modifier(
    mnemonic: str, tokens: tuple[str, ...], at: int, verdict: str, whom: str
) -> SpellingError:
    parts = []
    slots = _open(mnemonic, tokens[:at])
    choices = [t for members in slots.values() for t in members]
    near = [] if _known(mnemonic, tokens[at]) else difflib.get_close_matches(tokens[at], choices, 2)
    if near:
        parts.append(f"did you mean {_quoted([f'.{t}' for t in near])}?")
        slots = {name: texts for name, texts in slots.items() if not set(near).isdisjoint(texts)}
    elif legal := _neighbours(mnemonic, tokens, at):
        parts.append(f"legal is {_quoted(legal)}")
    parts.append(f"open here: {_listed(slots)}")
    return SpellingError(f"'.{tokens[at]}' {verdict} {whom!r}", "; ".join(parts))


def _neighbours(mnemonic: str, tokens: tuple[str, ...], at: int) -> list[str]:
    """Legal spellings without the bad modifier, or with one that it clashes with left out."""
    found: list[str] = []
    for drop in (at, *(i for i in range(len(tokens)) if i != at)):
        rest = tokens[:drop] + tokens[drop + 1 :]
        legal = [p for p in _placements(mnemonic, rest) if not p.open_slots]
        if legal:
            best = min(legal, key=lambda p: p.disorder)
            found.append(best.row.spelling(best.choice))
    return list(dict.fromkeys(found))[:2]


def _open(mnemonic: str, tokens: Sequence[str]) -> dict[str, list[str]]:
    """What may still be added to ``tokens``, by slot name."""
    slots: dict[str, list[str]] = {}
    for placement in _placements(mnemonic, tokens, partial=True):
        for slot in placement.open_slots:
            members = slots.setdefault(slot.name, [])
            members.extend(
                text
                for text in (".".join(choice) for choice in slot.choices if choice)
                if text not in members
            )
    return slots


def _missing(mnemonic: str, tokens: Sequence[str]) -> str:
    """The required slots of the placements that need the fewest."""
    needs = [
        [slot for slot in p.open_slots if not slot.optional]
        for p in _placements(mnemonic, tokens, partial=True)
    ]
    fewest = min(map(len, needs))
    slots: dict[str, list[str]] = {}
    for need in needs:
        if len(need) == fewest:
            for slot in need:
                members = slots.setdefault(slot.name, [])
                members.extend(t for t in map(".".join, slot.choices) if t not in members)
    return _listed(slots)


def _listed(slots: dict[str, list[str]]) -> str:
    if not slots:
        return "nothing, the spelling is complete before it"
    return "; ".join(f"{name} " + " ".join(f".{t}" for t in texts) for name, texts in slots.items())


def _quoted(texts: Sequence[str]) -> str:
    return " or ".join(f"'{text}'" for text in texts)
