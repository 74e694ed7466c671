"""Description of a run, from its launcher to the processes that train, as a file in its folder.

The launcher checks and completes the options once (`train/resolved.py`). The processes of a host
find the result in `run-host<n>.json`, whose path is in the variable GALLERY_RUN. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.system.json_files import read_json, write_json
from gallery_lib.train.resolved import ResolvedConfig

FILE = "run-host{}.json"
VARIABLE = "GALLERY_RUN"


@dataclass(frozen=True)
class RunDescription:
    """Resolved options of a run, and which of its ranks one host has."""

    config: ResolvedConfig
    world_size: int
    local_processes: int
    host: int = 0
    held: bool = False  # wait after the imports, see forked.py
    restarts: bool = False  # the processes may be started again, from their checkpoints

    @property
    def run_dir(self) -> Path:
        """Return the folder of the run."""
        return Path(self.config.run_dir)

    @property
    def first_rank(self) -> int:
        """Return the global rank of local rank 0."""
        return self.host * self.local_processes

    def write(self) -> dict[str, str]:
        """Write the description to the run's folder; return the variable that leads to it."""
        path = self.run_dir.absolute() / FILE.format(self.host)
        write_json(path, dataclasses.asdict(self))
        return {VARIABLE: str(path)}


def of_this_run() -> RunDescription | None:
    """Return the description that the launcher has written for this process; None without one."""
    if VARIABLE not in os.environ:
        return None
    path = Path(os.environ[VARIABLE])
    return read_json(path, RunDescription, again="Start the run again with the launcher.")
