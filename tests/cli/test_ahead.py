"""``tilejit compile``: its files, and the C header compiled by gcc and run against a driver that prints: it
launches what the Python launch does. The real ``cuda.h`` is taken where there is one."""

import ctypes
import json
import random
import shutil
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.cli.command import GOOD, tilejit, write  # noqa: F401  (a fixture)
from tests.conftest import need_gpu
from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit
from tests.runtime.launchers import launcher
from tests.runtime.test_tensor_maps import moving, of_sizes, rows
from tilejit.cli import ahead, header
from tilejit.cli.c_expressions import HELPERS, c_source
from tilejit.errors import LaunchError
from tilejit.ir import nodes as ir
from tilejit.ir.tensor_map import FORMATS
from tilejit.language import T
from tilejit.runtime import hostexpr, saved

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
STUB = Path(__file__).parent
STRICT = ("-Wall", "-Wextra", "-Werror", "-pedantic")


def run_c(folder: Path, text: str) -> str:
    source, program = folder / "main.c", folder / "main"
    source.write_text(text)
    command = ["gcc", "-std=c11", *STRICT, f"-I{STUB}", f"-I{folder}", str(source), "-o", str(program), "-lm"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True).stdout


# --- the files


def test_files_and_what_the_json_says(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    path = write(tmp_path, GOOD)
    flags = ("--dim", "N=32", "--dtype", "float32", "--const", "block=32", "--target", "sm_90a")
    ran = tilejit("compile", f"{path}:shown", "-o", tmp_path / "new" / "out", "--name", "plus-one", *flags)  # fmt: skip
    assert ran.code == 0, ran.err
    folder = tmp_path / "new" / "out"
    assert sorted(p.name for p in folder.iterdir()) == [
        f"plusu002done.{suffix}" for suffix in ("cubin", "h", "json", "tile")
    ]
    facts = json.loads((folder / "plusu002done.json").read_text())
    assert facts["target"] == "sm_90a" and facts["reads"] == facts["writes"] == ["X"]
    assert facts["launch"]["block"] == [32, 1, 1]
    assert facts["launch"]["grid"] == ["M", "1", "1"]
    rows = [(p["name"], p["kind"], p["argument"], p["c_type"], p["size_bytes"]) for p in facts["parameters"]]  # fmt: skip
    assert rows[:2] == [
        ("X", "pointer", "X", "CUdeviceptr", 8), ("M", "size", "X", "int64_t", 8),
    ]  # fmt: skip
    assert facts["parameters"][0]["what"] == "float32 (M, 32), strides (32, 1) elements, a multiple of 16 bytes"  # fmt: skip
    assert facts["signature"][1] == {"name": "block", "kind": "constant", "value": 32}
    loaded = tile.load(folder / "plusu002done.tile")
    assert loaded.asm["cubin"] == (folder / "plusu002done.cubin").read_bytes()
    assert f'PLUSU002DONE_ENTRY "{facts["entry"]}"' in (folder / "plusu002done.h").read_text()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("copy", "copy"), ("2x", "u0032x"), ("é.b", "u00e9u002eb"), ("explicit", "explicit_")],
)
def test_names_are_those_that_c_takes(name: str, expected: str) -> None:
    assert header.c_name(name) == expected


def test_one_set_of_files_per_example(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    path = write(tmp_path, GOOD)
    written = tilejit("compile", f"{path}:shown", "-o", tmp_path, "--target=sm_90a", "--json").data
    assert [(row["case"], Path(row["files"][0]).name) for row in written] == [
        ("example 1", "shown_1.cubin"), ("example 2", "shown_2.cubin"),
    ]  # fmt: skip
    (tmp_path / "file").write_text("")
    ran = tilejit("compile", f"{path}:shown", "-o", tmp_path / "file")
    assert ran.code == 2 and "cannot write to" in ran.err


# --- the header


def scale(
    X: T.Tensor((T.dynamic("M"), "N"), "float32"),
    Y: T.Tensor((T.dynamic("M"), T.dynamic("K"))) | None,
    int: T.float32,
    n: T.int16,
    h: T.bfloat16,
    on: bool,
    d: T.float64,
    step: T.constexpr = 4,
): ...


def of_scalars(v: dict[str, ir.Var]) -> tuple[ir.Expr, ...]:
    """(M + 1) // 2, n % 5 by size: what depends on a launch."""
    one = ir.Binary("add", v["M"], ir.Const(1, ir.INT64), ir.INT64)
    half = ir.Binary("floordiv", one, ir.Const(2, ir.INT64), ir.INT64)
    wide = ir.Cast(v["n"], ir.INT64)
    return half, ir.Binary("mod", wide, ir.Const(5, ir.INT64), ir.INT64)


CLUSTER = dict(cooperative=True, programmatic_stream_serialization=True)


def expected(launched: Any, sizes: list[int]) -> list[str]:
    """What the stub prints for a recorded launch."""
    fixed = launched.fixed
    lines = []
    for m in launched.maps:
        dims = "".join(f" {n}/{b}/{s}" for n, b, s in zip(m.dims, m.box, m.element_strides))
        strides = "".join(f" stride {s}" for s in m.strides_bytes)
        modes = f"{m.interleave} {m.swizzle} {m.l2_promotion} {m.oob_fill}"
        lines.append(f"map {FORMATS[m.format].code} {m.address}{dims}{strides} modes {modes}")
    line = "launch {} {} {} block {} {} {} shared {} stream {}".format(
        *launched.grid, *fixed.block, fixed.dynamic_shared_bytes, launched.stream
    )
    if fixed.cluster is not None:
        line += " cluster {} {} {}".format(*fixed.cluster)
    line += " attribute 2 1" * fixed.cooperative + " attribute 6 1" * fixed.programmatic_stream_serialization  # fmt: skip
    lines.append(line)
    for slot, size in zip(launched.slots, sizes, strict=True):
        lines.append("parameter" + "".join(f" {b:02x}" for b in struct.pack("<Q", slot)[:size]))
    return lines


def program(variant: Any, fields: str, given: str = "") -> tuple[str, list[int]]:
    kept = saved.of(variant)
    sizes = [header.size_bytes(p) for p in kept.launch_params]
    text = f"""
        #define PARAMETER_SIZES {"".join(f"{s}, " for s in sizes)}
        #include "k.h"
        int main(void)
        {{
            CUresult result = k_prepare(0);
            k_args args = {{{fields}}};
            if (result == CUDA_SUCCESS)
                result = k_launch(0, (CUstream)7, &args{given});
            return (int)result;
        }}
    """
    return text, sizes


@needs_gcc
def test_the_header_launches_what_python_launches(tmp_path: Path) -> None:
    steps = Steps(grid=of_scalars, dynamic_shared_bytes=60_000, launch=CLUSTER, block=(32, 4))
    k = jit(scale, steps)
    x, y = cuda_tensor(7, 8, address=0x7F00_0000_0100), cuda_tensor(7, 5, address=0x20000)
    with launcher("python"), gpu() as g:
        k[T.cuda.LaunchConfig(cluster=(2, 1), block=(32, 4))](x, y, 2.5, -3, 1.5, True, -0.1)
    (launched,) = g.recorder.launches
    assert launched.grid == (4, 2, 1)
    (tmp_path / "k.h").write_text(header.header(saved.of(k.latest), "k"))
    by_name = {
        "X": "0x7f0000000100", "Y": "0x20000", "int": "2.5f", "n": "-3", "h": "0x3fc0", "on": "1", "d": "-0.1",
        "M": "7", "K": "5", "Y_stride0": "5", "X_stride0": "8",
    }  # fmt: skip
    names = [p.name for p in saved.of(k.latest).launch_params]
    text, sizes = program(k.latest, ", ".join(by_name[n] for n in names))
    printed = run_c(tmp_path, text).splitlines()
    assert printed == ["attribute 8 60000", *expected(launched, sizes)]
    assert "float int_; /* float32 */" in (tmp_path / "k.h").read_text()


@needs_gcc
def test_tensor_maps_and_a_callers_grid(tmp_path: Path) -> None:
    steps = Steps(grid=lambda v: None, tensor_maps=of_sizes, block=(64,))
    k = jit(moving, steps)
    launches = {}
    with launcher("python"), gpu() as g:
        for m in (8, 2):
            k[(3, 2)](rows(m, 24, 32, 0x1000), 5)
            launches[m] = g.recorder.launches[-1]
    for m in (8, 2):
        launched = launches[m]
        (tmp_path / "k.h").write_text(header.header(saved.of(k.latest), "k"))
        by_name = {"X": "0x1000", "first": "5", "m": str(m), "n": "24", "X_stride0": "32"}
        names = [p.name for p in saved.of(k.latest).launch_params]
        text, sizes = program(k.latest, ", ".join(by_name[n] for n in names), ", 3, 2, 1")
        assert run_c(tmp_path, text).splitlines() == expected(launched, sizes)
        (map_,) = ahead.facts(k.latest, saved.of(k.latest), "k")["tensor_maps"]
        assert map_["tensor"] == "X" and map_["sizes"][0] == "n"
    bound = saved.of(k.latest).launch.grid_bound
    given = f", {bound[0] + 1}, 1, 1"
    text, _ = program(k.latest, ", ".join(by_name[n] for n in names), given)
    (tmp_path / "main.c").write_text(text)
    run = subprocess.run(["gcc", "-std=c11", f"-I{STUB}", str(tmp_path / "main.c"), "-o", str(tmp_path / "main"), "-lm"])  # fmt: skip
    assert run.returncode == 0
    assert subprocess.run([tmp_path / "main"]).returncode == 1, "a grid beyond the bound"
    text, _ = program(k.latest, ", ".join(by_name[n] for n in names), ", 0, 1, 1")
    assert run_c(tmp_path, text) == "", "an empty grid"


@cache
def real_headers() -> Path | None:
    """The folder of the real ``cuda.h``: the toolkit's or a wheel's."""
    folders = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    for packages in map(Path, sys.path):
        folders += packages.glob("nvidia/*/include")
    return next((folder for folder in folders if (folder / "cuda.h").exists()), None)


needs_cuda_h = pytest.mark.skipif(real_headers() is None, reason="no cuda.h")


@needs_gcc
@needs_cuda_h
def test_the_real_header_takes_it(tmp_path: Path) -> None:
    config = T.cuda.LaunchConfig(grid=(4, 2), block=(32, 4), cluster=(2, 1))
    many = jit(scale, Steps(grid=of_scalars, dynamic_shared_bytes=60_000, launch=CLUSTER))
    variants = [
        many[config].compile(torch.empty(7, 8), torch.empty(7, 5), 2.5, 3, 1.5, True, 0.1, target="sm_90a"),
        many.compile(torch.empty(7, 8), None, 2.5, 3, 1.5, True, 0.1, target="sm_90a"),
        jit(moving, Steps(tensor_maps=of_sizes)).compile(torch.empty(8, 32)[:, :24], 2, target="sm_90a"),
    ]  # fmt: skip
    for number, variant in enumerate(variants):
        (tmp_path / f"k{number}.h").write_text(header.header(saved.of(variant), f"k{number}"))
    included = "".join(f'#include "k{n}.h"\n' for n in range(len(variants)))
    main = included + "int main(void) { return 0; }\n"
    for suffix, compiler, standard in (("c", "gcc", "c11"), ("cpp", "g++", "c++11")):
        if shutil.which(compiler) is None:
            continue
        source = tmp_path / f"main.{suffix}"
        source.write_text(main)
        command = [compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-isystem", str(real_headers()), str(source)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


PROGRAM = """
#include <stdio.h>
#include "shown.h"

#define CHECK(call) do { CUresult r = (call); if (r) { printf("%s: %d\\n", #call, (int)r); return 1; } } while (0)

int main(void)
{
    enum { M = 5, N = 32 };
    static float values[M * N];
    CUdevice device; CUcontext context; CUlibrary library; CUkernel kernel; CUfunction function; CUdeviceptr X;
    for (int i = 0; i < M * N; i++)
        values[i] = (float)i;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuLibraryLoadFromFile(&library, CUBIN, NULL, NULL, 0, NULL, NULL, 0));
    CHECK(cuLibraryGetKernel(&kernel, library, SHOWN_ENTRY));
    CHECK(cuKernelGetFunction(&function, kernel));
    CHECK(cuMemAlloc(&X, sizeof values));
    CHECK(cuMemcpyHtoD(X, values, sizeof values));
    CHECK(shown_prepare(function));
    shown_args args;
    args.X = X;
    args.M = M;
    CHECK(shown_launch(function, NULL, &args));
    CHECK(cuMemcpyDtoH(values, X, sizeof values));
    for (int i = 0; i < M * N; i++)
        if (values[i] != (float)(i + 1))
            return 2;
    printf("right\\n");
    return 0;
}
"""


def built(tilejit: Any, folder: Path, target: str, *linked: str) -> Path:  # noqa: F811
    """The C program around the compiled kernel; an object file where nothing is linked."""
    path = write(folder, GOOD)
    flags = ("--dim", "N=32", "--dtype", "float32", "--const", "block=32", "--target", target)
    assert tilejit("compile", f"{path}:shown", "-o", folder, *flags).code == 0
    source, binary = folder / "main.c", folder / "main"
    source.write_text(PROGRAM)
    cubin = f'-DCUBIN="{folder / "shown.cubin"}"'
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", cubin, "-isystem", str(real_headers()), str(source), "-o", str(binary)]  # fmt: skip
    done = subprocess.run([*command, *(linked or ("-c",))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return binary


@needs_gcc
@needs_cuda_h
def test_a_c_program_builds(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    assert built(tilejit, tmp_path, "sm_90a").exists()


@pytest.mark.gpu
@needs_gcc
@needs_cuda_h
def test_a_c_program_launches(
    request: pytest.FixtureRequest, tilejit: Any, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    need_gpu(request.config)
    ctypes.CDLL("libcuda.so.1")
    maps = Path("/proc/self/maps").read_text().splitlines()
    (driver,) = {line.split()[-1] for line in maps if "/libcuda.so" in line}
    program = built(tilejit, tmp_path, tile.target_of(torch.device("cuda")).name, driver, "-lm")
    assert subprocess.run([program], capture_output=True, text=True).stdout == "right\n"


# --- expressions


def random_expression(generator: random.Random, names: list[str], depth: int) -> ir.Expr:
    """An int64 expression whose values stay small, so that C does not overflow."""

    def go() -> ir.Expr:
        return random_expression(generator, names, depth - 1)

    if depth == 0 or generator.random() < 0.1:
        if generator.random() < 0.5:
            return ir.Var(generator.choice(names), ir.INT64)
        return ir.Const(generator.randrange(-40, 40), ir.INT64)
    positive = ir.Const(generator.randrange(1, 9), ir.INT64)
    choice = generator.randrange(8)
    if choice == 0:
        return ir.Unary(generator.choice(("neg", "abs", "invert")), go(), ir.INT64)
    if choice == 1:
        return ir.Binary(generator.choice(("floordiv", "mod", "shr")), go(), positive, ir.INT64)
    if choice == 2:
        small = ir.Binary("mod", go(), ir.Const(16, ir.INT64), ir.INT64)
        return ir.Binary(generator.choice(("shl", "mul")), small, positive, ir.INT64)
    if choice == 3:
        test = ir.Binary(generator.choice(("lt", "le", "eq", "ne")), go(), go(), ir.BOOL)
        other = ir.Unary("not", ir.Binary("gt", go(), go(), ir.BOOL), ir.BOOL)
        both = ir.Binary(generator.choice(("and", "or")), test, other, ir.BOOL)
        return ir.Select(both, go(), go(), ir.INT64)
    if choice == 4:
        narrow = generator.choice(
            (ir.INT32, ir.ScalarType(tile.T.uint8), ir.ScalarType(tile.T.int16))
        )
        return ir.Cast(ir.Cast(go(), narrow), ir.INT64)
    op = generator.choice(("add", "sub", "min", "max", "bitand", "bitor", "bitxor"))
    return ir.Binary(op, go(), go(), ir.INT64)


@needs_gcc
def test_c_computes_what_python_computes(tmp_path: Path) -> None:
    generator = random.Random(7)
    names = ["a", "b", "c"]
    cases = []
    for _ in range(200):
        expression = random_expression(generator, names, 4)
        values = [generator.randrange(-100, 100) for _ in names]
        cases.append(
            (expression, values, hostexpr.compile_function(expression, tuple(names))(*values))
        )
    body = "".join(
        f"{{ int64_t a = {v[0]}, b = {v[1]}, c = {v[2]}; (void)a; (void)b; (void)c; "
        f'printf("%lld\\n", (long long)({c_source(e, {n: n for n in names})})); }}\n'
        for e, v, _ in cases
    )
    text = f"#include <math.h>\n#include <stdint.h>\n#include <stdio.h>\n{HELPERS}\nint main(void) {{\n{body}return 0;\n}}\n"  # fmt: skip
    source, binary = tmp_path / "main.c", tmp_path / "main"
    source.write_text(text)
    subprocess.run(["gcc", "-std=c11", "-w", str(source), "-o", str(binary), "-lm"], check=True)
    printed = subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split()
    assert list(map(int, printed)) == [int(result) for _, _, result in cases]


def test_what_c_cannot_compute_is_refused() -> None:
    half = ir.ScalarType(tile.T.float32)
    for expression in (
        ir.Binary("mod", ir.Const(1.0, half), ir.Const(2.0, half), half), ir.Var("unknown", ir.INT64),
        ir.HardwareId("ctaid.x"), ir.Const(float("inf"), half),
    ):  # fmt: skip
        with pytest.raises(LaunchError, match=r"compile/expression.*C header cannot compute"):
            c_source(expression, {})
