"""Fixture with a CUDA device on which kernels run, for every test marked `gpu`."""

from __future__ import annotations

import pytest
import torch

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.kernels.runtime import usage


@pytest.fixture(autouse=True)
def cuda_kernels(request, monkeypatch) -> torch.device | None:
    """Return the CUDA device, with kernels on, for a test that needs one."""
    if request.node.get_closest_marker("gpu") is None:
        return None
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    monkeypatch.setenv(KERNELS_VARIABLE, "1")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device: kernels are launched on it")
    device = torch.device("cuda", torch.cuda.current_device())
    reason = usage.reason_not_launched(device)
    assert reason is None, reason
    return device
