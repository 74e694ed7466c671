"""Batches are any nesting of tuples, named tuples, lists and mappings with tensors in it: how to walk over one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def map_tensors(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """`batch` with `change` applied to every tensor in it; what is no tensor stays."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(change, item) for item in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(map_tensors(change, item) for item in batch)
    if isinstance(batch, Mapping):
        return {key: map_tensors(change, value) for key, value in batch.items()}
    return batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """The tensors in `batch`, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors_in(value)
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from tensors_in(value)
