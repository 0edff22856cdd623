"""Outside values: a changed global, cell or helper is seen at the next call, warm or cold."""

import dataclasses
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


# --- what is reached through constants, inheritance, and names that are not there yet


def watching(k: Any, *args: Any) -> list[str]:
    """Why each variant was made, after two calls; two calls without a change are one variant."""
    for _ in range(2):
        k(cuda_tensor(8), *args)
    return k.explain_recompile().splitlines()  # type: ignore[no-any-return]


def test_a_name_defined_after_a_failed_call_is_watched() -> None:
    space: dict[str, Any] = {"__name__": "user"}
    exec("def k(X):\n    return LATER", space)

    def lowering() -> Any:
        return (("LATER", space["LATER"]),)

    k = jit(space["k"], Steps(captured=lowering))
    with gpu():
        with pytest.raises(KeyError):
            k(cuda_tensor(8))
        for value in (3, 4):
            space["LATER"] = value
            watching(k)
            assert k.latest.lowered.captured == (("LATER", value),)
        del space["LATER"]
        with pytest.raises(KeyError):
            k(cuda_tensor(8))
        space["LATER"] = 5
        watching(k)
        assert k.latest.lowered.captured == (("LATER", 5),)


def test_a_builtin_shadowed_later_is_a_change() -> None:
    space: dict[str, Any] = {"__name__": "user"}
    exec("def k(X):\n    return max(1, 2)", space)
    k = jit(space["k"])
    with gpu():
        assert len(watching(k)) == 1
        space["max"] = lambda a, b: a
        assert len(watching(k)) == 2
        del space["max"]
        assert len(watching(k)) == 3


def test_inherited_attributes_are_watched() -> None:
    class Base:
        Z = 1

    class Derived(Base):
        pass

    def k(X: T.Tensor(("N",))):
        return Derived.Z

    kernel = jit(k)
    with gpu():
        assert len(watching(kernel)) == 1
        Base.Z = 2
        assert len(watching(kernel)) == 2
        Derived.Z = 3
        assert len(watching(kernel)) == 3


def test_what_methods_of_constants_read_is_watched() -> None:
    global G

    @dataclasses.dataclass(frozen=True)
    class Config:
        a: int = 1

        @property
        def doubled(self) -> int:
            return self.a * G

        def scaled(self) -> int:
            return self.a * self.SCALE

        @staticmethod
        def alone() -> int:
            return G

    Config.SCALE = 1
    held = (Config(),)

    def captures(X: T.Tensor(("N",))):
        return held[0].doubled

    def takes(X: T.Tensor(("N",)), c: T.constexpr):
        return c.scaled()

    captured, argument = jit(captures), jit(takes)
    with gpu():
        assert len(watching(captured)) == len(watching(argument, Config())) == 1
        G = 77
        assert len(watching(captured)) == len(watching(argument, Config())) == 2
        Config.SCALE = 3
        assert len(watching(argument, Config())) == 3


def test_functions_among_the_constants_are_watched() -> None:
    global G

    def takes(X: T.Tensor(("N",)), f: T.constexpr):
        return f()

    k = jit(takes)
    with gpu():
        assert len(watching(k, plain_helper)) == 1
        G = 78
        assert len(watching(k, plain_helper)) == 2
        assert len(watching(k, jit(plain_helper))) == 3


def test_code_replaced_in_place_is_a_change() -> None:
    def helper() -> int:
        return 1

    def other() -> int:
        return 2

    def calls(X: T.Tensor(("N",))):
        return helper()

    k = jit(calls)
    with gpu():
        assert len(watching(k)) == 1
        helper.__code__ = other.__code__
        assert len(watching(k)) == 2


def test_two_looks_describe_the_same_places() -> None:
    class Base:
        Z = 1

    class Derived(Base):
        W = 2

    def k() -> Any:
        return Derived.Z + Derived.W + max(1, plain_helper())

    assert [w.place.identity for w in watch(k)] == [w.place.identity for w in watch(k)]
