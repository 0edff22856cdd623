"""The C header of a compiled kernel: its entry, constants, arguments, and how to launch it through the driver.

A program includes it beside the cubin and needs nothing of tilejit. ``NAME_prepare`` once per loaded function,
then ``NAME_launch`` with a struct of the kernel's parameters; tensor maps are encoded and a grid that depends on
sizes is computed there, as the Python launch does it.

Not here: writing files (``ahead``), expressions (``c_expressions``).
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator

from tilejit import __version__
from tilejit.cli.c_expressions import HELPERS, c_source
from tilejit.ir.nodes import Expr
from tilejit.ir.signature import TensorArg
from tilejit.ir.tensor_map import FORMATS, TensorMapSpec
from tilejit.runtime.plan import AXES, LaunchParam
from tilejit.runtime.saved import DynamicDim, Saved
from tilejit.runtime.tensor_maps import alignment

_C_TYPES = {
    "bool": "uint8_t", "int8": "int8_t", "int16": "int16_t", "int32": "int32_t", "int64": "int64_t",
    "uint8": "uint8_t", "uint16": "uint16_t", "uint32": "uint32_t", "uint64": "uint64_t",
    "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double",
}  # fmt: skip
"""16-bit floats are passed as their bits."""
_KEYWORDS = frozenset((
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case", "catch",
    "char", "char16_t", "char32_t", "char8_t", "class", "co_await", "co_return", "co_yield", "compl", "concept",
    "const", "const_cast", "consteval", "constexpr", "constinit", "continue", "decltype", "default", "delete",
    "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern", "false", "float", "for",
    "friend", "goto", "if", "inline", "int", "linux", "long", "mutable", "namespace", "new", "noexcept", "not",
    "not_eq", "nullptr", "operator", "or", "or_eq", "private", "protected", "public", "register",
    "reinterpret_cast", "requires", "restrict", "return", "short", "signed", "sizeof", "static",
    "static_assert", "static_cast", "struct", "switch", "template", "this", "thread_local", "throw", "true",
    "try", "typedef", "typeid", "typename", "typeof", "typeof_unqual", "union", "unix", "unsigned", "using",
    "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq",
))  # fmt: skip
"""Of C and C++, and what GCC defines."""


def c_name(name: str) -> str:
    """A Python name, or any other text, as a name that C and C++ take."""
    plain = re.sub(r"^[0-9]|[^A-Za-z0-9_]", lambda found: f"u{ord(found[0]):04x}", name)
    return plain + "_" if plain in _KEYWORDS else plain


def c_type(param: LaunchParam) -> str:
    return "CUdeviceptr" if param.kind == "pointer" else _C_TYPES[param.dtype.name]


def size_bytes(param: LaunchParam) -> int:
    return 8 if param.kind == "pointer" else max(1, param.dtype.bits // 8)


def _reads(saved: Saved) -> dict[str, str]:
    """How C reads each number of a launch, by the kernel's name for it."""
    return {
        p.name: f"args->{c_name(p.name)}"
        if p.dtype.is_float
        else f"(int64_t)args->{c_name(p.name)}"
        for p in _numbers(saved)
    }


def _named(saved: Saved) -> dict[str, str]:
    """The same for the JSON file: by its name."""
    return {p.name: c_name(p.name) for p in _numbers(saved)}


def _numbers(saved: Saved) -> Iterator[LaunchParam]:
    """What expressions may read; 16-bit floats, of which C has the bits only, are none."""
    for p in saved.launch_params:
        if p.kind != "pointer" and p.dtype.name not in ("float16", "bfloat16"):
            yield p


def describe(saved: Saved, param: LaunchParam) -> str:
    """What a parameter of the compiled kernel is, in words."""
    name, arg = saved.signature.args[param.arg]
    if param.kind == "size":
        return f"size of dimension {param.dim} of {name}, in elements"
    if param.kind == "stride":
        return f"stride of dimension {param.dim} of {name}, in elements"
    if param.kind == "scalar":
        bits = " (its bits)" if param.dtype.name in ("float16", "bfloat16") else ""
        return f"{param.dtype.name}{bits}"
    assert isinstance(arg, TensorArg)
    shape = ", ".join(
        str(dim.name if isinstance(dim, DynamicDim) else dim)
        for dim in saved.params[param.arg].annotation.shape
    )
    strides = ", ".join("?" if s is None else str(s) for s in arg.strides)
    return f"{arg.dtype.name} ({shape}), strides ({strides}) elements, a multiple of {arg.align_bytes} bytes"  # fmt: skip


def header(saved: Saved, name: str) -> str:
    """The text of ``NAME.h``. ``name``: of the files, a C name."""
    upper = name.upper()
    parts = [
        _introduction(saved, name, upper),
        f"#ifndef {upper}_H\n#define {upper}_H\n\n#include <math.h>\n#include <stdint.h>\n#include <string.h>\n\n"
        "#include <cuda.h>\n",
        _constants(saved, upper),
        _arguments(saved, name),
        HELPERS,
        _prepare(saved, name, upper),
        *(_map_function(saved, name, number) for number in range(len(saved.artifact.tensor_maps))),
        _launch(saved, name, upper),
        f"#endif /* {upper}_H */\n",
    ]
    return "\n".join(parts)


def _introduction(saved: Saved, name: str, upper: str) -> str:
    fields = ", ".join(p.name for p in saved.launch_params)
    grid = "" if saved.launch.grid is not None else ", gx, gy, gz"
    return textwrap.dedent(f"""\
        /* {saved.artifact.kernel} for {saved.artifact.target}, compiled by tilejit {__version__}.
         *
         *     CUlibrary library; CUkernel kernel; CUfunction function;
         *     cuLibraryLoadFromFile(&library, "{name}.cubin", NULL, NULL, 0, NULL, NULL, 0);
         *     cuLibraryGetKernel(&kernel, library, {upper}_ENTRY);
         *     cuKernelGetFunction(&function, kernel);
         *     {name}_prepare(function);
         *     {name}_args args = {{{fields}}};
         *     {name}_launch(function, stream, &args{grid});
         */
    """)


def _constants(saved: Saved, upper: str) -> str:
    fixed = saved.attributes
    rows: list[tuple[str, object]] = [
        ("ENTRY", f'"{saved.artifact.entry}"'),
        ("TARGET", f'"{saved.artifact.target}"'),
        *((f"BLOCK_{a.upper()}", n) for a, n in zip(AXES, fixed.block)),
        ("DYNAMIC_SHARED_BYTES", fixed.dynamic_shared_bytes),
        ("STATIC_SHARED_BYTES", saved.artifact.resources.static_shared_bytes),
        ("REGISTERS", saved.artifact.resources.registers),
    ]
    if fixed.cluster is not None:
        rows += [(f"CLUSTER_{a.upper()}", n) for a, n in zip(AXES, fixed.cluster)]
    return "".join(f"#define {upper}_{key} {value}\n" for key, value in rows)


def _arguments(saved: Saved, name: str) -> str:
    lines = [
        "/* The kernel's parameters in launch order. The driver is given a pointer to each of them, so that the",
        " * struct's own padding means nothing; tensor maps follow behind them. */",
        f"typedef struct {name}_args {{",
        *(f"    {c_type(p)} {c_name(p.name)}; /* {describe(saved, p)} */" for p in saved.launch_params),
    ]  # fmt: skip
    if not saved.launch_params:
        lines.append("    char none;")
    return "\n".join([*lines, f"}} {name}_args;\n"])


def _prepare(saved: Saved, name: str, upper: str) -> str:
    fixed = saved.attributes
    lines = [
        "/* Once for each loaded function, before its first launch. */",
        f"static inline CUresult {name}_prepare(CUfunction function)",
        "{",
        "    CUresult result = CUDA_SUCCESS;",
    ]
    if fixed.dynamic_shared_bytes:
        lines += [
            "    result = cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,",
            f"                                {upper}_DYNAMIC_SHARED_BYTES);",
        ]
    if fixed.cluster is not None and math.prod(fixed.cluster) > 8:
        lines += [
            "    if (result == CUDA_SUCCESS)",
            "        result = cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);",
        ]
    return "\n".join([*lines, "    (void)function;", "    return result;", "}\n"])


def _number(saved: Saved, number: int | Expr) -> str:
    return str(number) if isinstance(number, int) else c_source(number, _reads(saved))


def _map_function(saved: Saved, name: str, number: int) -> str:
    """Encodes one tensor map. Along dimensions of one element, where no stride is taken, it is the least."""
    spec = saved.artifact.tensor_maps[number]
    rank = len(spec.dims)
    align = alignment(spec)
    sizes = [f"(cuuint64_t)({_number(saved, n)})" for n in spec.dims]
    strides = [
        f"sizes[{d}] == 1 ? {align} : (cuuint64_t)({_number(saved, n)})"
        for d, n in enumerate(spec.strides_bytes, 1)
    ] or ["16"]
    return "\n".join(
        [
            f"/* Tensor map {number}: of {spec.buffer}, innermost dimension first. */",
            f"static inline CUresult {name}_encode_map{number}(CUtensorMap *map, const {name}_args *args)",
            "{",
            f"    const cuuint64_t sizes[{rank}] = {{{', '.join(sizes)}}};",
            f"    const cuuint64_t strides_bytes[{len(strides)}] = {{{', '.join(strides)}}};",
            f"    const cuuint32_t box[{rank}] = {{{', '.join(map(str, spec.box))}}};",
            f"    const cuuint32_t steps[{rank}] = {{{', '.join(map(str, spec.element_strides))}}};",
            f"    void *start = (void *)(uintptr_t)(args->{c_name(spec.buffer)} + "
            f"(CUdeviceptr)({_number(saved, spec.offset_bytes)}));",
            f"    return cuTensorMapEncodeTiled(map, (CUtensorMapDataType){FORMATS[spec.format].code}, {rank}, start, "
            "sizes, strides_bytes, box, steps,",
            f"                                  (CUtensorMapInterleave){spec.interleave}, "
            f"(CUtensorMapSwizzle){spec.swizzle}, (CUtensorMapL2promotion){spec.l2_promotion},",
            f"                                  (CUtensorMapFloatOOBfill){spec.oob_fill});",
            "}\n",
        ]
    )


def map_facts(saved: Saved, spec: TensorMapSpec) -> dict[str, object]:
    """The fields of a tensor map for the JSON file; expressions are C over the parameters' names."""
    names = _named(saved)

    def text(number: int | Expr) -> int | str:
        return number if isinstance(number, int) else c_source(number, names)

    return {
        "tensor": spec.buffer, "offset_bytes": text(spec.offset_bytes), "format": spec.format,
        "sizes": [text(n) for n in spec.dims], "strides_bytes": [text(n) for n in spec.strides_bytes],
        "box": spec.box, "element_strides": spec.element_strides, "interleave": spec.interleave,
        "swizzle": spec.swizzle, "l2_promotion": spec.l2_promotion, "oob_fill": spec.oob_fill,
    }  # fmt: skip


def grid_texts(saved: Saved) -> list[str] | None:
    """The grid's three extents as C over the parameters' names; None: the caller's."""
    if saved.launch.grid is None:
        return None
    texts = [c_source(e, _named(saved)) for e in saved.launch.grid]
    return [*texts, "1", "1"][: len(AXES)]


def _launch(saved: Saved, name: str, upper: str) -> str:
    own = saved.launch.grid is not None
    given = "" if own else ", unsigned grid_x, unsigned grid_y, unsigned grid_z"
    bound = saved.launch.grid_bound
    lines = [
        f"/* At most {bound[0]} x {bound[1]} x {bound[2]} CTAs; none is no launch. */",
        f"static inline CUresult {name}_launch(CUfunction function, CUstream stream, const {name}_args *args{given})",
        "{",
        *(f"    {line}" for line in _launch_lines(saved, name, upper, own)),
        "}\n",
    ]
    return "\n".join(lines)


def _launch_lines(saved: Saved, name: str, upper: str, own: bool) -> Iterator[str]:
    maps = range(len(saved.artifact.tensor_maps))
    attributes = list(_attributes(saved, upper))
    bound = saved.launch.grid_bound
    yield "CUlaunchConfig config;"
    if attributes:
        yield f"CUlaunchAttribute attributes[{len(attributes)}];"
    for number in maps:
        yield f"CUtensorMap map{number};"
    if maps:
        yield "CUresult result;"
    parameters = [f"(void *)&args->{c_name(p.name)}" for p in saved.launch_params]
    parameters += [f"&map{number}" for number in maps]
    yield f"void *parameters[] = {{{', '.join(parameters) or 'NULL'}}};"
    for axis, extent in zip(AXES, _extents(saved, own)):
        yield f"const int64_t g{axis} = {extent};"
    yield "(void)args;"
    yield "if (gx == 0 || gy == 0 || gz == 0)"
    yield "    return CUDA_SUCCESS;"
    checks = [f"g{a} < 0 || g{a} > INT64_C({most})" for a, most in zip(AXES, bound)]
    yield f"if ({' || '.join(checks)})"
    yield "    return CUDA_ERROR_INVALID_VALUE;"
    for number in maps:
        yield f"result = {name}_encode_map{number}(&map{number}, args);"
        yield "if (result != CUDA_SUCCESS)"
        yield "    return result;"
    yield "memset(&config, 0, sizeof config);"
    for axis in AXES:
        yield f"config.gridDim{axis.upper()} = (unsigned)g{axis};"
    for axis in AXES:
        yield f"config.blockDim{axis.upper()} = {upper}_BLOCK_{axis.upper()};"
    yield f"config.sharedMemBytes = {upper}_DYNAMIC_SHARED_BYTES;"
    yield "config.hStream = stream;"
    if attributes:
        yield "memset(attributes, 0, sizeof attributes);"
        for place, (kind, fields) in enumerate(attributes):
            yield f"attributes[{place}].id = CU_LAUNCH_ATTRIBUTE_{kind};"
            for field, value in fields:
                yield f"attributes[{place}].value.{field} = {value};"
        yield "config.attrs = attributes;"
        yield f"config.numAttrs = {len(attributes)};"
    yield "return cuLaunchKernelEx(&config, function, parameters, NULL);"


def _extents(saved: Saved, own: bool) -> list[str]:
    if not own:
        return [f"grid_{a}" for a in AXES]
    assert saved.launch.grid is not None
    return [*(c_source(e, _reads(saved)) for e in saved.launch.grid), "1", "1"][: len(AXES)]


def _attributes(saved: Saved, upper: str) -> Iterator[tuple[str, list[tuple[str, object]]]]:
    fixed = saved.attributes
    if fixed.cluster is not None:
        yield (
            "CLUSTER_DIMENSION",
            [(f"clusterDim.{a}", f"{upper}_CLUSTER_{a.upper()}") for a in AXES],
        )
    if fixed.cooperative:
        yield "COOPERATIVE", [("cooperative", 1)]
    if fixed.programmatic_stream_serialization:
        yield "PROGRAMMATIC_STREAM_SERIALIZATION", [("programmaticStreamSerializationAllowed", 1)]
