"""Commands that `prepare.sh` runs one after another. A signal to it alone ends the current one.

A command has no standard input, and a session of its own. So it does not see Ctrl-C itself: the
terminal would send that to all processes, and each would print something about it. All that it has
started can be ended with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gallery_lib.system.exit_codes import shell_exit_code
from gallery_lib.system.processes import adopt_orphans, die_with_parent

Words = Sequence[str | Path]
"""A program and its arguments."""
LINE_SECONDS = 60.0
"""Seconds between two lines about an installation, where the output is no terminal."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN_LINES = 15
_GRACE_SECONDS = 10.0


def attend(command: Words, *, quiet: bool = False, log: Path | None = None) -> int:
    """Run the command to its end and return its exit code, as a shell gives it.

    An exception here (Ctrl-C, SIGTERM) ends the command with all that it has started, and is raised
    again.

    Args:
        command: program and arguments.
        quiet: discard standard output.
        log: file for all that the command prints. Its last line is shown meanwhile, and the last
            lines after a failure.
    """
    process: subprocess.Popen[bytes] | None = None
    try:
        with contextlib.ExitStack() as stack:
            file = None if log is None else stack.enter_context(log.open("w"))
            stack.enter_context(_signals_held())  # else nobody might own a process just started
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=file or (subprocess.DEVNULL if quiet else None),
                stderr=file,
                start_new_session=True,
                preexec_fn=_begin,
                close_fds=False,  # it holds the checkout's lock, even if this process is killed
            )
        code = process.wait() if log is None else _wait_showing(process, log)
    except BaseException:
        if process is not None:
            _end(process.pid)
        raise
    return shell_exit_code(code)


@contextlib.contextmanager
def _signals_held() -> Iterator[None]:
    """Context: signals that end this process arrive after the body."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Prepare a process before its command is executed."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent()


def _end(group: int) -> None:
    """End every process of a group below this one; return when all are gone."""
    adopt_orphans()  # which can then be waited for
    deadline = time.monotonic() + _GRACE_SECONDS
    with contextlib.suppress(OSError):  # none is left; on macOS, none but zombies
        os.killpg(group, signal.SIGTERM)
        while (now := time.monotonic()) < deadline + 1:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-group, os.WNOHANG)
            os.killpg(group, signal.SIGKILL if now > deadline else 0)
            time.sleep(0.02)


def _wait_showing(process: subprocess.Popen[bytes], log: Path) -> int:
    """Wait for the process, and show its seconds and the last line of its log."""
    began, is_terminal = time.monotonic(), sys.stdout.isatty()

    def lines() -> list[str]:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()

    try:
        while True:
            try:
                process.wait(0.5 if is_terminal else LINE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                last = (lines() or [""])[-1].strip()
                line = f"      {time.monotonic() - began:.0f} s  {last}"
                if is_terminal:
                    line = f"\r\033[K{line[: shutil.get_terminal_size().columns - 1]}"
                print(line, end="" if is_terminal else "\n", flush=True)
    finally:
        if is_terminal:
            print("\r\033[K", end="", flush=True)
    if process.returncode:
        print(*lines()[-_SHOWN_LINES:], sep="\n", file=sys.stderr, flush=True)
    return process.returncode


def starts(command: Words) -> bool:
    """Return whether the command can be started and ends with 0."""
    try:
        return (
            subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL).returncode == 0
        )
    except OSError:
        return False


def replace_by(command: Words) -> int:
    """Execute the command in the place of this process; does not return."""
    sys.stdout.flush()
    os.execv(str(command[0]), [str(word) for word in command])


def say(text: str) -> None:
    """Print a line now: the commands that follow write to the same output."""
    print(text, flush=True)


def detail(text: str) -> None:
    """Print a line below the title of a step."""
    say(f"      {text}")
