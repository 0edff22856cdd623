"""One ``tcgen05.mma``: from what its sources hold to the cells of D that it writes, in every CTA.

Sources are blocks of 16 bytes of shared memory and cells of tensor memory, as the family names them; here
they become matrices of codes, a slab of lanes with what is its own, and products.

Not here: where sources lie and which instructions are legal (``families.tcgen05_mma``), how a tensor core
rounds (``numeric.tcgen05_mma``), how codes lie in memory (``numeric.packing``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tilejit.ir.tensor_memory import SLABS
from tilejit.ptx import tcgen05_shapes as shapes
from tilejit.sim.numeric import packing
from tilejit.sim.numeric import tcgen05_mma as numeric
from tilejit.tile import descriptor
from tilejit.tile.datapath import FACTOR_BITS, Datapath, datapath
from tilejit.tile.family import TensorCells
from tilejit.tile.instruction_descriptor import Instruction
from tilejit.tile.tensor_product import Opcode

Cells: TypeAlias = npt.NDArray[np.uint32]
Codes: TypeAlias = npt.NDArray[Any]


class Part(NamedTuple):
    """The product in one CTA: where among the sources A, B, the old D (None: it is left out) and scale
    factors are, which of D's cells are written, and where they lie."""

    a: int
    b: int
    d: int | None
    factors: tuple[int, ...]
    written: npt.NDArray[np.bool_]
    destination: TensorCells


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What an instruction computes, and how its sources' bits become matrices."""

    opcode: Opcode
    says: Instruction
    zeros: npt.NDArray[np.bool_] | None

    @property
    def path(self) -> Datapath:
        return datapath(self.says.m, self.opcode.ctas, self.opcode.weight_stationary)

    @property
    def k(self) -> int:
        return self.opcode.kind.depths(self.opcode.ctas, self.opcode.weight_stationary)[0]

    @property
    def scale(self) -> shapes.Scale | None:
        return self.opcode.kind.scale(self.opcode.factors, self.k)

    @property
    def factors(self) -> int:
        """Scale factors of a row."""
        return self.scale.factors(self.k) if self.scale is not None else 0

    def side(self, name: str) -> tuple[shapes.Format, descriptor.Major, int]:
        """Format, major order and rows in a CTA of A or B in shared memory."""
        if name == "a":
            return self.says.a, "mn" if self.says.transpose_a else "k", self.path.rows
        columns = self.says.n // self.opcode.ctas
        return self.says.b, "mn" if self.says.transpose_b else "k", columns

    def run(self, parts: list[Part], found: list[npt.NDArray[Any]]) -> list[Cells]:
        """D's written cells in every CTA."""
        b = np.concatenate([self._from_shared("b", found[part.b]) for part in parts])
        if self.zeros is not None:
            b[self.zeros] = 0
        return [self._in_cta(part, b, found)[part.written] for part in parts]

    def _in_cta(self, part: Part, b: Codes, found: list[npt.NDArray[Any]]) -> Cells:
        a = self._a(found[part.a])
        d = None
        if part.d is not None:
            d = np.zeros(part.written.shape, np.uint32)
            d[part.written] = found[part.d]
        bytes_ = self.says.sfa_byte, self.says.sfb_byte
        factors = [self._factor_codes(found[i], byte) for i, byte in zip(part.factors, bytes_)]
        everywhere = slice(None), slice(None)
        if all(bool((x == x[:1]).all()) for x in (a, *factors)):
            return self._multiplied(a[0], b, d, [x[0] for x in factors], everywhere)
        result = np.empty(part.written.shape, np.uint32)
        for slab in range(SLABS):
            where = self.path.slab(slab, self.says.n)
            own = a[slab * len(a) // SLABS]
            result[where] = self._multiplied(own, b, d, [x[slab] for x in factors], where)
        return result

    def _multiplied(
        self, a: Codes, b: Codes, d: Cells | None, factors: list[Codes], where: tuple[slice, slice]
    ) -> Cells:
        """Some rows and columns of D, with what one slab has."""
        rows, columns = where
        scales = None
        if self.says.scale is not None:
            scales = numeric.BlockScales(self.says.scale.ptx, factors[0][rows], factors[1][columns])
        return numeric.tensor_core_multiply_accumulate(
            self._kind, (self.says.d.ptx, self.says.a.ptx, self.says.b.ptx),
            a[rows], b[columns], None if d is None else d[where], saturate=self.says.saturate,
            negate_a=self.says.negate_a, negate_b=self.says.negate_b, scales=scales,
        )  # fmt: skip

    @property
    def _kind(self) -> numeric.Kind:
        return cast(numeric.Kind, self.opcode.kind.name)

    def _from_shared(self, name: str, blocks: npt.NDArray[np.uint8]) -> Codes:
        """Codes (rows, K) of blocks, which lie along K, or for MN-major along M or N."""
        format_, major, rows = self.side(name)
        if major == "k":
            codes = packing.codes_in_shared(self._kind, format_.ptx, blocks.reshape(rows, -1, 16))
            return codes.reshape(rows, -1)
        words = np.ascontiguousarray(blocks).view(f"<u{format_.stored.bytes}")
        return np.ascontiguousarray(words.reshape(self.k, rows).T)

    def _a(self, found: npt.NDArray[Any]) -> Codes:
        """A's codes for every part of D's columns that has an A of its own: (parts, rows, K)."""
        if found.ndim == 2:
            return self._from_shared("a", found)[None]
        cells = found.reshape(self.path.parts, self.path.rows, -1)
        return packing.codes_in_tensor_memory(self._kind, self.says.a.ptx, cells)

    def _factor_codes(self, cells: Cells, byte: int) -> Codes:
        """(slabs, rows, factors of a row)"""
        at = (byte + np.arange(self.factors)) * FACTOR_BITS
        codes = cells.reshape(SLABS, -1, 1) >> at.astype(np.uint32)
        return codes.astype(np.uint8)
