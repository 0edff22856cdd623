"""What makes two tunings one, and what does not."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tilejit as tile
from tests.runtime.fakes import cuda_tensor, jit
from tests.tune.fake_tuning import Steps, machine
from tilejit import T
from tilejit.tune.key import power_of_two

CONFIGS = [tile.Config(BLOCK=32), tile.Config(BLOCK=64)]


def static(
    X: T.Tensor(("N", "K")),
    Y: T.Tensor(("N", "K")) | None,
    n,
    BLOCK: T.constexpr,
    mode: T.constexpr = "a",
): ...


def pitched(X: T.Tensor(("R", T.dynamic("M"))), BLOCK: T.constexpr): ...


def dynamic(X: T.Tensor((T.dynamic("M"), "K")), n: T.int32, BLOCK: T.constexpr): ...


def keyed(
    function: Any, *args: Any, configs: Any = CONFIGS, grid: Any = None, **options: Any
) -> Any:
    named = {n: options.pop(n) for n in ("mode",) if n in options}
    tuned = tile.autotune(configs, **options)(jit(function, Steps()))
    entry = tuned if grid is None else tuned[grid]
    return tuned._key(tuned._request(entry, args, named))


def x(*shape: int, **kw: Any) -> Any:
    return cuda_tensor(*(shape or (4, 8)), **kw)


def strided() -> Any:
    return cuda_tensor(like=torch.empty(4, 16)[:, :8])


STATIC: dict[str, Any] = {
    "dtype": lambda: keyed(static, x(dtype=torch.float16), x(), 1),
    "shape": lambda: keyed(static, x(8, 4), x(8, 4), 1),
    "strides": lambda: keyed(static, strided(), x(), 1),
    "alignment": lambda: keyed(static, x(address=0x10004), x(), 1),
    "none": lambda: keyed(static, x(), None, 1),
    "scalar type": lambda: keyed(static, x(), x(), 1.0),
    "scalar width": lambda: keyed(static, x(), x(), 2**40),
    "constant": lambda: keyed(static, x(), x(), 1, mode="b"),
    "configs": lambda: keyed(static, x(), x(), 1, configs=[*CONFIGS, tile.Config(BLOCK=96)]),
    "launch options": lambda: keyed(
        static, x(), x(), 1, configs=[CONFIGS[0], tile.Config(BLOCK=64, cluster=2)]
    ),
    "grid": lambda: keyed(static, x(), x(), 1, grid=64),
    "grid function": lambda: keyed(static, x(), x(), 1, grid=lambda a: 64),
    "device": lambda: keyed(static, x(ordinal=1), x(ordinal=1), 1),
    "prune": lambda: keyed(static, x(), x(), 1, prune=lambda c, a: False),
    "reference": lambda: keyed(static, x(), x(), 1, reference=lambda X: X),
    "tolerance": lambda: keyed(static, x(), x(), 1, tolerance=1e-3),
    "named value": lambda: keyed(static, x(), x(), 1, key=["n"]),
}


def test_everything_that_a_measurement_depends_on_makes_another_key() -> None:
    with machine():
        plain = keyed(static, x(), x(), 1)
        again = keyed(static, x(address=0x90000), x(address=0x50000), 7)
        assert plain.digest == again.digest, "addresses of one class, and values that are not named"
        found = {name: make().digest for name, make in STATIC.items()}
    assert len({plain.digest, *found.values()}) == 1 + len(found), found


def test_arguments_count_by_name() -> None:
    with machine():
        tuned = tile.autotune(CONFIGS)(jit(static, Steps()))
        by_position = tuned._key(tuned._request(tuned, (x(), x(dtype=torch.int32), 1), {}))
        by_name = tuned._key(
            tuned._request(tuned, (), {"n": 1, "Y": x(dtype=torch.int32), "X": x()})
        )
    assert by_position.digest == by_name.digest
    assert by_name.facts["arguments"]["Y"].startswith("int32 (4, 8)")


def test_dynamic_sizes_count_by_powers_of_two_unless_named_or_bucketed() -> None:
    with machine():

        def digest(m: int, **options: Any) -> str:
            return keyed(dynamic, x(m, 8), 1, **options).digest

        assert digest(65) == digest(128) != digest(129)
        assert digest(65, key=["M"]) != digest(66, key=["M"])
        coarse = {"bucket": lambda name, size: f"{name}: {size > 100}"}
        assert digest(65, **coarse) == digest(3, **coarse) != digest(101, **coarse)
    assert [power_of_two(n) for n in (0, 1, 2, 3, 4, 5, 2**31)] == [0, 1, 2, 4, 4, 8, 2**31]


def test_strides_that_vary_count_by_alignment() -> None:
    with machine():

        def digest(pitch: int) -> str:
            tensor = cuda_tensor(like=torch.empty(4, pitch)[:, :8])
            return keyed(pitched, tensor).digest

        assert digest(12) == digest(20) != digest(13)


def scale() -> int:
    return 2


FACTOR = 1


def reads_outside(X: T.Tensor(("N",)), BLOCK: T.constexpr):
    return FACTOR * scale()


def test_what_the_kernel_reads_outside_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    with machine():
        tuned = tile.autotune(CONFIGS)(jit(reads_outside, Steps()))

        def digest() -> str:
            return tuned._key(tuned._request(tuned, (x(8),), {})).digest

        first = digest()
        assert digest() == first
        monkeypatch.setitem(globals(), "FACTOR", 3)
        changed = digest()
        monkeypatch.setitem(globals(), "scale", lambda: 3)
        assert len({first, changed, digest()}) == 3
        monkeypatch.undo()
        assert digest() == first


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (["X"], "is a tensor"), (["q"], "neither a parameter nor a dimension"), (["BLOCK"], "itself tuned"),
        (["Mode"], "did you mean 'mode'"), ("n", "expected a list of names"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_key_is_refused_at_once(key: Any, said: str) -> None:
    with pytest.raises(tile.TuneError, match=said) as found:
        tile.autotune(CONFIGS, key=key)(jit(static, Steps()))
    assert found.value.codes == ("tune/key",)


def test_a_tensor_where_a_named_number_was_expected() -> None:
    with machine(), pytest.raises(tile.TuneError, match="'n' in `key` is a tensor") as found:
        keyed(static, x(), x(), x(), key=["n"])
    assert found.value.codes == ("tune/key",)


def never(config: tile.Config, arguments: Any) -> bool:
    return False


def digests() -> list[str]:
    with machine():
        return [
            keyed(static, x(), x(), 1, prune=never).digest,
            keyed(dynamic, x(70, 8), 3, key=["n"], grid=lambda a: a["n"]).digest,
            keyed(reads_outside, x(8), configs=[tile.Config(BLOCK=frozenset("abcde"))]).digest,
        ]


def test_keys_are_the_same_in_every_process() -> None:
    root = str(Path(__file__).parent.parent.parent)
    program = f"import sys; sys.path.insert(0, {root!r})\nfrom tests.tune.test_key import digests\nprint(*digests())"
    environment = {**os.environ, "PYTHONHASHSEED": "12345"}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == digests()
