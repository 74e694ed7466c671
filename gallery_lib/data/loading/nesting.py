"""Walk over a batch: any nesting of containers with tensors in it.

A container is a mapping, a sequence, a set, a dataclass, an attrs class or a SimpleNamespace, of
any subclass. If nothing inside changes, the same object comes back. Otherwise a copy of the
container gets the new members; its constructor is not called.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any

from torch import Tensor, nn

from gallery_lib.errors import InputError

_SETS = (set, frozenset)
_INDEXED = (list, tuple, collections.deque, collections.UserList, *_SETS)
_PLAIN = (str, bytes, int, float, type(None))


def members(batch: Any) -> dict[Any, Any] | None:
    """Return the members of a container by key, position or name; None for anything else."""
    if isinstance(batch, Mapping):
        return {key: batch[key] for key in batch}
    if isinstance(batch, _INDEXED):
        return dict(enumerate(batch))
    if isinstance(batch, type):
        return None
    if dataclasses.is_dataclass(batch) or isinstance(batch, types.SimpleNamespace):
        return attributes_of(batch)
    return attributes_of(batch) if hasattr(type(batch), "__attrs_attrs__") else None


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, those in slots included."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    in_slots = {
        name: getattr(value, name)
        for name in names
        if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    }
    own = getattr(value, "__dict__", {})
    return in_slots if own is value else in_slots | own  # a dict may be its own `__dict__`


def with_members(batch: Any, changes: Mapping[Any, Any]) -> Any:
    """Return a copy of the container `batch` in which `changes` replaces members.

    Raises:
        InputError: for a container that cannot be changed and has no `to` of its own.
    """
    if isinstance(batch, (tuple, *_SETS)):
        return _with_items(batch, [changes.get(place, item) for place, item in enumerate(batch)])
    if isinstance(batch, (MutableMapping, MutableSequence)):
        result = copy.copy(batch)
        if getattr(batch, "__dict__", None) is batch:
            vars(result).clear()
            object.__setattr__(result, "__dict__", result)
        for key, value in changes.items():
            result[key] = value
        return result
    if isinstance(batch, Mapping):
        kind: Any = type(batch)
        try:
            return kind({**batch, **changes})
        except TypeError:
            raise InputError(
                f"a batch is a {kind.__name__}, whose members cannot be exchanged: give it a "
                "method `to(device)`, or have collate_fn return a dict.",
                parameter="batch",
            ) from None
    try:
        result = copy.copy(batch)
    except AttributeError:  # of a frozen dataclass with slots that are not all set
        result = with_attributes(object.__new__(type(batch)), attributes_of(batch))
    return with_attributes(result, changes)


def with_attributes(batch: Any, changes: Mapping[str, Any]) -> Any:
    """Set attributes of `batch`, which may be a frozen dataclass, and return `batch`."""
    for name, value in changes.items():
        object.__setattr__(batch, name, value)
    return batch


def _with_items(batch: Any, items: list[Any]) -> Any:
    if isinstance(batch, set):
        result = copy.copy(batch)
        result.clear()
        result.update(items)
        return result
    kind: Any = tuple if isinstance(batch, tuple) else frozenset
    try:
        result = kind.__new__(type(batch), items)
    except TypeError:  # torch.return_types
        return type(batch)(items)
    return with_attributes(result, getattr(batch, "__dict__", {}))


def moves_itself(batch: Any) -> bool:
    """Return whether `batch` is an object with a `to` of its own, by which it is moved.

    The `to` of a UserDict (BatchEncoding) leaves out nested tensors, so it counts as a mapping.
    """
    if isinstance(batch, (Tensor, type, collections.UserDict)):
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
    if isinstance(batch, _PLAIN):
        return batch
    known = {} if _known is None else _known
    if id(batch) in known:
        return known[id(batch)][1]
    known[id(batch)] = (batch, batch)  # until then: a container may hold itself
    if isinstance(batch, Tensor):
        result = change(batch)
    elif moves_itself(batch):
        result = batch if whole is None else whole(batch)
    else:
        result = _with_changes(batch, lambda value: map_tensors(change, value, whole, known))
    known[id(batch)] = (batch, result)
    return result


def _with_changes(batch: Any, changed: Callable[[Any], Any]) -> Any:
    def changes(values: dict[Any, Any]) -> dict[Any, Any]:
        new = {key: changed(value) for key, value in values.items()}
        return {key: value for key, value in new.items() if value is not values[key]}

    inside = members(batch)
    if inside is None:
        return batch
    new_members = changes(inside)
    if not isinstance(batch, (Mapping, *_INDEXED)):
        return with_members(batch, new_members) if new_members else batch
    # The attributes of a subclass come first: a UserDict has its members in one, `data`.
    attributes = changes(attributes_of(batch))
    if not attributes:
        return with_members(batch, new_members) if new_members else batch
    result = with_attributes(with_members(batch, {}), attributes)
    if isinstance(batch, (MutableMapping, MutableSequence)):
        for key, value in new_members.items():
            result[key] = value
        return result
    return with_attributes(with_members(batch, new_members), attributes)


def own_copy(batch: Any) -> Any:
    """Return a copy of `batch` in memory of its own, or `batch` where none can be made."""
    try:
        return copy.deepcopy(batch)
    except Exception:
        return batch


def tensors_in(batch: Any, _above: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield the tensors in `batch`, in order; also those of objects with a `to` of their own."""
    if isinstance(batch, Tensor):
        yield batch
    elif not isinstance(batch, (*_PLAIN, nn.Module)) and id(batch) not in _above:
        inside = members(batch)
        if inside is None and moves_itself(batch):
            inside = attributes_of(batch)
        for value in (inside or {}).values():
            yield from tensors_in(value, _above | {id(batch)})
