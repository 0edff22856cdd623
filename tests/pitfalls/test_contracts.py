"""Public cases of section E: contracts that other compilers break silently."""

from __future__ import annotations

import pytest
import torch

from tests.pitfalls.one_thread import kernel
from tilejit import ContractError, T, jit
from tilejit.ir.tensor_map import TensorMap
from tilejit.language.cuda import LaunchConfig
from tilejit.layout import find_collision, parse
from tilejit.runtime import tensor_maps

BF16 = "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"


@jit
def product(A: T.Tensor((64, 128), "bfloat16"), B: T.Tensor((128, 128), "bfloat16"),
            D: T.Tensor((64, 128), "float32"), HALVES: T.constexpr):  # fmt: skip
    """D = A · Bᵀ; a row of B lies in two atoms of the swizzle. ``HALVES``: of B's rows, one after the other."""
    T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=128))
    t = T.cuda.thread_idx("x")
    a = T.alloc_shared(
        (64, 128), "bfloat16", align=1024, layout=T.cuda.wgmma_shared_layout((64, 128), "bfloat16")
    )
    b = T.alloc_shared(
        (128, 128),
        "bfloat16",
        align=1024,
        layout=T.cuda.wgmma_shared_layout((128, 128), "bfloat16"),
    )
    for i in range(t, 64 * 128, 128):
        a[i // 128, i % 128] = A[i // 128, i % 128]
    for i in range(t, 128 * 128, 128):
        b[i // 128, i % 128] = B[i // 128, i % 128]
    T.ptx["fence.proxy.async.shared::cta"]()
    T.cuda.cta_sync()
    sums = T.alloc_local((64,), "float32", layout="default")
    a_operand = a.view(1, 64, 8, 16).permute(0, 2, 1, 3)
    T.ptx["wgmma.fence.sync.aligned"]()
    if HALVES:
        for half in T.unroll(2):
            T.cuda.tile.apply(
                T.ptx[BF16],
                sums.sub[half * 32 : half * 32 + 32].view(1, 1, 64, 64, layout=T.cuda.wgmma_fragment_layout(64, (1, 1))),
                a_operand, b.sub[half * 64 : half * 64 + 64, :].view(1, 64, 8, 16).permute(0, 2, 1, 3),
                accum=False, scope="warpgroup",
            )  # fmt: skip
    else:
        T.cuda.tile.apply(
            T.ptx[BF16], sums.view(1, 2, 64, 64, layout=T.cuda.wgmma_fragment_layout(64, (1, 2))),
            a_operand, b.view(2, 64, 8, 16).permute(0, 2, 1, 3), accum=False, scope="warpgroup",
        )  # fmt: skip
    T.ptx["wgmma.commit_group.sync.aligned"]()
    T.ptx["wgmma.wait_group.sync.aligned"](0)
    for r in T.unroll(64):
        row = 16 * (t // 32) + t % 32 // 4 + 8 * (r // 2 % 2)
        D[row, r // 32 * 64 + 8 * (r % 32 // 4) + 2 * (t % 4) + r % 2] = sums[r]


@pytest.mark.parametrize("halves", [False, True])
def test_l97_l99_rows_of_a_swizzled_operand_taken_in_parts(device: str, halves: bool) -> None:
    """A is the identity beside itself, B unique integers: any swapped block shows."""
    if device == "cuda" and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma needs sm_90a")
    a = torch.eye(64, dtype=torch.bfloat16).repeat(1, 2)
    b = (torch.arange(128 * 128) % 251 - 125).reshape(128, 128).bfloat16()
    d = torch.zeros(64, 128, device=device)
    product(a.to(device), b.to(device), d, halves)
    assert torch.equal(d.cpu(), a.float() @ b.float().T)


@pytest.mark.parametrize(
    ("notation", "shape", "pair"),
    [
        ("(2,64):(1,0)", (128,), ((0,), (1,))),
        ("(2,64):(0,1)", (128,), ((0,), (64,))),
        ("(4,4):(2,1)", (4, 4), ((0, 2), (1, 0))),
    ],
)  # fmt: skip
def test_l101_elements_of_one_address_are_named(
    notation: str, shape: tuple[int, ...], pair: object
) -> None:
    found = find_collision(parse(notation), shape)
    assert found is not None and (found.first, found.second) == pair
    body = f"""
        s = T.alloc_shared({shape}, "int32", layout=T.layout("{notation}"))
        s[{", ".join("0" for _ in shape)}] = 1
    """
    with pytest.raises(ContractError) as caught:
        kernel(body, "out").check(torch.zeros(1, dtype=torch.int32))
    assert caught.value.codes == ("tile/read-only",)
    assert f"{list(pair[0])} and {list(pair[1])} among them" in str(caught.value)  # type: ignore[index]


def test_l114_stages_of_a_ring_are_aligned_each() -> None:
    """A stage of 24 bytes leaves the second at 8 modulo 16."""

    @jit
    def copies(X: T.Tensor((3, 12), "float16"), ELEMS: T.constexpr):
        T.device_entry(launch=T.cuda.LaunchConfig(grid=1, block=32))
        ring = T.alloc_shared((3, ELEMS), "float16", align=16, layout="default")
        full = T.alloc_shared((1,), "uint64", layout="default")
        if T.cuda.thread_idx("x") == 0:
            for stage in T.unroll(3):
                T.cuda.tile.apply(
                    T.ptx["cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"],
                    ring[stage, 0:8], X[0, 0:8], chunk_bytes=16, mbar=full.ptr_to([0]), scope="thread",
                )  # fmt: skip

    x = torch.zeros(3, 12, dtype=torch.float16)
    with pytest.raises(ContractError) as caught:
        copies.check(x, 12)
    assert caught.value.codes == ("cp_async_bulk/alignment",)
    copies.check(x, 16)


class Blackwell:
    """A driver of which only the limits and the encoding are asked."""

    def __init__(self, major: int):
        self.major = major

    def limits(self, device: int) -> object:
        return type("Limits", (), {"capability": (self.major, 0)})

    def encode_tensor_map(self, map_: TensorMap) -> tuple[int, bytes]:
        return 0, b"\xff" * 128


@pytest.mark.parametrize("major", [9, 10, 12, 13])
@pytest.mark.parametrize("rows", [1023, 1024])
def test_l116_maps_of_small_tensors_on_blackwell(major: int, rows: int) -> None:
    """Bit 85 says that 128 KiB follow, which drivers set for less, too."""
    map_ = TensorMap(0x1000, "uint8", (128, rows), (128,), (128, 8), (1, 1))
    assert map_.span_bytes == rows * 128
    image = tensor_maps.encoded(map_, Blackwell(major), 0)  # type: ignore[arg-type]
    cleared = [i for i in range(1024) if not image[i // 8] >> i % 8 & 1]
    assert cleared == ([85] if rows < 1024 and 10 <= major <= 12 else [])


def test_l61_threads_that_are_none() -> None:
    k = kernel("out[0] = 1", "out")
    for block in (0, -32, 1.5, True, (32, 0)):
        with pytest.raises(Exception, match="block is 1 to 3 positive integers"):
            k[LaunchConfig(grid=1, block=block)].check(torch.zeros(1, dtype=torch.int32))
