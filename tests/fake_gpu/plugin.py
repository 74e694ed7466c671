"""Plugin of pytest, and module of other commands, that makes the fake device usable in a process.

    python -m pytest -p fake_gpu.plugin …

The process must have been started with `running.environment()`.
"""

from __future__ import annotations

import functools
import gc
import os
from pathlib import Path

import pytest

from gallery_lib.kernels.runtime import launch, nvrtc

_WORD = "fake GPU: "  # kernels.cpp knows it
devices_of_groups: list[object] = []
"""What `device_id` each process group over NCCL was given in this process."""


def _compiled(
    source: str, defines: nvrtc.Defines, architecture: int, folder: Path = nvrtc.SOURCES
) -> nvrtc.Compiled:
    """Return in place of machine code the name of the library that is built for the host."""
    from cuda_on_host import host

    library = host.library(source, defines, folder)
    return nvrtc.Compiled(f"{_WORD}{library._name}\0".encode(), "")


@functools.cache
def install() -> None:
    """Let torch's operators, own kernels and process groups work on the fake device, once."""
    import torch.distributed as dist
    from fake_gpu import operators

    launch.compiled = _compiled
    if os.environ["FAKE_GPU_OWN_KERNELS"] == "count":
        operators.install_without_arithmetic()
        return
    operators.install()
    begin = dist.init_process_group

    def with_gloo(backend: str | None = None, *arguments: object, **options: object) -> None:
        """Start gloo where NCCL is asked for, which needs a device."""
        device = options.pop("device_id", None)
        if backend == "nccl":
            devices_of_groups.append(device)
        return begin("cpu:gloo,cuda:gloo" if backend == "nccl" else backend, *arguments, **options)

    dist.init_process_group = with_gloo


def pytest_configure(config: pytest.Config) -> None:
    install()


@pytest.fixture(autouse=True)
def nothing_fails_on_the_device() -> object:
    """Fail a test when work on the device failed, also where nobody waited for it."""
    import torch
    from fake_gpu import work

    yield
    try:
        torch.cuda.synchronize()
    finally:
        failures = work.failures()
        if torch.cuda.memory_allocated():
            gc.collect()  # tensors in cycles hold it
        torch.cuda.empty_cache()  # device memory is this machine's memory
    assert failures == []
