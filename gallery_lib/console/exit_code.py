"""Frame of a command-line program: option errors, signals, output streams and exit codes.

An error becomes one message and an exit code. SIGINT and SIGTERM become exceptions of the command
that runs. The handler raises at once, which ends a computation in the middle. Python and libraries
swallow an exception in some places, such as destructors, so what waits for something in a command
asks now and then whether a signal has come (`raise_if_interrupted`). torch, while it is being
imported, calls Python from C++ that aborts the process at an exception. So a command that has begun
nothing yet declares its imports (`importing`), and ends at once.

The module needs nothing but the standard library.
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
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gallery_lib.console.visible import VisibleStream
from gallery_lib.errors import GalleryError, GoOnLater, Interrupted, did_you_mean
from gallery_lib.system.processes import end_descendants

INTERRUPTED, READER_GONE, TERMINATED = (
    128 + number for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
)


class Parser(argparse.ArgumentParser):
    """ArgumentParser that names the known option closest to a misspelt one."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end with exit code 2."""
        # argparse has no exception of its own for unknown options, only this text.
        prefix, _, unknown = message.partition("unrecognized arguments: ")
        if not prefix and unknown:
            options = [option for action in self._actions for option in action.option_strings]
            if suggestion := did_you_mean(unknown.split()[0].partition("=")[0], options):
                message += f".{suggestion}"
        super().error(message)


# --------------------------------------------------------------------------------------------------
# Signals


class Terminated(SystemExit):
    """SIGTERM has arrived. The exception lets cleanup code run on the way out, as after Ctrl-C."""


_received: int | None = None
_leave: Callable[[], object] | None = None
_line = ""


@contextlib.contextmanager
def importing(leave: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Context: the body imports libraries, for a command that has begun nothing yet.

    A signal ends the process; `leave` clears its display before.
    """
    global _leave
    _leave = leave
    try:
        yield
    finally:
        _leave = None


def _end_at_once(number: int, leave: Callable[[], object]) -> NoReturn:
    """End this process and those that it has started ahead; say so."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    try:
        leave()
        end_descendants()
        os.write(2, f"{_line}\n".encode())
    finally:
        os._exit(128 + number)


def _is_ending() -> bool:
    """Return whether cleanup is at work on the way out, which must not be interrupted."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt | Terminated):
            return True
        error = error.__context__
    return False


def raise_if_interrupted() -> None:
    """Raise the exception of a received signal again, in the main thread.

    Code that waits for something in a command calls this function now and then.
    """
    if _received is None or threading.current_thread() is not threading.main_thread():
        return
    if not _is_ending():
        raise KeyboardInterrupt if _received == signal.SIGINT else Terminated(TERMINATED)


def _handle(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    if _leave is not None:
        _end_at_once(number, _leave)
    raise_if_interrupted()


@contextlib.contextmanager
def _signals_raise(line: str) -> Iterator[None]:
    """Context: SIGINT and SIGTERM raise KeyboardInterrupt and `Terminated` in the body.

    A signal that is ignored, as in a background process, stays ignored. Nothing changes outside the
    main thread. `line` is said where a signal ends this process at once.
    """
    global _received, _line
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received, _line = None, line
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _handle)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --------------------------------------------------------------------------------------------------
# Streams


def _prepare_streams() -> None:
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
    with contextlib.suppress(io.UnsupportedOperation):  # something in this process collects it
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    return False


def _output_fails() -> bool:
    """Return whether standard output accepts no more data: its disk is full, say."""
    try:
        sys.stdout.flush()
        number = sys.stdout.fileno()
        os.write(number, b"")  # /dev/full refuses even that
        return stat.S_ISREG(os.fstat(number).st_mode) and os.fstatvfs(number).f_bavail == 0
    except io.UnsupportedOperation:
        return False
    except (OSError, ValueError):
        return True


def _write_no_more() -> None:
    """Send the rest of standard output to the null device; Python would report a failed write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# --------------------------------------------------------------------------------------------------
# Exit codes


def exit_code_of(body: Callable[[], int | None], *, error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code of the command.

    The code is the result of `body` (None is 0), the code of a GalleryError, 130 after Ctrl-C, or
    143 after SIGTERM. The error's text, after `error_prefix`, or the line `interrupted` goes to
    standard error. A command whose output nobody reads any more (`… | head`) ends in silence with
    141, as other commands do. What the system refuses (a full disk, a folder without rights)
    becomes one line and exit code 1. Any other exception is a defect of this package, and keeps its
    traceback.
    """
    global _received
    _prepare_streams()
    try:
        try:
            return _ended(body, error_prefix, interrupted)
        finally:
            _received = None
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
    """Return in one line what the system has refused: the reason, the path, and what may help."""
    what = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return what
    where = Path(str(error.filename))
    text = f"{where}: {what}"
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    if is_full:
        there = next(folder for folder in (where, *where.absolute().parents) if folder.is_dir())
        text += f", {shutil.disk_usage(there).free / 2**20:.0f} MiB are free there"
    if is_full or error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        text += (
            ". GALLERY_RUNS_DIR moves the folder of runs, "
            "GALLERY_CACHE_DIR that of data and compiled code"
        )
    return text


def _ended(body: Callable[[], int | None], error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code; an error or an interrupt becomes one line."""
    try:
        with _signals_raise(interrupted):
            return body() or 0
    except GalleryError as error:
        if _received is None:
            # A run that was told to end has not failed.
            prefix = "" if isinstance(error, GoOnLater) else f"{error_prefix}: "
            print(f"{prefix}{error}", file=sys.stderr)
            return error.exit_code
    except Interrupted as stopped:
        if stopped.so_far:
            print(stopped.so_far)
    except (KeyboardInterrupt, Terminated):
        pass
    except Exception:
        if _received is None:  # otherwise an interrupted import has caused it
            raise
    print(interrupted, file=sys.stderr)
    return TERMINATED if _received == signal.SIGTERM else INTERRUPTED
