"""Which ranks still live? Each writes its clock into the run's store every second, for those to see whose communication failed.

gloo and NCCL say that a connection broke or that they have waited too long, and not for whom.
"""

from __future__ import annotations

import threading
import time

import torch.distributed as dist

_BEAT_SECONDS = 1.0
_WATCH_SECONDS = 3.5


def _key(rank: int) -> str:
    return f"gallery_lib/beat/{rank}"


class Heartbeat:
    """Beats from now on, in a thread. Making one is a collective call."""

    def __init__(self) -> None:
        self._store = dist.distributed_c10d._get_default_store()
        self._stopped = threading.Event()
        self._store.set(_key(dist.get_rank()), "0")
        dist.barrier()
        threading.Thread(target=self._beat, args=(_key(dist.get_rank()),), daemon=True).start()

    def _beat(self, key: str) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            try:
                self._store.set(key, str(time.monotonic_ns()))
            except RuntimeError:  # the store has gone, with the rank that holds it
                return

    def silent_ranks(self) -> str:
        """What can be said of ranks that do not beat any more; takes a few seconds."""
        try:
            before = [self._store.get(_key(rank)) for rank in range(dist.get_world_size())]
            time.sleep(_WATCH_SECONDS)
            after = [self._store.get(_key(rank)) for rank in range(dist.get_world_size())]
        except RuntimeError:
            return "the store of the run does not answer: rank 0, or the process that launched it, has ended or cannot be reached"
        silent = [rank for rank, (old, new) in enumerate(zip(before, after, strict=True)) if old == new]
        if not silent:
            return "all ranks are alive: the network between some of them has failed, or one was very slow"
        named = f"rank {silent[0]} gives" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} give"
        return f"{named} no sign of life: it has ended, hangs, or cannot be reached"

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
