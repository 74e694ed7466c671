"""Memory that the processes of a host share: within a host it is many times faster than sockets."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gallery_lib.errors import InputError

FOLDER = Path("/dev/shm")


class SharedSlots:
    """A flat buffer for each process of a host, and one for the result, all of which each of them sees.

    Making and growing it are collective calls in `group`, the processes of the host. The file behind it has no name any
    more once all have opened it, so it goes away with them however they end.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._signal = torch.zeros(1)
        self._row_bytes = 0
        self._memory = torch.empty(0, dtype=torch.uint8)

    def _open(self, size: int) -> None:
        first = dist.get_process_group_ranks(self._group)[0]
        told: list[str | None] = [None]
        path = error = None
        if dist.get_rank() == first:
            try:
                handle, path = tempfile.mkstemp(prefix="gallery-comm-", dir=FOLDER)
                with contextlib.closing(os.fdopen(handle, "wb")) as file:
                    os.posix_fallocate(file.fileno(), 0, size)  # reserved now: a page that is missing later would be a SIGBUS
            except OSError as problem:
                error = problem
            told = [None if error else path]
        try:
            dist.broadcast_object_list(told, src=first, group=self._group)
            if told[0] is None:
                raise InputError(
                    f"hierarchical communication needs {size / 2**20:.0f} MiB of shared memory in {FOLDER}, which could not be had"
                    f"{f': {error}' if error else ''}. Make it larger (docker run --shm-size), or leave hierarchical off."
                )
            self._memory = torch.from_file(told[0], shared=True, size=size, dtype=torch.uint8)
            self.meet()
        finally:
            if path is not None:
                Path(path).unlink()

    def of(self, size: int, dtype: torch.dtype) -> Tensor:
        """[processes + 1, size] of `dtype`, the last row for the result; what was in it before is gone when it has to grow.

        Rows lie where they did before, whatever the size: a process may still read the last result while others write anew.
        """
        rows, wanted = dist.get_world_size(self._group) + 1, size * dtype.itemsize
        if wanted > self._row_bytes:
            row = -(-wanted // 64) * 64
            self._open(rows * row)
            self._row_bytes = row
        return self._memory.view(rows, self._row_bytes)[:, :wanted].view(dtype)

    def meet(self) -> None:
        """Returns when every process of the host has come here."""
        dist.all_reduce(self._signal, group=self._group)
