"""Comparison of unchanged training scripts in turns, by the throughput that they log themselves.

1. The scripts start one after the other. Each is paused when it has compiled and is warm.
2. In each round every script goes on alone for some lines of its log (`paused_script`). The order
   is A B C, then C B A, so that drift of the machine falls on all alike.
3. Scripts that start with the same weights and batches must agree in the first loss that they log.
   Otherwise there is no ratio, only the reason. To compare later losses would need float64
   (`parity`): the first steps of an optimizer may amplify rounding at will.
4. The ratio is the median over rounds, with a bootstrap interval (`stats`). A script is one process
   all the time, so the interval is widened by what processes of the same code differ by.

The scripts that wait keep their memory, which adds up. On several GPUs a process may be stopped
while a collective waits for it on another GPU; that GPU then stays busy.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.console.table import rate
from gallery_lib.errors import InputError
from gallery_lib.launcher.script import shown_command
from gallery_lib.measure.comparison import process_spread
from gallery_lib.measure.comparison.paused_script import (
    PATIENCE_SECONDS,
    Command,
    LoggedLine,
    PausedScript,
)
from gallery_lib.stats import Ratio, ratio_of_medians, turn_order
from gallery_lib.system import hardware, machine_load
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.system.processes import interruptible

WARM_UP_LINES = 2
LEAST_ROUNDS = 2
_NO_LOSS = 1e-6
"""A loss below this is nothing but rounding."""


@dataclass(frozen=True)
class Script:
    """One of the scripts that are compared; the first one is the baseline.

    `conditions` names its precision and batches. `starts_like` names the script whose first loss
    it must have, within the relative `tolerance`; None: no other script has its batches.
    """

    command: Command
    conditions: str
    starts_like: str | None = None
    tolerance: float = 0.0


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

    @property
    def candidates(self) -> list[str]:
        """Return the names of the other scripts."""
        return [name for name in self.scripts if name != self.baseline]

    @property
    def round_count(self) -> int:
        """Return the number of rounds."""
        return len(self.rounds[self.baseline])

    def samples_per_second(self, name: str) -> float:
        """Return the median over rounds of a script's throughput."""
        return statistics.median(statistics.median(turn) for turn in self.rounds[name])

    def difference(self, name: str) -> float | None:
        """Return how far a script's first loss is from the one it must have, relative to that.

        None: no script has its batches.
        """
        like = self.scripts[name].starts_like
        if like is None:
            return None
        expected = self.first_losses[like]
        return abs(self.first_losses[name] - expected) / max(abs(expected), _NO_LOSS)

    def reason(self, name: str) -> str | None:
        """Return why a script is not compared with the baseline; None where it is."""
        for one in (self.baseline, name):
            if not math.isfinite(self.first_losses[one]):
                return f"the first loss of {one} is not a finite number"
        script, difference = self.scripts[name], self.difference(name)
        if difference is None or difference <= script.tolerance:
            return None
        return (
            f"its first loss is {self.first_losses[name]:.4f}, that of {script.starts_like} is "
            f"{self.first_losses[script.starts_like or '']:.4f}: {difference:.2%} apart, at most "
            f"{script.tolerance:.1%} is allowed"
        )

    def ratio(self, name: str) -> Ratio | None:
        """Return how many times as fast as the baseline a script is, with its interval.

        None: the two are not comparable; `reason` says why.
        """
        if self.reason(name) is not None:
            return None
        baseline, candidate = (_sample_seconds(self.rounds[of]) for of in (self.baseline, name))
        return ratio_of_medians(baseline, candidate, process_spread=_process_spread())


def _sample_seconds(rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[1 / rate for rate in turn] for turn in rounds]


def _process_spread() -> float:
    """Return the relative standard deviation of the ratio over new starts of both scripts.

    A plain script on a CPU gives its memory back to the kernel; the accelerated ones keep it.
    """
    plain = (
        process_spread.KEEPS_MEMORY if hardware.gpu_count() else process_spread.GIVES_MEMORY_BACK
    )
    return math.hypot(plain, process_spread.KEEPS_MEMORY)


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
        lines: lines of the log that count, in each turn.
        say: gets a line for each start and each round.
        patience_seconds: longest wait for a line of a script's log.

    Raises:
        InputError: fewer than two rounds, no line a turn, a missing script, or too few devices.
        RunFailed: a script fails, ends too early, or hangs; the message has its last lines.
        Interrupted: the comparison is stopped.
    """
    if rounds < LEAST_ROUNDS:
        raise InputError(
            f"rounds={rounds}: an interval needs at least {LEAST_ROUNDS}.", parameter="rounds"
        )
    if lines < 1:
        raise InputError(f"lines={lines}: each turn needs at least 1.", parameter="lines")
    watch = machine_load.Watch()
    alive: dict[str, PausedScript] = {}
    first_lines: dict[str, LoggedLine] = {}
    rates: dict[str, list[list[float]]] = {name: [] for name in scripts}
    with tempfile.TemporaryDirectory(prefix="gallery-scripts-") as folder:
        try:
            for name, script in scripts.items():
                first_lines[name] = _started(
                    name, script, Path(folder), alive, say, patience_seconds
                )
            watch.at_pause()
            for number in range(rounds):
                for name in turn_order(alive, number):
                    turn = alive[name].turn(lines)
                    rates[name].append([line.samples_per_second for line in turn])
                watch.at_pause()
                say(f"round {number + 1} of {rounds}: {_in_words(rates)}")
        finally:
            _end(list(alive.values()))
    return ScriptTurns(
        scripts=dict(scripts),
        first_losses={name: line.loss for name, line in first_lines.items()},
        rounds=rates,
        load=watch.seen({name: _sample_seconds(turns) for name, turns in rates.items()}),
    )


def _started(
    name: str,
    script: Script,
    folder: Path,
    alive: dict[str, PausedScript],
    say: Callable[[str], None],
    patience_seconds: float,
) -> LoggedLine:
    """Start a script, add it to those alive, pause it when warm; return its first line."""
    command = script.command
    say(f"$ {shown_command(command.path, command.arguments, processes=command.processes)}")
    begun = time.monotonic()
    logs = folder / f"logs-{len(alive)}"
    logs.mkdir()
    alive[name] = PausedScript(command, logs, patience_seconds)
    first = alive[name].warm_up(WARM_UP_LINES)
    say(f"{name}: warm after {time.monotonic() - begun:.0f} s, now paused")
    return first


def _in_words(rates: Mapping[str, Sequence[Sequence[float]]]) -> str:
    return ", ".join(
        f"{name} {rate(statistics.median(turns[-1]))}" for name, turns in rates.items()
    )


def _end(scripts: Sequence[PausedScript]) -> None:
    """End all scripts at once: each may take some seconds."""
    if scripts:
        with ThreadPoolExecutor(len(scripts)) as pool:
            list(pool.map(PausedScript.end, scripts))
