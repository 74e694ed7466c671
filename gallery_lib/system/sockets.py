"""Private folder for Unix sockets and for files in which processes meet, with a short path.

The kernel takes a socket's path up to 107 bytes, and TMPDIR may be longer on a cluster. A folder in
memory comes first: a full disk does not cut a file there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from multiprocessing import process, util
from pathlib import Path

from gallery_lib.system.files import LockHeld, locked
from gallery_lib.system.processes import SOCKETS_VARIABLE

_PREFIX = "gallery-sockets-"
_NEW_SECONDS = 60
"""A younger folder may not have its owner's lock yet."""
_LONGEST_BASE = 60
"""Bytes: a socket may have 107, of which the folder's name and its own take 42."""


class PrivateFolder:
    """A new folder, `path`, that nobody else may enter, until `close`."""

    def __init__(self) -> None:
        bases = [
            base
            for base in ("/dev/shm", tempfile.gettempdir(), "/tmp")
            if len(os.fsencode(base)) <= _LONGEST_BASE and os.access(base, os.W_OK)
        ]
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=next(iter(bases), None)))
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(locked(self.path))

    def close(self) -> None:
        """Remove the folder, and those whose owners were killed."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
        for folder in self.path.parent.glob(f"{_PREFIX}*"):
            with contextlib.suppress(OSError, LockHeld):
                there = folder.stat()
                if there.st_uid == os.geteuid() and time.time() - there.st_mtime > _NEW_SECONDS:
                    with locked(folder, wait=False):
                        shutil.rmtree(folder, ignore_errors=True)


def shorten_loaders_paths() -> None:
    """Have this process and its loading processes hand over batches in a folder with a short path.

    multiprocessing takes a folder in TMPDIR for each loading process, and leaves it there when that
    is killed. This one is the run's, or else this process's own until its end.
    """
    config = process.current_process()._config  # type: ignore[attr-defined]
    if config.get("tempdir") is None:
        if (folder := os.environ.get(SOCKETS_VARIABLE)) is None:
            own = PrivateFolder()
            util.Finalize(None, own.close, exitpriority=-100)  # when loading processes have ended
            folder = str(own.path)
        config["tempdir"] = folder
