"""Turn-taking between runs that are alive at the same time.

The comparing process listens on a Unix socket in a folder that no other user may enter. Each rank
of each run connects and says whose it is. From then on it trains only between a `go` from the
server and its own next `idle`. Waiting costs no CPU.

A run whose server has gone ends with an error. A server whose run has gone is told by the caller's
check.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, wait

from gallery_lib.errors import RunFailed
from gallery_lib.system.sockets import PrivateFolder

_CHECK_SECONDS = 0.5
"""Interval of the caller's check, which would take time from the cores that are being measured."""
_ENDING_SECONDS = 0.05


class TurnServer:
    """Server that hands out turns; `address` goes to the runs, and `close` ends it."""

    def __init__(self) -> None:
        self._folder = PrivateFolder()
        self.address = str(self._folder.path / "turns")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.address)
        self._socket.listen(64)
        self._ranks: dict[str, list[Connection]] = {}  # by run

    def wait_idle(self, run: str, world_size: int, check: Callable[[], None]) -> None:
        """Return when every rank of `run` is idle; meanwhile call `check`, which may raise."""
        idle: set[Connection] = set()
        while True:
            waiting = [rank for rank in self._ranks.get(run, ()) if rank not in idle]
            for ready in wait([self._socket, *waiting], _CHECK_SECONDS):
                try:
                    if isinstance(ready, Connection):
                        ready.recv_bytes()
                        idle.add(ready)
                    else:
                        rank = Connection(self._socket.accept()[0].detach())
                        self._ranks.setdefault(rank.recv_bytes().decode(), []).append(rank)
                except (EOFError, OSError):
                    time.sleep(_ENDING_SECONDS)  # the process is ending: the check will say why
            if len(idle) == world_size:
                return
            check()

    def go(self, run: str) -> None:
        """Give `run` the turn."""
        for rank in self._ranks[run]:
            with contextlib.suppress(OSError):  # the next check says what happened to it
                rank.send_bytes(b"go")

    def close(self) -> None:
        """Stop handing out turns; runs that still wait end with an error."""
        self._socket.close()
        self._folder.close()
        for ranks in self._ranks.values():
            for rank in ranks:
                rank.close()


class TurnClient:
    """Connection of one rank of `run` to the server of turns."""

    def __init__(self, address: str, run: str) -> None:
        self._connection = Client(address, family="AF_UNIX")
        self._connection.send_bytes(run.encode())

    def wait(self) -> None:
        """Say that this rank is idle, and return when it has the turn.

        Raises:
            RunFailed: when the server is gone.
        """
        try:
            self._connection.send_bytes(b"idle")
            self._connection.recv_bytes()
        except (EOFError, OSError):
            raise RunFailed("the process that hands out turns is gone.") from None
