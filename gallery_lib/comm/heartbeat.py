"""Which ranks still live? Each writes its clock into the run's store every second, for those to see whose communication failed.

gloo and NCCL say that a connection broke or that they have waited too long, and not for whom. The first rank that finds out
writes it down for the others: those that fail later, because it has ended, would take it for the one that is to blame.
"""

from __future__ import annotations

import atexit
import threading
import time

import torch.distributed as dist

_BEAT_SECONDS = 1.0
_WATCH_SECONDS = 3.5
_ANSWER_SECONDS = _WATCH_SECONDS + 4
"""For a look at the store, which torch lets wait for ever when its host cannot be reached."""
_STOP_SECONDS = 2.0
_FOUND = "gallery_lib/beat/found"
_NO_STORE = "the store of the run does not answer: rank 0, or the process that launched it, has ended or cannot be reached"


def _key(rank: int) -> str:
    return f"gallery_lib/beat/{rank}"


class Heartbeat:
    """Beats from now on, in a thread. Making one is a collective call."""

    def __init__(self) -> None:
        self._store = dist.distributed_c10d._get_default_store()
        self._stopped = threading.Event()
        self._heard = ""
        self._store.set(_key(dist.get_rank()), "0")
        dist.barrier()
        self._beating = threading.Thread(target=self._beat, args=(_key(dist.get_rank()),), daemon=True)
        self._beating.start()
        atexit.register(self.stop)  # Python ends a thread in the middle of a call into torch by aborting

    def _beat(self, key: str) -> None:
        while not self._stopped.wait(_BEAT_SECONDS):
            try:
                self._store.set(key, str(time.monotonic_ns()))
                if self._store.check([_FOUND]):
                    self._heard = self._store.get(_FOUND).decode()
            except RuntimeError:  # the store has gone, with the rank that holds it
                return

    def silent_ranks(self) -> str:
        """What can be said of ranks that do not beat any more; takes a few seconds."""
        looker = threading.Thread(target=self._look, daemon=True)
        looker.start()
        looker.join(_ANSWER_SECONDS)
        return self._heard or _NO_STORE

    def _look(self) -> None:
        if self._heard:
            return
        try:
            before = [self._store.get(_key(rank)) for rank in range(dist.get_world_size())]
            time.sleep(_WATCH_SECONDS)
            after = [self._store.get(_key(rank)) for rank in range(dist.get_world_size())]
            silent = [rank for rank, (old, new) in enumerate(zip(before, after, strict=True)) if old == new]
            if not self._heard:
                self._heard = _in_words(silent)
                self._store.set(_FOUND, self._heard)
            if dist.get_rank() == 0:
                time.sleep(2 * _BEAT_SECONDS)  # for the others to hear of it: the store may end with this rank
        except RuntimeError:
            return

    def end(self) -> None:
        """Have the thread end, without waiting for it."""
        self._stopped.set()

    def stop(self) -> None:
        """End the thread."""
        self.end()
        self._beating.join(_STOP_SECONDS)
        atexit.unregister(self.stop)


def _in_words(silent: list[int]) -> str:
    if not silent:
        return "all ranks are alive: the network between some of them has failed, one was very slow, or it is as the error says"
    named = f"rank {silent[0]} gives" if len(silent) == 1 else f"ranks {', '.join(map(str, silent))} give"
    return f"{named} no sign of life: it has ended, hangs, or cannot be reached"
