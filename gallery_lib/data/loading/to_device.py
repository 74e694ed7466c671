"""Copy a batch to the device: any nesting of tensors, and objects with a `to` of their own."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

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
