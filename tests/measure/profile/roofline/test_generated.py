"""Kernels that Inductor generates have the bytes of their loops, and a time in profiles."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gallery_lib.measure.profile.roofline import generated
from gallery_lib.measure.profile.roofline.counts import Counts, Operation
from gallery_lib.measure.profile.roofline.measure import seconds_of_step
from gallery_lib.measure.profile.roofline.result import BETWEEN

FP32 = 4


@pytest.mark.slow  # compiles
def test_a_compiled_step_has_all_its_work_and_all_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch._inductor.config, "fx_graph_cache", False)
    monkeypatch.setattr(torch._functorch.config, "enable_autograd_cache", False)
    torch._dynamo.reset()
    first, second = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)
    frames = torch.randn(64, 16)

    def forward(frames: Tensor) -> Tensor:
        return second(F.gelu(first(frames)))

    with generated.recorded() as kernels:
        compiled = torch.compile(forward)
        compiled(frames).square().sum().backward()
        kernels.calls.clear()
        out = compiled(frames)
        gelu = dict(kernels.work())
        kernels.calls.clear()
        out.square().sum().backward()
        gelus_gradient = dict(kernels.work())
        with Counts() as counter:
            compiled(frames).sum()

    hidden = 64 * 32 * FP32
    assert [(work.calls, work.bytes) for work in gelu.values()] == [(1, 2 * hidden)]
    # Two are read: what came in, and the gradient; one is written.
    assert [work.bytes for work in gelus_gradient.values()] == [3 * hidden]
    # The compiled code ran as it is, and its products were seen.
    assert [operation.name for operation in counter.work if "mm" in operation.name] == [
        "aten::mm",
        "aten::mm",
    ]
    assert sum(work.flops for work in counter.work.values()) == 2 * 64 * 32 * (16 + 8)

    def step() -> float:
        began = time.perf_counter()
        compiled(frames).square().sum().backward()
        return time.perf_counter() - began

    names = {"aten::mm", "aten::sum"}
    seconds = seconds_of_step(step, names)
    assert all(seconds[kernel] > 0 for kernel in (*gelu, *gelus_gradient))
    assert seconds[Operation("aten::mm", ((64, 16), (16, 32), (64, 32)))] > 0
    assert seconds[Operation(BETWEEN)] > 0


def test_an_operators_time_has_that_of_the_operators_it_calls() -> None:
    images = torch.randn(8, 64, 64)

    def step() -> float:
        began = time.perf_counter()
        images.to(torch.float64)
        return time.perf_counter() - began

    seconds = seconds_of_step(step, {"aten::_to_copy", "aten::copy_"})
    # `to` calls `_to_copy`, which calls `copy_`.
    assert {operation.name for operation in seconds} == {"aten::to", "aten::_to_copy", BETWEEN}
    assert seconds[Operation("aten::_to_copy", ((8, 64, 64),))] > 0
