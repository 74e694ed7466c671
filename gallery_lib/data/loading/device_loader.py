"""Loader whose batches arrive on the device, and of which each rank has its share.

A DeviceLoader stands in for the caller's loader: attributes, length and passes are the loader's own
(`sharding.py` says what a rank's share is). A data set may offer `set_epoch(epoch)`, which is
called before each pass. It may also offer `finish_batch(batch, memory_format)`, which is called on
the device. `finish_batch` turns what crossed the bus into what the model takes. A sampler that
divides the data by rank is told its epoch before each pass, too, so that passes are shuffled anew.
Once the caller calls `set_epoch` of a data set or sampler, the epochs of that object are the
caller's. On CUDA the next batches are copied on a stream of their own while the model computes.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.config import Loader
from gallery_lib.data.loading.epochs import Epochs
from gallery_lib.data.loading.nesting import map_tensors, tensors_in
from gallery_lib.data.loading.padding import pad_to_bucket
from gallery_lib.data.loading.rank_samplers import chain
from gallery_lib.data.loading.sharding import sharded
from gallery_lib.data.loading.share import Share
from gallery_lib.data.loading.worker_priority import Background
from gallery_lib.errors import InputError


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch`, any nesting of tensors and objects with a `to`, on `device`.

    What is on `device` already is not copied: the same object comes back.
    """
    return map_tensors(
        lambda tensor: tensor.to(device, non_blocking=True),
        batch,
        functools.partial(_moved_by_itself, device=device),
    )


def _moved_by_itself(batch: Any, device: torch.device) -> Any:
    """Return an object that has a `to` of its own on `device`."""
    tensors = list(tensors_in(batch))
    if tensors and all(tensor.device == device for tensor in tensors):
        return batch
    try:
        return (
            batch.to(device, non_blocking=True)
            if _takes_non_blocking(type(batch).to)
            else batch.to(device)
        )
    except (TypeError, ValueError, AttributeError):
        if tensors:
            raise
        return batch  # the `to` of a quantity or a date means something else


@functools.lru_cache(maxsize=256)
def _takes_non_blocking(to: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(to).parameters
    except (TypeError, ValueError):
        return False
    return "non_blocking" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _pinned(tensor: Tensor) -> Tensor:
    """Return `tensor` in pinned memory if possible; only from there a copy is asynchronous."""
    if (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_nested
        or tensor.is_pinned()
    ):
        return tensor
    return tensor.pin_memory()


def _pinned_by_itself(batch: Any) -> Any:
    pin = getattr(type(batch), "pin_memory", None)
    return batch if pin is None or all(_pinned(t) is t for t in tensors_in(batch)) else pin(batch)


def _used_on_current_stream(tensor: Tensor) -> Tensor:
    """Keep the memory of `tensor` from being reused on the copy stream while the model reads it.

    Returns `tensor`.
    """
    if hasattr(tensor, "__tensor_flatten__"):  # a subclass made of tensors, as nested ones are
        for name in tensor.__tensor_flatten__()[0]:
            _used_on_current_stream(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        _used_on_current_stream(tensor._indices())
        _used_on_current_stream(tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        for part in (tensor.crow_indices(), tensor.col_indices(), tensor.values()):
            _used_on_current_stream(part)
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        for part in (tensor.ccol_indices(), tensor.row_indices(), tensor.values()):
            _used_on_current_stream(part)
    elif tensor.is_nested:
        _used_on_current_stream(tensor.values())
    elif tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor


def _used_by_itself(batch: Any) -> Any:
    if callable(record := getattr(type(batch), "record_stream", None)):
        record(batch, torch.cuda.current_stream())
    else:
        for tensor in tensors_in(batch):
            _used_on_current_stream(tensor)
    return batch


class _Ahead:
    """Iterator that `_ahead` returns: its batches are copied on a stream of their own.

    An error of the loader is raised when its batch would have come.
    """

    def __init__(self, batches: Iterator[Any], device: torch.device, depth: int) -> None:
        self._batches, self._device, self._depth = batches, device, depth
        self._stream = torch.cuda.Stream(device)
        self._waiting: deque[tuple[Any, Any, Exception | None]] = deque()
        self._ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while not self._waiting or (len(self._waiting) < self._depth and not self._ended):
            if self._ended:
                raise StopIteration
            self._fetch()
        batch, copied, error = self._waiting.popleft()
        if error is None:
            torch.cuda.current_stream(self._device).wait_event(copied)
            map_tensors(_used_on_current_stream, batch, _used_by_itself)
        if not self._ended:
            self._fetch()
        if error is not None:
            raise error
        return batch

    def _fetch(self) -> None:
        try:
            batch = next(self._batches)
            with torch.cuda.stream(self._stream):
                pinned = map_tensors(_pinned, batch, _pinned_by_itself)
                self._waiting.append(
                    (to_device(pinned, self._device), self._stream.record_event(), None)
                )
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._waiting.append((None, None, error))


def _ahead(batches: Iterator[Any], device: torch.device, depth: int) -> Iterator[Any]:
    """Return `batches` on the CUDA `device`, up to `depth` of them copied ahead of their use."""
    return _Ahead(batches, device, depth)


class DeviceLoader:
    """Iterable over the batches of `loader` on the device; `len` counts this rank's batches.

    `loader` is a DataLoader or another iterable. Attributes that a DeviceLoader lacks are read from
    the loader and set on it. If several ranks divide the loader, this rank's copy serves these
    attributes. Without `options`, the loading processes are left as they are.

    Raises:
        TypeError: for what is no iterable.
        InputError: for a loader that cannot be divided over ranks.
    """

    loader: Any
    device: torch.device
    memory_format: torch.memory_format
    niceness: int
    _caller: Any
    _options: Loader
    _share: Share
    _epochs: Epochs
    _background: Background | None

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device,
        memory_format: torch.memory_format,
        options: Loader | None = None,
        *,
        shard: bool = True,
    ) -> None:
        if not hasattr(type(loader), "__iter__") and not hasattr(type(loader), "__getitem__"):
            raise TypeError(
                f"the loader is a {type(loader).__name__}: give a DataLoader, or another iterable "
                "of batches."
            )
        options = options or Loader(nice=0)
        if bool(options.buckets) != bool(options.pad_values):
            option, missing = (
                ("buckets", "pad_values") if options.buckets else ("pad_values", "buckets")
            )
            raise InputError(
                f"config.loader.{option} is set and config.loader.{missing} is not, so that "
                "nothing would be padded: set both.",
                parameter=missing,
            )
        world_size = process_group.world_size()
        share: Share
        if isinstance(loader, DeviceLoader):  # wrapped before, so divided already
            share, loader = loader._share, loader._caller
        elif shard and world_size > 1:
            share = sharded(loader, process_group.rank(), world_size, options.shard)
        else:
            share = Share(loader)
        followers = [
            [getattr(loader, "dataset", None)],
            chain(loader) if share.sampled_by_rank else [],
        ]
        workers = share.loader.num_workers if isinstance(share.loader, DataLoader) else 0
        niceness = options.nice if device.type == "cpu" and workers else 0
        # Not by assignment: __setattr__ sets attributes that this object lacks on the loader.
        vars(self).update(
            loader=share.loader,
            device=device,
            memory_format=memory_format,
            niceness=niceness,
            _caller=loader,
            _options=options,
            _share=share,
            _epochs=Epochs(*followers),
            _background=Background(niceness) if niceness else None,
        )

    @property
    def dataset(self) -> Any:
        """Return the caller's data set."""
        return self._caller.dataset

    @property
    def sampler(self) -> Any:
        """Return the caller's sampler, whose `set_epoch` belongs to the caller."""
        return self._caller.sampler

    @property
    def batch_sampler(self) -> Any:
        """Return the caller's batch sampler."""
        return self._caller.batch_sampler

    def __getattr__(self, name: str) -> Any:
        if "loader" not in vars(self):  # while this object is being copied
            raise AttributeError(name)
        return getattr(vars(self)["loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that of `epoch`, for the data set and a sampler that knows ranks."""
        self._epochs.set(epoch)

    def _watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        return batches if self._background is None else self._background.batches(batches)

    def _finished(self, batch: Any) -> Any:
        return self.dataset.finish_batch(batch, self.memory_format)

    def __iter__(self) -> Iterator[Any]:
        self._epochs.begin_pass()
        # Maps: an error in one batch would end a generator, but does not end a loader's iterator.
        batches = self._share.begin(self._watched)
        if self._options.buckets:
            batches = map(self._padded, batches)
        if self.device.type == "cuda" and self._options.prefetch:
            batches = _ahead(batches, self.device, self._options.prefetch)
        else:
            batches = map(functools.partial(to_device, device=self.device), batches)
        finishes = hasattr(getattr(self._caller, "dataset", None), "finish_batch")
        return map(self._finished, batches) if finishes else batches

    def _padded(self, batch: Any) -> Any:
        return pad_to_bucket(batch, self._options.buckets, self._options.pad_values)
