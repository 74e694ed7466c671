"""Variants of a run that take turns, so that drift of the machine affects all of them.

First all variants start up. Then come blocks of steps, in the order A B C, C B A,
A B C, …. Last, each variant ends its run, in turn. A variant that fails ends everything, or only
drops out, as the caller asks.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gallery_lib import stats
from gallery_lib.config import LaunchConfig
from gallery_lib.console.phases import ENDING, IMPORTS, TURNS, Phase
from gallery_lib.console.progress import Progress
from gallery_lib.errors import GalleryError, RunFailed
from gallery_lib.launcher.job import Job, RunView, start
from gallery_lib.measure.comparison import gradient_probe as probe
from gallery_lib.measure.comparison.measurement import Measurement, rounds_of
from gallery_lib.measure.comparison.plan import Turns, Variant, configuration
from gallery_lib.measure.comparison.turns import TurnServer
from gallery_lib.measure.comparison.worker import PROBE_FILE, WORKER, Role
from gallery_lib.system import hardware
from gallery_lib.system.processes import now
from gallery_lib.train.run_log import each_step_seconds


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
    lineup = Lineup(variants, launch, turns, folder, progress, label, dropped)
    names, at_once = list(variants), hardware.cores()
    try:
        for first in range(0, len(names), at_once):
            lineup.start_up(names[first : first + at_once])
        at_pause()
        for number in range(turns.rounds):
            lineup.take_round(number)
            at_pause()
        return lineup.finish()
    finally:
        lineup.close()


def reason_of(error: GalleryError) -> str:
    """Return the first line of why a variant did not run, without the run's folder."""
    return re.sub(r"^the run in .*?(?: did not finish)?: ", "", str(error).splitlines()[0])


# --------------------------------------------------------------------------------------------------
# Variants that are alive at the same time: each starts up alone, takes its turns, and ends.
#
# Each has processes and an environment of its own. One starts up while the others wait, so that
# start-up times are true. Only their imports, which take one core each, go on side by side, as
# many as there are cores. They do without torchrun, whose own seconds would only be added. All of
# it is on one host.


_LOOK_SECONDS = 0.1


class Lineup:
    """The variants that are alive; the run directory of each is below `folder`."""

    def __init__(
        self,
        variants: Mapping[str, Variant],
        launch: LaunchConfig,
        turns: Turns,
        folder: Path,
        progress: Progress,
        label: str,
        dropped: dict[str, GalleryError] | None,
    ) -> None:
        self.variants, self.launch, self.turns, self.folder = variants, launch, turns, folder
        self.progress, self.label, self.dropped = progress, label, dropped
        self.server = TurnServer()
        self.jobs: dict[str, Job] = {}
        self.views: dict[str, RunView] = {}
        self._turns_began: float | None = None

    def start_up(self, names: Sequence[str]) -> None:
        """Start these variants; their imports go on side by side, the rest one after the other."""
        for name in names:
            self._guard(name, functools.partial(self._begin, name))
        for name in self._alive(names):
            self._guard(name, functools.partial(self._wait_imported, name, together=names))
        for name in self._alive(names):
            self._guard(name, functools.partial(self._warm_up, name))

    def take_round(self, number: int) -> None:
        """Let each variant run one block of steps, in the order of round `number`, from 0."""
        order = stats.turn_order(self.jobs, number)
        total = self.turns.rounds * len(order)
        for place, name in enumerate(order, number * len(order)):
            self._guard(name, functools.partial(self._take_turn, name, place, total))

    def finish(self) -> dict[str, Measurement]:
        """Let the variants end their runs, in turn; return the measurement of each."""
        measurements: dict[str, Measurement] = {}
        for name in list(self.jobs):

            def finish(name: str = name) -> None:
                measurements[name] = self._finish(name)

            self._guard(name, finish)
        return measurements

    def close(self) -> None:
        """End everything that still runs."""
        self.server.close()
        for job in self.jobs.values():
            job.stop()

    def _alive(self, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self.jobs]

    def _guard(self, name: str, action: Callable[[], None]) -> None:
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

    def _wait_idle(
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

        self.server.wait_idle(name, self.launch.nproc_per_node, check)

    def _begin(self, name: str) -> None:
        """Start the variant `name`; it will wait after its imports."""
        variant = self.variants[name]
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
            configuration(variant.config, self.turns, self.folder / name),
            self.launch,
            module=WORKER,
            environment={**variant.environment, **role.variable()},
            torchrun=False,
            held=True,
        )

    def _wait_imported(self, name: str, together: Sequence[str]) -> None:
        """Return when the variant `name` is held after its imports.

        Raises when it has ended instead. `together` are those that import side by side.
        """
        job = self.jobs[name]
        while not job.held():
            self.progress.show(f"{self.label}, {' and '.join(together)}: {IMPORTS}", part=IMPORTS)
            if not job.running():
                job.result()
            time.sleep(_LOOK_SECONDS)

    def _warm_up(self, name: str) -> None:
        """Let the variant go on, and wait until it has done its warm-up and its probe."""
        variant = self.variants[name]
        view = self.views[name] = self.jobs[name].view(self.progress, name=f"{self.label}, {name}")
        view.go_on(Phase(IMPORTS, now()), f"start of {name}")
        self.jobs[name].release()
        self._wait_idle(name, view.look, variant.start_up_limit_seconds)

    def _take_turn(self, name: str, number: int, total: int) -> None:
        """Let the variant run one block of steps: turn `number`, from 0, of `total`."""
        began = self._turns_began = self._turns_began or now()
        alive = len(self.jobs)

        def look() -> None:
            unit = f"{TURNS}, now {name}"
            self.progress.show(
                f"{self.label}, {TURNS}",
                part=TURNS,
                count=number,
                total=total,
                unit=unit,
                least=alive,
                began=began,
            )

        self.server.go(name)
        look()
        self._wait_idle(name, look)

    def _finish(self, name: str) -> Measurement:
        """Let the variant evaluate, where it is to, and end; return its measurement."""
        job, view, run_dir = self.jobs[name], self.views[name], self.folder / name
        view.go_on(Phase(ENDING, now()), ENDING)
        self.server.go(name)
        while job.running():
            view.look()
            time.sleep(_LOOK_SECONDS)
        results = job.result()
        assert results is not None
        gradients = probe.load(run_dir / PROBE_FILE)
        (run_dir / PROBE_FILE).unlink()
        return Measurement(
            results,
            gradients,
            rounds_of(each_step_seconds(run_dir), self.turns.warmup_steps, self.turns.block_steps),
        )
