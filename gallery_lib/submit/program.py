"""The program of a job: a task of the gallery, or a script of one's own, with its options.

`launch_single_task.py` trains a task; it is the agent of a host, which starts the processes there.
A script has torchrun for an agent. Whatever a job needs to go on after an end (`going_on`) is here.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.config import TrainConfig, command_line, options
from gallery_lib.errors import InputError, did_you_mean
from gallery_lib.launcher import run_folder
from gallery_lib.system import paths

CHECKPOINT_EVERY = "10min"
"""Interval of a job's checkpoints, unless another was given."""
AGENT = ("-m", "gallery_lib.cluster.torchrun")
"""torchrun that listens on the given address alone and ends with its first failure's exit code."""
_LAUNCH_WITHOUT_CHECKOUT = (
    "-c",
    "import sys; from gallery_lib.cli.main import launch_single_task as main; "
    "sys.exit(main(sys.argv[1:]))",
)


@dataclass(frozen=True)
class Program:
    """Checked program of a job.

    `config` has the options of a task, without its folder; it is None for a script, whose path and
    arguments are `words`.
    """

    name: str
    config: TrainConfig | None
    words: tuple[str, ...] = ()


def is_script(target: str) -> bool:
    """Return whether `target` is a script: `train.py`, not `train.py:TASK`."""
    return target.endswith(".py")


def name_of(target: str) -> str:
    """Return a name for the job of a task or script, of letters, digits and dashes."""
    last = Path(target.rpartition(":")[2] or target).stem
    return re.sub(r"[^A-Za-z0-9]+", "-", last).strip("-") or "job"


def going_on(config: TrainConfig) -> TrainConfig:
    """Return the options with which a job that is started again goes on from its last state."""
    lasting = {"resume": "auto", "checkpoint_every": CHECKPOINT_EVERY}
    values = options.to_mapping(config)
    left = {name: value for name, value in lasting.items() if name in values and not values[name]}
    return options.from_mapping(TrainConfig, {**values, **left})


def of(
    target: str, config: TrainConfig, arguments: Sequence[str], *, check_data: bool = True
) -> Program:
    """Return the program for the word after `gallery submit SCHEDULER`.

    Args:
        target: name of a task, `FILE.py:NAME`, or a script.
        config: the training options; those of a script must be left alone.
        arguments: the words behind `--`, for the script.
        check_data: whether the data folder must be here; a container has its own.

    Raises:
        InputError: for anything that can be known to fail.
    """
    name = name_of(target)
    if is_script(target):
        given = [word for word in command_line.words_of(config) if not word.startswith("--run_dir")]
        if given:
            raise InputError(
                f"{given[0]} is an option of tasks, and {target} is a script. "
                f"Its own arguments stand behind two dashes: {target} -- {' '.join(given)}",
                parameter=given[0].lstrip("-").partition("=")[0].replace("-", "_"),
            )
        if check_data and not Path(target).is_file():
            raise InputError(f"the script {target} does not exist.", parameter="target")
        return Program(name, None, (target, *arguments))
    if arguments:
        raise InputError(
            f"{arguments[0]!r} stands behind two dashes, where a script has its arguments; "
            f"{target} is a task. Leave the dashes away.",
            parameter="arguments",
        )
    return Program(name, _checked(dataclasses.replace(config, model=target), check_data))


def _checked(config: TrainConfig, check_data: bool) -> TrainConfig:
    """Return the options of a task, checked as the run will check them."""
    from gallery_lib import tasks
    from gallery_lib.train.resolved import resolve

    if ":" not in config.model and config.model not in (known := tasks.names()):
        raise InputError(
            f"unknown task `{config.model}`.{did_you_mean(config.model, known)} "
            f"Known: {', '.join(known)}; or FILE.py:NAME, or a script.",
            parameter="model",
        )
    resolved = resolve(config, local_processes=1, run_dir="")
    if check_data:
        tasks.data_of(resolved)
    return going_on(config)


def processes(nproc_per_node: int | None, gpus_per_node: int | None) -> int:
    """Return the processes of each node; raise InputError where GPUs are too few for them."""
    if nproc_per_node and gpus_per_node and nproc_per_node > gpus_per_node:
        raise InputError(
            f"nproc_per_node={nproc_per_node}: {gpus_per_node} GPU(s) are asked for on each node, "
            "and a GPU takes one process.",
            parameter="nproc_per_node",
        )
    return nproc_per_node or gpus_per_node or 1


def folder(run_dir: str | None, target: str) -> Path:
    """Return the absolute folder of a job for a task or script; nothing is made yet.

    Raises:
        InputError: it holds a finished run, or something else.
    """
    if run_dir is None:
        return paths.runs_dir().absolute() / f"{time.strftime('%Y%m%d-%H%M%S')}-{name_of(target)}"
    return run_folder.checked(run_dir, make=False, resume=True).absolute()


def launcher() -> list[str]:
    """Return the words behind Python that start the launcher of tasks on a host."""
    checkout = paths.checkout()
    if checkout is None:
        return list(_LAUNCH_WITHOUT_CHECKOUT)
    return [str(checkout / "launch_single_task.py")]


def python() -> str:
    """Return the Python of the job, which is this one."""
    return sys.executable
