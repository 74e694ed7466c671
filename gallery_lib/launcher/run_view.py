"""Progress display of a run: its phase, and the durations that earlier runs lead to expect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gallery_lib.config import LaunchConfig, TrainConfig, options
from gallery_lib.console.expected_durations import Durations
from gallery_lib.console.phases import COMPILING, IMPORTS, Phase, read_phases, seconds_by_phase
from gallery_lib.console.progress import Progress
from gallery_lib.train.run_log import last_step

_SHORTEST_SECONDS = 0.05
_WITHOUT_EFFECT_ON_DURATIONS = (
    "run_dir",
    "seed",
    "tensorboard",
    "log_interval",
    "lr",
    "weight_decay",
    "terminate_on_nan",
    "rank_timeout",
    "checkpoint_every",
    "keep",
    "resume",
)


def identity(
    config: TrainConfig, launch: LaunchConfig, command: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return what runs of equal duration have in common.

    `command` has facts that tell the run from others with the same options.
    """
    values = {
        option: value
        for option, value in options.to_mapping(config).items()
        if option not in _WITHOUT_EFFECT_ON_DURATIONS
    }
    launched = {"processes": launch.nproc_per_node, "hosts": launch.nnodes}
    return {**values, **launched, **(command or {})}


def first_phase(launch: LaunchConfig) -> str:
    """Return the name of the phase that is shown until the run notes one."""
    if launch.node_rank == 0:
        return IMPORTS
    return f"running on host {launch.node_rank}, phases are shown on host 0"


class RunView:
    """View of the phases of one run.

    It reads only the run's directory, so it costs the run nothing.

    Args:
        progress: the display.
        run_dir: the run's directory.
        before: the phase until the run notes one.
        command: the run's identity; earlier runs of the same command are the grounds for estimates.
        compiler_cache: the folder in which Inductor keeps compiled code.
        name: of the run, where there are several.
        part: name under which the times of all phases are added up; None: each under its own.
    """

    def __init__(
        self,
        progress: Progress,
        run_dir: Path,
        before: Phase,
        command: Mapping[str, Any],
        compiler_cache: Path,
        *,
        name: str = "",
        part: str | None = None,
    ) -> None:
        self._progress, self._run_dir = progress, run_dir
        self._prefix = f"{name}: " if name else ""
        self._durations = Durations(command, compiler_cache)
        self.go_on(before, part)

    def go_on(self, before: Phase, part: str | None) -> None:
        """Show `before` until the run notes a later phase.

        From now on its phases are added up under `part`.
        """
        self._last, self._part = before, part

    def look(self) -> None:
        """Show the phases that have begun since the last look.

        Phases that were over at once are left out. Without a new phase the last one is shown again.
        """
        new = [phase for phase in read_phases(self._run_dir) if phase.began > self._last.began] or [
            self._last
        ]
        ends = [*(phase.began for phase in new[1:]), math.inf]
        for phase, end in zip(new, ends, strict=True):
            if end - phase.began >= _SHORTEST_SECONDS:
                self._show(phase)
        self._last = new[-1]

    def keep(self, ended: float) -> None:
        """Store the durations of the phases of a run that ended well at time `ended`."""
        self._durations.keep(seconds_by_phase(read_phases(self._run_dir), ended))

    def _show(self, phase: Phase) -> None:
        label, graphs = phase.label, self._durations.graphs()
        if (
            phase.name == COMPILING
            and phase.number is not None
            and graphs is not None
            and phase.number <= graphs
        ):
            label += f" of {graphs}"
        self._progress.show(
            self._prefix + label,
            part=self._part or phase.name,
            count=phase.count
            if phase.total is None
            else max(phase.count, last_step(self._run_dir)),
            total=phase.total,
            first=phase.count,
            began=phase.began,
            expected=self._durations.expected(phase.label),
        )
