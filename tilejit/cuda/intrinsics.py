"""The operations of ``ir.ops`` as C++: mathematics, bits, warp exchange, barriers, print, asserts.

Float functions are CUDA's accurate ones; 16-bit floats go through float32. ``math.fma`` is rounded
once in every type. Warp operations name all 32 lanes. Not here: tile and raw instructions (``asm``).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tilejit import dtypes
from tilejit.cuda import cxx, ranges
from tilejit.cuda.ranges import Interval
from tilejit.cuda.scalars import Piece, Scalars, unsupported
from tilejit.cuda.writer import Writer, quote
from tilejit.dtypes import DType
from tilejit.ir import nodes
from tilejit.target import TARGETS

_FUNCTION = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "sqrt": "sqrt", "rsqrt": "rsqrt",
    "sin": "sin", "cos": "cos", "tanh": "tanh", "erf": "erf", "floor": "floor", "ceil": "ceil",
    "trunc": "trunc", "rint": "rint", "fma": "fma", "pow": "pow",
}  # fmt: skip
"""CUDA's name of each function in double precision; single precision adds an ``f``."""
_LANES = "0xffffffffu"


def expression(scalars: Scalars, e: nodes.Call) -> Piece:
    """A call that has a value."""
    room, _, name = e.op.partition(".")
    if room == "math":
        return _math(scalars, name, e)
    if room == "bits":
        return _bits(scalars, name, e)
    if room == "cuda" and name.startswith("shfl_"):
        return _shuffle(scalars, name[5:], e)
    if e.op == "cuda.elect_sync":
        if TARGETS[scalars.known.target].sm >= 90:
            return Piece(f"{scalars.helpers.use('tj_elect')}()", Interval(0, 1))
        return Piece(f"({scalars.text(nodes.HardwareId('laneid'))} == 0)", Interval(0, 1))
    votes = {"cuda.all_sync": "__all_sync", "cuda.any_sync": "__any_sync"}
    if e.op in votes:
        return Piece(f"({votes[e.op]}({_LANES}, {scalars.text(e.args[0])}) != 0)", Interval(0, 1))
    if e.op == "cuda.ballot_sync":
        return Piece(
            f"__ballot_sync({_LANES}, {scalars.text(e.args[0])})", ranges.full(dtypes.uint32)
        )
    if e.op == "cuda.map_shared_rank":
        near, rank = (scalars.text(a) for a in e.args)
        text = f"{scalars.helpers.use('tj_mapa')}({near}, (u32){rank})"
        return Piece(text, ranges.full(dtypes.uint32))
    if e.op == "cuda.generic_address":
        text = f"(u64)__cvta_shared_to_generic({scalars.text(e.args[0])})"
        return Piece(text, ranges.full(dtypes.uint64))
    raise unsupported(f"operation {e.op} has no value", e.span)


def _dtype(e: nodes.Expr) -> DType:
    assert isinstance(e.type, nodes.ScalarType)
    return e.type.dtype


def _math(scalars: Scalars, name: str, e: nodes.Call) -> Piece:
    dtype = _dtype(e.args[0])
    texts = [scalars.text(a) for a in e.args]
    if dtype.bits == 16:
        kind = "f16" if dtype.exponent_bits == 5 else "bf16"
        if name == "fma":
            return Piece(f"{scalars.helpers.use(f'tj_fma_{kind}')}({', '.join(texts)})")
        texts = [scalars.as_f32(t, dtype) for t in texts]
    single = "" if dtype.bits == 64 else "f"
    if name == "isnan":
        function = "__isnan" if dtype.bits == 64 else "__isnanf"
        return Piece(f"({function}({texts[0]}) != 0)", Interval(0, 1))
    if name == "isinf":
        function = "__isinf" if dtype.bits == 64 else "__isinff"
        return Piece(f"({function}({texts[0]}) != 0)", Interval(0, 1))
    result = f"{_FUNCTION[name]}{single}({', '.join(texts)})"
    return Piece(scalars.from_f32(result, dtype) if dtype.bits == 16 else result)


def _bits(scalars: Scalars, name: str, e: nodes.Call) -> Piece:
    dtype = _dtype(e.args[0])
    bits = dtype.bits
    operand = f"({cxx.unsigned(bits)}){scalars.text(e.args[0])}"
    wide = bits == 64
    if name == "popc":
        return Piece(f"{'__popcll' if wide else '__popc'}({operand})", Interval(0, bits))
    if name == "clz":
        text = f"{'__clzll((i64)' if wide else '__clz((i32)(u32)'}{operand})"
        return Piece(text if bits >= 32 else f"({text} - {32 - bits})", Interval(0, bits))
    reversed_ = f"{'__brevll' if wide else '__brev'}({operand})"
    shifted = reversed_ if bits >= 32 else f"({reversed_} >> {32 - bits})"
    return Piece(f"({cxx.ctype(dtype)}){shifted}", ranges.full(dtype))


def _shuffle(scalars: Scalars, mode: str, e: nodes.Call) -> Piece:
    dtype = _dtype(e.args[0])
    name = cxx.ctype(dtype)
    value, lane = scalars.piece(e.args[0]), scalars.text(e.args[1])
    if dtype.bits == 64:
        bits = cxx.reinterpret(value.text, name, "u64")
        text = f"{scalars.helpers.use(f'tj_shfl_{mode}_64')}({bits}, {lane})"
        return Piece(cxx.reinterpret(text, "u64", name), value.interval)
    narrow = cxx.unsigned(dtype.bits)
    bits = cxx.reinterpret(value.text, name, narrow)
    text = f"{scalars.helpers.use(f'tj_shfl_{mode}')}({bits}, {lane})"
    if dtype.bits < 32:
        text = f"({narrow}){text}"
    # Every lane's value lies in the interval, so the received one does.
    return Piece(cxx.reinterpret(text, narrow, name), value.interval)


# --- calls made for their effect


def statement(scalars: Scalars, writer: Writer, e: nodes.Call) -> None:
    """A call without a value."""
    fixed = _FIXED.get(e.op)
    if fixed is not None:
        writer.line(fixed)
    elif e.op in ("cuda.named_barrier_sync", "cuda.named_barrier_arrive"):
        writer.line(_named_barrier(scalars, e.op.rpartition("_")[2], e))
    elif e.op in _MBARRIER_WAITS:
        writer.line(_mbarrier_wait(scalars, e))
    elif e.op == "cuda.grid_sync":
        writer.line(f"{scalars.helpers.use('tj_grid_sync')}();")
    else:
        effect = _EFFECTS.get(e.op)
        if effect is None:
            # A value that nobody reads: its own effect (a vote, a shuffle) still takes place.
            writer.line(f"(void){expression(scalars, e).text};")
        else:
            effect(scalars, writer, e)


_FIXED = {
    "cuda.warp_sync": f"__syncwarp({_LANES});",
    "cuda.cta_sync": "__syncthreads();",
    "cuda.cluster_sync": 'asm volatile("barrier.cluster.arrive.release.aligned; '
    'barrier.cluster.wait.acquire.aligned;" ::: "memory");',
    "cuda.cluster_arrive": 'asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");',
    "cuda.cluster_wait": 'asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");',
    "cuda.fence_cta": 'asm volatile("fence.acq_rel.cta;" ::: "memory");',
    "cuda.fence_gpu": 'asm volatile("fence.acq_rel.gpu;" ::: "memory");',
}


_MBARRIER_WAITS = {
    "cuda.mbarrier_wait": "",
    "cuda.mbarrier_wait_acquire_cluster": ".acquire.cluster",
}
"""The scope that each names in its instruction."""


def _named_barrier(scalars: Scalars, action: str, e: nodes.Call) -> str:
    barrier, threads = scalars.piece(e.args[0]), _static_int(e.args[1])
    known = barrier.interval.value if barrier.interval is not None else None
    if known is not None:
        return f'asm volatile("bar.{action} {known}, {threads};" ::: "memory");'
    return f'asm volatile("bar.{action} %0, {threads};" :: "r"({barrier.text}) : "memory");'


def _mbarrier_wait(scalars: Scalars, e: nodes.Call) -> str:
    """A loop in the instruction stream: the instruction may give up before the phase completes."""
    name = "try_wait" if TARGETS[scalars.known.target].sm >= 90 else "test_wait"
    space = ".shared::cta" if name == "try_wait" else ".shared"
    address, phase = (scalars.text(a) for a in e.args)
    return (
        f'asm volatile("{{.reg .pred p; WAIT: mbarrier.{name}.parity{_MBARRIER_WAITS[e.op]}{space}.b64 '
        f'p, [%0], %1; @!p bra WAIT;}}" :: "r"({address}), "r"({phase}) : "memory");'
    )


def _static_int(e: nodes.Expr) -> int:
    assert isinstance(e, (nodes.Const, nodes.Static))
    return int(e.value)


_HOLE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|%")


def _print(scalars: Scalars, writer: Writer, e: nodes.Call) -> None:
    format_, *values = e.args
    assert isinstance(format_, nodes.Text)
    pending = [_printf_argument(scalars, v) for v in values]
    texts: list[str] = []

    def fill(found: re.Match[str]) -> str:
        if found[0] in ("{{", "}}"):
            return found[0][0]
        if found[0] == "%":
            return "%%"
        if not pending:
            raise unsupported("print has more holes than values", e.span)
        conversion, text = pending.pop(0)
        texts.append(text)
        return conversion

    pattern = quote(_HOLE.sub(fill, format_.value))
    writer.line(f"printf({', '.join([f'{chr(34)}{pattern}' + chr(92) + 'n' + chr(34), *texts])});")


def _printf_argument(scalars: Scalars, e: nodes.Expr) -> tuple[str, str]:
    text = scalars.text(e)
    if isinstance(e.type, nodes.PointerType):
        return "0x%llx", f"(u64){text}"
    dtype = _dtype(e)
    if dtype.kind == "bool":
        return "%s", f'({text} ? "True" : "False")'
    if dtype.is_float:
        if dtype.bits == 16:
            text = scalars.as_f32(text, dtype)
        return "%.9g" if dtype.bits <= 32 else "%.17g", f"(f64){text}"
    if dtype.bits == 64:
        return ("%lld" if dtype.kind == "int" else "%llu"), text
    return ("%d", f"(i32){text}") if dtype.kind == "int" else ("%u", f"(u32){text}")


def _assert(scalars: Scalars, writer: Writer, e: nodes.Call) -> None:
    condition, message = e.args
    assert isinstance(message, nodes.Text)
    where = f"{e.span.short}: " if e.span else ""
    text = quote(f"{where}assertion failed: {message.value}").replace("%", "%%")
    places = "block (%u, %u, %u) thread (%u, %u, %u)"
    ids = ", ".join(f"{v}.{a}" for v in ("blockIdx", "threadIdx") for a in "xyz")
    writer.line(
        f'if (!{scalars.text(condition)}) {{ printf("{text} at {places}\\n", {ids}); __trap(); }}'
    )


def _assume(scalars: Scalars, writer: Writer, e: nodes.Call) -> None:
    writer.line(f"__builtin_assume({scalars.text(e.args[0])});")


_EFFECTS: dict[str, Callable[[Scalars, Writer, nodes.Call], None]] = {
    "print": _print,
    "device_assert": _assert,
    "assume": _assume,
}
