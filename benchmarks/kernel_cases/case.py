"""One piece of work of a kernel, done by the kernel, by torch, and by torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """One piece of work in several implementations.

    Each call does the work once and returns tensors to compare. `compiled` builds its call, which
    takes a while.
    """

    ours: Call
    eager: Call
    compiled: Callable[[], Call] | None
    bytes_moved: int  # least that the kernels have to read and write
    aim: float | None  # intended speed-up over eager


Build = Callable[[torch.device, bool], Case]
"""Function that builds a case on a device, at a small size or at full size."""
