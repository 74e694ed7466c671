"""Loader whose batches arrive on the device, and of which each rank has its share.

A DeviceLoader stands in for the caller's loader: attributes, length and passes are the loader's own
(`sharding.py` says what a rank's share is). A data set may offer `finish_batch(batch,
memory_format)`, which is called on the device. It turns what crossed the bus into what the model
takes. `set_epoch` of data sets and samplers is the caller's to call, as in plain PyTorch. On CUDA
the next batches are copied on a stream of their own while the model computes (`CopiedAhead`).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from gallery_lib.comm import process_group
from gallery_lib.config import Loader
from gallery_lib.data.loading import workers
from gallery_lib.data.loading.nesting import map_tensors, tensors_in
from gallery_lib.data.loading.progress import Progress
from gallery_lib.data.loading.samplers import chain
from gallery_lib.data.loading.sharding import Share, may_refill, own_copy, sharded, share_of
from gallery_lib.errors import InputError


class DeviceLoader:
    """Iterable over the batches of `loader` on the device; `len` counts this rank's batches.

    `loader` is a DataLoader or another iterable. Attributes that a DeviceLoader lacks are read from
    the loader and set on it. If several ranks divide the loader, this rank's copy serves these
    attributes. Without `options`, the loading processes are left as they are.

    Raises:
        InputError: for a loader that cannot be divided over ranks, or a list of loaders.
    """

    device: torch.device
    memory_format: torch.memory_format
    niceness: int
    _options: Loader
    _share: Share
    _epoch: int | None
    _progress: Progress

    def __init__(
        self,
        loader: Iterable[Any],
        device: torch.device,
        memory_format: torch.memory_format,
        options: Loader | None = None,
        *,
        shard: bool = True,
    ) -> None:
        options = options or Loader(nice=0)
        _check(loader)
        world_size = process_group.world_size()
        if isinstance(loader, DeviceLoader):  # wrapped before, so divided already
            share, loader = loader._share, loader._caller
        elif shard and world_size > 1:
            share = sharded(loader, process_group.rank(), world_size, options.shard)
        else:
            share = Share(loader)
        in_processes = isinstance(share.loader, DataLoader) and share.loader.num_workers > 0
        if in_processes:
            workers.shorten_paths()
        niceness = options.nice if device.type == "cpu" and in_processes else 0
        # Not by assignment: __setattr__ sets attributes that this object lacks on the loader.
        vars(self).update(
            loader=share.loader,
            device=device,
            memory_format=memory_format,
            niceness=niceness,
            _caller=loader,
            _options=options,
            _share=share,
            _epoch=None,
            _progress=Progress(share),
        )

    def __getattr__(self, name: str) -> Any:
        if "loader" not in vars(self):  # while this object is being copied
            raise AttributeError(name)
        # Data and samplers are the caller's, whose `set_epoch` belongs to the caller.
        of_caller = name in ("dataset", "sampler", "batch_sampler")
        return getattr(vars(self)["_caller" if of_caller else "loader"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in vars(self):
            object.__setattr__(self, name, value)
        else:
            setattr(self.loader, name, value)

    def __len__(self) -> int:
        self._share.follow_caller()
        return len(self._share)

    def set_epoch(self, epoch: int) -> None:
        """Make the next passes those of `epoch`, for the data set, a sampler and our own order."""
        self._epoch = epoch
        if self._share.part is not None:
            self._share.part.epoch = epoch
        for owner in (getattr(self._caller, "dataset", None), *chain(self._caller)):
            if callable(getattr(owner, "set_epoch", None)):
                owner.set_epoch(epoch)

    def draw_from_generators(self) -> None:
        """Have passes draw from the sampler's generators, in the order that one process has.

        For loops that all ranks run alike, with generators of one seed.
        """
        if self._share.part is not None:
            self._share.part.from_generators = True

    @property
    def passes(self) -> int:
        """Return the number of passes that have ended, those before a resume included."""
        return self._progress.passes

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, for a checkpoint; a stateful loader's is its own."""
        own = getattr(self.loader, "state_dict", None)
        return {**self._progress.state_dict(), "epoch": self._epoch} if own is None else own()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next pass go on where `state_dict` was called."""
        own = getattr(self.loader, "load_state_dict", None)
        if own is not None:
            own(state)
            return
        self._progress.load_state_dict(state)
        if state.get("epoch") is not None:
            self.set_epoch(state["epoch"])

    def _finished(self, batch: Any) -> Any:
        return self.dataset.finish_batch(batch, self.memory_format)

    def __iter__(self) -> Iterator[Any]:
        # Maps: an error in one batch would end a generator, but does not end a loader's iterator.
        with self._progress.beginning():
            self._share.follow_caller()
            batches = iter(self.loader)
        if self.niceness:
            workers.give_way(batches, self.niceness)
        if self._share.dealt is not None:
            batches = share_of(batches, *self._share.dealt, may_refill(self.loader))
        if self.device.type == "cuda" and self._options.prefetch:
            if may_refill(self.loader):
                batches = map(own_copy, batches)
            batches = CopiedAhead(batches, self.device, self._options.prefetch)
        else:
            batches = map(functools.partial(to_device, device=self.device), batches)
        finishes = hasattr(getattr(self._caller, "dataset", None), "finish_batch")
        return self._progress.counted(map(self._finished, batches) if finishes else batches)


def _check(loader: Any) -> None:
    if isinstance(loader, (list, tuple)) and any(
        isinstance(one, (DataLoader, DeviceLoader)) for one in loader
    ):
        raise InputError(
            f"the loader is a {type(loader).__name__} of loaders: give each as an argument of its "
            "own, accelerate(model, train_loader, validation_loader, …).",
            parameter="loader",
        )


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
    tensors = list(tensors_in(batch))
    if tensors and all(tensor.device == device for tensor in tensors):
        return batch
    for more in ({"non_blocking": True}, {}):
        try:
            return batch.to(device, **more)
        except (TypeError, ValueError, AttributeError):
            if tensors and not more:
                raise
    return batch  # the `to` of a quantity or a date means something else


def _pinned(tensor: Tensor) -> Tensor:
    """Return `tensor` in pinned memory if possible; only from there a copy is asynchronous."""
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_nested
    return tensor.pin_memory() if plain and not tensor.is_pinned() else tensor


def _pinned_by_itself(batch: Any) -> Any:
    pin = getattr(type(batch), "pin_memory", None)
    return batch if pin is None or all(_pinned(t) is t for t in tensors_in(batch)) else pin(batch)


def _is_plain(batch: Any) -> bool:
    """Return whether all tensors of a batch are strided, of torch's own class, and to be seen.

    An object with a `to` of its own may have others inside.
    """
    objects: list[Any] = []

    def seen(one: Any) -> Any:
        objects.append(one)
        return one

    map_tensors(lambda tensor: tensor, batch, seen)
    tensors = tensors_in(batch)
    return not objects and all(type(t) is Tensor and t.layout is torch.strided for t in tensors)


@functools.cache
def _stream_of_copies(device_index: int) -> torch.cuda.Stream:
    """Return this process's stream for copies to a device; each stream keeps freed memory."""
    return torch.cuda.Stream(device_index)


class CopiedAhead:
    """Iterator over `batches` on the CUDA `device`, up to `depth` of them copied before their use.

    An error of the loader is raised when its batch would have come.
    """

    def __init__(self, batches: Iterator[Any], device: torch.device, depth: int) -> None:
        self._batches, self._device, self._depth = batches, device, depth
        with torch.cuda.device(device):
            self._stream = _stream_of_copies(torch.cuda.current_device())
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
            for tensor in tensors_in(batch):
                if tensor.is_cuda:  # its memory is not reused for copies while the model reads it
                    tensor.record_stream(torch.cuda.current_stream(tensor.device))
        if not self._ended:
            self._fetch()
        if error is not None:
            raise error
        return batch

    def _fetch(self) -> None:
        try:
            batch = next(self._batches)
            # Parts of sparse, nested and other tensors are not known: the model's stream copies.
            stream = self._stream if _is_plain(batch) else torch.cuda.current_stream(self._device)
            with torch.cuda.stream(stream):
                pinned = map_tensors(_pinned, batch, _pinned_by_itself)
                self._waiting.append((to_device(pinned, self._device), stream.record_event(), None))
        except StopIteration:
            self._ended = True
        except Exception as error:
            self._waiting.append((None, None, error))
