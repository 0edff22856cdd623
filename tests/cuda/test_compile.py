"""NVRTC, cubin facts, occupancy, disassembly, and messages mapped to the user's lines."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cuda.kit import TARGETS
from tilejit.errors import CompileError, InternalError, LaunchError
from tilejit.runtime import elf, nvrtc, sass
from tilejit.runtime.elf import Resources
from tilejit.target import Target

EMPTY = 'extern "C" __global__ void __launch_bounds__(64, 1) k() {}'


def test_version() -> None:
    assert nvrtc.version() >= (13, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_facts_of_a_cubin_agree_with_the_log(target: str) -> None:
    text = (
        'extern "C" __global__ void __launch_bounds__(96, 1) k(int* p) {\n'
        "__shared__ int s[100]; int a[64]; for (int i = 0; i < p[9]; i++) a[p[i] & 63] = i;\n"
        "s[threadIdx.x] = a[p[0] & 63]; __syncthreads(); p[threadIdx.x] = s[p[1]]; }"
    )
    compiled = nvrtc.compile_cubin(text, target, "k")
    r = compiled.resources
    assert f"Used {r.registers} registers" in compiled.log
    assert f"{r.local_bytes} bytes stack frame" in compiled.log and r.local_bytes == 256
    assert r.static_shared_bytes == 400 and r.barriers == 1 and r.max_threads == 96
    assert r.code_bytes > 0 and compiled.warnings == ()
    assert f".target {target}" in compiled.ptx


def test_spills_are_warnings() -> None:
    body = "".join(f"v{i} += v{(i + 1) % 60} * p[{i}];" for i in range(60))
    text = (
        'extern "C" __global__ void __maxnreg__(24) k(float* p) {'
        + "".join(f"float v{i} = p[{i + 100}];" for i in range(60))
        + f'for (int j = 0; j < 9; j++) {{ {body} asm volatile(""::: "memory"); }}'
        + "".join(f"p[{i}] = v{i};" for i in range(60)) + "}"
    )  # fmt: skip
    compiled = nvrtc.compile_cubin(text, "sm_90a", "k")
    assert compiled.resources.registers <= 24 and compiled.resources.spill_store_bytes > 0
    (warning,) = compiled.warnings
    assert warning.code == "nvrtc/spill" and "bytes" in warning.message


def test_ignored_setmaxnreg_is_a_warning_at_its_line() -> None:
    text = (
        'extern "C" __global__ void __launch_bounds__(128) k() {\n'
        '#line 12 "/user/gemm.py"\n'
        'asm volatile("setmaxnreg.dec.sync.aligned.u32 24; // tilejit:op=1 /user/gemm.py:12" ::);\n}'
    )
    compiled = nvrtc.compile_cubin(text, "sm_90a", "k")
    (warning,) = compiled.warnings
    assert warning.code == "nvrtc/C7508" and "setmaxnreg" in warning.message


def test_cxx_errors_name_the_users_line() -> None:
    text = 'extern "C" __global__ void k(int n) {\n#line 41 "/user/a b.py"\n  int x = missing_;\n}'
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(text, "sm_90a", "k")
    (fault,) = caught.value.diagnostics
    assert fault.code == "nvrtc/cxx" and "missing_" in fault.message
    assert fault.span is not None and (fault.span.file, fault.span.line) == ("/user/a b.py", 41)
    assert ("where", "generated: int x = missing_;") in fault.notes


def test_assembler_errors_name_the_users_line() -> None:
    text = (
        'extern "C" __global__ void k(int n) {\n'
        'asm volatile("mov.b32 %0, %0; // tilejit:op=1 /user/k.py:7" : "+r"(n));\n'
        'asm volatile("add.f32 %0, %0, bad; // tilejit:op=2 /user/k.py:8" : "+r"(n));\n}'
    )
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(text, "sm_90a", "k")
    fault = caught.value.diagnostics[0]
    assert fault.code == "nvrtc/ptxas"
    assert fault.span is not None and (fault.span.file, fault.span.line) == ("/user/k.py", 8)
    assert (
        "add.f32" in dict(fault.notes)["where"] and "tilejit:op" not in dict(fault.notes)["where"]
    )


def test_a_wrong_option_is_told() -> None:
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(EMPTY, "sm_90a", "k", ["--no-such-option"])
    assert "no-such-option" in caught.value.render()


def test_threads_compile_the_same_bytes() -> None:
    expected = nvrtc.compile_cubin(EMPTY, "sm_90a", "k").cubin
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: nvrtc.compile_cubin(EMPTY, "sm_90a", "k"), range(6)))
    assert {c.cubin for c in found} == {expected}
    assert all("Used" in c.log for c in found)


def test_a_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    class Absent:
        def __getattr__(self, name: str) -> object:
            def call(*_: object) -> object:
                raise RuntimeError("libnvrtc.so not found")

            return call

    monkeypatch.setattr(nvrtc, "_bindings", lambda: Absent())
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(EMPTY, "sm_90a", "k")
    assert caught.value.codes == ("nvrtc/missing",) and "pip install" in caught.value.render()


def test_not_a_cubin() -> None:
    with pytest.raises(InternalError):
        elf.read(b"nothing", "k")
    cubin = nvrtc.compile_cubin(EMPTY, "sm_90a", "k").cubin
    with pytest.raises(InternalError):
        elf.read(cubin, "other")


@pytest.mark.parametrize(
    ("target", "registers", "threads", "shared", "blocks", "by"),
    [
        ("sm_90a", 32, 256, 0, 8, "threads"),
        ("sm_90a", 33, 256, 0, 6, "registers"),
        ("sm_90a", 168, 384, 0, 1, "registers"),
        ("sm_90a", 32, 128, 75 * 1024, 3, "shared memory"),
        ("sm_90a", 32, 128, 75 * 1024 + 1, 2, "shared memory"),
        ("sm_90a", 16, 32, 0, 32, "blocks"),
        ("sm_120a", 32, 128, 0, 12, "threads"),
        ("sm_80", 32, 1024, 0, 2, "threads"),
    ],
)
def test_occupancy(
    target: str, registers: int, threads: int, shared: int, blocks: int, by: str
) -> None:
    resources = Resources(registers, 0, 0, 0, 0, 0, 0, threads)
    found = elf.occupancy(resources, Target.parse(target), threads, shared)
    assert (found.blocks_per_sm, found.limited_by) == (blocks, by)
    assert found.warps == blocks * threads // 32


def test_sass_tries_the_tools_it_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(
        sass, "_tools", lambda: iter([("nvdisasm", "/bin/false"), ("cuobjdump", "/bin/echo")])
    )
    assert "-sass" in sass.disassemble(b"x")
    monkeypatch.setattr(sass, "_tools", lambda: iter([("nvdisasm", "/bin/false")]))
    with pytest.raises(LaunchError) as caught:
        sass.disassemble(b"x")
    assert caught.value.codes == ("sass/failed",) and "pip install" in caught.value.render()
    monkeypatch.setattr(sass, "_tools", lambda: iter(()))
    with pytest.raises(LaunchError) as caught:
        sass.disassemble(b"x")
    assert caught.value.codes == ("sass/no-tool",) and "pip install" in caught.value.render()


def test_what_no_thread_can_hold_is_an_error_at_its_line() -> None:
    """One m64n256 in a block of 512 threads, whose registers setmaxnreg raises too late."""
    names = [f"d{i}" for i in range(128)]
    places, outputs = (
        ", ".join(x) for x in ([f"%{i}" for i in range(128)], [f'"+f"({n})' for n in names])
    )
    text = (
        'extern "C" __global__ void __launch_bounds__(512, 1) k(float* p, unsigned long long a) {\n'
        f"float {', '.join(names)};\n"
        f'asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {{{places}}}, %128, %128, 0, 1, 1, 0, '
        f'0; // tilejit:op=1 /user/gemm.py:31" : {outputs} : "l"(a));\n'
        + "".join(f"p[{i}] = {n};" for i, n in enumerate(names)) + "}"
    )  # fmt: skip
    with pytest.raises(CompileError) as caught:
        nvrtc.compile_cubin(text, "sm_90a", "k", ("--diag-suppress=549",))
    (fault,) = caught.value.diagnostics
    assert fault.code == "nvrtc/C7602" and "fewer threads in the block" in fault.message
    assert fault.span is not None and (fault.span.file, fault.span.line) == ("/user/gemm.py", 31)
