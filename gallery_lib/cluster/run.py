"""Run one command on every host of a lab at once, and show the output of all.

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

_PORT = 29400
"""Port on host 0, where the processes meet. Each lab has a network of its own."""
_LOOK_SECONDS = 0.05
_READ_SECONDS = 10


def _check(command: Sequence[str], config: LabRunConfig) -> None:
    if not command:
        example = "-- train.py --lr 0.1" if config.torchrun else "-- hostname"
        raise InputError(
            "gallery lab run needs what it is to run, behind two dashes: "
            f"gallery lab run {example}",
            parameter="command",
        )
    if not config.torchrun and shutil.which(command[0]) is None:
        raise InputError(f"the command `{command[0]}` is not on this machine.", parameter="command")
    if config.torchrun and command[0] not in ("-m", "--module") and not Path(command[0]).is_file():
        raise InputError(
            f"the script {command[0]} does not exist. A command that is no Python script: "
            f"gallery lab run --no-torchrun -- {shlex.join(command)}",
            parameter="command",
        )


def _variables(lab: Lab, host: Host, config: LabRunConfig) -> dict[str, str]:
    processes = config.nproc_per_node if config.torchrun else 1
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, int(host.cpus // processes)))
    return {
        "NODE_RANK": str(host.number),
        "NNODES": str(len(lab.hosts)),
        "MASTER_ADDR": lab.hosts[0].address,
        "MASTER_PORT": str(_PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "TP_SOCKET_IFNAME": INTERFACE,
        "NCCL_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": threads,
        # hosts have no name server, and torch warns of that at each connection
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        "PYTHONUNBUFFERED": "1",
    }


def _torchrun(lab: Lab, host: Host, config: LabRunConfig, logs: str) -> list[str]:
    return [
        *(*PYTHON, "-m", "gallery_lib.launcher.torchrun"),
        *(f"--nnodes={len(lab.hosts)}", f"--node-rank={host.number}"),
        *(f"--nproc-per-node={config.nproc_per_node}", f"--master-addr={lab.hosts[0].address}"),
        *(f"--master-port={_PORT}", f"--log-dir={logs}/{host.name}"),
    ]


def _show(process: subprocess.Popen[Any], name: str, turn: threading.Lock) -> Relay:
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
    turn, pipe = threading.Lock(), subprocess.PIPE
    with (
        TemporaryDirectory(prefix="gallery-lab-") as logs,
        ThreadPoolExecutor(len(lab.hosts)) as pool,
    ):
        try:
            for host in lab.hosts:
                words = [*(_torchrun(lab, host, config, logs) if config.torchrun else ()), *command]
                process = lab.popen(
                    host.number,
                    words,
                    environment=_variables(lab, host, config),
                    stdout=pipe,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                )
                processes.append(process)
                readers.append(_show(process, host.name, turn))
            first: int | None = None  # to fail: the others end because of it
            while (
                first is None
                and not any(reader.failure for reader in readers)
                and any(process.poll() is None for process in processes)
            ):
                time.sleep(_LOOK_SECONDS)
                first = next((n for n, process in enumerate(processes) if process.poll()), None)
        finally:
            list(pool.map(end_supervised, processes))
            for reader in readers:
                reader.wait(_READ_SECONDS)
    if problem := next((reader.failure for reader in readers if reader.failure), None):
        unread = isinstance(problem, BrokenPipeError)
        reason = "nobody reads" if unread else f"nothing can be written ({problem}) of"
        raise RunFailed(f"{reason} what the hosts say any more, so their commands were ended.")
    if first is None:
        first = next((n for n, process in enumerate(processes) if process.returncode), None)
    if first is not None:
        others = " The commands on the other hosts have been ended." if len(processes) > 1 else ""
        code = processes[first].returncode
        failure = RunFailed(f"{lab.hosts[first].name} ended with exit code {code}.{others}")
        if code == InputError.exit_code:  # by which a command says that its input was wrong
            failure.exit_code = code
        raise failure
