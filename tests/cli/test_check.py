"""``tilejit check``: what is checked with what, output for people and editors, exit codes, files that are no
modules."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import BAD, GOOD, tilejit, write  # noqa: F401  (a fixture)

ROOT = Path(__file__).parent.parent.parent


def statuses(ran: Any) -> dict[str, tuple[str, list[str]]]:
    return {row["kernel"]: (row["status"], row["cases"]) for row in ran.data["kernels"]}


def test_examples_annotations_and_flags(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    path = write(tmp_path, GOOD)
    ran = tilejit("check", path, "--json")
    assert ran.code == 0 and ran.data["diagnostics"] == []
    assert statuses(ran) == {
        "helper": ("inlined", []),
        "shown": ("ok", ["example 1", "example 2"]),
        "static": ("ok", ["as annotated"]),
        "open_": ("not checked", []),
    }
    (open_,) = [row for row in ran.data["kernels"] if row["kernel"] == "open_"]
    assert open_["missing"] == [
        "--dtype X=…", "--dim N=…", "--dtype Y=…", "--shape Y=…", "--const plan=…",
        "n: --shape n=… and --dtype n=… of a tensor, --dtype n=int32 of a number",
    ]  # fmt: skip
    assert tilejit("check", path, "--strict").code == 1
    flags = ["--dim", "N=24", "--dtype", "float32", "--shape", "Y=4,4", "--const", "plan=WIDTH*0.5", "--dtype", "n=int64"]  # fmt: skip
    ran = tilejit("check", f"{path}:open_", *flags, "--strict", "--target", "sm_100a")
    assert (ran.code, ran.out) == (0, "ok  open_  with the flags\n"), ran.err


def test_a_signature_is_what_arguments_would_give(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    """An example is specialised as the tensors are that it stands for."""
    import torch

    from tilejit.cli import arguments, modules

    (found,) = modules.each(modules.Wanted.parse(f"{write(tmp_path, GOOD)}:shown"))
    first = next(iter(found[2].examples))
    described = found[2].signature(**first.arguments)
    assert described == found[2].signature(torch.empty(64, 32), 32)
    flags = arguments.Flags({"N": 32}, {}, {}, {}, None, None, None)
    assert arguments.cases_of(found[2], found[0].module, flags).missing == ["--dtype X=…", "--const block=…"]  # fmt: skip


def test_faults_are_shown_with_carets(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    path = write(tmp_path, BAD)
    ran = tilejit("check", path)
    assert ran.code == 1
    assert "error[ld_st/owner]" in ran.out and f"--> {path}:7:" in ran.out
    assert "::: inlined at" in ran.out and "   = kernel: owner, as annotated" in ran.out
    assert "error[launch/unknown-argument]: the kernel has no parameter 'Z'" in ran.out
    table = [line.split() for line in ran.out.splitlines()[-4:]]
    assert [row[:2] for row in table] == [
        ["inlined", "move"], ["faults", "owner"], ["faults", "language"], ["faults", "example"],
    ]  # fmt: skip
    alone = tilejit("check", f"{path}:language")
    assert alone.code == 1 and "owner" not in alone.out and "unknown_name" in alone.out


def test_editors_get_places(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    path = write(tmp_path, BAD)
    ran = tilejit("check", path, "--json")
    owner, name, _ = ran.data["diagnostics"]
    lines = path.read_text().splitlines()
    assert lines[owner["line"] - 1][owner["column"] - 1 : owner["end_column"] - 1] == "r"
    assert (owner["file"], owner["kernel"], owner["case"]) == (str(path), "owner", "as annotated")
    (outer,) = owner["inlined_at"]
    assert lines[outer["line"] - 1].strip() == "move(r, X)"
    assert any(note["label"] == "help" for note in owner["notes"])
    assert lines[name["line"] - 1][name["column"] - 1 : name["end_column"] - 1] == "unknown_name"
    ran = tilejit("check", path, "--format=gcc")
    form = re.compile(r"[^:]+:\d+:\d+: (error: .+ \[[\w/-]+\]|note: .+)")
    assert all(form.fullmatch(line) for line in ran.out.splitlines()), ran.out
    assert f"{path}:{owner['line']}:{owner['column']}: error: " in ran.out
    assert f"{path}:{outer['line']}:{outer['column']}: note: inlined here" in ran.out


def test_unrolled_copies_are_one_fault(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    text = BAD.split("@tile.jit(examples")[0].replace("    move(r, X)", "    for _ in T.unroll(3):\n        move(r, X)")  # fmt: skip
    ran = tilejit("check", write(tmp_path, text), "--json")
    assert [d["count"] for d in ran.data["diagnostics"]] == [3]
    assert "again: 2 more" in tilejit("check", tmp_path / "kernels.py").out


BROKEN = {
    "syntax": ("import tilejit\n\ndef f(:\n    pass\n", "python/syntax", 3),
    "import": ("x = 1\nimport no_such_module\n", "python/import", 2),
    "name": ("x = 1\n\ny = x + z\n", "python/import", 3),
    "exit": ("import sys\nsys.exit(3)\n", "python/import", 2),
    "bytes": ("x = '\\x00'\n\x00\n", "python/syntax", 1),
    "kernel": ("import tilejit as tile\n\n@tile.jit\ndef k(X: 3):\n    pass\n", "frontend/annotation", 4),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code", "line"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_does_not_import(
    tilejit: Any, tmp_path: Path, text: str, code: str, line: int  # noqa: F811
) -> None:  # fmt: skip
    path = write(tmp_path, text, "broken.py")
    good = write(tmp_path, GOOD)
    ran = tilejit("check", path, good, "--json")
    assert ran.code == 1
    (found,) = ran.data["diagnostics"]
    assert (found["code"], found["file"]) == (code, str(path))
    assert found["line"] == line or code == "python/syntax"
    assert "shown" in statuses(ran), "the other file is checked all the same"
    assert tilejit("check", path).out.startswith(f"error[{code}]")


def test_exceptions_of_a_kernels_own_code(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    text = """
        import tilejit as tile
        from tilejit import T

        def rows():
            return [dict(X=("float32", (4,)))] + 1

        @tile.jit(examples=[3])
        def wrong(X: T.Tensor(("N",))):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))

        @tile.jit(examples=rows)
        def raises(X: T.Tensor(("N",))):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    """
    ran = tilejit("check", write(tmp_path, text), "--json")
    assert ran.code == 1
    wrong, raises = ran.data["diagnostics"]
    assert (wrong["code"], wrong["kernel"]) == ("launch/example", "wrong")
    assert raises["code"] == "python/exception" and raises["line"] == 6
    assert raises["message"].startswith("TypeError: can only concatenate list")


def test_what_the_file_launched_and_a_callers_grid(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    text = """
        import torch, tilejit as tile
        from tilejit import T

        @tile.jit(examples=[((2, 1), dict(X=(torch.float32, (64,))))])
        def given(X: T.Tensor(("N",), "float32")):
            T.device_entry(launch=T.cuda.LaunchConfig(block=32))
            X[T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")] = 1.0

        @tile.jit
        def bare(X: T.Tensor((32,), "float32")):
            X[T.cuda.thread_idx("x")] = 1.0

        @tile.jit
        def launched(X: T.Tensor(("N",))):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            X[T.cuda.thread_idx("x")] = 1.0

        print("loud")
        launched(torch.zeros(32))
        if __name__ == "__main__":
            raise AssertionError("imported as a script")
    """
    path = write(tmp_path, text)
    ran = tilejit("check", path, "--json")
    assert statuses(ran) == {
        "given": ("ok", ["example 1"]), "bare": ("inlined", []), "launched": ("ok", ["launch 1 of the file"]),
    }, ran.data  # fmt: skip
    assert "loud" in ran.err and ran.code == 0
    ran = tilejit("check", f"{path}:bare", "--grid", "1", "--block", "32", "--json")
    assert statuses(ran) == {"bare": ("ok", ["as annotated"])}, ran.data


def test_an_autotuned_kernel_is_the_one_it_tunes(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    renames = (
        ("block: T.constexpr", "threads: T.constexpr"), ("block=block", "block=threads"), (")), block=", ")), threads="),
        ("@tile.jit(examples", "@tile.autotune([tile.Config(threads=32)])\n@tile.jit(examples"),
    )  # fmt: skip
    text = GOOD
    for old, new in renames:
        text = text.replace(old, new)
    ran = tilejit("check", write(tmp_path, text), "--json")
    assert statuses(ran)["shown"] == ("ok", ["example 1", "example 2"]), ran.data


WRONG = {
    "no file": (["check", "none.py"], "there is no file none.py"),
    "a folder": (["check", "{folder}"], "is a directory"),
    "no kernel": (["check", "{file}:nothing"], "has no kernel 'nothing'; its kernels: helper, shown, static, open_"),
    "no value": (["check", "{file}", "--dim", "N"], "--dim takes NAME=VALUE, got 'N'"),
    "no number": (["check", "{file}", "--dim", "N=x"], "--dim N=x: expected a number of elements"),
    "no type": (["check", "{file}", "--dtype", "X=f33"], "--dtype f33: there is no such type; bool, "),
    "no name": (["check", "{file}", "--const", "other=3"], "no kernel here has a parameter or dimension 'other'"),
    "no expression": (["check", "{file}", "--const", "plan=add.f32"], "a text needs quotes of its own: --const 'plan=\"add.f32\"'"),
    "one kernel": (["show", "{file}"], "name one kernel, as"),
    "exit": (["check", "{file}", "--const", "plan=exit()"], "--const plan=exit(): SystemExit"),
    "no size": (["check", "{file}", "--dim", "N=9223372036854775808"], "at least 1 and below 2**63"),
    "no Python file": (["check", "{folder}/text"], "text is no Python file"),
    "missing": (["show", "{file}:open_", "--dtype", "float32"], "open_ needs --dim N=…, --shape Y=…"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_use(tilejit: Any, tmp_path: Path, arguments: list[str], message: str) -> None:  # noqa: F811
    path = write(tmp_path, GOOD)
    write(tmp_path, GOOD, "text")
    ran = tilejit(*(a.format(file=path, folder=tmp_path) for a in arguments))
    assert ran.code == 2 and ran.out == "" and message in ran.err, ran


def test_flags_that_argparse_refuses(tilejit: Any) -> None:  # noqa: F811
    assert tilejit("check").code == 2
    assert tilejit("nothing").code == 2
    unknown = tilejit("check", __file__, "--target", "sm_12")
    assert unknown.code == 1 and "known targets: sm_80" in unknown.err


def test_files_of_a_package_keep_their_name(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    package = tmp_path / "some_package" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "values.py").write_text("WIDTH = 4\n")
    text = GOOD.replace("WIDTH = 4", "from .values import WIDTH\nassert __name__ == 'some_package.inner.kernels'")  # fmt: skip
    path = write(package, text)
    assert tilejit("check", path).code == 0
    # Like a module of Python itself, or one that is there already.
    for name in ("types.py", "pytest.py"):
        other = write(tmp_path, GOOD, name)
        assert statuses(tilejit("check", other, "--json"))["static"][0] == "ok"
    assert sys.modules["pytest"] is pytest


HOLDERS = """\
import tilejit as tile
from tilejit import T


class Holder:
    @tile.jit
    def inner(X: T.Tensor((32,), "int32")):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        X[T.cuda.thread_idx("x")] = 1

    class Deeper:
        @staticmethod
        @tile.jit
        def innermost(X: T.Tensor((32,), "int32")):
            T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
            X[T.cuda.thread_idx("x")] = missing


class Unhelpful:
    def __getattr__(self, name):
        raise RuntimeError(name)


unhelpful, again = Unhelpful(), Holder
"""


def test_kernels_of_classes_and_objects_that_answer_nothing(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    path = write(tmp_path, HOLDERS)
    ran = tilejit("check", path, "--json")
    found = {name: status for name, (status, _) in statuses(ran).items()}
    assert found == {"Holder.inner": "ok", "Holder.Deeper.innermost": "faults"}
    ran = tilejit("check", f"{path}:Holder.inner")
    assert (ran.code, ran.out) == (0, "ok  Holder.inner  as annotated\n")
    assert "its kernels: Holder.inner" in tilejit("check", f"{path}:unhelpful.inner").err
    assert "X[" in tilejit("show", f"{path}:Holder.inner", "--stage", "ir").out


def test_a_file_whose_name_no_import_can_say(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    assert tilejit("check", write(tmp_path, GOOD, "a.b ü.py")).code == 0


def test_the_files_own_code_cannot_end_a_command(tilejit: Any, tmp_path: Path) -> None:  # noqa: F811
    """``pytest.importorskip`` and ``exit`` raise what is no ``Exception``."""
    skips = write(tmp_path, "import pytest; pytest.importorskip('no_such_module')", "skips.py")
    leaves = write(tmp_path, GOOD.replace("def shown", "def shown_")
        + "\n@tile.jit(examples=lambda: exit(0))\n" + "def leaves(n): pass\n", "leaves.py")  # fmt: skip
    ran = tilejit("check", skips, leaves, "--json")
    assert ran.code == 1
    told = [(row["kernel"], row["code"], row["message"]) for row in ran.data["diagnostics"]]
    assert ("", "python/import") == told[0][:2] and told[0][2].startswith(
        "Skipped: could not import"
    )
    assert told[1:] == [("leaves", "python/exception", "SystemExit: 0")]
    shown = tilejit("show", f"{leaves}:leaves")
    assert shown.code == 1 and "error[python/exception]: SystemExit: 0" in shown.err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    def run(*given: object, **keywords: Any) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "tilejit", *map(str, given)]
        return subprocess.run(command, stderr=subprocess.PIPE, cwd=ROOT, **keywords)

    with open("/dev/full", "w") as full:
        done = run("explain", "sim/race", stdout=full)
    assert done.returncode == 1 and done.stderr.splitlines() == [
        b"tilejit explain: [Errno 28] No space left on device"
    ]
    closed = run("explain", "sim/race", preexec_fn=lambda: os.close(1))
    assert (closed.returncode, closed.stderr) == (0, b"")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run("check", write(tmp_path, GOOD), stdout=subprocess.PIPE, env=ascii_only)
    assert done.returncode == 0 and rb"needs --dtype X=\u2026" in done.stdout


def test_the_module_runs_as_a_program(tmp_path: Path) -> None:
    path = write(tmp_path, BAD)
    done = subprocess.run(
        [sys.executable, "-m", "tilejit", "check", path, "--format=gcc"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1 and "[ld_st/owner]" in done.stdout
    reader, writer = os.pipe()
    os.close(reader)
    cut = subprocess.run(
        [sys.executable, "-m", "tilejit", "explain", "sim/race"], stdout=writer, stderr=subprocess.PIPE, cwd=ROOT
    )  # fmt: skip
    os.close(writer)
    assert (cut.returncode, cut.stderr) == (1, b"")
