"""Scalar expressions as C++ text with the meaning of ``ir.nodes``.

* Integers wrap: signed arithmetic is done unsigned wherever it could overflow.
* ``//`` and ``%`` floor. Division by zero gives zero (it may be evaluated for nothing). A divisor
  or dividend known to be non-negative takes the plain form, in 32 bits when both fit.
* A shift by the type's width or more, or by a negative count, shifts every bit out.
* float16 and bfloat16 are 16 bits, computed in float32 and rounded once per operation.
* Floating-point text relies on ``--fmad=false`` (``runtime.nvrtc``): nothing is contracted.
* A float becomes an integer truncated and saturated, a NaN zero.

Every text has exactly the C++ type of its expression and is a primary, a call or a cast, so it can
stand in any operand position. Not here: loads and addresses (``memory``), calls (``intrinsics``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tilejit import dtypes
from tilejit.cuda import cxx, ranges
from tilejit.cuda.helpers import Helpers
from tilejit.cuda.ranges import Interval, Known
from tilejit.cuda.writer import Names
from tilejit.dtypes import DType
from tilejit.errors import InternalError, Span, fault
from tilejit.ir import nodes


class Piece(NamedTuple):
    """The text of an expression; ``interval`` of an integer or bool one, else None."""

    text: str
    interval: Interval | None = None


_COMPARE = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_FLOAT_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/"}
_BITWISE = {"bitand": "&", "bitor": "|", "bitxor": "^"}
_RANGE_OF: dict[str, Callable[[Interval, Interval], Interval | None]] = {
    "add": ranges.add, "sub": ranges.sub, "mul": ranges.mul,
    "bitand": ranges.bitand, "bitor": ranges.bitor, "bitxor": ranges.bitor,
}  # fmt: skip


class Scalars:
    """Writes expressions. ``load``, ``address`` and ``call`` are supplied by the kernel emitter."""

    def __init__(self, names: Names, helpers: Helpers, known: Known):
        self.names = names
        self.helpers = helpers
        self.known = known
        self.hardware_used: set[str] = set()
        self.load: Callable[[nodes.Load], Piece]
        self.address: Callable[[nodes.Address], Piece]
        self.call: Callable[[nodes.Call], Piece]
        self._writers: dict[type, Callable[[Any], Piece]] = {
            nodes.Const: self._const, nodes.Var: self._var, nodes.HardwareId: self._hardware,
            nodes.Unary: self._unary, nodes.Binary: self._binary, nodes.Select: self._select,
            nodes.Cast: self._cast, nodes.Bitcast: self._bitcast,
            nodes.Load: lambda e: self.load(e), nodes.Address: lambda e: self.address(e),
            nodes.Call: lambda e: self.call(e),
        }  # fmt: skip

    def piece(self, expr: nodes.Expr) -> Piece:
        """Text and interval of a scalar or pointer expression."""
        writer = self._writers.get(type(expr))
        if writer is None:
            raise unsupported(f"a {type(expr).__name__} has no scalar value", expr.span)
        return writer(expr)

    def text(self, expr: nodes.Expr) -> str:
        """Text of a scalar or pointer expression."""
        return self.piece(expr).text

    def value(self, expr: nodes.Expr) -> int | None:
        """The value of an integer expression that is one number."""
        if isinstance(expr, nodes.Const):
            return int(expr.value)
        interval = self.piece(expr).interval
        return None if interval is None else interval.value

    def as_f32(self, text: str, dtype: DType) -> str:
        """A float16 or bfloat16 value as float32 (exact)."""
        return f"{self.helpers.use('tj_f16_f32' if dtype.exponent_bits == 5 else 'tj_bf16_f32')}({text})"

    def from_f32(self, text: str, dtype: DType) -> str:
        """A float32 value rounded to float16 or bfloat16."""
        return f"{self.helpers.use('tj_f32_f16' if dtype.exponent_bits == 5 else 'tj_f32_bf16')}({text})"

    # --- leaves

    def _const(self, e: nodes.Const) -> Piece:
        dtype = e.type.dtype
        text = cxx.literal(e.value, dtype)
        return Piece(text, None if dtype.is_float else Interval(int(e.value), int(e.value)))

    def _var(self, e: nodes.Var) -> Piece:
        known = self.known.variables.get(e.name)
        dtype = e.type.dtype if isinstance(e.type, nodes.ScalarType) else None
        if dtype is None or dtype.is_float:
            return Piece(self.names[e.name])
        if known is None:
            return Piece(self.names[e.name], ranges.full(dtype))
        if known.value is not None:
            return Piece(cxx.literal(known.value, dtype), known)
        return Piece(self.names[e.name], known)

    def _hardware(self, e: nodes.HardwareId) -> Piece:
        interval = self.known.hardware(e.name)
        if interval.value is not None:
            return Piece(cxx.literal(interval.value, dtypes.int32), interval)
        self.hardware_used.add(e.name)
        return Piece(hardware_name(e.name), interval)

    # --- operators

    def _unary(self, e: nodes.Unary) -> Piece:
        operand = self.piece(e.operand)
        dtype = e.type.dtype
        if dtype.kind == "bool" or e.op == "not":
            return Piece(f"(!{operand.text})", Interval(0, 1))
        if dtype.is_float:
            return Piece(_float_unary(e.op, operand.text, dtype))
        return self._int_unary(e.op, operand, dtype)

    def _int_unary(self, op: str, operand: Piece, dtype: DType) -> Piece:
        assert operand.interval is not None
        name = cxx.ctype(dtype)
        if op == "invert":
            return Piece(
                f"({name})(~{operand.text})", _mapped(operand.interval, dtype, lambda v: ~v)
            )
        if op == "neg":
            negated = ranges.sub(Interval(0, 0), operand.interval)
            zero = Piece(cxx.literal(0, dtype), Interval(0, 0))
            return Piece(_wrapped("-", zero, operand, negated, dtype), ranges.clip(negated, dtype))
        if operand.interval.low >= 0:
            return operand
        bound = max(-operand.interval.low, operand.interval.high)
        interval = ranges.clip(Interval(0, bound), dtype)
        return Piece(f"{self.helpers.use('tj_abs')}({operand.text})", interval)

    def _binary(self, e: nodes.Binary) -> Piece:
        a, b = self.piece(e.lhs), self.piece(e.rhs)
        op = e.op
        if op == "and" or op == "or":
            return Piece(f"({a.text} {'&&' if op == 'and' else '||'} {b.text})", Interval(0, 1))
        assert isinstance(e.lhs.type, nodes.ScalarType)
        dtype = e.lhs.type.dtype
        if op in _COMPARE:
            if dtype.is_float and dtype.bits == 16:
                a, b = (Piece(self.as_f32(p.text, dtype)) for p in (a, b))
            return Piece(f"({a.text} {_COMPARE[op]} {b.text})", Interval(0, 1))
        if dtype.is_float:
            return Piece(self._float_binary(op, a.text, b.text, dtype))
        return self._int_binary(op, a, b, dtype)

    def _float_binary(self, op: str, a: str, b: str, dtype: DType) -> str:
        if dtype.bits == 16:
            wide = (self.as_f32(a, dtype), self.as_f32(b, dtype))
            return self.from_f32(self._float_binary(op, *wide, dtypes.float32), dtype)
        if op in _FLOAT_ARITHMETIC:
            return f"({a} {_FLOAT_ARITHMETIC[op]} {b})"
        if op in ("min", "max"):
            return f"f{op}{'f' if dtype.bits == 32 else ''}({a}, {b})"
        helper = {"floordiv": "tj_ffloordiv", "mod": "tj_fmod"}[op] + str(dtype.bits)
        return f"{self.helpers.use(helper)}({a}, {b})"

    def _int_binary(self, op: str, a: Piece, b: Piece, dtype: DType) -> Piece:
        assert a.interval is not None and b.interval is not None
        if op in ("add", "sub", "mul"):
            exact = _RANGE_OF[op](a.interval, b.interval)
            assert exact is not None
            symbol = {"add": "+", "sub": "-", "mul": "*"}[op]
            return Piece(_wrapped(symbol, a, b, exact, dtype), ranges.clip(exact, dtype))
        if op in _BITWISE:
            found = _RANGE_OF[op](a.interval, b.interval)
            name = cxx.ctype(dtype)
            text = f"({a.text} {_BITWISE[op]} {b.text})"
            text = text if dtype.bits >= 32 and dtype.kind != "bool" else f"({name}){text}"
            return Piece(text, ranges.clip(found, dtype) if found else ranges.full(dtype))
        if op in ("floordiv", "mod"):
            return self._division(op, a, b, dtype)
        if op in ("shl", "shr"):
            return self._shift(op, a, b, dtype)
        smaller = min if op == "min" else max
        interval = Interval(
            smaller(a.interval.low, b.interval.low), smaller(a.interval.high, b.interval.high)
        )
        return Piece(
            f"{self.helpers.use(f'tj_{op}')}<{cxx.ctype(dtype)}>({a.text}, {b.text})", interval
        )

    def _division(self, op: str, a: Piece, b: Piece, dtype: DType) -> Piece:
        assert a.interval is not None and b.interval is not None
        interval = (ranges.floordiv if op == "floordiv" else ranges.mod)(a.interval, b.interval)
        symbol = "/" if op == "floordiv" else "%"
        result = ranges.clip(interval, dtype) if interval else ranges.full(dtype)
        name = cxx.ctype(dtype)
        divisor = b.interval.value
        if op == "mod" and a.interval.low >= 0 and a.interval.high < b.interval.low:
            return a
        if a.interval.low >= 0 and b.interval.low >= 1:
            if a.interval.high < 1 << 32 and b.interval.high < 1 << 32:
                text = f"((u32){a.text} {symbol} (u32){b.text})"
                return Piece(text if name == "u32" else f"({name}){text}", result)
            return Piece(f"({name})((u64){a.text} {symbol} (u64){b.text})", result)
        if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
            # For two's complement, shifting right and masking are floor and its remainder.
            if op == "floordiv":
                return Piece(f"({name})({a.text} >> {divisor.bit_length() - 1})", result)
            mask = cxx.literal(divisor - 1, dtype)
            return Piece(f"({name})({a.text} & {mask})", result)
        if a.interval.low >= 0 and b.interval.low >= 0:
            helper = "tj_udiv" if op == "floordiv" else "tj_umod"
            return Piece(f"{self.helpers.use(helper)}<{name}>({a.text}, {b.text})", result)
        return Piece(f"{self.helpers.use(f'tj_{op}')}<{name}>({a.text}, {b.text})", result)

    def _shift(self, op: str, a: Piece, b: Piece, dtype: DType) -> Piece:
        assert a.interval is not None and b.interval is not None
        exact = (ranges.shl if op == "shl" else ranges.shr)(a.interval, b.interval)
        result = ranges.clip(exact, dtype) if exact else ranges.full(dtype)
        name = cxx.ctype(dtype)
        if not b.interval.within(0, dtype.bits - 1):
            unsigned = op == "shr" and dtype.kind == "uint"
            helper = self.helpers.use("tj_ushr" if unsigned else f"tj_{op}")
            return Piece(f"{helper}<{name}>({a.text}, (u64){b.text})", result)
        if op == "shr":
            return Piece(f"({name})({a.text} >> {b.text})", result)
        return Piece(
            f"({name})(({'u64' if dtype.bits == 64 else 'u32'}){a.text} << {b.text})", result
        )

    def _select(self, e: nodes.Select) -> Piece:
        condition, a, b = (self.piece(x) for x in (e.condition, e.if_true, e.if_false))
        name = cxx.type_name(e.type)
        text = f"({condition.text} ? {a.text} : {b.text})"
        if name in ("i8", "i16", "u8", "u16", "f16", "bf16"):
            text = f"({name}){text}"
        if a.interval is None or b.interval is None:
            return Piece(text)
        return Piece(text, ranges.union(a.interval, b.interval))

    # --- conversions

    def _cast(self, e: nodes.Cast) -> Piece:
        operand = self.piece(e.operand)
        assert isinstance(e.operand.type, nodes.ScalarType)
        source, target = e.operand.type.dtype, e.type.dtype
        if source == target:
            return operand
        if target.is_float:
            return Piece(self._to_float(operand.text, source, target, e.span))
        if source.is_float:
            return Piece(
                self._float_to_int(operand.text, source, target, e.span), ranges.full(target)
            )
        assert operand.interval is not None
        if target.kind == "bool":
            return Piece(f"({operand.text} != 0)", Interval(0, 1))
        interval = ranges.clip(operand.interval, target)
        if interval.value is not None:
            return Piece(cxx.literal(interval.value, target), interval)
        return Piece(f"({cxx.ctype(target)}){operand.text}", interval)

    def _float_to_int(self, text: str, source: DType, target: DType, span: Span | None) -> str:
        if source.bits < 32:
            text, source = self._widened(text, source, span), dtypes.float32
        if target.kind == "bool":
            return f"({text} != {'0.0f' if source.bits == 32 else '0.0'})"
        return f"{self.helpers.use(f'tj_f{source.bits}_{cxx.ctype(target)}')}({text})"

    def _widened(self, text: str, source: DType, span: Span | None) -> str:
        """A float narrower than 32 bits as float32, exactly."""
        if source.bits == 16:
            return self.as_f32(text, source)
        if source == dtypes.float8_e4m3fn:
            return f"{self.helpers.use('tj_e4m3_f32')}({text})"
        if source == dtypes.float8_e5m2:
            return f"{self.helpers.use('tj_e5m2_f32')}({text})"
        raise unsupported(f"no conversion from {source}", span)

    def _to_float(self, text: str, source: DType, target: DType, span: Span | None) -> str:
        if target.bits >= 32:
            if source.is_float and source.bits < 32:
                text, source = self._widened(text, source, span), dtypes.float32
            if source == target:
                return text
            return f"({cxx.ctype(target)}){text}"
        if target.bits == 16:
            return self._to_half(text, source, target, span)
        if target in (dtypes.float8_e4m3fn, dtypes.float8_e5m2):
            if source.bits == 64:
                wide = self._to_float(text, source, dtypes.float64, span)
                text = f"{self.helpers.use('tj_f64_odd')}({wide})"
            else:
                text = self._to_float(text, source, dtypes.float32, span)
            helper = "tj_f32_e4m3" if target == dtypes.float8_e4m3fn else "tj_f32_e5m2"
            return f"{self.helpers.use(helper)}({text})"
        raise unsupported(f"no conversion to {target}", span)

    def _to_half(self, text: str, source: DType, target: DType, span: Span | None) -> str:
        name = "f16" if target.exponent_bits == 5 else "bf16"
        if source.kind == "bool":
            return f"(u16)({text} ? {'0x3c00' if name == 'f16' else '0x3f80'} : 0)"
        if source.is_integer:
            kind = "i64" if source.kind == "int" else "u64"
            return f"{self.helpers.use(f'tj_{kind}_{name}')}(({kind}){text})"
        if source.bits == 64:
            return f"{self.helpers.use(f'tj_f64_{name}')}({text})"
        return self.from_f32(
            text if source.bits == 32 else self._widened(text, source, span), target
        )

    def _bitcast(self, e: nodes.Bitcast) -> Piece:
        operand = self.piece(e.operand)
        source, target = cxx.type_name(e.operand.type), cxx.type_name(e.type)
        interval = None
        if isinstance(e.type, nodes.ScalarType) and not e.type.dtype.is_float:
            interval = ranges.full(e.type.dtype)
        return Piece(cxx.reinterpret(operand.text, source, target), interval)


def hardware_name(name: str) -> str:
    """The C++ variable that holds a ``HardwareId``."""
    return "tj_" + name.replace(".", "_")


def unsupported(what: str, span: Span | None) -> InternalError:
    """Well-formed checked IR never gets here."""
    error = fault(InternalError, "cuda/unsupported", what, span)
    assert isinstance(error, InternalError)
    return error


def _wrapped(symbol: str, a: Piece, b: Piece, exact: Interval, dtype: DType) -> str:
    """``a symbol b`` modulo the type's width, without overflow of a signed C++ type."""
    name = cxx.ctype(dtype)
    if dtype.bits >= 32 and (dtype.kind == "uint" or exact.fits(dtype)):
        return f"({a.text} {symbol} {b.text})"
    wide = "u64" if dtype.bits == 64 else "u32"
    return f"({name})(({wide}){a.text} {symbol} ({wide}){b.text})"


def _mapped(interval: Interval, dtype: DType, function: Callable[[int], int]) -> Interval:
    ends = sorted((function(interval.low), function(interval.high)))
    return ranges.clip(Interval(*ends), dtype)


def _float_unary(op: str, text: str, dtype: DType) -> str:
    if dtype.bits == 16:
        return f"(u16)({text} ^ 0x8000)" if op == "neg" else f"(u16)({text} & 0x7fff)"
    if op == "neg":
        return f"(-{text})"
    return f"fabsf({text})" if dtype.bits == 32 else f"fabs({text})"
