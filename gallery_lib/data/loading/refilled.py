"""Keep batches of a source that may fill the same memory again for its next one."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DataLoader


def kept(item: Any) -> Any:
    """Return a copy of `item` in memory of its own, or `item` itself where none can be made."""
    try:
        return copy.deepcopy(item)
    except Exception:
        return item


def may_refill(loader: Any) -> bool:
    """Return whether a batch may be overwritten when the next one is read.

    A DataLoader collates each batch into new memory, and what comes from a worker is new here. An
    iterable of the user's, and a loader's own `__iter__`, may yield one buffer again and again.
    """
    if not isinstance(loader, DataLoader):
        return True
    if type(loader).__iter__ is not DataLoader.__iter__ and not hasattr(loader, "early_start"):
        return True
    return loader.num_workers == 0 and loader.batch_sampler is None
