"""Count on the device that the host learns of without waiting, some additions late.

After each addition the count is copied to pinned memory, followed by an event. The host looks which
copies have arrived. Tensors on the CPU are there at once. A CUDA graph cannot contain an addition:
a replay would not repeat the host's part.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

_COPIES = 64
"""Number of host copies pinned at once, since pinning memory may wait for the device.

More are pinned only if more are in flight.
"""


class DeviceCount:
    """Counter that starts at 0.

    `value` is the count on the device, an int64 scalar. `additions` is the number of calls of
    `add`.
    """

    def __init__(self, device: torch.device) -> None:
        self.value = torch.zeros((), dtype=torch.int64, device=device)
        self.additions = 0
        pinned = self.value.is_cuda
        # Host copies that may be written to.
        self._free = list(
            torch.zeros(_COPIES if pinned else 1, dtype=torch.int64, pin_memory=pinned).unbind()
        )
        # (additions, copy on the host, event)
        self._under_way: deque[tuple[int, Tensor, Any]] = deque()
        self._arrived: tuple[int, Tensor] = (0, self._free.pop())

    def add(self, amount: Tensor) -> None:
        """Add an integer or bool scalar on the same device."""
        self.value.add_(amount)
        self.additions += 1
        if not self.value.is_cuda:
            self._arrived = (self.additions, self.value.clone())
            return
        self._look()
        copy = (
            self._free.pop() if self._free else torch.empty((), dtype=torch.int64, pin_memory=True)
        )
        copy.copy_(self.value, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self.value.device))
        self._under_way.append((self.additions, copy, event))

    def _look(self) -> None:
        while self._under_way and self._under_way[0][2].query():
            self._free.append(self._arrived[1])
            additions, copy, _ = self._under_way.popleft()
            self._arrived = (additions, copy)

    def known(self) -> tuple[int, int]:
        """Return (additions, count) of the latest addition that has reached the host."""
        self._look()
        additions, copy = self._arrived
        return additions, int(copy.numpy())  # host memory: nothing is waited for

    def wait(self) -> int:
        """Return the count after all additions; waits for the device."""
        if self._under_way:
            self._under_way[-1][2].synchronize()
        return self.known()[1]
