"""``tile.load``: a kernel that was compiled and saved before, launched without its Python source.

It takes the arguments that the Python function took and launches on torch's current stream, after testing
them against the one signature that it was compiled for. The generated function of ``dispatch`` and the C
launcher serve it as they serve any kernel. There is nothing to simulate and nothing to compile anew.

Not here: what is in the file (``saved``), testing arguments one by one (``specialise``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from tilejit.errors import LaunchError, Report, fault
from tilejit.ir.signature import Arg, ConstArg, Signature, TensorArg
from tilejit.runtime import artifact as artifacts
from tilejit.runtime import driver as drivers
from tilejit.runtime import plan as plans
from tilejit.runtime import sass, torch_glue
from tilejit.runtime import saved as saveds
from tilejit.runtime.artifact import Stats
from tilejit.runtime.dispatch import Dispatch, typed
from tilejit.runtime.encoding import digest
from tilejit.runtime.plan import Grid, GridExceeded, Plan
from tilejit.runtime.saved import Opaque, Saved
from tilejit.runtime.specialise import Specialised, is_empty, refuse_empty, specialise

STAGES = ("cuda", "ptx", "sass", "cubin")
_NOT_KEPT = "bank conflicts: not kept when this kernel was saved"


def load(path: str | os.PathLike[str]) -> LoadedKernel:
    """The kernel that ``k.compile(...).save(path)`` wrote. Needs a GPU only when it is launched.

    ``LaunchError``, ``saved/…``, for a file that is damaged, is none of these, or newer than this tilejit.
    """
    _hide_entries()
    return LoadedKernel(saveds.read(path))


def _hide_entries() -> None:
    """``torch.compile`` does not look into a launch."""
    torch_glue.hide(
        LoadedKernel.__call__, LoadedKernel.__getitem__, LoadedLaunch.__call__, _Entry.slow, _Entry.bind
    )  # fmt: skip


class _Entry:
    """What the kernel and the kernel with a grid have in common: all that takes its arguments."""

    kernel: LoadedKernel
    grid: Grid | None = None
    grid_function: Callable[[dict[str, Any]], Any] | None = None
    table: dict[Any, Callable[..., None]]

    def bind(self, *args: Any, **keywords: Any) -> Callable[[], None]:
        """A launcher without arguments for exactly these tensors and values, which it holds."""
        prepared = self.kernel._prepared(self, args, keywords)
        if prepared is None:
            return lambda: None
        plan, grid, _, values, special = prepared
        return plans.bind(plan, grid, values, special.values)

    def slow(self, args: Sequence[Any], keywords: dict[str, Any]) -> None:
        """The launch path for whatever the generated function does not know."""
        prepared = self.kernel._prepared(self, args, keywords)
        if prepared is None:
            return
        plan, grid, key, values, special = prepared
        try:
            plan.run(grid, *values)
        except GridExceeded as exceeded:
            raise self.kernel._too_large(exceeded.grid) from None
        if not special.pinned:
            # A pinned host tensor looks like any other in the key, and others must be refused.
            self.table[key] = plan.run

    def evaluate(self, arguments: dict[str, Any]) -> Grid | None:
        """The caller's grid: given, or computed from the arguments by name; None: the kernel's."""
        if self.grid_function is None:
            return self.grid
        return plans.normalise_grid(self.grid_function(arguments))


class LoadedKernel(_Entry):
    """A kernel for one signature, from a file. ``k(*args)`` launches it, ``k[grid](*args)`` with the
    caller's grid. What is compiled in (``T.constexpr``) may be left out or must be what it was.

    ``signature``: what it takes; ``stats`` what it uses; ``asm["cuda" | "ptx" | "sass" | "cubin"]``.
    """

    def __init__(self, saved: Saved):
        self.saved = saved
        self.kernel = self
        self.table = {}
        self.__name__ = saved.artifact.kernel
        self._caller_table: dict[Any, Callable[..., None]] = {}
        self._plans: dict[tuple[int, bool], Plan] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<saved tile kernel {self.__name__} for {self.target}>"

    def __call__(self, *args: Any, **keywords: Any) -> None:
        """Launches on torch's current stream; ``LaunchError`` says which argument differs how."""
        self._dispatch.call(self, *args, **keywords)

    def __getitem__(self, grid: Any) -> LoadedLaunch:
        """The kernel with this grid: an int, tuple, list, or a function of the arguments by name."""
        return LoadedLaunch(self, grid)

    # --- looking at it

    @property
    def signature(self) -> Signature:
        """What it was compiled for."""
        return self.saved.signature

    @property
    def target(self) -> str:
        return self.saved.artifact.target

    @property
    def stats(self) -> Stats:
        """Registers, spills, shared memory and occupancy; printed, its bank conflicts too."""
        conflicts = self.saved.bank_conflicts
        found = (_NOT_KEPT,) if conflicts is None else conflicts
        return artifacts.stats(self.saved.artifact, self.saved.launch.threads, lambda: found)

    @property
    def asm(self) -> Mapping[str, Any]:
        """Its stages by name."""
        return LoadedAssembly(self.saved)

    # --- launching

    @cached_property
    def _dispatch(self) -> Dispatch:
        _hide_entries()  # torch may have been imported since the kernel was loaded
        absent = frozenset(
            param.name
            for param, (_, arg) in zip(self.saved.params, self.signature.args)
            if param.kind == "tensor" and isinstance(arg, ConstArg)
        )
        return Dispatch(self.__name__, self.saved.params, [], absent, self.table)

    def _prepared(
        self, entry: _Entry, args: Sequence[Any], keywords: dict[str, Any]
    ) -> tuple[Plan, Grid | None, Any, tuple[Any, ...], Specialised] | None:
        """Plan, grid, key and values of a call; None for an empty grid."""
        saved = self.saved
        special = specialise(
            saved.params, args, keywords, target=self.target, launch=self.signature.launch
        )
        self._check(special.signature)
        named = {p.name: v for p, v in zip(saved.params, special.values)}
        grid = entry.evaluate(named)
        device = self._device(special)
        if not self._runs(special, grid):
            return None
        plan = self._plan(device, grid is not None)
        if grid is not None and any(g > b for g, b in zip(grid, plan.spec.grid_bound)):
            raise self._too_large(grid)
        key, values = self._dispatch.key_of(*special.values)
        return plan, grid, key, values, special

    def _check(self, given: Signature) -> None:
        """``LaunchError`` with everything in which a call differs from what was compiled, beyond what
        ``specialise`` has told from the parameters."""
        report = Report()
        rows = zip(self.saved.params, self.signature.args, given.args)
        for param, (name, compiled), (_, arg) in rows:
            with report.at(param.span if param.span.file else None):
                _compare(name, compiled, arg, report)
        report.raise_if_failed(LaunchError)

    def _device(self, special: Specialised) -> int:
        device = torch_glue.current_device() if special.device is None else special.device
        if device == torch_glue.CPU:
            held = [
                p.name for p, v in zip(self.saved.params, special.values) if torch_glue.is_tensor(v)
            ]
            where = f"; {', '.join(held)}: on the CPU" if held else ""
            raise fault(
                LaunchError,
                "saved/simulate",
                f"{self.__name__} is a saved kernel, which does not simulate: it needs a CUDA device"
                + where,
                help="move the tensors to a CUDA device, or call the kernel's Python function",
            )
        saveds.refuse_other_target(self.__name__, self.target, device)
        return device

    def _runs(self, special: Specialised, grid: Grid | None) -> bool:
        """Whether a launch has CTAs; with an empty tensor there must be none (``LaunchError``)."""
        empty = any(map(is_empty, self.saved.params, special.values))
        if grid is None and empty and self.saved.launch.grid is not None:
            numbers = plans.by_name(self.saved.launch_params, special.values)[1]
            grid = plans.evaluate_grid(self.saved.launch.grid, numbers)
        if grid is not None and not all(grid):
            return False
        if empty:
            refuse_empty(self.saved.params, special.values)
        return True

    def _plan(self, device: int, caller_grid: bool) -> Plan:
        with self._lock:
            plan = self._plans.get((device, caller_grid))
            if plan is not None:
                return plan
            saveds.refuse_capture(self.__name__, "loaded", device)
            several = torch_glue.device_count() > 1
            with torch_glue.on_device(device):
                plan = self.saved.plan(
                    drivers.current(),
                    device,
                    torch_glue.raw_stream_function(),
                    device_of=torch_glue.raw_device_function() if several else None,
                    caller_grid=caller_grid,
                )
            self._plans[device, caller_grid] = plan
            return plan

    def _too_large(self, grid: Grid) -> LaunchError:
        bound = self.saved.launch.grid_bound
        error = fault(
            LaunchError,
            "saved/grid",
            f"{self.__name__} was checked for grids up to {bound} CTAs, this launch has {grid}",
            help="compile it with the largest grid that it is to have: k[grid].compile(...)",
        )
        assert isinstance(error, LaunchError)
        return error


class LoadedLaunch(_Entry):
    """``k[grid]`` of a loaded kernel."""

    def __init__(self, kernel: LoadedKernel, grid: Any):
        self.kernel = kernel
        self.table = kernel._caller_table
        if callable(grid):
            self.grid_function = grid
        else:
            self.grid = plans.normalise_grid(grid)

    def __call__(self, *args: Any, **keywords: Any) -> None:
        self.kernel._dispatch.configured(self, *args, **keywords)


def _compare(name: str, compiled: Arg, given: Arg, report: Report) -> None:
    if isinstance(compiled, ConstArg):
        if isinstance(given, ConstArg) and _same_constant(compiled.value, given.value):
            return
        what = repr(given.value) if isinstance(given, ConstArg) else "a tensor"
        report.error(
            "saved/constant",
            f"{name!r} is {what}, the saved kernel was compiled for {compiled.value!r}",
            help="save the kernel for that value too; a file holds one signature",
        )
    elif isinstance(compiled, TensorArg) and isinstance(given, TensorArg):
        for dim, (wanted, stride) in enumerate(zip(compiled.strides, given.strides)):
            # The stride of a dimension of one element is never taken.
            if wanted is not None and wanted != stride and compiled.shape[dim] != 1:
                report.error(
                    "saved/stride",
                    f"the stride of dimension {dim} of {name!r} is {stride} elements, the saved kernel "
                    f"was compiled for {wanted}",
                    where=f"strides {given.strides}, compiled for {compiled.strides}",
                    help=".contiguous() gives a copy with the strides of its shape",
                )


def _same_constant(compiled: Any, given: Any) -> bool:
    """Whether a compile-time value is the one compiled in; of ``4``, ``4.0`` and ``True`` none is another."""
    if isinstance(compiled, Opaque) and not isinstance(given, Opaque):
        return digest(given) == compiled.digest
    return bool(typed(given) == typed(compiled))


class LoadedAssembly(Mapping[str, Any]):
    """A saved kernel's stages by name; SASS is disassembled when read."""

    def __init__(self, saved: Saved):
        self._artifact = saved.artifact

    def __getitem__(self, stage: str) -> Any:
        if stage == "sass":
            return sass.disassemble(self._artifact.cubin)
        if stage not in STAGES:
            raise KeyError(f"no stage {stage!r} in a saved kernel; there are {', '.join(STAGES)}")
        return getattr(self._artifact, stage)

    def __iter__(self) -> Iterator[str]:
        return iter(STAGES)

    def __len__(self) -> int:
        return len(STAGES)
