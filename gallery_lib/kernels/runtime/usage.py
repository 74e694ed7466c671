"""Decision whether a run calls our operators where torch has a function for the same work.

The loss, the loader and the optimizer ask for it. On CUDA a run uses our operators when kernels run
there: then, and only then, they are faster. On the CPU, and on a GPU that kernels are not compiled
for, plain torch stands in for a kernel. torch's own function is the better choice there. What has
C++ for the CPU is chosen elsewhere: batch norm by an option (`config.compute.batch_norm_kernels`),
the loss by its size (`gallery_lib.tasks.domains.cross_entropy`). To test this choice without a GPU,
a test may request our operators on the CPU with `on_cpu_too()`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

from gallery_lib.config.switches import kernels_enabled
from gallery_lib.kernels.runtime import fallback

_ON_CPU_TOO: ContextVar[bool] = ContextVar("_ON_CPU_TOO", default=False)


def reason_not_used(device: torch.device) -> str | None:
    """Return why a run on `device` does without our operators, or None when it uses them."""
    if device.type != "cpu":
        return fallback.reason_not_used(device)
    if not _ON_CPU_TOO.get():
        return "no CUDA device"
    return None if kernels_enabled() else "switched off in this run"


def used(device: torch.device) -> bool:
    """Return whether a run uses our operators for tensors on `device`."""
    return reason_not_used(device) is None


@contextlib.contextmanager
def on_cpu_too() -> Iterator[None]:
    """Context: runs on the CPU use our operators as well, as plain torch.

    This is for tests; it is slower.
    """
    token = _ON_CPU_TOO.set(True)
    try:
        yield
    finally:
        _ON_CPU_TOO.reset(token)
