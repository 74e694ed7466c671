"""Progress display of a run: its phase, read from the run's directory."""

from __future__ import annotations

import math
from pathlib import Path

from gallery_lib.config import LaunchConfig
from gallery_lib.console.phases import IMPORTS, Phase, read_phases
from gallery_lib.console.progress import Progress
from gallery_lib.train.run_log import last_step

_SHORTEST_SECONDS = 0.05


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
        name: of the run, where there are several.
        part: name under which the times of all phases are added up; None: each under its own.
    """

    def __init__(
        self,
        progress: Progress,
        run_dir: Path,
        before: Phase,
        *,
        name: str = "",
        part: str | None = None,
    ) -> None:
        self._progress, self._run_dir = progress, run_dir
        self._prefix = f"{name}: " if name else ""
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

    def _show(self, phase: Phase) -> None:
        counted = phase.total is not None
        self._progress.show(
            self._prefix + phase.label,
            part=self._part or phase.name,
            count=max(phase.count, last_step(self._run_dir)) if counted else phase.count,
            total=phase.total,
            first=phase.count,
            began=phase.began,
        )
