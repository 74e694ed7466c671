"""Run a command on every host of a lab at once, and show the output of all.

The command gets the variables that it needs to find the other hosts. When one fails the others are
ended. All are ended when this process is interrupted or gone.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.cluster.lab import Lab
from gallery_lib.cluster.network import INTERFACE
from gallery_lib.cluster.state import Host
from gallery_lib.config import LabRunConfig
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.processes import PYTHON, Relay, end_supervised

_LOOK_SECONDS = 0.05
_READ_SECONDS = 10
_MERGED = {
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "text": True,
    "errors": "replace",
}


def _check(command: Sequence[str], config: LabRunConfig) -> None:
    """Raise InputError for what can be known to fail before a process is started."""
    if not command:
        example = "-- train.py --lr 0.1" if config.torchrun else "-- hostname"
        raise InputError(
            "gallery lab run needs what it is to run, behind two dashes: "
            f"gallery lab run {example}",
            parameter="command",
        )
    if not config.torchrun:
        if shutil.which(command[0]) is None:
            raise InputError(
                f"the command `{command[0]}` is not on this machine.", parameter="command"
            )
    elif command[0] not in ("-m", "--module") and not Path(command[0]).is_file():
        hint = (
            " A command that is no Python script: "
            f"gallery lab run --no-torchrun -- {shlex.join(command)}"
        )
        raise InputError(f"the script {command[0]} does not exist.{hint}", parameter="command")


def host_variables(lab: Lab, host: Host, config: LabRunConfig) -> dict[str, str]:
    """Return the variables of a command on `host`."""
    processes = config.nproc_per_node if config.torchrun else 1
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, int(host.cpus // processes)))
    return {
        "NODE_RANK": str(host.number),
        "NNODES": str(len(lab.hosts)),
        "MASTER_ADDR": lab.hosts[0].address,
        "MASTER_PORT": str(config.master_port),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": threads,
        # hosts have no name server, and torch warns of that at each connection
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        "PYTHONUNBUFFERED": "1",
    }


def torchrun(lab: Lab, host: Host, config: LabRunConfig, logs: str) -> list[str]:
    """Return the words before a script that torchrun is to start on `host`."""
    return [
        *[*PYTHON, "-m", "gallery_lib.cluster.torchrun"],
        *[
            f"--nnodes={len(lab.hosts)}",
            f"--node-rank={host.number}",
            f"--nproc-per-node={config.nproc_per_node}",
        ],
        *[
            f"--master-addr={lab.hosts[0].address}",
            f"--master-port={config.master_port}",
            f"--log-dir={logs}",
        ],
    ]


def _pass_on(process: subprocess.Popen[Any], name: str, turn: threading.Lock) -> Relay:
    """Print the process's output, each line behind the name of its host."""

    def say(line: str) -> None:
        with turn:
            print(f"{name} | {line.rstrip()}", flush=True)

    assert process.stdout is not None
    return Relay(process.stdout, say)


def run(lab: Lab, command: Sequence[str], config: LabRunConfig) -> None:
    """Run `command` on every host of the lab to its end.

    Raises:
        InputError: when the command cannot be started.
        RunFailed: when it fails on a host; the commands on the other hosts have been ended then.
    """
    _check(command, config)
    processes: list[subprocess.Popen[Any]] = []
    readers: list[Relay] = []
    turn = threading.Lock()
    with (
        TemporaryDirectory(prefix="gallery-lab-") as logs,
        ThreadPoolExecutor(len(lab.hosts)) as pool,
    ):
        try:
            for host in lab.hosts:
                before = (
                    torchrun(lab, host, config, f"{logs}/{host.name}") if config.torchrun else []
                )
                variables = host_variables(lab, host, config)
                process = lab.popen(
                    host.number, [*before, *command], environment=variables, **_MERGED
                )
                processes.append(process)
                readers.append(_pass_on(process, host.name, turn))
            failed = None
            while (
                failed is None
                and not any(reader.failure for reader in readers)
                and any(process.poll() is None for process in processes)
            ):
                time.sleep(_LOOK_SECONDS)
                failed = next(
                    (number for number, process in enumerate(processes) if process.poll()), None
                )
        finally:
            list(pool.map(end_supervised, processes))
            for reader in readers:
                reader.wait(_READ_SECONDS)
    if problem := next((reader.failure for reader in readers if reader.failure), None):
        reason = (
            "nobody reads what the hosts say any more"
            if isinstance(problem, BrokenPipeError)
            else f"what the hosts say cannot be written: {problem}"
        )
        raise RunFailed(f"{reason}, so their commands were ended.")
    failed = (
        next((number for number, process in enumerate(processes) if process.returncode), None)
        if failed is None
        else failed
    )
    if failed is not None:
        others = " The commands on the other hosts have been ended." if len(processes) > 1 else ""
        code = processes[failed].returncode
        error = RunFailed(f"{lab.hosts[failed].name} ended with exit code {code}.{others}")
        if code == InputError.exit_code:  # by which a command says that its input was wrong
            error.exit_code = code
        raise error
