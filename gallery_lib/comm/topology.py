"""Topology of a run: which processes share a host, gathered from torchrun's variables."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any, cast

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


def new_group() -> dist.ProcessGroup:
    """Return a new process group of all ranks with the usual timeout. A collective call."""
    timeout = torch_ddp.default_timeout(process_group.device())
    return cast(dist.ProcessGroup, dist.new_group(timeout=timeout))


def groups(topology: Topology) -> list[dist.ProcessGroup | None]:
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
    timeout = torch_ddp.default_timeout(process_group.device())
    own: list[Any] = []
    for family in (topology.hosts, tuple(zip(*topology.hosts, strict=True))):
        every = [list(ranks) for ranks in family]
        several = len(every[0]) > 1
        own.append(dist.new_subgroups_by_enumeration(every, timeout)[0] if several else None)
    return own
