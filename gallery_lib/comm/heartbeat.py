"""Heartbeats that tell which ranks still live.

Each rank writes its clock into the run's store every second. A rank whose communication failed
reads the others' clocks. gloo and NCCL say that a connection broke or that they have waited too
long, but not for whom. The first rank that finds out writes the answer down for the others. Ranks
that fail later, because the first has ended, would blame that one.

With a limit nobody has to fail first. The others find a rank that has been silent for so long.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable

import torch.distributed as dist

from gallery_lib.comm.torch_ddp import default_store

_BEAT_SECONDS = 1.0
_LONGEST_BEAT_SECONDS = 5.0
_BEATS = 8  # and as many looks at the other ranks, within a short limit
_WATCH_SECONDS = 3.5
_ANSWER_SECONDS = _WATCH_SECONDS + 4
"""Limit for a look at the store: torch waits forever when the store's host cannot be reached."""
_TELLING_SECONDS = 2.0
_ENDED = "ended"  # in place of the clock of a rank that has done its part
_NO_STORE = (
    "the store of the run does not answer: "
    "rank 0, or the process that launched it, has ended or cannot be reached"
)


class Heartbeat:
    """Thread that beats from now on. The constructor is a collective call.

    Args:
        name: of those that watch one another, the same on all ranks.
        limit_seconds: silence longer than this is reported; None: never.
        silence: called once, in the thread, with a text that names the silent ranks.
    """

    def __init__(
        self,
        name: str = "reducer",
        limit_seconds: float | None = None,
        silence: Callable[[str], None] | None = None,
    ) -> None:
        self._store = default_store()
        self._prefix = f"gallery_lib/beat/{name}"
        self._limit, self._silence = limit_seconds, silence
        self._interval = _BEAT_SECONDS
        if limit_seconds is not None:
            self._interval = min(_LONGEST_BEAT_SECONDS, limit_seconds / _BEATS)
        self._stopped = threading.Event()
        self._left, self._writing = False, threading.Lock()
        self._answer = ""
        self._own = self._key(dist.get_rank())
        self._store.set(self._own, "0")
        dist.barrier()
        self._answered = self._looked = time.monotonic()
        # The clock of each other rank, and when it last changed.
        others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
        self._clocks = dict.fromkeys(others, ("", self._looked))
        self._beating = threading.Thread(target=self._beat, daemon=True)
        self._beating.start()
        if limit_seconds is not None:
            threading.Thread(target=self._watch_store, args=(limit_seconds,), daemon=True).start()
        # At exit Python ends a thread in the middle of a call into torch by aborting.
        atexit.register(self.stop)

    def _key(self, rank: int | str) -> str:
        return f"{self._prefix}/{rank}"

    def _clock(self, rank: int) -> str:
        return self._store.get(self._key(rank)).decode()

    def _beat(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store has gone, with the rank that holds it
            while not self._stopped.wait(self._interval):
                with self._writing:
                    if not self._left:
                        self._store.set(self._own, str(time.monotonic_ns()))
                if self._store.check([self._key("found")]):
                    self._answer = self._store.get(self._key("found")).decode()
                if self._limit is not None:
                    self._look_after_others(self._limit)
                self._answered = time.monotonic()
            if self._limit is not None:
                self._store.set(self._own, _ENDED)

    def _look_after_others(self, limit: float) -> None:
        now = time.monotonic()
        # A long time between looks: this process itself was stopped, and perhaps all were.
        was_stopped = now - self._looked > self._interval + _WATCH_SECONDS
        self._looked = now
        for rank, (clock, _) in self._clocks.items():
            if (new := self._clock(rank)) != clock or was_stopped:
                self._clocks[rank] = new, now
        silent = [
            rank
            for rank, (clock, changed) in self._clocks.items()
            if now - changed > limit and clock != _ENDED
        ]
        if silent:
            self._report(_in_words(silent))

    def _report(self, words: str) -> None:
        if self._silence is not None and not self._stopped.is_set():
            self._silence(f"{words}; this was looked at for {self._limit:g} s (rank_timeout)")
            self._stopped.set()

    def _watch_store(self, limit: float) -> None:
        """Report that the store does not answer: torch waits for it forever."""
        looked = time.monotonic()
        while not self._stopped.wait(self._interval) and not self._left:
            now = time.monotonic()
            if now - looked > self._interval + _WATCH_SECONDS:  # this process itself was stopped
                self._answered = now
            looked = now
            if self._beating.is_alive() and now - self._answered > limit:
                self._report(_NO_STORE)

    def silent_ranks(self) -> str:
        """Return a text about ranks that no longer beat; takes a few seconds."""
        looker = threading.Thread(target=self._look, daemon=True)
        looker.start()
        looker.join(_ANSWER_SECONDS)
        return self._answer or _NO_STORE

    def _look(self) -> None:
        if self._answer:
            return
        ranks = range(dist.get_world_size())
        with contextlib.suppress(RuntimeError):
            before = [self._clock(rank) for rank in ranks]
            time.sleep(_WATCH_SECONDS)
            silent = [rank for rank in ranks if self._clock(rank) == before[rank]]
            if not self._answer:
                self._answer = _in_words(silent)
                self._store.set(self._key("found"), self._answer)
            if dist.get_rank() == 0:
                # Time for the others to hear of it: the store may end with this rank.
                time.sleep(2 * _BEAT_SECONDS)

    def leave(self) -> None:
        """Say that this rank has done its part, and go on looking after the others."""
        telling = threading.Thread(target=self._tell_end, daemon=True)
        telling.start()
        telling.join(_TELLING_SECONDS)

    def _tell_end(self) -> None:
        with self._writing, contextlib.suppress(RuntimeError):  # the store has gone
            self._left = True
            self._store.set(self._own, _ENDED)

    def end(self) -> None:
        """Have the thread end, without waiting for it."""
        self._stopped.set()

    def stop(self) -> None:
        """End the thread and wait for it, for two seconds at most."""
        self.end()
        self._beating.join(_TELLING_SECONDS)
        atexit.unregister(self.stop)


def _in_words(silent: list[int]) -> str:
    if not silent:
        return (
            "all ranks are alive: the network between some of them has failed, one was very slow, "
            "or it is as the error says"
        )
    ranks = ", ".join(map(str, silent))
    named = f"rank {ranks} gives" if len(silent) == 1 else f"ranks {ranks} give"
    return f"{named} no sign of life: it has ended, hangs, or cannot be reached"
