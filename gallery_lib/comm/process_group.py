"""Processes of this run: rank, world size, device, and torch.distributed's default process group.

An initialised `torch.distributed` is the truth. Before that, the variables of the launcher tell:
torchrun's, or those of a scheduler's launcher (Slurm's srun, Open MPI, MPICH and Intel MPI). A
process that none of them describes is alone, and gets no process group. Processes of srun meet on
the first host of their step where MASTER_ADDR and MASTER_PORT name no place.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.comm import rendezvous, torch_ddp
from gallery_lib.errors import InputError
from gallery_lib.system.processes import RENDEZVOUS_VARIABLE

T = TypeVar("T")


_MPI = "OMPI_COMM_WORLD"
TORCHRUN, SRUN = "torchrun", "srun"
# Variables for rank, world size and local rank, by launcher, in the order of precedence: a
# scheduler may have started torchrun itself.
LAUNCHERS = {
    TORCHRUN: ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    # Of the step that srun started: a batch script itself has SLURM_NTASKS, and is one process.
    SRUN: ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "Open MPI": (f"{_MPI}_RANK", f"{_MPI}_SIZE", f"{_MPI}_LOCAL_RANK"),
    "MPI": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
}


class Place(NamedTuple):
    """A process's place in the run, and the launcher that told it."""

    rank: int
    world_size: int
    local_rank: int | None
    launcher: str | None


def place() -> Place:
    """Return this process's place: from torch.distributed, else from its launcher's variables.

    Raises:
        InputError: for variables that contradict each other.
    """
    launcher = next((name for name, names in LAUNCHERS.items() if names[1] in os.environ), None)
    own, size, local = LAUNCHERS[launcher or TORCHRUN]
    local_rank = rendezvous.number(local) if launcher and os.environ.get(local) else None
    if dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size(), local_rank, launcher)
    processes = rendezvous.number(size) if launcher else 1
    if processes <= 1:
        return Place(0, 1, local_rank, launcher)
    if own not in os.environ:
        raise InputError(
            f"{size}={processes} tells of several processes, and {own} is not "
            "set. Start the script with torchrun, or unset it to train in one process.",
            parameter=own,
        )
    rank = rendezvous.number(own)
    if rank >= processes:
        raise InputError(f"{own}={rank} must be below {size}={processes}.", parameter=own)
    return Place(rank, processes, local_rank, launcher)


def rank() -> int:
    """Return this process's number in the run, from 0."""
    return place().rank


def world_size() -> int:
    """Return the number of training processes of the run, over all hosts."""
    return place().world_size


def local_processes() -> int:
    """Return how many of the run's processes share this one's cores. A collective call.

    torchrun says how many there are on a host. A scheduler may have bound each to cores of its own.
    """
    if "LOCAL_WORLD_SIZE" in os.environ:
        return int(os.environ["LOCAL_WORLD_SIZE"])
    own_host, own_cores = own = (socket.gethostname(), os.sched_getaffinity(0))
    return sum(host == own_host and not own_cores.isdisjoint(c) for host, c in all_ranks(own))


def device() -> torch.device:
    """Return this process's device, a GPU where there is one, and make it the current one.

    The GPU is that of the local rank, or the only one that the process sees, as `--gpus-per-task=1`
    of Slurm gives. Processes started by `torch.multiprocessing.spawn` have no local rank. They get
    the GPU that the process has chosen with `torch.cuda.set_device`. Failing that, the rank modulo
    this machine's number of GPUs decides.

    Raises:
        InputError: for a local rank beyond the several GPUs that the process sees.
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    here, visible = place(), torch.cuda.device_count()
    index = here.local_rank
    if index is None:
        index = torch.cuda.current_device() or here.rank % visible
    elif visible == 1:
        index = 0
    elif index >= visible:
        name = LAUNCHERS[here.launcher or TORCHRUN][2]
        raise InputError(
            f"{name}={index}: this process sees {visible} GPUs. Start at most {visible} processes "
            "on this host, or give each one GPU of its own.",
            parameter=name,
        )
    own_device = torch.device("cuda", index)
    torch.cuda.set_device(own_device)
    return own_device


_made_here = False  # this module made the default process group, and so has to end it
# Where the run's processes meet, for as long as this one lives: a rank may leave a group and join
# the next one while others are still in the first.
_store: dist.Store | None = None
_groups_made = 0


def ensure_initialized(timeout_seconds: float = 600.0) -> None:
    """Join the run's process group if a launcher tells of one and this process has not joined.

    A process that torchrun started also joins when it is the only one.

    Raises:
        InputError: where a scheduler tells of several processes and not where they meet.
    """
    global _made_here, _groups_made, _store
    here = place()
    alone = here.launcher != TORCHRUN and here.world_size == 1
    if here.launcher is None or alone or dist.is_initialized():
        return
    limit = timedelta(seconds=timeout_seconds)
    _store = _store or _store_of(here, limit)
    if _store is None:
        return
    _groups_made += 1
    own_device = device()
    # A process that is alone has nobody to send to: it need not wait for NCCL, nor give it memory.
    over_nccl = own_device.type == "cuda" and here.world_size > 1
    dist.init_process_group(
        backend="nccl" if over_nccl else "gloo",
        # torch gives each group the keys of the one before.
        store=dist.PrefixStore(f"gallery_lib/{_groups_made}", _store),
        rank=here.rank,
        world_size=here.world_size,
        timeout=limit,
        device_id=own_device if over_nccl else None,
    )
    _made_here = True


def _store_of(here: Place, limit: timedelta) -> dist.Store | None:
    """Return the store at which the run's processes meet; None: this one is alone.

    Of the tasks of a step of srun rank 0 listens for the others.
    """
    if meeting_file := os.environ.get(RENDEZVOUS_VARIABLE):
        return dist.FileStore(meeting_file, here.world_size)
    if {"MASTER_ADDR", "MASTER_PORT"} <= set(os.environ):
        store, _, _ = next(dist.rendezvous("env://", here.rank, here.world_size, timeout=limit))
        store.set_timeout(limit)
        return store
    if here.world_size == 1:
        return None
    step = rendezvous.slurm_step() if here.launcher == SRUN else None
    if step is None:
        raise InputError(
            f"{here.launcher} started {here.world_size} processes, and MASTER_ADDR and "
            "MASTER_PORT do not say where they meet. Export both (the first host's name and a "
            "free port), or call torch.distributed.init_process_group before accelerate().",
            parameter="MASTER_ADDR",
        )
    host = os.environ.get("MASTER_ADDR") or step.host
    port = int(os.environ.get("MASTER_PORT") or step.port)
    own = step.rank == 0
    rendezvous.check_host(host, own=own and step.nodes > 1)
    listening = rendezvous.listening_on(host, port).detach() if own else None
    return dist.TCPStore(host, port, step.tasks, own, timeout=limit, master_listen_fd=listening)


def leave() -> None:
    """Leave the process group if `ensure_initialized` made it; a user's own group stays."""
    global _made_here
    if _made_here and dist.is_initialized():
        dist.destroy_process_group()
    _made_here = False


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """Return `values` added up over all ranks, in place; unchanged in a run of one process."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def all_ranks(value: T) -> list[T]:
    """Return every rank's `value`, by rank, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def from_rank_0(value: T) -> T:
    """Return rank 0's `value`, on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


# --------------------------------------------------------------------------------------------------
# Topology: which ranks share a host, and process groups by it


@dataclass(frozen=True)
class Topology:
    """Ranks by host, in the order of the hosts and of the local ranks on each."""

    hosts: tuple[tuple[int, ...], ...]

    @property
    def uniform(self) -> bool:
        """Return whether every host has the same number of processes."""
        return len({len(ranks) for ranks in self.hosts}) == 1

    def __str__(self) -> str:
        sizes = [len(ranks) for ranks in self.hosts]
        return (
            f"{len(sizes)} hosts × {sizes[0]} processes"
            if self.uniform
            else f"hosts of {', '.join(map(str, sizes))} processes"
        )


def find_topology() -> Topology:
    """Return the topology of the default process group. A collective call: every rank makes it."""
    everyone: list[str] = [""] * dist.get_world_size()
    # GROUP_RANK is torchrun's number of the host; hosts of a lab share their name.
    here = f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}"
    dist.all_gather_object(everyone, here)
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(everyone):
        hosts.setdefault(host, []).append(rank)
    return Topology(tuple(tuple(ranks) for ranks in hosts.values()))


def averaging_groups(topology: Topology, hierarchical: bool) -> list[dist.ProcessGroup | None]:
    """Return new process groups: of this rank's host, and of its peers on other hosts.

    A group of one is None. Unless `hierarchical`, all ranks are peers. A collective call.

    Raises:
        InputError: when hosts have different numbers of processes.
    """
    timeout = torch_ddp.default_timeout(device())
    if not hierarchical:
        return [None, cast(dist.ProcessGroup, dist.new_group(timeout=timeout))]
    if not topology.uniform:
        raise InputError(
            "hierarchical communication needs as many processes on every host; "
            f"there are {topology}.",
            parameter="hierarchical",
        )
    own: list[Any] = []
    for family in (topology.hosts, tuple(zip(*topology.hosts, strict=True))):
        every = [list(ranks) for ranks in family]
        several = len(every[0]) > 1
        own.append(dist.new_subgroups_by_enumeration(every, timeout)[0] if several else None)
    return own


# --------------------------------------------------------------------------------------------------
# All-gather with gradients, for losses that compare every sample with every other. Such a loss is
# not a mean over samples, so the mean of the ranks' own losses would be another loss. Instead every
# rank gathers what the ranks computed, and computes the same loss from all of it.


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        parts = [torch.empty_like(own) for _ in range(world_size())]
        dist.all_gather(parts, own.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        # Each rank finds gradients through its own part alone. The sum over ranks is wanted, and
        # DistributedDataParallel takes the mean, so gradients are multiplied by the world size.
        return gradient.chunk(world_size())[rank()] * world_size()


def gather_for_common_loss(own: Tensor) -> Tensor:
    """Return `own` [N, …] of every rank in order, as [ranks·N, …].

    It is for a loss that is the same on every rank; N must be the same, too. With
    DistributedDataParallel's averaging, gradients are those of one process with all samples. The
    backward pass needs no communication, since every rank knows the gradient of the whole. A run of
    one process gets `own` itself.
    """
    return _Gather.apply(own) if dist.is_initialized() and world_size() > 1 else own


# --------------------------------------------------------------------------------------------------
# Place in the training: the number of backward passes whose gradients were averaged over the ranks.
# It is the same on all ranks at the same line of a training, whatever one of them does alone in
# between. So it names a pass through the data on all ranks without a message. A thread that reads
# ahead is at no line of the training: it meets another number on each rank.

_averaged = 0
_local = 0
_trainer = 0


def note_averaged() -> None:
    """Count a backward pass whose gradients are being averaged."""
    global _averaged, _local
    _averaged, _local = _averaged + 1, 0


def note_call(averages: bool) -> None:
    """Note a call of the model in a training, by this thread; only some average their gradients."""
    global _local, _trainer
    if averages:
        _trainer = threading.get_ident()
    else:
        _local += 1


def training_place() -> tuple[int, ...]:
    """Return the averaged backward passes, and the calls since whose gradients are accumulated.

    Without any of the latter, there is one number.
    """
    return (_averaged, _local) if _local else (_averaged,)


def trained_elsewhere() -> bool:
    """Return whether another thread than this one trains."""
    return _trainer not in (0, threading.get_ident())
