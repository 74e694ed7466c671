"""Run one command so that none of its processes outlives this process or its parent.

    python -m gallery_lib.system.supervisor PARENT COMMAND …

The supervisor runs in a session of its own. It adopts every orphan below it, so that a killed
torchrun cannot leave workers behind. It ends all of them when the command ends, when it is
terminated, or when PARENT, the process that started it, is gone. Its exit code is the command's.
The command has no input. With `HEARS_NOTICE_VARIABLE` it is terminated by the process that started
it alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
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


def _heed_the_parent_alone(parent: int) -> None:
    """Ignore SIGUSR1, and SIGTERM from others than the parent; a thread waits for the latter.

    A signal's handler does not learn who sent it.
    """

    def wait() -> None:
        while True:
            sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
            if sender == parent:
                os.kill(os.getpid(), signal.SIGINT)  # which the main thread takes

    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    threading.Thread(target=wait, daemon=True).start()


def _begin() -> None:
    """Prepare the process of the command before it is executed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    die_with_parent()


def main(parent: int, command: list[str]) -> int:
    """Run `command` to its end and return its exit code, as shells tell it."""
    adopt_orphans()
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGINT, _terminate)
    heeds_parent = HEARS_NOTICE_VARIABLE in os.environ
    if heeds_parent:
        _heed_the_parent_alone(parent)
    code = 128 + signal.SIGTERM
    child: subprocess.Popen[bytes] | None = None
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_begin)
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
        if child is not None and heeds_parent:
            child.kill()
        end_descendants(*([_NOTICE_GRACE_SECONDS] if heeds_parent else []))
        if os.getppid() != parent and SOCKETS_VARIABLE in os.environ:  # its owner was killed
            shutil.rmtree(os.environ[SOCKETS_VARIABLE], ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
