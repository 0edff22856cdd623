"""What the ready kernels ask of their tensors, against sets of addresses."""

from __future__ import annotations

import itertools

import pytest
import torch

from tilejit.kernels.operands import apart, check_flag, facts_of, has_memory, same_device


def addresses(tensor: torch.Tensor) -> set[int]:
    """Of every byte."""
    size = tensor.element_size()
    starts = {
        tensor.data_ptr() + size * sum(i * s for i, s in zip(index, tensor.stride()))
        for index in itertools.product(*map(range, tensor.shape))
    }
    return {start + i for start in starts for i in range(size)}


MEMORY = torch.empty(64, dtype=torch.int16)
VIEWS = [
    MEMORY.as_strided(shape, strides, offset)
    for shape, strides in [
        ((4,), (1,)), ((4, 3), (8, 1)), ((3, 4), (8, 1)), ((4, 3), (12, 1)), ((2, 3), (1, 8)),
        ((5, 2), (0, 1)), ((2, 2, 2), (24, 6, 1)), ((1, 3), (5, 2)), ((0, 3), (3, 1)),
    ]
    for offset in (0, 3, 4, 9, 20)
]  # fmt: skip
VIEWS += [MEMORY.view(torch.int32)[start : start + 9 : 3] for start in (0, 1, 20)]


def test_apart_is_exact() -> None:
    outcomes = set()
    for a, b in itertools.product(VIEWS, VIEWS):
        if addresses(a) & addresses(b):
            with pytest.raises(ValueError, match="the result may not share memory with a name"):
                apart("a name", a, b)
            outcomes.add(True)
        else:
            apart("a name", a, b)
            outcomes.add(False)
    assert outcomes == {True, False}


def test_tensors_without_memory_are_apart() -> None:
    a = torch.empty(4, device="meta")
    apart("a", a, a)
    seen = []

    def functional(x: torch.Tensor) -> torch.Tensor:
        apart("x", x, x)
        seen.append(has_memory(x))
        return x

    torch.func.functionalize(functional)(torch.ones(4))
    assert seen == [False]
    assert has_memory(torch.ones(4)) and not has_memory(a)


def test_a_tensor_of_torch_func_is_refused() -> None:
    def mapped(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ValueError, match="x is a tensor without memory of its own"):
            facts_of("x", x)
        return x

    torch.func.vmap(mapped)(torch.ones(2, 2))


def test_flags() -> None:
    check_flag("causal", True)
    check_flag("causal", False)
    for value in (1, 0, None, "no", torch.tensor(True)):
        with pytest.raises(ValueError, match="causal is .*, expected True or False"):
            check_flag("causal", value)


def test_facts() -> None:
    x = torch.zeros(100, dtype=torch.float16)[8:]
    facts = facts_of("x", x.as_strided((2, 3), (10, 2), 9))
    assert facts.address == (x.data_ptr() + 2) % 16
    assert (facts.span_elems, facts.span_bytes) == (15, 30)
    assert facts_of("x", x[:0]).span_elems == 0


def test_what_is_no_dense_tensor_is_refused() -> None:
    x = torch.ones(2, 2)
    for value, kind in (
        (None, "NoneType"),
        (1.0, "float"),
        (x.numpy(), "ndarray"),
        (x.to_sparse(), "a tensor of layout torch.sparse_coo"),
    ):
        with pytest.raises(ValueError, match=f"x is {kind}, expected a dense torch.Tensor"):
            facts_of("x", value)


def test_tensors_on_several_devices_are_refused() -> None:
    here, there = facts_of("a", torch.ones(1)), facts_of("b", torch.ones(1, device="meta"))
    same_device(a=here, b=None, c=here)
    with pytest.raises(ValueError, match="c is on meta, expected cpu, where a is"):
        same_device(a=here, b=None, c=there)
