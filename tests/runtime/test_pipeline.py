"""All steps joined: CPU tensors in place, the disk cache's key over processes and edits, dumps."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from tilejit import ContractError, LaunchError, T, dtypes, jit, pipeline
from tilejit.ir.signature import ScalarArg, TensorArg
from tilejit.runtime import cache
from tilejit.runtime.cache import CacheWarning

ROOT = Path(__file__).parent.parent.parent
VECTOR = TensorArg(dtypes.float32, (300,), (1,), 16)
SCALE = 2.0


@jit
def scale(X: T.Tensor(("N",), "float32"), Y: T.Tensor(("N",), "float32") | None, a: T.float32):
    n = X.shape[0]
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + 127) // 128, block=128))
    i = T.cuda.block_idx("x") * 128 + T.cuda.thread_idx("x")
    if i < n:
        if Y is None:
            X[i] = X[i] * a * SCALE
        else:
            Y[i] = X[i] * a * SCALE


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILEJIT_TARGET", "sm_90a")
    pipeline.STEPS._texts.clear()
    return tmp_path


def test_cpu_tensors_are_written_in_place() -> None:
    x = torch.arange(300, dtype=torch.float32)
    y = torch.zeros(300)
    scale(x, y, 1.5)
    assert torch.equal(y, x * 3)
    scale(x, None, 0.5)
    assert torch.equal(x, torch.arange(300, dtype=torch.float32))


def test_views_of_cpu_tensors_leave_their_gaps_alone() -> None:
    storage = torch.zeros(3, 200)
    x = torch.arange(100, dtype=torch.float32)
    view = storage[1, ::2]
    scale(x, view, 1.0)
    assert torch.equal(view, x * 2)
    view.zero_()
    assert not storage.any()


def test_global_buffer_is_the_tensor_s_own_memory() -> None:
    storage = torch.arange(40, dtype=torch.int16)
    view = storage[3:].as_strided((3, 2), (10, 3), 5)
    buffer = pipeline.global_buffer("X", view)
    assert buffer.base_address == view.data_ptr() and buffer.bytes.size == 2 * 24
    assert buffer.valid is not None and buffer.valid.sum() == 12
    buffer.bytes[0:2] = (1, 2)
    assert view[0, 0] == 0x0201
    assert pipeline.global_buffer("X", storage).valid is None
    turned = storage.reshape(2, 4, 5).permute(2, 0, 1)
    assert pipeline.global_buffer("X", turned).valid is None
    gaps = pipeline.global_buffer("X", storage.as_strided((2, 2), (0, 3)))  # as many as its span
    assert gaps.valid is not None and gaps.valid.tolist() == [True] * 2 + [False] * 4 + [True] * 2
    tall = storage[:8].expand(1 << 40, 8)
    assert pipeline.global_buffer("X", tall).valid is None
    assert pipeline.global_buffer("X", storage[:0]).bytes.size == 0


def test_a_written_tensor_that_requires_grad_is_refused_untouched() -> None:
    x = torch.ones(300, requires_grad=True)
    y = torch.zeros(300)
    scale(x, y, 1.0)  # only read: fine
    assert y.sum() == 600
    with pytest.raises(LaunchError, match="requires grad"):
        scale(x, None, 3.0)
    assert torch.equal(x.detach(), torch.ones(300))


def compile_scale(**options: bool) -> object:
    return scale.compile(VECTOR, None, ScalarArg(dtypes.float32), **options)


def test_a_strided_tensor_that_requires_grad_is_read_at_its_own_strides() -> None:
    base, y = torch.arange(600.0, requires_grad=True), torch.zeros(300)
    for x in (base[::2], base.view(300, 2)[:, 1], torch.ones(1, requires_grad=True).expand(300)):
        scale(x, y, 1.0)
        assert torch.equal(y, x.detach() * 2)


def test_a_size_that_only_the_grid_reads() -> None:
    @jit
    def k(X: T.Tensor((T.dynamic("M"), 32), "float32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=X.shape[0], block=32))
        X[T.cuda.block_idx("x"), T.cuda.thread_idx("x")] = 1.0

    x = torch.zeros(3, 32)
    k(x)
    assert torch.equal(x, torch.ones(3, 32))


def test_shared_memory_over_the_limit() -> None:
    @jit
    def k(X: T.Tensor(("N",), "float32"), SIZE: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=1))
        s = T.alloc_shared((SIZE,), "uint8", layout="default")
        s[0] = 1

    k(torch.zeros(1), 232448)
    for run in (k, k.check):
        with pytest.raises(ContractError, match="sm_90a gives a block 232448 bytes") as caught:
            run(torch.zeros(1), 232449)
        assert "s: 232449 bytes" in str(caught.value)


def test_a_folder_to_keep_in_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEJIT_KEEP", os.devnull)
    with pytest.warns(UserWarning, match="TILEJIT_KEEP"):
        assert scale.compile(VECTOR, None, 1.0, fresh=True).cubin


def test_an_error_in_a_thread_shows_no_frames_of_ours(folder: Path) -> None:
    script = folder / "threaded.py"
    script.write_text(
        "import threading, torch\nfrom tilejit import T, jit\n"
        "@jit\ndef k(X: T.Tensor((4,), 'float32')):\n    pass\n"
        "t = threading.Thread(target=lambda: k(torch.zeros(5)))\nt.start()\nt.join()\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "error[launch/shape]" in done.stderr and "Traceback" not in done.stderr


def test_disk_hit_miss_and_damage() -> None:
    first = compile_scale(fresh=True)
    assert first.origin.startswith("compiled by NVRTC")
    again = compile_scale(fresh=True)
    assert again.origin == "from the disk cache" and again.cubin == first.cubin
    assert again.stats == first.stats and again.ptx == first.ptx
    (entry,) = cache.ls()
    assert entry.kernel == "scale" and set(cache.why(entry.key)["keyed_on"]) >= {
        "ir",
        "nvrtc",
        "tilejit",
    }
    path = cache._path(entry.key)
    path.write_bytes(path.read_bytes()[:-100])
    assert "text" in compile_scale(fresh=True).origin  # a miss; the same text is still in memory
    assert compile_scale(fresh=True).origin == "from the disk cache"


def test_a_full_disk_only_warns() -> None:
    with mock.patch("os.replace", side_effect=OSError(28, "No space left on device")):
        with pytest.warns(CacheWarning, match="No space left"):
            variant = compile_scale(fresh=True)
    assert variant.cubin.startswith(b"\x7fELF")


def test_keep_writes_every_stage(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEJIT_KEEP", str(folder / "kept"))
    compile_scale(fresh=True)
    assert {p.suffix for p in (folder / "kept").iterdir()} == {".ir", ".cu", ".ptx", ".cubin"}


def test_a_function_without_a_file_takes_its_source() -> None:
    text = (
        "def fill(X: T.Tensor(('N',), 'float32')):\n"
        "    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))\n"
        "    X[T.cuda.thread_idx('x')] = 7.0\n"
    )
    space = {"T": T}
    exec(text, space)
    x = torch.zeros(32)
    jit(source=text)(space["fill"])(x)
    assert x.sum() == 224


def test_a_global_changed_between_calls_is_seen() -> None:
    global SCALE
    x, y = torch.ones(300), torch.zeros(300)
    try:
        scale(x, y, 1.0)
        SCALE = 5.0
        scale(x, y, 1.0)
        assert y[0] == 5
    finally:
        SCALE = 2.0


PROGRAM = """
from tilejit import T, dtypes, jit
from tilejit.ir.signature import ScalarArg, TensorArg
VALUE = 123
WORDS = frozenset({"alpha", "beta", "gamma", "delta"})

@jit
def fill(X: T.Tensor(("N",), "int32")):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    if "alpha" in WORDS:
        X[T.cuda.thread_idx("x")] = VALUE

made = fill.compile(TensorArg(dtypes.int32, (32,), (1,), 16))
print(made.artifact.key, made.origin, "123" in made.cuda, "1234" in made.cuda, sep="|")
"""


def run_program(path: Path, seed: int) -> list[str]:
    env = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, path], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().split("|")


def test_one_key_over_processes_and_touched_files(folder: Path) -> None:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    key, origin, _, _ = run_program(path, 1)
    assert origin.startswith("compiled")
    os.utime(path, (1, 1))
    for seed in (2, 3, 4):
        assert run_program(path, seed)[:2] == [key, "from the disk cache"]


def test_an_edited_constant_is_another_key(folder: Path) -> None:
    path = folder / "program.py"
    path.write_text(PROGRAM)
    before = run_program(path, 1)
    path.write_text(PROGRAM.replace("VALUE = 123", "VALUE = 1234"))
    after = run_program(path, 1)
    assert before[0] != after[0] and after[1].startswith("compiled")
    assert (before[3], after[3]) == ("False", "True")
