"""Search for the training processes of a run among the descendants of a process, and waiting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil

_STARTERS = (
    "torch.distributed.run",
    "gallery_lib.launcher.torchrun",
    "gallery_lib.launcher.forked",
)


def _starts_workers(process: psutil.Process | None) -> bool:
    """Return whether the process starts workers: torchrun, ours or `launcher/forked.py`.

    A process that one of them has forked has the same command line.
    """
    words = [] if process is None else process.cmdline()[1:]
    return words[words[:1] == ["-P"] :][:2] in [["-m", module] for module in _STARTERS]


def _is_worker(process: psutil.Process) -> bool:
    """Return whether the process is a worker: a child of what starts workers.

    Children of a worker, such as data-loading processes, are none.
    """
    parent = process.parent()
    return parent is not None and _starts_workers(parent) and not _starts_workers(parent.parent())


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the training processes that run now."""
    found = []
    for each in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if _is_worker(each):
                found.append(each)
    return found


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Return what the condition gives as soon as it holds, and fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it has not come true in time"
        time.sleep(0.03)
    return found
