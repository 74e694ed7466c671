"""Options of a run with nothing left open.

`resolve` checks the options once; the task and this machine supply what was left open. The launcher
does so for the processes that it starts (`launcher/description.py`), and `train()` does so when
nobody has before. Needs no torch but in `resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gallery_lib.checkpoint.folders import AUTO, places_of
from gallery_lib.config import TrainConfig, options
from gallery_lib.config.intervals import interval_of
from gallery_lib.errors import InputError
from gallery_lib.system import hardware


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
    threads: int
    run_dir: str


def threads_of(config: TrainConfig, local_processes: int) -> int:
    """Return the CPU threads of each process; `local_processes` share this host's cores."""
    return config.threads or max(1, hardware.cores() // local_processes)


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
    from gallery_lib.train import learning_rate, precision, pretrained

    config = tasks.with_sizes(options.checked(config))
    task = tasks.get(config.model).with_label_smoothing(config.label_smoothing)
    learning_rate.check(config, task)
    pretrained.check(config)
    _check_checkpoints(config)
    default = task.optimizer
    completed = {
        "amp_level": precision.chosen_level(config.amp_level, hardware.device_type()),
        "lr": default.lr if config.lr is None else config.lr,
        "weight_decay": (
            default.weight_decay if config.weight_decay is None else config.weight_decay
        ),
        "threads": threads_of(config, local_processes),
        "run_dir": config.run_dir or run_dir,
    }
    return ResolvedConfig(**vars(config) | completed)


def _check_checkpoints(config: TrainConfig) -> None:
    """Raise InputError for options of checkpoints that do not say when, or name none."""
    if config.checkpoint_every is not None:
        interval_of(config.checkpoint_every)
    if config.resume is None:
        return
    if config.resume != AUTO:
        places_of(Path(config.resume).expanduser())  # the ranks look at what is in it
    elif not config.run_dir:
        raise InputError(
            "resume=auto needs run_dir: it goes on from the newest whole checkpoint in there.",
            parameter="resume",
        )
