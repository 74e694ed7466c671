"""End a lab and remove its processes, its cgroups and its file, and nothing else.

A process belongs to a lab when its network namespace has the lab's mark, or when it is in the lab's
cgroup. Namespaces and links go with the processes.
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
    """Return whether the lab is complete and its keeper still holds it."""
    return lab.complete and lab.keeper is not None and namespaces.have_mark([lab.keeper], lab.mark)


def names_up() -> list[str]:
    """Return the names of all labs that are up."""
    return [name for name in state.names() if (known := state.read(name)) and alive(known)]


def _processes(lab: State) -> list[int]:
    """Return the ids of all the lab's processes except this one."""
    marked = [
        pids for pids in namespaces.processes().values() if namespaces.have_mark(pids, lab.mark)
    ]
    return sorted({pid for pids in [*marked, cpu.members(lab.cpu)] for pid in pids} - {os.getpid()})


def clear(lab: State) -> None:
    """End and remove everything of the lab; the caller holds the lock.

    Raises:
        InputError: when it belongs to another user.
        RunFailed: when something will not go.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    # A process that was being started may come in meanwhile.
    while (pids := _processes(lab)) or not cpu.remove(lab.cpu):
        if time.monotonic() > deadline:
            raise RunFailed(
                f"processes {pids} of the lab `{lab.name}` do not end. "
                "They may wait for a device; try again later."
            )
        for pid in pids:
            try:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            except PermissionError:
                raise InputError(
                    f"the lab `{lab.name}` belongs to another user, "
                    "as whom it has to be taken down.",
                    parameter="name",
                ) from None
        time.sleep(0.02)
    state.delete(lab)


def clear_leftovers() -> list[str]:
    """Clear every known lab that is not alive; return their names. The caller holds the lock."""
    state.delete_half_written()
    cleared = []
    for name in state.names():
        lab = state.read(name)
        if lab is not None and not alive(lab):
            clear(lab)
            cleared.append(name)
    return cleared


def take_down(name: str) -> list[str]:
    """End and remove the lab of that name, and what killed processes have left of others.

    Return the names of all labs that were removed.
    """
    state.check_name(name)
    with state.locked():
        cleared = clear_leftovers()
        if known := state.read(name):
            clear(known)
            cleared.append(name)
    return cleared
