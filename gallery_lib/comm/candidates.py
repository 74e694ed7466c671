"""Candidates of the tuner: strategies for averaging gradients on these hosts."""

from __future__ import annotations

import dataclasses
import os

import torch.distributed as dist

from gallery_lib.comm import process_group
from gallery_lib.comm.rebuild import DDP
from gallery_lib.comm.shared_memory import FOLDER
from gallery_lib.comm.topology import Topology
from gallery_lib.config import Comm

PLAIN = "ddp"
"""Name of the candidate that is plain DDP."""


def candidates(options: Comm, hosts: Topology) -> dict[str, Comm]:
    """Return the candidates by name, plain DDP first.

    They are lossless, unless `options.wire` asks for another wire format.
    """
    options = dataclasses.replace(options, tune=False)
    # These options decide what training does, not how fast it is.
    fixed = ("static_graph", "find_unused_parameters", "non_finite")
    strategies = {
        PLAIN: Comm(**{name: getattr(options, name) for name in fixed}),
        "views": dataclasses.replace(options, bucket_views=True),
    }
    if options.wire != "powersgd":
        strategies["views, 2 streams"] = dataclasses.replace(options, bucket_views=True, streams=2)
        strategies["small buckets, 2 streams"] = dataclasses.replace(
            options, bucket_views=True, streams=2, bucket_mb=8
        )
        if hosts.uniform and len(hosts.hosts[0]) > 1:
            both = dataclasses.replace(options, bucket_views=True, hierarchical=True)
            strategies |= {
                "hierarchical": both,
                "hierarchical, 2 streams": dataclasses.replace(both, streams=2, bucket_mb=8),
            }
    return strategies


def candidates_with_room(model: DDP, options: Comm, hosts: Topology) -> dict[str, Comm]:
    """Return the candidates for which every host has shared memory. A collective call."""
    strategies = candidates(options, hosts)
    room = process_group.all_ranks(
        {name: _has_room(strategy, hosts, model) for name, strategy in strategies.items()}
    )
    return {
        name: strategy
        for name, strategy in strategies.items()
        if all(on_rank[name] for on_rank in room)
    }


def _has_room(strategy: Comm, hosts: Topology, model: DDP) -> bool:
    """Return whether this host has twice the shared memory that a hierarchical strategy may need.

    Other strategies, and models on CUDA, need none: the result is True.
    """
    if not strategy.hierarchical or model.device.type == "cuda":
        return True
    sizes = [parameter.numel() * parameter.itemsize for parameter in model.module.parameters()]
    cap = int(strategy.bucket_mb * 2**20) if strategy.bucket_mb else model.bucket_bytes_cap
    rows = (len(hosts.local(dist.get_rank())) + 1) * strategy.streams
    try:
        folder = os.statvfs(FOLDER)
    except OSError:
        return False
    return 2 * rows * min(sum(sizes), 3 * cap // 2) < folder.f_bavail * folder.f_frsize
