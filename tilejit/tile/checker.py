"""Checks every tile call of a function and binds it to native steps: the only way to a ``Checked``.

First the launch (``tile.launch_limits``). Then, for each call in program order: the instruction exists
and the target has it, keywords are the family's, the active threads form a group, then the family's own
``check``. All faults of the function are collected. Only a function without faults is bound.

Not here: what families require (``families``), facts (``tile.facts``).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tilejit import dtypes
from tilejit.errors import (
    ContractError,
    Diagnostic,
    InternalError,
    Report,
    Span,
    TargetError,
    fault,
)
from tilejit.ir import nodes, walk
from tilejit.ptx import spelling
from tilejit.ptx.forms import Form
from tilejit.target import TARGETS, Target
from tilejit.tile import barriers, launch_limits, raw, readonly, register_budget, warpgroup_order
from tilejit.tile.affine import Context
from tilejit.tile.call import Names, TileCall
from tilejit.tile.facts import Facts, Site, analyse
from tilejit.tile.family import Family, FamilyIndex, Param, Step
from tilejit.tile.groups import Group, find_group, full_warpgroups
from tilejit.tile.region import Walk, resolve

TARGET_CODE = "target/unsupported"
EWISE = "ewise"


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """A function whose every tile call keeps its contract, with the native steps of each."""

    function: nodes.Function
    _calls: dict[int, tuple[nodes.Call, tuple[Step, ...]]]

    def steps(self, call: nodes.Call) -> tuple[Step, ...]:
        """The steps of a ``tile.apply``, ``tile.ewise`` or ``ptx`` call of the function, in order.
        Empty for a call that no thread reaches."""
        found = self._calls.get(id(call))
        if found is None or found[0] is not call:
            raise fault(
                InternalError,
                "internal/unchecked",
                "this call was not part of the check",
                call.span,
            )
        return found[1]

    def calls(self) -> Iterator[tuple[nodes.Call, tuple[Step, ...]]]:
        """Every call with its steps, in program order."""
        return iter(self._calls.values())


def check(function: nodes.Function, families: FamilyIndex) -> Checked:
    """The function, checked and bound. ``TargetError`` when all that is wrong is the target, else
    ``ContractError``; either carries every fault."""
    return Checked(function, _passed(function, families).bound())


def tile_calls(function: nodes.Function, families: FamilyIndex) -> tuple[TileCall, ...]:
    """The function's tile calls that some thread reaches, laid out, in program order; raises as
    ``check`` does. They hold every operand's positions: for reports, not for the compilation."""
    return tuple(r.tile for r in _passed(function, families).ready if r.tile is not None)


def _passed(function: nodes.Function, families: FamilyIndex) -> _Check:
    """The check of a function that has no fault; raises with every fault of another."""
    run = _Check(function, families)
    run.all_calls()
    diagnostics = run.report.diagnostics
    if diagnostics:
        target_only = all(d.code == TARGET_CODE for d in diagnostics)
        raise (TargetError if target_only else ContractError)(diagnostics)
    return run


def diagnose(function: nodes.Function, families: FamilyIndex) -> list[Diagnostic]:
    """Every fault of the function, in program order; empty for a legal one."""
    run = _Check(function, families)
    run.all_calls()
    return run.report.diagnostics


@dataclass(slots=True)
class _Ready:
    """A checked call, waiting to be bound when the whole function turns out right."""

    call: nodes.Call
    family: Family | None = None
    tile: TileCall | None = None
    form: Form | None = None


@dataclass(slots=True)
class _Check:
    function: nodes.Function
    families: FamilyIndex
    report: Report = field(default_factory=Report)
    ready: list[_Ready] = field(default_factory=list)
    target: Target = field(init=False)
    facts: Facts = field(init=False)
    names: Names = field(init=False)
    launch_scalars: frozenset[str] = field(init=False)
    memo: dict[tuple[object, ...], Walk] = field(default_factory=dict)
    groups: dict[tuple[int, int, bool, str], Group] = field(default_factory=dict)

    def all_calls(self) -> None:
        self.target = Target.parse(self.function.target)
        self.facts = analyse(self.function)
        self.names = Names(_names(self.function))
        self.launch_scalars = _launch_scalars(self.function)
        launch_limits.check(self.function, self.target, self.facts, self.report)
        for site in self.facts.sites.values():
            with self.report.at(site.call.span):
                self._one(site)
        readonly.check(self.function, self.report)
        tiles = {id(item.call): item.tile for item in self.ready if item.tile is not None}
        sites = self.facts.sites.values()
        register_budget.check(self.function, self.target, sites, tiles, self.report)
        calls = (site.call for site in self.facts.sites.values())
        warpgroup_order.check(self.function, calls, self.report)

    def bound(self) -> dict[int, tuple[nodes.Call, tuple[Step, ...]]]:
        steps: dict[int, tuple[nodes.Call, tuple[Step, ...]]] = {}
        for item in self.ready:
            result: list[Step] = []
            if item.tile is not None and item.family is not None:
                result = item.family.bind(item.tile)
            elif item.form is not None:
                result = raw.bind(item.call, item.form)
            steps[id(item.call)] = (item.call, tuple(result))
        return steps

    def _one(self, site: Site) -> None:
        call = site.call
        if barriers.is_barrier(call):
            if not site.context.dead:
                launch, evaluator = self.function.launch, self.facts.evaluator(site)
                barriers.check(call, launch, evaluator, self.target, self.report)
        elif site.context.dead:
            self.ready.append(_Ready(call))
        elif call.op == "ptx":
            self._raw(site)
        elif call.op == "tile.ewise":
            self._ewise(site)
        else:
            self._apply(site)

    # --- instructions

    def _forms(self, name: str, span: Span | None, *, tile: bool) -> tuple[Form, ...]:
        """The forms spelled ``name`` that the target has; none after a report."""
        try:
            forms = spelling.lookup(name)
        except spelling.SpellingError as error:
            self.report.error("ptx/spelling", error.message, span=span, help=error.help)
            return ()
        usable = tuple(f for f in forms if f.tile) if tile else forms
        if not usable:
            self.report.error(
                "tile/raw-only",
                f"{name} is no tile instruction",
                span=span,
                help=f'write it as a raw instruction: T.ptx["{name}"](…)',
            )
            return ()
        supported = tuple(f for f in usable if self.target.supports(f.min_target))
        if not supported:
            self.report.error(
                TARGET_CODE,
                f"{name} needs {usable[0].min_target}, this kernel is compiled for "
                f"{self.function.target}",
                span=span,
                help=_target_help(usable[0].min_target),
            )
        return supported

    def _raw(self, site: Site) -> None:
        call = site.call
        parsed = raw.parse(call)
        forms = self._forms(parsed.name, call.args[0].span or call.span, tile=False)
        if not forms:
            return
        raw.check(call, forms, self.report)
        form = raw.choose(call, forms, None)
        if form is not None:
            barriers.check_raw(call, form, self.facts.evaluator(site), self.target, self.report)
            if form.mnemonic in ("setmaxnreg", "wgmma"):
                group = self._group(site.context, "thread", call)
                if group is not None:
                    full_warpgroups(group, site.context, self.report, call.span)
        self.ready.append(_Ready(call, form=form))

    def _apply(self, site: Site) -> None:
        call = site.call
        parsed = raw.parse(call)
        forms = self._forms(parsed.name, call.args[0].span or call.span, tile=True)
        if not forms:
            return
        family = self.families.get(forms[0].family)
        if family is None:
            raise fault(
                InternalError, "internal/family", f"no family {forms[0].family!r}", call.span
            )
        before = len(self.report.diagnostics)
        params = self._params(family, parsed, forms, call)
        tile = self._tile_call(site, family, forms, parsed.operands, params, parsed.name)
        if tile is not None and len(self.report.diagnostics) == before:
            family.check(tile, self.report)
            self.ready.append(_Ready(call, family, tile))

    def _ewise(self, site: Site) -> None:
        function, operands = site.call.args
        family = self.families[EWISE]
        assert isinstance(function, nodes.LambdaExpr) and isinstance(operands, nodes.Tuple)
        tile = self._tile_call(site, family, (), operands.items, {}, EWISE, function)
        if tile is not None:
            family.check(tile, self.report)
            self.ready.append(_Ready(site.call, family, tile))

    def _tile_call(
        self,
        site: Site,
        family: Family,
        forms: tuple[Form, ...],
        operands: tuple[nodes.Expr, ...],
        params: dict[str, Any] | None,
        name: str,
        function: nodes.LambdaExpr | None = None,
    ) -> TileCall | None:
        call = site.call
        scope = call.attrs.scope if call.attrs is not None else "thread"
        evaluator = self.facts.evaluator(site)
        names = _operand_names(forms, len(operands))
        resolved = tuple(
            resolve(n, operand, evaluator, call.span) for n, operand in zip(names, operands)
        )
        group = self._group(evaluator.context, scope, call)
        if group is None or params is None:
            return None
        return TileCall(
            family.name, family.contract, name, forms, resolved, params, scope, group, evaluator,
            self.facts.launch, self.target, self.names, call.span, function, self.memo,
            launch_scalars=self.launch_scalars,
        )  # fmt: skip

    def _group(self, context: Context, scope: nodes.Scope, call: nodes.Call) -> Group | None:
        """The call's group; calls under the same guards share one."""
        key = (id(context.mask), context.level, context.elected, scope)
        found = self.groups.get(key)
        if found is None:
            found = find_group(context, scope, self.facts.launch, self.report, call.span)
            if found is not None:
                self.groups[key] = found
        return found

    # --- keywords

    def _params(
        self, family: Family, parsed: raw.Parsed, forms: tuple[Form, ...], call: nodes.Call
    ) -> dict[str, Any] | None:
        legal = {p.name: p for p in family.params}
        before = len(self.report.diagnostics)
        for name, keyword in parsed.keywords.items():
            if name not in legal:
                self._unknown_keyword(family, parsed.name, name, keyword, call)
        values: dict[str, Any] = {}
        for param in family.params:
            given = parsed.keywords.get(param.name)
            if given is None or raw.is_sink(given.value):
                values[param.name] = param.default
                if param.required:
                    self.report.error(
                        f"{family.name}/missing-keyword",
                        f"{parsed.name} needs {param.name}: {param.doc}",
                        span=call.span,
                        contract=family.contract,
                    )
                continue
            values[param.name] = self._param(family, param, given, call)
        raw.check_predication(
            {k: v for k, v in parsed.keywords.items() if k in legal},
            forms, self.report, call.span, family.name,
        )  # fmt: skip
        return values if len(self.report.diagnostics) == before else None

    def _unknown_keyword(
        self, family: Family, name: str, keyword: str, given: nodes.Keyword, call: nodes.Call
    ) -> None:
        legal = ["scope", *(p.name for p in family.params)]
        near = difflib.get_close_matches(keyword, legal, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        self.report.error(
            f"{family.name}/unknown-keyword",
            f"{name} has no keyword {keyword!r}",
            span=given.span or call.span,
            contract=family.contract,
            help=f"{hint}it takes {', '.join(legal)}; qualifiers are part of the opcode",
        )

    def _param(self, family: Family, param: Param, given: nodes.Keyword, call: nodes.Call) -> Any:
        value = given.value
        span = given.span or call.span
        if param.kind == "static":
            if isinstance(value, (nodes.Const, nodes.Text, nodes.Static)):
                return value.value
            if param.name != "preserve_dst":  # reported by check_predication
                self.report.error(
                    f"{family.name}/static-keyword",
                    f"{param.name} must be known at compile time",
                    span=span,
                    contract=family.contract,
                )
            return param.default
        if param.name == "pred":
            return value
        return self._run_time(family, param, value, span)

    def _run_time(self, family: Family, param: Param, value: nodes.Expr, span: Span | None) -> Any:
        """A run-time keyword of a scalar type; an integer literal takes the type."""
        wanted = dtypes.BY_NAME.get(param.type)
        if wanted is None:
            return value
        if isinstance(value, nodes.Const) and wanted.is_integer and value.type.dtype.is_integer:
            low, high = dtypes.integer_range(wanted)
            if low <= int(value.value) <= high:
                return nodes.Const(int(value.value), nodes.ScalarType(wanted), span=value.span)
        if value.type != nodes.ScalarType(wanted):
            self.report.error(
                f"{family.name}/keyword-type",
                f"{param.name} is {value.type}, expected {param.type}",
                span=span,
                contract=family.contract,
            )
        return value


def _operand_names(forms: tuple[Form, ...], count: int) -> list[str]:
    """Names for messages: those of a form with as many operands, else by position."""
    for form in forms:
        if len(form.operands) >= count:
            return [spec.name for spec in form.operands][:count]
    if not forms:
        return ["dst", *(f"input {i}" for i in range(count - 1))][:count]
    return [f"operand {i}" for i in range(count)]


def _target_help(min_target: str) -> str:
    """How a kernel is made for the first architecture that has the instruction, with all its features."""
    first = next(t for t in TARGETS.values() if t.supports(min_target))
    name = f"sm_{first.sm}a" if f"sm_{first.sm}a" in TARGETS else first.name
    return (
        f'@tile.jit(target="{name}"), or for a kernel that names no target tile.simulation(target="{name}"): '
        "CPU tensors then run as on such a GPU"
    )


def _launch_scalars(function: nodes.Function) -> frozenset[str]:
    """Scalar parameters that nothing in the function overwrites."""
    scalars = {p.name for p in function.params if isinstance(p.type, nodes.ScalarType)}
    for statement in walk.statements(function.body) if scalars else ():
        if isinstance(statement, nodes.Assign):
            scalars.discard(statement.var.name)
        elif isinstance(statement, nodes.Evaluate) and statement.call.op == "ptx":
            scalars -= {var.name for var in raw.written_variables(statement.call)}
    return frozenset(scalars)


def _names(function: nodes.Function) -> set[str]:
    """Every variable name of the function."""
    names = {param.name for param in function.params}
    for statement in walk.statements(function.body):
        match statement:
            case nodes.Declare(var=var) | nodes.For(var=var):
                names.add(var.name)
            case nodes.AllocTensor(buffer=buffer) | nodes.DeclTmem(buffer=buffer):
                names.add(buffer.name)
    return names
