"""Turn-taking between runs that are alive at the same time.

The comparing process listens on a Unix socket in a private folder. Each rank of each run connects
and says whose it is. From then on it trains only between a `go` from the listener and its own next
`idle`. Waiting costs no CPU.

A run whose listener has gone ends with an error. A listener whose run has gone is told by the
caller's check. A connection that does not begin with the secret, or sends nothing, is closed, and
keeps nobody waiting.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener, wait
from typing import Any

from gallery_lib.errors import RunFailed
from gallery_lib.system.sockets import PrivateFolder

_CHECK_SECONDS = 0.5
"""Interval of the caller's check, which would take time from the cores that are being measured."""
_CONNECT_SECONDS = 0.05
_GREETING_SECONDS = 5.0
_GREETING_BYTES = 4096


class TurnServer:
    """Server that hands out turns; `address` goes to the runs, and `close` ends it."""

    def __init__(self) -> None:
        self._key = secrets.token_hex(16)
        self._folder = PrivateFolder()
        self._listener = Listener(self.address[0], family="AF_UNIX", backlog=64)
        self._connections: dict[str, dict[int, Connection]] = {}
        self._lock = threading.Lock()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> list[str]:
        """Return the socket and the secret."""
        return [str(self._folder.path / "turns"), self._key]

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:  # the listener is closed, or the client has gone again
                time.sleep(_CONNECT_SECONDS)
                continue
            threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: Connection) -> None:
        """Keep the connection if it says the secret and whose it is, in time.

        Nothing that a stranger sends is unpickled.
        """
        with contextlib.suppress(
            OSError, EOFError, ValueError, KeyError, TypeError, AttributeError
        ):
            if connection.poll(_GREETING_SECONDS):
                greeting = json.loads(connection.recv_bytes(_GREETING_BYTES))
                if hmac.compare_digest(str(greeting["key"]).encode(), self._key.encode()):
                    with self._lock:
                        self._connections.setdefault(greeting["run"], {})[greeting["rank"]] = (
                            connection
                        )
                    return
        connection.close()

    def wait_idle(self, run: str, world_size: int, check: Callable[[], None]) -> None:
        """Return when every rank of `run` has said that it is idle.

        Meanwhile it calls `check`, which may raise.
        """
        idle: set[int] = set()
        while True:
            with self._lock:
                waiting = {
                    link: rank
                    for rank, link in self._connections.get(run, {}).items()
                    if rank not in idle
                }
            ready: list[Any] = wait(
                list(waiting),
                _CHECK_SECONDS if len(waiting) + len(idle) == world_size else _CONNECT_SECONDS,
            )
            for connection in ready:
                try:
                    connection.recv_bytes()
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
                connection.send_bytes(b"go")
            except OSError:
                continue  # the next wait_idle's check says what happened to it

    def close(self) -> None:
        """Stop handing out turns; runs that still wait end with an error."""
        self._closed = True
        with contextlib.suppress(OSError):
            Client(self.address[0], family="AF_UNIX").close()  # wakes the thread that accepts
        self._listener.close()
        self._folder.close()
        for ranks in self._connections.values():
            for connection in ranks.values():
                connection.close()


class TurnClient:
    """Connection of one rank to the server of turns."""

    def __init__(self, address: list[str], run: str, rank: int) -> None:
        path, key = address
        self._connection = Client(path, family="AF_UNIX")
        self._connection.send_bytes(json.dumps({"key": key, "run": run, "rank": rank}).encode())

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
