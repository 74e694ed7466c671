"""Turn-taking between runs that are alive at the same time.

The comparing process listens on a loopback port; each rank of each run connects, says whose it is, and from then
on trains only between a `go` from the listener and its own next `idle`. Waiting costs no CPU. A run whose listener
has gone ends with an error; a listener whose run has gone is told by the caller's check.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from gallery_lib.errors import RunFailed

_CHECK_SECONDS = 0.5
"""How often the caller's check runs: rarely, since it would take time from the cores that are being measured."""
_CONNECT_SECONDS = 0.05


class TurnServer:
    """Hands out turns. `address` and `key` go to the runs; `close` when done."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._listener = Listener(("127.0.0.1", 0), authkey=self._key, backlog=64)
        self._connections: dict[str, dict[int, Connection]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> list[object]:
        """Host, port and key, as JSON can hold them."""
        host, port = self._listener.address
        return [host, port, self._key.hex()]

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
                run, rank = connection.recv()
            except (OSError, EOFError):
                return
            except Exception:  # a stranger without the key
                continue
            with self._lock:
                self._connections.setdefault(run, {})[rank] = connection

    def wait_idle(self, run: str, world_size: int, check: Callable[[], None]) -> None:
        """Returns when every rank of `run` has said that it is idle; calls `check` (which may raise) while waiting."""
        idle: set[int] = set()
        while True:
            with self._lock:
                waiting = {link: rank for rank, link in self._connections.get(run, {}).items() if rank not in idle}
            ready: list[Any] = wait(list(waiting), _CHECK_SECONDS if len(waiting) + len(idle) == world_size else _CONNECT_SECONDS)
            for connection in ready:
                try:
                    connection.recv()
                    idle.add(waiting[connection])
                except (EOFError, OSError):
                    time.sleep(_CONNECT_SECONDS)  # the process is ending: the check will say why
            if len(idle) == world_size:
                return
            check()

    def go(self, run: str) -> None:
        """Give `run` the turn."""
        for connection in self._connections[run].values():
            try:
                connection.send("go")
            except OSError:
                continue  # the next wait_idle's check says what happened to it

    def close(self) -> None:
        """No more turns; runs that still wait end with an error."""
        self._listener.close()
        for ranks in self._connections.values():
            for connection in ranks.values():
                connection.close()


class TurnClient:
    """A rank's side."""

    def __init__(self, address: list[object], run: str, rank: int) -> None:
        host, port, key = address
        self._connection = Client((str(host), int(str(port))), authkey=bytes.fromhex(str(key)))
        self._connection.send((run, rank))

    def wait(self) -> None:
        """Say that this rank is idle, and return when it has the turn."""
        try:
            self._connection.send("idle")
            self._connection.recv()
        except (EOFError, OSError):
            raise RunFailed("the process that hands out turns is gone.") from None
