"""Walk over a batch: any nesting of mappings, lists, tuples and dataclasses with tensors in it.

If nothing inside changes, the same object comes back. Otherwise a copy of the container gets the
new members; its constructor is not called. An object of another kind is moved by its own `to`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn


def members(batch: Any) -> dict[Any, Any] | None:
    """Return the members of a container by key, position or name; None for anything else."""
    if isinstance(batch, Mapping):
        return {key: batch[key] for key in batch}
    if isinstance(batch, (list, tuple)):
        return dict(enumerate(batch))
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        if hasattr(batch, "__dict__"):
            return dict(vars(batch))
        return {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return None


def _with_members(batch: Any, changes: dict[Any, Any]) -> Any:
    if isinstance(batch, tuple):
        items = [changes.get(place, item) for place, item in enumerate(batch)]
        # A named tuple takes its items one by one; torch.return_types take them as a sequence.
        return batch._make(items) if hasattr(batch, "_make") else type(batch)(items)
    result = copy.copy(batch)
    for key, value in changes.items():
        if isinstance(batch, (Mapping, list)):
            result[key] = value
        else:
            object.__setattr__(result, key, value)  # the dataclass may be frozen
    return result


def moves_itself(batch: Any) -> bool:
    """Return whether `batch` is an object with a `to` of its own, by which it is moved.

    The `to` of a UserDict (BatchEncoding) leaves out nested tensors, so it counts as a mapping.
    """
    if isinstance(batch, (Tensor, type, UserDict)):
        return False
    return callable(getattr(type(batch), "to", None))  # ask the type: some dicts have any attribute


def map_tensors(
    change: Callable[[Tensor], Tensor],
    batch: Any,
    whole: Callable[[Any], Any] | None = None,
    _known: dict[int, tuple[Any, Any]] | None = None,
) -> Any:
    """Return `batch` with `change` applied to every tensor in it; anything else stays.

    An object that is in a batch twice is in memory once, before and after. `whole` is applied to
    objects that have a `to` of their own; without `whole` these stay as they are.
    """
    known = {} if _known is None else _known
    if id(batch) in known:
        return known[id(batch)][1]
    if isinstance(batch, Tensor):
        result = change(batch)
    elif moves_itself(batch):
        result = batch if whole is None else whole(batch)
    else:
        inside = members(batch) or {}
        new = {key: map_tensors(change, value, whole, known) for key, value in inside.items()}
        changes = {key: value for key, value in new.items() if value is not inside[key]}
        result = _with_members(batch, changes) if changes else batch
    known[id(batch)] = (batch, result)
    return result


def tensors_in(batch: Any, _above: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield the tensors in `batch`, in order; also those of objects with a `to` of their own."""
    if isinstance(batch, Tensor):
        yield batch
    elif not isinstance(batch, nn.Module) and id(batch) not in _above:
        inside = members(batch)
        if inside is None and moves_itself(batch):
            inside = getattr(batch, "__dict__", None)
        for value in (inside or {}).values():
            yield from tensors_in(value, _above | {id(batch)})
