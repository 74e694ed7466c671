"""Sums of flat buffers over the processes of a group, in one of several wire formats.

`exact` sends gradients as they are. `bf16` and `fp16` halve the bytes sent. `int8` sends a byte a
value, and a scale for 256 of them. With error feedback a rank keeps what its rounding loses, and
adds that to what it sends the next time. So nothing is lost for good (Seide et al., 2014;
Karimireddy et al., 2019).
"""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.config import Comm
from gallery_lib.kernels import compression
from gallery_lib.kernels.compression import GROUP, packed_bytes

Key = tuple[int, int, int]
"""Identity of a buffer, for its residual: bucket index, number of values, index of the piece."""


class Scratch:
    """Reusable memory for data in flight: an exchange ends before its channel's next one begins."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, *shape: int, dtype: torch.dtype, like: Tensor) -> Tensor:
        """Return a tensor on the device of `like`, valid until the next call."""
        count = math.prod(shape) * dtype.itemsize
        if self._memory.numel() < count or self._memory.device != like.device:
            self._memory = torch.empty(count, dtype=torch.uint8, device=like.device)
        return self._memory[:count].view(dtype).view(shape)


class Exact:
    """All-reduce in the buffer's own dtype; without a group there is nobody to exchange with."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self.group = group
        self.residuals: dict[Key, Tensor] = {}
        """What error feedback has kept, for this rank's part of a checkpoint."""

    def sum_(self, buffer: Tensor, key: Key, divisor: int = 1) -> None:
        """Replace `buffer` by its sum over the group, divided by `divisor`.

        Each rank's part is divided before it is added. Every rank gets the same bits.
        """
        if divisor != 1:
            buffer.div_(divisor)
        dist.all_reduce(buffer, group=self.group)

    def forget(self, index: int) -> None:
        """Drop the residuals of the bucket with this index."""
        self.residuals = {key: kept for key, kept in self.residuals.items() if key[0] != index}


class _Narrow(Exact):
    """All-reduce with 16 bits a value, rounded when sent and after each addition on the way."""

    def __init__(self, group: dist.ProcessGroup | None, dtype: torch.dtype) -> None:
        super().__init__(group)
        self.dtype = dtype
        self._scratch = Scratch()

    def sum_(self, buffer: Tensor, key: Key, divisor: int = 1) -> None:
        """Sum in 16 bits; a buffer that has no more bits is summed in its own dtype."""
        if buffer.dtype.itemsize <= self.dtype.itemsize:
            super().sum_(buffer, key, divisor)
        else:
            rounded = self._scratch.of(buffer.numel(), dtype=self.dtype, like=buffer)
            torch.div(buffer, divisor, out=rounded)  # divided in the buffer's dtype, then rounded
            dist.all_reduce(rounded, group=self.group)
            buffer.copy_(rounded)


class _Int8(Exact):
    """All-reduce with a byte a value in both directions.

    Each rank adds up one chunk of the buffer in fp32 and sends the sum to all, as int8 again. It
    adds its own values of that chunk as they are.

    Two ranks send each other all of their values instead, and both add up. That is as many bytes,
    with one exchange and one rounding less.

    A rank's residual is a buffer. In its own chunk it holds what the sum has lost, in the others
    what the sent values have lost. It starts anew when the bucket changes, which DDP's buckets do
    once, after the first step.

    Values in double precision are rounded to fp32 first.
    """

    def __init__(self, group: dist.ProcessGroup | None, error_feedback: bool) -> None:
        super().__init__(group)
        self.error_feedback = error_feedback
        self._scratch = Scratch()

    def _residual(self, key: Key, buffer: Tensor) -> Tensor | None:
        if not self.error_feedback:
            return None
        if key not in self.residuals:
            self.residuals[key] = torch.zeros_like(buffer, dtype=torch.float32)
        return self.residuals[key]

    def sum_(self, buffer: Tensor, key: Key, divisor: int = 1) -> None:
        single = buffer.float() if buffer.dtype == torch.float64 else buffer
        if dist.get_world_size(self.group) == 2:
            self._sum_of_two(single, key, divisor)
        else:
            self._sum_by_chunks(single, key, divisor)
        if single is not buffer:
            buffer.copy_(single)

    def _sum_by_chunks(self, buffer: Tensor, key: Key, divisor: int) -> None:
        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        chunk = -(-buffer.numel() // (ranks * GROUP)) * GROUP
        # the last chunks may be shorter, or empty
        chunks = [slice(place * chunk, (place + 1) * chunk) for place in range(ranks)]
        parts = [buffer[span] for span in chunks]
        sizes = [packed_bytes(part.numel()) for part in parts]
        whole = self._residual(key, buffer)
        residuals = [None if whole is None else whole[span] for span in chunks]
        sent, received = self._scratch.of(2, ranks, sizes[0], dtype=torch.uint8, like=buffer)
        for other in range(ranks):
            if other != rank:
                compression.pack(parts[other], residuals[other], out=sent[other, : sizes[other]])
        dist.all_to_all_single(received, sent, group=self.group)
        own, summed = parts[rank].float(), sent[rank, : sizes[rank]]
        for others in (received[:rank], received[rank + 1 :]):
            compression.accumulate_(own, others[:, : sizes[rank]])
        compression.pack(own, residuals[rank], out=summed)
        dist.all_gather_into_tensor(received.view(-1), sent[rank], group=self.group)
        for part, row, size in zip(parts, received, sizes, strict=True):
            compression.accumulate_(part, row[:size], factor=1 / divisor, add=False)

    def _sum_of_two(self, buffer: Tensor, key: Key, divisor: int) -> None:
        """Add up both ranks' packed values; both ranks add the same bytes in the same order."""
        size = packed_bytes(buffer.numel())
        rows = self._scratch.of(3, size, dtype=torch.uint8, like=buffer)
        sent, received = rows[0], rows[1:]
        compression.pack(buffer, self._residual(key, buffer), out=sent)
        dist.all_gather_into_tensor(received.view(-1), sent, group=self.group)
        compression.accumulate_(buffer, received, factor=1 / divisor, add=False)


def exchange_of(options: Comm, group: dist.ProcessGroup | None) -> Exact:
    """Return the exchange of flat buffers over `group`."""
    if options.wire == "int8":
        return _Int8(group, options.error_feedback)
    if options.wire in ("bf16", "fp16"):
        return _Narrow(group, torch.bfloat16 if options.wire == "bf16" else torch.float16)
    return Exact(group)
