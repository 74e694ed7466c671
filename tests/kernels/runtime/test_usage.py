"""When kernels do not run, and how that is reported.

No CUDA device is needed to tell why one would do without.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE
from gallery_lib.kernels.runtime import launch, nvrtc, usage
from gallery_lib.kernels.runtime.nvrtc import CompilationFailed

DEVICE = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def kernels_on(monkeypatch):
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    monkeypatch.setenv(KERNELS_VARIABLE, "1")
    monkeypatch.setattr(launch, "architecture", lambda device: 90)
    usage.announce.cache_clear()
    usage._cannot_compile.cache_clear()
    yield
    usage.announce.cache_clear()
    usage._cannot_compile.cache_clear()


def test_kernels_run_on_a_device_that_nvrtc_compiles_for():
    assert usage.reason_not_launched(DEVICE) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert usage.kernels_run(DEVICE)


def test_no_kernels_is_obeyed_and_announced_once(monkeypatch):
    monkeypatch.setenv(KERNELS_VARIABLE, "0")
    with pytest.warns(usage.KernelsNotUsed, match="switched off") as record:
        assert not usage.kernels_run(DEVICE)
        assert not usage.kernels_run(DEVICE)
    assert len(record) == 1


def test_a_device_that_nvrtc_does_not_know_is_named(monkeypatch):
    monkeypatch.setattr(launch, "architecture", lambda device: 70)
    with pytest.warns(usage.KernelsNotUsed, match="does not compile for sm_70"):
        assert not usage.kernels_run(DEVICE)


def test_missing_nvrtc_is_named(monkeypatch):
    def missing():
        raise CompilationFailed("NVRTC cannot be used: no module named cuda")

    monkeypatch.setattr(nvrtc, "supported_architectures", missing)
    with pytest.warns(usage.KernelsNotUsed, match="no module named cuda"):
        assert not usage.kernels_run(DEVICE)


def test_on_the_cpu_there_is_nothing_to_announce():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not usage.kernels_run(torch.device("cpu"))
