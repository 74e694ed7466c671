"""Sums of flat buffers over the processes of a group, in one of several wire formats.

`exact` sends gradients as they are. `bf16` and `fp16` halve what is sent, `int8` sends a byte a value and a scale for 256 of
them; with error feedback what a rank's rounding loses is kept, and added to what it sends the next time (Seide et al., 2014;
Karimireddy et al., 2019), so that nothing is lost for good.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.errors import InputError
from gallery_lib.kernels import compression

Key = tuple[int, int, int]
"""Which buffer it is, as far as residuals are concerned: the bucket's index and its number of values, and which of its pieces."""


class Scratch:
    """Memory for what is on its way, used again: an exchange is done before its channel's next one begins."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, *shape: int, dtype: torch.dtype, like: Tensor) -> Tensor:
        """A tensor on the device of `like`, valid until the next call."""
        count = math.prod(shape) * dtype.itemsize
        if self._memory.numel() < count or self._memory.device != like.device:
            self._memory = torch.empty(count, dtype=torch.uint8, device=like.device)
        return self._memory[:count].view(dtype).view(shape)


class Exact:
    """The buffer's own type."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def sum_(self, buffer: Tensor, key: Key, divisor: int = 1) -> None:
        """The sum over the group, each part of it divided by `divisor`, in place; every rank gets the same bits."""
        if divisor != 1:
            buffer.div_(divisor)
        dist.all_reduce(buffer, group=self.group)

    def state_dict(self) -> dict[str, Any]:
        """What has to be kept with a checkpoint: residuals of this rank."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` gave."""


class Narrow(Exact):
    """16 bits a value: rounded once when sent, and after each addition on the way."""

    def __init__(self, group: dist.ProcessGroup, dtype: torch.dtype) -> None:
        super().__init__(group)
        self.dtype = dtype
        self._scratch = Scratch()

    def sum_(self, buffer: Tensor, key: Key, divisor: int = 1) -> None:
        """See `Exact`."""
        if buffer.dtype.itemsize <= self.dtype.itemsize:
            return super().sum_(buffer, key, divisor)
        narrow = self._scratch.of(buffer.numel(), dtype=self.dtype, like=buffer)
        torch.div(buffer, divisor, out=narrow)
        dist.all_reduce(narrow, group=self.group)
        buffer.copy_(narrow)
        return None


class Int8(Exact):
    """A byte a value, both ways: each rank adds up one chunk of the buffer in fp32 and sends the sum round, as int8 again.

    Its own values of that chunk it adds as they are. Two ranks send each other all of their values instead, which are as many bytes,
    and add up: one exchange and one rounding less.
    A rank's residual is a buffer: in its own chunk, what the sum has lost; in the others, what the values it sent have. It starts
    anew when the bucket changes, which DDP's buckets do once, after the first step.
    Values in double precision are rounded to fp32 first.
    """

    WIRE = "int8"

    def __init__(self, group: dist.ProcessGroup, error_feedback: bool) -> None:
        super().__init__(group)
        self.error_feedback = error_feedback
        self.residuals: dict[Key, Tensor] = {}
        self._scratch = Scratch()

    def _residual(self, key: Key, buffer: Tensor) -> Tensor | None:
        if not self.error_feedback:
            return None
        for old in [old for old in self.residuals if old[0] == key[0] and old[1] != key[1]]:
            del self.residuals[old]
        if key not in self.residuals:
            self.residuals[key] = torch.zeros_like(buffer, dtype=torch.float32)
        return self.residuals[key]

    def sum_(self, buffer: Tensor, key: Key, divisor: int = 1) -> None:
        """See `Exact`."""
        if buffer.dtype != torch.float64:
            return self._sum(buffer, key, divisor)
        single = buffer.float()
        self._sum(single, key, divisor)
        buffer.copy_(single)
        return None

    def _sum(self, buffer: Tensor, key: Key, divisor: int) -> None:
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        if ranks == 2:
            return self._sum_of_two(buffer, key, divisor)
        chunk = -(-buffer.numel() // (ranks * compression.GROUP)) * compression.GROUP
        chunks = [
            slice(place * chunk, (place + 1) * chunk) for place in range(ranks)
        ]  # the last ones may be shorter, or empty
        parts = [buffer[each] for each in chunks]
        sizes = [compression.packed_bytes(part.numel(), self.WIRE) for part in parts]
        whole = self._residual(key, buffer)
        residuals = [None if whole is None else whole[each] for each in chunks]
        sent, received = self._scratch.of(2, ranks, sizes[0], dtype=torch.uint8, like=buffer)
        for other in range(ranks):
            if other != rank:
                compression.pack(
                    parts[other], self.WIRE, residuals[other], out=sent[other, : sizes[other]]
                )
        dist.all_to_all_single(received, sent, group=self.group)
        own, summed = parts[rank].float(), sent[rank, : sizes[rank]]
        for others in (received[:rank], received[rank + 1 :]):
            compression.accumulate_(own, others[:, : sizes[rank]], self.WIRE)
        compression.pack(own, self.WIRE, residuals[rank], out=summed)
        dist.all_gather_into_tensor(received.view(-1), sent[rank], group=self.group)
        for part, row, size in zip(parts, received, sizes, strict=True):
            compression.accumulate_(part, row[:size], self.WIRE, factor=1 / divisor, add=False)
        return None

    def _sum_of_two(self, buffer: Tensor, key: Key, divisor: int) -> None:
        """Both add up the same bytes in the same order."""
        size = compression.packed_bytes(buffer.numel(), self.WIRE)
        rows = self._scratch.of(3, size, dtype=torch.uint8, like=buffer)
        sent, received = rows[0], rows[1:]
        compression.pack(buffer, self.WIRE, self._residual(key, buffer), out=sent)
        dist.all_gather_into_tensor(received.view(-1), sent, group=self.group)
        compression.accumulate_(buffer, received, self.WIRE, factor=1 / divisor, add=False)

    def state_dict(self) -> dict[str, Any]:
        """See `Exact`."""
        return {"residuals": {key: residual.clone() for key, residual in self.residuals.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Exact`. Raises InputError for what another version of this class kept."""
        if not all(
            len(key) == 3 and isinstance(residual, Tensor)
            for key, residual in state["residuals"].items()
        ):
            raise InputError(
                "what int8's error feedback kept was saved by another version of this package: leave it out, or use that one."
            )
        self.residuals = {
            tuple(key): residual.clone() for key, residual in state["residuals"].items()
        }  # type: ignore[misc]


def for_wire(wire: str, *, error_feedback: bool) -> Callable[[dist.ProcessGroup], Exact]:
    """What makes the exchange for a group; `wire` as in config.Comm, but for `powersgd`, which is not about flat buffers."""
    if wire == "int8":
        return lambda group: Int8(group, error_feedback)
    if wire in ("bf16", "fp16"):
        return lambda group: Narrow(group, torch.bfloat16 if wire == "bf16" else torch.float16)
    return Exact
