"""SIGINT and SIGTERM as exceptions of the command that runs.

The handler raises at once, which ends a computation in the middle. Python and libraries swallow an
exception in some places, such as destructors. So what waits for something in a command asks now and
then whether a signal has come (`raise_if_interrupted`). torch, while it is being imported, calls
Python from C++ that aborts the process at an exception. The import takes seconds, so a command that
has begun nothing yet declares it (`importing`), and ends at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from gallery_lib.system.processes import end_descendants


class Terminated(SystemExit):
    """SIGTERM has arrived. The exception lets cleanup code run on the way out, as after Ctrl-C."""


_received: int | None = None
_leave: tuple[Callable[[], None], ...] | None = None
_line = ""


def received() -> int | None:
    """Return the signal that has told the command of this process to end; None: none has."""
    return _received


def forget() -> None:
    """Forget the signal, once the command has ended."""
    global _received
    _received = None


@contextlib.contextmanager
def importing(*leave: Callable[[], None]) -> Iterator[None]:
    """Context: the body imports libraries, for a command that has begun nothing yet.

    A signal ends the process; `leave` clear its display before.
    """
    global _leave
    _leave = leave
    try:
        yield
    finally:
        _leave = None


def _end_at_once(number: int, leave: tuple[Callable[[], None], ...]) -> NoReturn:
    """End this process and those that it has started ahead; say so."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    try:
        for clear in leave:
            clear()
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
        raise KeyboardInterrupt if _received == signal.SIGINT else Terminated(128 + signal.SIGTERM)


def _handle(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    if _leave is not None:
        _end_at_once(number, _leave)
    raise_if_interrupted()


@contextlib.contextmanager
def raising(line: str) -> Iterator[None]:
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
