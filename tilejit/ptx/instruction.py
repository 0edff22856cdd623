"""What ``T.ptx`` is: exact instructions by text or by attribute chain, and operand markers.

``T.ptx["ld.global.v4.b32"]`` is an ``Instruction`` at once. ``T.ptx.ld.global_.v4.b32`` is a
``PtxPrefix`` that becomes one when it is called or passed to ``apply`` (``as_instruction``): until
then one cannot know that the chain is complete. In a chain ``::`` is written ``__``, a Python
keyword takes a trailing ``_``, and a modifier that starts with a digit a leading ``_``.

The markers ``SINK``, ``addr`` and ``pred`` are for the operands of raw calls.
Not here: checking operands, generating code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from tilejit.errors import SyntaxUnsupported, fault
from tilejit.ptx import spelling
from tilejit.ptx.forms import Form


@dataclass(frozen=True, slots=True)
class Instruction:
    """An exact opcode. ``spelling`` is canonical whatever order the modifiers were written in.

    Hashable and equal by spelling. Raises ``ptx.spelling.SpellingError`` for any other text.
    """

    spelling: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelling", spelling.lookup(self.spelling)[0].spelling)

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms of this spelling; their operand lists differ."""
        return spelling.lookup(self.spelling)

    @property
    def family(self) -> str:
        """The module in ``tilejit.families`` that owns the instruction."""
        return self.forms[0].family

    def __call__(self, *operands: Any, **parameters: Any) -> NoReturn:
        _outside(self.spelling)

    def __str__(self) -> str:
        return self.spelling

    def __repr__(self) -> str:
        return f'T.ptx["{self.spelling}"]'


@dataclass(frozen=True, slots=True)
class PtxPrefix:
    """The beginning of a spelling; every attribute adds a modifier."""

    text: str

    def __getattr__(self, name: str) -> PtxPrefix:
        if name.startswith("__"):
            raise AttributeError(name)
        return PtxPrefix(f"{self.text}.{_modifier(name)}")

    def __call__(self, *operands: Any, **parameters: Any) -> NoReturn:
        _outside(as_instruction(self).spelling)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"T.ptx.{self.text}"


@dataclass(frozen=True, slots=True)
class Sink:
    """``T.ptx.SINK``: the destination ``_``, for a result that nobody wants."""

    def __repr__(self) -> str:
        return "T.ptx.SINK"


@dataclass(frozen=True, slots=True)
class AddressOperand:
    """``T.ptx.addr(pointer, offset_bytes)``: the address ``[pointer + offset_bytes]``."""

    pointer: Any
    offset_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PredicateOperand:
    """``T.ptx.pred(value)``: a bool as a predicate operand (not the guard of the instruction)."""

    value: Any


SINK = Sink()


class PtxNamespace:
    """``T.ptx``."""

    __slots__ = ()

    SINK = SINK

    def __getitem__(self, text: str) -> Instruction:
        """The instruction spelled ``text``. Raises ``SpellingError``."""
        if not isinstance(text, str):
            raise TypeError(f"T.ptx[…] takes an opcode as text, got {type(text).__name__}")
        return Instruction(text)

    def __getattr__(self, name: str) -> PtxPrefix:
        if name.startswith("__"):
            raise AttributeError(name)
        return PtxPrefix(_modifier(name))

    @staticmethod
    def addr(pointer: Any, offset_bytes: int = 0) -> AddressOperand:
        """The memory operand ``[pointer + offset_bytes]`` of a raw call."""
        return AddressOperand(pointer, offset_bytes)

    @staticmethod
    def pred(value: Any) -> PredicateOperand:
        """A bool as a predicate operand of a raw call."""
        return PredicateOperand(value)

    def __repr__(self) -> str:
        return "T.ptx"


ptx = PtxNamespace()
"""The object that the kernel language exports as ``T.ptx``."""


def as_instruction(value: Instruction | PtxPrefix) -> Instruction:
    """The instruction that a finished attribute chain denotes. Raises ``SpellingError``."""
    return value if isinstance(value, Instruction) else Instruction(value.text)


def _modifier(name: str) -> str:
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if name[:1] == "_" and name[1:2].isdigit():
        name = name[1:]
    return name.replace("__", "::")


def _outside(text: str) -> NoReturn:
    raise fault(
        SyntaxUnsupported,
        "ptx/outside-kernel",
        f"{text} was called outside a kernel",
        help="a raw instruction is a statement of a function decorated with @tile.jit",
    )
