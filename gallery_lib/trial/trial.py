"""One trial of a script: `run(command, config)` looks, compares in turns, and says what it saw."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.config import TryConfig
from gallery_lib.console.progress import Progress
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.measure.comparison import pair
from gallery_lib.stats import Ratio, ratio_of_medians, turn_order
from gallery_lib.system import hardware, machine_load
from gallery_lib.system.machine_load import MachineLoad
from gallery_lib.system.processes import interruptible
from gallery_lib.trial import findings, lines, parity, scratch
from gallery_lib.trial.pace import Pace, gives_memory_back
from gallery_lib.trial.probe import (
    ACCELERATED,
    CHECKED,
    COMPILATION,
    COMPILE,
    PARTS,
    PLAIN,
    TECHNIQUES,
    Cycle,
    Orders,
)
from gallery_lib.trial.result import Form, Parity, Share, Trial
from gallery_lib.trial.run import Command, Reports, ScriptRun, TooShort

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
        folder = Path(name).resolve()  # as os.getcwd() has it in the script
        command = Command(scratch.started(words, config.nproc), scratch.name_of(words))
        trial = _Trial(command, config, progress, folder).take()
    change = None
    scripts = [word for word in words if word.endswith(".py")]
    if scripts and trial.verdict == "faster" and trial.processes == 1 and not config.without:
        change = lines.change(Path(scripts[0]), trial)
    return dataclasses.replace(trial, change=change, seconds=time.monotonic() - began)


class _Trial:
    def __init__(
        self, command: Command, config: TryConfig, progress: Progress, folder: Path
    ) -> None:
        self.command, self.config, self.progress, self.folder = command, config, progress, folder
        self.without = tuple(filter(None, (config.without or "").split(",")))
        if passes_left_out := tuple(name for name in self.without if name not in PARTS):
            # It imports Inductor, which takes longer than a trial may wait for nothing.
            from gallery_lib.compiler.torch_backend import inductor_options

            inductor_options("cpu", passes_left_out)
        self.cycle, self.optimizers, self.runs = 1, 0, 0
        self.watch = machine_load.Watch()
        self.pace: Pace | None = None

    def take(self) -> Trial:
        look = self._look()
        self.cycle = cycle_of(look.newest["order"])
        if self.cycle > 1:
            look = self._look()
        self.optimizers = look.newest["optimizers"]
        with self._run(PLAIN) as plain, self._run(ACCELERATED) as fast:
            self._turn(plain, CHECKED, "plain")
            found = parity.repeats(plain.reports, look)
            if found.passed:
                self._turn(fast, CHECKED, "accelerated")
                found = self._parity(look, plain.reports, fast.reports)
                if not found.passed:
                    fast.end()  # others run in its place
                    why = self._culprit(look, plain.reports)
                    found = dataclasses.replace(found, why=f"{found.why}; {why}")
            if not found.passed:
                return self._result(look, {PLAIN: plain, ACCELERATED: fast}, found, [])
            runs = {PLAIN: plain, ACCELERATED: fast}
            with contextlib.ExitStack() as others:
                for part in TECHNIQUES if self.config.techniques else ():
                    run = others.enter_context(self._run(ACCELERATED, part))
                    self._turn(run, CHECKED, f"without {part}")
                    runs[part] = run
                if not on_gpu(look):
                    self.pace = Pace(look.newest["threads"], products_of(look))
                rounds = self._rounds(runs)
                return self._result(look, runs, found, rounds)

    def _parity(self, look: Reports, plain: Reports, fast: Reports) -> Parity:
        if look.newest["drew"]:
            # Compiled code draws other random numbers for dropout, unless told otherwise.
            return self._checked(look, plain)
        return parity.compare(plain, look, fast, self._moved)

    def _checked(
        self, look: Reports, plain: Reports, *without: str, eager: Sequence[str] = ()
    ) -> Parity:
        """Return the parity of a run of its own, whose random numbers are torch's."""
        what = f"accelerated, without {', '.join(without)}" if without else "accelerated, checked"
        with self._run(ACCELERATED, *without, torchs_numbers=True, eager=tuple(eager)) as run:
            self._turn(run, CHECKED, what)
            return parity.compare(plain, look, run.reports, self._moved)

    @functools.cache  # noqa: B019  it lives as long as the trial
    def _moved(self) -> Reports:
        with self._run(PLAIN, moved=True) as run:
            self._turn(run, CHECKED, "plain, moved by a rounding")
            return run.reports

    def _culprit(self, look: Reports, plain: Reports) -> str:
        """Return what to leave out, so that the training is the same; found by halving."""

        def right(*without: str, eager: Sequence[str] = ()) -> bool:
            try:
                return self._checked(look, plain, *without, eager=eager).passed
            except (InputError, RunFailed):
                return False  # the script itself does not run without these

        from gallery_lib.compiler import passes  # imports Inductor

        for part in TECHNIQUES:
            if part != COMPILE and right(part):
                return f"--without={part} is the same training"
        if not right(COMPILE):
            return "no part alone explains it"
        leaves = [name for model in look.newest["look"]["models"] for name in model["leaves"]]
        module = halved(leaves, lambda names: right(eager=names))
        where = f", in {module}" if module else ""
        options = [one.option for one in passes.ORDER if one.option]
        name = halved(options, lambda names: right(*names))
        if name:
            return f"--without={name} is the same training: the fault is in that graph pass{where}"
        return f"--without={COMPILE} is the same training; no graph pass alone explains it{where}"

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
    def _run(self, form: str, *without: str, **orders: Any) -> Iterator[ScriptRun]:
        left_out = (*self.without, *without)
        self.runs += 1
        given = Orders("", form, self.cycle, number=self.runs, without=left_out, **orders)
        folder = self.folder / f"run-{self.runs}"
        run = ScriptRun(
            self.command,
            given,
            patience=self.config.patience,
            folder=folder,
            scratch=self.config.scratch,
        )
        try:
            yield run
        finally:
            run.end()
            shutil.rmtree(folder, ignore_errors=True)

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

    def _rounds(self, runs: Mapping[str, ScriptRun]) -> list[dict[str, list[Cycle]]]:
        """Warm all up, and let them take turns."""
        for name, run in runs.items():
            settled = 0
            for _ in range(_WARM_UP):
                cycles = self._turn(run, 1, f"warm-up, {name}")
                settled = 0 if COMPILATION in cycles[0].marks else settled + 1
                if settled == _SETTLED:
                    break
        warm = statistics.median(c.seconds for c in runs[PLAIN].reports.cycles[-_SETTLED:])
        size = max(3, min(100, math.ceil(_TURN_SECONDS / max(warm, 1e-4))))
        self.watch.at_pause()
        rounds: list[dict[str, list[Cycle]]] = []
        for number in range(self.config.rounds):
            try:
                label = self._shown(f"turns: round {number + 1} of {self.config.rounds}")
                order = turn_order(runs, number)
                rounds.append({name: runs[name].turn(size, label) for name in order})
            except TooShort:
                break
            except RunFailed:
                if len(rounds) < _FEWEST_ROUNDS:
                    raise
                break  # behind its training; what was measured is enough
            self.watch.at_pause()
            if self.pace:
                self.pace.take()
        newest = runs[PLAIN].reports.newest
        if newest["optimizers"] > self.optimizers:
            raise InputError(
                "an optimizer took its first step only after the first "
                f"{CHECKED} steps, so what makes a step is unclear.",
                parameter="command",
            )
        return rounds

    def _limit_share(self, look: Reports) -> float | None:
        """Return the share of the machine's limits that passes of the plain models reach."""
        models = look.newest["look"]["models"]
        if self.pace is None or look.newest["world"] > 1 or any(m["compiled"] for m in models):
            return None
        limit = self.pace.seconds_of(look.newest["work"])
        took = statistics.median(cycle.forward + cycle.backward for cycle in look.cycles)
        return limit / took if limit and took else None

    def _result(
        self,
        look: Reports,
        runs: Mapping[str, ScriptRun],
        found: Parity,
        rounds: Sequence[Mapping[str, Sequence[Cycle]]],
    ) -> Trial:
        forms: dict[str, Form] = {}
        ratio, techniques, notes, pace = None, {}, [], []
        left_out = {
            name: dict(unusual(cycle for turns in rounds for cycle in turns[name]))
            for name in (PLAIN, ACCELERATED)
        }
        load = self.watch.seen() if rounds else MachineLoad(None)
        if rounds:
            kept = {name: counted([t[name] for t in rounds]) for name in runs}
            whole = [i for i in range(len(rounds)) if all(turns[i] for turns in kept.values())]
            for name, run in runs.items():
                # Timed runs have no hooks at models: the look tells what a forward pass takes.
                forward = statistics.median(cycle.forward for cycle in look.cycles[2:])
                forms[name] = _form(
                    [kept[name][i] for i in whole],
                    run.reports.said,
                    forward if name == PLAIN else None,
                )
            pace = [self.pace.rounds[i] for i in whole] if self.pace else [1.0] * len(whole)
            if len(whole) >= _FEWEST_ROUNDS:
                ratio = _ratio(forms[PLAIN], forms[ACCELERATED], load)
                techniques = {
                    part: _ratio(form, forms[ACCELERATED], load)
                    for part, form in forms.items()
                    if part in TECHNIQUES
                }
            if sentence := load.sentence():
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
            models=[{k: v for k, v in one.items() if k != "leaves"} for one in facts["models"]],
            optimizers=facts["optimizers"],
            cycle=self.cycle,
            processes=look.newest["world"],
            threads=look.newest["threads"],
            parity=found,
            ratio=ratio,
            techniques=techniques,
            pace=pace,
            limit_share=self._limit_share(look) if pace else None,
            plain=forms.get(PLAIN),
            accelerated=forms.get(ACCELERATED),
            left_out=left_out,
            findings=[],
            notes=notes,
            change=None,
            seconds=0.0,
        )
        return dataclasses.replace(result, findings=findings.of(result, look, load))


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


def _form(rounds: Sequence[Sequence[Cycle]], said: Sequence[str], forward: float | None) -> Form:
    cycles = [cycle for turn in rounds for cycle in turn]
    if not cycles:
        return Form(0.0, [], [], 0.0, list(said))

    def middle(name: str) -> float:
        return statistics.median(getattr(cycle, name) for cycle in cycles)

    whole = middle("seconds")
    names = {
        "loading": "waiting for data",
        "backward": "backward pass",
        "optimizer": "optimizer",
    }
    shares = [Share(text, middle(name)) for name, text in names.items()]
    shares = [share for share in shares if share.seconds > 0]
    rest = max(0.0, whole - sum(share.seconds for share in shares))
    if forward:
        forward = min(forward, rest)
        shares += [Share("forward pass", forward), Share("between them", rest - forward)]
    else:
        shares.append(Share("forward pass and between", rest))
    return Form(
        whole,
        [[cycle.seconds for cycle in turn] for turn in rounds],
        shares,
        middle("page_faults"),
        list(said),
    )


def _ratio(slower: Form, faster: Form, load: MachineLoad) -> Ratio:
    spread = math.hypot(_spread(slower), load.spread)
    return ratio_of_medians(slower.rounds, faster.rounds, process_spread=spread)


def _spread(plain: Form) -> float:
    """Return the relative standard deviation of the ratio over restarts of both (`pair`)."""
    return pair.spread_of(gives_memory_back(plain), False)


def on_gpu(look: Reports) -> bool:
    """Return whether a model of the script is not on the CPU."""
    return any(model["device"] != "cpu" for model in look.newest["look"]["models"])


def products_of(look: Reports) -> list[str]:
    """Return the types in which the script computes products, beside float32."""
    dtypes = {one["dtype"] for one in look.newest["work"] if one["flops"]}
    return sorted(dtypes & {"bfloat16", "float16", "float64"})


def halved(suspects: Sequence[str], right: Callable[[Sequence[str]], bool]) -> str | None:
    """Return the one suspect without which all is right, by halving; None where there is none."""
    if not suspects or not right(suspects):
        return None
    while len(suspects) > 1:
        half = suspects[: len(suspects) // 2]
        suspects = half if right(half) else suspects[len(half) :]
    return suspects[0] if right(suspects) else None
