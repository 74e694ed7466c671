"""Execution of one notebook: papermill in its own process and session, under the supervisor.

The supervisor ends every descendant (kernel, torchrun, workers, loaders) when papermill ends, on
request, and when this process is gone for whatever reason. A notebook has one deadline and one
memory limit. The limit covers the bytes of all its processes together, with shared pages counted
once. The limit is watched, not enforced by Linux, since enforcement takes rights that a user seldom
has. So a process can exceed the limit for a tenth of a second, and a new process for a second.

Jupyter chooses a kernel's ports before the kernel binds them, so another process can be quicker. A
kernel that never started for that reason alone is started again: nothing of the notebook has been
executed by then.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Literal

import psutil
import yaml

from gallery_lib.config import BatchConfig
from gallery_lib.console.phases import PHASES_FILE, TRAINING, TURNS, read_phases
from gallery_lib.notebooks.batch import evidence
from gallery_lib.notebooks.batch.evidence import LOG_FILE, RUNS_FOLDER, Ended, Outcome
from gallery_lib.notebooks.batch.plan import Planned
from gallery_lib.notebooks.batch.shares import Share
from gallery_lib.system.exit_codes import shell_exit_code
from gallery_lib.system.processes import end_supervised, start_supervised
from gallery_lib.train.run_log import last_step

LOOK_FOR_PROCESSES_SECONDS = 1.0
"""Interval at which a watched notebook's processes are listed anew.

Listing the processes takes milliseconds; asking one of them takes microseconds.
"""
LOOK_FOR_KERNEL_SECONDS = 0.5
"""Interval at which a notebook's log is read until the first cell has begun."""
KERNEL_STARTS = 3
PARAMETERS_FILE = "parameters.yaml"


def _held_bytes(process: psutil.Process, *, shared_once: bool = False) -> int:
    """Return the resident memory of a process; 0 once the process is gone.

    With `shared_once`, the size of shared pages is divided among their processes (PSS). This takes
    longer.
    """
    with contextlib.suppress(psutil.Error):
        if not shared_once:
            return process.memory_info().rss
        full = process.memory_full_info()
        return getattr(full, "pss", full.uss)  # only Linux reports the PSS
    return 0


def _run_at_work(folder: Path) -> Path | None:
    """Return the directory of the run below `folder` that is at work; None without one.

    Among the runs that have not ended, it is the one with the newest phase.
    """
    begun = {
        file.parent: phases[-1].began
        for file in folder.rglob(PHASES_FILE)
        if (phases := read_phases(file.parent))
    }
    alive = [run_dir for run_dir in begun if not (run_dir / "results.json").exists()]
    return max(alive, key=begun.__getitem__, default=None)


def progress(folder: Path, cells: int) -> str:
    """Return the progress of the notebook in `folder`, which has `cells` cells.

    For example: `cell 5 of 24, training, step 40 of 66`.
    """
    cell = evidence.started_cell(evidence.read_log(folder))
    if cell is None:
        return "starting"
    text = f"cell {cell} of {cells}"
    run_dir = _run_at_work(folder / RUNS_FOLDER)
    if run_dir is None:
        return text
    phase, step = read_phases(run_dir)[-1], last_step(run_dir)
    counted = phase.name in (TRAINING, TURNS) and step
    steps = f", step {step} of {evidence.asked_steps(run_dir / 'config.json')}" if counted else ""
    return f"{text}, {phase.label}{steps}"


class Execution:
    """Owner of the processes of one notebook.

    `stop` ends all of them, and so does the end of this process.
    """

    def __init__(self, planned: Planned, folder: Path, config: BatchConfig, share: Share) -> None:
        """Create the notebook's folder and start papermill on the given share of the machine."""
        self.planned, self.folder, self.config, self.share = planned, folder, config, share
        self.executed = folder / f"{planned.name}.ipynb"
        folder.mkdir(parents=True)
        # In YAML the values keep their types.
        (folder / PARAMETERS_FILE).write_text(yaml.safe_dump(planned.parameters))
        command = [
            sys.executable,
            "-m",
            "papermill",
            str(planned.path),
            str(self.executed),
            "-f",
            str(folder / PARAMETERS_FILE),
        ]
        command += ["--cwd", str(planned.path.parent), "--log-output", "--no-progress-bar"]
        own = {
            "GALLERY_RUNS_DIR": str(folder / RUNS_FOLDER),
            "PYTHONUNBUFFERED": "1",
        }
        self._command = [*share.prefix, *command]
        self._environment = {**own, **share.environment}
        self._oom_kills_before = evidence.oom_kills()
        self._ended_by: Literal["timeout", "out of memory", "not run"] | None = None
        self._because = ""
        self._processes: list[psutil.Process] = []
        self._listed = 0.0
        self.kernel_starts = 0
        self._start()

    def _start(self) -> None:
        self.kernel_starts += 1
        self._kernel_lives, self._log_read = False, 0.0
        self._began = time.monotonic()
        with (self.folder / LOG_FILE).open("w") as log:
            self._process = start_supervised(
                self._command, self._environment, stdout=log, stderr=log
            )

    @property
    def seconds(self) -> float:
        """Return the seconds since the last start."""
        return time.monotonic() - self._began

    def running(self) -> bool:
        """Return whether the notebook still runs.

        Ends the notebook if it exceeds its deadline or memory limit, and restarts it if its kernel
        lost a port.
        """
        if self._kernel_lost_a_port():
            end_supervised(self._process)
            log = self.folder / LOG_FILE
            log.rename(log.with_stem(f"{log.stem}-{self.kernel_starts}"))
            self._start()
        if self._process.poll() is not None:
            return False
        if self.config.deadline is not None and self.seconds > self.config.deadline:
            self.stop("timeout", f"still running at its deadline of {self.config.deadline:g} s")
        elif self.config.memory_limit is not None:
            self._hold_to(self.config.memory_limit)
        return self._process.poll() is None

    def _kernel_lost_a_port(self) -> bool:
        ended = self._process.poll() is not None
        if self._kernel_lives or self._ended_by or self.kernel_starts == KERNEL_STARTS:
            return False
        if not ended and time.monotonic() - self._log_read < LOOK_FOR_KERNEL_SECONDS:
            return False
        self._log_read = time.monotonic()
        log = evidence.read_log(self.folder)
        self._kernel_lives = evidence.started_cell(log) is not None
        return evidence.lost_a_port(log)

    def _hold_to(self, limit_gibibytes: float) -> None:
        limit = limit_gibibytes * 2**30
        if time.monotonic() - self._listed > LOOK_FOR_PROCESSES_SECONDS:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._processes = psutil.Process(self._process.pid).children(recursive=True)
            self._listed = time.monotonic()
        if sum(_held_bytes(process) for process in self._processes) <= limit:
            return
        held = sum(_held_bytes(process, shared_once=True) for process in self._processes)
        if held > limit:
            # Kill the largest process at once: it may go on growing while it is asked to end.
            with contextlib.suppress(psutil.NoSuchProcess):
                max(self._processes, key=_held_bytes).kill()
            self.stop(
                "out of memory",
                (
                    f"its processes held {held / 2**30:.2f} GiB together, and {limit_gibibytes:g} "
                    "are allowed"
                ),
            )

    def progress(self) -> str:
        """Return the notebook's progress in words."""
        return progress(self.folder, self.planned.cells + bool(self.planned.parameters))

    def stop(self, ended_by: Literal["timeout", "out of memory", "not run"], because: str) -> None:
        """End every process of the notebook for the given reason; return when they are gone."""
        if self._process.poll() is not None:
            return
        self._ended_by, self._because = ended_by, because
        end_supervised(self._process)

    def outcome(self) -> Outcome:
        """Wait for the end of the process, and return the outcome according to the evidence."""
        ended = Ended(
            shell_exit_code(self._process.wait()),
            self._ended_by,
            self._because,
            evidence.oom_kills() - self._oom_kills_before,
        )
        return evidence.judge(self.executed, ended, measures=self.planned.measures)
