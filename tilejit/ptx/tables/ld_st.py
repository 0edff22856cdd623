"""Loads and stores, global, shared and local.

The width of a register operand is what the opcode's type says; which type of that width it has does
not matter (contract: "scalar storage elements with the opcode's bit width"), so rows name the bit
container. A vector is at most 16 bytes; from sm_100 on 32 bytes in global memory, and only of 32-
and 64-bit elements. Two things are left out although a grammar may derive them, because an
assembler given them crashes, and NVRTC with it: ``.v8.b16``, and 32 bytes at ``.cluster`` scope.
"""

from __future__ import annotations

from tilejit.ptx.forms import Effect
from tilejit.ptx.rows import Row

FAMILY = "ld_st"

_UPTO32 = ".b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32"
_IS32 = ".b32|.u32|.s32|.f32"
_IS64 = ".b64|.u64|.s64|.f64"
_SHAPES = (f"[vec=.v2|.v4](type={_UPTO32})", f"[vec=.v2](type={_IS64})")
_WIDE = (f"(vec=.v8)(type={_IS32})", f"(vec=.v4)(type={_IS64})")

_L1 = "(level1=.L1::evict_normal|.L1::evict_unchanged|.L1::evict_first|.L1::evict_last|.L1::no_allocate)"
_L2 = "(level2=.L2::evict_normal|.L2::evict_first|.L2::evict_last)"
_HINT = "(hint=.L2::cache_hint)"
_SIZE = "[prefetch=.L2::64B|.L2::128B|.L2::256B]"
_SCOPE = "(.cta|.gpu|.sys)"
_CLUSTER = "(.cluster)"
_ANY_SCOPE = "(.cta|.cluster|.gpu|.sys)"
_NEAR = "(space=.shared|.shared::cta)"

_LOAD = "=d:%type*$vec~ [a:%type*$vec@$space]"
_STORE = "=[a:%type*$vec@$space] b:%type*$vec"
_READS: tuple[Effect, ...] = ("reads_memory",)
_WRITES: tuple[Effect, ...] = ("writes_memory",)


def _optional(group: str) -> str:
    return f"[{group[1:-1]}]"


def _newest(*targets: str) -> str:
    return max(targets, key=lambda name: int(name[3:]))


def _all_shapes(
    prefix: str, operands: str, target: str, effects: tuple[Effect, ...], *, wide: bool = False
) -> list[Row]:
    rows = [Row(prefix + shape, operands, target, effects) for shape in _SHAPES]
    if wide:
        least = _newest(target, "sm_100")
        rows += [Row(prefix + shape, operands, least, effects) for shape in _WIDE]
    return rows


def _global_load(
    prefix: str,
    target: str,
    effects: tuple[Effect, ...],
    *,
    hints: bool = True,
    wide: bool = True,
) -> list[Row]:
    """With and without a cache policy, with and without a prefetch size."""
    rows: list[Row] = []
    sizes = (("[prefetch=.L2::64B|.L2::128B]", "sm_75"), ("(prefetch=.L2::256B)", "sm_80"))
    for size, least in sizes:
        newest = _newest(target, least)
        rows += _all_shapes(prefix + size, _LOAD, newest, effects, wide=wide)
        if hints:
            with_policy = f"{_LOAD} cache_policy:u64"
            rows += _all_shapes(
                prefix + _HINT + size, with_policy, _newest(newest, "sm_80"), effects, wide=wide
            )
    return rows


def _global_store(
    prefix: str, target: str, effects: tuple[Effect, ...], *, wide: bool = True
) -> list[Row]:
    with_policy = f"{_STORE} cache_policy:u64"
    return [
        *_all_shapes(prefix, _STORE, target, effects, wide=wide),
        *_all_shapes(prefix + _HINT, with_policy, _newest(target, "sm_80"), effects, wide=wide),
    ]


_GLOBAL = "(space=.global)"
_ORDERED_READ: tuple[Effect, ...] = ("reads_memory", "volatile")
_ORDERED_WRITE: tuple[Effect, ...] = ("writes_memory", "volatile")

_LD_GLOBAL = [
    *_global_load(f"ld[.weak]{_GLOBAL}[.ca|.cg|.cs|.lu|.cv]", "sm_75", _READS),
    *_global_load(f"ld[.weak]{_GLOBAL}{_L1}", "sm_75", _READS),
    *_global_load(f"ld{_GLOBAL}[.ca|.cg|.cs](.nc)", "sm_75", _READS),
    *_global_load(f"ld{_GLOBAL}(.nc){_L1}", "sm_75", _READS),
    *_global_load(f"ld.volatile{_GLOBAL}", "sm_75", _ORDERED_READ, hints=False),
    *_global_load(
        f"ld(.relaxed|.acquire){_SCOPE}{_GLOBAL}{_optional(_L1)}", "sm_75", _ORDERED_READ
    ),
    *_global_load(
        f"ld(.relaxed|.acquire){_CLUSTER}{_GLOBAL}{_optional(_L1)}",
        "sm_90",
        _ORDERED_READ,
        wide=False,
    ),
]

_ST_GLOBAL = [
    *_global_store(f"st[.weak]{_GLOBAL}[.wb|.cg|.cs|.wt]", "sm_75", _WRITES),
    *_global_store(f"st[.weak]{_GLOBAL}{_L1}", "sm_75", _WRITES),
    *_all_shapes(f"st.volatile{_GLOBAL}", _STORE, "sm_75", _ORDERED_WRITE, wide=True),
    *_global_store(
        f"st(.relaxed|.release){_SCOPE}{_GLOBAL}{_optional(_L1)}", "sm_75", _ORDERED_WRITE
    ),
    *_global_store(
        f"st(.relaxed|.release){_CLUSTER}{_GLOBAL}{_optional(_L1)}",
        "sm_90",
        _ORDERED_WRITE,
        wide=False,
    ),
]

_EVICT_L2 = [
    Row(prefix + hint + size + shape, operands + policy, "sm_100", effects)
    for prefix, size, operands, effects in (
        (f"ld[.weak]{_GLOBAL}{_optional(_L1)}{_L2}", _SIZE, _LOAD, _READS),
        (f"ld{_GLOBAL}(.nc){_optional(_L1)}{_L2}", _SIZE, _LOAD, _READS),
        (
            f"ld(.relaxed|.acquire){_SCOPE}{_GLOBAL}{_optional(_L1)}{_L2}",
            _SIZE,
            _LOAD,
            _ORDERED_READ,
        ),
        (f"st[.weak]{_GLOBAL}{_optional(_L1)}{_L2}", "", _STORE, _WRITES),
        (
            f"st(.relaxed|.release){_SCOPE}{_GLOBAL}{_optional(_L1)}{_L2}",
            "",
            _STORE,
            _ORDERED_WRITE,
        ),
    )
    for hint, policy in (("", ""), (_HINT, " cache_policy:u64"))
    for shape in _WIDE
]

_NEAR_MEMORY = [
    row
    for space in (_NEAR, "(space=.local)")
    for row in (
        *_all_shapes(f"ld[.weak]{space}[.ca|.cg|.cs|.lu|.cv]", _LOAD, "sm_75", _READS),
        *_all_shapes(f"st[.weak]{space}[.wb|.cg|.cs|.wt]", _STORE, "sm_75", _WRITES),
    )
]

_SHARED_VOLATILE = [
    *_all_shapes(f"ld.volatile{_NEAR}", _LOAD, "sm_75", _ORDERED_READ),
    *_all_shapes(f"st.volatile{_NEAR}", _STORE, "sm_75", _ORDERED_WRITE),
]

_SHARED_ORDERED = [
    row
    for scope, least in ((_SCOPE, "sm_75"), (_CLUSTER, "sm_90"))
    for row in (
        *_all_shapes(f"ld(.relaxed|.acquire){scope}{_NEAR}", _LOAD, least, _ORDERED_READ),
        *_all_shapes(f"st(.relaxed|.release){scope}{_NEAR}", _STORE, least, _ORDERED_WRITE),
    )
]

_DISTRIBUTED = [
    Row(prefix + shape, operands, "sm_90", effects, tile=False)
    for prefix, operands, effects in (
        ("ld[.weak](space=.shared::cluster)[.ca|.cg|.cs|.lu|.cv]", _LOAD, _READS),
        ("st[.weak](space=.shared::cluster)[.wb|.cg|.cs|.wt]", _STORE, _WRITES),
        (
            f"ld(.relaxed|.acquire){_ANY_SCOPE}(space=.shared::cluster)",
            _LOAD,
            _ORDERED_READ,
        ),
        (
            f"st(.relaxed|.release){_ANY_SCOPE}(space=.shared::cluster)",
            _STORE,
            _ORDERED_WRITE,
        ),
    )
    for shape in _SHAPES
]
"""Another block's shared memory: the address comes from ``mapa``, no tensor has that space."""

_SIXTEEN_BYTES = [
    Row("ld[.weak](space=.global|.shared|.shared::cta|.local).b128", "=d:b128 [a:b128@$space]",
        "sm_75", _READS, tile=False),
    Row("st[.weak](space=.global|.shared|.shared::cta|.local).b128", "=[a:b128@$space] b:b128",
        "sm_75", _WRITES, tile=False),
]  # fmt: skip
"""One 128-bit register, which no scalar type fills: ``.v2.b64`` and ``.v4.b32`` move as much."""

ROWS: tuple[Row, ...] = (
    *_LD_GLOBAL,
    *_ST_GLOBAL,
    *_EVICT_L2,
    *_NEAR_MEMORY,
    *_SHARED_VOLATILE,
    *_SHARED_ORDERED,
    *_DISTRIBUTED,
    *_SIXTEEN_BYTES,
)
