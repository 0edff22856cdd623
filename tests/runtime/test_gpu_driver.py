"""The real driver: a cubin that NVRTC makes here, launched through plans, with every attribute."""

from typing import Any

import pytest
import torch

from tests.conftest import need_gpu
from tests.runtime.fakes import Steps, jit
from tilejit.errors import LaunchError
from tilejit.language import T
from tilejit.language.annotations import LaunchConfig
from tilejit.runtime import driver as drivers

pytestmark = pytest.mark.gpu

TEXT = r"""
extern "C" __global__ void add(float* x, const float* y, float a, int n, long long big) {
    extern __shared__ float staged[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    staged[threadIdx.x] = i < n ? y[i] : 0.0f;
    __syncthreads();
    if (i < n) x[i] = staged[threadIdx.x] * a + (float)(big >> 40);
}
"""


def add(
    X: T.Tensor(("N",), "float32"),
    Y: T.Tensor(("N",), "float32"),
    a: T.float32,
    n: T.int32,
    big: T.int64,
): ...


class Compiled(Steps):
    """The fake steps, with a real cubin."""

    def compile(self, kernel: Any, lowered: Any, signature: Any, options: Any, check: Any) -> Any:
        from dataclasses import replace

        from cuda.bindings import nvrtc

        made = super().compile(kernel, lowered, signature, options, check)
        arch = f"-arch={signature.target}".encode()
        _, program = nvrtc.nvrtcCreateProgram(TEXT.encode(), b"add.cu", 0, [], [])
        assert not nvrtc.nvrtcCompileProgram(program, 1, [arch])[0]
        cubin = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return replace(made, cubin=cubin)


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Any:
    need_gpu(request.config)
    return jit(add, Compiled(dynamic_shared_bytes=100 * 1024, block=(256,)))


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randn(1000, device="cuda")
    return torch.zeros_like(y), y


def test_launch_bind_stream_and_graph(kernel: Any) -> None:
    x, y = operands()
    arguments = (x, y, 2.0, 1000, 3 << 40)
    kernel(*arguments)
    assert torch.equal(x, y * 2 + 3)
    x.zero_()
    bound = kernel.bind(*arguments)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        bound()
    stream.synchronize()
    assert torch.equal(x, y * 2 + 3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(*arguments)
        bound()
    x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(x, y * 2 + 3)


def test_cold_in_a_capture_leaves_the_capture_valid(kernel: Any) -> None:
    x, y = operands()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.mul_(2)
        with pytest.raises(LaunchError, match="launch/capture"):
            kernel(x, y, 1.0, 1000, 0)
    graph.replay()
    torch.cuda.synchronize()


@pytest.mark.parametrize("options", [
    {}, {"cluster": 2}, {"cluster": (4, 1, 1)}, {"cluster": 16}, {"cooperative": True},
    {"programmatic_stream_serialization": True},
])  # fmt: skip
def test_launch_attributes(kernel: Any, options: dict[str, Any]) -> None:
    x, y = operands()
    kernel[LaunchConfig(grid=16, block=256, **options)](x, y, 1.0, 1000, 0)
    torch.cuda.synchronize()
    assert torch.equal(x, y)


def test_bad_launches_are_named_and_do_not_poison(kernel: Any) -> None:
    x, y = operands()
    uneven = kernel[LaunchConfig(grid=5, block=256, cluster=2)]
    for _ in range(2):
        with pytest.raises(LaunchError, match=r"CUDA_ERROR_INVALID_(.|\n)*multiple of the cluster"):
            uneven(x, y, 1.0, 1000, 0)
    kernel(x, y, 1.0, 1000, 0)
    assert torch.equal(x, y)


def test_a_new_thread_launches(kernel: Any) -> None:
    import threading

    x, y = operands()
    kernel(x, y, 1.0, 1000, 0)
    x.zero_()
    thread = threading.Thread(target=kernel, args=(x, y, 1.0, 1000, 0))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(x, y)


def test_limits_attributes_and_occupancy(kernel: Any) -> None:
    x, y = operands()
    kernel(x, y, 1.0, 1000, 0)
    driver = drivers.current()
    limits = driver.limits(0)
    assert limits.capability == torch.cuda.get_device_capability(0)
    assert limits.max_grid[1] == 65535 and limits.max_shared_bytes_per_block > 48 * 1024
    (plan,) = kernel._plans.values()
    assert driver.attributes(plan.function).registers > 0
    assert driver.blocks_per_sm(plan.function, 256, 100 * 1024) == 2
