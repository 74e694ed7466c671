"""Finds the training processes of a run among the descendants of a process."""

from __future__ import annotations

import contextlib

import psutil


def _is_worker(process: psutil.Process) -> bool:
    """Started by torchrun; or forked by spawn, and so with its command line."""
    words, parent = process.cmdline(), process.parent()
    above = parent.cmdline() if parent is not None else []
    if words[1:3] == ["-m", "gallery_lib.spawn"]:
        return above == words
    return "torch.distributed.run" in above and "torch.distributed.run" not in words


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Those that run now."""
    found = []
    for each in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if _is_worker(each):
                found.append(each)
    return found
