"""Waits of a replay in place of computation: asleep, or computing something else for as long."""

from __future__ import annotations

import time

import torch

_WIDTH = 192
"""Width of the matrices that are multiplied.

One product takes about a millisecond of one core, in a call that releases the GIL.
"""


class Asleep:
    """A wait by sleeping: the cores are free meanwhile, as they are beside a GPU that computes."""

    def __init__(self) -> None:
        self._began = 0.0

    def begin(self) -> None:
        """Start counting seconds."""
        self._began = time.perf_counter()

    def until(self, seconds: float) -> None:
        """Return `seconds` after `begin`, or a little later; at once when that time is over."""
        while (left := self._began + seconds - time.perf_counter()) > 0:
            time.sleep(left)


class AtWork(Asleep):
    """A wait by computing for a given CPU time of the thread.

    Where others want the core as well, as communication on a CPU does, the wait takes longer, as
    computing would.
    """

    def __init__(self) -> None:
        super().__init__()
        self._matrices = torch.rand(3, _WIDTH, _WIDTH)

    def begin(self) -> None:
        """Start counting the calling thread's CPU time; call `until` in the same thread."""
        self._began = time.thread_time()

    def until(self, seconds: float) -> None:
        """Compute until the thread's CPU time since `begin` reaches `seconds`.

        What the thread has done itself since `begin` is part of that time.
        """
        left, right, out = self._matrices
        while time.thread_time() - self._began < seconds:
            torch.mm(left, right, out=out)
