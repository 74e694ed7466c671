"""A script's processes, seen from outside: `ScriptRun` starts, pauses and ends them.

Each process that trains connects to a socket in a folder that no other user may enter, and waits
there whenever it has done its cycles. While it waits, all processes below the supervisor are
stopped, loaders as well: none fills a queue in the others' turns. The supervisor itself is never
stopped, and ends everything, also when this process is killed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.files import PrivateFolder
from gallery_lib.system.processes import (
    OUTPUT,
    Relay,
    end_supervised,
    search_path,
    send_below,
    start_supervised,
)
from gallery_lib.trial import attach
from gallery_lib.trial.probe import Cycle, Orders
from gallery_lib.trial.scratch import at_own_port, copy_of

_CHECK_SECONDS = 0.2
_LAST_LINES = 20
# Trackers that would send or write what nobody asked for; each has this switch.
_TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
}


class TooShort(Exception):
    """The script ended by itself before it had done its cycles."""


@dataclass(frozen=True)
class Command:
    """What the reader types, and the name that the verdict has."""

    words: Sequence[str]
    script: str

    @property
    def shown(self) -> str:
        """Return the command as a line."""
        return shlex.join(self.words)


@dataclass
class Reports:
    """What the ranks of a run have sent, summed up: times of the slowest rank, losses of the first.

    `checks` are of the first rank alone: gradients are averaged before a step, weights are alike.
    """

    cycles: list[Cycle] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)
    newest: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def add(self, messages: Mapping[int, dict[str, Any]]) -> list[Cycle]:
        """Take the messages of one turn by rank, and return its cycles."""
        ranks = [[Cycle(**one) for one in m["cycles"]] for _, m in sorted(messages.items())]
        turn = [_of_all(same) for same in zip(*ranks, strict=True)]
        first = messages[min(messages)]
        self.cycles += turn
        self.checks += first.pop("checks", [])
        self.said += first["said"]
        self.newest = {**first, "world": len(messages)}
        return turn


def _of_all(ranks: Sequence[Cycle]) -> Cycle:
    slowest = max(ranks, key=lambda cycle: cycle.seconds)
    marks = list(dict.fromkeys(mark for cycle in ranks for mark in cycle.marks))
    return dataclasses.replace(slowest, losses=ranks[0].losses, marks=marks)


class ScriptRun:
    """A run of the script that is paused but for its turns."""

    def __init__(
        self, command: Command, orders: Orders, *, patience: float, folder: Path, scratch: bool
    ) -> None:
        start = folder / "start"
        start.mkdir(parents=True)
        attach.write_start(start)
        where = copy_of(Path.cwd(), folder / "work") if scratch else Path.cwd()
        self._folder = PrivateFolder()
        self._socket = socket.socket(socket.AF_UNIX)
        self._ranks: dict[int, Connection] = {}
        self._world, self._patience = 1, patience
        self.reports = Reports()
        address = str(self._folder.path / "turns")
        self._socket.bind(address)
        self._socket.listen(64)
        environment = {
            "PWD": str(where),
            **({attach.SCRATCH_VARIABLE: str(folder / "work")} if scratch else {}),
            **_TRACKERS_OFF,
            "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),  # it has no switch
            **dataclasses.replace(orders, address=address).variable(),
            "PYTHONPATH": os.pathsep.join([str(start), search_path()]),
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        self._supervisor = start_supervised(
            at_own_port(command.words, orders.number),
            environment,
            cwd=where,
            stderr=subprocess.STDOUT,
            **OUTPUT,
        )
        assert self._supervisor.stdout is not None
        self._output = Relay(self._supervisor.stdout, None, keep=_LAST_LINES)

    def turn(self, cycles: int, look: Callable[[], None] = lambda: None) -> list[Cycle]:
        """Have the script do so many cycles and pause; return them.

        Raises:
            TooShort: it ends before, with exit code 0.
            RunFailed: it fails, or does nothing for as long as the patience lasts.
        """
        self._go_on(cycles)
        messages: dict[int, dict[str, Any]] = {}
        self._deadline = time.monotonic() + self._patience
        while len(messages) < self._world or len(self._ranks) < self._world:
            waiting = [c for rank, c in self._ranks.items() if rank not in messages]
            for ready in wait([self._socket, *waiting], _CHECK_SECONDS):
                if isinstance(ready, Connection):
                    rank = next(rank for rank, c in self._ranks.items() if c is ready)
                    with contextlib.suppress(EOFError, OSError):
                        message = json.loads(ready.recv_bytes())
                        self._deadline = time.monotonic() + self._patience
                        if message:
                            messages[rank] = message
                        continue
                    time.sleep(_CHECK_SECONDS)  # it is ending: the check below says why
                else:
                    self._accept(cycles)
            look()
            self._check()
        turn = self.reports.add(messages)
        send_below(self._supervisor.pid, signal.SIGSTOP)
        return turn

    def _accept(self, cycles: int) -> None:
        connection = Connection(self._socket.accept()[0].detach())
        with contextlib.suppress(EOFError, OSError):
            hello = json.loads(connection.recv_bytes())
            if hello["rank"] in self._ranks:
                raise InputError(
                    "several processes of the command train, each for itself: a trial is of one.",
                    parameter="command",
                )
            self._deadline = time.monotonic() + self._patience
            self._ranks[hello["rank"]] = connection
            self._world = hello["world"]
            connection.send_bytes(json.dumps({"cycles": cycles}).encode())

    def _go_on(self, cycles: int) -> None:
        send_below(self._supervisor.pid, signal.SIGCONT)
        for connection in self._ranks.values():
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps({"cycles": cycles}).encode())

    def _check(self) -> None:
        if (code := self._supervisor.poll()) is not None:
            self._output.close()
            if code == 0:
                raise TooShort
            raise RunFailed(f"the script ended with exit code {code}. {self._last()}")
        if time.monotonic() > self._deadline:
            if not self._ranks:
                raise InputError(
                    f"no training with torch was found in {self._patience:g} s: no optimizer of "
                    "torch has taken a step. --patience=SECONDS waits longer. " + self._last(),
                    parameter="command",
                )
            raise RunFailed(
                f"a step of the script takes {self._patience:g} s or more. --patience=SECONDS "
                f"waits longer. {self._last()}"
            )

    def _last(self) -> str:
        lines = "\n".join(self._output.last)
        return f"Its last lines:\n{lines}" if lines else "It has printed nothing."

    def end(self) -> None:
        """End all processes of the script."""
        end_supervised(self._supervisor)
        self._output.close()
        for connection in self._ranks.values():
            connection.close()
        self._socket.close()
        self._folder.close()
