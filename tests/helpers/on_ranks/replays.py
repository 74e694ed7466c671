"""Steps of recorded timelines, replayed."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.config import Comm
from gallery_lib.measure.replay import Replay, Timeline
from on_ranks.models import DDP


def replayed(values: dict[str, Any], timeline: Timeline, late_seconds: float) -> dict[str, Any]:
    """Replay steps in which rank 0 is late with its backward pass.

    Returns the worst error of a mean gradient, the seconds of the last step, and the sums of the
    gradients.
    """
    own = (
        dataclasses.replace(timeline, forward_seconds=late_seconds)
        if dist.get_rank() == 0
        else timeline
    )
    replay = Replay(own, seed=dist.get_rank())
    model = accelerate_ddp(DDP(replay, init_sync=False), Comm(**values))
    for _ in range(3):
        seconds = replay.train_step(model)
    of_ranks = [Replay(timeline, seed=rank) for rank in range(dist.get_world_size())]
    gradients = {gradient.place: gradient for gradient in timeline.gradients}
    worst = 0.0
    for place, parameter in enumerate(replay.parameters()):
        exact = sum(each.gradient(gradients[place]).double() for each in of_ranks) / len(of_ranks)
        worst = max(worst, (parameter.grad - exact).abs().max().item())
    sums = [parameter.grad.sum().item() for parameter in replay.parameters()]
    accelerate_ddp(model, Comm())  # ends its threads
    return {"worst": worst, "seconds": seconds, "sums": sums}


def buckets_of_a_replay(timeline: Timeline) -> list[float]:
    """Return when DDP hands over its buckets, one for each gradient, in the third step of a replay.

    Times are seconds since the backward pass began.
    """
    replay = Replay(timeline)
    model = DDP(replay, init_sync=False, bucket_cap_mb=0.3)
    handed_over: list[float] = []

    # torch looks at annotations, and here they would be text.
    def hook(group, bucket):  # type: ignore[no-untyped-def]
        handed_over.append(time.perf_counter())
        return default_hooks.allreduce_hook(group, bucket)

    model.register_comm_hook(dist.group.WORLD, hook)
    for _ in range(3):
        handed_over.clear()
        loss = model()
        began = time.perf_counter()
        loss.backward()
    return [moment - began for moment in handed_over]
