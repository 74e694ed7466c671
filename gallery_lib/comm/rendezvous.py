"""Rendezvous of a run's processes, out of reach of anybody else. Needs no torch outside torchrun.

torch's stores listen on every interface and ask nobody for a secret, and torchrun unpickles what it
finds in one. So a run on one host meets in a file of a private folder, which lies in memory: a full
disk would cut the file off, and no process could read it any more. Where a script needs a store,
the store listens on the loopback address. A run on several hosts uses the address that was given
(docs/guides/several_machines.md says what its port can do), or that of a scheduler's job.

Slurm's srun and Kubeflow Trainer start a command on every host and tell it in variables where it
is: srun in `SLURM_*`, Kubeflow Trainer in the `PET_*` that torchrun reads as well. `placed`
completes the launch options from them, so the same command can be given to all hosts. Options that
were given are kept.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from gallery_lib.config import LaunchConfig, options
from gallery_lib.errors import InputError

LOOPBACK = "127.0.0.1"
MEETING_FILE = "torchrun-rendezvous"
"""File in which torchrun has its own rendezvous."""
RENDEZVOUS_FILE = "rendezvous"
"""File in which the processes of a run on one host meet."""
# torchrun's keep-alive in its rendezvous file, which only grows and which nobody else reads.
_SIGN_OF_LIFE_SECONDS = 600


def loopback_interface() -> dict[str, str]:
    """Return the variables that keep gloo and NCCL on the loopback interface.

    A variable that the user has set is left out.
    """
    name = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    return {
        variable: name
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        if name and variable not in os.environ
    }


def meeting_arguments(folder: Path | str | None) -> list[str]:
    """Return the arguments of a torchrun on one host, which meets in a file of `folder`.

    None: in a new temporary file of torchrun's own.
    """
    conf = f"--rdzv-conf=store_type=file,keep_alive_interval={_SIGN_OF_LIFE_SECONDS}"
    endpoint = [f"--rdzv-endpoint={Path(folder) / MEETING_FILE}"] if folder else []
    return ["--rdzv-backend=c10d", *endpoint, conf, f"--local-addr={LOOPBACK}"]


def listening_on(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address alone; port 0 means a free one.

    Raises:
        OSError: where that cannot be.
    """
    return socket.create_server((host, port), family=socket.getaddrinfo(host, port)[0][0])


def listen_where_told() -> None:
    """Make torch's stores in this process listen on their given address alone."""
    import torch.distributed as dist

    class Store(dist.TCPStore):
        def __init__(
            self,
            host_name: str,
            port: int,
            world_size: int | None = None,
            is_master: bool = False,
            *others: Any,
            **more: Any,
        ) -> None:
            if is_master:
                listening = listening_on(host_name, port)
                port, more["master_listen_fd"] = listening.getsockname()[1], listening.detach()
            super().__init__(host_name, port, world_size, is_master, *others, **more)

    dist.TCPStore = Store  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------
# Place of this process in the job of a scheduler


FIRST_PORT, PORTS = 20_000, 10_000
"""Ports of jobs, below those that the system gives to outgoing connections."""
_STEP_STRIDE = 97


class SlurmStep(NamedTuple):
    """Place of this process in the step that srun has started."""

    rank: int
    tasks: int
    nodes: int
    host: str  # of rank 0
    port: int


def number(variable: str) -> int:
    """Return the whole number in an environment variable.

    Raises:
        InputError: where it is missing or something else.
    """
    text = os.environ.get(variable, "")
    if not text.strip().isdecimal():
        raise InputError(
            f"environment variable {variable}={text!r} must be a whole number.", parameter=variable
        )
    return int(text)


def first_host(nodelist: str) -> str:
    """Return the first host of Slurm's list of hosts: `node03` of `node[03-05,09],gpu1`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodelist)
    assert first is not None, nodelist
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", first[0])


def slurm_step() -> SlurmStep | None:
    """Return this process's place in a step of several tasks; None outside one."""
    if not {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_JOB_ID"} <= set(os.environ):
        return None
    tasks = number("SLURM_STEP_NUM_TASKS")
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    if tasks <= 1 or not nodes:
        return None
    step = os.environ.get("SLURM_STEP_ID", "0")
    steps = int(step) if step.isdecimal() else 0
    return SlurmStep(
        rank=number("SLURM_PROCID"),
        tasks=tasks,
        nodes=int(os.environ.get("SLURM_STEP_NUM_NODES", "1")),
        host=first_host(nodes),
        # jobs and steps on one host have different ones
        port=FIRST_PORT + (number("SLURM_JOB_ID") + _STEP_STRIDE * steps) % PORTS,
    )


_POD_SECONDS = 120.0  # in which the name of a pod has to appear


def check_host(host: str, *, own: bool, seconds: float = 0.0) -> None:
    """Refuse a name of host 0 that leads other hosts astray; `own`: this is host 0.

    A pod's name appears after the pod, so it is waited for, `seconds` at most.

    Raises:
        InputError: the name is not known, or is that of the loopback interface.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            address = str(socket.getaddrinfo(host, None)[0][4][0])
            break
        except OSError as error:
            if time.monotonic() >= deadline:
                raise InputError(
                    f"the first host of the job, {host}, is not known here: {error.strerror}. "
                    "Give its address with --master_addr (or MASTER_ADDR).",
                    parameter="master_addr",
                ) from None
            time.sleep(1.0)
    if own and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        raise InputError(
            f"{host} is {address} on that host itself, where no other host can reach it. "
            "Give an address of its network with --master_addr (or MASTER_ADDR).",
            parameter="master_addr",
        )


def placed(launch: LaunchConfig) -> LaunchConfig:
    """Return the options with what a scheduler's variables tell about hosts and processes.

    Raises:
        InputError: for options that contradict the scheduler.
    """
    default = LaunchConfig()
    if launch.node_rank != default.node_rank or "RANK" in os.environ:
        return launch
    step = slurm_step()
    if step is not None:
        told = {
            "nnodes": step.tasks,
            "node_rank": step.rank,
            "master_addr": step.host,
            "master_port": step.port,
        }
        if step.tasks != step.nodes:
            raise InputError(
                f"srun has started {step.tasks} tasks on {step.nodes} nodes. Give srun "
                "--ntasks-per-node=1: each task starts --nproc_per_node processes.",
                parameter="nproc_per_node",
            )
    elif os.environ.get("PET_NNODES", "1") != "1" and "PET_NODE_RANK" in os.environ:
        told = {
            "nnodes": number("PET_NNODES"),
            "node_rank": number("PET_NODE_RANK"),
            "nproc_per_node": number("PET_NPROC_PER_NODE"),
            "master_addr": os.environ.get("PET_MASTER_ADDR", launch.master_addr),
            "master_port": number("PET_MASTER_PORT"),
        }
    else:
        return launch
    if launch.nnodes not in (default.nnodes, told["nnodes"]):
        raise InputError(
            f"nnodes={launch.nnodes}, and the scheduler has started {told['nnodes']} hosts. "
            "Leave --nnodes away: it follows from that.",
            parameter="nnodes",
        )
    left = {n: str(v) for n, v in told.items() if getattr(launch, n) == getattr(default, n)}
    launch = options.from_mapping(LaunchConfig, {**dataclasses.asdict(launch), **left})
    check_host(launch.master_addr, own=launch.node_rank == 0, seconds=0.0 if step else _POD_SECONDS)
    return launch
