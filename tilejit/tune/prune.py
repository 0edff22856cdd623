"""Which configs cannot work for a call, and why: decided before the one in question is compiled.

In this order, the first reason counts: heuristics and the user's ``prune``; the launch and the arguments
(blocks, clusters, types); the kernel's lowering; a grid that is no multiple of the cluster; every contract,
shared memory and register budgets among them. Configs that lower to the same program are tuned once. What is
the user's is asked first, for all configs, so that the rest can be done in another thread.
Not here: what only running shows (``search``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from tilejit.errors import TileError
from tilejit.runtime.dispatch import typed
from tilejit.runtime.encoding import digest
from tilejit.runtime.jit import Configured, JitFunction, described
from tilejit.runtime.variant import Variant
from tilejit.tune.config import Config, Split, split

Heuristics = Mapping[str, Callable[[Mapping[str, Any]], Any]]
Prune = Callable[[Config, Mapping[str, Any]], "bool | str"]


@dataclass(frozen=True)
class Call:
    """A call of a kernel, without what is tuned. ``grid``: as ``k[grid]`` takes it. ``values``: every
    argument by name, defaults included; no tuned or computed ones. ``described``: some stand for values only
    (``TensorArg`` and the like). ``device``: ordinal, or ``torch_glue.CPU``."""

    kernel: JitFunction
    grid: Any
    values: Mapping[str, Any]
    device: int
    target: str
    described: bool = False

    @property
    def arguments(self) -> Mapping[str, Any]:
        """What the user's functions see."""
        return MappingProxyType(dict(self.values))


@dataclass(frozen=True)
class Applied:
    """A config on a call: ``entry(**keywords)`` is the call. ``constants``: of those keywords, what the
    config and the heuristics give."""

    call: Call
    options: Mapping[str, Any]
    constants: Mapping[str, Any]

    @cached_property
    def entry(self) -> JitFunction | Configured:
        """``TileError`` for a launch that cannot be."""
        return Split(self.constants, self.options).entry(self.call.kernel, self.call.grid)

    @cached_property
    def keywords(self) -> dict[str, Any]:
        return {**self.call.values, **self.constants}


def apply(config: Config, call: Call, heuristics: Heuristics) -> Applied:
    """Exceptions of heuristics are the user's, and pass."""
    parts = split(config, call.kernel)
    constants = {**parts.constants}
    for name, compute in heuristics.items():
        constants[name] = compute(MappingProxyType({**call.values, **parts.options, **constants}))
    return Applied(call, parts.options, constants)


@dataclass(frozen=True)
class Candidate:
    """A config that may work. ``grid``: the caller's, in CTAs."""

    number: int
    config: Config
    applied: Applied
    variant: Variant
    grid: tuple[int, int, int] | None


@dataclass(frozen=True)
class _Considered:
    number: int
    config: Config
    applied: Applied
    grid: tuple[int, int, int] | None


@dataclass
class Pruning:
    """Candidates of a call, one after another; ``reasons`` fills with those that are none, by number.

    ``takes``: whether this process looks at a config at all (ranks share them out)."""

    call: Call
    configs: tuple[Config, ...]
    heuristics: Heuristics
    prune: Prune | None
    takes: Callable[[int], bool] = lambda number: True
    reasons: dict[int, str] = field(default_factory=dict)
    _programs: dict[str, int] = field(default_factory=dict)

    def candidates(self) -> Iterator[Candidate]:
        """Configs that keep every contract."""
        for candidate in self.programs():
            try:
                _ = candidate.variant.checked
            except TileError as error:
                self.rule_out(candidate.number, error)
            else:
                yield candidate

    def programs(self) -> Iterator[Candidate]:
        """Configs with nothing against them but, maybe, contracts: who checks those tells ``rule_out``."""
        for considered in self.considered:
            found = self._lowered(considered)
            if isinstance(found, Candidate):
                yield found
            else:
                self.reasons[considered.number] = found

    def rule_out(self, number: int, error: TileError) -> None:
        self.reasons[number] = reason_of(error)

    @cached_property
    def considered(self) -> tuple[_Considered, ...]:
        """Configs that the user has nothing against, with their launches."""
        found = []
        for number, config in enumerate(self.configs):
            if not self.takes(number):
                continue
            applied = apply(config, self.call, self.heuristics)
            reason = self._users(config)
            if reason is None:
                try:
                    grid = applied.entry.evaluate(applied.keywords)
                    found.append(_Considered(number, config, applied, grid))
                    continue
                except TileError as error:
                    reason = reason_of(error)
            self.reasons[number] = reason
        return tuple(found)

    def _users(self, config: Config) -> str | None:
        """Why the user's function refuses a config; None: it does not."""
        if self.prune is None:
            return None
        answer = self.prune(config, self.call.arguments)
        if isinstance(answer, str):
            return answer or None
        return "refused by prune" if answer else None

    def _lowered(self, considered: _Considered) -> Candidate | str:
        number, config, applied = considered.number, considered.config, considered.applied
        try:
            target = self.call.target if self.call.described else None
            variant = described(applied.entry, applied.keywords, target)
            same = self._programs.setdefault(digest(variant.ir, variant.target), number)
            if same != number:
                return f"the same program as #{same} ({self.configs[same]!r})"
        except TileError as error:
            return reason_of(error)
        grid, cluster = considered.grid, variant.function.launch.cluster
        if grid is not None and cluster is not None and any(g % c for g, c in zip(grid, cluster)):
            return f"the grid of {grid} CTAs is no multiple of the cluster of {cluster}"
        return Candidate(number, config, applied, variant, grid)


def reason_of(error: TileError) -> str:
    """A fault in one line: the first diagnostic, and how many there are."""
    first, *more = error.diagnostics
    return f"{first.code}: {first.message}" + (f" (and {len(more)} more)" if more else "")


def agree(config: Config, pinned: Mapping[str, Any]) -> bool:
    """Whether a config has the values that the caller gave for tuned parameters."""
    return all(
        name in config.values and typed(config.values[name]) == typed(value)
        for name, value in pinned.items()
    )
