"""Copy batches to the device: any nesting of tensors, and objects with a `to` of their own.

On CUDA the next batches are copied on a stream of their own, while the model computes.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from gallery_lib.data.loading.nesting import map_tensors, tensors_in


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


class CopiedAhead:
    """Iterator over `batches` on the CUDA `device`, up to `depth` of them copied before their use.

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
