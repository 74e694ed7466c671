"""One trial of a script: `run(command, config)` looks, compares in turns, and says what it saw."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.compiler.torch_backend import inductor_options
from gallery_lib.config import TryConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import InputError
from gallery_lib.measure.comparison import pair
from gallery_lib.stats import ratio_of_medians, turn_order
from gallery_lib.system import hardware, machine_load
from gallery_lib.system.processes import interruptible
from gallery_lib.trial import findings, parity, scratch
from gallery_lib.trial.probe import ACCELERATED, COMPILATION, PARTS, PLAIN, Cycle, Orders
from gallery_lib.trial.result import FAULT_SECONDS, Form, Parity, Share, Trial
from gallery_lib.trial.run import Command, Reports, ScriptRun, TooShort

CHECKED = 8
"""First cycles whose losses, gradients and weights are compared."""
_LONGEST_CYCLE = 16
"""Steps of optimizers that may make a cycle."""
_SETTLED = 4
"""Cycles without compilation after which the accelerated form is warm."""
_WARM_UP = 60
_TURN_SECONDS = 1.0
_FEWEST_ROUNDS = 4


@interruptible("the trial")
def run(words: Sequence[str], config: TryConfig, progress: Progress) -> Trial:
    """Try a command both ways, and return what was seen. All its processes end.

    Raises:
        InputError: a command that is no training with torch.
        RunFailed: the script fails.
        Interrupted: the trial is stopped.
    """
    began = time.monotonic()
    with TemporaryDirectory(prefix="gallery-try-") as name:
        folder = Path(name)
        where = scratch.copy_of(Path.cwd(), folder / "work") if config.scratch else Path.cwd()
        command = Command(
            scratch.started(words, config.nproc), where, config.threads, scratch.name_of(words)
        )
        trial = _Trial(command, config, progress, folder).take()
    return dataclasses.replace(trial, seconds=time.monotonic() - began)


class _Trial:
    def __init__(
        self, command: Command, config: TryConfig, progress: Progress, folder: Path
    ) -> None:
        self.command, self.config, self.progress, self.folder = command, config, progress, folder
        self.without = tuple(filter(None, (config.without or "").split(",")))
        inductor_options("cpu", tuple(name for name in self.without if name not in PARTS))
        self.cycle = 1
        self.watch = machine_load.Watch()

    def take(self) -> Trial:
        look = self._look()
        self.cycle = cycle_of(look.newest["order"])
        if self.cycle > 1:
            look = self._look()
        with self._run(PLAIN) as plain, self._run(ACCELERATED) as fast:
            self._turn(plain, CHECKED, "plain")
            found = parity.repeats(plain.reports, look)
            if found.passed:
                self._turn(fast, CHECKED, "accelerated")
                found = self._parity(look, plain.reports, fast.reports)
            if not found.passed:
                return self._result(look, plain, fast, found, [])
            rounds = self._rounds(plain, fast)
            return self._result(look, plain, fast, found, rounds)

    def _parity(self, look: Reports, plain: Reports, fast: Reports) -> Parity:
        if look.newest["drew"]:
            # Compiled code draws other random numbers for dropout, unless told otherwise.
            with self._run(ACCELERATED, torchs_numbers=True) as checked:
                self._turn(checked, CHECKED, "accelerated, with torch's random numbers")
                fast = checked.reports
        return parity.compare(plain, look, fast, self._moved)

    def _moved(self) -> Reports:
        with self._run(PLAIN, moved=True) as run:
            self._turn(run, CHECKED, "plain, moved by a rounding")
            return run.reports

    def _look(self) -> Reports:
        with self._run(PLAIN, looks=True) as run:
            cycles = max(CHECKED, 3 * _LONGEST_CYCLE if self.cycle == 1 else 0)
            with contextlib.suppress(TooShort):
                run.turn(CHECKED, self._shown("a first look"))
                if cycles > CHECKED and len(set(run.reports.newest["order"])) > 1:
                    run.turn(cycles - CHECKED, self._shown("a first look"))
            if not run.reports.newest:
                raise InputError(
                    f"the script ends before it has done {CHECKED} steps of an optimizer: that is "
                    "too short to be compared.",
                    parameter="command",
                )
            return run.reports

    @contextlib.contextmanager
    def _run(self, form: str, **orders: Any) -> Iterator[ScriptRun]:
        given = Orders("", form, self.cycle, CHECKED, without=self.without, **orders)
        run = ScriptRun(self.command, given, patience=self.config.patience, scratch=self.folder)
        try:
            yield run
        finally:
            run.end()

    def _turn(self, run: ScriptRun, cycles: int, what: str) -> list[Cycle]:
        try:
            return run.turn(cycles, self._shown(what))
        except TooShort:
            done = len(run.reports.cycles)
            raise InputError(
                f"the script ends too early: {done} steps were done. A trial needs some more than "
                f"{CHECKED + _WARM_UP}: give it more epochs, or more data.",
                parameter="command",
            ) from None

    def _shown(self, what: str) -> Callable[[], None]:
        return functools.partial(self.progress.show, what)

    def _rounds(self, plain: ScriptRun, fast: ScriptRun) -> list[dict[str, list[Cycle]]]:
        """Warm both up, and let them take turns."""
        runs = {PLAIN: plain, ACCELERATED: fast}
        settled = 0
        for _ in range(_WARM_UP):
            cycles = self._turn(fast, 1, "warm-up")
            settled = 0 if COMPILATION in cycles[0].marks else settled + 1
            if settled == _SETTLED:
                break
        first = statistics.median(c.seconds for c in plain.reports.cycles[2:])
        size = max(3, min(200, math.ceil(_TURN_SECONDS / max(first, 1e-4))))
        self._turn(plain, _SETTLED, "warm-up")
        self.watch.at_pause()
        rounds: list[dict[str, list[Cycle]]] = []
        with contextlib.suppress(TooShort):
            for number in range(self.config.rounds):
                turns = {}
                for name in turn_order(runs, number):
                    label = f"turns: round {number + 1} of {self.config.rounds}"
                    turns[name] = runs[name].turn(size, self._shown(label))
                rounds.append(turns)
                self.watch.at_pause()
        return rounds

    def _result(
        self,
        look: Reports,
        plain: ScriptRun,
        fast: ScriptRun,
        found: Parity,
        rounds: Sequence[Mapping[str, Sequence[Cycle]]],
    ) -> Trial:
        forms: dict[str, Form] = {}
        ratio, notes = None, []
        left_out = unusual(cycle for turns in rounds for cycle in turns[PLAIN])
        if rounds:
            kept = {name: counted([t[name] for t in rounds]) for name in (PLAIN, ACCELERATED)}
            both = [i for i in range(len(rounds)) if kept[PLAIN][i] and kept[ACCELERATED][i]]
            for name, run in ((PLAIN, plain), (ACCELERATED, fast)):
                forms[name] = _form([kept[name][i] for i in both], run.reports.said)
            if len(both) >= _FEWEST_ROUNDS:
                ratio = ratio_of_medians(
                    forms[PLAIN].rounds,
                    forms[ACCELERATED].rounds,
                    process_spread=_spread(forms[PLAIN]),
                )
            if sentence := self.watch.seen().sentence():
                notes.append(sentence)
        if found.passed and ratio is None:
            notes.append(
                f"The script ended after {len(rounds)} rounds of turns; a ratio needs "
                f"{_FEWEST_ROUNDS}. Give it more epochs, or more data."
            )
        facts = look.newest["look"]
        result = Trial(
            command=self.command.shown,
            script=self.command.script,
            environment=hardware.machine_facts(),
            models=facts["models"],
            optimizers=facts["optimizers"],
            cycle=self.cycle,
            parity=found,
            ratio=ratio,
            plain=forms.get(PLAIN),
            accelerated=forms.get(ACCELERATED),
            left_out=dict(left_out),
            findings=[],
            notes=notes,
            seconds=0.0,
        )
        return dataclasses.replace(result, findings=findings.of(result, look))


def cycle_of(order: Sequence[int]) -> int:
    """Return the least number of steps after which the order of optimizers repeats itself.

    Raises:
        InputError: it never does; the roles of the optimizers are unclear.
    """
    for length in range(1, _LONGEST_CYCLE + 1):
        if all(one == other for one, other in zip(order, order[length:], strict=False)):
            return length
    raise InputError(
        f"the script's {len(set(order))} optimizers take their steps in no order that repeats "
        f"itself within {_LONGEST_CYCLE} steps, so what makes a step is unclear.",
        parameter="command",
    )


def unusual(cycles: Iterable[Cycle]) -> Counter[str]:
    """Return how many cycles have something beside training in them, by what it is.

    What happens in more than half of them belongs to a step.
    """
    cycles = list(cycles)
    marks = Counter(mark for cycle in cycles for mark in cycle.marks)
    return Counter({mark: n for mark, n in marks.items() if n <= len(cycles) / 2})


def counted(turns: Sequence[Sequence[Cycle]]) -> list[list[Cycle]]:
    """Return the cycles that count, by turn: not the first, in which batches are waiting."""
    rare = unusual(cycle for turn in turns for cycle in turn)
    return [[c for c in turn[1:] if not rare.keys() & set(c.marks)] for turn in turns]


def _form(rounds: Sequence[Sequence[Cycle]], said: Sequence[str]) -> Form:
    cycles = [cycle for turn in rounds for cycle in turn]
    if not cycles:
        return Form(0.0, [], [], 0.0, list(said))

    def middle(name: str) -> float:
        return statistics.median(getattr(cycle, name) for cycle in cycles)

    whole = middle("seconds")
    names = {
        "loading": "waiting for data",
        "forward": "forward pass",
        "backward": "backward pass",
        "optimizer": "optimizer",
    }
    shares = [Share(text, middle(name)) for name, text in names.items()]
    shares = [share for share in shares if share.seconds > 0]
    rest = max(0.0, whole - sum(share.seconds for share in shares))
    forward = any(share.name == "forward pass" for share in shares)
    shares.append(Share("between them" if forward else "forward pass and between", rest))
    return Form(
        whole,
        [[cycle.seconds for cycle in turn] for turn in rounds],
        shares,
        middle("page_faults"),
        list(said),
    )


def _spread(plain: Form) -> float:
    """Return the relative standard deviation of the ratio over restarts of both (`pair`)."""
    faults = plain.page_faults * FAULT_SECONDS / plain.cycle_seconds if plain.cycle_seconds else 0
    gives_back = faults > 0.01
    return math.hypot(
        pair.GIVES_MEMORY_BACK if gives_back else pair.KEEPS_MEMORY, pair.KEEPS_MEMORY
    )
