"""Ends a lab and takes away all that is left of one: its processes, its cgroups, its file. Nothing else is touched.

A process belongs to a lab when its network namespace has the lab's mark, or when it is in the lab's cgroup. Namespaces
and links go with the processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from gallery_lib.cluster import cpu, namespaces, state
from gallery_lib.cluster.state import State
from gallery_lib.errors import InputError, RunFailed

_KILL_SECONDS = 5.0


def alive(lab: State) -> bool:
    """Whether it was made to the end, and its keeper still holds it."""
    return lab.complete and lab.keeper is not None and namespaces.have_mark([lab.keeper], lab.mark)


def _processes(lab: State) -> list[int]:
    """All of the lab's but this one."""
    marked = [
        pids for pids in namespaces.processes().values() if namespaces.have_mark(pids, lab.mark)
    ]
    return sorted({pid for pids in [*marked, cpu.members(lab.cpu)] for pid in pids} - {os.getpid()})


def clear(lab: State) -> None:
    """End and remove everything of the lab; the caller holds the lock.

    Raises InputError when it belongs to another user, RunFailed when something will not go.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while (pids := _processes(lab)) or not cpu.remove(
        lab.cpu
    ):  # one that was being started may come in meanwhile
        if time.monotonic() > deadline:
            raise RunFailed(
                f"processes {pids} of the lab `{lab.name}` do not end. They may wait for a device; try again later."
            )
        for pid in pids:
            try:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            except PermissionError:
                raise InputError(
                    f"the lab `{lab.name}` belongs to another user, as whom it has to be taken down."
                ) from None
        time.sleep(0.02)
    state.delete(lab)


def clear_leftovers() -> list[str]:
    """Clear every known lab that is not alive; the caller holds the lock. Returns their names."""
    state.delete_half_written()
    cleared = []
    for name in state.names():
        lab = state.read(name)
        if lab is not None and not alive(lab):
            clear(lab)
            cleared.append(name)
    return cleared
