"""Cores for a process of the tests: one of its own, all of them, or all with nothing beside it.

There are two file locks. A process holds `turn` while it waits for `cores`. So those who want a
share never overtake a process that waits for the whole machine. Nothing is done where processes
cannot be pinned, or where there is only one.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Share:
    """A process's share of the machine.

    `number` says which of the processes this is, and is None when it is the only one. `cores` are
    those of all processes together.
    """

    number: int | None
    cores: frozenset[int]
    folder: Path

    @classmethod
    def of_this_process(cls) -> Share:
        """Return the share of this process, by the variables that pytest-xdist sets."""
        can_pin = hasattr(os, "sched_getaffinity")
        cores = frozenset(os.sched_getaffinity(0)) if can_pin else frozenset()
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID", "alone")
        folder = Path(tempfile.gettempdir(), f"gallery-tests-{run}")
        if not 1 < processes <= len(cores):
            return cls(None, cores, folder)
        folder.mkdir(exist_ok=True)
        return cls(int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), cores, folder)

    def take_own_core(self) -> None:
        """Pin this process, and what it will start, to its own core."""
        if self.number is not None:
            # A process that stands in for one that crashed has a higher number.
            os.sched_setaffinity(0, {sorted(self.cores)[self.number % len(self.cores)]})

    @contextmanager
    def taken(self, *, several: bool, whole: bool) -> Iterator[None]:
        """Context: hold the share until the end of the block.

        With `several` this process may use every core, and others go on beside it; with `whole` it
        is alone on the machine.
        """
        if self.number is None:
            yield
            return
        with (self.folder / "turn").open("w") as turn, (self.folder / "cores").open("w") as cores:
            fcntl.flock(turn, fcntl.LOCK_EX)
            fcntl.flock(cores, fcntl.LOCK_EX if whole else fcntl.LOCK_SH)
            fcntl.flock(turn, fcntl.LOCK_UN)
            if several or whole:
                os.sched_setaffinity(0, self.cores)
            try:
                yield
            finally:
                self.take_own_core()
                # Processes that a test has forked hold the file as well, and may outlive the test.
                fcntl.flock(cores, fcntl.LOCK_UN)
