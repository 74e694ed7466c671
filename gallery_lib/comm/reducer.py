"""Communication hook of an accelerated DistributedDataParallel: buckets go to channels in turn.

A channel averages one buffer after another in process groups of its own. On the CPU a thread does
the work, beside the backward pass. On CUDA the caller's thread only queues it, on a stream of the
channel's own.

A parameter that is larger than a bucket makes a bucket of its own size (VGG-16's has 411 MB). On
the CPU such a bucket goes in pieces of a bucket's size, to the channels in turn. While one piece is
on the wire another is added up within the host. The data in flight at a time needs no more memory
than buckets do.

This module does not postpone annotations (`from __future__ import annotations`), since torch reads
those of a hook.
"""

import contextlib
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from gallery_lib.comm import process_group, wire_formats
from gallery_lib.comm.heartbeat import Heartbeat
from gallery_lib.comm.optimizer_in_backward import EarlySteps
from gallery_lib.comm.torch_ddp import DDP, at_end_of_backward
from gallery_lib.config import Comm
from gallery_lib.errors import InputError, RunFailed

SHARED_MEMORY = Path("/dev/shm")
DDP_BUCKET_MB = 25
"""DDP's own size of all buckets but the first, in MiB."""
_ALIGNED_VALUES = 64  # of the pieces of a bucket


class SharedSlots:
    """Shared memory with a flat buffer for each process of a host, and one for the result.

    Within a host it is many times faster than sockets. Each process sees all buffers. The
    constructor and growth are collective calls in `group`, the processes of the host. The file
    behind the memory never has a name: the other processes open it through the first process's
    entry in /proc. So it goes away with the processes, however and whenever they end.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._signal = torch.zeros(1)
        self._row_bytes = 0
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _open(self, size: int) -> None:
        first = dist.get_process_group_ranks(self.group)[0]
        path: list[str] = [""]
        handle, problem = None, ""
        try:
            if dist.get_rank() == first:
                handle = os.open(SHARED_MEMORY, os.O_TMPFILE | os.O_RDWR, 0o600)
                # Pages are reserved now: a page that is missing later would be a SIGBUS.
                os.posix_fallocate(handle, 0, size)
                path = [f"/proc/{os.getpid()}/fd/{handle}"]
        except OSError as error:
            problem = f": {error}"
        dist.broadcast_object_list(path, src=first, group=self.group)
        try:
            self._memory = torch.from_file(path[0], shared=True, size=size, dtype=torch.uint8)
        except RuntimeError as error:
            problem = problem or f": {error}"
        had = torch.tensor(float(not problem))
        dist.all_reduce(had, dist.ReduceOp.MIN, group=self.group)
        if handle is not None:
            os.close(handle)
        if not had:
            raise InputError(
                f"hierarchical communication needs {size / 2**20:.0f} MiB of shared memory in "
                f"{SHARED_MEMORY}, which could not be had{problem}. Make it larger (docker run "
                "--shm-size), or leave hierarchical off.",
                parameter="hierarchical",
            )

    def of(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return [processes + 1, size] of `dtype`; the last row is for the result.

        The previous content is gone when the memory has to grow. Rows keep their places, whatever
        the size: a process may still read the last result while others write anew.
        """
        rows, wanted = dist.get_world_size(self.group) + 1, size * dtype.itemsize
        if wanted > self._row_bytes:
            row = -(-wanted // 64) * 64
            self._open(rows * row)
            self._row_bytes = row
        return self._memory.view(rows, self._row_bytes)[:, :wanted].view(dtype)

    def meet(self) -> None:
        """Return when every process of the host has called this (a barrier)."""
        dist.all_reduce(self._signal, group=self.group)


class Channel:
    """Queue that averages flat buffers over the ranks of the default group.

    The constructor is a collective call.
    """

    def __init__(self, options: Comm, hosts: process_group.Topology, device: torch.device) -> None:
        self._world = dist.get_world_size()
        self._scratch = wire_formats.Scratch()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        local, across = process_group.averaging_groups(hosts, options.hierarchical)
        self._groups = [group for group in (local, across) if group is not None]
        self.exchange = wire_formats.exchange_of(options, across)
        self._slots = SharedSlots(local) if local is not None else None
        if self._stream is None:
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` after the jobs submitted before."""
        if self._stream is None:
            self._jobs.put(job)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            job()

    def wait(self) -> None:
        """Have the caller's CUDA stream wait for what was submitted; on the CPU do nothing."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def end_thread(self) -> None:
        """End the thread once it has done the jobs submitted so far."""
        self._jobs.put(None)

    def close(self) -> None:
        """End the thread and destroy the process groups."""
        self.end_thread()
        for group in self._groups:
            dist.destroy_process_group(group)

    def average_(self, key: wire_formats.Key, buffer: Tensor) -> None:
        """Replace the flat `buffer`, a bucket's or a piece of it, by its mean over all ranks.

        With `wire="exact"` sums are made in the buffer's own dtype. 16-bit values within a host are
        the exception: they are summed in fp32 and rounded once. `key` identifies the buffer, for
        residuals.
        """
        if self._world == 1:
            return
        if self._slots is not None:
            self._through_shared_memory(self._slots, key, buffer)
        else:
            self._across(key, buffer, self._world)

    def _across(self, key: wire_formats.Key, buffer: Tensor, divisor: int = 1) -> None:
        if self.exchange.group is not None and buffer.numel():  # all peers have as many values
            self.exchange.sum_(buffer, key, divisor)

    def _through_shared_memory(
        self, slots: SharedSlots, key: wire_formats.Key, buffer: Tensor
    ) -> None:
        """Average over the host in shared memory, and with peers on other hosts by the wire format.

        Each process of the host sums one part of all processes' buffers, and exchanges that part
        with its peers.
        """
        rows = slots.of(buffer.numel(), buffer.dtype)
        processes, place = dist.get_world_size(slots.group), dist.get_rank(slots.group)
        # Divide before adding, as DDP does: a sum may overflow where the mean does not.
        torch.div(buffer, self._world, out=rows[place])
        slots.meet()
        part = slice(*(buffer.numel() * edge // processes for edge in (place, place + 1)))
        dtype = torch.promote_types(buffer.dtype, torch.float32)
        total = self._scratch.of(part.stop - part.start, dtype=dtype, like=buffer)
        torch.sum(rows[:processes, part], 0, dtype=dtype, out=total)
        own = total.to(buffer.dtype)
        self._across(key, own)
        rows[processes, part].copy_(own)
        slots.meet()
        buffer.copy_(rows[processes])


class _Bucket:
    """A bucket in flight: its buffer, and the number of pieces that are not averaged yet."""

    def __init__(self, bucket: dist.GradBucket, pieces: int) -> None:
        self.index, self.buffer = bucket.index(), bucket.buffer()
        self.parameters, self.gradients = bucket.parameters(), bucket.gradients()
        self._left = pieces
        self._lock = threading.Lock()

    def piece_done(self) -> bool:
        """Count a piece as averaged; return whether it was the last one."""
        with self._lock:
            self._left -= 1
            return self._left == 0


def _end_threads(heartbeat: Heartbeat, channels: list[Channel]) -> None:
    heartbeat.end()
    for channel in channels:
        channel.end_thread()


class GradientReducer:
    """Communication hook that averages gradients as `options` say.

    The constructor is a collective call. With gloo the work is done by threads. A failure there, a
    rank that has gone, is raised at the end of the backward pass, on every rank that sees it.

    Args:
        model: the DistributedDataParallel; the threads end when it is deleted.
        options: how gradients are averaged.
        early_steps: takes the optimizer's step of each bucket that has been averaged.
    """

    def __init__(self, model: DDP, options: Comm, early_steps: EarlySteps | None = None) -> None:
        self.options = options
        self.early_steps = early_steps
        # torch's reducer keeps this object alive, unseen by garbage collection, so no attribute of
        # it may hold the model.
        self._device = model.device
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        hosts = process_group.find_topology()
        self._channels = [Channel(options, hosts, model.device) for _ in range(options.streams)]
        # Names of each bucket's parameters, by the bucket's index.
        self._contents: dict[int, list[str]] = {}
        self._heartbeat = Heartbeat()
        self._finish_queued = False
        self._waiting: list[Future[Tensor]] = []
        self._problem: BaseException | None = None
        self._ending = weakref.finalize(model, _end_threads, self._heartbeat, self._channels)
        self._ending.atexit = False

    def take(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start averaging a bucket; DDP calls this hook in the same order on every rank."""
        # a backward pass was broken off, and never came to its end
        if bucket.index() == 0 and self._finish_queued:
            with contextlib.suppress(RuntimeError):
                self._wait()
            self._finish_queued, self._problem = False, None
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
                channel.exchange.forget(bucket.index())
        self._contents[bucket.index()] = names
        pieces = self._pieces(bucket.buffer())
        whole = _Bucket(bucket, len(pieces))
        future: Future[Tensor] = Future(
            devices=[self._device] if self._device.type == "cuda" else []
        )
        for number, piece in enumerate(pieces):
            channel = self._channels[(whole.index + number) % len(self._channels)]
            channel.submit(functools.partial(self._job, channel, whole, number, piece, future))
        self._waiting.append(future)
        return future

    def _wait(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            future.wait()

    def _pieces(self, buffer: Tensor) -> list[Tensor]:
        """Return the pieces of a bucket to average: on the CPU, several for an oversized one."""
        if self._device.type == "cuda":
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
                channel.average_((whole.index, whole.buffer.numel(), number), piece)
        except RuntimeError as problem:
            self._problem = self._named(problem)
        except BaseException as problem:
            self._problem = problem
        if not whole.piece_done():
            return
        try:
            if self._problem is None and self.early_steps is not None:
                self.early_steps.take(whole.parameters, whole.gradients)
        except BaseException as problem:
            self._problem = problem
        finally:
            future.set_result(whole.buffer)

    def _named(self, problem: RuntimeError) -> RunFailed:
        """Return the error for a failed communication, which names the ranks that are silent."""
        reason = f"{self._heartbeat.silent_ranks()} ({type(problem).__name__}: {problem})"
        error = RunFailed(f"rank {dist.get_rank()}: gradients could not be averaged: {reason}.")
        error.__cause__ = problem
        return error

    def _finish(self) -> None:
        """Wait for all buckets at the end of the backward pass, and raise what has gone wrong."""
        self._finish_queued = False
        self._wait()
        for channel in self._channels:
            channel.wait()
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem
        # Runs after DDP has put the means into the gradients: DDP has queued that by now.
        if self.early_steps is not None:
            at_end_of_backward(self.early_steps.backward_done)

    def state_dict(self) -> dict[str, Any]:
        """Return the error-feedback state of this rank, for this rank's part of a checkpoint."""
        return {
            "channels": [
                {key: kept.clone() for key, kept in channel.exchange.residuals.items()}
                for channel in self._channels
            ],
            "contents": dict(self._contents),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state that `state_dict` returned with the same rank, world size and options."""
        self._contents = dict(state["contents"])
        for channel, kept in zip(self._channels, state["channels"], strict=True):
            channel.exchange.residuals = {key: value.clone() for key, value in kept.items()}

    def close(self) -> None:
        """End the threads and process groups. A collective call."""
        self._ending.detach()
        self._heartbeat.stop()
        for channel in self._channels:
            channel.close()
