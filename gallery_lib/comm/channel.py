"""A channel for buckets or pieces of them: it averages one after another in its own process groups.

On the CPU a thread does the work, beside the backward pass. On CUDA the caller's thread only queues
the work, on a stream of the channel's own.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.comm import topology, wire_formats
from gallery_lib.config import Comm
from gallery_lib.errors import InputError

SHARED_MEMORY = Path("/dev/shm")


class Channel:
    """Queue that averages flat buffers over the ranks of the default group.

    The constructor is a collective call.
    """

    def __init__(self, options: Comm, hosts: topology.Topology, device: torch.device) -> None:
        self._world = dist.get_world_size()
        self._scratch = wire_formats.Scratch()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        local, across = (
            topology.groups(hosts) if options.hierarchical else (None, topology.new_group())
        )
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
