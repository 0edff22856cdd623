"""Arguments to signatures: every fault named, all at once; numpy and Python numbers alike."""

from typing import Any

import numpy as np
import pytest
import torch

from tests.runtime.fakes import cuda_tensor, gpu, parse
from tilejit import dtypes
from tilejit.errors import LaunchError
from tilejit.ir.signature import ConstArg, ScalarArg, Signature, TensorArg
from tilejit.language import T
from tilejit.runtime import specialise as sp
from tilejit.runtime import torch_glue


def signature(function: Any, *args: Any, **keywords: Any) -> Signature:
    return sp.specialise(parse(function).params, args, keywords, target="sm_90a").signature


def codes(function: Any, *args: Any, **keywords: Any) -> list[str]:
    with pytest.raises(LaunchError) as caught:
        signature(function, *args, **keywords)
    return list(caught.value.codes)


def matrix(X: T.Tensor(("M", "N"), "float32", align=16), Y: T.Tensor(("M", "N"), "float32")): ...


def aligned(rows: int, columns: int) -> torch.Tensor:
    base = torch.empty(rows * columns + 64)
    skip = (-base.data_ptr() // 4) % 64
    return base[skip : skip + rows * columns].view(rows, columns)


def test_a_tensor_becomes_dtype_shape_strides_and_alignment() -> None:
    x, y = aligned(4, 8), aligned(4, 9)[:, :8]
    args = dict(signature(matrix, x, y).args)
    assert args["X"] == TensorArg(dtypes.float32, (4, 8), (8, 1), 16)
    assert args["Y"] == TensorArg(dtypes.float32, (4, 8), (9, 1), 16)


@pytest.mark.parametrize(
    ("address", "limit", "expected"),
    [(0, 16, 16), (64, 16, 16), (8, 16, 8), (4, 16, 4), (2, 16, 2), (1, 16, 1), (12, 16, 4),
     (64, 128, 64), (128, 128, 128), (384, 128, 128), (192, 128, 64)],
)  # fmt: skip
def test_alignment_class(address: int, limit: int, expected: int) -> None:
    assert sp.alignment_class(address, limit) == expected


def test_broken_alignment_promise_names_both_numbers() -> None:
    x = aligned(4, 9).view(-1)[1:33].view(4, 8)
    with pytest.raises(
        LaunchError, match=r"multiple of 4 bytes; expected a multiple of 16"
    ) as caught:
        signature(matrix, x, aligned(4, 8))
    assert caught.value.codes == ("launch/align",)


def test_promise_raises_the_class() -> None:
    def k(X: T.Tensor(("N",), align=128)): ...

    base = torch.empty(256, dtype=torch.uint8)
    x = base[(-base.data_ptr()) % 128 :][:128]
    (arg,) = dict(signature(k, x).args).values()
    assert isinstance(arg, TensorArg) and arg.align_bytes == 128


def test_every_fault_of_a_call_at_once() -> None:
    def k(
        X: T.Tensor(("M", "N"), "float32"),
        Y: T.Tensor(("M", 8)),
        a: T.int8,
        b: T.constexpr,
        c: T.float32,
    ): ...

    found = codes(k, torch.empty(4, 8, dtype=torch.float16), torch.empty(5, 9), 128, [1], d=3)
    assert sorted(found) == sorted(
        ["launch/dtype", "launch/shape", "launch/shape", "launch/range", "launch/constexpr",
         "launch/missing-argument", "launch/unknown-argument"]
    )  # fmt: skip


def test_a_misspelt_keyword_has_a_suggestion() -> None:
    def k(X: T.Tensor((8,), "float32"), WARPS: T.constexpr = 4): ...

    for wrong in ("warps", "num_warps", "WARP"):
        with pytest.raises(LaunchError, match="did you mean 'WARPS'"):
            signature(k, torch.empty(8), **{wrong: 8})
    with pytest.raises(LaunchError) as caught:
        signature(k, torch.empty(8), stages=8)
    assert "did you mean" not in str(caught.value)


def test_names_unify_over_arguments() -> None:
    with pytest.raises(
        LaunchError, match="M is 4 in dimension 0 of 'X' but 5 in dimension 0 of 'Y'"
    ):
        signature(matrix, aligned(4, 8), aligned(5, 8))


def test_wrong_rank() -> None:
    assert codes(matrix, aligned(4, 8), torch.empty(8)) == ["launch/rank"]


def test_too_many_arguments() -> None:
    assert codes(matrix, aligned(4, 8), aligned(4, 8), 1) == ["launch/too-many-arguments"]


def test_dynamic_dimensions_and_the_strides_left_of_them() -> None:
    def k(X: T.Tensor((T.dynamic("M"), T.dynamic("N"), "K"))): ...

    (arg,) = dict(signature(k, torch.empty(3, 5, 7)).args).values()
    assert isinstance(arg, TensorArg)
    assert arg.shape == (None, None, 7)
    assert arg.strides == (None, 7, 1)


def test_broadcast_stride_stays_static() -> None:
    def k(X: T.Tensor(("M", T.dynamic("N")))): ...

    (arg,) = dict(signature(k, torch.empty(1, 5).expand(4, 5)).args).values()
    assert isinstance(arg, TensorArg) and arg.strides == (0, 1)


def test_strides_of_size_one_dimensions_follow_the_shape() -> None:
    x = torch.empty(1, 8).as_strided((1, 8), (999, 1))

    def k(X: T.Tensor(("M", "N"))): ...

    (arg,) = dict(signature(k, x).args).values()
    assert isinstance(arg, TensorArg) and arg.strides == (8, 1)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(5, "int32"), (2**31 - 1, "int32"), (2**31, "int64"), (-(2**31) - 1, "int64"),
     (2**63, "uint64"), (1.5, "float32"), (True, "bool"), (np.int64(5), "int32"),
     (np.float64(1.5), "float32"), (np.array(7), "int32"), (np.bool_(True), "bool"),
     (np.int64(2**40), "int64")],
)  # fmt: skip
def test_open_scalars(value: Any, dtype: str) -> None:
    def k(a): ...

    assert signature(k, value).args == (("a", ScalarArg(dtypes.dtype(dtype))),)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 1e300])
def test_open_scalars_out_of_range(value: Any) -> None:
    def k(a): ...

    assert codes(k, value) == ["launch/range"]


@pytest.mark.parametrize(
    ("dtype", "legal", "illegal"),
    [("int8", 127, 128), ("int8", -128, -129), ("uint8", 255, 256), ("uint8", 0, -1),
     ("uint32", 2**32 - 1, 2**32), ("int64", 2**63 - 1, 2**63), ("uint64", 2**64 - 1, -1),
     ("float16", 65504.0, 65536.0), ("float16", float("inf"), 1e5), ("bfloat16", 3.38e38, 3.4e38),
     ("float32", 3.4028234663852886e38, 1e39), ("int32", np.int32(3), 1.0), ("float32", 3, "3"),
     ("bool", True, 1)],
)  # fmt: skip
def test_annotated_scalars_are_range_checked(dtype: str, legal: Any, illegal: Any) -> None:
    def k(a: dtypes.dtype(dtype)): ...

    assert signature(k, legal).args == (("a", ScalarArg(dtypes.dtype(dtype))),)
    assert codes(k, illegal)[0] in ("launch/range", "launch/scalar")


def test_numpy_array_for_a_tensor_says_how() -> None:
    def k(X: T.Tensor(("N",))): ...

    with pytest.raises(LaunchError, match="torch.from_numpy"):
        signature(k, np.zeros(3))


def test_tensor_for_a_scalar_is_refused_without_reading_it() -> None:
    def k(a: T.float32): ...

    with pytest.raises(LaunchError, match="wait for the device"):
        signature(k, cuda_tensor())


def test_none_only_where_declared() -> None:
    def k(X: T.Tensor(("N",)) | None, Y: T.Tensor(("N",))): ...

    assert dict(signature(k, None, torch.empty(3)).args)["X"] == ConstArg(None)
    assert codes(k, None, None) == ["launch/none"]


def test_constexpr_must_be_hashable_and_no_tensor() -> None:
    def k(a: T.constexpr): ...

    assert signature(k, (1, 2)).args == (("a", ConstArg((1, 2))),)
    assert codes(k, [1, 2]) == ["launch/constexpr"]
    assert codes(k, torch.empty(3)) == ["launch/constexpr"]


@pytest.mark.parametrize("bad", [torch.empty(3, dtype=torch.complex64), torch.empty(3).to_sparse(),
                                 torch.empty(3, device="meta")])  # fmt: skip
def test_tensors_that_kernels_do_not_have(bad: torch.Tensor) -> None:
    def k(X: T.Tensor(("N",))): ...

    assert codes(k, bad)[0] in ("launch/dtype", "launch/tensor")


def test_mixed_devices_name_each_argument() -> None:
    with gpu(devices=2):
        with pytest.raises(LaunchError, match=r"X: cuda:1, Y: cpu") as caught:
            signature(matrix, cuda_tensor(4, 8, ordinal=1), aligned(4, 8))
        assert "move Y to cuda:1" in str(caught.value)
        with pytest.raises(LaunchError, match=r"X: cuda:1, Y: cuda:0"):
            signature(matrix, cuda_tensor(4, 8, ordinal=1), cuda_tensor(4, 8))


def test_pinned_memory_goes_with_a_device() -> None:
    class Pinned(torch.Tensor):
        def is_pinned(self) -> bool:  # type: ignore[override]
            return True

    y = torch.Tensor._make_subclass(Pinned, aligned(4, 8))
    with gpu(devices=2):
        special = sp.specialise(parse(matrix).params, (cuda_tensor(4, 8, ordinal=1), y), {})
    assert special.device == 1 and special.pinned


def test_target_is_the_device_s_own() -> None:
    def k(X: T.Tensor(("N",))): ...

    with gpu(devices=2, capabilities=("sm_90a", "sm_80")):
        on_second = sp.specialise(parse(k).params, (cuda_tensor(4, ordinal=1),), {})
    assert on_second.signature.target == "sm_80"


def test_descriptions_stand_for_values() -> None:
    x = TensorArg(dtypes.float32, (4, 8), (8, 1), 16)
    args = signature(matrix, x, x).args
    assert args == (("X", x), ("Y", x))
    wrong = TensorArg(dtypes.float32, (5, 8), (8, 1), 16)
    assert codes(matrix, x, wrong) == ["launch/shape"]


def test_describing_a_tensor_reads_no_data() -> None:
    class Untouchable(torch.Tensor):
        def __repr__(self, **_: Any) -> str:  # type: ignore[override]
            raise AssertionError("data was read")

    x = torch.Tensor._make_subclass(Untouchable, torch.empty(2, 3))
    assert torch_glue.describe(x) == "Tensor((2,3), float32, cpu)"
    assert codes(matrix, x, aligned(3, 4)).count("launch/shape") == 2


def test_empty_and_fake_tensors_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def k(X: T.Tensor((T.dynamic("M"), "N"))): ...

    signature(k, torch.empty(0, 4))
    assert codes(k, torch.empty(4, 0)) == ["launch/empty"]
    with FakeTensorMode():
        fake = torch.empty(4, 4)
    assert codes(k, fake) == ["launch/tensor"]
    with pytest.raises(
        LaunchError, match="is on the device meta, expected the CPU or a CUDA device"
    ):
        signature(k, torch.empty(4, 4, device="meta"))
    with pytest.raises(LaunchError, match=r"torch.sparse_coo, expected a strided"):
        signature(k, torch.zeros(4, 4).to_sparse())

    def mapped(x: torch.Tensor) -> torch.Tensor:
        assert codes(k, x) == ["launch/tensor"]
        return x

    torch.func.vmap(mapped)(torch.empty(2, 4, 4))
    torch.func.functionalize(mapped)(torch.empty(4, 4))
