"""When the buckets of a step are ready to be sent, and when their means have arrived: noted in a real step of DDP.

Annotations are not postponed here: torch looks at those of a hook.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gallery_lib.comm.accelerated import accelerate_ddp, needs_hook
from gallery_lib.config import Comm

_STEPS = 3
"""The last is noted: DDP orders its buckets anew after the first."""


@dataclass(frozen=True)
class Timeline:
    """Of one step, in seconds from its beginning: when forward and backward pass ended, and each bucket in the order of being ready."""

    forward: float
    backward: float
    buckets: list[tuple[float, float, float]]  # MiB of gradients, ready, mean arrived


class NotedDDP(nn.parallel.DistributedDataParallel):
    """A DDP that notes of each bucket its bytes, when it was handed to the hook, and when the hook had its mean."""

    noted: list[list[float]]

    def register_comm_hook(self, state: object, hook: Callable[[Any, Any], Any]) -> None:
        """As DDP's own, around which it notes the times."""
        self.noted = []

        def noting(state, bucket):  # type: ignore[no-untyped-def]
            moments = [bucket.buffer().nbytes, time.perf_counter()]
            self.noted.append(moments)
            future = hook(state, bucket)
            future.add_done_callback(lambda _: moments.append(time.perf_counter()))
            return future

        super().register_comm_hook(state, noting)


def note(net: nn.Module, way: Comm, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Timeline:
    """Three steps of `net`, without an optimizer, whose gradients are averaged by `way`; the times of the last. A collective call.

    DDP's own way has no hook, so torch's hook that does the same stands in for it.
    """
    model = NotedDDP(net)
    accelerate_ddp(model, way)
    if not needs_hook(way):
        model.register_comm_hook(None, allreduce_hook)
    for _ in range(_STEPS):
        dist.barrier()
        model.noted.clear()
        net.zero_grad()
        began = time.perf_counter()
        error = loss(model(inputs))
        forward = time.perf_counter()
        error.backward()
        backward = time.perf_counter()
    while any(len(moments) < 3 for moments in model.noted):  # the last one's time is taken by a thread that is still at it
        time.sleep(0.001)
    buckets = [(size / 2**20, ready - began, arrived - began) for size, ready, arrived in model.noted]
    if needs_hook(way):
        accelerate_ddp(model, Comm())  # ends its threads
    return Timeline(forward - began, backward - began, buckets)
