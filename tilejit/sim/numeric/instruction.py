"""A spelling taken apart: what to do, to which types, with which flags.

Not here: which spellings exist (``ptx.tables``), their meaning (the sibling modules).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilejit.ptx.forms import TYPE_BITS, Form
from tilejit.sim.numeric.rounding import MODES, Mode, as_mode

FLAGS = frozenset(
    {"ftz", "sat", "satfinite", "relu", "NaN", "abs", "xorsign", "oob", "approx", "full"}
)


class Unmodelled(NotImplementedError):
    """An instruction that this package does not compute. ``spelling`` is its full opcode."""

    def __init__(self, spelling: str) -> None:
        super().__init__(f"no numeric model of {spelling}")
        self.spelling = spelling


@dataclass(frozen=True, slots=True)
class Instruction:
    """``types`` are the PTX types in the spelling, in order (cvt: to, from); ``rest`` what is
    neither a type, a flag nor a float rounding mode (``lo``, ``wide``, ``rni``, a comparison…)."""

    form: Form
    mnemonic: str
    types: tuple[str, ...]
    flags: frozenset[str]
    rounding: Mode | None
    rest: tuple[str, ...]

    @property
    def type(self) -> str:
        """The last type: what a one-type instruction computes with."""
        return self.types[-1] if self.types else ""

    @property
    def mode(self) -> Mode:
        """Rounding of a float result: nearest unless spelt."""
        return self.rounding or "rn"

    def has(self, flag: str) -> bool:
        return flag in self.flags

    def unmodelled(self) -> Unmodelled:
        return Unmodelled(self.form.spelling)


def parse(form: Form) -> Instruction:
    """The parts of ``form.spelling``; the order of modifiers is free."""
    types = tuple(m for m in form.modifiers if m in TYPE_BITS)
    rest = tuple(m for m in form.modifiers if m not in TYPE_BITS and m not in FLAGS)
    modes = [m for m in rest if m in MODES]
    return Instruction(
        form=form,
        mnemonic=form.mnemonic,
        types=types,
        flags=frozenset(form.modifiers) & FLAGS,
        rounding=as_mode(modes[0]) if modes else None,
        rest=tuple(m for m in rest if m not in MODES),
    )
