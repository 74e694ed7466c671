"""Frame of a command-line program: signals, output streams, messages and exit codes.

An error becomes one message and an exit code. SIGINT and SIGTERM become exceptions of the command
that runs. torch, while it is being imported, calls Python from C++ that aborts the process at an
exception; so a command that has begun nothing yet declares its imports (`importing`), and ends at
once.

The module needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gallery_lib.console.text import VisibleStream
from gallery_lib.errors import GalleryError, GoOnLater, missing_package

INTERRUPTED, READER_GONE, TERMINATED = (
    128 + number for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGTERM)
)


class Terminated(SystemExit):
    """SIGTERM has arrived. The exception lets cleanup code run on the way out, as after Ctrl-C."""


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(TERMINATED)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, b"\ninterrupted\n")
    os._exit(128 + number)


@contextlib.contextmanager
def _handlers(interrupt: Callable[..., object], terminate: Callable[..., object]) -> Iterator[None]:
    """Context: handlers of SIGINT and SIGTERM, in the main thread; only that one may set them.

    A signal that is ignored, as in a background process, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}
    before = {number: signal.getsignal(number) for number in handlers}
    try:
        for number, handler in handlers.items():
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, handler)
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def importing() -> contextlib.AbstractContextManager[None]:
    """Context: a signal ends the process at once, since the body imports torch."""
    return _handlers(_leave, _leave)


def _prepare_streams() -> None:
    """Make standard output and error accept any text, and show control characters escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or io.StringIO()  # the shell has closed it
        if isinstance(stream, io.TextIOWrapper) and "utf" not in stream.encoding.lower():
            stream.reconfigure(errors="replace")
        if not isinstance(stream, VisibleStream):
            stream = VisibleStream(stream)
        setattr(sys, name, stream)


def exit_code_of(body: Callable[[], int | None], *, error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code of the command.

    It is the result of `body` (None is 0), the code of a GalleryError, 130 after Ctrl-C, 143 after
    SIGTERM, or 141 where nobody reads the output any more (`… | head`). The error's text, after
    `error_prefix`, or the line `interrupted` goes to standard error. What the system refuses (a
    full disk, say) becomes one line and exit code 1. Any other exception is a defect of this
    package, and keeps its traceback.
    """
    _prepare_streams()
    try:
        try:
            with _handlers(signal.default_int_handler, _terminate):
                return body() or 0
        finally:
            sys.stdout.flush()  # otherwise Python does so at its end, and reports a failure
    except GalleryError as error:
        # A run that was told to end has not failed.
        prefix = "" if isinstance(error, GoOnLater) else f"{error_prefix}: "
        print(f"{prefix}{error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if (missing := missing_package(error)) is None:
            raise
        print(f"{error_prefix}: {missing}", file=sys.stderr)
        return missing.exit_code
    except OSError as error:
        return _refused(error, error_prefix)
    except (KeyboardInterrupt, Terminated) as end:
        print(interrupted, file=sys.stderr)
        return TERMINATED if isinstance(end, Terminated) else INTERRUPTED


def _refused(error: OSError, error_prefix: str) -> int:
    """Say what the system has refused, and return the exit code."""
    text = refusal(error)
    if error is getattr(sys.stdout, "failure", None):
        # Python would report the failed write once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return READER_GONE
        text = f"standard output cannot be written: {text}"
    elif isinstance(error, BrokenPipeError):
        raise error
    print(f"{error_prefix}: {text}.", file=sys.stderr)
    return 1


def refusal(error: OSError) -> str:
    """Return an OSError as one line without a full stop: path, reason, and what may help."""
    text = error.strerror or str(error) or type(error).__name__
    if error.filename is None:
        return text
    where = Path(str(error.filename))
    text = f"{where}: {text}"
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
