"""A training script that stays alive and computes only in its turns; it is paused in between.

The script is not changed and does not know. SIGSTOP stops every process below its supervisor, and
SIGCONT lets them go on. The supervisor itself is never stopped, so that it can end them at any
time, also when this process is killed.

The script logs lines as those in `notebooks/data_parallel/` do, each with the throughput since the
line before. Two kinds of lines do not count: the first one after a pause, which contains the pause,
and the first one of an epoch, which contains the start of the loader's processes.
"""

from __future__ import annotations

import contextlib
import queue
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from gallery_lib.errors import RunFailed
from gallery_lib.launcher.script import command_of
from gallery_lib.system.processes import Relay, end_supervised, supervised

PATIENCE_SECONDS = 600.0
"""Longest wait for a line of the log; the first line contains compilation."""
_CHECK_SECONDS = 0.2
_LAST_LINES = 20
_LINES_PER_COUNTED = 10
"""Lines after which a turn is given up, per line that should count."""
_LINE = re.compile(
    r"^Epoch: (\d+), Step: (\d+), Loss: (-?[\d.]+|nan|-?inf), Throughputs: ([\d.]+) samples/s$"
)


@dataclass(frozen=True)
class LoggedLine:
    """One line of a script's log; the throughput is that of all processes."""

    epoch: int
    step: int
    loss: float
    samples_per_second: float


def logged(text: str) -> LoggedLine | None:
    """Return what a line of output logs; None where it is another line."""
    match = _LINE.match(text)
    if match is None:
        return None
    epoch, step, loss, samples_per_second = match.groups()
    return LoggedLine(int(epoch), int(step), float(loss), float(samples_per_second))


@dataclass(frozen=True)
class Command:
    """A script, its arguments, and the number of torchrun's processes; None: plain python."""

    path: Path
    arguments: Sequence[str] = ()
    processes: int | None = None


class PausedScript:
    """A running script, paused but for its turns. `end` ends all its processes.

    Args:
        command: what to run. It starts at once, and goes on until `warm_up` returns.
        logs: an empty folder for torchrun's files.
        patience_seconds: longest wait for a line of its log.

    Raises:
        InputError: the script is missing, or there are not as many devices.
    """

    def __init__(self, command: Command, logs: Path, patience_seconds: float) -> None:
        words, environment = command_of(
            command.path, command.arguments, processes=command.processes, logs=logs
        )
        self._name, self._patience = command.path.name, patience_seconds
        self._lines: queue.SimpleQueue[tuple[float, LoggedLine]] = queue.SimpleQueue()
        self._resumed_at = time.monotonic()
        self._supervisor = supervised(
            words, {**environment, "PYTHONUNBUFFERED": "1"}, stderr=subprocess.STDOUT
        )
        assert self._supervisor.stdout is not None
        self._output = Relay(self._supervisor.stdout, self._note, keep=_LAST_LINES)

    def _note(self, text: str) -> None:
        if (line := logged(text)) is not None:
            self._lines.put((time.monotonic(), line))

    def warm_up(self, lines: int) -> LoggedLine:
        """Pause the script when it has logged so many lines, and return the first of them.

        Raises:
            RunFailed: the script ends or logs nothing for too long.
        """
        first, *_ = [self._next_line() for _ in range(lines)]
        self._pause()
        return first

    def turn(self, lines: int) -> list[LoggedLine]:
        """Let the script go on until it has logged so many lines that count; return these.

        Raises:
            RunFailed: the script ends, logs nothing for too long, or logs no line that counts.
        """
        self._resume()
        line, counted = self._next_line(), []
        for _ in range(_LINES_PER_COUNTED * lines):
            before, line = line, self._next_line()
            if line.epoch == before.epoch:
                counted.append(line)
            if len(counted) == lines:
                self._pause()
                return counted
        raise RunFailed(
            f"{self._name} logs too few lines per epoch, and the first one of an epoch does not "
            "count. Log more often, or use more samples."
        )

    def _next_line(self) -> LoggedLine:
        """Return the next line that has been logged since the script was resumed."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                at, line = self._lines.get(timeout=_CHECK_SECONDS)
            except queue.Empty:
                self._check(deadline)
                continue
            if at >= self._resumed_at:  # else it was logged while the script was being stopped
                return line

    def _check(self, deadline: float) -> None:
        """Raise RunFailed if the script has ended, or if nothing came until the deadline."""
        if self._supervisor.poll() is not None:
            self._output.wait(2.0)
            if not self._lines.empty():
                return
            what = f"ended with exit code {self._supervisor.returncode} before its turns were over"
        elif time.monotonic() > deadline:
            what = f"has logged nothing for {self._patience:g} s, and was ended"
        else:
            return
        raise RunFailed(f"{self._name} {what}. Its last lines:\n" + "\n".join(self._output.last))

    def _below(self) -> list[psutil.Process]:
        """Return the processes below the supervisor, parents before their children."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._supervisor.pid).children(recursive=True)
        return []

    def _pause(self) -> None:
        stopped: set[psutil.Process] = set()
        # A process may start another before it is stopped itself.
        while running := [process for process in self._below() if process not in stopped]:
            _send(signal.SIGSTOP, running)
            stopped.update(running)

    def _resume(self) -> None:
        processes = self._below()
        self._resumed_at = time.monotonic()
        _send(signal.SIGCONT, processes)

    def end(self) -> None:
        """End all processes of the script, stopped ones as well."""
        end_supervised(self._supervisor)
        self._output.close()


def _send(number: signal.Signals, processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
