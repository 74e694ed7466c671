"""Command lines and variables with which the processes of a run are started."""

from __future__ import annotations

import importlib.util
import shlex
from collections.abc import Sequence
from pathlib import Path

from gallery_lib.comm.rendezvous import (
    loopback_interface,
    meeting_arguments,
    on_one_host,
    own_address,
)
from gallery_lib.compiler import cache
from gallery_lib.config import LaunchConfig, TrainConfig, command_line, switches
from gallery_lib.launcher import preflight
from gallery_lib.memory import allocator
from gallery_lib.system.processes import HEARS_NOTICE_VARIABLE, PYTHON, can_fork
from gallery_lib.train.resolved import resolve, threads_of

WORKER = "gallery_lib.launcher.worker"
"""Module that each process of a training run executes."""
_RUN_ID = "gallery"
"""Name of a run at the place where its hosts meet, unless told otherwise."""
_ELASTIC_CONF = "last_call_timeout=5,keep_alive_interval=2,keep_alive_max_attempt=5"
"""Limits of torchrun's rendezvous in seconds. A host counts as lost after ten seconds of silence,
and others are waited for that long after the least number is there.
"""


def torchrun_command(
    launch: LaunchConfig,
    run_dir: str | None,
    meeting: Path | str | None,
    module: str = WORKER,
    words: Sequence[str] = (),
) -> list[str]:
    """Return the torchrun command line of a run, whose processes execute `module` with `words`.

    On one host torchrun meets in the folder `meeting`; None: a new temporary one.
    """
    command = [*PYTHON, "-m", "gallery_lib.launcher.torchrun"]
    command += [f"--nnodes={launch.nnodes}", f"--nproc-per-node={launch.nproc_per_node}"]
    if on_one_host(launch):
        command += meeting_arguments(meeting)
    elif launch.dynamic:
        host, port = preflight.endpoint(launch)
        # torch asks a name server which host this is.
        is_host = int(not preflight.cannot_listen(host, port))
        command += [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={host}:{port}",
            f"--rdzv-id={launch.rdzv_id or _RUN_ID}",
            f"--rdzv-conf={_ELASTIC_CONF},is_host={is_host}",
            f"--local-addr={host if is_host else own_address(host, port)}",
        ]
    else:
        command += [
            f"--node-rank={launch.node_rank}",
            f"--master-addr={launch.master_addr}",
            f"--master-port={launch.master_port or preflight.PORT}",
        ]
    if launch.max_restarts:
        command.append(f"--max-restarts={launch.max_restarts}")
    if run_dir:
        # Without it torchrun leaves a folder in /tmp.
        command.append(f"--log-dir={Path(run_dir) / 'torchrun'}")
    spec = importlib.util.find_spec(module) if can_fork() else None
    if spec is None or spec.origin is None:
        return [*command, "--no-python", *PYTHON, "-u", "-m", module, *words]
    # With fork torch is imported once.
    return [*command, "--start-method=fork", "--run-path", spec.origin, *words]


def environment_of(config: TrainConfig, launch: LaunchConfig) -> dict[str, str]:
    """Return the variables that a run's processes get on top of this process's environment."""
    threads = threads_of(config, launch.nproc_per_node)
    # Every rank imports torch's compiler, which would make a folder of its own.
    variables = {
        "OMP_NUM_THREADS": str(threads),
        **switches.variables_of(config),
        **cache.cache_variables(),
    }
    if launch.hosts == (1, 1):
        variables |= loopback_interface()
    if config.checkpoint_every is not None:
        variables[HEARS_NOTICE_VARIABLE] = str(launch.node_rank)
    if launch.dynamic:
        # torchrun's agents, which share a store otherwise, tell a host that joins later no address.
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
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
    command = torchrun_command(launch, config.run_dir, config.run_dir, words=words)
    return " ".join([*variables, shlex.join(command)])


def shown_command(config: TrainConfig, launch: LaunchConfig) -> str:
    """Return the command line of a run, as a person would type it."""
    model = f"--model={config.model}"  # named even where it is the default
    words = [word for word in command_line.words_of(launch, config) if word != model]
    return shlex.join(["python3", "launch_single_task.py", model, *words])
