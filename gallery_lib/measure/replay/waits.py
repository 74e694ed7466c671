"""How a replay lets time go by in place of computation: asleep, or computing something else for as long."""

from __future__ import annotations

import time

import torch

_WIDTH = 192
"""Of the matrices that are multiplied: about a millisecond of one core, in a call that leaves other threads the interpreter."""


class Asleep:
    """Until so long after a beginning. The cores are free meanwhile, as they are beside a GPU that computes."""

    def __init__(self) -> None:
        self._began = 0.0

    def begin(self) -> None:
        """From here seconds count."""
        self._began = time.perf_counter()

    def until(self, seconds: float) -> None:
        """Returns so long after `begin`, or a little later; at once when it is over already."""
        while (left := self._began + seconds - time.perf_counter()) > 0:
            time.sleep(left)


class AtWork(Asleep):
    """For so much time of the core: where others want it as well, as communication on a CPU does, it takes longer, as computing would."""

    def __init__(self) -> None:
        super().__init__()
        self._matrices = torch.rand(3, _WIDTH, _WIDTH)

    def begin(self) -> None:
        """See `Asleep`; of the calling thread, in which the rest has to be called, too."""
        self._began = time.thread_time()

    def until(self, seconds: float) -> None:
        """See `Asleep`; what the thread has done itself since `begin` is part of it."""
        left, right, out = self._matrices
        while time.thread_time() - self._began < seconds:
            torch.mm(left, right, out=out)
