"""Starts of a run, in a file of its folder that is there before the first checkpoint.

A checkpoint tells what had interrupted the run before it. Nothing else would tell of a start that
is killed before it has saved one. A start counts as soon as its checkpoint is found to fit; one
that ends earlier, or is refused, leaves the file as if it had not been.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gallery_lib.errors import InputError
from gallery_lib.system.files import written_if_possible
from gallery_lib.system.json_files import read_json, write_json
from gallery_lib.train.run_log import last_step

FILE = "interruptions.json"


@dataclass(frozen=True)
class Start:
    """Latest start of a run: its number of processes, and what had interrupted it before."""

    processes: int
    interruptions: list[dict[str, Any]] = field(default_factory=list)
    logged_steps: int = 0
    """Last step that it has logged; 0 before the next start has noted that."""

    def write(self, run_dir: Path) -> None:
        """Write this start to the run's folder in place of the one before."""
        with written_if_possible(run_dir):
            write_json(run_dir / FILE, dataclasses.asdict(self))


@dataclass(frozen=True)
class Earlier:
    """What the folder of a run knows before a start: the start before it, and the steps logged."""

    start: Start | None
    logged_steps: int
    damage: str = ""
    """Why the file of the start before cannot be read; "" where it can, or is not there."""

    def keep(self, run_dir: Path) -> None:
        """Write the steps logged to the file, before the log is begun anew."""
        if self.start is not None:
            dataclasses.replace(self.start, logged_steps=self.logged_steps).write(run_dir)


def earlier(run_dir: Path) -> Earlier:
    """Return what is known of earlier starts of a run, before its log is begun anew."""
    steps = last_step(run_dir)
    try:
        start = read_json(run_dir / FILE, Start, again="It is written anew.")
        return Earlier(start, max(steps, start.logged_steps))
    except FileNotFoundError:
        return Earlier(None, steps)
    except InputError as error:
        return Earlier(None, steps, str(error))


def interruption(
    *, step: int, logged_steps: int, before: int, processes: int, checkpoint: Path | None
) -> dict[str, Any]:
    """Return the entry of `results.json` about one interruption.

    Args:
        step: the step at which the run goes on; 0 without a checkpoint.
        logged_steps: last step that the interrupted run has logged.
        before: its number of processes.
        processes: number of processes that go on.
        checkpoint: what they go on from; None: the run starts again.
    """
    return {
        "step": step,
        "lost_steps": max(0, logged_steps - step),
        "processes_before": before,
        "processes": processes,
        "resumed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "checkpoint": None if checkpoint is None else str(checkpoint),
    }
