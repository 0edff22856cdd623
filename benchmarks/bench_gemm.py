"""Matrix products of ``kernels.matmul`` (TMA and wgmma) against cuBLAS (``torch.mm``), Triton's persistent
TMA product and Pallas's Hopper product, both tuned; and of ``kernels.matmul_fp8`` against torch's own.

C = A @ B of bfloat16 matrices of random normal data, float32 accumulation. ``NT``: B is the transposed
view of an (N, K) matrix; ``NN``: both are row-major. The large products are timed sustained; the short
ones in CUDA graphs, too, where a launch takes as long as the kernel.

Pallas has a row-major B in every case, works on JAX's stream and is timed by the host's clock, in rows
that give cuBLAS and tilejit by that clock, too. It is left out where its tiles do not divide the product
and where a launch from Python would be what is timed. Triton's product is the plain one where rows do not
start at multiples of 16 bytes, which TMA cannot address.

Not here: ``kernels.matmul_mma`` (``bench_matmul``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from benchmarks import harness
from tilejit.testing import timing


@dataclass(frozen=True)
class Product:
    """``least``: tilejit's ratio to cuBLAS is meant to be at least this."""

    layout: str
    m: int
    n: int
    k: int
    least: float = 0.95

    @property
    def name(self) -> str:
        return f"{self.layout} {self.m} x {self.n} x {self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def tma_addresses(self) -> bool:
        """All rows, of 16-bit elements, start at multiples of 16 bytes."""
        return all(elems % 8 == 0 for elems in (self.n, self.k))

    @property
    def pallas_takes(self) -> bool:
        """In whole tiles, and far longer than a launch from Python. Its tuning is slow: once per size."""
        whole = self.m % 256 == self.n % 256 == self.k % 64 == 0
        return whole and self.flops >= 1 << 36 and self in LARGE and self.layout == "NT"


LARGE = (
    Product("NT", 4096, 4096, 4096, least=1.015),
    Product("NT", 8192, 8192, 8192, least=1.04),
    Product("NT", 8448, 8448, 8192, least=1.035),
    Product("NN", 4096, 4096, 4096),
    Product("NN", 8192, 8192, 8192),
)
"""These hold the card at its power limit. 8448: tiles of 256 x 192 fill 132 SMs exactly."""

SHORT = (
    Product("NT", 1024, 1024, 1024),
    Product("NT", 2048, 2048, 2048),
    Product("NT", 128, 8192, 8192),
)
"""Tens of microseconds and less."""

OTHERS = (
    Product("NT", 8192, 28672, 4096),
    Product("NT", 4096, 4096, 14336),
    Product("NT", 4104, 4088, 4040),
    Product("NT", 4097, 4095, 4099),
)
"""Two of language models, one that no tile divides, one that TMA cannot address."""

FP8 = (
    Product("NT", 8192, 8192, 8192),
    Product("NT", 4096, 4096, 4096),
    Product("NT", 4096, 7168, 16384),
    Product("NT", 4096, 24576, 1536),
    Product("NT", 64, 7168, 16384),
)
"""Of 8-bit floats by ``kernels.matmul_fp8``, with scales per row and in blocks: a square, three of
language models, and one that reads little but B."""

TOLERANCE = 3e-3
"""Of the norm; rounding the result to bfloat16 alone gives 1.7e-3."""

FP8_TOLERANCE = 1e-2
"""Of the norm; Hopper's tensor cores keep about 14 bits of a running sum of 8-bit products."""

FP8_MAX = 448.0
"""The largest e4m3."""

BY_HOST = "host clock"


def case(product: Product, device: str = "cuda") -> harness.Case:
    m, n, k = product.m, product.n, product.k
    a = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    if product.layout == "NT":
        b = torch.randn(n, k, device=device, dtype=torch.bfloat16).t()
    else:
        b = torch.randn(k, n, device=device, dtype=torch.bfloat16)
    out = torch.empty(m, n, device=device, dtype=torch.bfloat16)
    expected = a.float() @ b.float()

    def tilejit() -> Any:
        from tilejit.kernels import matmul

        return matmul.matmul(a, b, out=out)

    def triton() -> Any:
        from benchmarks import triton_peers

        peer = triton_peers.matmul_tma if product.tma_addresses else triton_peers.matmul
        peer(a, b, out)

    @cache
    def tuned() -> Callable[[], Any]:
        from benchmarks import pallas_peers

        return pallas_peers.matmul(a, b)

    def check(run: Callable[[], Any]) -> str | None:
        return harness.left_in(run, out, expected, TOLERANCE)

    def check_pallas() -> str | None:
        result = torch.from_dlpack(tuned()())
        return harness.close(result, expected, TOLERANCE) or harness.close_elements(
            result, expected
        )

    contenders: timing.Contenders = {
        "cublas": partial(torch.mm, a, b, out=out),
        "tilejit": tilejit,
        "triton": triton,
    }
    checks: dict[str, Callable[[], str | None]] = {
        name: partial(check, run) for name, run in contenders.items()
    }
    if product.pallas_takes:
        contenders["pallas"] = lambda: tuned()()
        checks["pallas"] = check_pallas
    return harness.Case(
        product.name,
        2 * (m * k + k * n + m * n),
        contenders,
        checks,
        flops=product.flops,
        targets=dict.fromkeys(set(protocols(product)) - {BY_HOST}, product.least),
    )


def fp8_case(product: Product, device: str = "cuda") -> harness.Case:
    """e4m3 operands, both contiguous along K, with a float32 scale per row of A and column of B; the
    result is bfloat16. The baseline is torch's own product, with fast accumulation as it is used."""
    a, a_scale = _quantised(torch.randn(product.m, product.k, device=device), 1, product.k)
    b, b_scale = _quantised(torch.randn(product.n, product.k, device=device), 1, product.k)
    return _scaled_case(product, "e4m3", (a, a_scale), (b, b_scale), product.least, fast=True)


def fp8_blocks_case(product: Product, device: str = "cuda") -> harness.Case:
    """The same with scales of 1 x 128 elements of A and 128 x 128 of B. cuBLAS has no fast
    accumulation for these; it wants A's scales column by column."""
    a, a_scale = _quantised(torch.randn(product.m, product.k, device=device), 1, 128)
    b, b_scale = _quantised(torch.randn(product.n, product.k, device=device), 128, 128)
    a_scale = a_scale.t().contiguous().t()
    return _scaled_case(product, "e4m3 blocks", (a, a_scale), (b, b_scale), 1.0, fast=False)


def _scaled_case(
    product: Product,
    name: str,
    a_scaled: tuple[torch.Tensor, torch.Tensor],
    b_scaled: tuple[torch.Tensor, torch.Tensor],
    least: float,
    fast: bool,
) -> harness.Case:
    """``*_scaled``: quantised rows along K and their scales."""
    (a, a_scale), (b_rows, b_scales) = a_scaled, b_scaled
    m, n, k = product.m, product.n, product.k
    b, b_scale = b_rows.t(), b_scales.t()
    out = torch.empty(m, n, device=a.device, dtype=torch.bfloat16)
    expected = _restored(a, a_scale) @ _restored(b_rows, b_scales).t()

    def scaled_mm() -> Any:
        torch._scaled_mm(
            a,
            b,
            scale_a=a_scale,
            scale_b=b_scale,
            out_dtype=out.dtype,
            use_fast_accum=fast,
            out=out,
        )

    def tilejit() -> Any:
        from tilejit.kernels import matmul_fp8

        return matmul_fp8.matmul_fp8(a, b, a_scale, b_scale, out=out)

    contenders: timing.Contenders = {"torch scaled_mm": scaled_mm, "tilejit": tilejit}
    return harness.Case(
        f"{name} {product.name}",
        m * k + k * n + 2 * m * n,
        contenders,
        {
            name: partial(harness.left_in, run, out, expected, FP8_TOLERANCE)
            for name, run in contenders.items()
        },
        flops=product.flops,
        targets={"sustained": least},
    )


def _quantised(values: torch.Tensor, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 and, per block of ``rows`` x ``columns``, what it is to be multiplied with."""
    blocks = values.unflatten(0, (-1, rows)).unflatten(2, (-1, columns))
    scale = blocks.abs().amax((1, 3), keepdim=True) / FP8_MAX
    return (blocks / scale).view_as(values).to(torch.float8_e4m3fn), scale[:, 0, :, 0]


def _restored(quantised: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The values that ``_quantised`` stands for."""
    rows, columns = (
        size // count for size, count in zip(quantised.shape, scale.shape, strict=True)
    )
    return quantised.float() * scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)


def protocols(product: Product) -> dict[str, timing.TimeBy]:
    """The quotable one first; the target is for each that Pallas does not take part in."""
    chosen: dict[str, timing.TimeBy] = {}
    if product in LARGE:
        chosen["sustained"] = partial(on_torchs_stream, timing.sustained)
    if product in SHORT:
        chosen["graph"] = partial(on_torchs_stream, timing.graphed)
    chosen["interleaved"] = partial(on_torchs_stream, timing.interleaved)
    if product.pallas_takes:
        chosen[BY_HOST] = beside_pallas
    return chosen


def on_torchs_stream(
    time_by: timing.TimeBy, contenders: timing.Contenders
) -> dict[str, timing.Timing]:
    return time_by({n: run for n, run in contenders.items() if n != "pallas"})


def beside_pallas(contenders: timing.Contenders) -> dict[str, timing.Timing]:
    """Nothing where Pallas failed: the others have better clocks."""
    if "pallas" not in contenders:
        return {}
    return timing.sustained_by_host({n: run for n, run in contenders.items() if n != "triton"})


def run() -> Iterator[dict[str, Any]]:
    resources = harness.Resources("tilejit.kernels.matmul")
    for product in LARGE + SHORT + OTHERS:
        made = case(product)
        yield from harness.compare_flops(made, "cublas", protocols(product))
        yield from resources.rows(made.name)
        del made
        torch.cuda.empty_cache()
    timings: dict[str, timing.TimeBy] = {
        "sustained": timing.sustained,
        "interleaved": timing.interleaved,
    }
    resources = harness.Resources("tilejit.kernels.matmul_fp8")
    for product in FP8:
        for build in (fp8_case, fp8_blocks_case):
            made = build(product)
            yield from harness.compare_flops(made, "torch scaled_mm", timings)
            yield from resources.rows(made.name)
            del made
            torch.cuda.empty_cache()
