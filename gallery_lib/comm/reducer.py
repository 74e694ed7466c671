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

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gallery_lib.comm import topology
from gallery_lib.comm.bucket import Bucket
from gallery_lib.comm.channel import Channel
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.config import Comm
from gallery_lib.errors import RunFailed
from gallery_lib.system.standard_error import tell

DDP_BUCKET_MB = 25
"""DDP's own size of all buckets but the first, in MiB."""
_ALIGNED_VALUES = 64
"""Alignment of the pieces of a bucket, in values."""


def _end_threads(heartbeat: Heartbeat, channels: list[Channel]) -> None:
    heartbeat.end()
    for channel in channels:
        channel.end_thread()


class GradientReducer:
    """Communication hook that averages gradients as `options` say.

    The constructor is a collective call. With gloo the work is done by threads. A failure there is
    raised at the end of the backward pass, on every rank that sees it. Failures are a rank that has
    gone, or a gradient that is not finite.

    `handed_over` is called with each bucket's bytes and the future of its mean.

    Args:
        module: the module inside the DistributedDataParallel.
        options: how gradients are averaged.
        device: the device of the gradients.
        join_is_active: tells whether ranks without batches stand by at present (DDP's join).
        early_steps: takes the optimizer's step of each bucket that has been averaged.
    """

    handed_over: Callable[[int, torch.futures.Future[Tensor]], None] | None = None

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
        self._non_finite = NonFiniteGradients(module, options.non_finite, join_is_active)
        self.hosts = topology.find()
        self._device = device
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._channels = [Channel(options, self.hosts, device) for _ in range(options.streams)]
        # Names of each bucket's parameters, by the bucket's index.
        self._contents: dict[int, list[str]] = {}
        self._heartbeat = Heartbeat()
        self._ending: weakref.finalize[..., nn.Module] | None = None
        self._finish_queued = False
        self._waiting: list[threading.Event] = []
        self._problem: BaseException | None = None
        self._of_communication = False

    def take(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start averaging a bucket; DDP calls this hook in the same order on every rank."""
        # a backward pass was broken off, and never came to its end
        if bucket.index() == 0 and self._finish_queued:
            self._forget()
        if not self._finish_queued:
            try:
                torch.autograd.Variable._execution_engine.queue_callback(self._finish)  # type: ignore[attr-defined]
                self._finish_queued = True
            # Outside a backward pass DDP's join context stands in for a rank without batches.
            except RuntimeError:
                pass
        names = [self._names[id(parameter)] for parameter in bucket.parameters()]
        self._note_content(bucket.index(), names)
        future = (
            self._sparse(bucket, names) if bucket.buffer().is_sparse else self._dense(bucket, names)
        )
        if self.handed_over is not None:
            self.handed_over(bucket.buffer().nbytes, future)
        return future

    def _note_content(self, index: int, names: list[str]) -> None:
        """Drop what error feedback has kept of a bucket that now holds other parameters.

        Buckets change after the first step, and with a resume: a process begins with DDP's first
        buckets.
        """
        if self._contents.get(index, names) != names:
            for channel in self._channels:
                channel.forget(index)
        self._contents[index] = names

    def _forget(self) -> None:
        self._finish_queued = False
        for done in self._waiting:
            done.wait()
        self._waiting, self._problem = [], None
        self._non_finite.clear()

    def _dense(self, bucket: dist.GradBucket, names: list[str]) -> torch.futures.Future[Tensor]:
        pieces = self._pieces(bucket.buffer())
        whole = Bucket(bucket, names, len(pieces))
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[self._device] if self._device.type == "cuda" else []
        )
        self._waiting.append(whole.done)
        for number, piece in enumerate(pieces):
            channel = self._channels[(whole.index + number) % len(self._channels)]
            channel.submit(functools.partial(self._job, channel, whole, number, piece, future))
        return future

    def _sparse(self, bucket: dist.GradBucket, names: list[str]) -> torch.futures.Future[Tensor]:
        """Average as DDP does it: divide, then all-reduce in the default group.

        The order of buckets is the same on every rank.
        """
        whole = Bucket(bucket, names, 1)
        if not self._non_finite.ignored:
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
        """Return the pieces in which a bucket is averaged: the whole, unless it is oversized."""
        if self._device.type == "cuda" or self.options.wire == "powersgd":
            return [buffer]
        size = (self.options.bucket_mb or DDP_BUCKET_MB) * 2**20
        count = max(1, round(buffer.numel() * buffer.itemsize / size))
        length = -(-buffer.numel() // (count * _ALIGNED_VALUES)) * _ALIGNED_VALUES
        return list(buffer.split(length)) if count > 1 else [buffer]

    def _job(
        self,
        channel: Channel,
        whole: Bucket,
        number: int,
        piece: Tensor,
        future: torch.futures.Future[Tensor],
    ) -> None:
        try:
            if self._problem is None:
                if not self._non_finite.ignored:
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

    def _averaged(self, whole: Bucket) -> None:
        """Finish a bucket whose pieces are all averaged: note overflows, take the early step."""
        self._non_finite.note(whole)
        if self.early_steps is not None:
            self.early_steps.take(whole.parameters, whole.gradients)

    def _finish(self) -> None:
        """Wait for all buckets at the end of the backward pass, and raise what has gone wrong."""
        self._finish_queued = False
        for done in self._waiting:
            done.wait()
        for channel in self._channels:
            channel.wait()
        self._waiting.clear()
        self._raise_problem()
        # Runs after DDP has put the means into the gradients: DDP has queued that by now.
        if self.early_steps is not None:
            torch.autograd.Variable._execution_engine.queue_callback(self.early_steps.backward_done)  # type: ignore[attr-defined]
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
        """Load the state that `state_dict` returned.

        The rank, the world size and the options must be those of the saved state.
        """
        self._contents = dict(state.get("contents", {}))
        for channel, kept in zip(self._channels, state["channels"], strict=True):
            channel.load_state_dict(kept)

    def end_with(self, model: nn.Module) -> None:
        """Have the threads end when `model` is deleted.

        torch ends the process groups with the default one.
        """
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


# --------------------------------------------------------------------------------------------------
# Gradients that are infinite or not a number: say whose they are, and stop or skip the step.


class _Record(NamedTuple):
    """Finiteness of a bucket: of each gradient on this rank, and of the mean of all ranks."""

    names: list[str]
    not_finite: Tensor
    mean_is_not_finite: Tensor


class NonFiniteGradients:
    """Record of a backward pass's gradients that are not finite, and the reaction to them.

    Args:
        module: the module whose gradients are averaged; held weakly.
        reaction: the option `non_finite`: `ignore`, `stop` or `skip`.
        join_is_active: tells whether ranks without batches stand by at present (DDP's join). Such
            ranks take no part in saying whose gradients are not finite.
    """

    def __init__(
        self, module: nn.Module, reaction: str, join_is_active: Callable[[], bool]
    ) -> None:
        self.ignored = reaction == "ignore"
        self._stop = reaction == "stop"
        self._module = weakref.ref(module)
        self._join_is_active = join_is_active
        self._records: list[_Record] = []

    def note(self, bucket: Bucket) -> None:
        """Note the finiteness of an averaged bucket, unless it is ignored."""
        if not self.ignored:
            self._records.append(
                _Record(bucket.names, bucket.not_finite(), bucket.mean_is_not_finite())
            )

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
        # Runs after DDP has put the means into the parameters' gradients: DDP has queued that by
        # now.
        torch.autograd.Variable._execution_engine.queue_callback(self._drop_gradients)  # type: ignore[attr-defined]

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
        return (
            "; ".join(
                f"on rank {rank} of {_some(names)}" for rank, names in enumerate(everyone) if names
            )
            or elsewhere
        )

    def _drop_gradients(self) -> None:
        """Set gradients to None: optimizers then leave a parameter and its state as they are."""
        module = self._module()
        assert module is not None  # its backward pass is going on
        for parameter in module.parameters():
            parameter.grad = None


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
