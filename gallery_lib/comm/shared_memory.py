"""Shared memory of the processes of a host: within a host it is many times faster than sockets."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.errors import InputError

FOLDER = Path("/dev/shm")


class SharedSlots:
    """Shared memory with a flat buffer for each process of a host, and one for the result.

    Each process sees all of them. The constructor and growth are collective calls in `group`, the
    processes of the host. The file behind the memory never has a name: the other processes open it
    through the first process's entry in /proc. So it goes away with the processes, however and
    whenever they end.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._signal = torch.zeros(1)
        self._row_bytes = 0
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _open(self, size: int) -> None:
        first = dist.get_process_group_ranks(self._group)[0]
        paths: list[str | None] = [None]
        handle, problem = None, ""
        try:
            if dist.get_rank() == first:
                try:
                    handle = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR, 0o600)
                    # Pages are reserved now: a page that is missing later would be a SIGBUS.
                    os.posix_fallocate(handle, 0, size)
                    paths = [f"/proc/{os.getpid()}/fd/{handle}"]
                except OSError as error:
                    problem = f": {error}"
            dist.broadcast_object_list(paths, src=first, group=self._group)
            if paths[0] is not None:
                try:
                    self._memory = torch.from_file(
                        paths[0], shared=True, size=size, dtype=torch.uint8
                    )
                except RuntimeError as error:
                    paths, problem = [None], f": {error}"
            had = torch.tensor(float(paths[0] is not None))
            dist.all_reduce(had, dist.ReduceOp.MIN, group=self._group)
        finally:
            if handle is not None:
                os.close(handle)
        if not had:
            raise InputError(
                f"hierarchical communication needs {size / 2**20:.0f} MiB of shared memory in "
                f"{FOLDER}, which could not be had{problem}. Make it larger (docker run "
                "--shm-size), or leave hierarchical off.",
                parameter="hierarchical",
            )

    def of(self, size: int, dtype: torch.dtype) -> Tensor:
        """Return [processes + 1, size] of `dtype`; the last row is for the result.

        The previous content is gone when the memory has to grow. Rows keep their places, whatever
        the size: a process may still read the last result while others write anew.
        """
        rows, wanted = dist.get_world_size(self._group) + 1, size * dtype.itemsize
        if wanted > self._row_bytes:
            row = -(-wanted // 64) * 64
            self._open(rows * row)
            self._row_bytes = row
        return self._memory.view(rows, self._row_bytes)[:, :wanted].view(dtype)

    def meet(self) -> None:
        """Return when every process of the host has called this (a barrier)."""
        dist.all_reduce(self._signal, group=self._group)
