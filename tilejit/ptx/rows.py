"""The notation of the table files: one row is many spellings.

A row is a *pattern* and an *operand list*, both text, so that a table file reads like the PTX ISA's
own syntax boxes:

    Row("fma.rn[.ftz][.sat].f32", "=d:f32 a:f32 b:f32 c:f32")

Pattern: literal modifiers, ``[.a|.b]`` for at most one of these, ``(.a|.b)`` for exactly one. A
group may be named, ``(vec=.v2|.v4)``, and a choice may have several modifiers, ``.relaxed.gpu``.

Operands, separated by spaces, in PTX order:
    ``a:f32``         a register that is read;  ``=d:f32`` written;  ``+d:f32`` both
    ``a:b32*4``       four registers in braces; ``*$vec`` as many as the group ``vec`` says (none: one)
    ``a:b32:1..8``    a register; a literal in its place is from … to; ``:0..64/16`` in steps of 16;
                      ``:32|64`` one of these
    ``a:b32*{1}``     one register, in braces all the same; ``*{$num}`` as many as ``num`` says
    ``a:$type``       the type chosen in the group ``type``;  ``%type`` the bit container as wide
    ``=d:b32~``       the sink ``_`` may stand here; with ``*$vec`` in a vector only;  ``~~`` it must
    ``=|p:pred``      joined to the operand before it by a bar, ``d|p``
    ``[a:b32*4@global]``  an address; type and lanes are what is accessed
    ``[map,{2}]``     a tensor map and two coordinates; ``{$rank}`` as many as the group ``rank`` says
    ``#n``            an integer literal;  ``#n:4|8`` one of these;  ``#n:0..255`` from … to;
                      ``#n:24..256/8`` in steps of 8
A type ``pred`` makes the operand a predicate.

Rows are parsed when first needed. Not here: the rows themselves (``ptx.tables``), choosing among
them (``ptx.spelling``).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tilejit.errors import DefinitionError
from tilejit.ptx.forms import TYPE_BITS, Direction, Effect, Form, OperandKind, OperandSpec

# Compiled when the first row is parsed.
_GROUP = (
    r"\[(?:(?P<oname>\w+)=)?(?P<optional>[^\]]+)\]"
    r"|\((?:(?P<rname>\w+)=)?(?P<required>[^)]+)\)"
    r"|(?P<literal>(?:\.[\w:]+)+)"
)
_VALUES = r"(?:(?P<least>\d+)\.\.(?P<most>\d+)(?:/(?P<step>\d+))?|(?P<each>[-\d|]+))"
_OPERAND = (
    r"(?P<direction>[=+]?)(?P<bar>\|?)(?P<name>\w+):(?P<type>[$%]?\w+)"
    rf"(?:\*(?P<lanes>\$?\w+|\{{\$?\w+\}}))?(?::{_VALUES})?(?:@(?P<space>[$\w:]+))?(?P<sink>~{{0,2}})"
)
_IMMEDIATE = rf"#(?P<name>\w+)(?::{_VALUES})?"
_MAP = r"(?P<direction>=?)\[(?P<name>\w+),\{(?P<lanes>\$?\w+)\}\]"
_DIRECTIONS: dict[str, Direction] = {"": "r", "=": "w", "+": "rw"}

_SLOT_NAMES: tuple[tuple[str, frozenset[str]], ...] = (
    ("rounding", frozenset(["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"])),
    ("order", frozenset(["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc"])),
    ("scope", frozenset(["cta", "cluster", "gpu", "sys"])),
    ("space", frozenset(["global", "shared", "local", "shared::cta", "shared::cluster"])),
    ("cache", frozenset(["ca", "cg", "cs", "lu", "cv", "wb", "wt"])),
    ("vec", frozenset(["v2", "v4", "v8"])),
    ("accuracy", frozenset(["approx", "full"])),
    ("type", frozenset(TYPE_BITS)),
)


@dataclass(frozen=True, slots=True)
class Slot:
    """One place in a spelling. A choice is a tuple of modifiers; ``()`` leaves the place empty."""

    name: str
    choices: tuple[tuple[str, ...], ...]

    @property
    def optional(self) -> bool:
        return () in self.choices


@dataclass(frozen=True, slots=True)
class Row:
    """A family of spellings with one operand list, one least target and the same effects."""

    pattern: str
    operands: str
    min_target: str = "sm_75"
    effects: tuple[Effect, ...] = ()
    tile: bool = True

    @property
    def mnemonic(self) -> str:
        return re.split(r"[.\[(]", self.pattern, maxsplit=1)[0]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return _slots(self.pattern)

    def choices(self) -> Iterator[tuple[tuple[str, ...], ...]]:
        """Every way to fill the slots."""
        return itertools.product(*(slot.choices for slot in self.slots))

    def spelling(self, choice: tuple[tuple[str, ...], ...]) -> str:
        """The canonical spelling of one choice."""
        return ".".join((self.mnemonic, *(token for part in choice for token in part)))

    def form(self, choice: tuple[tuple[str, ...], ...], family: str) -> Form:
        """The instruction form of one choice."""
        named = {slot.name: ".".join(part) for slot, part in zip(self.slots, choice)}
        operands = tuple(_operand(text, named) for text in self.operands.split())
        return Form(
            self.spelling(choice), family, operands, self.min_target, self.effects, self.tile
        )


@cache
def _slots(pattern: str) -> tuple[Slot, ...]:
    position = re.match(r"\w*", pattern)
    at = position.end() if position else 0
    slots: list[Slot] = []
    while at < len(pattern):
        found = re.match(_GROUP, pattern[at:])
        if found is None:
            raise DefinitionError(f"pattern {pattern!r} is malformed at column {at}")
        at += found.end()
        if found["literal"]:
            slots.extend(_slot(None, (token,)) for token in found["literal"].split(".")[1:])
        elif found["optional"]:
            slots.append(_slot(found["oname"], ("", *found["optional"].split("|"))))
        else:
            slots.append(_slot(found["rname"], tuple(found["required"].split("|"))))
    return tuple(slots)


def _slot(name: str | None, texts: tuple[str, ...]) -> Slot:
    choices = tuple(tuple(filter(None, text.split("."))) for text in texts)
    return Slot(name or _usual_name(choices), choices)


def _usual_name(choices: tuple[tuple[str, ...], ...]) -> str:
    first = {choice[0] for choice in choices if choice}
    for name, members in _SLOT_NAMES:
        if first <= members:
            return name
    return "modifier"


@cache
def _parse_operand(text: str) -> tuple[OperandKind, re.Match[str], str]:
    if "," in text:
        composite = re.fullmatch(_MAP, text)
        if composite is None:
            raise DefinitionError(f"operand {text!r} is malformed")
        return "map", composite, composite["name"]
    literal = text.startswith("#")
    inner = text.replace("[", "").removesuffix("]")
    found = re.fullmatch(_IMMEDIATE if literal else _OPERAND, inner)
    if found is None:
        raise DefinitionError(f"operand {text!r} is malformed")
    if literal:
        return "imm", found, found["name"]
    kind: OperandKind = "addr" if "[" in text else "pred" if found["type"] == "pred" else "reg"
    return kind, found, found["name"]


def _operand(text: str, named: dict[str, str]) -> OperandSpec:
    kind, found, name = _parse_operand(text)
    if kind == "imm":
        return OperandSpec(name, "r", kind, values=_values(found))
    if kind == "map":
        coordinates = _lanes(_resolved(found["lanes"], named))
        direction = _DIRECTIONS[found["direction"]]
        return OperandSpec(name, direction, kind, "s32", coordinates, braces=True)
    lanes = found["lanes"] or "1"
    forced = lanes.startswith("{")
    count = _lanes(_resolved(lanes.strip("{}"), named))
    return OperandSpec(
        name,
        _DIRECTIONS[found["direction"]],
        kind,
        _type(found["type"], named),
        lanes=count,
        braces=kind == "reg" and (count > 1 or forced),
        space=_resolved(found["space"] or "", named),
        sinkable=bool(found["sink"]) and (count > 1 or not lanes.startswith("$")),
        sink_only=found["sink"] == "~~",
        joined=bool(found["bar"]),
        values=_values(found),
    )


def _values(found: re.Match[str]) -> range | tuple[int, ...] | None:
    """What the row lets a literal be."""
    if found["each"] is not None:
        return tuple(map(int, found["each"].split("|")))
    if found["least"] is None:
        return None
    return range(int(found["least"]), int(found["most"]) + 1, int(found["step"] or 1))


def _resolved(text: str, named: dict[str, str]) -> str:
    """``text``, or what was chosen in the group that ``$text`` names."""
    return named[text[1:]] if text.startswith("$") else text


def _lanes(text: str) -> int:
    return int(text.lstrip("vx").rstrip("d") or "1")


def _type(text: str, named: dict[str, str]) -> str:
    name = named[text[1:]] if text[0] in "$%" else text
    if name not in TYPE_BITS:
        raise DefinitionError(f"{name!r} is not a PTX type")
    return f"b{TYPE_BITS[name]}" if text[0] == "%" else name
