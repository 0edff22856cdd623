"""Outside values: a changed global, cell or helper is seen at the next call, warm or cold."""

import types
from typing import Any

import pytest

from tests.runtime.fakes import Steps, cuda_tensor, gpu, jit
from tilejit.language import T
from tilejit.runtime.watch import watch

G = 5
UNUSED = 1


def plain_helper() -> int:
    return G


def uses_global(X: T.Tensor(("N",))):
    return G + plain_helper()


def seeing() -> Steps:
    """Steps whose lowering captures G as it is now."""
    return Steps(captured=lambda: (("G", G),))


@pytest.fixture(autouse=True)
def restore() -> Any:
    global G, plain_helper
    saved = G, plain_helper
    yield
    G, plain_helper = saved


def test_a_changed_global_is_never_stale() -> None:
    global G
    steps = seeing()
    k = jit(uses_global, steps)
    with gpu() as g:
        x = cuda_tensor(8)
        for value in (5, 5, 10, 10, 5):
            G = value
            k(x)
            assert k.latest.lowered.captured == (("G", value),)
    assert len(steps.compiled) == 3
    assert len(g.recorder.launches) == 5
    assert "global 'G'" in k.explain_recompile().splitlines()[1]


def test_an_equal_value_is_no_change() -> None:
    global G
    steps = seeing()
    k = jit(uses_global, steps)
    with gpu():
        G = 10**6
        k(cuda_tensor(8))
        G = int("1000000")
        k(cuda_tensor(8))
        k(cuda_tensor(8))
    assert len(steps.compiled) == 1


def test_another_type_is_a_change() -> None:
    global G
    steps = seeing()
    k = jit(uses_global, steps)
    with gpu():
        for value in (1, 1.0, True, 0.0, -0.0):
            G = value
            k(cuda_tensor(8))
    assert len(steps.compiled) == 5


def test_a_rebound_helper_is_a_change() -> None:
    global plain_helper
    steps = seeing()
    k = jit(uses_global, steps)
    with gpu():
        k(cuda_tensor(8))
        plain_helper = lambda: 7  # noqa: E731
        k(cuda_tensor(8))
        k(cuda_tensor(8))
    assert len(steps.compiled) == 2


def test_kernels_made_in_a_loop_see_their_own_cell() -> None:
    kernels = []
    for n in [4, 8]:

        def make(n: int) -> Any:
            def k(X: T.Tensor(("N",))):
                return n

            return k

        kernels.append(make(n))
    assert [w.value for k in kernels for w in watch(k)] == [4, 8]


def test_a_late_bound_cell_is_watched() -> None:
    def k(X: T.Tensor(("N",))):
        return n

    n = 4
    kernel = jit(k)
    with gpu():
        kernel(cuda_tensor(8))
        n = 8
        kernel(cuda_tensor(8))
    assert "closure variable 'n'" in kernel.explain_recompile().splitlines()[1]


def test_helpers_of_helpers_and_modules_are_reached() -> None:
    module = types.ModuleType("user_module")
    exec("SIZE = 3\nOTHER = 4\ndef inner():\n    return SIZE", vars(module))

    def kernel() -> Any:
        return module.inner() + module.SIZE

    labels = {w.place.label for w in watch(kernel)}
    assert any("'inner' of user_module" in label for label in labels)
    assert any("global 'SIZE' of" in label or "'SIZE' of user_module" in label for label in labels)
    assert not any("OTHER" in label for label in labels)


def test_what_is_not_read_is_not_watched() -> None:
    labels = " ".join(w.place.label for w in watch(uses_global))
    assert "'G'" in labels and "plain_helper" in labels
    assert "UNUSED" not in labels and "'T'" not in labels


def test_jit_helpers_are_followed() -> None:
    helper = jit(plain_helper)

    def kernel() -> Any:
        return helper()

    assert any("'G'" in w.place.label for w in watch(kernel))
