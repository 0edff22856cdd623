"""``tile.custom_op``: schemas, what an operator writes, ``torch.compile``, fake tensors, autograd, CUDA graphs.

On the GPU and, the same cases, in the simulator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import tilejit as tile
from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit
from tests.runtime.launchers import BOTH, launcher
from tilejit import LaunchError, T
from tilejit.runtime import observer

THREADS = 64
N = T.dynamic("n")


@tile.jit
def scaled(
    X: T.Tensor((N,), "float32"),
    Y: T.Tensor((N,), "float32"),
    factor: T.float32,
    threads: T.constexpr = THREADS,
):
    """Y = factor * X."""
    (n,) = X.shape
    T.device_entry(launch=T.cuda.LaunchConfig(grid=(n + threads - 1) // threads, block=threads))
    i = T.cuda.block_idx("x") * threads + T.cuda.thread_idx("x")
    if i < n:
        Y[i] = X[i] * factor


@tile.jit
def elementwise(X, Y, Z, how: T.constexpr):
    """Y = X + Z, or X is added to Y."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=X.shape[0]))
    i = T.cuda.thread_idx("x")
    if how == "add":
        Y[i] = X[i] + (0.0 if Z is None else Z[i])
    elif how == "swapped":
        X[i] = Y[i]
    else:
        Y[i] += X[i]


@tile.jit
def with_bias(
    X: T.Tensor((32,), "float32"), B: T.Tensor((32,), "float32") | None, Y: T.Tensor((32,), "float32"),
    twice: T.int32 = 0,
):  # fmt: skip
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    i = T.cuda.thread_idx("x")
    y = X[i]
    if B is not None:
        y += B[i]
    if twice != 0:
        y += y
    Y[i] = y


@tile.jit
def filled(Y: T.Tensor((N,), "float32"), value: T.float32):
    """The caller gives the grid."""
    T.device_entry(launch=T.cuda.LaunchConfig(block=32))
    i = T.cuda.block_idx("x") * 32 + T.cuda.thread_idx("x")
    if i < Y.shape[0]:
        Y[i] = value


# What some versions of torch say of their own parts when dynamo and inductor are first imported.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")

_numbers = itertools.count()


def fresh() -> str:
    """An operator's name that no other test has."""
    return f"tilejit_tests::op{next(_numbers)}"


@pytest.fixture(autouse=True)
def _no_graphs_left() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def schema(operator: Any) -> str:
    return str(operator._opoverload._schema).partition("(")[2]


def host_op(name: str | None = None) -> Any:
    """2 * x as a functional operator with its gradient."""

    @tile.custom_op(name or fresh())
    def doubled(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        scaled(x, y, 2.0)
        return y

    doubled.register_fake(torch.empty_like)
    doubled.register_autograd(lambda ctx, grad: doubled(grad.contiguous()))
    return doubled


# --- schemas


def test_an_operator_of_a_kernel() -> None:
    operator = tile.custom_op(fresh(), scaled)
    assert (
        schema(operator)
        == f"Tensor X, Tensor(a1!) Y, float factor, SymInt threads={THREADS}) -> ()"
    )


def test_optional_tensors_and_defaults() -> None:
    operator = tile.custom_op(fresh(), with_bias)
    assert schema(operator) == "Tensor X, Tensor? B, Tensor(a2!) Y, SymInt twice=0) -> ()"


@pytest.mark.parametrize(("how", "written"), [("add", "Y"), ("swapped", "X"), ("into", "Y")])
def test_what_is_written_is_read_off_the_ir(how: str, written: str) -> None:
    x = torch.ones(32)
    operator = tile.custom_op(fresh(), elementwise, example=(x, x, x), constants={"how": how})
    mutated = [a.name for a in operator._opoverload._schema.arguments if a.alias_info is not None]
    assert mutated == [written]


def test_a_constant_between_two_arguments() -> None:
    x, y = torch.arange(4.0), torch.zeros(4)
    operator = tile.custom_op(
        fresh(), with_constant_between, mutates=("Y",), constants={"factor": 3.0}
    )
    operator(x, y)
    assert torch.equal(y, 3 * x)


@tile.jit
def with_constant_between(X, factor: T.constexpr, Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=4))
    Y[T.cuda.thread_idx("x")] = X[T.cuda.thread_idx("x")] * factor


def test_a_kernel_with_a_grid_of_the_caller(device: str) -> None:
    operator = tile.custom_op(fresh(), filled[lambda given: (given["Y"].shape[0] + 31) // 32])
    y = torch.zeros(70, device=device)
    operator(y, 2.0)
    assert torch.equal(y.cpu(), torch.full((70,), 2.0))


CONFIGS = [tile.Config(threads=64), tile.Config(threads=32)]


@pytest.mark.filterwarnings("ignore::tilejit.TuningWarning")
@pytest.mark.parametrize("gridded", [False, True])
def test_an_autotuned_kernel_keeps_what_is_tuned_to_itself(gridded: bool, device: str) -> None:
    kernel: Any = tile.autotune(CONFIGS, key=("factor",))(scaled)
    if gridded:
        kernel = kernel[lambda given: -(-given["X"].shape[0] // given["threads"])]
    operator = tile.custom_op(fresh(), kernel)
    assert schema(operator) == "Tensor X, Tensor(a1!) Y, float factor) -> ()"
    x, y = torch.arange(70.0, device=device), torch.zeros(70, device=device)
    for factor in (2.0, 3.0):  # of the key: each is tuned for
        torch.compile(operator, backend="eager", fullgraph=True)(x, y, factor)
        assert torch.equal(y, factor * x)
    chosen: Any = kernel.tuned
    assert len(chosen.reports) == 2


def test_other_defaults_are_left_alone() -> None:
    operator = tile.custom_op(fresh(), with_plan)
    assert schema(operator) == "Tensor(a0!) X, bool twice) -> ()"
    x = torch.zeros(4)
    operator(x, True)
    assert torch.equal(x, torch.full((4,), 4.0))


@tile.jit
def with_plan(X: T.Tensor((4,), "float32"), twice: T.bool_, plan: T.constexpr = (1.0, 2.0)):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=4))
    X[T.cuda.thread_idx("x")] = 2 * plan[1] if twice else plan[1]


@pytest.mark.parametrize(
    ("make", "code", "says"),
    [
        (lambda: tile.custom_op(fresh(), elementwise), "op/constexpr", "constants={'how': …}"),
        (lambda: tile.custom_op(fresh(), elementwise, constants={"how": "add"}), "op/mutates", "X does not"),
        (lambda: tile.custom_op(fresh(), scaled, constants={"width": 3}), "op/constexpr", "width"),
        (lambda: tile.custom_op(fresh(), "scaled"), "op/kernel", "'scaled'"),
        (lambda: tile.custom_op(fresh(), lambda x: None, example=(1,)), "op/kernel", "host function"),
        (lambda: tile.custom_op(fresh())(lambda x: None), "op/schema", "must have a type annotation"),
        (lambda: tile.custom_op(fresh(), scaled, mutates=("Z",)), "op/schema", "'Z'"),
        (lambda: tile.custom_op(fresh(), scaled, mutates=("factor",)), "op/schema", "factor"),
        (lambda: tile.custom_op(fresh(), scaled, mutates="XY"), "op/schema", "mutates is the text 'XY'"),
        (lambda: tile.custom_op("scaled", scaled), "op/schema", "'scaled', expected 'namespace::name'"),
        (lambda: tile.custom_op("a::b c", scaled), "op/schema", "'a::b c', expected"),
        (lambda: tile.custom_op("é::b", scaled), "op/schema", "of letters, digits and _"),
        (lambda: tile.custom_op("aten::add", scaled), "op/schema", "a namespace of torch's own operators"),
        (lambda: tile.custom_op(lambda x: None), "op/schema", "the name of an operator is <function"),
    ],
)  # fmt: skip
def test_what_is_no_operator(make: Callable[[], Any], code: str, says: str) -> None:
    with pytest.raises(LaunchError) as error:
        make()
    assert error.value.codes == (code,)
    assert says in str(error.value)


def test_a_name_can_be_defined_again() -> None:
    """As when a notebook's cell is run twice."""
    name = fresh()
    tile.custom_op(name, scaled)
    operator = tile.custom_op(name, with_bias)
    y = torch.zeros(32)
    operator(torch.ones(32), None, y)
    assert torch.equal(y, torch.ones(32))


# --- what an operator writes


def test_an_undeclared_write_is_refused_before_it_is_done() -> None:
    name = fresh()

    @tile.custom_op(name, mutates=("z",))
    def careless(x: Tensor, y: Tensor, z: Tensor) -> None:
        scaled(x, z, 1.0)
        scaled(x, y, 2.0)

    x, y, z = torch.ones(4), torch.zeros(4), torch.zeros(4)
    with pytest.raises(LaunchError, match="op/undeclared-write") as error:
        careless(x, y, z)
    assert "scaled may write Y, which is the argument y of" in str(error.value)
    assert f"tile.custom_op({name!r}, mutates=('y', 'z',))" in str(error.value)
    assert torch.equal(y, torch.zeros(4)) and torch.equal(z, torch.ones(4))


@pytest.mark.parametrize("how", ["a view", "a list", "bind", "a later specialisation"])
def test_undeclared_writes_on_side_roads(how: str) -> None:
    def careless(x: Tensor, ys: list[Tensor], width: int) -> None:
        if how == "a view":
            scaled(x[:4], ys[0].view(-1)[4:], 2.0)
        elif how == "a list":
            scaled(x, ys[1].view(-1), 2.0)
        elif how == "bind":
            scaled.bind(x, ys[0].view(-1), 2.0)()
        elif width == 32:
            scaled(x, torch.empty_like(x), 2.0, width)
        else:
            scaled(x, ys[0].view(-1), 2.0, width)

    operator = tile.custom_op(fresh(), careless)
    ys = [torch.zeros(2, 4), torch.zeros(8)]
    if how == "a later specialisation":
        operator(torch.ones(8), ys, 32)
    with pytest.raises(LaunchError, match="op/undeclared-write"):
        operator(torch.ones(8), ys, 96)
    assert not any(y.any() for y in ys)


@pytest.mark.filterwarnings("ignore::tilejit.TuningWarning")
@pytest.mark.parametrize("tuned", [False, True])
def test_kernels_that_have_been_launched_before_are_looked_at(tuned: bool, device: str) -> None:
    kernel: Any = tile.autotune(CONFIGS)(scaled) if tuned else scaled
    x, y = torch.ones(8, device=device), torch.zeros(8, device=device)
    for _ in range(4):  # the launcher knows this call
        kernel(x, y, 1.0)

    @tile.custom_op(fresh())
    def careless(x: Tensor, y: Tensor) -> None:
        kernel(x, y, 2.0)

    with pytest.raises(LaunchError, match="op/undeclared-write"):
        careless(x, y)
    assert torch.equal(y, x)


def test_what_is_allocated_inside_or_declared_may_be_written() -> None:
    @tile.custom_op(fresh(), mutates=("y",))
    def careful(x: Tensor, y: Tensor) -> Tensor:
        scaled(x, y[4:], 2.0)
        z = torch.empty_like(x)
        scaled(x, z, 3.0)
        return z

    x, y = torch.ones(4), torch.zeros(8)
    assert torch.equal(careful(x, y), torch.full((4,), 3.0))
    assert y.tolist() == [0.0] * 4 + [2.0] * 4


def test_neighbours_in_one_memory_are_no_aliases() -> None:
    @tile.custom_op(fresh(), mutates=("y",))
    def shifted(x: Tensor, y: Tensor) -> None:
        scaled(x, y, 2.0)

    both = torch.ones(8)
    shifted(both[:4], both[4:])
    assert both.tolist() == [1.0] * 4 + [2.0] * 4


def test_a_kernel_that_writes_otherwise_for_other_arguments() -> None:
    """An operator of a kernel is checked as well: another specialisation may write other tensors."""
    x = torch.ones(32)
    operator = tile.custom_op(fresh(), by_size, example=(x, x))
    operator(torch.ones(32), torch.zeros(32))
    with pytest.raises(LaunchError, match="may write X, which is the argument X"):
        operator(torch.ones(64), torch.zeros(64))


@tile.jit
def by_size(X, Y):
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
    i = T.cuda.thread_idx("x")
    Y[i] = X[i]
    if X.shape[0] > 32:
        X[i] = 0.0


@pytest.mark.parametrize("which", BOTH)
def test_known_launches_are_told_of_once_after_they_were_forgotten(which: str) -> None:
    def copy(x, y, a: T.float32): ...

    told: list[tuple[str, dict[str, Any]]] = []
    with launcher(which), gpu() as g:
        k = jit(copy, Steps())
        x, y = cuda_tensor(4), cuda_tensor(4)
        for _ in range(2):
            k(x, y, 1.0)
        with observer.observed_by(
            lambda variant, given: told.append((variant.source.name, dict(given)))
        ):
            k(x, y, 1.0)
            assert told == []
            observer.forget_launches()
            for _ in range(2):
                k(x, y, 2.0)
            k.bind(x, y, 3.0)()
        k(x, y, 1.0)
        assert [name for name, _ in told] == ["copy", "copy"]
        assert told[0][1]["y"] is y and told[0][1]["a"] == 2.0
        assert len(g.recorder.launches) == 7


# --- graphs


BACKENDS = ["eager", "aot_eager"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_without_a_break(backend: str, device: str) -> None:
    into, doubled = tile.custom_op(fresh(), scaled), host_op()

    def function(x: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.empty_like(x)
        into(x + 1, y, 3.0)
        into(y, kept[1:], 2.0)  # a view of an argument
        into(doubled(y), y, 0.5)  # over what it has written before
        return y - 1, kept * 1

    x, kept = torch.arange(8.0, device=device), torch.zeros(9, device=device)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        kept.zero_()
        out, seen = compiled(x, kept)
        assert torch.equal(out, (x + 1) * 3 - 1)
        assert torch.equal(kept[1:], (x + 1) * 6) and kept[0] == 0
        assert torch.equal(seen, kept)


def test_one_graph_for_every_size(device: str) -> None:
    doubled = host_op()
    sizes: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        sizes.append(inputs)
        return graph.forward

    compiled = torch.compile(
        lambda x: doubled(x + 1), backend=backend, fullgraph=True, dynamic=True
    )
    for n in (5, 9, 130):
        x = torch.arange(float(n), device=device)
        assert torch.equal(compiled(x), 2 * (x + 1))
    assert len(sizes) == 1


def test_inductor() -> None:
    into, doubled = tile.custom_op(fresh(), scaled), host_op()

    def function(x: Tensor, y: Tensor) -> Tensor:
        into(x, y, 3.0)
        return doubled(y)

    x, y = torch.arange(8.0), torch.zeros(8)
    # Nothing but the operators: inductor needs no C++ compiler.
    out = torch.compile(function, fullgraph=True)(x, y)
    assert torch.equal(y, 3 * x) and torch.equal(out, 6 * x)


def test_fake_tensors_launch_nothing() -> None:
    into, doubled = tile.custom_op(fresh(), scaled), host_op()
    before = len(scaled.variants)
    with FakeTensorMode():
        x = torch.empty(77)
        y = torch.empty(77)
        into(x, y, 2.0, 96)
        assert doubled(x).shape == (77,)
    assert len(scaled.variants) == before


def test_without_a_fake_torch_says_what_is_missing() -> None:
    @tile.custom_op(fresh())
    def functional(x: Tensor) -> Tensor:
        return x.clone()

    with FakeTensorMode(), pytest.raises(RuntimeError, match="register_fake"):
        functional(torch.empty(4))


@pytest.mark.parametrize("which", ["into", "doubled", "bias", "no bias"])
def test_torchs_own_checks(which: str, device: str) -> None:
    x = torch.arange(32.0, device=device)
    if which == "into":
        operator, args = tile.custom_op(fresh(), scaled), (x, torch.zeros_like(x), 2.0)
    elif which == "doubled":
        operator, args = host_op(), (x.requires_grad_(),)
    else:
        bias = None if which == "no bias" else torch.ones_like(x)
        operator, args = tile.custom_op(fresh(), with_bias), (x, bias, torch.zeros_like(x), 1)
    outcomes = torch.library.opcheck(operator, args)
    assert set(outcomes.values()) == {"SUCCESS"}


# --- gradients and vmap


@pytest.mark.parametrize("backend", [None, *BACKENDS])
def test_gradients(backend: str | None, device: str) -> None:
    doubled = host_op()

    def loss(x: Tensor) -> Tensor:
        return (doubled(x) * x).sum()

    x = torch.arange(8.0, device=device, requires_grad=True)
    run = loss if backend is None else torch.compile(loss, backend=backend, fullgraph=True)
    run(x).backward()
    assert x.grad is not None and torch.equal(x.grad, 4 * x.detach())


def test_an_operator_that_writes_has_no_gradient() -> None:
    into = tile.custom_op(fresh(), scaled)
    with pytest.raises(RuntimeError, match="functional operator"):
        into.register_autograd(lambda ctx, grad: None)


@pytest.mark.parametrize("mutating", [True, False])
def test_vmap_is_refused_until_it_has_a_rule(mutating: bool) -> None:
    operator = tile.custom_op(fresh(), scaled) if mutating else host_op()
    x = torch.ones(3, 4)
    given, dims = ((x, torch.zeros(3, 4), 2.0), (0, 0, None)) if mutating else ((x,), (0,))
    with pytest.raises(LaunchError, match="op/vmap"):
        torch.vmap(operator, in_dims=dims)(*given)
    if not mutating:
        operator.register_vmap(lambda info, dims, x: (operator(x.reshape(-1)).reshape(x.shape), 0))
        assert torch.equal(torch.vmap(operator)(x), 2 * x)


def test_what_an_operator_within_it_writes_is_an_operators_own_to_declare() -> None:
    within = tile.custom_op(fresh(), scaled)

    @tile.custom_op(fresh())
    def around(x: Tensor, y: Tensor) -> None:
        within(x, y, 2.0)

    x, y = torch.ones(THREADS), torch.zeros(THREADS)
    with pytest.raises(LaunchError, match="may write Y, which is the argument y"):
        around(x, y)
    assert not y.any()


# --- CUDA graphs


@pytest.mark.gpu
def test_inside_a_captured_graph(request: pytest.FixtureRequest) -> None:
    from tests.conftest import need_gpu

    need_gpu(request.config)
    into, doubled = tile.custom_op(fresh(), scaled), host_op()
    x, y = torch.arange(8.0, device="cuda"), torch.zeros(8, device="cuda")
    into(doubled(x), y, 3.0)  # compiled before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        into(doubled(x), y, 3.0)
    for offset in (1.0, 2.0):
        x.add_(offset)
        graph.replay()
        assert torch.equal(y, 6 * x)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch records one to begin with
@pytest.mark.gpu
def test_compiled_into_cuda_graphs(request: pytest.FixtureRequest) -> None:
    from tests.conftest import need_gpu

    need_gpu(request.config)
    into, doubled = tile.custom_op(fresh(), scaled), host_op()

    def function(x: Tensor) -> Tensor:
        y = torch.empty_like(x)
        into(doubled(x) + 1, y, 3.0)
        return y

    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    for n in range(4):
        x = torch.arange(8.0, device="cuda") + n
        assert torch.equal(compiled(x).clone(), (2 * x + 1) * 3)
