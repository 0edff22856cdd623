"""Raw atomics on global and shared memory: ``atom`` returns the old value, ``red`` does not.

For ``T.ptx[...]`` calls, not tile operations. Without a written order they are relaxed, without a
written scope gpu-wide. Not here: 128-bit exchange (no scalar type), ``multimem``.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "atom_red"

_EFFECTS: tuple[Effect, ...] = ("reads_memory", "writes_memory", "volatile")
_GLOBAL = "(space=.global)"
_SHARED = "(space=.shared|.shared::cta)"
_FAR = "(space=.shared::cluster)"
_HINT = ".L2::cache_hint"

_REDUCTIONS: tuple[tuple[str, str], ...] = (
    ("(op=.and|.or|.xor)(type=.b32|.b64)", "sm_75"),
    ("(op=.add)(type=.u32|.s32|.u64|.f32|.f64)", "sm_75"),
    ("(op=.add).noftz(type=.f16|.f16x2)", "sm_75"),
    ("(op=.add).noftz(type=.bf16|.bf16x2)", "sm_90"),
    ("(op=.inc|.dec)(type=.u32)", "sm_75"),
    ("(op=.min|.max)(type=.u32|.s32|.u64|.s64)", "sm_75"),
)
_VECTORS: tuple[str, ...] = (
    "(op=.add)(vec=.v2|.v4)(type=.f32)",
    "(op=.add|.min|.max).noftz(vec=.v2|.v4|.v8)(type=.f16|.bf16)",
    "(op=.add|.min|.max).noftz(vec=.v2|.v4)(type=.f16x2|.bf16x2)",
)
_OLD = "=d:$type~ +[a:$type@$space]"


def _newest(*targets: str) -> str:
    return max(targets, key=lambda name: int(name[3:]))


def _everywhere(
    head: str, orders: str, tail: str, operands: str, least: str, *, hint: bool = True
) -> list[Row]:
    """One operation on each space, at block, gpu and system scope or (sm_90) cluster scope."""
    rows: list[Row] = []
    for scope, scope_least in (("[.cta|.gpu|.sys]", "sm_75"), ("(.cluster)", "sm_90")):
        for space, space_least in ((_GLOBAL, "sm_75"), (_SHARED, "sm_75"), (_FAR, "sm_90")):
            target = _newest(least, scope_least, space_least)
            pattern = f"{head}{orders}{scope}{space}{tail}"
            rows.append(Row(pattern, operands, target, _EFFECTS, tile=False))
            if hint and space == _GLOBAL:
                rows.append(_hinted(pattern, operands, target))
    return rows


def _hinted(pattern: str, operands: str, target: str) -> Row:
    """The form with a cache policy, whose modifier stands before the vector or type."""
    at = min(pattern.find(mark) for mark in ("(vec=", "(type=") if mark in pattern)
    hinted = f"{pattern[:at]}{_HINT}{pattern[at:]}"
    return Row(
        hinted, f"{operands} cache_policy:u64", _newest(target, "sm_80"), _EFFECTS, tile=False
    )


def _vectors(head: str, orders: str, operands: str) -> list[Row]:
    plain = [
        Row(f"{head}{orders}[.cta|.cluster|.gpu|.sys]{_GLOBAL}{tail}", operands, "sm_90", _EFFECTS,
            tile=False)
        for tail in _VECTORS
    ]  # fmt: skip
    return plain + [_hinted(row.pattern, row.operands, row.min_target) for row in plain]


_ATOM_ORDERS = "[.relaxed|.acquire|.release|.acq_rel]"
_RED_ORDERS = "[.relaxed|.release]"

ROWS: tuple[Row, ...] = (
    *(
        row
        for tail, least in _REDUCTIONS
        for row in (
            *_everywhere("atom", _ATOM_ORDERS, tail, f"{_OLD} b:$type", least),
            *_everywhere("red", _RED_ORDERS, tail, "+[a:$type@$space] b:$type", least),
        )
    ),
    *_everywhere("atom", _ATOM_ORDERS, "(op=.exch)(type=.b32|.b64)", f"{_OLD} b:$type", "sm_75"),
    *_everywhere(
        "atom",
        _ATOM_ORDERS,
        "(op=.cas)(type=.b16|.b32|.b64)",
        f"{_OLD} b:$type c:$type",
        "sm_75",
        hint=False,
    ),
    *_vectors("atom", _ATOM_ORDERS, "=d:$type*$vec +[a:$type*$vec@$space] b:$type*$vec"),
    *_vectors("red", _RED_ORDERS, "+[a:$type*$vec@$space] b:$type*$vec"),
)
