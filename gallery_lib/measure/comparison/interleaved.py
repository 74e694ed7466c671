"""Variants of a run that take turns, so that drift of the machine affects all of them.

First all variants start up. Then come blocks of steps, in the order A B C, C B A,
A B C, …. Last, each variant ends its run, in turn. A variant that fails ends everything, or only
drops out, as the caller asks.

Each has processes and an environment of its own. One starts up while the others wait, so that
start-up times are true. Only their imports go on side by side. They do without torchrun, whose own
seconds would only be added. All of it is on one host.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gallery_lib import stats
from gallery_lib.config import CompareConfig, LaunchConfig, TrainConfig
from gallery_lib.console.progress import ENDING, IMPORTS, TURNS, Phase, Progress
from gallery_lib.errors import GalleryError
from gallery_lib.launcher.job import Job, RunView, start
from gallery_lib.measure.comparison.worker import (
    PROBE_BATCHES,
    PROBE_FILE,
    WORKER,
    Role,
    TurnServer,
)
from gallery_lib.system import hardware
from gallery_lib.system.processes import now
from gallery_lib.train.results import Results, each_step_seconds

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Variant:
    """One way to run: options, with the words of a recipe and environment variables if needed."""

    config: TrainConfig
    recipe: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Turns:
    """Number of steps, and how they are divided into blocks."""

    warmup_steps: int
    rounds: int
    block_steps: int

    @classmethod
    def of(cls, config: TrainConfig, compare: CompareConfig) -> Turns:
        """Return the turns of a comparison whose baseline runs with `config`."""
        # The probe has the batch of the first step after the warm-up as well.
        warmup = max(config.warmup_steps, compare.parity_steps, PROBE_BATCHES - 1)
        return cls(warmup, compare.rounds, compare.block_steps)


def configuration(config: TrainConfig, turns: Turns, run_dir: Path) -> TrainConfig:
    """Return the options of a variant's run, which goes on when it diverges."""
    steps = turns.warmup_steps + turns.rounds * turns.block_steps
    return dataclasses.replace(
        config,
        run_dir=str(run_dir),
        max_steps=steps,
        epochs=None,
        warmup_steps=turns.warmup_steps,
        log_interval=steps if hardware.gpu_count() else 1,  # on CUDA, a line waits for the device
        terminate_on_nan=False,
    )


@dataclass(frozen=True)
class Measurement:
    """Measurement of one variant that took turns."""

    results: Results
    probe: dict[str, Any]
    rounds: list[list[float]]  # step times in seconds by turn, the first of each left out


def rounds_of(durations: list[float], turns: Turns) -> list[list[float]]:
    """Return step times by whole turns, without the first step of each turn.

    In that step caches are cold and batches are waiting.
    """
    counted, size = durations[turns.warmup_steps :], turns.block_steps
    return [counted[i + 1 : i + size] for i in range(0, len(counted) - size + 1, size)]


def take_turns(
    variants: Mapping[str, Variant],
    launch: LaunchConfig,
    turns: Turns,
    folder: Path,
    progress: Progress,
    label: str,
    *,
    dropped: dict[str, GalleryError] | None = None,
    at_pause: Callable[[], None] = lambda: None,
) -> dict[str, Measurement]:
    """Run the variants in turns, each in a run directory of its name below `folder`.

    Progress shows `label` before what is going on. `at_pause` is called before the first turn and
    after each round of turns, when every variant waits. `dropped`, where given, receives the
    variants that fail, with their error, and the others go on. Otherwise the error is raised.

    Raises:
        InputError: for options that make no sense.
        RunFailed: when a run fails.
    """
    lineup = _Lineup(variants, launch, turns, folder, progress, label, dropped)
    names, at_once = list(variants), hardware.cores()
    try:
        for first in range(0, len(names), at_once):  # more would wait for cores in their start-up
            for action in (lineup.begin, lineup.wait_imported, lineup.warm_up):
                lineup.each(names[first : first + at_once], action)
        at_pause()
        for number in range(turns.rounds):
            lineup.each(stats.turn_order(lineup.jobs, number), lineup.take_turn)
            at_pause()
        lineup.each(names, lineup.finish)
        return lineup.measurements
    finally:
        lineup.close()


def reason_of(error: GalleryError) -> str:
    """Return the first line of why a variant did not run, without the run's folder."""
    return re.sub(r"^the run in .*?(?: did not finish)?: ", "", str(error).splitlines()[0])


@dataclass
class _Lineup:
    """The variants that are alive; the run directory of each is below `folder`."""

    variants: Mapping[str, Variant]
    launch: LaunchConfig
    turns: Turns
    folder: Path
    progress: Progress
    label: str
    dropped: dict[str, GalleryError] | None
    server: TurnServer = field(default_factory=TurnServer)
    jobs: dict[str, Job] = field(default_factory=dict)
    views: dict[str, RunView] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    turns_taken: int = 0
    turns_began: float = 0.0

    def each(self, names: Iterable[str], action: Callable[[str], None]) -> None:
        """Call `action` for each of these variants that is alive; one that fails drops out."""
        for name in names:
            if name in (self.dropped or ()):
                continue
            try:
                action(name)
            except GalleryError as error:
                if self.dropped is None:
                    raise
                self.dropped[name] = error
                if name in self.jobs:
                    self.jobs.pop(name).stop()

    def close(self) -> None:
        self.server.close()
        for job in self.jobs.values():
            job.stop()

    def begin(self, name: str) -> None:
        """Start the variant `name`; it will wait after its imports."""
        variant, turns = self.variants[name], self.turns
        role = Role(
            name,
            self.server.address,
            turns.warmup_steps,
            turns.block_steps,
            list(variant.recipe),
        )
        self.jobs[name] = start(
            configuration(variant.config, turns, self.folder / name),
            self.launch,
            module=WORKER,
            environment={**variant.environment, **role.variable()},
            held=True,
        )

    def wait_imported(self, name: str) -> None:
        """Return when the variant `name` is held after its imports; raise when it has ended."""
        job = self.jobs[name]
        while not job.held():
            self.progress.show(f"{self.label}: {IMPORTS}")
            if not job.running():
                job.result()
            time.sleep(_LOOK_SECONDS)

    def warm_up(self, name: str) -> None:
        """Let the variant go on, and wait until it has done its warm-up and its probe."""
        view = self.views[name] = self.jobs[name].view(self.progress, f"{self.label}, {name}")
        view.go_on(Phase(IMPORTS, now()))
        self.jobs[name].release()
        self._wait_idle(name, view.look)

    def take_turn(self, name: str) -> None:
        """Let the variant run one block of steps."""
        self.turns_began = self.turns_began or now()

        def look() -> None:
            self.progress.show(
                f"{self.label}, {TURNS}",
                count=self.turns_taken,
                total=self.turns.rounds * len(self.jobs),
                unit=f"{TURNS}, now {name}",
                began=self.turns_began,
            )

        self.server.go(name)
        look()
        self._wait_idle(name, look)
        self.turns_taken += 1

    def _wait_idle(self, name: str, look: Callable[[], None]) -> None:
        """Return when `name` has done its part; call `look` on the way. Raise when it has ended."""

        def check() -> None:
            look()
            if not self.jobs[name].running():
                self.jobs[name].result()

        self.server.wait_idle(name, self.launch.nproc_per_node, check)

    def finish(self, name: str) -> None:
        """Let the variant evaluate, where it is to, and end; keep its measurement."""
        job, view, run_dir = self.jobs[name], self.views[name], self.folder / name
        view.go_on(Phase(ENDING, now()))
        self.server.go(name)
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        results = job.result()
        assert results is not None
        probe = torch.load(run_dir / PROBE_FILE, weights_only=True)
        (run_dir / PROBE_FILE).unlink()
        rounds = rounds_of(each_step_seconds(run_dir), self.turns)
        self.measurements[name] = Measurement(results, probe, rounds)
