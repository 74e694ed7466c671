"""When the buckets of a step are ready to be sent, and when their means have arrived: noted in a real step of DDP.

Annotations are not postponed here: torch looks at those of a hook.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gallery_lib.comm.accelerate_ddp import accelerate_ddp, gradient_reducer
from gallery_lib.config import Comm

_STEPS = 3
"""The last is noted: DDP orders its buckets anew after the first."""


@dataclass(frozen=True)
class Timeline:
    """Of one step, in seconds from its beginning: when forward and backward pass ended, and each bucket in the order of being ready."""

    forward: float
    backward: float
    buckets: list[tuple[float, float, float]]  # MiB of gradients, ready, mean arrived


def note(net: nn.Module, way: Comm, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Timeline:
    """Three steps of `net`, without an optimizer, whose gradients are averaged by `way`; the times of the last. A collective call.

    DDP's own way has no hook, so torch's hook that does the same stands in for it.
    """
    model = accelerate_ddp(nn.parallel.DistributedDataParallel(net), way)
    noted: list[
        list[float]
    ] = []  # of each bucket: its bytes, when it was handed over, and when its mean was there

    def handed_over(size: int, future: torch.futures.Future[Tensor]) -> None:
        moments = [size, time.perf_counter()]
        noted.append(moments)
        future.add_done_callback(lambda _: moments.append(time.perf_counter()))

    def plain(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations, and here they are text
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
    while any(
        len(moments) < 3 for moments in noted
    ):  # the last one's time is taken by a thread that is still at it
        time.sleep(0.001)
    buckets = [(size / 2**20, ready - began, arrived - began) for size, ready, arrived in noted]
    if reducer is not None:
        accelerate_ddp(model, Comm())  # ends its threads
    return Timeline(forward - began, backward - began, buckets)
