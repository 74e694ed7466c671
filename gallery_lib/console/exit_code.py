"""Frame of a command-line program: option errors, signals, output streams and exit codes.

An error becomes one message and an exit code. The module needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import select
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from gallery_lib.console import signals
from gallery_lib.console.visible import VisibleStream
from gallery_lib.errors import GalleryError, GoOnLater, Interrupted, did_you_mean
from gallery_lib.system.exit_codes import exit_code_of_signal

INTERRUPTED, READER_GONE, TERMINATED = (
    exit_code_of_signal(signal.SIGINT),
    exit_code_of_signal(signal.SIGPIPE),
    exit_code_of_signal(signal.SIGTERM),
)


class Parser(argparse.ArgumentParser):
    """ArgumentParser that names the known option closest to a misspelt one."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end with exit code 2."""
        before, _, words = message.partition("unrecognized arguments: ")
        if not before and words:
            known = [option for action in self._actions for option in action.option_strings]
            if meant := did_you_mean(words.split()[0].partition("=")[0], known):
                message += f".{meant}"
        super().error(message)


def prepare_streams() -> None:
    """Make standard output and error exist, accept any text, and show control characters escaped.

    Where the shell has closed a stream, the next opened file would get the number of that stream.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="replace")
        if not isinstance(stream, VisibleStream):
            setattr(sys, name, VisibleStream(stream))


def _reader_of_output_is_gone() -> bool:
    """Return whether standard output is a pipe from which nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:  # not a file: something in this process collects the output
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _output_fails() -> bool:
    """Return whether standard output accepts no more data: its disk is full, say."""
    try:
        sys.stdout.flush()
        number = sys.stdout.fileno()
        os.write(number, b"")  # /dev/full refuses even that
        return stat.S_ISREG(os.fstat(number).st_mode) and os.fstatvfs(number).f_bavail == 0
    except io.UnsupportedOperation:  # not a file: something in this process collects the output
        return False
    except (OSError, ValueError):
        return True


def _write_no_more() -> None:
    """Send the rest of standard output to the null device.

    Otherwise Python would report the failed write at its very end.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code_of(body: Callable[[], int | None], *, error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code of the command.

    The code is the result of `body` (None is 0), the code of a GalleryError, 130 after Ctrl-C, or
    143 after SIGTERM. The error's text, after `error_prefix`, or the line `interrupted` goes to
    standard error. A command whose output nobody reads any more (`… | head`) ends in silence with
    141, as other commands do. What the system refuses (a full disk, a folder without rights)
    becomes one line and exit code 1. Any other exception is a defect of this package, and keeps its
    traceback.
    """
    prepare_streams()
    try:
        try:
            return _ended(body, error_prefix, interrupted)
        finally:
            signals.forget()
            if sys.stdout is not None:
                sys.stdout.flush()  # otherwise Python does so at its end, and reports a failure
    except BrokenPipeError:
        if not _reader_of_output_is_gone():
            raise
        _write_no_more()
        return READER_GONE
    except OSError as error:
        if _output_fails():
            text = f"standard output cannot be written: {error.strerror or error}"
            _write_no_more()
        else:
            text = refusal(error)
        with contextlib.suppress(OSError):
            print(f"{error_prefix}: {text}.", file=sys.stderr)
        return 1


def refusal(error: OSError) -> str:
    """Return in one line what the system has refused.

    The line holds the reason and the path. Where it helps, the line also says how much space is
    free, and which variables move the folders.
    """
    what = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return what
    where = Path(str(error.filename))
    text = f"{where}: {what}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        there = next(folder for folder in (where, *where.absolute().parents) if folder.is_dir())
        text += f", {shutil.disk_usage(there).free / 2**20:.0f} MiB are free there"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS):
        text += (
            ". GALLERY_RUNS_DIR moves the folder of runs, "
            "GALLERY_CACHE_DIR that of data and compiled code"
        )
    return text


def _ended(body: Callable[[], int | None], error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code; an error or an interrupt becomes one line."""
    try:
        with signals.raising(interrupted):
            return body() or 0
    except GalleryError as error:
        if signals.received() is None:
            # A run that was told to end has not failed.
            prefix = "" if isinstance(error, GoOnLater) else f"{error_prefix}: "
            print(f"{prefix}{error}", file=sys.stderr)
            return error.exit_code
    except Interrupted as stopped:
        if stopped.so_far:
            print(stopped.so_far)
    except (KeyboardInterrupt, signals.Terminated):
        pass
    except Exception:
        if signals.received() is None:  # otherwise an interrupted import has caused it
            raise
    print(interrupted, file=sys.stderr)
    return TERMINATED if signals.received() == signal.SIGTERM else INTERRUPTED
