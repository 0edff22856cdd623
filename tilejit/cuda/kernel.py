"""A checked function as one header-free CUDA C++ source.

Two passes over the body: the first records how register tiles are accessed, the second writes text.
The text depends on the function and its steps only. Compile it with ``runtime.nvrtc``, whose options
(no contraction of multiply and add, IEEE division) it relies on.

Not here: launching, encoding tensor maps.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilejit.cuda import cxx
from tilejit.cuda.body import Body, CheckedProgram
from tilejit.cuda.registers import Registers
from tilejit.cuda.scalars import hardware_name
from tilejit.cuda.writer import Names, Writer, identifier
from tilejit.ir import nodes, walk
from tilejit.ir.tensor_map import MAP_ALIGN_BYTES, MAP_BYTES, TensorMapSpec
from tilejit.tile.family import Issue, Variable
from tilejit.tile.family import Registers as RegisterGroup


@dataclass(frozen=True, slots=True)
class Source:
    """Generated text and what launching it needs.

    ``entry``: the kernel's symbol. ``params``: names in launch order; a buffer is a 64-bit address, a
    scalar its dtype (float16 and bfloat16 as 16 bits). ``dynamic_smem_bytes``: what the launch must
    provide. ``line_files``: files that ``#line`` directives name, in order of appearance.
    ``max_registers``: the per-thread cap the text itself asks for, if any. ``tensor_maps``: parameters
    behind ``params``, each a map of 128 bytes that the launch encodes.
    """

    text: str
    entry: str
    params: tuple[str, ...]
    dynamic_smem_bytes: int
    line_files: tuple[str, ...]
    max_registers: int | None = None
    tensor_maps: tuple[TensorMapSpec, ...] = ()


_MAP_TYPE = f"struct alignas({MAP_ALIGN_BYTES}) tj_tensor_map {{ u8 opaque[{MAP_BYTES}]; }};"
_ROLE_MNEMONICS = frozenset({"wgmma", "setmaxnreg", "tcgen05"})


def emit(checked: CheckedProgram) -> Source:
    """The CUDA C++ source of a checked kernel. Deterministic."""
    function = checked.function
    assigned = frozenset(_assigned(checked, function.body))
    names = Names()
    for param in function.params:
        names[param.name]  # parameters get their plain names first
    registers = Registers()
    Body(checked, assigned, names, registers).block(function.body)
    registers.decide()
    body = Body(checked, assigned, names, registers)
    body.block(function.body)
    return _assemble(body, function, assigned)


def _assigned(checked: CheckedProgram, block: nodes.Block) -> set[str]:
    """Variables that change after their declaration."""
    found: set[str] = set()
    for statement in block:
        if isinstance(statement, nodes.Assign):
            found.add(statement.var.name)
        elif isinstance(statement, nodes.Declare):
            if statement.value is None:
                found.add(statement.var.name)
        elif isinstance(statement, nodes.If):
            found |= _assigned(checked, statement.then) | _assigned(checked, statement.orelse)
        elif isinstance(statement, (nodes.For, nodes.While)):
            found |= _assigned(checked, statement.body)
        elif isinstance(statement, nodes.Evaluate):
            found |= _assigned_by_call(checked, statement.call)
    return found


def _assigned_by_call(checked: CheckedProgram, call: nodes.Call) -> set[str]:
    found: set[str] = set()
    if call.op == "ptx":
        for step in checked.steps(call):
            if isinstance(step, Issue):
                for operand in step.operands:
                    if isinstance(operand, RegisterGroup):
                        found |= {i.var.name for i in operand.items if isinstance(i, Variable)}
    elif call.op == "tile.ewise":
        function = call.args[0]
        assert isinstance(function, nodes.LambdaExpr)
        found = _assigned(checked, function.body)
    return found


# --- the function around the body


def _assemble(body: Body, function: nodes.Function, assigned: frozenset[str]) -> Source:
    entry = f"tile_{identifier(function.name)}"
    lines = [
        f"// {function.name} for {function.target}",
        *cxx.PRELUDE,
        *body.helpers.lines(),
        *body.memory.declare_arena(),
        *([_MAP_TYPE] if body.assembly.tensor_maps else []),
        f'extern "C" __global__ void {_bounds(function.launch)}',
        f"{entry}({_parameters(body, function, assigned)}) {{",
        *(f"  {line}" for line in _entry_lines(body, function)),
    ]
    for name, storage in body.registers.storage.items():
        if storage.hoisted:
            lines += [f"  {line}" for line in _hoisted(body, function, name)]
    return Source(
        "\n".join(lines) + "\n" + body.writer.text() + "}\n",
        entry,
        tuple(var.name for var in function.params),
        max(body.memory.shared_bytes, function.launch.dynamic_smem_bytes or 0),
        tuple(body.writer.files),
        function.launch.max_registers_per_thread,
        tuple(body.assembly.tensor_maps),
    )


def _bounds(launch: nodes.LaunchConfig) -> str:
    if launch.max_registers_per_thread is not None:
        # The compiler takes a register cap or launch bounds, not both.
        bounds = f"__maxnreg__({launch.max_registers_per_thread})"
    else:
        bounds = f"__launch_bounds__({launch.threads}, {launch.min_blocks_per_sm})"
    if launch.cluster is not None:
        x, y, z = (*launch.cluster, 1, 1)[:3]
        bounds += f" __cluster_dims__({x}, {y}, {z})"
    return bounds


def _parameters(body: Body, function: nodes.Function, assigned: frozenset[str]) -> str:
    texts: list[str] = []
    for var in function.params:
        name = body.names[var.name]
        if isinstance(var.type, nodes.TensorType):
            const = "" if var.name in body.memory.written else "const "
            texts.append(f"{const}u8* {name}")
        else:
            const = "" if var.name in assigned else "const "
            texts.append(f"{const}{cxx.type_name(var.type)} {name}")
    for name in body.assembly.tensor_maps.values():
        # In constant memory and never copied: the accelerator reads a map by its address.
        texts.append(f"const __grid_constant__ tj_tensor_map {name}")
    return ", ".join(texts)


def _hoisted(body: Body, function: nodes.Function, name: str) -> list[str]:
    buffer = next(
        s.buffer
        for s in walk.statements(function.body)
        if isinstance(s, nodes.AllocTensor) and s.buffer.name == name
    )
    writer = Writer(indent="")
    body.registers.write_declaration(buffer, writer)
    return writer.text().splitlines()


# --- hardware coordinates, read once at entry


def _entry_lines(body: Body, function: nodes.Function) -> list[str]:
    used = set(body.scalars.hardware_used)
    if used & {"laneid", "warpid", "warpgroupid", "warp_in_warpgroup", "tid_in_warpgroup"}:
        used.add("tid")
    if "warp_in_warpgroup" in used:
        used.add("warpid")
    uniform = bool(body.assembly.mnemonics & _ROLE_MNEMONICS)
    table = _coordinates(function.launch, uniform)
    lines = [
        f"const i32 {hardware_name(name)} = {text};" for name, text in table.items() if name in used
    ]
    lines += [line for name in _CLUSTER_IDS if name in used for line in _special_register(name)]
    return lines + body.memory.arena_address()


def _coordinates(launch: nodes.LaunchConfig, uniform: bool) -> dict[str, str]:
    """``uniform``: warps take roles, so a warp's number is read from its first lane, which lets the
    assembler see that branches on it do not split the warp."""
    x, y, _ = (*launch.block, 1, 1)[:3]
    linear = "(i32)threadIdx.x"
    if launch.threads != x:
        linear = f"(i32)(threadIdx.x + {x} * (threadIdx.y + {y} * threadIdx.z))"

    def of_warp(text: str, whole_groups: bool) -> str:
        broadcast = uniform and whole_groups
        return f"__shfl_sync(0xffffffffu, {text}, 0)" if broadcast else text

    ids = {f"tid.{a}": f"(i32)threadIdx.{a}" for a in "xyz"}
    ids |= {f"ntid.{a}": f"(i32)blockDim.{a}" for a in "xyz"}
    ids |= {f"ctaid.{a}": f"(i32)blockIdx.{a}" for a in "xyz"}
    ids |= {f"nctaid.{a}": f"(i32)gridDim.{a}" for a in "xyz"}
    tid = hardware_name("tid")
    return ids | {
        "tid": linear,
        "laneid": f"{tid} & 31",
        "warpid": of_warp(f"{tid} >> 5", launch.threads % 32 == 0),
        "warpgroupid": of_warp(f"{tid} >> 7", launch.threads % 32 == 0),
        "warp_in_warpgroup": f"{hardware_name('warpid')} & 3",
        "tid_in_warpgroup": f"{tid} & 127",
    }


_CLUSTER_IDS = (
    *(f"{head}.{a}" for head in ("cluster_ctaid", "cluster_nctaid", "clusterid", "nclusterid")
      for a in "xyz"),
    "cluster_ctarank",
)  # fmt: skip


def _special_register(name: str) -> list[str]:
    variable = hardware_name(name)
    return [f'i32 {variable}; asm("mov.u32 %0, %%{name};" : "=r"({variable}));']
