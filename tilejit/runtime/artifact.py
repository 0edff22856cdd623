"""What a compilation leaves: the cubin, the texts it came from, and what it uses of a GPU.

An ``Artifact`` is what the disk cache stores and a plan loads. ``Stats`` is what a user reads.
Not here: how it is made (``pipeline``), storing bytes (``cache``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tilejit.errors import Diagnostic, Span
from tilejit.ir import tensor_map
from tilejit.ir.tensor_map import TensorMapSpec
from tilejit.runtime.cache import Entry
from tilejit.runtime.elf import Resources
from tilejit.target import Limits, Target

ANNOUNCED: ContextVar[bool] = ContextVar("announced", default=True)
"""Whether what the compiler warns about is said at once. It is kept in the artifact in any case."""

_REGISTER_ALLOCATION = 256
"""Registers are given to a warp in units of this many."""
_MAX_REGISTERS_UNIT = 8
_SHARED_ALLOCATION_BYTES = 128


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled kernel. ``params``: names of the IR variables in launch order; behind
    them the kernel takes ``tensor_maps``. ``warnings``: what
    the compiler said that costs speed. ``key``: of the disk cache, ``keyed_on`` its parts.
    ``origin`` and ``seconds`` say where this one came from and what that took; they are not stored."""

    kernel: str
    entry: str
    target: str
    cubin: bytes = field(repr=False)
    ptx: str = field(repr=False)
    cuda: str = field(repr=False)
    log: str = field(repr=False)
    params: tuple[str, ...]
    dynamic_shared_bytes: int
    resources: Resources
    key: str
    warnings: tuple[Diagnostic, ...] = ()
    keyed_on: Mapping[str, str] = field(default_factory=dict, compare=False)
    origin: str = field(default="", compare=False)
    seconds: float = field(default=0.0, compare=False)
    tensor_maps: tuple[TensorMapSpec, ...] = ()

    def to_entry(self) -> Entry:
        """The form that the disk cache stores."""
        header: dict[str, Any] = {
            "kernel": self.kernel,
            "entry": self.entry,
            "target": self.target,
            "params": list(self.params),
            "dynamic_shared_bytes": self.dynamic_shared_bytes,
            "resources": asdict(self.resources),
            "tensor_maps": [tensor_map.to_data(spec) for spec in self.tensor_maps],
            "warnings": [[w.code, w.message, *_place(w.span)] for w in self.warnings],
            "keyed_on": dict(self.keyed_on),
        }
        texts = {"ptx": self.ptx, "cuda": self.cuda, "log": self.log}
        return Entry(
            header, {"cubin": self.cubin, **{name: text.encode() for name, text in texts.items()}}
        )

    @staticmethod
    def from_entry(key: str, entry: Entry, origin: str, seconds: float) -> Artifact | None:
        """The artifact an entry holds; None when it was not written by ``to_entry``."""
        try:
            header, payloads = entry.header, entry.payloads
            return Artifact(
                kernel=header["kernel"],
                entry=header["entry"],
                target=header["target"],
                cubin=payloads["cubin"],
                ptx=payloads["ptx"].decode(),
                cuda=payloads["cuda"].decode(),
                log=payloads["log"].decode(),
                params=tuple(header["params"]),
                dynamic_shared_bytes=header["dynamic_shared_bytes"],
                resources=Resources(**header["resources"]),
                key=key,
                tensor_maps=tuple(map(tensor_map.from_data, header["tensor_maps"])),
                warnings=tuple(_warning(*row) for row in header["warnings"]),
                keyed_on=header["keyed_on"],
                origin=origin,
                seconds=seconds,
            )
        except (KeyError, TypeError, ValueError):
            return None


def _place(span: Span | None) -> tuple[str, int]:
    return ("", 0) if span is None else (span.file, span.line)


def _warning(code: str, message: str, file: str, line: int) -> Diagnostic:
    return Diagnostic(code, message, Span(file, line) if file else None)


@dataclass(frozen=True, slots=True)
class Stats:
    """What one variant uses. ``occupancy``: resident warps of an SM over its most, 0 to 1;
    ``blocks_per_sm`` counts resident CTAs, 0 when one does not fit. ``shared_bytes`` is static and
    dynamic together. Printing it also lists ``bank_conflicts``, which are looked for only then."""

    registers: int
    spill_bytes: int
    local_bytes: int
    shared_bytes: int
    code_bytes: int
    threads: int
    blocks_per_sm: int
    occupancy: float
    _find_bank_conflicts: Callable[[], tuple[str, ...]] = field(compare=False, repr=False)

    @property
    def bank_conflicts(self) -> tuple[str, ...]:
        """One line per tile access to shared memory that has bank conflicts or might."""
        return self._find_bank_conflicts()

    def __str__(self) -> str:
        names = [f.name for f in fields(self) if f.repr]
        width = max(map(len, names))
        lines = [f"{name:{width}s} {round(getattr(self, name), 3):9}" for name in names]
        return "\n".join([*lines, *self.bank_conflicts])


def stats(
    artifact: Artifact, threads: int, find_bank_conflicts: Callable[[], tuple[str, ...]]
) -> Stats:
    """The stats of an artifact launched with ``threads`` threads per CTA, from the target's limits."""
    r = artifact.resources
    shared_bytes = r.static_shared_bytes + artifact.dynamic_shared_bytes
    limits = Target.parse(artifact.target).limits
    blocks = blocks_per_sm(limits, threads, r.registers, shared_bytes)
    warps = -(-threads // 32)
    return Stats(
        registers=r.registers,
        spill_bytes=r.spill_store_bytes + r.spill_load_bytes,
        local_bytes=r.local_bytes,
        shared_bytes=shared_bytes,
        code_bytes=r.code_bytes,
        threads=threads,
        blocks_per_sm=blocks,
        occupancy=blocks * warps * 32 / limits.threads_per_sm,
        _find_bank_conflicts=find_bank_conflicts,
    )


def blocks_per_sm(limits: Limits, threads: int, registers: int, shared_bytes: int) -> int:
    """Resident CTAs on one SM: the least of what threads, registers and shared memory allow.

    The same rules as the driver's occupancy calculator: registers per warp rounded up to 256,
    shared memory per CTA to 128 bytes plus what the system reserves for each.
    """
    warps = -(-threads // 32)
    unit = -(-max(registers, 1) // _MAX_REGISTERS_UNIT) * _MAX_REGISTERS_UNIT
    per_warp = -(-unit * 32 // _REGISTER_ALLOCATION) * _REGISTER_ALLOCATION
    # A CTA's warps are dealt to four schedulers, each with a quarter of the registers.
    warps_by_registers = limits.registers_per_sm // 4 // per_warp * 4
    shared = -(-(shared_bytes + limits.reserved_smem_bytes) // _SHARED_ALLOCATION_BYTES)
    shared *= _SHARED_ALLOCATION_BYTES
    if shared_bytes > limits.smem_per_block_bytes or threads > limits.threads_per_block:
        return 0
    return min(
        limits.blocks_per_sm,
        limits.threads_per_sm // (warps * 32),
        warps_by_registers // warps,
        limits.smem_per_sm_bytes // shared,
    )
