"""Walk over a batch: any nesting of containers with tensors in it.

A container is a mapping, a sequence, a set, a dataclass, an attrs class or a SimpleNamespace, of
any subclass. If nothing inside changes, the same object comes back. Otherwise a copy of the
container gets the new members. Its constructor is not called, since nobody knows which arguments it
takes.
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

_SEQUENCES = (list, tuple, collections.deque, collections.UserList)
_SETS = (set, frozenset)


def members(batch: Any) -> dict[Any, Any] | None:
    """Return the members of a container by key, position or name; None for anything else."""
    if isinstance(batch, Mapping):
        return {key: batch[key] for key in batch}
    if isinstance(batch, (*_SEQUENCES, *_SETS)):
        return dict(enumerate(batch))
    if isinstance(batch, type):
        return None
    if dataclasses.is_dataclass(batch):
        names = [field.name for field in dataclasses.fields(batch)]
    elif hasattr(type(batch), "__attrs_attrs__"):
        names = [attribute.name for attribute in type(batch).__attrs_attrs__]
    elif isinstance(batch, types.SimpleNamespace):
        names = list(vars(batch))
    else:
        return None
    return {name: getattr(batch, name) for name in names if hasattr(batch, name)} | _own_attributes(
        batch
    )


def _own_attributes(batch: Any) -> dict[str, Any]:
    """Return the attributes that a container of a subclass has besides its members."""
    own = getattr(batch, "__dict__", None)
    return {} if own is None or own is batch else dict(own)  # a dict may be its own `__dict__`


def with_members(batch: Any, changes: Mapping[Any, Any]) -> Any:
    """Return a copy of the container `batch` in which `changes` replaces members.

    Raises:
        InputError: for a container that cannot be changed and has no `to` of its own.
    """
    if isinstance(batch, (tuple, *_SETS)):
        return _with_items(batch, [changes.get(place, item) for place, item in enumerate(batch)])
    if isinstance(batch, types.MappingProxyType):
        return types.MappingProxyType({**batch, **changes})
    if isinstance(batch, (MutableMapping, MutableSequence)):
        result = copy.copy(batch)
        if getattr(batch, "__dict__", None) is batch:
            vars(result).clear()
            object.__setattr__(result, "__dict__", result)
        for key, value in changes.items():
            result[key] = value
        return result
    if isinstance(batch, Mapping):
        try:
            return type(batch)({**batch, **changes})  # type: ignore[call-arg]
        except TypeError:
            raise InputError(
                f"a batch is a {type(batch).__name__}, whose members cannot be exchanged: "
                "give it a method `to(device)`, or have collate_fn return a dict.",
                parameter="batch",
            ) from None
    return with_attributes(copy.copy(batch), changes)


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
    if hasattr(batch, "__dict__"):
        vars(result).update(vars(batch))
    return result


def moves_itself(batch: Any) -> bool:
    """Return whether `batch` is an object with a `to` of its own, by which it is moved.

    The `to` of a UserDict (BatchEncoding) leaves out nested tensors, so a UserDict counts as a
    mapping.
    """
    if isinstance(batch, (Tensor, type, collections.UserDict)):
        return False
    return callable(getattr(type(batch), "to", None))  # ask the type: some dicts have any attribute


def map_tensors(
    change: Callable[[Tensor], Tensor], batch: Any, whole: Callable[[Any], Any] | None = None
) -> Any:
    """Return `batch` with `change` applied to every tensor in it; anything else stays.

    An object that is in a batch twice is in memory once, before and after. `whole` is applied to
    objects that have a `to` of their own; without `whole` these stay as they are.
    """
    return _mapped(change, batch, whole, {})


def _mapped(
    change: Callable[[Tensor], Tensor],
    batch: Any,
    whole: Callable[[Any], Any] | None,
    known: dict[int, tuple[Any, Any]],
) -> Any:
    if isinstance(batch, (str, bytes, int, float)) or batch is None:
        return batch
    if id(batch) in known:
        return known[id(batch)][1]
    known[id(batch)] = (batch, batch)  # until then: a container may hold itself
    if isinstance(batch, Tensor):
        result = change(batch)
    elif moves_itself(batch):
        result = batch if whole is None else whole(batch)
    else:
        result = _with_mapped_members(batch, lambda value: _mapped(change, value, whole, known))
    known[id(batch)] = (batch, result)
    return result


def _with_mapped_members(batch: Any, mapped: Callable[[Any], Any]) -> Any:
    inside = members(batch)
    if inside is None:
        return batch
    changes = {key: new for key, value in inside.items() if (new := mapped(value)) is not value}
    named = not isinstance(batch, (Mapping, *_SEQUENCES, *_SETS))
    own = {} if named else _own_attributes(batch)
    attributes = {name: new for name, value in own.items() if (new := mapped(value)) is not value}
    if not attributes:
        return with_members(batch, changes) if changes else batch
    # The attributes come first: a UserDict has its members in one, `data`.
    result = with_attributes(with_members(batch, {}), attributes)
    if isinstance(batch, (MutableMapping, MutableSequence)):
        for key, value in changes.items():
            result[key] = value
        return result
    return with_attributes(with_members(batch, changes), attributes) if changes else result


def own_copy(batch: Any) -> Any:
    """Return a copy of `batch` in memory of its own, or `batch` where none can be made."""
    try:
        return copy.deepcopy(batch)
    except Exception:
        return batch


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors in `batch`, in order; also those of objects with a `to` of their own."""
    yield from _tensors(batch, set())


def _tensors(batch: Any, above: set[int]) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
        return
    if (
        isinstance(batch, (str, bytes, int, float, nn.Module))
        or batch is None
        or id(batch) in above
    ):
        return
    inside = members(batch)
    if inside is None and moves_itself(batch):
        inside = _attributes(batch)
    for value in (inside or {}).values():
        yield from _tensors(value, above | {id(batch)})


def _attributes(batch: Any) -> dict[str, Any]:
    return slots_of(batch) | getattr(batch, "__dict__", {})


def slots_of(value: Any) -> dict[str, Any]:
    """Return what an object has in the slots of its classes, by name."""
    names: list[str] = []
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    return {
        name: getattr(value, name)
        for name in names
        if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    }
