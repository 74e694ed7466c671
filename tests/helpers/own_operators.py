"""Our operators on the CPU in tests: runs use them there as on CUDA, in plain torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from gallery_lib.config.switches import kernels_enabled
from gallery_lib.kernels.runtime import usage


@contextlib.contextmanager
def on_cpu_too() -> Iterator[None]:
    """Context: runs on the CPU use our operators where kernels are switched on."""
    with pytest.MonkeyPatch.context() as patch:
        reason = lambda device: None if kernels_enabled() else "switched off in this run"  # noqa: E731
        patch.setattr(usage, "reason_not_used", reason)
        yield
