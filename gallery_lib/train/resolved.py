"""Options of a run with nothing left open, and the file that carries them to its processes.

`resolve` checks the options once; the task and this machine supply what was left open. The launcher
writes the result to `run-host<n>.json`, whose path is in the variable GALLERY_RUN; `train()`
resolves where nobody has before. Needs no torch but in `resolve`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gallery_lib.checkpoint.folders import AUTO, interval_of, named
from gallery_lib.config import TrainConfig, options
from gallery_lib.errors import InputError
from gallery_lib.system import hardware
from gallery_lib.system.files import read_json, write_json


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(TrainConfig):
    """Checked options of a run, without a None that means "decided later".

    `image_size` or `sequence_length` is None where the task has no such size. Without `max_steps`
    the data and `epochs` decide.
    """

    amp_level: Literal["O0", "O1"]
    batch_size: int
    lr: float
    weight_decay: float
    workers: int
    threads: int
    run_dir: str


def threads_of(config: TrainConfig, local_processes: int) -> int:
    """Return the CPU threads of each process; `local_processes` share this host's cores."""
    return config.threads or max(1, hardware.cores() // local_processes)


def workers_of(config: TrainConfig, local_processes: int) -> int:
    """Return the loading processes of each training process.

    A GPU needs many. Their batches lie in shared memory, of which a container may have 64 MB.
    """
    if config.workers is not None:
        return config.workers
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free >= 2**30
    if hardware.device_type() != "cuda" or not roomy:
        return 1
    return max(1, min(hardware.cores() // local_processes - 1, 16))


def resolve(config: TrainConfig, *, local_processes: int, run_dir: str) -> ResolvedConfig:
    """Return `config`, checked and completed.

    Args:
        config: the options.
        local_processes: training processes on this host.
        run_dir: the run's folder, where `config` names none.

    Raises:
        InputError: for a value that is wrong, options that do not go together, or an unknown task.
    """
    from gallery_lib import tasks  # imports torch
    from gallery_lib.train import precision

    config = tasks.with_sizes(options.checked(config))
    task = tasks.get(config.model)
    if config.checkpoint_every is not None:
        interval_of(config.checkpoint_every)
    if config.resume not in (None, AUTO):
        named(Path(str(config.resume)).expanduser())  # the ranks look at what is in it
    if config.resume == AUTO and not config.run_dir:
        raise InputError(
            "resume=auto needs run_dir: it goes on from the newest checkpoint in there.",
            parameter="resume",
        )
    default = task.optimizer
    completed = {
        "amp_level": precision.chosen_level(config.amp_level, hardware.device_type()),
        "lr": default.lr if config.lr is None else config.lr,
        "weight_decay": (
            default.weight_decay if config.weight_decay is None else config.weight_decay
        ),
        "workers": workers_of(config, local_processes),
        "threads": threads_of(config, local_processes),
        "run_dir": config.run_dir or run_dir,
    }
    return ResolvedConfig(**vars(config) | completed)


# --------------------------------------------------------------------------------------------------
# From the launcher to the processes that train.


RUN_FILE = "run-host{}.json"
RUN_VARIABLE = "GALLERY_RUN"


@dataclass(frozen=True)
class Run:
    """Resolved options of a run, and which of its ranks one host has."""

    config: ResolvedConfig
    world_size: int
    local_processes: int
    host: int = 0
    held: bool = False  # wait after the imports, see launcher/forked.py
    restarts: int = 0  # times that the processes may be started again, from their checkpoints

    @property
    def run_dir(self) -> Path:
        """Return the folder of the run."""
        return Path(self.config.run_dir)

    @property
    def first_rank(self) -> int:
        """Return the global rank of local rank 0."""
        return self.host * self.local_processes

    def write(self) -> dict[str, str]:
        """Write the run's file to its folder; return the variable that leads to it."""
        path = self.run_dir.absolute() / RUN_FILE.format(self.host)
        write_json(path, dataclasses.asdict(self))
        return {RUN_VARIABLE: str(path)}


def this_run() -> Run | None:
    """Return what the launcher has written for this process; None without one."""
    if RUN_VARIABLE not in os.environ:
        return None
    path = Path(os.environ[RUN_VARIABLE])
    return read_json(path, Run, again="Start the run again with the launcher.")
