"""The communication hook of an accelerated DistributedDataParallel: buckets go to channels in turn.

A parameter that is larger than a bucket makes a bucket of its own size (VGG-16's has 411 MB). On the CPU such a bucket goes in
pieces of a bucket's size, to the channels in turn: while one piece is on the wire another is added up within the host, and what is
on its way at a time needs no more memory than buckets do.

Sparse gradients (`nn.Embedding(sparse=True)`), which have a bucket each, are averaged as DDP does it, whatever the options.

Annotations are not postponed here: torch looks at those of a hook.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.comm import topology
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.config import Comm
from gallery_lib.errors import RunFailed

DDP_BUCKET_MB = 25
"""DDP's own size of all buckets but the first, in MiB."""
_ALIGNED_VALUES = 64
"""Pieces of a bucket begin at multiples of so many values."""


def _gradients(bucket: dist.GradBucket) -> list[Tensor]:
    """Return a bucket's gradients, as parts of its buffer: [shape of the parameter] each.

    torch's own answer is wrong for complex parameters, whose buckets hold pairs of real numbers, and empty for a sparse one.
    """
    buffer, parameters = bucket.buffer(), bucket.parameters()
    if buffer.is_sparse:
        return [buffer]
    if not parameters[0].is_complex() or buffer.is_complex():
        return bucket.gradients()
    parts = torch.view_as_complex(buffer.view(-1, 2)).split(
        [parameter.numel() for parameter in parameters]
    )
    dense = [
        torch.empty_like(parameter, device="meta").stride() == parameter.stride()
        for parameter in parameters
    ]
    return [
        part.as_strided(parameter.shape, parameter.stride())
        if whole
        else part.view(parameter.shape)
        for part, parameter, whole in zip(parts, parameters, dense, strict=True)
    ]


def _values(gradient: Tensor) -> Tensor:
    return gradient._values() if gradient.is_sparse else gradient


class _Bucket:
    """A bucket on its way: what is known of it before it is averaged, and how many of its pieces are not there yet."""

    def __init__(self, bucket: dist.GradBucket, names: list[str], pieces: int) -> None:
        self.index, self.buffer, self.gradients, self.parameters = (
            bucket.index(),
            bucket.buffer(),
            _gradients(bucket),
            bucket.parameters(),
        )
        self.names = names
        self.done = threading.Event()
        self._left = pieces
        self._lock = threading.Lock()
        self._not_finite: Tensor | None = None

    def not_finite(self) -> Tensor:
        """Which gradients are not finite on this rank; first called before any piece is averaged, and each time the same."""
        with self._lock:
            if self._not_finite is None:
                self._not_finite = torch.stack(
                    [~_values(gradient).isfinite().all() for gradient in self.gradients]
                )
            return self._not_finite

    def piece_done(self) -> bool:
        """Whether that was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _end_threads(heartbeat: Heartbeat, channels: list[Channel]) -> None:
    heartbeat.end()
    for channel in channels:
        channel.end_thread()


class GradientReducer:
    """Averages gradients as `options` say. Making one is a collective call.

    With gloo the work is done by threads, so a failure there (a rank has gone, a gradient is not finite) is raised at the end of the
    backward pass, on every rank that sees it. `joined`: whether ranks without batches stand by at present (DDP's join), which take
    no part in saying whose gradients are not finite. `early_steps`: takes the optimizer's step of each bucket that has been averaged.
    `handed_over`: called with each bucket's bytes and the future of its mean.
    """

    handed_over: Callable[[int, torch.futures.Future[Tensor]], None] | None = None

    def __init__(
        self,
        module: nn.Module,
        options: Comm,
        device: torch.device,
        joined: Callable[[], bool],
        early_steps: EarlySteps | None = None,
    ) -> None:
        self.options = options
        self.early_steps = early_steps
        self._module, self._joined = (
            weakref.ref(module),
            joined,
        )  # torch's reducer keeps this object, unseen by garbage collection
        self.hosts = topology.find()
        self._device = device
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._channels = [Channel(options, self.hosts, device) for _ in range(options.streams)]
        self._heartbeat = Heartbeat()
        self._ending: weakref.finalize[..., nn.Module] | None = None
        self._finish_queued = False
        self._waiting: list[threading.Event] = []
        self._problem: BaseException | None = None
        self._of_communication = False
        self._not_finite: list[
            tuple[list[str], Tensor, Tensor]
        ] = []  # names, which of them were not, whether the mean is not

    def take(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """What DDP calls with each bucket, in the same order on every rank."""
        if (
            bucket.index() == 0 and self._finish_queued
        ):  # a backward pass was broken off, and never came to its end
            self._forget()
        if not self._finish_queued:
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # type: ignore[attr-defined]
                self._finish_queued = True
            except RuntimeError:  # not in a backward pass: DDP's join context stands in for a rank that has no batches left
                pass
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        future = (
            self._sparse(bucket, names) if bucket.buffer().is_sparse else self._dense(bucket, names)
        )
        if self.handed_over is not None:
            self.handed_over(bucket.buffer().nbytes, future)
        return future

    def _forget(self) -> None:
        self._finish_queued = False
        for done in self._waiting:
            done.wait()
        self._waiting, self._problem, self._not_finite = [], None, []

    def _dense(self, bucket: dist.GradBucket, names: list[str]) -> torch.futures.Future[Tensor]:
        pieces = self._pieces(bucket.buffer())
        whole = _Bucket(bucket, names, len(pieces))
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[self._device] if self._device.type == "cuda" else []
        )
        self._waiting.append(whole.done)
        for number, piece in enumerate(pieces):
            channel = self._channels[(whole.index + number) % len(self._channels)]
            channel.submit(functools.partial(self._job, channel, whole, number, piece, future))
        return future

    def _sparse(self, bucket: dist.GradBucket, names: list[str]) -> torch.futures.Future[Tensor]:
        """Average as DDP does it: divided, then added up in the default group, in the order of buckets on every rank."""
        whole = _Bucket(bucket, names, 1)
        if self.options.non_finite != "ignore":
            whole.not_finite()
        self._waiting.append(whole.done)

        def averaged(sums: torch.futures.Future[list[Tensor]]) -> Tensor:
            try:
                whole.buffer = sums.value()[0]
                whole.gradients = [whole.buffer]
                self._averaged(whole)
            except BaseException as problem:
                self._problem = problem
            finally:
                whole.done.set()
            return whole.buffer

        return (
            dist.all_reduce(whole.buffer.div_(dist.get_world_size()), async_op=True)
            .get_future()
            .then(averaged)
        )

    def _pieces(self, buffer: Tensor) -> list[Tensor]:
        """Those that a bucket is averaged in: itself, unless it is larger than buckets are to be."""
        if self._device.type == "cuda" or self.options.wire == "powersgd":
            return [buffer]
        size = (self.options.bucket_mb or DDP_BUCKET_MB) * 2**20
        count = max(1, round(buffer.numel() * buffer.itemsize / size))
        length = -(-buffer.numel() // (count * _ALIGNED_VALUES)) * _ALIGNED_VALUES
        return list(buffer.split(length)) if count > 1 else [buffer]

    def _job(
        self,
        channel: Channel,
        whole: _Bucket,
        number: int,
        piece: Tensor,
        future: torch.futures.Future[Tensor],
    ) -> None:
        try:
            if self._problem is None:
                if self.options.non_finite != "ignore":
                    whole.not_finite()
                channel.average_(
                    (whole.index, whole.buffer.numel(), number), piece, whole.gradients, whole.names
                )
        except BaseException as problem:
            self._problem, self._of_communication = problem, True
        if not whole.piece_done():
            return
        try:
            if self._problem is None:
                self._averaged(whole)
        except BaseException as problem:
            self._problem = problem
        finally:
            future.set_result(whole.buffer)
            whole.done.set()

    def _averaged(self, whole: _Bucket) -> None:
        """All of it is there."""
        if self.options.non_finite != "ignore":
            self._not_finite.append(
                (whole.names, whole.not_finite(), ~_values(whole.buffer).isfinite().all())
            )
        if self.early_steps is not None:
            self.early_steps.take(whole.parameters, whole.gradients)

    def _finish(self) -> None:
        """At the end of the backward pass: wait for all buckets, and raise what has gone wrong."""
        self._finish_queued = False
        for done in self._waiting:
            done.wait()
        for channel in self._channels:
            channel.wait()
        self._waiting.clear()
        (problem, of_communication), self._problem, self._of_communication = (
            (self._problem, self._of_communication),
            None,
            False,
        )
        seen, self._not_finite = self._not_finite, []
        if problem is not None and not (of_communication and isinstance(problem, RuntimeError)):
            raise problem
        if problem is not None:
            reason = f"{self._heartbeat.silent_ranks()} ({type(problem).__name__}: {problem})"
            raise RunFailed(
                f"rank {dist.get_rank()}: gradients could not be averaged: {reason}."
            ) from problem
        if (
            self.early_steps is not None
        ):  # after DDP has put the means into the gradients, for which it has queued itself by now
            torch.autograd.Variable._execution_engine.queue_callback(self.early_steps.backward_done)  # type: ignore[attr-defined]
        if any(
            bool(mean) for *_, mean in seen
        ):  # the same on every rank, since all have the same means
            own = [
                name
                for names, flags, _ in seen
                for name, bad in zip(names, flags.tolist(), strict=True)
                if bad
            ]
            message = f"a gradient is infinite or not a number: {self._whose(own)}"
            if self.options.non_finite == "stop":
                raise RunFailed(f"{message}.")
            if own or dist.get_rank() == 0:
                print(f"{message}; this step is skipped.", file=sys.stderr, flush=True)
            # after DDP has put the means into the parameters' gradients, for which it has queued itself by now
            torch.autograd.Variable._execution_engine.queue_callback(self._drop_gradients)  # type: ignore[attr-defined]

    def _drop_gradients(self) -> None:
        """Optimizers leave parameters without a gradient as they are, and their state too."""
        module = self._module()
        assert module is not None  # its backward pass is going on
        for parameter in module.parameters():
            parameter.grad = None

    def _whose(self, own: list[str]) -> str:
        everyone: list[list[str]] = [[]] * dist.get_world_size()
        if self._joined():
            everyone[dist.get_rank()] = own
            elsewhere = (
                "on a rank that says so itself, or in the mean, which overflowed on the wire"
            )
        else:
            dist.all_gather_object(everyone, own)
            elsewhere = "only in the mean, which overflowed on the wire"
        return (
            "; ".join(
                f"on rank {rank} of {_some(names)}" for rank, names in enumerate(everyone) if names
            )
            or elsewhere
        )

    def state_dict(self) -> dict[str, Any]:
        """What error feedback keeps on this rank; it belongs to this rank's part of a checkpoint."""
        return {"channels": [channel.state_dict() for channel in self._channels]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` gave, on the same rank of as many processes, with the same options."""
        for channel, kept in zip(self._channels, state["channels"], strict=True):
            channel.load_state_dict(kept)

    def end_with(self, model: nn.Module) -> None:
        """Have its threads end when `model` is deleted; torch ends the groups with the default one."""
        self._ending = weakref.finalize(model, _end_threads, self._heartbeat, self._channels)
        self._ending.atexit = False

    def close(self) -> None:
        """End its threads and groups; a collective call. Raises InputError between a step in the backward pass and `optimizer.step()`."""
        if self.early_steps is not None:
            self.early_steps.close()
        if self._ending is not None:
            self._ending.detach()
        self._heartbeat.stop()
        for channel in self._channels:
            channel.close()
