"""A DataLoader whose batches arrive on the device, sharded over the ranks of the run.

Keeps everything about the user's loader: data set, sampler semantics, collate function, workers, generator,
`drop_last`. A data set may offer `set_epoch(epoch)` (called before each pass) and `finish_batch(batch, memory_format)`
(called on the device, to turn what crossed the bus into what the model takes). On CUDA the next batches are copied on
a stream of their own while the model computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.config import Loader
from gallery_lib.data.background_workers import Background
from gallery_lib.data.nesting import map_tensors
from gallery_lib.data.padding import pad_to_bucket
from gallery_lib.data.sharding import sharded


def to_device(batch: Any, device: torch.device) -> Any:
    """`batch`, any nesting of tensors, on `device`."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), batch)


def _used_on_current_stream(tensor: torch.Tensor) -> torch.Tensor:
    """The allocator will not hand this memory out again on the copying stream while the model still reads it."""
    tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor


def _ahead(batches: Iterator[Any], device: torch.device, depth: int) -> Iterator[Any]:
    """`batches` on the CUDA `device`, of which up to `depth` are copied ahead of their use, on a stream of their own."""
    stream = torch.cuda.Stream(device)
    waiting: deque[tuple[Any, torch.cuda.Event]] = deque()

    def fetch() -> bool:
        batch = next(batches, None)
        if batch is None:
            return False
        with torch.cuda.stream(stream):
            # A copy is only asynchronous from pinned memory.
            pinned = map_tensors(lambda t: t if t.is_cuda or t.is_pinned() else t.pin_memory(), batch)
            waiting.append((to_device(pinned, device), stream.record_event()))
        return True

    while len(waiting) < depth and fetch():
        pass
    while waiting:
        batch, copied = waiting.popleft()
        torch.cuda.current_stream(device).wait_event(copied)
        map_tensors(_used_on_current_stream, batch)
        fetch()
        yield batch


class DeviceLoader:
    """Iterates over `loader`; `len` is the number of this rank's batches in a pass.

    Without `options`, the processes that load are left as they are.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        device: torch.device,
        memory_format: torch.memory_format,
        options: Loader | None = None,
        *,
        shard: bool = True,
    ) -> None:
        self.device, self.memory_format, self.options = device, memory_format, options or Loader(nice=0)
        world_size = process_group.world_size()
        self.loader = sharded(loader, process_group.rank(), world_size) if shard and world_size > 1 else loader
        self.epoch = 0
        self.niceness = self.options.nice if device.type == "cpu" and self.loader.num_workers else 0
        self._background = Background(self.niceness) if self.niceness else None

    @property
    def dataset(self) -> Any:
        """The user's data set."""
        return self.loader.dataset

    def __len__(self) -> int:
        return len(self.loader)

    def _on_device(self) -> Iterator[Any]:
        batches: Iterator[Any] = iter(self.loader)
        if self._background is not None:
            batches = self._background.batches(batches)
        if self.options.buckets:
            batches = (pad_to_bucket(batch, self.options.buckets, self.options.pad_values) for batch in batches)
        if self.device.type == "cuda" and self.options.prefetch:
            return _ahead(batches, self.device, self.options.prefetch)
        return (to_device(batch, self.device) for batch in batches)

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(self.epoch)
        self.epoch += 1
        finish = getattr(self.dataset, "finish_batch", None)
        for batch in self._on_device():
            yield finish(batch, self.memory_format) if finish else batch
