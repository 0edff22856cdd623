"""The C launcher with torch's real exchange API, the real driver and a cubin made here."""

import threading
from typing import Any

import pytest
import torch

from tests.runtime.test_gpu_driver import kernel  # noqa: F401  (a fixture)
from tilejit.runtime import native

pytestmark = pytest.mark.gpu


def arguments(n: int = 256, device: str = "cuda") -> tuple[Any, ...]:
    return torch.zeros(n, device=device), torch.ones(n, device=device), 2.0, n, 3 << 40


def hits(k: Any) -> int:
    return getattr(type(k).__call__, "hits", 0)


def test_launches_through_c_compute(kernel: Any) -> None:  # noqa: F811
    args = arguments()
    for _ in range(3):
        kernel(*args)
    for scale in (4.0, -1.5):
        before = hits(kernel)
        args[0].zero_()
        kernel(args[0], args[1], scale, *args[3:])
        assert hits(kernel) == before + (native.which() == "c")
        assert torch.equal(args[0], torch.full_like(args[0], scale + 3))
    other = arguments()
    other[1].requires_grad_()
    kernel(*other)
    assert torch.equal(other[0], torch.full_like(other[0], 5.0))


def test_c_launches_on_the_current_stream(kernel: Any) -> None:  # noqa: F811
    args = arguments()
    for _ in range(3):
        kernel(*args)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        args[0].zero_()
        kernel(*args)
    assert not side.query()
    side.synchronize()
    assert torch.equal(args[0], torch.full_like(args[0], 5.0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*args)
    args[0].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(args[0], torch.full_like(args[0], 5.0))


def test_c_launches_from_new_threads(kernel: Any) -> None:  # noqa: F811
    args = arguments()
    for _ in range(3):
        kernel(*args)
    args[0].zero_()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            kernel(*args)
        except BaseException as error:
            failures.append(error)

    for _ in range(4):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    torch.cuda.synchronize()
    assert not failures
    assert torch.equal(args[0], torch.full_like(args[0], 5.0))


def test_two_devices(kernel: Any) -> None:  # noqa: F811
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    for _ in range(3):
        for device in ("cuda:0", "cuda:1"):
            for current in (0, 1):
                args = arguments(device=device)
                with torch.cuda.device(current):
                    kernel(*args)
                torch.cuda.synchronize(device)
                assert torch.equal(args[0], torch.full_like(args[0], 5.0))
