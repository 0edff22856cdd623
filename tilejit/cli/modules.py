"""A file of kernels as a module: imported under its own name, never as ``__main__``; its faults as diagnostics.

Not here: what a kernel is checked with (``arguments``).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from tilejit.cli.output import WrongUse
from tilejit.errors import Diagnostic, Span, TileError
from tilejit.runtime.jit import JitFunction


@dataclass(frozen=True, slots=True)
class Wanted:
    """``FILE`` or ``FILE:KERNEL`` of a command line. ``kernel`` None: all of them."""

    path: Path
    kernel: str | None

    @staticmethod
    def parse(text: str) -> Wanted:
        file, colon, name = text.rpartition(":")
        path, kernel = (Path(file), name) if colon and file else (Path(text), None)
        if not path.exists() and Path(text).exists():
            path, kernel = Path(text), None
        if path.is_dir():
            raise WrongUse(f"{path} is a directory, expected a Python file: {path}/*.py names many")
        if not path.exists():
            raise WrongUse(f"there is no file {path}")
        return Wanted(path, kernel)


@dataclass(slots=True)
class Imported:
    """``module`` None: its import failed, for the reasons in ``faults``."""

    path: Path
    module: ModuleType | None
    faults: list[Diagnostic] = field(default_factory=list)

    def kernels(self) -> dict[str, JitFunction]:
        """The kernels that the file itself defines, by name, in its order; ``A.scale`` of a class ``A``."""
        found = {
            name: kernel
            for name, kernel in _named_kernels(self.module)
            if _same_file(kernel.__wrapped__.__code__.co_filename, self.path)
        }
        return dict(sorted(found.items(), key=lambda item: _line(item[1])))

    def kernel(self, name: str) -> JitFunction:
        """That of this name, wherever it is from; ``WrongUse`` names those that there are."""
        value: object = self.module
        for part in name.split("."):
            value = _attribute(value, part)
        kernel = _kernel_of(value)
        if kernel is None:
            names = ", ".join(self.kernels()) or "none"
            raise WrongUse(f"{self.path} has no kernel {name!r}; its kernels: {names}")
        return kernel


def _kernel_of(value: object) -> JitFunction | None:
    """A kernel, or the one that an autotuned kernel tunes."""
    if isinstance(value, JitFunction):
        return value
    inner = _attribute(value, "kernel")
    return inner if isinstance(inner, JitFunction) else None


def _attribute(value: object, name: str) -> object:
    """An attribute of any object of the file; None where asking for it raises."""
    try:
        return getattr(value, name, None)
    except Exception:
        return None


def _named_kernels(holder: object, prefix: str = "") -> Iterator[tuple[str, JitFunction]]:
    """The kernels that a module or class has as attributes, and those of the classes written inside it."""
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        value = value.__func__ if isinstance(value, staticmethod) else value
        kernel = _kernel_of(value)
        if kernel is not None:
            yield prefix + name, kernel
        elif isinstance(value, type) and value.__qualname__ == prefix + name:
            yield from _named_kernels(value, f"{prefix}{name}.")


def _line(kernel: JitFunction) -> int:
    return int(kernel.__wrapped__.__code__.co_firstlineno)


def _same_file(name: str, path: Path) -> bool:
    try:
        return Path(name).samefile(path)
    except OSError:
        return False


def load(path: Path) -> Imported:
    """Imports ``path``. What it prints goes to stderr, so that stdout holds the command's output only."""
    path = path.resolve()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return Imported(path, _import(path))
    except (WrongUse, KeyboardInterrupt):
        raise
    except TileError as error:
        return Imported(path, None, list(error.diagnostics))
    except SyntaxError as error:
        return Imported(path, None, [_syntax(error, path)])
    except BaseException as error:  # exit(), pytest.importorskip: the other files are checked
        return Imported(path, None, [exception(error, path, "python/import")])


def _import(path: Path) -> ModuleType:
    root, name = _place(path)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if "." in path.stem:  # "a.b.py": a name that no import statement can say
        name = path.stem.replace(".", "_")
    elif "." in name:
        module = importlib.import_module(name)
        if _same_file(str(module.__file__), path):
            return module
    if name in sys.modules or name in sys.stdlib_module_names:
        name += "_checked"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WrongUse(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _place(path: Path) -> tuple[Path, str]:
    """The directory that Python finds the module from, and its name there, packages included."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _syntax(error: SyntaxError, path: Path) -> Diagnostic:
    line, column = error.lineno or 1, (error.offset or 1) - 1
    same_line = error.end_lineno in (None, line)
    end = (error.end_offset or 0) - 1 if same_line else 0
    return Diagnostic(
        "python/syntax",
        str(error.msg),
        Span(error.filename or str(path), line, max(column, 0), line, max(end, 0)),
    )


def exception(error: BaseException, path: Path, code: str) -> Diagnostic:
    """Any exception as a diagnostic at the last line of ``path`` that it came through."""
    what = f"{type(error).__name__}: {error}".rstrip(": ")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _same_file(f.filename, path)]
    span = None
    if frames:
        last = frames[-1]
        one_line = last.end_lineno == last.lineno
        span = Span(
            str(path), last.lineno or 1, last.colno or 0, last.lineno or 1,
            (last.end_colno or 0) if one_line else 0, last.name if last.name != "<module>" else "",
        )  # fmt: skip
    notes = () if span else (("where", str(path)),)
    return Diagnostic(code, what, span, notes)


@contextlib.contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """What code of the file at ``path`` raises inside the block (examples and launches call it) as a
    ``TileError``; its exit() too, which would end the command as if all were right."""
    try:
        yield
    except (WrongUse, TileError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TileError([exception(error, path, "python/exception")]) from error


def each(wanted: Wanted) -> Iterator[tuple[Imported, str, JitFunction]]:
    """The kernels that ``FILE[:KERNEL]`` names; ``TileError`` when the file cannot be imported."""
    imported = load(wanted.path)
    if imported.faults:
        raise TileError(imported.faults)
    if wanted.kernel is not None:
        yield imported, wanted.kernel, imported.kernel(wanted.kernel)
        return
    for name, kernel in imported.kernels().items():
        yield imported, name, kernel
