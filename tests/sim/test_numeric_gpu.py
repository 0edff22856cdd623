"""Asks the GPU at hand again: every recorded case of ``test_numeric_silicon`` as one PTX kernel.

Each kernel loads its input registers from 8-byte slots, issues the one instruction and stores the
registers written. Assembled by the driver; nothing of the package is used but the table of forms.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.conftest import need_gpu
from tests.sim.test_numeric_silicon import APPROXIMATE, EXACT, RECORDED, cases, form_of
from tilejit.ptx.forms import Form

SLOTS = len(next(iter(RECORDED.values())))
"""Cases per form; a register's slots follow one another."""
BATCH = 100
REGISTERS = {1: "p", 8: "h", 16: "h", 32: "r", 64: "d"}
HEAD = """
.reg .pred p<20>; .reg .b16 h<40>; .reg .b32 r<40>; .reg .b64 d<40>;
ld.param.u64 d30, [input]; ld.param.u64 d31, [output];
mov.u32 r32, %tid.x; mul.wide.u32 d32, r32, 8; add.u64 d30, d30, d32; add.u64 d31, d31, d32;
"""


def kernel(form: Form, name: str, immediate: str) -> str:
    """PTX of one entry. Bare names number the registers; predicates pass as 0 and 1."""
    loads: list[str] = []
    stores: list[str] = []
    operands = ""
    read = written = count = 0
    for spec in form.operands:
        names = []
        for _ in range(spec.lanes):
            if spec.kind == "imm":
                names.append(immediate)
                read += 1
                continue
            register, width = f"{REGISTERS[spec.bits]}{count}", max(spec.bits, 16)
            names.append(register)
            count += 1
            if "r" in spec.direction:
                source = f"[d30+{read * SLOTS * 8}]"
                read += 1
                if spec.bits == 1:
                    loads.append(f"ld.global.u32 r33, {source}; setp.ne.u32 {register}, r33, 0;")
                else:
                    loads.append(f"ld.global.b{width} {register}, {source};")
            else:
                target = f"[d31+{written * SLOTS * 8}]"
                written += 1
                if spec.bits == 1:
                    stores.append(f"selp.u32 r34, 1, 0, {register}; st.global.u32 {target}, r34;")
                else:
                    stores.append(f"st.global.b{width} {target}, {register};")
        text = "{" + ", ".join(names) + "}" if spec.braces else names[0]
        operands += ("|" if spec.joined else ", ") + text
    body = "\n".join([*loads, f"{form.spelling} {operands[2:]};", *stores])
    return (
        f".visible .entry {name}(.param .u64 input, .param .u64 output) {{{HEAD}{body}\nret; }}\n"
    )


class Driver:
    """The few driver calls that load PTX and launch it, in torch's context."""

    def __init__(self) -> None:
        torch.cuda.init()
        torch.zeros(1, device="cuda")
        self.library = ctypes.CDLL("libcuda.so.1")

    def check(self, status: int, what: str) -> None:
        assert status == 0, f"CUDA error {status}: {what}"

    def load(self, ptx: str) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.check(self.library.cuModuleLoadData(ctypes.byref(module), ptx.encode()), "load")
        return module

    def launch(
        self, module: ctypes.c_void_p, name: str, inputs: torch.Tensor, written: int
    ) -> torch.Tensor:
        function = ctypes.c_void_p()
        status = self.library.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        self.check(status, name)
        output = torch.zeros((written, SLOTS), dtype=torch.int64, device="cuda")
        values = [ctypes.c_uint64(t.data_ptr()) for t in (inputs, output)]
        arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(v) for v in values))
        torch.cuda.synchronize()
        self.check(
            self.library.cuLaunchKernel(function, 1, 1, 1, SLOTS, 1, 1, 0, None, arguments, None),
            name,
        )
        torch.cuda.synchronize()
        return output.cpu()


@pytest.mark.gpu
def test_this_gpu_answers_what_is_recorded(request: pytest.FixtureRequest) -> None:
    need_gpu(request.config)
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("the record is of sm_90")
    driver, wrong = Driver(), []
    keys = [*EXACT, *APPROXIMATE]
    for start in range(0, len(keys), BATCH):
        batch = keys[start : start + BATCH]
        names = {key: f"k{start + i}" for i, key in enumerate(batch)}
        ptx = ".version 9.0\n.target sm_90a\n.address_size 64\n" + "".join(
            kernel(form_of(key), names[key], f"0x{RECORDED[key][0][0][-1]}") for key in batch
        )
        module = driver.load(ptx)
        for key in batch:
            given, expected = cases(key)
            slots = np.stack([x.astype(np.uint64) for x in given]).view(np.int64)
            output = driver.launch(
                module, names[key], torch.from_numpy(slots).cuda(), len(expected)
            )
            for words, recorded in zip(output.numpy().view(np.uint64), expected):
                if not np.array_equal(words.astype(recorded.dtype), recorded):
                    wrong.append(key)
    assert not wrong, f"{len(wrong)} differ: {wrong[:20]}"
