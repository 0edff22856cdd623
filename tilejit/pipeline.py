"""The order of steps from a Python function to a result, and the one place that joins all parts.

    parse → lower → verify → check → emit → NVRTC → disk cache → (runtime.plan) launch
                                  └→ simulate

The runtime is handed these steps (``runtime.variant.Steps``) and never imports the parts itself.
``jit`` is the public decorator. Each step's time is kept in ``timings`` for reports.
Not here: what a step does (its package), when it is wanted (``runtime.jit``).
"""

from __future__ import annotations

import ast
import gc
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from tilejit import frontend
from tilejit.errors import LaunchError, Span, SyntaxUnsupported, TileError, fault
from tilejit.ir import nodes, walk
from tilejit.ir.signature import Signature
from tilejit.runtime import cache, nvrtc, torch_glue
from tilejit.runtime.artifact import ANNOUNCED, Artifact
from tilejit.runtime.encoding import digest
from tilejit.runtime.examples import Examples
from tilejit.runtime.jit import JitFunction
from tilejit.runtime.variant import Accesses, Job, Lowered, Made, Options, Source, Variant
from tilejit.target import Target

if TYPE_CHECKING:
    from tilejit import cuda, sim
    from tilejit.rendering import kernel_page
    from tilejit.tile import banks, checker
    from tilejit.tile.global_accesses import GlobalAccesses
    from tilejit.tile.work import Work

# What a step needs is imported in the step. A process that finds its kernel in the disk cache needs no
# checker, emitter or simulator, which are half of the package, and no numpy; one that only decorates
# kernels does not lower.

_TEXTS_REMEMBERED = 64

timings: dict[str, float] = {}
"""Seconds spent in each step by this process, summed: lower, check, emit, compile, cache, simulate."""


@contextmanager
def _timed(step: str) -> Iterator[None]:
    """Keeps the step's seconds. Cyclic garbage collection waits: the steps make many small objects
    and no cycles, and a full collection beside a loaded torch takes longer than they do."""
    collecting = gc.isenabled()
    gc.disable()
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[step] = timings.get(step, 0.0) + time.perf_counter() - start
        if collecting:
            gc.enable()


@contextmanager
def _deep(place: Callable[[], Span | None]) -> Iterator[None]:
    """``deep_recursion``. ``place``: of what nests too deeply even so, for the diagnostic."""
    from tilejit.frontend.lowering import deep_recursion

    with deep_recursion():
        try:
            yield
        except RecursionError:
            raise fault(
                SyntaxUnsupported,
                "frontend/nesting",
                "this nests too deeply to be compiled",
                place(),
                help="give a name to parts of it",
            ) from None


def _deepest(function: nodes.Function) -> Callable[[], Span | None]:
    """Finds the statement that holds what is nested deepest."""

    def find() -> Span | None:
        deepest, found = 0, function.span
        left: list[tuple[Any, int, Span | None]] = [(s, 1, found) for s in function.body]
        while left:
            node, depth, span = left.pop()
            if isinstance(node, nodes.Stmt):
                span = node.span or span
            if depth > deepest:
                deepest, found = depth, span
            left += ((child, depth + 1, span) for child in walk.children(node))
        return found

    return find


class Pipeline:
    """``runtime.variant.Steps``."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, nvrtc.Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def parse(self, function: Callable[..., Any], source: str | None) -> Source:
        return frontend.parse(function, source)

    def lower(self, kernel: Source, signature: Signature, options: Options) -> Lowered:
        parsed = cast(frontend.Kernel, kernel)
        with _timed("lower"), _deep(lambda: parsed.span):
            lowered = frontend.lower(parsed, signature)
            function = lowered.function
            if options:
                from tilejit.frontend.launch import check_counts

                function = replace(function, launch=replace(function.launch, **dict(options)))
                check_counts(function.launch, function.span)
        return Lowered(function, lowered.captured, lowered.sources)

    def check(self, lowered: Lowered) -> checker.Checked:
        with _timed("check"), _deep(_deepest(lowered.function)):
            from tilejit.families import FAMILIES
            from tilejit.tile import checker

            return checker.check(lowered.function, FAMILIES)

    def banks(self, lowered: Lowered) -> Sequence[banks.BankReport]:
        with _deep(_deepest(lowered.function)):
            from tilejit.families import FAMILIES
            from tilejit.tile import banks

            return banks.bank_report(lowered.function, FAMILIES)

    def accesses(self, checked: checker.Checked) -> GlobalAccesses:
        with _deep(_deepest(checked.function)):
            from tilejit.tile.global_accesses import global_accesses

            return global_accesses(checked)

    def work(self, checked: checker.Checked, values: Mapping[str, int]) -> Work:
        with _deep(_deepest(checked.function)):
            from tilejit.tile.work import work

            return work(checked, values)

    def emit(self, checked: checker.Checked) -> cuda.Source:
        with _timed("emit"), _deep(_deepest(checked.function)):
            from tilejit import cuda

            return cuda.emit(checked)

    def compile(
        self,
        kernel: Source,
        lowered: Lowered,
        signature: Signature,
        options: Options,
        check: Callable[[], checker.Checked],
    ) -> Artifact:
        key, keyed_on, found = self._looked_up(kernel, lowered, signature, options)
        if found is None:
            found = self._made(lowered.function, check, key, keyed_on)
            _put(found)
        return _announce(found, lowered)

    def compile_elsewhere(
        self,
        kernel: Source,
        lowered: Lowered,
        signature: Signature,
        options: Options,
        run: Callable[[Job], Made],
    ) -> tuple[Artifact, Accesses]:
        key, keyed_on, found = self._looked_up(kernel, lowered, signature, options)
        with _deep(_deepest(lowered.function)):  # pickling descends, too
            made = run(CompileJob(lowered.function, key, keyed_on, found is not None))
        if found is None:
            assert made.artifact is not None, "neither the disk cache nor the job has it"
            found = made.artifact
            _put(found)
        return _announce(found, lowered), made.accesses

    def _looked_up(
        self, kernel: Source, lowered: Lowered, signature: Signature, options: Options
    ) -> tuple[str, Mapping[str, str], Artifact | None]:
        """The key in the disk cache, its parts, and what is there."""
        start = time.perf_counter()
        with _deep(_deepest(lowered.function)):
            keyed_on = _keyed_on(kernel, lowered, signature, options)
        key = digest(tuple(keyed_on.items()))
        with _timed("cache"):
            entry = cache.get(key)
        if entry is None:
            return key, keyed_on, None
        seconds = time.perf_counter() - start
        return key, keyed_on, Artifact.from_entry(key, entry, "from the disk cache", seconds)

    def _made(
        self,
        function: nodes.Function,
        check: Callable[[], checker.Checked],
        key: str,
        keyed_on: Mapping[str, str],
    ) -> Artifact:
        start = time.perf_counter()
        source = self.emit(check())
        compiled, fresh = self._compile_text(source, function.target)
        return Artifact(
            kernel=function.name,
            entry=source.entry,
            target=function.target,
            cubin=compiled.cubin,
            ptx=compiled.ptx,
            cuda=source.text,
            log=compiled.log,
            params=source.params,
            dynamic_shared_bytes=source.dynamic_smem_bytes,
            resources=compiled.resources,
            tensor_maps=source.tensor_maps,
            warnings=compiled.warnings,
            key=key,
            keyed_on=keyed_on,
            origin=f"compiled by NVRTC {_nvrtc_version()}"
            if fresh
            else "same text as another variant",
            seconds=time.perf_counter() - start,
        )

    def _compile_text(self, source: cuda.Source, target: str) -> tuple[nvrtc.Compiled, bool]:
        """NVRTC, or what it gave for the same text: variants often differ in nothing it sees."""
        key = digest(source.text, source.entry, target)
        with self._lock:
            known = self._texts.get(key)
        if known is not None:
            return known, False
        with _timed("compile"):
            compiled = nvrtc.compile_cubin(source.text, target, source.entry)
        with self._lock:
            self._texts[key] = compiled
            while len(self._texts) > _TEXTS_REMEMBERED:
                self._texts.popitem(last=False)
        return compiled, True

    def simulate(
        self,
        checked: checker.Checked,
        tensors: Mapping[str, Any],
        scalars: Mapping[str, int | float | bool],
        grid: tuple[int, int, int],
    ) -> sim.SimReport:
        """Runs a checked kernel on CPU tensors in place.

        A tensor that requires grad is lent as a copy, and refused if the kernel wrote to it.
        """
        from tilejit import sim
        from tilejit.families import FAMILIES

        lent = {n: _copy(t) for n, t in tensors.items() if t.requires_grad}
        buffers = {n: global_buffer(n, lent.get(n, t)) for n, t in tensors.items()}
        with _timed("simulate"), _deep(_deepest(checked.function)):
            report = sim.run(checked, buffers, dict(scalars), grid, _SIMULATION.get(), FAMILIES)
        for name, copy in lent.items():
            if not _same_bits(copy, tensors[name]):
                raise fault(
                    LaunchError,
                    "launch/requires-grad",
                    f"the kernel wrote to {name!r}, which requires grad: autograd would not know",
                    help=f"pass {name}.detach(), or wrap the kernel in a torch.autograd.Function",
                )
        return report

    def show(self, lowered: Lowered) -> str:
        with _deep(_deepest(lowered.function)):
            from tilejit.ir import script

            return script.print_function(lowered.function)

    def ast(self, kernel: Source) -> str:
        import astunparse

        parsed = cast(frontend.Kernel, kernel)
        tree: ast.AST = parsed.node
        with _deep(lambda: parsed.span):
            text: str = astunparse.dump(tree)
        return text

    def sass(self, artifact: Artifact) -> str:
        from tilejit.runtime import sass

        return sass.disassemble(artifact.cubin)

    def page(self, variant: Variant) -> str:
        from tilejit.rendering import kernel_page

        try:
            checked = variant.checked
        except TileError as error:
            return kernel_page.broken_page(variant, error)
        with _deep(_deepest(checked.function)):
            return kernel_page.kernel_page(variant, _facts(checked, variant), _generated(variant))

    def outline(self, name: str, kernel: Source, doc: str | None) -> str:
        from tilejit.rendering import kernel_page

        return kernel_page.outline_page(name, kernel.params, doc)


def _facts(checked: checker.Checked, variant: Variant) -> kernel_page.Facts:
    from tilejit.families import FAMILIES
    from tilejit.rendering import kernel_page
    from tilejit.tile import checker
    from tilejit.tile.issue_counts import issue_counts

    calls = checker.tile_calls(checked.function, FAMILIES)
    return kernel_page.Facts(calls, issue_counts(checked), variant.banks)


def _generated(variant: Variant) -> list[kernel_page.Stage]:
    """The stages that a cubin has; SASS needs a disassembler besides."""
    from tilejit.rendering import stages
    from tilejit.rendering.kernel_page import Stage
    from tilejit.runtime import sass

    if not variant.compiled:
        return []
    try:
        disassembled = Stage(
            "SASS", tuple(stages.sass(sass.disassemble(variant.cubin, lines=True)))
        )
    except LaunchError as error:
        disassembled = Stage("SASS", why_not=error.render())
    return [
        Stage("CUDA", tuple(stages.cuda(variant.cuda))),
        Stage("PTX", tuple(stages.ptx(variant.ptx))),
        disassembled,
    ]


@dataclass(frozen=True, slots=True)
class CompileJob:
    """``runtime.variant.Job``. Only IR travels, so a kernel of a notebook or a closure does as any other.
    ``compiled``: all but what the kernel accesses is known."""

    function: nodes.Function
    key: str
    keyed_on: Mapping[str, str]
    compiled: bool

    @staticmethod
    def prepare() -> None:
        from tilejit import cuda, families  # noqa: F401 (loaded, not used)
        from tilejit.tile import checker, global_accesses  # noqa: F401

        nvrtc.version()

    def check(self) -> checker.Checked:
        return STEPS.check(Lowered(self.function, (), ()))

    def compile(self, checked: checker.Checked) -> Made:
        accesses = STEPS.accesses(checked)
        if self.compiled:
            return Made(None, accesses)
        artifact = STEPS._made(self.function, lambda: checked, self.key, self.keyed_on)
        return Made(artifact, accesses)


def _put(artifact: Artifact) -> None:
    with _timed("cache"):
        cache.put(artifact.key, artifact.to_entry())


def _keyed_on(
    kernel: Source, lowered: Lowered, signature: Signature, options: Options
) -> dict[str, str]:
    """Everything a cubin depends on, each as a digest. The IR is among it: whatever an outside value
    did to the program shows there, even a value that has no encoding."""
    from tilejit.ir import script

    return {
        "kernel": digest(kernel.name, lowered.sources),
        "place": digest(_place(kernel)),
        "captured": digest(tuple((label, value) for label, value in lowered.captured)),
        "signature": digest(signature),
        "options": digest(options),
        "target": signature.target,
        "ir": digest(script.print_function(lowered.function)),
        "nvrtc": _nvrtc_version(),
        "tilejit": cache.package_digest(),
    }


def _nvrtc_version() -> str:
    return ".".join(map(str, nvrtc.version()))


def _place(kernel: Source) -> tuple[str, int]:
    """File and line, which the line table of the cubin holds. A notebook cell's file has a new name
    in every session, so it counts by its text alone."""
    file = kernel.file
    temporary = file.startswith("<") or "ipykernel_" in file
    return ("", 0) if temporary else (file, cast(frontend.Kernel, kernel).span.line)


class CompilerWarning(UserWarning):
    """The kernel is right, but something costs speed: a spill, serialised wgmma instructions."""


def _announce(artifact: Artifact, lowered: Lowered) -> Artifact:
    """Tells the user what the compiler warned about, and writes the stages where asked to."""
    _keep(artifact, lowered)
    for diagnostic in artifact.warnings if ANNOUNCED.get() else ():
        text = diagnostic.render().removeprefix("error")
        warnings.warn(f"{artifact.kernel}: {text}", CompilerWarning, stacklevel=2)
    return artifact


def _keep(artifact: Artifact, lowered: Lowered) -> None:
    """``TILEJIT_KEEP=directory``: writes ir, cuda, ptx and cubin of each variant there."""
    folder = os.environ.get("TILEJIT_KEEP")
    if not folder:
        return
    try:
        with _deep(_deepest(lowered.function)):
            _write_stages(Path(folder), artifact, lowered)
    except OSError as error:
        warnings.warn(f"TILEJIT_KEEP={folder}: cannot write there: {error}", stacklevel=2)


def _write_stages(root: Path, artifact: Artifact, lowered: Lowered) -> None:
    from tilejit.ir import script

    root.mkdir(parents=True, exist_ok=True)
    stem = f"{artifact.kernel}-{artifact.target}-{artifact.key[:12]}"
    (root / f"{stem}.ir").write_text(script.print_function(lowered.function))
    (root / f"{stem}.cu").write_text(artifact.cuda)
    (root / f"{stem}.ptx").write_text(artifact.ptx)
    (root / f"{stem}.cubin").write_bytes(artifact.cubin)


# --- CPU tensors as the simulator's global memory


def global_buffer(name: str, tensor: Any) -> sim.GlobalBuffer:
    """The bytes from a CPU tensor's first to its last element, shared, at its own address.

    Bytes between its elements (a strided view) are marked as not the kernel's.
    """
    import torch

    from tilejit import sim

    size = tensor.element_size()
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    span_bytes = span * size if tensor.numel() else 0
    window = torch.empty(0, dtype=torch.uint8)
    window.set_(tensor.untyped_storage(), tensor.storage_offset() * size, (span_bytes,), (1,))
    valid = None
    if tensor.numel() and not _is_dense(tensor):
        mask = torch.zeros(span, dtype=torch.bool)
        mask.as_strided(_once(tensor).shape, tensor.stride()).fill_(True)
        valid = mask.repeat_interleave(size).numpy()
    dtype = torch_glue.dtype_of(tensor)
    return sim.GlobalBuffer(name, window.numpy(), tensor.data_ptr(), valid, dtype=dtype)


def _is_dense(tensor: Any) -> bool:
    """Whether its elements fill the bytes from the first to the last."""
    step = 1
    for stride, extent in sorted(zip(tensor.stride(), tensor.shape)):
        if extent > 1 and stride:
            if stride != step:
                return False
            step *= extent
    return True


def _once(tensor: Any) -> Any:
    """An expanded tensor's elements without their repetition."""
    shape = [n if s else 1 for n, s in zip(tensor.shape, tensor.stride())]
    return tensor.as_strided(shape, tensor.stride())


def _copy(tensor: Any) -> Any:
    """The same contents at the same strides in other memory (a clone may be denser)."""
    import torch

    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))
    memory = torch.zeros(span if tensor.numel() else 0, dtype=tensor.dtype)
    copy = memory.as_strided(tensor.shape, tensor.stride())
    # Elements that share an address (an expanded tensor) hold the same value.
    memory.copy_(tensor.detach().as_strided(memory.shape, (1,)))
    return copy


def _same_bits(a: Any, b: Any) -> bool:
    import torch

    left, right = (
        _once(t.detach()).clone(memory_format=torch.contiguous_format).reshape(-1) for t in (a, b)
    )
    return bool(torch.equal(left.view(torch.uint8), right.view(torch.uint8)))


# --- the decorator

STEPS = Pipeline()

_SIMULATION: ContextVar[sim.SimOptions | None] = ContextVar("simulation", default=None)


@contextmanager
def simulation(*, target: str | None = None, **options: Any) -> Iterator[None]:
    """Calls on CPU tensors inside the block run with these ``sim.SimOptions``: ``seed`` (the order of
    warps and of asynchronous copies), ``hazards``, ``step_limit``, ``fault_limit``, ``output``; and as on a
    GPU of ``target``, such as ``sm_100a``, where the kernel does not name its own."""
    from tilejit import sim

    wanted = torch_glue.SIMULATED_TARGET.get() if target is None else Target.parse(target).name
    token = _SIMULATION.set(sim.SimOptions(**options))
    target_token = torch_glue.SIMULATED_TARGET.set(wanted)
    try:
        yield
    finally:
        torch_glue.SIMULATED_TARGET.reset(target_token)
        _SIMULATION.reset(token)


@overload
def jit(
    function: Callable[..., Any],
    /,
    *,
    source: str | None = None,
    target: str | None = None,
    examples: Examples | None = None,
) -> JitFunction: ...
@overload
def jit(
    *, source: str | None = None, target: str | None = None, examples: Examples | None = None
) -> Callable[[Callable[..., Any]], JitFunction]: ...
def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    source: str | None = None,
    target: str | None = None,
    examples: Examples | None = None,
) -> JitFunction | Callable[[Callable[..., Any]], JitFunction]:
    """``@tile.jit``: a Python function as a GPU kernel, or as a helper that kernels inline.

    ``source``: the function's text, where Python keeps none (``exec``). ``target``: compile for this
    target always, such as ``sm_100a``. ``examples``: what the kernel is called with, for tools (see
    ``runtime.examples``). Raises ``SyntaxUnsupported`` when the source cannot be read; the body is looked
    at when the kernel is specialised.
    """
    if function is not None:
        return JitFunction(function, STEPS, source=source, target=target, examples=examples)
    return lambda f: JitFunction(f, STEPS, source=source, target=target, examples=examples)
