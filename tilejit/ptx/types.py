"""Which scalar types a PTX operand type takes.

The rule of the contract: the scalar type itself, or the bit container (unsigned integer) of equal
width. ``.bN`` takes every type of N bits. Packed types have no scalar type: their container only.

Not here: conversions between types (``cvt`` rows, ``dtypes.promote``).
"""

from __future__ import annotations

from tilejit import dtypes
from tilejit.dtypes import DType
from tilejit.ptx.forms import TYPE_BITS, Form, OperandSpec

_SCALAR: dict[str, DType] = {
    **{f"u{n}": dtypes.BY_NAME[f"uint{n}"] for n in (8, 16, 32, 64)},
    **{f"s{n}": dtypes.BY_NAME[f"int{n}"] for n in (8, 16, 32, 64)},
    "f16": dtypes.float16,
    "bf16": dtypes.bfloat16,
    "f32": dtypes.float32,
    "f64": dtypes.float64,
    "tf32": dtypes.float32,
    "pred": dtypes.bool_,
}
_WHOLE_BITS = frozenset({8, 16, 32, 64})


def scalar_type(ptx_type: str) -> DType | None:
    """The one scalar type that ``ptx_type`` computes with: None for ``.bN`` and packed types."""
    return _SCALAR.get(ptx_type)


def container_type(ptx_type: str) -> DType | None:
    """The bit container of a register of ``ptx_type``; None for ``pred`` and 128 bits."""
    bits = TYPE_BITS[ptx_type]
    return dtypes.container(bits) if bits in _WHOLE_BITS else None


def needs_byte_register(form: Form, spec: OperandSpec) -> bool:
    """Whether ``spec`` must be a ``.b8`` register, which inline assembly has no constraint for.

    Elsewhere an 8-bit operand sits in a 16-bit register. A temporary bridges the two:
    ``mov.b16 {t, _}, h`` into and ``cvt.u16.u8 h, t`` out of it.
    """
    return (
        spec.kind == "reg" and spec.bits == 8 and form.mnemonic == "mov"
    ) or spec.type == "e2m1x2"


def breaks_when_zero(form: Form, spec: OperandSpec) -> bool:
    """Whether the assembler dies, and the process with it, where it finds that ``spec`` is always 0.

    Nothing the assembler can compute may reach such a register: ``mbarrier.init``'s count (NVRTC 13.0).
    """
    return form.family == "mbarrier" and form.modifiers[0] == "init" and spec.name == "count"


def takes_float_register(form: Form, spec: OperandSpec) -> bool:
    """Whether a float32 or float64 value may be passed to ``spec`` in a float register.

    A bit register of the same width is right everywhere. A float register is not: before sm_100
    ``ld.global.u32`` and ``cvt.rna.tf32.f32`` refuse one as their destination, for example.
    """
    if spec.type in ("f32", "f64"):
        return True
    moves_bits = form.mnemonic in ("ld", "st", "mov") and spec.type in ("b32", "b64")
    return moves_bits and {"b32", "b64", "f32", "f64"}.issuperset(form.modifiers[-1:])


def accepts(spec: OperandSpec, dtype: DType) -> bool:
    """Whether one register (or memory element) of ``spec`` may be of type ``dtype``.

    An immediate takes any integer. An address operand is judged by the element it points at; a
    128-bit operand takes nothing, because no scalar type is that wide.
    """
    if spec.kind == "imm":
        return dtype.is_integer
    if spec.kind == "pred":
        return dtype == dtypes.bool_
    if spec.kind == "map":
        return True  # the family says which elements a map may have
    if spec.type[0] == "b" and spec.type[1:].isdigit():
        return dtype.bits == spec.bits
    return dtype in (scalar_type(spec.type), container_type(spec.type))


def stored_as(spec: OperandSpec) -> str:
    """The element type of a register tile that such a register is an element of."""
    if spec.kind == "pred":
        return dtypes.bool_.name
    element = scalar_type(spec.type) or container_type(spec.type)
    return "uint32" if element is None else element.name


def describe(spec: OperandSpec) -> str:
    """What ``spec`` takes, for messages: ``four float32 or uint32 registers (.f32)``."""
    if spec.kind == "imm":
        return "an integer literal" + (f", {values_text(spec.values)}" if spec.values else "")
    if spec.kind == "pred":
        return "a bool (predicate register)"
    if spec.kind == "map":
        return f"a tensor map and {_count(spec.lanes)} int32 coordinate{'s' * (spec.lanes > 1)}"
    if spec.kind == "addr":
        space = f"a {spec.space} address" if spec.space else "an address"
        return f"{space} of {_elements(spec)}"
    return f"{_count(spec.lanes)} {_element(spec)} register{'s' * (spec.lanes > 1)} (.{spec.type})"


def values_text(values: range | tuple[int, ...]) -> str:
    """What a literal may be: ``24 to 256 in steps of 8``."""
    if isinstance(values, tuple):
        return " or ".join(map(str, values))
    if len(values) <= 2:
        return " or ".join(map(str, values))
    steps = "" if values.step == 1 else f" in steps of {values.step}"
    return f"{values[0]} to {values[-1]}{steps}"


def _elements(spec: OperandSpec) -> str:
    return f"{_count(spec.lanes)} {_element(spec)} element{'s' * (spec.lanes > 1)} (.{spec.type})"


def _element(spec: OperandSpec) -> str:
    scalar, container = scalar_type(spec.type), container_type(spec.type)
    if spec.type[0] == "b" and spec.type[1:].isdigit():
        return f"{spec.bits}-bit"
    names = dict.fromkeys(d.name for d in (scalar, container) if d is not None)
    return " or ".join(names)


def _count(lanes: int) -> str:
    return {1: "one", 2: "two", 4: "four", 8: "eight"}.get(lanes, str(lanes))
