"""Row kernels and add against float64 references, on the simulator and the GPU: the same cases."""

from __future__ import annotations

import pytest
import torch

from tilejit.kernels import add, norm, rows, softmax

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
TOLERANCE = {torch.float32: 3e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
WIDTHS = (1, 2, 3, 7, 8, 9, 31, 33, 64, 100, 257, 1000, 1024, 4096, 4100, 10007, 16384)
LONG_WIDTHS = (65536, 65537, 262144)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm()).item()


def random_rows(height: int, width: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * 7919 + width)
    return torch.randn(height, width, generator=generator).to(dtype).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_softmax(device: str, width: int, dtype: torch.dtype) -> None:
    x = random_rows(5, width, dtype, device)
    out = torch.full_like(x, float("nan"))
    assert softmax.softmax(x, out) is out
    assert relative_error(out, torch.softmax(x.double(), -1)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(device: str, width: int, dtype: torch.dtype) -> None:
    x = random_rows(3, width, dtype, device)
    w = random_rows(1, width, dtype, device)[0]
    out = norm.rms_norm(x, w, 1e-5, torch.full_like(x, float("nan")))
    expected = torch.nn.functional.rms_norm(x.double(), (width,), w.double(), 1e-5)
    assert relative_error(out, expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS[1:])
def test_layer_norm(device: str, width: int, dtype: torch.dtype) -> None:
    x = random_rows(3, width, dtype, device)
    w, b = random_rows(2, width, dtype, device)
    out = norm.layer_norm(x, w, b, 1e-5, torch.full_like(x, float("nan")))
    expected = torch.nn.functional.layer_norm(x.double(), (width,), w.double(), b.double(), 1e-5)
    assert relative_error(out, expected) < 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("width", LONG_WIDTHS)
@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
def test_rows_longer_than_registers(device: str, kernel: str, width: int) -> None:
    x = random_rows(2, width, torch.bfloat16, device)
    w, b = random_rows(2, width, torch.bfloat16, device)
    wide = x.double()
    if kernel == "softmax":
        out, expected = softmax.softmax(x), torch.softmax(wide, -1)
    elif kernel == "rms_norm":
        out = norm.rms_norm(x, w, 1e-5)
        expected = torch.nn.functional.rms_norm(wide, (width,), w.double(), 1e-5)
    else:
        out = norm.layer_norm(x, w, b, 1e-5)
        expected = torch.nn.functional.layer_norm(wide, (width,), w.double(), b.double(), 1e-5)
    assert relative_error(out, expected) < 1.2e-2


def test_norms_without_parameters(device: str) -> None:
    x = random_rows(4, 96, torch.float32, device)
    wide = x.double()
    assert (
        relative_error(norm.rms_norm(x), torch.nn.functional.rms_norm(wide, (96,), eps=1e-6)) < 3e-6
    )
    assert relative_error(norm.layer_norm(x), torch.nn.functional.layer_norm(wide, (96,))) < 3e-6


def test_layer_norm_of_a_large_mean_keeps_its_digits(device: str) -> None:
    """E[x²] - E[x]² would lose everything here."""
    x = random_rows(2, 1024, torch.float32, device) + 4096.0
    expected = torch.nn.functional.layer_norm(x.double(), (1024,))
    assert relative_error(norm.layer_norm(x), expected) < 2e-3


def test_softmax_special_rows(device: str) -> None:
    inf = float("inf")
    x = torch.tensor(
        [[-inf, -inf, -inf, -inf], [0.0, -inf, 1.0, -inf], [inf, 0, 0, 0], [float("nan"), 0, 0, 0]],
        device=device,
    )
    expected = torch.softmax(x.double(), -1)
    torch.testing.assert_close(
        softmax.softmax(x).double(), expected, equal_nan=True, rtol=1e-6, atol=0
    )


def test_softmax_of_strided_rows(device: str) -> None:
    base = random_rows(6, 128, torch.float32, device)
    view = base[::2, :96]
    out = torch.full((6, 128), 7.0, device=device)
    softmax.softmax(view, out[::2, :96])
    assert relative_error(out[::2, :96], torch.softmax(view.double(), -1)) < 3e-6
    assert (out[1::2] == 7).all() and (out[:, 96:] == 7).all()


def test_a_result_in_the_input_is_refused(device: str) -> None:
    """The rows are read through the read-only path, which the hardware does not keep coherent."""
    x = random_rows(6, 128, torch.float32, device)
    for out in (x, x.view(-1)[128:].view(5, 128)):
        with pytest.raises(ValueError, match="share memory"):
            softmax.softmax(x[: out.shape[0]], out)
    softmax.softmax(x[:3], x[3:])


def test_empty_matrices(device: str) -> None:
    for shape in ((0, 8), (8, 0)):
        x = torch.empty(shape, device=device)
        assert softmax.softmax(x).shape == x.shape


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 7, 8, 1000, 4096, 5000, 12345])
def test_add(device: str, count: int, dtype: torch.dtype) -> None:
    a, b = random_rows(2, count, dtype, device)
    a, b = a.clone(), b.clone()
    out = torch.full_like(a, float("nan"))
    assert torch.equal(add.add(a, b, out), a + b)


@pytest.mark.parametrize("width", [1, 5, 8, 1023, 1024, 1025, 16384, 65536, 65537, 262144])
@pytest.mark.parametrize("elem_bytes", [2, 4])
@pytest.mark.parametrize("align_bytes", [4, 8, 16])
@pytest.mark.parametrize("kernel", ["softmax", "rms_norm", "layer_norm"])
def test_a_plan_covers_the_row_once(
    width: int, elem_bytes: int, align_bytes: int, kernel: rows.Kernel
) -> None:
    plan = rows.plan_rows(width, elem_bytes, align_bytes, kernel)
    assert plan.vectors_per_row * plan.vector_elems == width
    assert plan.vector_bytes <= min(16, align_bytes)
    assert 32 <= plan.threads <= 1024 and plan.threads % 32 == 0
    assert 0 <= plan.tail_threads < plan.threads_per_row
    assert plan.streamed_chunks >= 0
    limit = rows.SHARED_BYTES_TWO_CTAS if plan.min_blocks > 1 else rows.SHARED_BYTES_ONE_CTA
    assert plan.shared_chunks * plan.vector_bytes * plan.threads <= limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [33, 1000, 1024, 4096, 16384, 32768, 65536, 131072, 262144])
def test_no_register_of_a_row_kernel_spills(width: int, dtype: torch.dtype) -> None:
    x, y = torch.empty(4, width, dtype=dtype), torch.empty(4, width, dtype=dtype)
    w = torch.empty(width, dtype=dtype)
    compiled = [
        softmax.softmax_rows.compile(x, y, rows.plan_for("softmax", x, y), target="sm_90a"),
        norm.norm_rows.compile(
            x, y, w, None, 1e-5, False, rows.plan_for("rms_norm", x, y), target="sm_90a"
        ),
        norm.norm_rows.compile(
            x, y, w, w, 1e-5, True, rows.plan_for("layer_norm", x, y), target="sm_90a"
        ),
    ]
    assert [(k.stats.spill_bytes, k.stats.local_bytes) for k in compiled] == [(0, 0)] * 3
