"""The other commands: what they print, their JSON, and machines on which something is broken."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from tests.cli.command import GOOD, tilejit, write  # noqa: F401  (a fixture)
from tilejit.cli import doctor
from tilejit.errors import Diagnostic, LaunchError
from tilejit.families import FAMILIES, evidence
from tilejit.runtime import cache, nvrtc, sass
from tilejit.tune import store

# --- show


@pytest.mark.parametrize(
    ("stage", "text"),
    [("ir", "shown"), ("cuda", '__global__'), ("ptx", ".entry"), ("sass", "EXIT"), ("stats", "registers")],
)  # fmt: skip
def test_stages(
    tilejit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, text: str  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(sass, "disassemble", lambda cubin: f"EXIT of {len(cubin)} bytes\n")
    path = write(tmp_path, GOOD)
    flags = ("--dim", "N=32", "--dtype", "float32", "--const", "block=32", "--target", "sm_90a")
    ran = tilejit("show", f"{path}:shown", "--stage", stage, *flags)
    assert ran.code == 0 and text in ran.out and "---" not in ran.out.splitlines()[0]
    (row,) = tilejit("show", f"{path}:shown", "--stage", stage, "--json", *flags).data
    assert (row["kernel"], row["case"], row["target"]) == ("shown", "with the flags", "sm_90a")
    if stage == "stats":
        assert row["stats"]["threads"] == 32 and row["stats"]["bank_conflicts"] == []
    else:
        assert row[stage].strip() == ran.out.strip()


def test_every_example_is_shown(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    ran = tilejit("show", f"{write(tmp_path, GOOD)}:shown", "--stage=ir", "--target=sm_100a")
    titles = [line for line in ran.out.splitlines() if line.startswith("---")]
    assert titles == [f"--- shown, example {n}, for sm_100a" for n in (1, 2)]


# --- families and explain


def test_families(tilejit: Any) -> None:  # noqa: F811
    ran = tilejit("families")
    names = [line.split()[0] for line in ran.out.splitlines()[1:] if line]
    assert names[: len(FAMILIES)] == sorted(FAMILIES)
    data = tilejit("families", "--json").data
    (wgmma,) = [row for row in data["families"] if row["family"] == "wgmma"]
    record = evidence.gpu_run()
    assert record is not None and data["gpu_run"]["gpu"] == record["gpu"]
    passed = record["modules"]["families/test_wgmma"]["passed"]
    assert wgmma["ran"] == str(passed) and 0 < wgmma["tile_forms"] <= wgmma["forms"]


def test_families_without_a_record(tilejit: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(evidence, "RECORD", Path("none.json"))
    data = tilejit("families", "--json").data
    assert data["gpu_run"] is None and {row["ran"] for row in data["families"]} == {"no"}


def test_explain(tilejit: Any) -> None:  # noqa: F811
    from tilejit import explain

    code = explain.codes()[-1]
    assert tilejit("explain", code).out.strip() == explain.page(code).strip()
    assert tilejit("explain", code, "--json").data == {"code": code, "page": explain.page(code)}
    ran = tilejit("explain", "no/such-code")
    assert ran.code == 2 and "no error has the code 'no/such-code'" in ran.err


# --- cache


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_empty_cache(tilejit: Any, caches: Path) -> None:  # noqa: F811
    ran = tilejit("cache", "ls")
    assert ran.code == 0 and f"{caches}: 0 compiled kernels, 0 bytes" in ran.out
    assert tilejit("cache", "ls", "--json").data == {
        "directory": str(caches), "kernels": [], "tuning": []
    }  # fmt: skip
    assert tilejit("cache", "why", "ab").code == 2
    assert tilejit("cache", "clear").out == "removed 0 compiled kernels\n"


def test_compiled_kernels_are_listed_explained_and_removed(
    tilejit: Any, tmp_path: Path, caches: Path  # noqa: F811
) -> None:  # fmt: skip
    path = write(tmp_path, GOOD)
    tilejit("compile", f"{path}:shown", "-o", tmp_path, "--target", "sm_90a")
    found = tilejit("cache", "ls", "--json").data["kernels"]
    assert [row["kernel"] for row in found] == ["shown", "shown"]
    key = found[0]["key"]
    assert key[:12] in tilejit("cache", "ls").out
    why = tilejit("cache", "why", key[:12])
    assert why.out.startswith(key) and "  keyed_on:\n    captured: " in why.out
    assert tilejit("cache", "why", key, "--json").data["resources"]["registers"] > 0
    both = tilejit("cache", "why", "")
    assert both.code == 2 and "2 entries start with ''" in both.err
    assert tilejit("cache", "clear", "--json").data == {"removed": 2, "what": "compiled kernels"}
    assert cache.ls() == []


def test_a_damaged_entry_is_called_that(tilejit: Any, caches: Path, tmp_path: Path) -> None:  # noqa: F811
    assert tilejit("show", f"{write(tmp_path, GOOD)}:static").code == 0
    (entry,) = cache.directory().rglob("*.tile")
    entry.write_bytes(entry.read_bytes()[:100])
    ran = tilejit("cache", "why", entry.stem[:8])
    assert ran.code == 2 and f"{entry.stem} is damaged" in ran.err


def test_tuning_results_are_listed_explained_and_removed(
    tilejit: Any, caches: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    record = store.Record("ab" * 32, {"kernel": "mine", "device": {}}, "cd", {}, "2026-01-01T00:00:00+00:00")  # fmt: skip
    assert store.put(record)
    place = store.path_of(record.kernel, record.digest)
    monkeypatch.setattr(store, "stored", lambda: [record] if place.exists() else [])
    listed = tilejit("cache", "ls").out
    assert "1 tuning result\n" in listed and "mine" in listed and record.digest[:12] in listed
    (row,) = tilejit("cache", "ls", "--json").data["tuning"]
    assert (row["key"], row["kernel"], row["chosen"]) == (record.digest, "mine", "cd")
    assert "    kernel: mine" in tilejit("cache", "why", "abab").out
    tilejit("cache", "clear")
    assert place.exists()
    assert tilejit("cache", "clear", "--tuning").out == "removed 1 tuning result\n"
    assert not place.exists()


# --- doctor


def states(ran: Any) -> dict[str, str]:
    return {row["name"]: row["state"] for row in (*ran.data["facts"], *ran.data["works"])}


def advice(ran: Any) -> str:
    return " ".join(row["advice"] for row in (*ran.data["facts"], *ran.data["works"]))


def test_this_machine(tilejit: Any) -> None:  # noqa: F811
    ran = tilejit("doctor", "--json")
    found = states(ran)
    assert {found[name] for name in ("tilejit", "python", "numpy", "torch", "cache", "simulate")} == {"ok"}  # fmt: skip
    assert "fault" not in found.values() and ran.code == 0, ran.data
    text = tilejit("doctor")
    assert "what works" in text.out and "what to do" not in text.out


@pytest.mark.parametrize(
    ("module", "faulty", "says"),
    [
        ("torch", {"torch", "simulate"}, "pip install 'torch>=2.6'"),
        ("cuda.bindings", {"cuda-python"}, "pip install 'cuda-python>=13.0,<14'"),
        ("numpy", {"numpy"}, "pip install 'numpy>=2'"),
    ],
)
def test_a_missing_package_is_a_fault_with_advice(
    tilejit: Any, module: str, faulty: set[str], says: str  # noqa: F811
) -> None:  # fmt: skip
    with mock.patch.dict(sys.modules, {module: None}):
        ran = tilejit("doctor", "--json")
        text = tilejit("doctor")
    found = states(ran)
    assert ran.code == text.code == 1
    assert faulty <= {name for name, state in found.items() if state == "fault"}
    assert found["python"] == found["cache"] == "ok" and says in advice(ran)
    assert "what to do" in text.out and says in text.out


def test_the_doctor_runs_where_nothing_else_does() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('numpy', 'torch', 'cuda', 'cuda.bindings', 'cuda.pathfinder')))\n"
        "from tilejit.cli.main import main\nsys.exit(main(['doctor', '--json']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == ""
    found = {row["name"]: row for key in ("facts", "works") for row in json.loads(done.stdout)[key]}
    assert {found[n]["state"] for n in ("numpy", "torch", "NVRTC", "compile", "simulate")} == {"fault"}  # fmt: skip
    assert found["python"]["state"] == "ok" and "pip install" in found["NVRTC"]["advice"]


class _Exits:
    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"{name}: a library that ends the process")


def test_nothing_that_a_broken_install_does_ends_the_doctor(tilejit: Any) -> None:  # noqa: F811
    asked = [name for name, _ in (*doctor.FACTS, *doctor.WORKS)]
    broken = tuple((name, lambda: _Exits().anything) for name in asked)
    with mock.patch.multiple(doctor, FACTS=broken[:-3], WORKS=broken[-3:]):
        with mock.patch.object(doctor, "_driver_version", lambda: _Exits().anything):
            ran = tilejit("doctor", "--json")
    assert ran.code == 1 and set(states(ran)) == {*asked, "devices"}
    assert set(states(ran).values()) == {"fault"}
    with mock.patch.object(doctor, "_driver_version", mock.Mock(side_effect=KeyboardInterrupt)):
        with pytest.raises(KeyboardInterrupt):
            tilejit("doctor")


def test_nvrtc_that_is_missing_or_newer_than_the_driver(tilejit: Any) -> None:  # noqa: F811
    missing = mock.Mock(side_effect=LaunchError(Diagnostic("nvrtc/missing", "no NVRTC", notes=(("help", "get it"),))))  # fmt: skip
    with mock.patch.multiple(nvrtc, version=missing, compile_cubin=missing):
        ran = tilejit("doctor", "--json")
    assert states(ran)["NVRTC"] == states(ran)["compile"] == "fault" and "get it" in advice(ran)
    with mock.patch.object(doctor, "_driver_version", lambda: (12, 4)):
        with mock.patch.object(nvrtc, "version", lambda: (13, 0)):
            found = doctor._asked("driver", doctor._driver)
    assert found.state == "fault" and "CUDA 12.4" in found.text and "13 or newer" in found.advice


def card(**fields: Any) -> Any:
    limits = SimpleNamespace(name="Some GPU", capability=(9, 0), sm_count=132)
    return SimpleNamespace(**{**vars(limits), **fields})


def test_gpus_are_named_and_torch_must_see_them(tilejit: Any) -> None:  # noqa: F811
    cards = [(0, card()), (1, card(name="Old GPU", capability=(7, 0)))]
    with mock.patch.multiple(doctor, _driver_version=lambda: (13, 0), _cards=lambda: iter(cards)):
        first, second = doctor._devices()
        assert (first.state, first.text[:24]) == ("ok", "Some GPU, sm_90a, 132 SM")
        assert second.state == "fault" and "7.0 is below 8.0" in second.text
        with mock.patch("torch.cuda.is_available", lambda: False):
            launch = doctor._asked("launch", doctor._launches)
        assert launch.state == "fault" and "does not see the GPU" in launch.text
    with mock.patch.multiple(doctor, _driver_version=lambda: (13, 0), _cards=lambda: iter(())):
        (none,) = doctor._devices()
        assert none.state == "none" and "CUDA_VISIBLE_DEVICES" in none.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "closed").mkdir(mode=0o500)
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "closed" / "cache"))
    found = doctor._asked("cache", doctor._cache)
    assert found.state == "fault" and "TILEJIT_CACHE_DIR" in found.advice


def test_a_cache_on_a_file_and_one_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEJIT_CACHE_DIR", str(tmp_path / "file"))
    assert doctor._asked("cache", doctor._cache).state == "fault"
    monkeypatch.setenv("TILEJIT_CACHE_SIZE_MB", "0")
    assert doctor._asked("cache", doctor._cache).state == "none"


def test_help_names_every_command(tilejit: Any) -> None:  # noqa: F811
    said = tilejit("--help")
    assert said.code == 0 and "Exit codes: 0 all right, 1 faults found, 2 wrong use." in said.out
    for command in ("doctor", "check", "show", "compile", "families", "cache", "explain"):
        assert f"\n    {command}" in said.out
        text = tilejit(command, "--help").out
        assert "Not here" not in text and "--json" in text or command == "cache"
