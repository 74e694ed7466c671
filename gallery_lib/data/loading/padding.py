"""Pad batches of variable length to one of a few lengths, so that a compiler meets few shapes.

A model that is compiled anew for every length waits more than it computes. With `buckets=(64, 128,
256)` a batch of length 70 is padded to 128. Batches longer than the last bucket stay as they are.
The caller says which parts of a batch have a length, and what fills them: `pad_values={"input_ids":
0, "labels": -100}`, or `{0: 0.0}` for the first member of a tuple. The length is dimension 1,
behind the batch dimension.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from gallery_lib.data.loading.nesting import members, with_members
from gallery_lib.errors import InputError


def _padded(tensor: Any, bucket: int, value: float, where: str | int) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.dim() < 2:
        raise InputError(
            f"pad_values names {where!r}, which is no tensor with a batch and a length dimension "
            "in this batch.",
            parameter="pad_values",
        )
    missing = bucket - tensor.shape[1]
    return (
        F.pad(tensor, (0, 0) * (tensor.dim() - 2) + (0, missing), value=value)
        if missing > 0
        else tensor
    )


def pad_to_bucket(batch: Any, buckets: Sequence[int], pad_values: Mapping[str | int, float]) -> Any:
    """Return `batch` with the parts that `pad_values` names padded to one common bucket.

    The bucket is the smallest that fits all these parts. `batch` is a mapping, a sequence or a
    dataclass, and keeps its type. None stays None.

    Raises:
        InputError: when a name is not in the batch, or is no tensor [N, length, …].
    """
    if batch is None or not pad_values:
        return batch
    parts = members(batch)
    if parts is None:
        raise InputError(
            f"pad_values names {next(iter(pad_values))!r}; a batch is a {type(batch).__name__}, "
            "which has no named parts.",
            parameter="pad_values",
        )
    unknown = [name for name in pad_values if name not in parts]
    if unknown:
        raise InputError(
            f"pad_values names {unknown[0]!r}; the batch has "
            f"{', '.join(repr(name) for name in parts)}.",
            parameter="pad_values",
        )
    lengths = [
        parts[name].shape[1]
        for name in pad_values
        if isinstance(parts[name], Tensor) and parts[name].dim() > 1
    ]
    ordered = sorted(buckets)
    place = bisect.bisect_left(ordered, max(lengths, default=0))
    if place == len(ordered):
        return batch
    padded = {
        name: _padded(parts[name], ordered[place], value, name)
        for name, value in pad_values.items()
    }
    changes = {name: tensor for name, tensor in padded.items() if tensor is not parts[name]}
    return with_members(batch, changes) if changes else batch
