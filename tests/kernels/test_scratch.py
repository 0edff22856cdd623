"""Memory that kernels keep between launches: what is shared, what is not, and what must never be kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tilejit.kernels import scratch, softmax
from tilejit.kernels.row_clusters import ClusterPlan, tickets_for

CPU = torch.device("cpu")
STREAM = 7
SHAPE = (3,)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    scratch._of_stream.cache_clear()
    yield
    scratch._of_stream.cache_clear()


def kept(make=scratch._zeros, stream: int = STREAM, shape=SHAPE, dtype=torch.uint32):
    """As on a stream of a GPU."""
    return scratch._of_stream(make, shape, dtype, CPU, stream)


def test_one_for_equal_launches_of_a_stream() -> None:
    first = kept()
    assert first is kept() and not first.any()
    others = [
        kept(stream=8), kept(shape=(1, 3)), kept(dtype=torch.int32), kept(scratch._empty)
    ]  # fmt: skip
    assert len({first.data_ptr(), *(other.data_ptr() for other in others)}) == 5


def test_on_the_cpu_nothing_is_kept() -> None:
    for make in (scratch.zeros, scratch.empty):
        one, other = make(SHAPE, torch.int32, CPU), make(SHAPE, torch.int32, CPU)
        assert one is not other and one.shape == SHAPE and one.dtype == torch.int32


def test_a_fake_tensor_does_not_stay_behind() -> None:
    with FakeTensorMode():
        for make in (scratch._zeros, scratch._empty):
            with pytest.raises(ValueError, match="a FakeTensor without memory"):
                kept(make)
    assert type(kept()) is torch.Tensor


def test_nor_one_of_torch_func() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ValueError, match="a Tensor without memory"):
            kept()
        return x.sum()

    torch.func.grad(f)(torch.ones(2))
    torch.func.functionalize(f)(torch.ones(2))
    assert not kept().any()


def test_what_was_made_in_inference_mode_serves_later() -> None:
    with torch.inference_mode():
        tickets = kept(shape=(1,))
    x = torch.randn(9, 4 * 32)
    out = torch.empty_like(x)
    softmax.softmax_clusters(x, out, tickets, ClusterPlan(4, 128, 1, 32, 1, 2, 1))
    torch.testing.assert_close(out, torch.softmax(x, -1))
    assert tickets.is_inference() and tickets.item() == 0


# --- on a GPU


@pytest.fixture
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


def test_streams_have_their_own(gpu: torch.device) -> None:
    x = torch.empty(1, device=gpu)
    here = tickets_for(x)
    with torch.cuda.stream(torch.cuda.Stream()):
        there = tickets_for(x)
        assert there is tickets_for(x)
    assert here.data_ptr() != there.data_ptr() and here is tickets_for(x)


def test_a_graph_has_its_own(gpu: torch.device) -> None:
    x = torch.empty(1, device=gpu)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        inside = tickets_for(x)
        inside.add_(1)
    with torch.cuda.stream(stream):
        assert tickets_for(x).data_ptr() != inside.data_ptr()
    for _ in range(2):
        graph.replay()
        assert inside.item() == 1
