"""Tensor memory in kernels: what is declared and where it lies, and what is refused."""

from __future__ import annotations

import re

import pytest

from tests import roundtrip
from tests.frontend.kernels import make, tensor
from tilejit import dtypes, frontend, layout
from tilejit.errors import SyntaxUnsupported
from tilejit.ir import build, walk
from tilejit.ir import nodes as ir
from tilejit.ir.signature import Signature

ROWS = 'layout="(128,64):(1@TLane,1@TCol)"'


def lowered(*lines: str) -> ir.Function:
    body = "\n".join(f"            {line}" for text in lines for line in text.splitlines())
    kernel = make(f"""
        def k(out):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
            slot = T.alloc_shared((1,), "uint32")
            t = T.cuda.thread_idx("x")
            f = out[t]
            d = T.cuda.decl_tmem(slot[0], (128, 64), "float32", {ROWS})
{body}
    """)
    return frontend.lower(kernel, Signature((("out", tensor("float32", 128)),), "sm_100a")).function


def declared(function: ir.Function) -> list[ir.DeclTmem]:
    return [s for s in walk.statements(function.body) if isinstance(s, ir.DeclTmem)]


def operands(function: ir.Function) -> list[ir.Expr]:
    """Those of the raw instructions."""
    calls = [n for n in walk.descend(function.body) if isinstance(n, ir.Call) and n.op == "ptx"]
    return [item for call in calls for item in call.args[1].items]


def test_a_tensor_is_declared_where_the_word_says() -> None:
    function = lowered(
        'e = T.cuda.decl_tmem(d.ptr_to([32, 8]), (32, 8), "float16", layout="(32,8):(1@TLane,2@TCol)")',
        'g = T.cuda.decl_tmem(0, (8,), T.uint8, layout="(8):(1@TCol) + R[4:32@TLane]")',
    )
    roundtrip.check(function)
    d, e, g = declared(function)
    assert isinstance(d.address, ir.Load) and d.address.view.buffer.name == "slot"
    kind = ir.TensorType(
        (128, 64), dtypes.float32, layout.parse("(128,64):(1@TLane,1@TCol)"), "tmem", 4
    )
    assert d.buffer == ir.Var("d", kind)
    offset = build.const((32 << 16) + 8, dtypes.int64)
    pointer = ir.Address(d.buffer, offset, ir.PointerType("tmem"))
    assert e.address == ir.Bitcast(pointer, ir.UINT32)
    assert g.address == build.const(0, dtypes.uint32)
    assert isinstance(g.buffer.type, ir.TensorType)
    assert g.buffer.type.layout == layout.parse("(8):(1@TCol) + R[4:32@TLane]")


def test_addresses_count_lanes_and_columns() -> None:
    function = lowered(
        "part = d.sub[64:, 16:48]",
        'shift = T.ptx["tcgen05.shift.cta_group::1.down"]',
        "shift(part.ptr_to([0, 1]))",
        "shift(part.permute(1, 0).ptr_to([1, 0]))",
        'shift(part.view("bfloat16").ptr_to([0, 2]))',
        "shift(part.ptr_to([0, t]))",
        "shift(T.cuda.get_tmem_addr(part.ptr_to(), 1, -2))",
        "shift(T.cuda.get_tmem_addr(slot[0], t, T.uint32(t)))",
        "shift(slot[0])",
    )
    d = declared(function)[0].buffer
    place = (64 << 16) + 17
    *known, moved, back, varying, word = operands(function)
    for pointer in known:
        assert pointer == ir.Address(d, build.index(place), ir.PointerType("tmem"))
    assert isinstance(moved, ir.Address)
    thread = ir.HardwareId("tid.x")
    assert moved.offset_bytes == build.index_add(build.index(thread), place - 1)
    first = build.bitcast(ir.Address(d, build.index(place - 1), ir.PointerType("tmem")), ir.UINT32)
    assert back == build.add(first, build.const((1 << 16) - 2, dtypes.uint32))
    row = build.cast(thread, dtypes.uint32)
    sum_ = build.add(build.shl(row, build.const(16, dtypes.uint32)), row)
    assert isinstance(word, ir.Load) and varying == build.add(word, sum_)


def test_a_name_holds_an_address() -> None:
    function = lowered(
        "at = d.ptr_to([0, 0])",
        "for i in range(4):",
        '    T.ptx["tcgen05.shift.cta_group::1.down"](at)',
        "    at = d.ptr_to([0, 8 * i])",
    )
    roundtrip.check(function)
    assert [p.type for p in operands(function)] == [ir.PointerType("tmem")]


def test_a_declaration_in_a_loop_is_of_its_round() -> None:
    function = lowered(
        "for i in range(4):",
        "    e = T.cuda.decl_tmem(T.cuda.get_tmem_addr(slot[0], 0, 16 * i), (8,), 'uint32', "
        'layout="(8):(1@TCol)")',
        '    T.ptx["tcgen05.shift.cta_group::1.down"](e.ptr_to([1]))',
    )
    (loop,) = [s for s in function.body if isinstance(s, ir.For)]
    assert any(isinstance(s, ir.DeclTmem) for s in loop.body)


def refused(*lines: str) -> str:
    with pytest.raises(SyntaxUnsupported) as caught:
        lowered(*lines)
    (fault,) = caught.value.diagnostics
    return f"{fault.code}: {fault.message} | {dict(fault.notes).get('help', '')}"


DECL = "T.cuda.decl_tmem({}, (128, 64), 'float32', " + ROWS + ")"


@pytest.mark.parametrize(
    "line, message, help_",
    [
        (DECL.format("slot"), "frontend/type: .* a uint32, got a shared view", "tcgen05.alloc wrote there: slot\\[0\\]"),
        (DECL.format("slot.ptr_to([0])"), "frontend/type: .* got a run-time ptr<shared>", "read the word, slot\\[0\\]"),
        (DECL.format("d"), "frontend/type: .* got a tmem view", "d.ptr_to\\(\\[0, 0\\]\\)"),
        (DECL.format("d[0:8, :]"), "frontend/type: .* got a tmem region", "d.ptr_to\\(\\[0, 0\\]\\)"),
        (DECL.format("t"), "frontend/type: .* got a run-time int32", "T.uint32\\(x\\)"),
        (DECL.format("f"), "frontend/type: .* got a run-time float32", ""),
        (DECL.format("-1"), "frontend/type: .* compile-time value -1", ""),
        (DECL.format("1 << 32"), "frontend/type: .* compile-time value 4294967296", ""),
        (DECL.format("True"), "frontend/type: .* compile-time value True", ""),
        ("T.cuda.decl_tmem(slot[0], (128, 64), 'float32')", "frontend/arguments: .*layout", "layout"),
        ("T.cuda.decl_tmem(slot[0], (8, 8), 'float32', layout=None)", "frontend/layout: .* got layout=None", "TLane counts lanes"),
        ("T.cuda.decl_tmem(slot[0], (8, 8), 'float32', layout='default')", "frontend/layout: .* got layout='default'", "TLane counts lanes"),
        ("T.cuda.decl_tmem(slot[0], (8, 8), 'float32', layout='(8,8)')", "frontend/tensor-memory: .* runs over m", "TLane counts lanes"),
        ("T.cuda.decl_tmem(slot[0], (8, 8), 'float32', layout='(8,4):(1@TLane,1@TCol)')", "frontend/layout: .* 32 coordinates, the shape \\(8, 8\\) has 64", "multiply"),
        ("T.cuda.decl_tmem(slot[0], (129,), 'float32', layout='(129):(1@TLane)')", "frontend/tensor-memory: .* reaches TLane 128; tensor memory has 128 lanes", ""),
        ("T.cuda.decl_tmem(slot[0], (1025,), 'float16', layout='(1025):(1@TCol)')", "frontend/tensor-memory: .* reaches TCol 1024; .* 1024 elements of 16 bits", ""),
        ("T.cuda.decl_tmem(slot[0], (4,), 'float64', layout='(4):(1@TCol)')", "frontend/tensor-memory: .* float64 have 64 bits", ""),
        ("T.cuda.decl_tmem(slot[0], (4,), 'float6_e3m2fn', layout='(4):(1@TCol)')", "frontend/tensor-memory: .* have 6 bits", ""),
        ("T.cuda.decl_tmem(slot[0], (t, 8), 'float32', layout='(8,8):(1@TLane,1@TCol)')", "frontend/static", ""),
        ("T.alloc_shared((8, 8), 'float32', layout='(8,8):(1@TLane,1@TCol)')", "frontend/layout: a shared buffer has no lanes", "T.cuda.decl_tmem"),
        ("T.alloc_local((8,), 'float32', layout='(8):(1) + R[2:1@TLane]')", "frontend/layout: a local buffer has no lanes", "T.cuda.decl_tmem"),
        ("out[t] = d[0, 0]", "frontend/element: tensor memory is read and written by", "tcgen05.ld"),
        ("d[0, 0] = f", "frontend/element: tensor memory is read and written by", "d.view\\(4, 32, 64\\), scope"),
        ("d.view('float4_e2m1fn')[0, 0] = f", "frontend/element: tensor memory is read", "tcgen05.ld"),
        ("d.ptr_to([0, 0])[0] = f", "frontend/store: a pointer to tmem memory", "T.cuda.decl_tmem\\(pointer"),
        ("f = d.ptr_to([0, 0]) + 4", "frontend/pointer-arithmetic", "get_tmem_addr\\(pointer, lanes, columns\\)"),
        ("T.ptx['tcgen05.shift.cta_group::1.down'](T.ptx.addr(d.ptr_to(), 4))", "frontend/operand: T.ptx.addr steps in bytes", "get_tmem_addr"),
        ("T.cuda.get_tmem_addr(slot, 0, 0)", "frontend/type: T.cuda.get_tmem_addr takes an address", "slot\\[0\\]"),
        ("T.cuda.get_tmem_addr(slot[0], 128, 0)", "frontend/bounds: .* steps 128 lanes, and there are 128", ""),
        ("T.cuda.get_tmem_addr(slot[0], 0, -512)", "frontend/bounds: .* steps -512 columns, and there are 512", ""),
        ("T.cuda.get_tmem_addr(slot[0], 0, T.int32(512))", "frontend/bounds: .* steps 512 columns", ""),
        ("T.cuda.get_tmem_addr(slot[0], f, 0)", "frontend/type: .* an integer as row, got a run-time float32", ""),
        ("T.cuda.get_tmem_addr(slot[0], 0, 1.0)", "frontend/type: .* an integer as col", ""),
        ("T.cuda.get_tmem_addr(slot[0], 0, d.ptr_to())", "frontend/type: .* an integer as col, got a run-time ptr<tmem>", ""),
    ],
)  # fmt: skip
def test_refusals(line: str, message: str, help_: str) -> None:
    found = refused(line)
    assert re.search(f"^{message}.* \\| .*{help_}", found, re.DOTALL), found


def test_a_tensor_ends_with_its_branch() -> None:
    found = refused(
        "if t < 4:",
        f"    e = {DECL.format('slot[0]')}",
        "else:",
        "    return",
        'T.ptx["tcgen05.shift.cta_group::1.down"](e.ptr_to())',
    )
    assert found.startswith("frontend/tmem-scope: e is declared in tensor memory inside a branch")


@pytest.mark.parametrize(
    "line, message",
    [
        ("d.sub[t, :]", r"its warp's own as a region .* D\[warp, …\], .*get_tmem_addr"),
        ("d.ptr_to([t, 0])", "get_tmem_addr"),
        ("d.view('float16').ptr_to([0, 1])", "only columns have addresses"),
        ("d.view('float16').ptr_to([0, t])", "only columns have addresses"),
        ("d.view('uint64')", "uint64 have 64 bits"),
        ("d.view(64, layout='(64)')", "runs over m"),
        ("d.view(129, layout='(129):(1@TLane)')", "needs 129 lanes"),
    ],
)
def test_views_that_cannot_be(line: str, message: str) -> None:
    with pytest.raises(SyntaxUnsupported, match=message):
        lowered(line)
