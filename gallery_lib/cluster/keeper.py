"""Process that holds a lab's namespaces: `-m gallery_lib.cluster.keeper NAME`.

It says on standard output whether it could make them, and then listens to standard input. While
that is open the lab belongs to the process at the other end. When that process ends, however it
ends, the keeper ends the lab and itself. After the word `keep` the lab stays until the keeper is
killed, or its file is gone. `start`, `makes_user_namespace` and `detach` are for the other end.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time

from gallery_lib.cluster import cleanup, namespaces, requirements, state
from gallery_lib.cluster.state import State
from gallery_lib.errors import RunFailed
from gallery_lib.system.processes import PYTHON, search_path

_KEEP = b"keep\n"
_LOOK_SECONDS = 2.0


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
        RunFailed: if the keeper has ended.
    """
    assert keeper.stdout is not None and keeper.stderr is not None
    try:
        answer = json.loads(keeper.stdout.readline())
    except json.JSONDecodeError:
        raise RunFailed(
            f"the process that keeps the lab ended at its start:\n{keeper.stderr.read()}"
        ) from None
    if "errno" in answer:
        raise requirements.no_namespaces(answer["errno"])
    return answer["user_namespace"]


def detach(keeper: subprocess.Popen[str]) -> None:
    """Have the keeper and its lab outlive this process."""
    assert keeper.stdin is not None
    keeper.stdin.write(_KEEP.decode())
    keeper.stdin.close()


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
        user_namespace = namespaces.make(len(lab.hosts))
    except OSError as error:
        print(json.dumps({"errno": error.errno}), flush=True)
        return
    with contextlib.suppress(BrokenPipeError):  # whoever made the lab is gone already
        print(json.dumps({"user_namespace": user_namespace}), flush=True)
        lab = _wait_for_the_end(lab)
    with state.locked():
        kept = state.read(name)
        cleanup.clear(kept if kept is not None and kept.id == lab.id else lab)


if __name__ == "__main__":
    main(sys.argv[1])
