"""Copy a DataLoader of any subclass so that it reads another sampler or another data set.

A DataLoader refuses to be given another one, and a plain DataLoader would lose what a subclass
adds. So the copy is the same in everything except the replaced parts, including the options of any
version of torch.
"""

from __future__ import annotations

import types
from typing import Any

from torch.utils.data import DataLoader

from gallery_lib.errors import InputError


def copy_slots(source: Any, target: Any) -> None:
    """Give `target` the values that `source` has in the slots of its classes."""
    for base in type(source).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(source, name):
                object.__setattr__(target, name, getattr(source, name))


def copied(loader: DataLoader[Any], **parts: Any) -> DataLoader[Any]:
    """Return a copy of `loader`, not begun, with other `parts` (`dataset`, `sampler`, …).

    Raises:
        InputError: for a subclass that answers with other parts than it was given.
    """
    kind = type(loader)
    result: DataLoader[Any] = object.__new__(kind)
    copy_slots(loader, result)
    for name, value in vars(loader).items():
        own_method = isinstance(value, types.MethodType) and value.__self__ is loader
        vars(result)[name] = types.MethodType(value.__func__, result) if own_method else value
    vars(result).update(parts, _iterator=None, _IterableDataset_len_called=None)
    if strange := [name for name, part in parts.items() if getattr(result, name) is not part]:
        raise InputError(
            f"the loader is a {kind.__name__}, whose `{strange[0]}` cannot be replaced, so that "
            "it cannot be divided over the ranks: give it a DistributedSampler, or set "
            "config.loader.shard = 'never'.",
            parameter="loader",
        )
    return result
