"""Barrier with a time limit in the run's store, for ranks that may be waited for elsewhere."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


def all_ranks_arrive(key: str, limit_seconds: float) -> bool:
    """Return whether each rank has come to the barrier `key` in time; same on all ranks.

    Ranks that come later get the same verdict.
    """
    store = dist.distributed_c10d._get_default_store()
    here, verdict = f"{key}/here", f"{key}/verdict"
    try:
        if store.add(here, 1) == dist.get_world_size():
            store.compare_set(verdict, "", "all")
        else:
            try:
                store.wait([verdict], timedelta(seconds=limit_seconds))
            except RuntimeError:  # timed out
                store.compare_set(verdict, "", "not all")
        return bool(store.get(verdict) == b"all")
    except RuntimeError:  # the store has gone; what communicates next says so
        return False
