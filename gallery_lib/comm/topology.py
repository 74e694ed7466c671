"""Which processes of a run share a host: from torchrun's variables, gathered from all."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import cast

import torch.distributed as dist

from gallery_lib.comm import process_group
from gallery_lib.errors import InputError


@dataclass(frozen=True)
class Topology:
    """Ranks by host, in the order of the hosts and of the local ranks on each."""

    hosts: tuple[tuple[int, ...], ...]

    @property
    def uniform(self) -> bool:
        """Whether every host has as many processes."""
        return len({len(ranks) for ranks in self.hosts}) == 1

    def local(self, rank: int) -> tuple[int, ...]:
        """The ranks on the host of `rank`."""
        return next(ranks for ranks in self.hosts if rank in ranks)

    def peers(self, rank: int) -> tuple[int, ...]:
        """The ranks, one on each host, that have the place of `rank` on theirs."""
        place = self.local(rank).index(rank)
        return tuple(ranks[place] for ranks in self.hosts)

    def __str__(self) -> str:
        sizes = [len(ranks) for ranks in self.hosts]
        return (
            f"{len(sizes)} hosts × {sizes[0]} processes"
            if self.uniform
            else f"hosts of {', '.join(map(str, sizes))} processes"
        )


def _host_of_this_process() -> str:
    group = os.environ.get(
        "GROUP_RANK"
    )  # torchrun's number of the host; hosts of a lab share their name
    return f"{socket.gethostname()}/{group or 0}"


def find() -> Topology:
    """The topology of the default process group. A collective call: every rank has to make it."""
    everyone: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(everyone, _host_of_this_process())
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(everyone):
        hosts.setdefault(host, []).append(rank)
    return Topology(tuple(tuple(ranks) for ranks in hosts.values()))


def new_group(ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
    """A group of `ranks`, or of all, with the timeout of the default group; of use to its members only. A collective call of all ranks."""
    timeout = default_timeout()
    return cast(
        dist.ProcessGroup, dist.new_group(None if ranks is None else list(ranks), timeout=timeout)
    )


def default_timeout() -> timedelta:
    """After which communication in the default group fails; torch would give new groups half an hour instead."""
    group = dist.group.WORLD
    assert group is not None
    return group._get_backend(process_group.device()).options._timeout


def groups(topology: Topology) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """New process groups of this rank's host and of its peers on other hosts; None for a group of one. A collective call.

    Raises InputError when hosts have different numbers of processes.
    """
    if not topology.uniform:
        raise InputError(
            f"hierarchical communication needs as many processes on every host; there are {topology}."
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
