"""Commands that `prepare.sh` runs one after another. A signal to it alone ends the current one.

A command has no standard input and does not see Ctrl-C itself: the terminal would send that to all
processes, and each would print something about it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gallery_lib.system.exit_codes import shell_exit_code

Words = Sequence[str | Path]
"""A program and its arguments."""


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def attend(
    command: Words,
    *,
    environment: Mapping[str, str] | None = None,
    quiet: bool = False,
    silent: bool = False,
) -> int:
    """Run the command to its end and return its exit code, as a shell gives it.

    An exception here (Ctrl-C, SIGTERM) ends the command with SIGTERM and is raised again.

    Args:
        command: program and arguments.
        environment: variables to set beside those of this process.
        quiet: discard standard output.
        silent: discard standard output and standard error.
    """
    process = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet or silent else None,
        stderr=subprocess.DEVNULL if silent else None,
        preexec_fn=_ignore_interrupts,
        close_fds=False,  # it holds the lock of the checkout too, even if this process is killed
    )
    try:
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return shell_exit_code(code)


def supervised(python: Path, words: Words, *, environment: Mapping[str, str] | None = None) -> int:
    """Run `python` with `words` below a supervisor: none of its processes is left at the end."""
    command = [python, "-m", "gallery_lib.system.supervisor", python, *words]
    return attend(command, environment=environment)


def starts(command: Words) -> bool:
    """Return whether the command can be started and ends with 0."""
    try:
        return attend(command, silent=True) == 0
    except OSError:
        return False


def replace_by(command: Words) -> int:
    """Execute the command in the place of this process; does not return."""
    sys.stdout.flush()
    os.execv(str(command[0]), [str(word) for word in command])
