"""Faults that are caused at random: signals, kills, stopped processes and damaged caches."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import psutil

from .workspace import Command, workers

END_SECONDS = 45.0
"""Limit for the end of all processes, once the command was told to end."""


@dataclass
class Try:
    """One command, what befell it, and what was wrong."""

    command: str
    fault: str
    moment: float
    """Seconds from the start of the command or, with `file`, from when that file is there."""
    file: str | None = None
    said: list[str] = field(default_factory=list)
    blamed: int | None = None  # the rank that was killed


def _interrupt(chosen: random.Random, command: Command, done: Try) -> None:
    number = chosen.choice([signal.SIGINT, signal.SIGTERM])
    command.process.send_signal(number)


def _kill(chosen: random.Random, command: Command, done: Try) -> None:
    command.process.kill()


def _kill_one(chosen: random.Random, command: Command, done: Try) -> None:
    """Kill any process of the command but the command itself.

    Of two ranks it is known which must be blamed.
    """
    with contextlib.suppress(psutil.Error, IndexError, ProcessLookupError, ValueError):
        watched = done.command == "train, two processes" and command.wait_until(
            lambda: command.workspace.steps() > 0, END_SECONDS
        )
        ranks = workers(command) if watched else []
        if len(ranks) == 2:
            done.blamed = chosen.randrange(2)
            ranks[done.blamed].kill()
            return
        others = [process for process in command.everything() if process.pid != command.process.pid]
        chosen.choice(others).kill()


def _stop_one(chosen: random.Random, command: Command, done: Try) -> None:
    """Suspend a training process.

    Where it is alone, it goes on after 3 seconds. Of two ranks, it stands still for good.
    """
    with contextlib.suppress(psutil.Error, IndexError, ProcessLookupError, ValueError):
        process = chosen.choice(workers(command))
        process.suspend()
        if not done.command.startswith("train, two"):  # the one whose ranks watch one another
            time.sleep(3)
            process.resume()


def _corrupt(chosen: random.Random, command: Command, done: Try) -> None:
    """Cut or overwrite a file of the cache, but for its data."""
    with contextlib.suppress(OSError, IndexError):
        files = [
            path
            for path in command.workspace.cache.rglob("*")
            if path.is_file() and "data" not in path.parts
        ]
        path = chosen.choice(files)
        if chosen.random() < 0.5:
            os.truncate(path, path.stat().st_size // 2)
        else:
            path.write_bytes(os.urandom(300))


def _nothing(chosen: random.Random, command: Command, done: Try) -> None:
    return


Fault = Callable[[random.Random, Command, Try], None]
FAULTS: dict[str, Fault] = {
    "signal": _interrupt,
    "kill": _kill,
    "kill one": _kill_one,
    "stop": _stop_one,
    "close": _nothing,  # the reader of the output goes
    "fill": _nothing,  # the disk of the runs is small
    "corrupt": _corrupt,
    "clock": _nothing,  # it jumps
    "nothing": _nothing,
}
