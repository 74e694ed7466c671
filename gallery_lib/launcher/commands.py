"""Command lines and variables with which the processes of a run are started."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.comm.rendezvous import loopback_interface
from gallery_lib.compiler import cache
from gallery_lib.config import LaunchConfig, TrainConfig, command_line, switches
from gallery_lib.launcher import preflight
from gallery_lib.memory import allocator
from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE, PYTHON
from gallery_lib.train.resolved import resolve, threads_of

WORKER = "gallery_lib.launcher.worker"
"""Module that each process of a training run executes."""


def command_of(
    launch: LaunchConfig, folder: str, module: str = WORKER, words: Sequence[str] = ()
) -> list[str]:
    """Return the command of a run whose processes execute `module` with `words`.

    On one host they meet in `folder`; torchrun joins several hosts, and writes its logs there.
    """
    if launch.nnodes == 1:
        forked = [*PYTHON, "-m", "gallery_lib.launcher.forked", str(launch.nproc_per_node)]
        return [*forked, folder, module, *words]
    return [
        *(*PYTHON, "-m", "gallery_lib.launcher.torchrun"),
        *(f"--nnodes={launch.nnodes}", f"--nproc-per-node={launch.nproc_per_node}"),
        *(f"--node-rank={launch.node_rank}", f"--master-addr={launch.master_addr}"),
        f"--master-port={launch.master_port or preflight.PORT}",
        f"--log-dir={Path(folder) / 'torchrun'}",
        *("--no-python", *PYTHON, "-u", "-m", module, *words),
    ]


def environment_of(config: TrainConfig, launch: LaunchConfig) -> dict[str, str]:
    """Return the variables that a run's processes get on top of this process's environment."""
    threads = threads_of(config, launch.nproc_per_node)
    # Every rank imports torch's compiler, which would make a folder of its own.
    variables = {
        "OMP_NUM_THREADS": str(threads),
        **switches.variables_of(config),
        **cache.cache_variables(),
    }
    if launch.nnodes == 1:
        variables |= loopback_interface()
    if config.checkpoint_every is not None:
        variables[HEARS_NOTICE_VARIABLE] = str(launch.node_rank)
    if config.compiler_opt:
        variables |= allocator.allocator_variables()
    return variables


def dry_run(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command that `launch` would run, with its environment, as a line for a shell.

    The options stand in the line itself: nothing is written.
    """
    run_dir = config.run_dir or ""
    preflight.check(resolve(config, local_processes=launch.nproc_per_node, run_dir=run_dir), launch)
    variables = [
        f"{name}={shlex.quote(value)}" for name, value in environment_of(config, launch).items()
    ]
    words = command_line.words_of(config)
    command = command_of(launch, config.run_dir or tempfile.gettempdir(), words=words)
    return " ".join([*variables, shlex.join(command)])


def shown_command(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command line of a run, as a person would type it."""
    model = f"--model={config.model}"  # named even where it is the default
    words = [word for word in command_line.words_of(launch, config) if word != model]
    return shlex.join(["python3", "launch_single_task.py", model, *words])
