"""Place and rendezvous of this process in a scheduler's job: Slurm's srun, Kubeflow Trainer.

Both start a command on every host and tell it in variables where it is: srun in `SLURM_*`, Kubeflow
Trainer in the `PET_*` that torchrun reads as well. `placed` completes the launch options from them,
so the same command can be given to all hosts. Options that were given are kept. Needs no torch.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import os
import re
import socket
import time
from typing import NamedTuple

from gallery_lib.config import LaunchConfig, options
from gallery_lib.errors import InputError

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


_POD_SECONDS = 120.0
"""Time in which the name of a pod has to appear."""


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
    if launch.node_rank != LaunchConfig().node_rank or "RANK" in os.environ:
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
    default = LaunchConfig()
    if launch.nnodes not in (default.nnodes, told["nnodes"]):
        raise InputError(
            f"nnodes={launch.nnodes}, and the scheduler has started {told['nnodes']} hosts. "
            "Leave --nnodes away: it follows from that.",
            parameter="nnodes",
        )
    kept = dataclasses.asdict(launch)
    left = {n: str(v) for n, v in told.items() if kept[n] == dataclasses.asdict(default)[n]}
    launch = options.from_mapping(LaunchConfig, {**kept, **left})
    check_host(launch.master_addr, own=launch.node_rank == 0, seconds=0.0 if step else _POD_SECONDS)
    return launch
