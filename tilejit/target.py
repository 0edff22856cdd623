"""What each GPU target has, as data.

A target is named as the assembler names it: ``sm_90`` runs on every later GPU, ``sm_90a`` has the
features of exactly this architecture, ``sm_100f`` those that its family keeps. Sizes are from the
CUDA programming guide's table of compute capabilities.

Not here: which instruction needs what (``ptx.tables``), the device at hand (``runtime``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilejit.errors import Diagnostic, TargetError

MIN_SM = 80
"""The oldest architecture that tilejit generates code for."""

_FAMILIES: dict[int, int] = {100: 100, 103: 100, 110: 110, 120: 120, 121: 120}
"""Architectures with family-specific features, and the oldest member of their family."""
_NAME = re.compile(r"sm_(\d+)([af]?)")


MAX_GRID = (2**31 - 1, 65535, 65535)
"""Most CTAs of a launch along x, y and z, on every target."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one multiprocessor (SM) and one block (CTA) may use."""

    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    """Most shared memory of a block, static and dynamic together (needs an opt-in above 48 KiB)."""
    threads_per_sm: int
    blocks_per_sm: int
    max_cluster_ctas: int
    """Largest cluster, 0 where there are none; above 8 it needs the non-portable opt-in."""
    tmem_columns: int = 0
    static_smem_bytes: int = 48 * 1024
    reserved_smem_bytes: int = 1024
    """What the system takes of an SM's shared memory for every resident block."""
    registers_per_sm: int = 65536
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    block: tuple[int, int, int] = (1024, 1024, 64)
    grid: tuple[int, int, int] = MAX_GRID
    named_barriers: int = 16
    portable_cluster_ctas: int = 8


def _limits(
    smem_kib: int, threads: int, blocks: int, cluster: int = 0, tmem_columns: int = 0
) -> Limits:
    """``smem_kib`` is the SM's; a block gets one KiB less, which the system keeps."""
    return Limits(smem_kib * 1024, (smem_kib - 1) * 1024, threads, blocks, cluster, tmem_columns)


_LIMITS: dict[int, Limits] = {
    80: _limits(164, 2048, 32),
    86: _limits(100, 1536, 16),
    87: _limits(164, 1536, 16),
    88: _limits(164, 1536, 16),
    89: _limits(100, 1536, 24),
    90: _limits(228, 2048, 32, 16),
    100: _limits(228, 2048, 32, 16, 512),
    103: _limits(228, 2048, 32, 16, 512),
    110: _limits(228, 1536, 24, 16, 512),
    120: _limits(100, 1536, 24, 8),
    121: _limits(100, 1536, 24, 8),
}


@dataclass(frozen=True, slots=True)
class Target:
    """One assembler target. ``sm`` is 90 for ``sm_90a``; ``suffix`` is ``""``, ``a`` or ``f``."""

    sm: int
    suffix: str = ""

    @staticmethod
    def parse(name: str) -> Target:
        """The target called ``name``; ``TargetError`` for one that tilejit does not know."""
        target = TARGETS.get(name)
        if target is None:
            raise TargetError(
                Diagnostic(
                    "target/unknown",
                    f"{name!r} is not a target that tilejit generates code for",
                    notes=(("help", f"known targets: {', '.join(TARGETS)}"),),
                )
            )
        return target

    @staticmethod
    def of_capability(major: int, minor: int) -> Target:
        """The target with every feature of a GPU of compute capability ``major.minor``.

        A GPU newer than any known one gets the newest plain target that runs on it.
        ``TargetError`` below ``sm_80``.
        """
        sm = 10 * major + minor
        for suffix in ("a", ""):
            if (target := TARGETS.get(f"sm_{sm}{suffix}")) is not None:
                return target
        older = [t for t in TARGETS.values() if t.sm < sm and not t.suffix]
        if sm < MIN_SM or not older:
            raise TargetError(
                Diagnostic(
                    "target/too-old",
                    f"compute capability {major}.{minor} is below {MIN_SM // 10}.{MIN_SM % 10}",
                )
            )
        return max(older, key=lambda t: t.sm)

    @property
    def name(self) -> str:
        return f"sm_{self.sm}{self.suffix}"

    @property
    def limits(self) -> Limits:
        """What a block may use on this target."""
        return _LIMITS[self.sm]

    @property
    def family(self) -> int:
        """The oldest member of this target's family: 100 for ``sm_103a``, 90 for ``sm_90a``."""
        return _FAMILIES.get(self.sm, self.sm)

    def runs_on(self, device: Target) -> bool:
        """Whether code for this target runs on a GPU with ``device``, the target of its capability."""
        if self.suffix == "a":
            return self == device
        if self.suffix == "f":
            return self.family == device.family and self.sm <= device.sm
        return self.sm // 10 == device.sm // 10 and self.sm <= device.sm

    def supports(self, min_target: str) -> bool:
        """Whether a form with this ``min_target`` assembles here.

        ``sm_90``: this or any later architecture. ``sm_90a``: exactly that target. ``sm_100f``:
        family- or architecture-specific targets of that family, from that member on. Alternatives
        are separated by ``|``.
        """
        return any(self._has(alternative) for alternative in min_target.split("|"))

    def _has(self, min_target: str) -> bool:
        found = _NAME.fullmatch(min_target)
        if found is None:
            raise ValueError(f"{min_target!r} is not the name of a target")
        sm, suffix = int(found[1]), found[2]
        if suffix == "a":
            return self.sm == sm and self.suffix == "a"
        if suffix == "f":
            return bool(self.suffix) and self.family == _FAMILIES.get(sm) and self.sm >= sm
        return self.sm >= sm

    def __str__(self) -> str:
        return self.name


def _known() -> dict[str, Target]:
    found: dict[str, Target] = {}
    for sm in _LIMITS:
        suffixes = ("", "f", "a") if sm in _FAMILIES else ("", "a") if sm == 90 else ("",)
        for suffix in suffixes:
            found[f"sm_{sm}{suffix}"] = Target(sm, suffix)
    return found


TARGETS: dict[str, Target] = _known()
"""Every target by name, oldest first."""
