"""Which process this is among those of the run, and the process group that joins them (torchrun's variables)."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from gallery_lib.processes import RENDEZVOUS_VARIABLE

T = TypeVar("T")


def rank() -> int:
    """This process's number, from 0."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """Training processes of the run, over all hosts."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def device() -> torch.device:
    """The device of this process: the GPU of its local rank, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(chosen)
    return chosen


def ensure_initialized(timeout_seconds: float = 600.0) -> None:
    """Join the run's process group, if it has more than one process and this one has not joined yet."""
    if world_size() > 1 and not dist.is_initialized():
        chosen = device()
        meeting_point = os.environ.get(RENDEZVOUS_VARIABLE)
        dist.init_process_group(
            backend="nccl" if chosen.type == "cuda" else "gloo",
            init_method=meeting_point,
            rank=rank() if meeting_point else -1,
            world_size=world_size() if meeting_point else -1,
            timeout=timedelta(seconds=timeout_seconds),
            device_id=chosen if chosen.type == "cuda" else None,
        )


def ensure_group_of_one() -> None:
    """A group for a run of one process, so that scripts may ask `torch.distributed` for their rank also when alone."""
    if world_size() > 1 or not dist.is_available() or dist.is_initialized():
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend=backend, store=dist.HashStore(), rank=0, world_size=1)
    atexit.register(leave)


def leave() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """`values` added up over all ranks, in place; unchanged in a run of one process."""
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def all_ranks(value: T) -> list[T]:
    """Every rank's `value`, by rank, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def from_rank_0(value: T) -> T:
    """Rank 0's `value`, on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]
