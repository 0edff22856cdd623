"""One specialisation of a kernel, from its lowered IR to its cubin, each step made when asked for.

Not here: the steps themselves (``pipeline`` hands them in as ``Steps``), launching (``plan``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tilejit.errors import Diagnostic
from tilejit.ir.nodes import Function
from tilejit.ir.signature import Signature
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


@dataclass(frozen=True, slots=True)
class Lowered:
    """A specialised kernel in IR, and what the lowering read beside the signature."""

    function: Function
    captured: tuple[tuple[str, Any], ...]
    sources: tuple[str, ...]


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

    def compile(
        self, kernel: Source, lowered: Lowered, signature: Signature, options: Options, check: Any
    ) -> Artifact:
        """From the disk cache, or by ``check()``, emission and NVRTC."""

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


@dataclass(eq=False)
class Variant:
    """A kernel for one signature. What ``k.compile(...)`` returns.

    ``asm["ast" | "ir" | "cuda" | "ptx" | "sass" | "cubin"]`` and the properties of those names give
    each stage; ``stats`` what it uses; ``origin`` and ``seconds`` where the cubin came from.
    """

    source: Source = field(repr=False)
    signature: Signature
    options: Options
    steps: Steps = field(repr=False)
    reason: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock, repr=False)
    _lowered: Lowered | None = field(default=None, repr=False)
    _checked: Any = field(default=None, repr=False)
    _banks: Sequence[Any] | None = field(default=None, repr=False)
    _artifact: Artifact | None = field(default=None, repr=False)

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
    def artifact(self) -> Artifact:
        """The compiled kernel: from the disk cache or compiled now."""
        with self.lock:
            if self._artifact is None:
                self._artifact = self.steps.compile(
                    self.source, self.lowered, self.signature, self.options, lambda: self.checked
                )
            return self._artifact

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
