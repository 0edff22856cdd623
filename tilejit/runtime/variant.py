"""One specialisation of a kernel, from its lowered IR to its cubin, each step made when asked for.

Not here: the steps themselves (``pipeline`` hands them in as ``Steps``), launching (``plan``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tilejit.errors import Diagnostic
from tilejit.ir.nodes import Function
from tilejit.ir.signature import Arg, ConstArg, ScalarArg, Signature, TensorArg
from tilejit.runtime import artifact as artifacts
from tilejit.runtime.artifact import Artifact, Stats
from tilejit.runtime.specialise import Param


class Source(Protocol):
    """A parsed kernel, as the frontend gives it."""

    @property
    def name(self) -> str: ...
    @property
    def params(self) -> Sequence[Param]: ...
    @property
    def file(self) -> str: ...
    @property
    def text(self) -> str:
        """The function's own source."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A specialised kernel in IR, and what the lowering read beside the signature."""

    function: Function
    captured: tuple[tuple[str, Any], ...]
    sources: tuple[str, ...]


class Accesses(Protocol):
    """Names of tensor parameters: supersets of what a launch reads and of what it writes.
    ``elsewhere``: it may access what none of its tensors leads to."""

    @property
    def read(self) -> frozenset[str]: ...
    @property
    def written(self) -> frozenset[str]: ...
    @property
    def elsewhere(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Made:
    """What a compilation in another process gives; no artifact where the disk cache had one."""

    artifact: Artifact | None
    accesses: Accesses


class Job(Protocol):
    """What is left to do of a kernel's compilation. It can be pickled, and done by another process."""

    def check(self) -> Any:
        """The checked function; raises with every broken contract."""

    def compile(self, checked: Any) -> Made: ...

    @staticmethod
    def prepare() -> None:
        """Loads what the steps need, in a process that waits for its first job."""


class Workload(Protocol):
    """What one CTA of a launch asks of its multiprocessor, counted; see ``tile.work.Work``."""

    @property
    def amounts(self) -> Mapping[str, float]: ...
    @property
    def waits(self) -> int: ...
    @property
    def copied_bytes(self) -> float: ...
    @property
    def rounds(self) -> int: ...
    @property
    def unknown(self) -> tuple[str, ...]: ...


Options = tuple[tuple[str, Any], ...]
"""Fields of the launch that ``k[LaunchConfig(...)]`` sets beyond grid, block and cluster."""


class Steps(Protocol):
    """What the runtime is handed by ``pipeline``: every step that needs the rest of tilejit."""

    def parse(self, function: Any, source: str | None) -> Source: ...

    def lower(self, kernel: Source, signature: Signature, options: Options) -> Lowered: ...

    def check(self, lowered: Lowered) -> Any:
        """The checked function; raises with every broken contract."""

    def banks(self, lowered: Lowered) -> Sequence[Any]:
        """Bank conflicts of every shared-memory access, as ``tile.banks.BankReport``."""

    def accesses(self, checked: Any) -> Accesses:
        """Which tensors the checked function may read and write."""

    def work(self, checked: Any, values: Mapping[str, int]) -> Workload:
        """The work of a launch's first CTA. ``values``: its scalars and sizes by name, its grid as
        ``nctaid.x``, ``nctaid.y`` and ``nctaid.z``."""

    def compile(
        self, kernel: Source, lowered: Lowered, signature: Signature, options: Options, check: Any
    ) -> Artifact:
        """From the disk cache, or by ``check()``, emission and NVRTC."""

    def compile_elsewhere(
        self,
        kernel: Source,
        lowered: Lowered,
        signature: Signature,
        options: Options,
        run: Callable[[Job], Made],
    ) -> tuple[Artifact, Accesses]:
        """From the disk cache as far as that has it, the rest by ``run(job)``."""

    def simulate(
        self,
        checked: Any,
        tensors: Mapping[str, Any],
        scalars: Mapping[str, int | float | bool],
        grid: tuple[int, int, int],
    ) -> Any: ...

    def show(self, lowered: Lowered) -> str:
        """The IR as text."""

    def ast(self, kernel: Source) -> str:
        """The kernel's Python syntax tree as text."""

    def sass(self, artifact: Artifact) -> str: ...

    def page(self, variant: Variant) -> str:
        """The variant as HTML for notebooks; makes nothing that is not there but the check."""

    def outline(self, name: str, kernel: Source, doc: str | None) -> str:
        """A kernel without variants as HTML: its parameters and how to specialise it."""


@dataclass(eq=False, repr=False)
class Variant:
    """A kernel for one signature. What ``k.compile(...)`` returns.

    ``asm["ast" | "ir" | "cuda" | "ptx" | "sass" | "cubin"]`` and the properties of those names give
    each stage; ``stats`` what it uses; ``origin`` and ``seconds`` where the cubin came from.
    """

    source: Source
    signature: Signature
    options: Options
    steps: Steps
    reason: str = ""
    number: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    _lowered: Lowered | None = None
    _checked: Any = None
    _banks: Sequence[Any] | None = None
    _accesses: Accesses | None = None
    _artifact: Artifact | None = None

    def __repr__(self) -> str:
        state = "compiled" if self.compiled else "not compiled"
        arguments = ", ".join(f"{name}={_brief(arg)}" for name, arg in self.signature.args)
        return f"<variant of {self.source.name} for {self.target}, {state}: {arguments}>"

    def _repr_html_(self) -> str:
        return self.steps.page(self)

    @property
    def lowered(self) -> Lowered:
        with self.lock:
            if self._lowered is None:
                self._lowered = self.steps.lower(self.source, self.signature, self.options)
            return self._lowered

    @property
    def function(self) -> Function:
        """The typed tile IR."""
        return self.lowered.function

    @property
    def checked(self) -> Any:
        """The IR after its contracts were checked; raises ``ContractError`` with all faults."""
        with self.lock:
            if self._checked is None:
                self._checked = self.steps.check(self.lowered)
            return self._checked

    @property
    def banks(self) -> Sequence[Any]:
        """What each tile access to shared memory costs: ``tile.banks.BankReport``s in program order.

        Computed when first asked for, by another check; no compiler or GPU needed.
        """
        with self.lock:
            if self._banks is None:
                self._banks = self.steps.banks(self.lowered)
            return self._banks

    @property
    def read(self) -> frozenset[str]:
        """Names of the tensor parameters that the kernel may read: what it reads is among them. No
        compiler or GPU needed. A kernel that follows an address it was given may read every tensor."""
        return self._accessed.read

    @property
    def written(self) -> frozenset[str]:
        """Names of the tensor parameters that the kernel may write; see ``read``."""
        return self._accessed.written

    @property
    def follows_addresses(self) -> bool:
        """Whether the kernel may access memory through an address that it was given as a number, read
        from memory, or has in a tensor map that the caller encoded. It then may touch what no argument
        names, and such a kernel works only on the very tensors it was prepared for."""
        return self._accessed.elsewhere

    @property
    def _accessed(self) -> Accesses:
        known = self._accesses  # without the lock, which a thread that compiles holds for long
        if known is not None:
            return known
        with self.lock:
            if self._accesses is None:
                self._accesses = self.steps.accesses(self.checked)
            return self._accesses

    def work(self, values: Mapping[str, int]) -> Workload:
        """What the first CTA of a launch has to do, counted in the checked IR; no compiler or GPU needed.
        ``values``: the launch's scalars and sizes by name, its grid as ``nctaid.x``, …"""
        return self.steps.work(self.checked, values)

    @property
    def artifact(self) -> Artifact:
        """The compiled kernel: from the disk cache or compiled now."""
        with self.lock:
            if self._artifact is None:
                self._artifact = self.steps.compile(
                    self.source, self.lowered, self.signature, self.options, lambda: self.checked
                )
            return self._artifact

    def compile_elsewhere(self, run: Callable[[Job], Made]) -> None:
        """Gets the compiled kernel and what it accesses by ``run``, in another process, say. ``checked`` is
        not made by this: who asks for it waits for another check."""
        with self.lock:
            if self._artifact is None:
                self._artifact, self._accesses = self.steps.compile_elsewhere(
                    self.source, self.lowered, self.signature, self.options, run
                )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the compiled kernel to one file, from which ``tile.load(path)`` launches it without its
        Python source; compiles it first where that has not been done."""
        from tilejit.runtime import saved

        return saved.save(self, path)

    @property
    def compiled(self) -> bool:
        """Whether the cubin is already at hand."""
        return self._artifact is not None

    @property
    def target(self) -> str:
        return self.signature.target

    @property
    def origin(self) -> str:
        return self.artifact.origin

    @property
    def seconds(self) -> float:
        """What getting the cubin took, from the lowered IR on."""
        return self.artifact.seconds

    @property
    def stats(self) -> Stats:
        return artifacts.stats(self.artifact, self.function.launch.threads, self._bank_conflicts)

    def _bank_conflicts(self) -> tuple[str, ...]:
        """One line per access that has bank conflicts, or whose banks are not known; rounds of an
        unrolled loop that cost the same have one line."""
        return tuple(dict.fromkeys(str(b) for b in self.banks if b.conflicted or b.unknown))

    @property
    def ast(self) -> str:
        return self.steps.ast(self.source)

    @property
    def ir(self) -> str:
        return self.steps.show(self.lowered)

    @property
    def cuda(self) -> str:
        return self.artifact.cuda

    @property
    def ptx(self) -> str:
        return self.artifact.ptx

    @property
    def cubin(self) -> bytes:
        return self.artifact.cubin

    @property
    def sass(self) -> str:
        return self.steps.sass(self.artifact)

    @property
    def log(self) -> str:
        """What the compiler said, resources and warnings included."""
        return self.artifact.log

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        """What the compiler said that costs speed: spills, serialised wgmma instructions."""
        return self.artifact.warnings

    @property
    def asm(self) -> Assembly:
        return Assembly(self)


def _brief(argument: Arg) -> str:
    """An argument in a few characters: ``float32[256, n]``, with ``n`` for a run-time size."""
    match argument:
        case TensorArg(dtype=dtype, shape=shape):
            return f"{dtype}[{', '.join('n' if size is None else str(size) for size in shape)}]"
        case ScalarArg(dtype=dtype):
            return str(dtype)
        case ConstArg(value=value):
            text = repr(value)
            return text if len(text) <= _BRIEF else f"{text[: _BRIEF - 1]}…"


_BRIEF = 40

STAGES = ("ast", "ir", "cuda", "ptx", "sass", "cubin")


class Assembly(Mapping[str, Any]):
    """A variant's stages by name; made when read, so ``ir`` needs no compiler."""

    def __init__(self, variant: Variant):
        self._variant = variant

    def __getitem__(self, stage: str) -> Any:
        if stage not in STAGES:
            raise KeyError(f"no stage {stage!r}; there are {', '.join(STAGES)}")
        return getattr(self._variant, stage)

    def __iter__(self) -> Any:
        return iter(STAGES)

    def __len__(self) -> int:
        return len(STAGES)
