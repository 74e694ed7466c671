"""Run one command so that none of its processes outlives this process or its parent.

    python -m gallery_lib.system.supervisor PARENT COMMAND …

The supervisor runs in a session of its own. It adopts every orphan below it, so that a killed
torchrun cannot leave workers behind. It ends all of them when the command ends, when it is
terminated, or when PARENT, the process that started it, is gone. Its exit code is the command's.
The command has no input. `end_supervised` sends SIGINT; with `HEARS_NOTICE_VARIABLE` the supervisor
and its command ignore SIGTERM and SIGUSR1: a scheduler sends them to every process, and the ranks
alone listen.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from types import FrameType

from gallery_lib.system.processes import (
    HEARS_NOTICE_VARIABLE,
    SOCKETS_VARIABLE,
    adopt_orphans,
    die_with_parent,
    end_descendants,
    shell_exit_code,
)

_NOTICE_GRACE_SECONDS = 0.5


class _Terminated(Exception):
    pass


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise _Terminated


def main(parent: int, command: list[str]) -> int:
    """Run `command` to its end and return its exit code, as shells tell it."""
    adopt_orphans()
    signal.signal(signal.SIGINT, _terminate)
    hears_notice = HEARS_NOTICE_VARIABLE in os.environ
    for number in (signal.SIGTERM, signal.SIGUSR1) if hears_notice else ():
        signal.signal(number, signal.SIG_IGN)
    if not hears_notice:
        signal.signal(signal.SIGTERM, _terminate)
    code = 128 + signal.SIGTERM
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if child is not None and hears_notice:
            child.kill()
        end_descendants(*([_NOTICE_GRACE_SECONDS] if hears_notice else []))
        if os.getppid() != parent and SOCKETS_VARIABLE in os.environ:  # its owner was killed
            shutil.rmtree(os.environ[SOCKETS_VARIABLE], ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
