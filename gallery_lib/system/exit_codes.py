"""Exit codes of processes that a signal has ended, as shells and as `subprocess` tell them."""

from __future__ import annotations

import contextlib
import signal

GO_ON_LATER = 75
"""Exit code of a run that has saved a checkpoint and ended, because it was told to.

EX_TEMPFAIL of sysexits.h: not an error, to be tried again later.
"""


def exit_code_of_signal(number: int) -> int:
    """Return the exit code by which shells tell that signal `number` has ended a process."""
    return 128 + number


def shell_exit_code(returncode: int) -> int:
    """Return a process's exit code as shells tell it, from that of `subprocess`.

    `subprocess` has the negative number of the signal that ended the process.
    """
    return returncode if returncode >= 0 else exit_code_of_signal(-returncode)


def signal_of_exit_code(exit_code: int) -> signal.Signals | None:
    """Return the signal that a shell's exit code tells of, or None."""
    with contextlib.suppress(ValueError):
        return signal.Signals(exit_code - exit_code_of_signal(0))
    return None
