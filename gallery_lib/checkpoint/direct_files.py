"""Files written past the page cache (O_DIRECT), whose digest is known when they are closed.

A checkpoint is hundreds of megabytes that nobody reads soon. In the page cache each of its pages
would be allocated, copied to, and dropped again later. That takes processor time from the training,
and so would reading the file again for its digest. Where the file system has no such writing
(tmpfs), the same file goes through the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import io
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

from gallery_lib.checkpoint import digests
from gallery_lib.checkpoint.manifest import FileFacts, file_facts

_BUFFER_BYTES = 4 * 2**20
_BLOCK_BYTES = 4096
"""Lengths and addresses of direct writes are multiples of it: the largest block of common disks."""


class DirectFile(io.RawIOBase):
    """New file that is only written, from its beginning to its end; `facts` once it is closed.

    Closing writes all of it to the disk.
    """

    def __init__(self, path: Path) -> None:
        """Create the file, or empty it.

        Raises:
            OSError: it cannot be created.
        """
        super().__init__()
        self.facts: FileFacts | None = None
        self._buffer = mmap.mmap(-1, _BUFFER_BYTES)  # begins at a page, as direct writes need it
        self._filled = self._written = 0
        self._digest = digests.new(digests.NAME)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._direct = getattr(os, "O_DIRECT", 0)
        try:
            self._descriptor = os.open(path, flags | self._direct, 0o666)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
            self._direct = 0
            self._descriptor = os.open(path, flags, 0o666)

    def writable(self) -> bool:
        """Return True, since the file is there to be written and nothing else."""
        return True

    def tell(self) -> int:
        """Return the place in bytes at which the next write goes on."""
        return self._written + self._filled

    def write(self, data: Any) -> int:
        """Append bytes; return their number.

        Raises:
            OSError: the disk is full, or fails.
        """
        view = memoryview(data).cast("B")
        taken = 0
        while taken < len(view):
            part = view[taken : taken + _BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            taken += len(part)
            if self._filled == _BUFFER_BYTES:
                self._write_out(_BUFFER_BYTES)
        return taken

    def close(self) -> None:
        """Write what is left, wait until all is on the disk, and close the file."""
        if self.closed:
            return
        try:
            if self._filled:
                self._write_out(-(-self._filled // _BLOCK_BYTES) * _BLOCK_BYTES)
            os.ftruncate(self._descriptor, self._written)
            os.fsync(self._descriptor)
            self.facts = file_facts(self._written, digests.NAME, self._digest.hexdigest())
        finally:
            super().close()
            os.close(self._descriptor)

    def _write_out(self, length: int) -> None:
        """Write the first `length` bytes of the buffer, of which those that are filled count."""
        with memoryview(self._buffer) as view:
            self._digest.update(view[: self._filled])
            done = 0
            while done < length:
                done += self._write_once(view[done:length])
        self._written += self._filled
        self._filled = 0

    def _write_once(self, view: memoryview) -> int:
        try:
            return os.write(self._descriptor, view)
        except OSError as error:
            if error.errno != errno.EINVAL or not self._direct:
                raise
            import fcntl

            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~self._direct)
            self._direct = 0
            return os.write(self._descriptor, view)


class DirectFiles(FileSystem):
    """File system of torch's checkpoints whose new files are direct ones; `facts` by file name."""

    def __init__(self) -> None:
        self.facts: dict[str, FileFacts] = {}

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file for reading, or a new one for writing."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with DirectFile(Path(path)) as file:
            yield file
        if file.facts is not None:
            self.facts[Path(path).name] = file.facts

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Rename a file; its length and digest are then under the new name."""
        super().rename(path, new_path)
        if facts := self.facts.pop(Path(path).name, None):
            self.facts[Path(new_path).name] = facts
