"""Lock that keeps two runs of `prepare.sh` in the same checkout apart."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from gallery_lib.cli.preparation.progress import say


@contextlib.contextmanager
def checkout_lock(cache: Path) -> Iterator[None]:
    """Context: hold the lock in `cache`; wait for another run that holds it.

    Commands that are started in the context hold it too. A run that is killed thus keeps the next
    one waiting until its last command has ended.
    """
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "prepare.lock").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another prepare.sh is at work here: waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
