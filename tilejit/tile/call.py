"""A tile call as a family sees it: instruction, operands, parameters, group, facts.

Not here: parsing and generic front checks (``tile.checker``), contracts (``tile.contracts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilejit.errors import Span
from tilejit.ir import nodes
from tilejit.ptx.forms import Form
from tilejit.target import Target
from tilejit.tile.affine import Context
from tilejit.tile.groups import Group
from tilejit.tile.region import Operand, ScalarOperand, TensorOperand, Walk
from tilejit.tile.values import Evaluator


@dataclass(slots=True)
class Names:
    """New variable names for the steps of a function: none that the function itself uses."""

    used: set[str]
    count: int = 0

    def fresh(self, stem: str) -> str:
        while True:
            name = f"{stem}_at{self.count}"
            self.count += 1
            if name not in self.used:
                self.used.add(name)
                return name


@dataclass(frozen=True, slots=True, eq=False)
class TileCall:
    """One ``tile.apply`` or ``tile.ewise``.

    ``family`` names the contract in diagnostics' codes. ``forms`` are all forms with the spelling
    (none for ``ewise``, which has ``function``). ``params``: every parameter of the family by name;
    static ones as Python values, run-time ones as expressions, None where absent.
    """

    family: str
    contract: str
    spelling: str
    forms: tuple[Form, ...]
    operands: tuple[Operand, ...]
    params: Mapping[str, Any]
    scope: nodes.Scope
    group: Group
    evaluator: Evaluator
    launch: nodes.LaunchConfig
    target: Target
    names: Names
    span: Span | None
    function: nodes.LambdaExpr | None = None
    memo: dict[tuple[object, ...], Walk] = field(default_factory=dict)
    """Register operands laid out before in this function: unrolled code repeats them."""
    walks: dict[int, Walk] = field(default_factory=dict)
    """Operands laid out by ``check``, by position, for ``bind``."""
    launch_scalars: frozenset[str] = frozenset()
    """Sizes, strides and scalar parameters that never change: what a launch knows of them by name."""

    @property
    def context(self) -> Context:
        """What is known where the call stands, axioms of its operands included."""
        return self.evaluator.context

    @property
    def pred(self) -> nodes.Expr | None:
        value = self.params.get("pred")
        assert value is None or not isinstance(value, bool)
        return value

    @property
    def preserve_dst(self) -> bool:
        return bool(self.params.get("preserve_dst"))

    def walk_of(self, position: int) -> Walk:
        """How operand ``position`` was laid out; KeyError for a scalar."""
        return self.walks[position]


__all__ = ["Names", "Operand", "ScalarOperand", "TensorOperand", "TileCall"]
