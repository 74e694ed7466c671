"""Topology of a run: which processes share a host, gathered from torchrun's variables."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch.distributed as dist

from gallery_lib.comm import process_group, torch_ddp
from gallery_lib.errors import InputError


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


def find() -> Topology:
    """Return the topology of the default process group. A collective call: every rank makes it."""
    everyone: list[str] = [""] * dist.get_world_size()
    # GROUP_RANK is torchrun's number of the host; hosts of a lab share their name.
    here = f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '0')}"
    dist.all_gather_object(everyone, here)
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(everyone):
        hosts.setdefault(host, []).append(rank)
    return Topology(tuple(tuple(ranks) for ranks in hosts.values()))


def new_group(ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
    """Return a new process group of `ranks`, or of all. A collective call of all ranks.

    It has the timeout of the default group, and is of use to its members only.
    """
    timeout = torch_ddp.default_timeout(process_group.device())
    group = dist.new_group(None if ranks is None else list(ranks), timeout=timeout)
    return cast(dist.ProcessGroup, group)


def groups(topology: Topology) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Return new process groups: of this rank's host, and of its peers on other hosts.

    A group of one is None. A collective call.

    Raises:
        InputError: when hosts have different numbers of processes.
    """
    if not topology.uniform:
        raise InputError(
            "hierarchical communication needs as many processes on every host; "
            f"there are {topology}.",
            parameter="hierarchical",
        )
    rank = dist.get_rank()
    own: list[dist.ProcessGroup | None] = []
    for families in (topology.hosts, tuple(zip(*topology.hosts, strict=True))):
        mine = None
        for ranks in families:
            if len(ranks) > 1:
                group = new_group(ranks)
                if rank in ranks:
                    mine = group
        own.append(mine)
    return own[0], own[1]
