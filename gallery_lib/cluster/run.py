"""Run one command on every host of a lab at once, and show the output of all.

The command gets the variables that it needs to find the other hosts. When one fails the others are
ended. All are ended when this process is interrupted or gone.
"""

from __future__ import annotations

import functools
import os
import subprocess
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory
from typing import Any

from gallery_lib.cluster.lab import Lab
from gallery_lib.cluster.network import INTERFACE
from gallery_lib.cluster.state import Host
from gallery_lib.config import LabRunConfig
from gallery_lib.errors import InputError, RunFailed
from gallery_lib.system.processes import OUTPUT, PYTHON, Relay, end_supervised

_PORT = 29400
"""Port on host 0, where the processes meet. Each lab has a network of its own."""
_LOOK_SECONDS = 0.05
_READ_SECONDS = 10


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


def _start(
    lab: Lab, host: Host, command: Sequence[str], config: LabRunConfig, logs: str
) -> subprocess.Popen[Any]:
    torchrun = [
        *(*PYTHON, "-m", "gallery_lib.launcher.torchrun"),
        *(f"--nnodes={len(lab.hosts)}", f"--node-rank={host.number}"),
        *(f"--nproc-per-node={config.nproc_per_node}", f"--master-addr={lab.hosts[0].address}"),
        *(f"--master-port={_PORT}", f"--log-dir={logs}/{host.name}"),
    ]
    return lab.popen(
        host.number,
        [*(torchrun if config.torchrun else ()), *command],
        environment=_variables(lab, host, config),
        stderr=subprocess.STDOUT,
        **OUTPUT,
    )


def _say(name: str, line: str) -> None:
    print(f"{name} | {line.rstrip()}\n", end="", flush=True)  # one write, so that lines stay whole


def run(lab: Lab, command: Sequence[str], config: LabRunConfig) -> None:
    """Run `command` on every host of the lab to its end; show each line behind its host's name.

    Raises:
        InputError: without a command.
        RunFailed: when it fails on a host; the commands on the other hosts have been ended then.
    """
    if not command:
        raise InputError(
            "gallery lab run needs what it is to run, behind two dashes: "
            "gallery lab run -- train.py --lr 0.1",
            parameter="command",
        )
    processes: list[subprocess.Popen[Any]] = []
    readers: list[Relay] = []

    def failed() -> int | None:
        return next((n for n, process in enumerate(processes) if process.poll()), None)

    with TemporaryDirectory(prefix="gallery-lab-") as logs:
        try:
            for host in lab.hosts:
                processes.append(process := _start(lab, host, command, config, logs))
                assert process.stdout is not None
                readers.append(Relay(process.stdout, functools.partial(_say, host.name)))
            while failed() is None and any(one.poll() is None for one in processes):
                time.sleep(_LOOK_SECONDS)
            first = failed()
        finally:
            for process in processes:
                end_supervised(process)
            for reader in readers:
                reader.close(_READ_SECONDS)
    if first is not None:
        others = " The commands on the other hosts have been ended." if len(processes) > 1 else ""
        code = processes[first].returncode
        raise RunFailed(f"{lab.hosts[first].name} ended with exit code {code}.{others}")
