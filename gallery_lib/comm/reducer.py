"""The communication hook of an accelerated DistributedDataParallel: buckets go to channels in turn.

Annotations are not postponed here: torch looks at those of a hook.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.comm import topology
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.early_steps import EarlySteps
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.config import Comm
from gallery_lib.errors import RunFailed


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


class GradientReducer:
    """Averages gradients as `options` say. Making one is a collective call.

    With gloo the work is done by threads, so a failure there (a rank has gone, a gradient is not finite) is raised at the end of the
    backward pass, on every rank that sees it. `joined`: whether ranks without batches stand by at present (DDP's join), which take
    no part in saying whose gradients are not finite. `early_steps`: takes the optimizer's step of each bucket that has been averaged.
    """

    def __init__(
        self, module: nn.Module, options: Comm, device: torch.device, joined: Callable[[], bool], early_steps: EarlySteps | None = None
    ) -> None:
        self.options = options
        self._early_steps = early_steps
        self._module, self._joined = module, joined
        self.hosts = topology.find()
        self._device = device
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._channels = [Channel(options, self.hosts, device) for _ in range(options.streams)]
        self._heartbeat = Heartbeat()
        self._finish_queued = False
        self._waiting: list[threading.Event] = []
        self._problem: BaseException | None = None
        self._not_finite: list[tuple[list[str], Tensor, Tensor]] = []  # names, which of them were not, whether the mean is not

    def take(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls with each bucket, in the same order on every rank."""
        if not self._finish_queued:
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # type: ignore[attr-defined]
                self._finish_queued = True
            except RuntimeError:  # not in a backward pass: DDP's join context stands in for a rank that has no batches left
                pass
        index, buffer, gradients = bucket.index(), bucket.buffer(), bucket.gradients()
        parameters = bucket.parameters()
        names = [self._names[id(parameter)] for parameter in parameters]
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=[self._device] if self._device.type == "cuda" else [])
        done = threading.Event()
        self._waiting.append(done)

        def job() -> None:
            try:
                if self._problem is None:
                    self._average(self._channels[index % len(self._channels)], index, buffer, gradients, names)
                    if self._early_steps is not None:
                        self._early_steps.take(parameters, gradients)
            except BaseException as problem:
                self._problem = problem
            finally:
                future.set_result(buffer)
                done.set()

        self._channels[index % len(self._channels)].submit(job)
        return future

    def _average(self, channel: Channel, index: int, buffer: Tensor, gradients: list[Tensor], names: list[str]) -> None:
        if self.options.non_finite == "ignore":
            return channel.average_(index, buffer, gradients, names)
        own = torch.stack([~gradient.isfinite().all() for gradient in gradients])
        channel.average_(index, buffer, gradients, names)
        self._not_finite.append((names, own, ~buffer.isfinite().all()))
        return None

    def _finish(self) -> None:
        """At the end of the backward pass: wait for all buckets, and raise what has gone wrong."""
        self._finish_queued = False
        for done in self._waiting:
            done.wait()
        for channel in self._channels:
            channel.wait()
        self._waiting.clear()
        problem, self._problem = self._problem, None
        seen, self._not_finite = self._not_finite, []
        if problem is not None and not isinstance(problem, RuntimeError):
            raise problem  # not of communication
        if problem is not None:
            reason = f"{self._heartbeat.silent_ranks()} ({type(problem).__name__}: {problem})"
            raise RunFailed(f"rank {dist.get_rank()}: gradients could not be averaged: {reason}.") from problem
        if any(bool(mean) for *_, mean in seen):  # the same on every rank, since all have the same means
            own = [name for names, flags, _ in seen for name, bad in zip(names, flags.tolist(), strict=True) if bad]
            message = f"a gradient is infinite or not a number: {self._whose(own)}"
            if self.options.non_finite == "stop":
                raise RunFailed(f"{message}.")
            if own or dist.get_rank() == 0:
                print(f"{message}; this step is skipped.", file=sys.stderr, flush=True)
            # after DDP has put the means into the parameters' gradients, for which it has queued itself by now
            torch.autograd.Variable._execution_engine.queue_callback(self._drop_gradients)  # type: ignore[attr-defined]

    def _drop_gradients(self) -> None:
        """Optimizers leave parameters without a gradient as they are, and their state too."""
        for parameter in self._module.parameters():
            parameter.grad = None

    def _whose(self, own: list[str]) -> str:
        everyone: list[list[str]] = [[]] * dist.get_world_size()
        if self._joined():
            everyone[dist.get_rank()] = own
            elsewhere = "on a rank that says so itself, or in the mean, which overflowed on the wire"
        else:
            dist.all_gather_object(everyone, own)
            elsewhere = "only in the mean, which overflowed on the wire"
        return "; ".join(f"on rank {rank} of {_some(names)}" for rank, names in enumerate(everyone) if names) or elsewhere

    def state_dict(self) -> dict[str, Any]:
        """What error feedback keeps on this rank; it belongs to this rank's part of a checkpoint."""
        return {"channels": [channel.state_dict() for channel in self._channels]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` gave, on the same rank of as many processes, with the same options."""
        for channel, kept in zip(self._channels, state["channels"], strict=True):
            channel.load_state_dict(kept)

    def close(self) -> None:
        """End its threads and groups; a collective call."""
        self._heartbeat.stop()
        if self._early_steps is not None:
            self._early_steps.close()
        for channel in self._channels:
            channel.close()
