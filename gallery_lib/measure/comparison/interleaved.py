"""Variants of a run that are alive together and take turns, so that machine drift affects them all.

Each has processes and an environment of its own and starts up alone, while the others wait, so that
start-up times are true. Only their imports, which take one core each, go on side by side, as many
as there are cores. They do without torchrun, whose own seconds would only be added. All of it is on
one host.

Then come blocks of steps, in the order A B C, C B A, A B C, …. Last, each variant ends its run, in
turn. A variant that fails ends everything, or only drops out, as the caller asks.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gallery_lib import stats
from gallery_lib.config import LaunchConfig, TrainConfig
from gallery_lib.console.phases import ENDING, IMPORTS, TURNS, Phase
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError, RunFailed
from gallery_lib.launcher.job import Job, start
from gallery_lib.launcher.run_view import RunView
from gallery_lib.measure.comparison import gradient_probe as probe
from gallery_lib.measure.comparison import process_spread
from gallery_lib.measure.comparison.turns import TurnServer
from gallery_lib.measure.comparison.worker import PROBE_FILE, WORKER, Role
from gallery_lib.system import hardware
from gallery_lib.system.processes import now
from gallery_lib.train.results import Results
from gallery_lib.train.run_log import each_step_seconds

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Variant:
    """One way to run: options, with the words of a recipe and environment variables if needed."""

    config: TrainConfig
    recipe: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    counts_traffic: bool = False  # once more, after its last turn
    start_up_limit_seconds: float | None = None  # it is ended after this time; None: wait


@dataclass(frozen=True)
class Turns:
    """Number of steps, and how they are divided into blocks."""

    warmup_steps: int
    rounds: int
    block_steps: int
    probe_batches: int

    @property
    def total_steps(self) -> int:
        """Return the number of steps of each variant."""
        return self.warmup_steps + self.rounds * self.block_steps


@dataclass(frozen=True)
class Measured:
    """Measurement of one variant.

    `rounds` holds its step times in seconds by turn, the first of each left out.
    """

    results: Results
    probe: dict[str, Any]
    rounds: list[list[float]]


def ratio(baseline: Measured, candidate: Measured, confidence: float) -> stats.Ratio:
    """Return baseline time over candidate time, of two variants that took turns.

    The interval allows for the spread between processes.
    """
    spread = process_spread.of_ratio(baseline.results, candidate.results)
    return stats.ratio_of_medians(
        baseline.rounds, candidate.rounds, confidence=confidence, process_spread=spread
    )


def rounds_of(durations: list[float], warmup_steps: int, block_steps: int) -> list[list[float]]:
    """Return step times by turn, without the first step of each turn.

    In that step caches are cold and batches are waiting.
    """
    counted = durations[warmup_steps:]
    return [
        counted[i + 1 : i + block_steps]
        for i in range(0, len(counted) - block_steps + 1, block_steps)
    ]


def folders_of_starts(folder: Path, starts: int) -> list[Path]:
    """Return the folder for the runs of each start: the first is `folder` itself."""
    return [folder, *(folder / f"start-{number}" for number in range(2, starts + 1))]


def configuration(config: TrainConfig, turns: Turns, run_dir: Path) -> TrainConfig:
    """Return the options of a variant's run.

    The run goes on when it diverges: the comparison then says so.
    """
    return dataclasses.replace(
        config,
        run_dir=str(run_dir),
        max_steps=turns.total_steps,
        epochs=None,
        warmup_steps=turns.warmup_steps,
        log_interval=1,
        terminate_on_nan=False,
    )


def reason_of(error: GalleryError) -> str:
    """Return the first line of why a variant did not run, without the run's folder."""
    return re.sub(r"^the run in .* did not finish: ", "", str(error).splitlines()[0])


class _Lineup:
    """The runs that are alive."""

    def __init__(
        self,
        variants: Mapping[str, Variant],
        launch: LaunchConfig,
        turns: Turns,
        progress: Progress,
        label: str,
        dropped: dict[str, GalleryError] | None,
    ) -> None:
        self.variants, self.launch, self.turns, self.progress, self.label, self.dropped = (
            variants,
            launch,
            turns,
            progress,
            label,
            dropped,
        )
        self.world_size = launch.nproc_per_node
        self.server = TurnServer()
        self.jobs: dict[str, Job] = {}
        self.views: dict[str, RunView] = {}
        self._turns_began: float | None = None

    def guarded(self, name: str, action: Callable[[], None]) -> None:
        """Call `action`; if the variant `name` fails, it drops out.

        The error is raised where nothing may drop out.
        """
        try:
            action()
        except GalleryError as error:
            if self.dropped is None:
                raise
            self.dropped[name] = error
            if name in self.jobs:
                self.jobs.pop(name).stop()

    def wait_idle(
        self, name: str, look: Callable[[], None], limit_seconds: float | None = None
    ) -> None:
        """Return when `name` has done its part; call `look` on the way.

        Raises when it has ended instead, or takes longer than the limit.
        """
        began = time.monotonic()

        def check() -> None:
            look()
            if limit_seconds is not None and time.monotonic() - began > limit_seconds:
                raise RunFailed(f"its start-up took longer than the limit of {limit_seconds:.0f} s")
            if not self.jobs[name].running():
                self.jobs[name].result()

        self.server.wait_idle(name, self.world_size, check)

    def begin(self, name: str, variant: Variant, run_dir: Path) -> None:
        """Start the variant `name`; it will wait after its imports."""
        role = Role(
            name,
            self.server.address,
            self.turns.warmup_steps,
            self.turns.block_steps,
            self.turns.probe_batches,
            list(variant.recipe),
            variant.counts_traffic,
        )
        self.jobs[name] = start(
            configuration(variant.config, self.turns, run_dir),
            self.launch,
            module=WORKER,
            environment={**variant.environment, **role.environment()},
            torchrun=False,
            held=True,
        )

    def wait_imported(self, name: str, together: Sequence[str]) -> None:
        """Return when the variant `name` is held after its imports.

        Raises when it has ended instead. `together` are those that import side by side.
        """
        job = self.jobs[name]
        while not job.held():
            self.progress.show(f"{self.label}, {' and '.join(together)}: {IMPORTS}", part=IMPORTS)
            if not job.running():
                job.result()
            time.sleep(_LOOK_SECONDS)

    def warm_up(self, name: str, limit_seconds: float | None) -> None:
        """Let the variant go on, and wait until it has done its warm-up and its probe."""
        variant = self.variants[name]
        own = {"recipe": list(variant.recipe), "environment": dict(variant.environment)}
        view = self.views[name] = self.jobs[name].view(
            self.progress, name=f"{self.label}, {name}", command=own
        )
        view.go_on(Phase(IMPORTS, now()), f"start of {name}")
        self.jobs[name].release()
        self.wait_idle(name, view.look, limit_seconds)

    def take_turn(self, name: str, number: int, of: int) -> None:
        """Let the variant run one block of steps: turn `number`, from 0, of `of`."""
        began = self._turns_began = self._turns_began or now()
        alive = len(self.jobs)

        def look() -> None:
            unit = f"{TURNS}, now {name}"
            self.progress.show(
                f"{self.label}, {TURNS}",
                part=TURNS,
                count=number,
                total=of,
                unit=unit,
                least=alive,
                began=began,
            )

        self.server.go(name)
        look()
        self.wait_idle(name, look)

    def finish(self, name: str, run_dir: Path) -> Measured:
        """Let the variant evaluate, where it is to, and end; return its measurement."""
        job, view = self.jobs[name], self.views[name]
        view.go_on(Phase(ENDING, now()), ENDING)
        self.server.go(name)
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        ended = now()
        results = job.result()
        assert results is not None
        view.keep(ended)
        found = probe.load(run_dir / PROBE_FILE)
        (run_dir / PROBE_FILE).unlink()
        return Measured(
            results,
            found,
            rounds_of(each_step_seconds(run_dir), self.turns.warmup_steps, self.turns.block_steps),
        )

    def close(self) -> None:
        """End everything that still runs."""
        self.server.close()
        for job in self.jobs.values():
            job.stop()


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
) -> dict[str, Measured]:
    """Run the variants in turns, each in a run directory of its name below `folder`.

    Args:
        variants: what to run, by name.
        launch: how the processes are started.
        turns: numbers of steps and rounds.
        folder: parent of the run directories.
        progress: where to show what is going on.
        label: name shown before it.
        dropped: where given, receives the variants that fail, with their error, and the others go
            on. Otherwise the error is raised.
        at_pause: called before the first turn and after each round of turns, when every variant
            waits.

    Raises:
        InputError: for options that make no sense.
        RunFailed: when a run fails.
    """
    runs = _Lineup(variants, launch, turns, progress, label, dropped)
    measured: dict[str, Measured] = {}
    try:
        names = list(variants)
        at_once = hardware.cores()
        for group in (names[i : i + at_once] for i in range(0, len(names), at_once)):
            for name in group:
                begin = functools.partial(runs.begin, name, variants[name], folder / name)
                runs.guarded(name, begin)
            for name in [name for name in group if name in runs.jobs]:
                runs.guarded(name, functools.partial(runs.wait_imported, name, together=group))
            for name in [name for name in group if name in runs.jobs]:
                runs.guarded(
                    name,
                    functools.partial(runs.warm_up, name, variants[name].start_up_limit_seconds),
                )
        at_pause()
        for number in range(turns.rounds):
            order = list(runs.jobs) if number % 2 == 0 else list(reversed(runs.jobs))
            for place, name in enumerate(order, number * len(order)):
                runs.guarded(
                    name, functools.partial(runs.take_turn, name, place, turns.rounds * len(order))
                )
            at_pause()
        for name in list(runs.jobs):

            def finish(name: str = name) -> None:
                measured[name] = runs.finish(name, folder / name)

            runs.guarded(name, finish)
    finally:
        runs.close()
    return measured
