"""Times at which DDP's buckets are ready to be sent and their means arrive, noted in a real step.

Annotations are not postponed here: torch looks at those of a hook.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gallery_lib.comm.accelerate_ddp import accelerate_ddp
from gallery_lib.comm.strategy import gradient_reducer
from gallery_lib.config import Comm

_STEPS = 3
"""Number of steps; the last one is noted, since DDP orders its buckets anew after the first."""


@dataclass(frozen=True)
class Timeline:
    """Times of one step, in seconds from its beginning.

    `forward` and `backward` are the ends of the passes. `buckets` are in the order of being ready.
    """

    forward: float
    backward: float
    buckets: list[tuple[float, float, float]]  # MiB of gradients, ready, mean arrived


def note(net: nn.Module, way: Comm, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Timeline:
    """Return the times of the last of three steps of `net`, whose gradients `way` averages.

    The steps have no optimizer. DDP's own strategy has no hook, so torch's hook that does the same
    stands in for it. A collective call.
    """
    model = accelerate_ddp(nn.parallel.DistributedDataParallel(net), way)
    # Of each bucket: its bytes, when it was handed over, and when its mean was there.
    noted: list[list[float]] = []

    def handed_over(size: int, future: torch.futures.Future[Tensor]) -> None:
        moments = [size, time.perf_counter()]
        noted.append(moments)
        future.add_done_callback(lambda _: moments.append(time.perf_counter()))

    # Without annotations, since torch looks at those of a hook.
    def plain(state, bucket):  # type: ignore[no-untyped-def]
        future = allreduce_hook(state, bucket)
        handed_over(bucket.buffer().nbytes, future)
        return future

    if (reducer := gradient_reducer(model)) is not None:
        reducer.handed_over = handed_over
    else:
        model.register_comm_hook(None, plain)
    for _ in range(_STEPS):
        dist.barrier()
        noted.clear()
        net.zero_grad()
        began = time.perf_counter()
        error = loss(model(inputs))
        forward = time.perf_counter()
        error.backward()
        backward = time.perf_counter()
    # A thread takes the time of the last bucket's mean, and may still be at it.
    while any(len(moments) < 3 for moments in noted):
        time.sleep(0.001)
    buckets = [(size / 2**20, ready - began, arrived - began) for size, ready, arrived in noted]
    if reducer is not None:
        accelerate_ddp(model, Comm())  # ends its threads
    return Timeline(forward - began, backward - began, buckets)
