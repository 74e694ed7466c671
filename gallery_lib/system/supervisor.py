"""Run one command so that none of its processes outlives this process or its parent.

    python -m gallery_lib.system.supervisor COMMAND …

The supervisor runs in a session of its own. It adopts every orphan below it, so that a killed
torchrun cannot leave workers behind. It ends all of them when the command ends, when it is
terminated, or when the process that started it is gone. Its exit code is the command's. After
`--stdin` the command has this process's standard input, else none.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import FrameType

from gallery_lib.system.exit_codes import exit_code_of_signal, shell_exit_code
from gallery_lib.system.processes import (
    HEARS_STDIN,
    KILLED_AT_ONCE_VARIABLE,
    adopt_orphans,
    die_with_parent,
    end_descendants,
)


class _Terminated(Exception):
    pass


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise _Terminated


def main(command: list[str]) -> int:
    """Run `command` to its end and return its exit code, as shells tell it."""
    heard = command[0] == HEARS_STDIN
    command = command[heard:]
    parent = os.getppid()
    adopt_orphans()
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    code = exit_code_of_signal(signal.SIGTERM)
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(
            command, stdin=None if heard else subprocess.DEVNULL, preexec_fn=die_with_parent
        )
        while child.poll() is None and os.getppid() == parent:
            try:
                child.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                continue
        if child.returncode is not None:
            code = shell_exit_code(child.returncode)
    except _Terminated:
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if child is not None and os.environ.get(KILLED_AT_ONCE_VARIABLE):
            child.kill()
        end_descendants()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
