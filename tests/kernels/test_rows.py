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


@pytest.mark.parametrize("width", [1, 7, 33, 1000, 1024, 4096, 5000])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_layer_norm_of_constant_rows_is_zero(device: str, dtype: torch.dtype, width: int) -> None:
    constants = torch.tensor([[0.1], [1.0], [3.3], [1e4], [-77.7]])
    x = constants.expand(5, width).contiguous().to(dtype).to(device)
    assert (norm.layer_norm(x) == 0).all()


@pytest.mark.parametrize("width", [40, 64, 1000, 1024, 5000])
@pytest.mark.parametrize("special", [float("inf"), float("-inf"), float("nan")])
def test_norms_of_rows_with_infinity_or_nan(device: str, special: float, width: int) -> None:
    x = random_rows(width, width, torch.float32, device)[:12].clone()
    for row, column in enumerate(
        [0, 1, 7, 8, 31, width // 2, width // 2 + 1, width - 9, width - 8, width - 2, width - 1]
    ):
        x[row, column] = special
    for ours, theirs in (
        (norm.layer_norm(x), torch.nn.functional.layer_norm(x, (width,))),
        (norm.rms_norm(x), torch.nn.functional.rms_norm(x, (width,), eps=1e-6)),
    ):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.allclose(ours, theirs, atol=1e-4, equal_nan=True)


def test_layer_norm_of_squares_beyond_float32(device: str) -> None:
    """The variance is infinite, as torch's is: the result is zero."""
    x = torch.tensor([[1e20, -2e20, 5e19]] * 2 + [[3e38, -3e38, 1.0]], device=device)[:2]
    assert torch.equal(norm.layer_norm(x), torch.zeros_like(x))


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


def test_results_between_and_beside_the_rows_of_the_input(device: str) -> None:
    both = random_rows(8, 64, torch.float32, device)
    for x, out in (
        (both[::2], both[1::2]),
        (both[:, :32], both[:, 32:]),
        (both[:, 32:], both[:, :32]),
    ):
        expected = torch.softmax(x.double(), -1)
        assert relative_error(softmax.softmax(x, out), expected) < 3e-6
    for x, out in (
        (both[:, :33], both[:, 31:]),
        (both[:, 31:], both[:, :33]),
        (both[:-1], both[1:]),
    ):
        with pytest.raises(ValueError, match="share memory with the input"):
            softmax.softmax(x, out)


def test_what_is_no_matrix_of_floats_is_refused(device: str) -> None:
    x = random_rows(4, 64, torch.float32, device)
    w = random_rows(2, 64, torch.float32, device)
    for call, message in (
        (lambda: softmax.softmax(x[0]), "a matrix"),
        (lambda: softmax.softmax(x.long()), "expected float32, float16 or bfloat16, got torch.int64"),
        (lambda: softmax.softmax(x.double()), "got torch.float64"),
        (lambda: softmax.softmax(x, x.half()), "out is torch.float16"),
        (lambda: softmax.softmax(x, x[:2].clone()), "out is torch.float32 of shape"),
        (lambda: softmax.softmax(x[:, ::2]), "lie 2 apart"),
        (lambda: norm.rms_norm(x, w[0].half()), "weight or bias is torch.float16"),
        (lambda: norm.rms_norm(x, w[0, :32]), "weight or bias is torch.float32 of shape"),
        (lambda: norm.layer_norm(x, w[0], w.view(-1)[::2]), "lie 2 apart"),
        (lambda: norm.rms_norm(x[:2], w[0], out=w), "share memory with the weight"),
        (lambda: add.add(x[0], x[0].half()), "one dtype and length"),
        (lambda: add.add(x[0], x[0], torch.empty(64, dtype=torch.int32, device=device)), "one dtype"),
        (lambda: add.add(x[0], x[0, :32]), "one dtype and length"),
        (lambda: add.add(x, x), "vectors"),
        (lambda: add.add(x[0], 1.0), "expected tensors"),
        (lambda: add.add(x[0, :60], x[1, :60], x[0, 4:]), "share memory"),
        (lambda: softmax.softmax(x, w[:1].expand(4, 64)), "rows of out overlap"),
        (lambda: softmax.softmax(x, w.view(-1).as_strided((4, 64), (16, 1))), "rows of out overlap"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            call()


def test_one_variant_serves_any_number_of_rows(device: str) -> None:
    variants = set()
    for height in (2, 3, 100):
        x = random_rows(height, 48, torch.float32, device)
        assert relative_error(softmax.softmax(x), torch.softmax(x.double(), -1)) < 3e-6
        variants.add(id(softmax.softmax_rows.latest))
    assert len(variants) == 1


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "width", [33, 1000, 1024, 4096, 16384, 32768, 65536, 65537, 131072, 262144]
)
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
