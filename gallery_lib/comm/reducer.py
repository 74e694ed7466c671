"""Communication hook of an accelerated DistributedDataParallel: buckets go to channels in turn.

A parameter that is larger than a bucket makes a bucket of its own size (VGG-16's has 411 MB). On
the CPU such a bucket goes in pieces of a bucket's size, to the channels in turn. While one piece is
on the wire another is added up within the host. The data in flight at a time needs no more memory
than buckets do.

Sparse gradients (`nn.Embedding(sparse=True)`), which have a bucket each, are averaged as DDP does
it, whatever the options.

This module does not postpone annotations (`from __future__ import annotations`), since torch reads
those of a hook.
"""

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future

from gallery_lib.comm import topology
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.comm.torch_ddp import at_end_of_backward
from gallery_lib.config import Comm
from gallery_lib.errors import RunFailed
from gallery_lib.system.processes import tell

DDP_BUCKET_MB = 25
"""DDP's own size of all buckets but the first, in MiB."""
_ALIGNED_VALUES = 64
"""Alignment of the pieces of a bucket, in values."""


class _Bucket:
    """A bucket in flight: its state before averaging, and the pieces still missing."""

    def __init__(self, bucket: dist.GradBucket, names: list[str], pieces: int) -> None:
        self.handed_over, self.names = bucket, names
        self.index, self.buffer, self.parameters = (
            bucket.index(),
            bucket.buffer(),
            bucket.parameters(),
        )
        self._left = pieces
        self._lock = threading.Lock()
        self._not_finite: Tensor | None = None

    def gradients(self) -> list[Tensor]:
        """Return the gradients as views of the buffer, laid out as DDP does: as the parameters.

        `GradBucket.gradients()` is wrong for complex and channels_last parameters.
        """
        buffer = self.buffer
        if buffer.is_sparse:
            return [buffer]
        if self.parameters[0].is_complex() and not buffer.is_complex():
            buffer = torch.view_as_complex(buffer.view(-1, 2))
        parts = buffer.split([parameter.numel() for parameter in self.parameters])
        return [_laid_out(part, of) for part, of in zip(parts, self.parameters, strict=True)]

    def not_finite(self) -> Tensor:
        """Return which gradients are not finite on this rank, as bools [gradients].

        The first call comes before any piece is averaged; later calls return the same tensor.
        """
        with self._lock:
            if self._not_finite is None:
                parts = [self.buffer]
                if not self.buffer.is_sparse:
                    sizes = [parameter.numel() for parameter in self.parameters]
                    pair = self.buffer.numel() // max(1, sum(sizes))  # 2 for complex parameters
                    parts = list(self.buffer.split([pair * size for size in sizes]))
                self._not_finite = torch.stack([_has_not_finite(part) for part in parts])
            return self._not_finite

    def piece_done(self) -> bool:
        """Count a piece as averaged; return whether it was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


def _laid_out(part: Tensor, parameter: Tensor) -> Tensor:
    strides = parameter.stride()
    if torch.empty_like(parameter, device="meta").stride() != strides:  # it has gaps
        return part.view(parameter.shape)
    return part.as_strided(parameter.shape, strides)


def _has_not_finite(gradient: Tensor) -> Tensor:
    values = gradient._values() if gradient.is_sparse else gradient
    return ~values.isfinite().all()


def _end_threads(heartbeat: Heartbeat, channels: list[Channel]) -> None:
    heartbeat.end()
    for channel in channels:
        channel.end_thread()


class GradientReducer:
    """Communication hook that averages gradients as `options` say.

    The constructor is a collective call. With gloo the work is done by threads. A failure there is
    raised at the end of the backward pass, on every rank that sees it. Failures are a rank that has
    gone, or a gradient that is not finite.

    Args:
        module: the module inside the DistributedDataParallel.
        options: how gradients are averaged.
        device: the device of the gradients.
        join_is_active: tells whether ranks without batches stand by at present (DDP's join).
        early_steps: takes the optimizer's step of each bucket that has been averaged.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Comm,
        device: torch.device,
        join_is_active: Callable[[], bool],
        early_steps: EarlySteps | None = None,
    ) -> None:
        self.options = options
        self.early_steps = early_steps
        # torch's reducer keeps this object alive, unseen by garbage collection, so no attribute of
        # it may hold the module.
        self._non_finite = _NonFiniteGradients(module, options.non_finite, join_is_active)
        self._device = device
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        hosts = topology.find()
        self._channels = [Channel(options, hosts, device) for _ in range(options.streams)]
        # Names of each bucket's parameters, by the bucket's index.
        self._contents: dict[int, list[str]] = {}
        self._heartbeat = Heartbeat()
        self._ending: weakref.finalize[..., nn.Module] | None = None
        self._finish_queued = False
        self._waiting: list[Future[Tensor]] = []
        self._problem: BaseException | None = None
        self._of_communication = False

    def take(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start averaging a bucket; DDP calls this hook in the same order on every rank."""
        # a backward pass was broken off, and never came to its end
        if bucket.index() == 0 and self._finish_queued:
            self._forget()
        if not self._finish_queued:
            # Outside a backward pass DDP's join context stands in for a rank without batches.
            with contextlib.suppress(RuntimeError):
                at_end_of_backward(self._finish)
                self._finish_queued = True
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        # Error feedback has kept something of other parameters: buckets change after the first
        # step, and with a resume, since a process begins with DDP's first buckets.
        if self._contents.get(bucket.index(), names) != names:
            for channel in self._channels:
                channel.forget(bucket.index())
        self._contents[bucket.index()] = names
        sparse = bucket.buffer().is_sparse
        future = self._sparse(bucket, names) if sparse else self._dense(bucket, names)
        self._waiting.append(future)
        return future

    def _forget(self) -> None:
        self._finish_queued = False
        with contextlib.suppress(RuntimeError):
            self._wait()
        self._problem = None
        self._non_finite.clear()

    def _wait(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.wait()

    def _dense(self, bucket: dist.GradBucket, names: list[str]) -> Future[Tensor]:
        pieces = self._pieces(bucket.buffer())
        whole = _Bucket(bucket, names, len(pieces))
        future: Future[Tensor] = Future(
            devices=[self._device] if self._device.type == "cuda" else []
        )
        for number, piece in enumerate(pieces):
            channel = self._channels[(whole.index + number) % len(self._channels)]
            channel.submit(functools.partial(self._job, channel, whole, number, piece, future))
        return future

    def _sparse(self, bucket: dist.GradBucket, names: list[str]) -> Future[Tensor]:
        """Divide, then all-reduce in the default group; all ranks have buckets in one order."""
        whole = _Bucket(bucket, names, 1)
        if not self._non_finite.ignored:
            whole.not_finite()

        def averaged(sums: Future[list[Tensor]]) -> Tensor:
            whole.buffer = sums.value()[0]
            self._averaged(whole)
            return whole.buffer

        mean = whole.buffer.div_(dist.get_world_size())
        return dist.all_reduce(mean, async_op=True).get_future().then(averaged)

    def _pieces(self, buffer: Tensor) -> list[Tensor]:
        """Return the pieces in which a bucket is averaged: the whole, unless it is oversized."""
        if self._device.type == "cuda" or self.options.wire == "powersgd":
            return [buffer]
        size = (self.options.bucket_mb or DDP_BUCKET_MB) * 2**20
        count = max(1, round(buffer.numel() * buffer.itemsize / size))
        length = -(-buffer.numel() // (count * _ALIGNED_VALUES)) * _ALIGNED_VALUES
        return list(buffer.split(length)) if count > 1 else [buffer]

    def _job(
        self, channel: Channel, whole: _Bucket, number: int, piece: Tensor, future: Future[Tensor]
    ) -> None:
        try:
            if self._problem is None:
                if not self._non_finite.ignored:
                    whole.not_finite()
                key = whole.index, whole.buffer.numel(), number
                channel.average_(key, piece, whole.handed_over)
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

    def _averaged(self, whole: _Bucket) -> None:
        """Finish a bucket whose pieces are all averaged: note overflows, take the early step."""
        self._non_finite.note(whole)
        if self.early_steps is not None:
            self.early_steps.take(whole.parameters, whole.gradients())

    def _finish(self) -> None:
        """Wait for all buckets at the end of the backward pass, and raise what has gone wrong."""
        self._finish_queued = False
        self._wait()
        for channel in self._channels:
            channel.wait()
        self._raise_problem()
        # Runs after DDP has put the means into the gradients: DDP has queued that by now.
        if self.early_steps is not None:
            at_end_of_backward(self.early_steps.backward_done)
        self._non_finite.react()

    def _raise_problem(self) -> None:
        """Raise what went wrong in this backward pass; RunFailed for failed communication."""
        problem, of_communication = self._problem, self._of_communication
        self._problem, self._of_communication = None, False
        if problem is None:
            return
        self._non_finite.clear()
        if not (of_communication and isinstance(problem, RuntimeError)):
            raise problem
        reason = f"{self._heartbeat.silent_ranks()} ({type(problem).__name__}: {problem})"
        raise RunFailed(
            f"rank {dist.get_rank()}: gradients could not be averaged: {reason}."
        ) from problem

    def state_dict(self) -> dict[str, Any]:
        """Return the error-feedback state of this rank, for this rank's part of a checkpoint."""
        return {
            "channels": [channel.state_dict() for channel in self._channels],
            "contents": dict(self._contents),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned with the same rank, world size and options."""
        self._contents = dict(state.get("contents", {}))
        for channel, kept in zip(self._channels, state["channels"], strict=True):
            channel.load_state_dict(kept)

    def end_with(self, model: nn.Module) -> None:
        """Have the threads end when `model` is deleted; its groups end with the default one."""
        self._ending = weakref.finalize(model, _end_threads, self._heartbeat, self._channels)
        self._ending.atexit = False

    def close(self) -> None:
        """End the threads and process groups. A collective call.

        Raises:
            InputError: between a step in the backward pass and `optimizer.step()`.
        """
        if self.early_steps is not None:
            self.early_steps.close()
        if self._ending is not None:
            self._ending.detach()
        self._heartbeat.stop()
        for channel in self._channels:
            channel.close()


class _Record(NamedTuple):
    """Finiteness of a bucket: of each gradient on this rank, and of the mean of all ranks."""

    names: list[str]
    not_finite: Tensor
    mean_is_not_finite: Tensor


class _NonFiniteGradients:
    """Gradients of a backward pass that are infinite or no number: whose they are, and what to do.

    While ranks without batches stand by, they take no part in saying whose these are.
    """

    def __init__(
        self, module: nn.Module, reaction: str, join_is_active: Callable[[], bool]
    ) -> None:
        self.ignored = reaction == "ignore"
        self._stop = reaction == "stop"
        self._module = weakref.ref(module)
        self._join_is_active = join_is_active
        self._records: list[_Record] = []

    def note(self, bucket: _Bucket) -> None:
        """Note the finiteness of an averaged bucket, unless it is ignored."""
        if not self.ignored:
            mean = _has_not_finite(bucket.buffer)
            self._records.append(_Record(bucket.names, bucket.not_finite(), mean))

    def clear(self) -> None:
        """Forget the buckets of this backward pass."""
        self._records = []

    def react(self) -> None:
        """Stop or skip the step if a mean of this backward pass is not finite.

        Every rank comes to the same result, since all have the same means.

        Raises:
            RunFailed: where the step is to stop.
        """
        records, self._records = self._records, []
        if not any(bool(record.mean_is_not_finite) for record in records):
            return
        own = [
            name
            for record in records
            for name, bad in zip(record.names, record.not_finite.tolist(), strict=True)
            if bad
        ]
        message = f"a gradient is infinite or not a number: {self._whose(own)}"
        if self._stop:
            raise RunFailed(f"{message}.")
        if own or dist.get_rank() == 0:
            tell(f"{message}; this step is skipped.")
        at_end_of_backward(self._drop_gradients)  # DDP has put the means into them by then

    def _whose(self, own: list[str]) -> str:
        """Return the ranks and parameters with such gradients, in words."""
        everyone: list[list[str]] = [[]] * dist.get_world_size()
        if self._join_is_active():
            everyone[dist.get_rank()] = own
            elsewhere = (
                "on a rank that says so itself, or in the mean, which overflowed on the wire"
            )
        else:
            dist.all_gather_object(everyone, own)
            elsewhere = "only in the mean, which overflowed on the wire"
        named = [
            f"on rank {rank} of {names[0]}" + f" and {len(names) - 1} more" * (len(names) > 1)
            for rank, names in enumerate(everyone)
            if names
        ]
        return "; ".join(named) or elsewhere

    def _drop_gradients(self) -> None:
        """Set gradients to None: optimizers then leave a parameter and its state as they are."""
        module = self._module()
        assert module is not None  # its backward pass is going on
        for parameter in module.parameters():
            parameter.grad = None
