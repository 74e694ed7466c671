"""Process that holds a lab's namespaces, `-m gallery_lib.cluster.keeper NAME`, and a lab's end.

The keeper says on standard output whether it could make them, and then listens to standard input.
While that is open the lab belongs to the process at the other end. When that process ends, however
it ends, the keeper ends the lab and itself. After the word `keep` the lab stays until the keeper is
killed, or its file is gone.

A process belongs to a lab when its network namespace has the lab's mark, or when it is in the lab's
cgroup. Namespaces and links go with the processes, and nothing else is touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

from gallery_lib.cluster import cpu, network, state
from gallery_lib.cluster.state import State
from gallery_lib.errors import RunFailed
from gallery_lib.system.processes import PYTHON, ends, search_path

_KEEP = b"keep\n"
_LOOK_SECONDS = 2.0
_KILL_SECONDS = 5.0


def start(name: str) -> subprocess.Popen[str]:
    """Start the keeper of the lab of that name, which is described in its file; return it."""
    return subprocess.Popen(
        [*PYTHON, "-m", "gallery_lib.cluster.keeper", name],
        env={**os.environ, "PYTHONPATH": search_path()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def makes_user_namespace(keeper: subprocess.Popen[str]) -> bool:
    """Wait until the keeper has made the namespaces; return whether in a user namespace.

    Raises:
        LabUnavailable: where this user may make none.
    """
    assert keeper.stdout is not None
    if not (line := keeper.stdout.readline()):
        reason = keeper.stderr.read() if keeper.stderr else ""
        raise RunFailed(f"the process that keeps the lab ended at its start:\n{reason}")
    answer = json.loads(line)
    if "errno" in answer:
        raise network.no_namespaces(answer["errno"])
    return answer["user_namespace"]


def detach(keeper: subprocess.Popen[str]) -> None:
    """Have the keeper and its lab outlive this process."""
    assert keeper.stdin is not None
    keeper.stdin.write(_KEEP.decode())
    keeper.stdin.close()


def alive(lab: State) -> bool:
    """Return whether the lab is complete and its keeper still holds it."""
    return (
        lab.complete
        and lab.keeper is not None
        and network.have_mark([lab.keeper], lab.mark)
        and not ends(lab.keeper)
    )


def names_up() -> list[str]:
    """Return the names of all labs that are up."""
    return [name for name in state.names() if (known := state.read(name)) and alive(known)]


def _processes(lab: State) -> list[int]:
    marked = [pids for pids in network.processes().values() if network.have_mark(pids, lab.mark)]
    return sorted({pid for pids in [*marked, cpu.members(lab.cpu)] for pid in pids} - {os.getpid()})


def clear(lab: State) -> None:
    """End and remove everything of the lab; the caller holds the lock.

    Raises:
        PermissionError: when it belongs to another user.
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
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    state.delete(lab)


def clear_leftovers() -> list[str]:
    """Clear every known lab that is not alive; return their names. The caller holds the lock."""
    labs = [lab for name in state.names() if (lab := state.read(name)) and not alive(lab)]
    for lab in labs:
        clear(lab)
    return [lab.name for lab in labs]


def take_down(name: str) -> list[str]:
    """Remove the lab of that name, and what killed processes have left; return all their names."""
    with state.locked():
        cleared = clear_leftovers()
        if known := state.read(name):
            clear(known)
            cleared.append(name)
    return cleared


def _wait_for_the_end(lab: State) -> State:
    """Wait until the lab is to end; return what was last known of it."""
    if os.read(0, len(_KEEP)) == _KEEP:
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        while (kept := state.read(lab.name)) is not None and kept.id == lab.id:
            lab = kept
            time.sleep(_LOOK_SECONDS)
    return lab


def main(name: str) -> None:
    """Make and hold the namespaces of the lab that the file of this name describes."""
    lab = state.read(name)
    assert lab is not None
    try:
        user_namespace = network.make_namespaces(len(lab.hosts))
    except OSError as error:
        print(json.dumps({"errno": error.errno}), flush=True)
        return
    with contextlib.suppress(BrokenPipeError):  # whoever made the lab is gone already
        print(json.dumps({"user_namespace": user_namespace}), flush=True)
        lab = _wait_for_the_end(lab)
    with state.locked():
        kept = state.read(name)
        clear(kept if kept is not None and kept.id == lab.id else lab)


if __name__ == "__main__":
    main(sys.argv[1])
