"""Comparison of unchanged training scripts in turns, by the throughput that they log themselves.

1. The scripts start one after the other. Each is paused when it has compiled and is warm.
2. In each round every script goes on alone for some lines of its log. The order is A B C, then
   C B A, so that drift of the machine falls on all alike.
3. Scripts that start with the same weights and batches must agree in the first loss that they log.
   Otherwise there is no ratio, only the reason. To compare later losses would need float64
   (`parity`): the first steps of an optimizer may amplify rounding at will.
4. The ratio is the median over rounds, with a bootstrap interval (`stats`). A script is one process
   all the time, so the interval is widened by what processes of the same code differ by.

A script is not changed and does not know. SIGSTOP stops every process below its supervisor, and
SIGCONT lets them go on. The supervisor itself is never stopped, so that it can end them at any
time, also when this process is killed. On several GPUs a process may be stopped while a collective
waits for it on another GPU; that GPU then stays busy.

The scripts log lines as those in `notebooks/data_parallel/` do, each with the throughput since the
line before. Two kinds of lines do not count: the first one after a pause, which contains the pause,
and the first one of an epoch, which contains the start of the loader's processes.
"""

from __future__ import annotations

import math
import queue
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.console.text import rate
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.launcher.job import script_command, shown_script_command
from gallery_lib.measure.comparison import pair
from gallery_lib.stats import Ratio, ratio_of_medians, turn_order
from gallery_lib.system import hardware, machine_load
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.system.processes import (
    OUTPUT,
    Relay,
    end_supervised,
    interruptible,
    send_below,
    start_supervised,
)

WARM_UP_LINES = 2
PATIENCE_SECONDS = 600.0  # longest wait for a line of the log; the first line contains compilation
_NO_LOSS = 1e-6  # a loss below this is nothing but rounding
_CHECK_SECONDS = 0.2
_LAST_LINES = 20
_LINE = re.compile(
    r"^Epoch: (\d+), Step: (\d+), Loss: (-?[\d.]+|nan|-?inf), Throughputs: ([\d.]+) samples/s$"
)


@dataclass(frozen=True)
class Script:
    """One of the scripts that are compared; the first one is the baseline."""

    path: Path
    arguments: Sequence[str]
    conditions: str  # its precision and batches
    processes: int | None = None  # of torchrun; None: plain python
    # The script whose first loss it must have, within the relative `tolerance`; None: no other
    # script has its batches.
    starts_like: str | None = None
    tolerance: float = 0.0


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
    return LoggedLine(int(match[1]), int(match[2]), float(match[3]), float(match[4]))


@dataclass(frozen=True)
class ScriptTurns:
    """What the scripts logged in their turns, by name."""

    scripts: Mapping[str, Script]
    first_losses: Mapping[str, float]
    # samples per second of each line that counts, by round
    rounds: Mapping[str, Sequence[Sequence[float]]]
    load: MachineLoad

    @property
    def baseline(self) -> str:
        """Return the name of the baseline."""
        return next(iter(self.scripts))

    def samples_per_second(self, name: str) -> float:
        """Return the median over rounds of a script's throughput."""
        return statistics.median(statistics.median(turn) for turn in self.rounds[name])

    def parity(self, name: str) -> tuple[bool, str]:
        """Return whether a script may be compared with the baseline, and why, as a phrase."""
        script = self.scripts[name]
        like = script.starts_like or self.baseline
        own, expected = self.first_losses[name], self.first_losses[like]
        if not math.isfinite(own + expected + self.first_losses[self.baseline]):
            return False, f"NO: a first loss is not finite ({own}; {like}: {expected})"
        if script.starts_like is None:
            return True, "not checked: no other script has its batches"
        difference = abs(own - expected) / max(abs(expected), _NO_LOSS)
        phrase = f"first loss {difference:.2%} from {like}'s; at most {script.tolerance:.1%}"
        same = difference <= script.tolerance
        return same, phrase if same else f"NO: {phrase}"

    def ratio(self, name: str) -> Ratio | None:
        """Return how many times as fast as the baseline a script is, or None without parity."""
        if not self.parity(name)[0]:
            return None
        seconds = [
            [[1 / rate for rate in turn] for turn in self.rounds[script]]
            for script in (self.baseline, name)
        ]
        # A plain script on a CPU gives its memory back to the kernel; accelerated ones keep it.
        spread = pair.spread_of(not hardware.gpu_count(), False)
        return ratio_of_medians(*seconds, process_spread=math.hypot(spread, self.load.spread))


@interruptible("the comparison in turns")
def compare(
    scripts: Mapping[str, Script],
    *,
    rounds: int,
    lines: int,
    say: Callable[[str], None] = print,
    patience_seconds: float = PATIENCE_SECONDS,
) -> ScriptTurns:
    """Let the scripts take turns, and return what they logged. All their processes end.

    Args:
        scripts: the scripts by name, the baseline first.
        rounds: turns of each script.
        lines: lines of the log that count, in each turn; each epoch must have two or more.
        say: gets a line for each start and each round.
        patience_seconds: longest wait for a line of a script's log.

    Raises:
        InputError: a missing script, or too few devices.
        RunFailed: a script fails, ends too early, or hangs; the message has its last lines.
        Interrupted: the comparison is stopped.
    """
    watch = machine_load.Watch()
    for script in scripts.values():
        if not script.path.is_file():
            raise InputError(f"script={script.path} does not exist.", parameter="script")
    alive: dict[str, _PausedScript] = {}
    first_losses: dict[str, float] = {}
    rates: dict[str, list[list[float]]] = {name: [] for name in scripts}
    with tempfile.TemporaryDirectory(prefix="gallery-scripts-") as folder:
        try:
            for name, script in scripts.items():
                path, processes = script.path, script.processes
                say(f"$ {shown_script_command(path, script.arguments, processes=processes)}")
                begun, logs = time.monotonic(), Path(folder) / f"logs-{len(alive)}"
                logs.mkdir()
                alive[name] = _PausedScript(script, logs, patience_seconds)
                first_losses[name] = alive[name].warm_up(WARM_UP_LINES).loss
                say(f"{name}: warm after {time.monotonic() - begun:.0f} s, now paused")
            watch.at_pause()
            for number in range(rounds):
                for name in turn_order(alive, number):
                    turn = alive[name].turn(lines)
                    rates[name].append([line.samples_per_second for line in turn])
                watch.at_pause()
                newest = [f"{name} {rate(statistics.median(t[-1]))}" for name, t in rates.items()]
                say(f"round {number + 1} of {rounds}: {', '.join(newest)}")
        finally:
            if alive:  # at once: each may take some seconds
                with ThreadPoolExecutor(len(alive)) as pool:
                    list(pool.map(_PausedScript.end, alive.values()))
    load = watch.seen()
    return ScriptTurns(dict(scripts), first_losses, rates, load)


class _PausedScript:
    """A running script, paused but for its turns, once `warm_up` returns.

    `logs` is an empty folder for torchrun's files.
    """

    def __init__(self, script: Script, logs: Path, patience_seconds: float) -> None:
        words, environment = script_command(
            script.path, script.arguments, processes=script.processes, logs=logs
        )
        self._name, self._patience = script.path.name, patience_seconds
        self._lines: queue.SimpleQueue[tuple[float, LoggedLine]] = queue.SimpleQueue()
        self._resumed_at = time.monotonic()
        variables = {**environment, "PYTHONUNBUFFERED": "1"}
        self._supervisor = start_supervised(words, variables, stderr=subprocess.STDOUT, **OUTPUT)
        assert self._supervisor.stdout is not None
        self._output = Relay(self._supervisor.stdout, self._note, keep=_LAST_LINES)

    def _note(self, text: str) -> None:
        if (line := logged(text)) is not None:
            self._lines.put((time.monotonic(), line))

    def warm_up(self, lines: int) -> LoggedLine:
        """Pause the script when it has logged so many lines, and return the first of them."""
        first, *_ = [self._next_line() for _ in range(lines)]
        send_below(self._supervisor.pid, signal.SIGSTOP)
        return first

    def turn(self, lines: int) -> list[LoggedLine]:
        """Let the script go on until it has logged so many lines that count; return these."""
        self._resumed_at = time.monotonic()
        send_below(self._supervisor.pid, signal.SIGCONT)
        line = self._next_line()
        counted: list[LoggedLine] = []
        while len(counted) < lines:
            before, line = line, self._next_line()
            if line.epoch == before.epoch:
                counted.append(line)
        send_below(self._supervisor.pid, signal.SIGSTOP)
        return counted

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
            self._output.close()
            if not self._lines.empty():
                return
            what = f"ended with exit code {self._supervisor.returncode} before its turns were over"
        elif time.monotonic() > deadline:
            what = f"has logged nothing for {self._patience:g} s, and was ended"
        else:
            return
        raise RunFailed(f"{self._name} {what}. Its last lines:\n" + "\n".join(self._output.last))

    def end(self) -> None:
        """End all processes of the script, stopped ones as well."""
        end_supervised(self._supervisor)
        self._output.close()
