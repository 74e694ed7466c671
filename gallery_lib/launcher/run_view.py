"""What somebody who waits for a run sees: the phase that it is in, on a Progress, with what earlier runs lead to expect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gallery_lib.console.expected_durations import Durations
from gallery_lib.console.phases import COMPILING, Phase, read_phases, seconds_by_phase
from gallery_lib.console.progress import Progress
from gallery_lib.train.run_log import last_step

_SHORTEST_SECONDS = 0.05


class RunView:
    """Shows the phases of one run. It looks at the run's directory alone, so it costs the run nothing.

    Args:
        before: what is going on until the run notes a phase.
        command: what the run is; earlier runs of the same command are the grounds for estimates.
        compiler_cache: the folder that Inductor keeps compiled code in.
        name: of the run, where there are several.
        part: under which name all its phases are added up; each under its own when left out.
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
        """Show `before` until the run notes a later phase; from now on its phases are added up under `part`."""
        self._last, self._part = before, part

    def look(self) -> None:
        """Show the phases that have begun since the last look, less those that were over at once, or that the last one goes on."""
        new = [phase for phase in read_phases(self._run_dir) if phase.began > self._last.began] or [
            self._last
        ]
        ends = [*(phase.began for phase in new[1:]), math.inf]
        for phase, end in zip(new, ends, strict=True):
            if end - phase.began >= _SHORTEST_SECONDS:
                self._show(phase)
        self._last = new[-1]

    def keep(self, ended: float) -> None:
        """Keep how long the phases of the run took, which went well and ended then."""
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
