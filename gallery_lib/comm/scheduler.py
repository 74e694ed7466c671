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
from pathlib import Path
from typing import NamedTuple

from gallery_lib.config import LaunchConfig, TrainConfig, options
from gallery_lib.errors import InputError
from gallery_lib.system import hardware

FIRST_PORT, PORTS = 20_000, 10_000
"""Ports of jobs, below those that the system gives to outgoing connections."""
_STEP_STRIDE = 97
_NAME_SECONDS = 120.0
"""Time for the name of host 0 to become known: a pod's name appears after the pod."""


class SlurmStep(NamedTuple):
    """Place of this process in the step that srun has started."""

    rank: int
    tasks: int
    nodes: int
    local_rank: int
    local_tasks: int  # on this node
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


def tasks_on_node(tasks_per_node: str, node: int) -> int:
    """Return the tasks on a node from Slurm's list of them: 1 of `2(x3),1` and node 3."""
    counts = [
        int(tasks)
        for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks_per_node)
        for _ in range(int(nodes or 1))
    ]
    return counts[min(node, len(counts) - 1)]


def slurm_step() -> SlurmStep | None:
    """Return this process's place in a step of several tasks; None outside one."""
    if "SLURM_STEP_NUM_TASKS" not in os.environ or "SLURM_PROCID" not in os.environ:
        return None
    tasks = number("SLURM_STEP_NUM_TASKS")
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    if tasks <= 1 or not nodes or "SLURM_JOB_ID" not in os.environ:
        return None
    step = os.environ.get("SLURM_STEP_ID", "0")
    steps = int(step) if step.isdecimal() else 0
    per_node = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1")
    return SlurmStep(
        rank=number("SLURM_PROCID"),
        tasks=tasks,
        nodes=int(os.environ.get("SLURM_STEP_NUM_NODES", "1")),
        local_rank=number("SLURM_LOCALID"),
        local_tasks=tasks_on_node(per_node, int(os.environ.get("SLURM_NODEID", "0"))),
        host=first_host(nodes),
        # jobs and steps on one host have different ones
        port=FIRST_PORT + (number("SLURM_JOB_ID") + _STEP_STRIDE * steps) % PORTS,
    )


def check_host(host: str, *, own: bool, seconds: float = 0.0) -> None:
    """Wait up to `seconds` for the name of host 0, and refuse one that leads other hosts astray.

    `own` says whether this is host 0.

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


def placed(config: TrainConfig, launch: LaunchConfig) -> tuple[TrainConfig, LaunchConfig]:
    """Return the options with what a scheduler's variables tell about hosts and processes.

    Raises:
        InputError: for options that contradict the scheduler.
    """
    if launch.node_rank != LaunchConfig().node_rank or "RANK" in os.environ:
        return config, launch
    if step := slurm_step():
        return _in_slurm(config, launch, step)
    if os.environ.get("PET_NNODES", "1") != "1" and "PET_NODE_RANK" in os.environ:
        return config, _in_trainer(launch)
    return config, launch


def _filled(launch: LaunchConfig, **values: object) -> LaunchConfig:
    """Return `launch` with these values for the options that were left at their defaults."""
    defaults, kept = options.to_mapping(LaunchConfig()), options.to_mapping(launch)
    left = {name: str(value) for name, value in values.items() if kept[name] == defaults[name]}
    return options.from_mapping(LaunchConfig, {**kept, **left})


def _check_hosts(launch: LaunchConfig, hosts: int, what: str) -> None:
    if launch.nnodes not in (LaunchConfig().nnodes, hosts):
        raise InputError(
            f"nnodes={launch.nnodes}, and {what}. Leave --nnodes away: it follows from that.",
            parameter="nnodes",
        )


def _in_slurm(
    config: TrainConfig, launch: LaunchConfig, step: SlurmStep
) -> tuple[TrainConfig, LaunchConfig]:
    """Return the options for a task of a step. Each task starts `nproc_per_node` processes."""
    _check_hosts(launch, step.tasks, f"srun has started {step.tasks} tasks")
    if step.local_tasks > 1 and launch.nproc_per_node > 1:
        raise InputError(
            f"nproc_per_node={launch.nproc_per_node}, and srun has started {step.local_tasks} "
            "tasks on this node. Give srun --ntasks-per-node=1, or leave --nproc_per_node away.",
            parameter="nproc_per_node",
        )
    if step.local_tasks > 1:
        _see_own_gpu(step)
        if "SLURM_CPUS_PER_TASK" not in os.environ and config.threads is None:
            threads = max(1, hardware.cores() // step.local_tasks)
            config = dataclasses.replace(config, threads=threads)
    launch = _filled(
        launch,
        nnodes=step.tasks,
        node_rank=step.rank,
        master_addr=step.host,
        master_port=step.port,
    )
    check_host(launch.master_addr, own=step.rank == 0 and step.nodes > 1)
    return config, launch


def _gpus() -> int:
    """Return the number of this host's GPUs. CUDA is not asked: it would keep the answer."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def _see_own_gpu(step: SlurmStep) -> None:
    """Leave this task one GPU where all tasks of the node see all of its GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(gpu) for gpu in range(_gpus())]
    if len(gpus) >= step.local_tasks:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[step.local_rank]


def _in_trainer(launch: LaunchConfig) -> LaunchConfig:
    """Return the options for a pod of a TrainJob."""
    hosts = number("PET_NNODES")
    _check_hosts(launch, hosts, f"the TrainJob has {hosts} nodes (PET_NNODES)")
    processes = os.environ.get("PET_NPROC_PER_NODE", "1")
    if not processes.isdecimal():  # auto, gpu, cpu
        processes = str(max(1, _gpus()))
    launch = _filled(
        launch,
        nnodes=hosts,
        node_rank=number("PET_NODE_RANK"),
        nproc_per_node=processes,
        master_addr=os.environ.get("PET_MASTER_ADDR", launch.master_addr),
        master_port=number("PET_MASTER_PORT"),
    )
    check_host(launch.master_addr, own=launch.node_rank == 0, seconds=_NAME_SECONDS)
    return launch
