"""What each function of the kernel language means: found by identity, never by name.

Arguments are bound to the function's real Python signature first. Not here: those signatures
(``language``), the operations (``ir.ops``), contracts of tile instructions (families), raw
instructions (``raw``).
"""

# ruff: noqa: RET503 (Lowering.refuse never returns)
from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.frontend import launch, operators, python_builtins, tensor_memory, tensors
from tilejit.frontend.state import Lowering
from tilejit.frontend.values import (
    RangeLoop,
    any_runtime,
    describe,
    dtype_of,
    is_number,
    is_runtime,
    is_scalar,
)
from tilejit.ir import build
from tilejit.ir import nodes as ir
from tilejit.ir.ops import OPS, Op
from tilejit.ir.storage import SHARED_ALIGN_BYTES, storage_bytes
from tilejit.language import core, cuda, scalar_math, tile
from tilejit.language.annotations import constexpr
from tilejit.layout import TMEM_AXES, render
from tilejit.ptx import types as ptx_types
from tilejit.ptx.forms import Form, OperandSpec
from tilejit.ptx.instruction import Instruction, PtxPrefix, as_instruction
from tilejit.target import Target

Handler = Callable[[Lowering, list[Any], dict[str, Any]], Any]
SCOPES = ("thread", "warp", "warpgroup", "cta", "cluster")


def find(callee: Any) -> Handler | None:
    try:
        return _TABLE.get(callee)
    except TypeError:
        return None


def _bound(function: Callable[..., Any], name: str, meaning: Callable[..., Any]) -> Handler:
    """A handler that binds arguments to ``function``'s signature and calls ``meaning(lw, **them)``."""
    signature = inspect.signature(function)
    plain = all(
        p.kind is p.POSITIONAL_OR_KEYWORD and p.default is p.empty
        for p in signature.parameters.values()
    )
    count = len(signature.parameters)

    def handler(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if plain and not kwargs and len(args) == count:
            return meaning(lw, *args)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            lw.refuse("arguments", f"{name}: {error}", help=f"{name}{signature}")
        bound.apply_defaults()
        return meaning(lw, *bound.args, **bound.kwargs)

    return handler


# --- operations of the one table


def _operation(op: Op) -> Callable[..., Any]:
    def meaning(lw: Lowering, *args: Any) -> Any:
        operands = _operands(lw, op, list(args))
        result: ir.Type = ir.VOID
        if op.result == "T":
            result = operands[0].type
        elif op.result != "void":
            result = ir.ScalarType(dtypes.dtype(_name(op.result)))
        call = ir.Call(op.name, tuple(operands), result, span=lw.here())
        if op.effect == "pure":
            _require_target(lw, op)
            return call
        if op.result == "void":
            lw.emit(ir.Evaluate(call, span=lw.here()))
            return None
        # A convergent value is taken once, where it is written, whatever uses it later.
        return lw.declare(lw.hint or op.name.split(".")[-1], call)

    return meaning


def _require_target(lw: Lowering, op: Op) -> None:
    """Values are not looked at again by the checker, calls made for their effect are."""
    target = lw.signature.target
    if op.min_target != "sm_75" and not Target.parse(target).supports(op.min_target):
        lw.refuse(
            "target", f"{op.name} needs {op.min_target}, this kernel is compiled for {target}"
        )


def _name(result: str) -> str:
    return "bool" if result == "bool" else result


def _operands(lw: Lowering, op: Op, args: list[Any]) -> list[Any]:
    typed = [a for a, word in zip(args, op.args) if word.startswith("T:") and is_scalar(a)]
    if typed and any(isinstance(a.type, ir.PointerType) for a in typed):
        lw.refuse("type", f"{op.name} takes numbers, got a pointer")
    common: DType | None = None
    for value in typed:
        common = dtype_of(value) if common is None else dtypes.promote(common, dtype_of(value))
    return [_operand(lw, op, value, word, common) for value, word in zip(args, op.args)]


def _operand(lw: Lowering, op: Op, value: Any, word: str, common: DType | None) -> Any:
    if word == "static":
        return _static_int(lw, op, value)
    if word == "text":
        if not isinstance(value, str):
            lw.refuse("static", f"{op.name} takes a compile-time string, got {describe(value)}")
        return ir.Text(value)
    if word == "bool":
        return operators.typed(lw, operators.truth(lw, value))
    if word == "shared":
        return _shared_address(lw, op, value)
    if not (is_scalar(value) or is_number(value)):
        lw.refuse("type", f"{op.name} takes scalars, got {describe(value)}")
    if not word.startswith("T:"):
        return _whole_number(lw, op, value, dtypes.dtype(word))
    kind = word[2:]
    if is_number(value) and common is None and kind == "float":
        value = float(value)
    operand = operators.typed(lw, value, common)
    if common is not None:
        operand = build.cast(operand, common, span=lw.here())
    dtype = dtype_of(operand)
    if kind == "float" and not dtype.is_float:
        lw.refuse(
            "type", f"{op.name} takes floats, got {dtype}", help="convert it: T.cast(x, 'float32')"
        )
    if kind == "int" and not dtype.is_integer:
        lw.refuse("type", f"{op.name} takes integers, got {dtype}")
    return operand


def _whole_number(lw: Lowering, op: Op, value: Any, dtype: DType) -> Any:
    """A lane, rank, number or parity in the operation's own type: an integer of any width, or a bool."""
    if is_number(value):
        whole = isinstance(value, int)
    else:
        whole = isinstance(value.type, ir.ScalarType) and not dtype_of(value).is_float
    if not whole:
        convert = f"T.{dtype}(x) converts a float; an address is none of these numbers"
        lw.refuse("type", f"{op.name} takes an integer here, got {describe(value)}", help=convert)
    return operators.cast(lw, value, dtype)


def _shared_address(lw: Lowering, op: Op, value: Any) -> Any:
    if is_scalar(value) and value.type in (ir.PointerType("shared"), ir.UINT32):
        return value
    lw.refuse(
        "type", f"{op.name} takes an address in shared memory, got {describe(value)}",
        help="buffer.ptr_to([…]) of a T.alloc_shared buffer",
    )  # fmt: skip


def _static_int(lw: Lowering, op: Op, value: Any) -> ir.Const:
    return operators.const(lw, tensors.extent(lw, value), dtypes.int32)


# --- core functions

MAX_LOCAL_BYTES = 512 * 1024
"""Local memory of a thread, on every target."""


def _alloc(space: ir.Space) -> Callable[..., Any]:
    def meaning(lw: Lowering, shape: Any, dtype: Any, layout: Any, align: Any) -> ir.View:
        dims, found = tensors.shape_and_layout(lw, shape, layout)
        if found is not None and not found.axes.isdisjoint(TMEM_AXES):
            lw.refuse(
                "layout", f"a {space} buffer has no lanes and columns of tensor memory: the layout is "
                f"{render(found)}",
                help="T.cuda.decl_tmem(address, shape, dtype, layout=…) declares what tcgen05.alloc allocated",
            )  # fmt: skip
        element = tensors.as_dtype(lw, dtype)
        align_bytes = 16 if align is None else tensors.extent(lw, align)
        if not 1 <= align_bytes <= SHARED_ALIGN_BYTES or align_bytes & (align_bytes - 1):
            lw.refuse(
                "align",
                f"align is a power of two of bytes up to {SHARED_ALIGN_BYTES}, got {align_bytes}",
            )
        kind = ir.TensorType(dims, element, found, space, align_bytes)
        if space == "local" and storage_bytes(kind) > MAX_LOCAL_BYTES:
            lw.refuse(
                "shape", f"{dims} of {element} take {storage_bytes(kind)} bytes of every thread, which "
                f"has at most {MAX_LOCAL_BYTES} bytes of local memory",
            )  # fmt: skip
        buffer = lw.fresh(lw.hint or space, kind)
        lw.allocations.append(ir.AllocTensor(buffer, span=lw.here()))
        from tilejit.ir import views

        return views.whole(buffer)

    return meaning


def _cast(lw: Lowering, x: Any, ty: Any) -> Any:
    return operators.cast(lw, x, tensors.as_dtype(lw, ty))


def _bitcast(lw: Lowering, x: Any, ty: Any) -> Any:
    dtype = tensors.as_dtype(lw, ty)
    x = operators.typed(lw, x, dtype)
    bits = 64 if isinstance(x.type, ir.PointerType) else dtype_of(x).bits
    if isinstance(x.type, ir.PointerType):
        bits = operators.pointer_dtype(x.type).bits
    if bits != dtype.bits:
        lw.refuse("type", f"bitcast of {bits} bits to {dtype} of {dtype.bits} bits")
    return build.bitcast(x, ir.ScalarType(dtype), span=lw.here())


def _if_then_else(lw: Lowering, condition: Any, if_true: Any, if_false: Any) -> Any:
    test = operators.truth(lw, condition)
    if isinstance(test, bool):
        return if_true if test else if_false
    return operators.select(lw, test, if_true, if_false, "T.if_then_else")


def _unroll(lw: Lowering, start: Any, stop: Any, step: Any) -> RangeLoop:
    if isinstance(start, range) and stop is None:
        return RangeLoop(start.start, start.stop, start.step, True)
    start, stop = (0, start) if stop is None else (start, stop)
    bounds = [tensors.extent(lw, part) for part in (start, stop, step)]
    if bounds[2] == 0:
        lw.refuse("range", "the step of a range cannot be 0")
    return RangeLoop(bounds[0], bounds[1], bounds[2], True)


def _print(lw: Lowering, format: Any, *values: Any) -> None:
    if not isinstance(format, str):
        lw.refuse("static", f"T.print takes a compile-time format, got {describe(format)}")
    holes = format.replace("{{", "").replace("}}", "").count("{}")
    if holes != len(values):
        lw.refuse(
            "print", f"{format!r} has {holes} holes for {len(values)} values",
            help='each {} in the text marks a value: T.print("t = {}", t)',
        )  # fmt: skip
    operands = [operators.typed(lw, v) for v in values]
    call = ir.Call("print", (ir.Text(format), *operands), span=lw.here())
    lw.emit(ir.Evaluate(call, span=lw.here()))


def _device_assert(lw: Lowering, condition: Any, message: Any) -> None:
    if not isinstance(message, str):
        lw.refuse(
            "static", f"an assertion message is a compile-time string, got {describe(message)}"
        )
    test = operators.typed(lw, operators.truth(lw, condition))
    call = ir.Call("device_assert", (test, ir.Text(message)), span=lw.here())
    lw.emit(ir.Evaluate(call, span=lw.here()))


def _assume(lw: Lowering, condition: Any) -> None:
    test = operators.truth(lw, condition)
    if test is False:
        lw.refuse("assume", "the assumption is false")
    if test is not True:
        lw.emit(ir.Evaluate(ir.Call("assume", (test,), span=lw.here()), span=lw.here()))


def _static_assert(lw: Lowering, condition: Any, message: Any) -> None:
    test = operators.truth(lw, condition)
    if not isinstance(test, bool):
        lw.refuse(
            "static", "T.static_assert takes a compile-time condition", help="T.device_assert"
        )
    if not test:
        lw.refuse("assertion", str(message))


def _ceildiv(lw: Lowering, a: Any, b: Any) -> Any:
    negated = operators.unary(lw, "neg", a)
    return operators.unary(lw, "neg", operators.binary(lw, "floordiv", negated, b))


def _trunc(op: str) -> Callable[..., Any]:
    """C's division: floor division of magnitudes, the sign put back."""

    def meaning(lw: Lowering, a: Any, b: Any) -> Any:
        if not any_runtime((a, b)):
            if not b:
                lw.refuse("zero-division", f"{op} by zero")
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if op == "truncdiv" else a - quotient * b
        a, b = operators.common(lw, operators.integer(lw, a), operators.integer(lw, b), op)
        if not dtype_of(a).is_integer:
            lw.refuse("type", f"T.{op} takes integers, got {dtype_of(a)}")
        if dtype_of(a).kind == "uint":
            return operators.binary(lw, "floordiv" if op == "truncdiv" else "mod", a, b)
        a, b = lw.keep(a, "dividend"), lw.keep(b, "divisor")
        floor = operators.binary(lw, "floordiv", a, b)
        remainder = operators.binary(lw, "mod", a, b)
        inexact = operators.binary(lw, "ne", remainder, 0)
        signs = operators.binary(
            lw, "ne", operators.binary(lw, "lt", a, 0), operators.binary(lw, "lt", b, 0)
        )
        fix = build.cast(build.and_(inexact, signs), dtype_of(a))
        if op == "truncdiv":
            return operators.binary(lw, "add", floor, fix)
        return operators.binary(lw, "sub", remainder, operators.binary(lw, "mul", fix, b))

    return meaning


def _constexpr(lw: Lowering, args: list[Any], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        lw.refuse("arguments", "T.constexpr takes one value")
    value = args[0].value if isinstance(args[0], ir.Const) else args[0]
    if any_runtime(value):
        lw.refuse("static", f"T.constexpr is given {describe(value)}")
    return value


def _layout(lw: Lowering, notation: Any) -> Any:
    return tensors.as_layout(lw, notation, ())


# --- thread and block coordinates


def _axis_id(name: str) -> Callable[..., Any]:
    def meaning(lw: Lowering, axis: Any) -> Any:
        if axis not in ("x", "y", "z"):
            lw.refuse("axis", f"an axis is 'x', 'y' or 'z', got {axis!r}")
        known = launch.known_extent(lw, name, "xyz".index(axis))
        if known is not None:
            return operators.const(lw, known, dtypes.int32)
        return ir.HardwareId(f"{name}.{axis}", span=lw.here())

    return meaning


def _id(name: str) -> Callable[..., Any]:
    def meaning(lw: Lowering) -> Any:
        return ir.HardwareId(name, span=lw.here())

    return meaning


def _named_barrier(op: Op) -> Callable[..., Any]:
    def meaning(lw: Lowering, barrier_id: Any, threads: Any) -> None:
        if isinstance(barrier_id, int) and not 0 <= barrier_id <= 15:
            lw.refuse(
                "barrier", f"barrier_id is {barrier_id}, expected 0 to 15: a CTA has 16 named "
                "barriers", help="T.cuda.cta_sync() uses barrier 0",
            )  # fmt: skip
        if isinstance(threads, int) and (threads <= 0 or threads % 32):
            lw.refuse(
                "barrier", f"{op.name} counts {int(threads)} threads, expected a multiple of 32: a barrier "
                "counts whole warps",
            )  # fmt: skip
        _operation(op)(lw, barrier_id, threads)

    return meaning


def _mbarrier_wait(op: Op) -> Callable[..., Any]:
    def meaning(lw: Lowering, mbar: Any, phase: Any) -> None:
        known = phase.value if isinstance(phase, ir.Const) else phase
        if isinstance(known, int) and known not in (0, 1):
            lw.refuse(
                "parity", f"{op.name} waits for a phase of parity {known}, expected 0 or 1: a parity is "
                "the number of a phase modulo 2", help="phases count from 0: phase % 2",
            )  # fmt: skip
        _operation(op)(lw, mbar, phase)

    return meaning


_named_barrier_sync = _named_barrier(OPS["cuda.named_barrier_sync"])


def _warpgroup_sync(lw: Lowering, barrier_id: Any) -> None:
    _named_barrier_sync(lw, barrier_id, 128)


# --- tile instructions


def _apply(lw: Lowering, instruction: Any, *operands: Any, scope: Any, **parameters: Any) -> None:
    if isinstance(instruction, str):
        instruction = Instruction(instruction)
    if not isinstance(instruction, Instruction | PtxPrefix):
        lw.refuse(
            "arguments", f"apply takes an instruction first, got {describe(instruction)}",
            help='T.cuda.tile.apply(T.ptx["…"], …)',
        )  # fmt: skip
    instruction = as_instruction(instruction)
    forms = instruction.forms
    items = tuple(_tile_operand(lw, v, i, len(operands), forms) for i, v in enumerate(operands))
    keywords = tuple(
        ir.Keyword(name, _parameter(lw, name, value), span=lw.here())
        for name, value in parameters.items()
    )
    items = _with_spans(lw, items)
    args = (ir.Text(instruction.spelling), ir.Tuple(items), ir.Tuple(keywords))
    attrs = ir.ScopeAttrs(_scope(lw, scope))
    call = ir.Call("tile.apply", args, attrs=attrs, span=lw.here())
    lw.emit(ir.Evaluate(call, span=lw.here()))


def _with_spans(lw: Lowering, items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The operands of the current call (its arguments after the first), each pointing at its own
    argument: that is where the checker's carets go."""
    node = lw.node
    if not isinstance(node, ast.Call) or len(node.args) != len(items) + 1:
        return items
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return items
    return tuple(
        replace(item, span=lw.span(argument)) for item, argument in zip(items, node.args[1:])
    )


def _scope(lw: Lowering, scope: Any) -> Any:
    if scope not in SCOPES:
        lw.refuse("scope", f"scope is one of {', '.join(SCOPES)}, got {describe(scope)}")
    return scope


def _tile_operand(lw: Lowering, value: Any, index: int, count: int, forms: tuple[Form, ...]) -> Any:
    """A scalar that is read is the same for every repeat: one that a repeat could change (an element
    of the destination) becomes a variable."""
    if isinstance(value, ir.View | ir.Region):
        return value
    if is_scalar(value):
        written = any("w" in spec.direction for spec in operand_specs(forms, index, count))
        return value if written else lw.keep(value, "scalar")
    if is_number(value):
        return typed_literal(lw, value, operand_specs(forms, index, count))
    if value is None:
        lw.refuse(
            "operand", f"operand {index} is None", help="test an optional tensor with `is not None`"
        )
    lw.refuse(
        "operand", f"operand {index} is {describe(value)}", help="operands are tensors and scalars"
    )


def operand_specs(forms: tuple[Form, ...], index: int, count: int) -> list[OperandSpec]:
    """What operand ``index`` of ``count`` may be, by the forms that take as many."""
    exact = [f for f in forms if len(f.operands) == count] or list(forms)
    specs = [f.operands[index] for f in exact if index < len(f.operands)]
    return [s for s in specs if s.lanes == 1] or specs


def typed_literal(lw: Lowering, value: Any, specs: list[OperandSpec]) -> ir.Const:
    """A literal in the type that the instruction's operand asks for, when that is one type.

    ``.bN`` takes an integer literal as its unsigned container; a float literal there keeps its own
    type, for the family to refuse.
    """
    wanted = {d for d in (_literal_dtype(value, spec) for spec in specs) if d is not None}
    if len(wanted) == 1:
        dtype = wanted.pop()
        if dtype.kind == "uint" and isinstance(value, int) and value < 0:
            value += 1 << dtype.bits
        return operators.const(lw, value, dtype)
    return operators.typed(lw, value)  # type: ignore[no-any-return]


def _literal_dtype(value: Any, spec: OperandSpec) -> DType | None:
    if spec.kind == "pred":
        return dtypes.bool_
    if spec.kind in ("imm", "map"):  # of a tensor map: a coordinate
        return dtypes.int32 if isinstance(value, int) and abs(value) < 1 << 31 else None
    scalar = ptx_types.scalar_type(spec.type)
    if scalar is not None:
        if scalar.is_float or isinstance(value, int):
            return scalar
        return None
    container = ptx_types.container_type(spec.type)
    return container if isinstance(value, int) else None


def _parameter(lw: Lowering, name: str, value: Any) -> Any:
    """A keyword's value: an expression, or a static value in the IR's terms."""
    if is_runtime(value):
        return lw.keep(value, name)
    if isinstance(value, bool | int | float):
        return operators.typed(lw, value)
    if isinstance(value, str):
        return ir.Text(value)
    if isinstance(value, DType):
        return ir.Text(value.name)
    if value is None:
        return ir.Static(None)
    if isinstance(value, tuple | list):
        if any_runtime(value):
            return ir.Tuple(tuple(_parameter(lw, name, item) for item in value))
        return ir.Static(_frozen(tuple(value)))
    lw.refuse("parameter", f"{name}={describe(value)}: parameters are numbers, strings, tuples")


def _frozen(value: Any) -> Any:
    return tuple(_frozen(v) for v in value) if isinstance(value, tuple | list) else value


def _ewise(lw: Lowering, function: Any, dst: Any, *inputs: Any, scope: Any) -> None:
    from tilejit.frontend import scalar_function

    for operand in (dst, *inputs):
        if not (
            isinstance(operand, ir.View | ir.Region) or is_scalar(operand) or is_number(operand)
        ):
            lw.refuse("operand", f"ewise takes tensors and scalars, got {describe(operand)}")
    if not isinstance(dst, ir.View | ir.Region):
        lw.refuse("operand", f"ewise writes a register tile, got {describe(dst)}")
    body, operands = scalar_function.lower(lw, function, dst, list(inputs))
    operands = [lw.keep(o, "scalar") if is_scalar(o) else o for o in operands]
    args = (body, ir.Tuple(_with_spans(lw, (dst, *operands))))
    attrs = ir.ScopeAttrs(_scope(lw, scope))
    call = ir.Call("tile.ewise", args, attrs=attrs, span=lw.here())
    lw.emit(ir.Evaluate(call, span=lw.here()))


# --- the table

_MATH = (
    "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf", "floor", "ceil",
    "trunc", "rint", "fma", "pow", "isnan", "isinf",
)  # fmt: skip
_CUDA = (
    "shfl_idx", "shfl_xor", "shfl_up", "shfl_down", "all_sync", "any_sync", "ballot_sync",
    "elect_sync", "warp_sync", "cta_sync", "cluster_sync", "cluster_arrive", "cluster_wait",
    "grid_sync", "map_shared_rank", "fence_cta", "fence_gpu",
)  # fmt: skip
_AXIS_IDS = {
    "thread_idx": "tid", "block_idx": "ctaid", "block_dim": "ntid", "grid_dim": "nctaid",
    "cluster_cta_id": "cluster_ctaid", "cluster_dim": "cluster_nctaid", "cluster_id": "clusterid",
    "num_clusters": "nclusterid",
}  # fmt: skip
_IDS = {
    "linear_thread_id": "tid", "lane_id": "laneid", "warp_id": "warpid",
    "warpgroup_id": "warpgroupid", "warp_in_warpgroup": "warp_in_warpgroup",
    "thread_in_warpgroup": "tid_in_warpgroup", "cluster_cta_rank": "cluster_ctarank",
}  # fmt: skip
_CORE: dict[str, Callable[..., Any]] = {
    "device_entry": launch.device_entry, "alloc_shared": _alloc("shared"),
    "alloc_local": _alloc("local"), "cast": _cast, "bitcast": _bitcast,
    "if_then_else": _if_then_else, "unroll": _unroll, "print": _print,
    "device_assert": _device_assert, "assume": _assume, "static_assert": _static_assert,
    "ceildiv": _ceildiv, "truncdiv": _trunc("truncdiv"), "truncmod": _trunc("truncmod"),
    "layout": _layout,
}  # fmt: skip


def _build_table() -> dict[Any, Handler]:
    table: dict[Any, Handler] = {
        core.min: python_builtins.minimum,
        core.max: python_builtins.maximum,
        core.abs: python_builtins.absolute,
        constexpr: _constexpr,
    }
    rows: list[tuple[Any, str, str, Callable[..., Any]]] = []
    rows += [(core, "T", n, meaning) for n, meaning in _CORE.items()]
    rows += [(scalar_math, "T", n, _operation(OPS[f"math.{n}"])) for n in _MATH]
    rows += [(scalar_math, "T", n, _operation(OPS[f"bits.{n}"])) for n in ("popc", "clz", "brev")]
    rows += [(cuda, "T.cuda", n, _operation(OPS[f"cuda.{n}"])) for n in _CUDA]
    rows += [(cuda, "T.cuda", n, _axis_id(word)) for n, word in _AXIS_IDS.items()]
    rows += [(cuda, "T.cuda", n, _id(word)) for n, word in _IDS.items()]
    rows += [
        (cuda, "T.cuda", "named_barrier_sync", _named_barrier_sync),
        (cuda, "T.cuda", "warpgroup_sync", _warpgroup_sync),
        (cuda, "T.cuda", "named_barrier_arrive", _named_barrier(OPS["cuda.named_barrier_arrive"])),
        (cuda, "T.cuda", "decl_tmem", tensor_memory.decl_tmem),
        (cuda, "T.cuda", "get_tmem_addr", tensor_memory.get_tmem_addr),
        (tile, "T.cuda.tile", "apply", _apply),
        (tile, "T.cuda.tile", "ewise", _ewise),
    ]
    for name in ("mbarrier_wait", "mbarrier_wait_acquire_cluster"):
        rows.append((cuda, "T.cuda", name, _mbarrier_wait(OPS[f"cuda.{name}"])))
    for module, prefix, name, meaning in rows:
        function = getattr(module, name)
        table[function] = _bound(function, f"{prefix}.{name}", meaning)
    return table


_TABLE = _build_table()
