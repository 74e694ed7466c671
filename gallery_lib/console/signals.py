"""SIGINT and SIGTERM as exceptions of the command that runs, none of which gets lost.

The handler raises at once, which ends a computation in the middle. But Python and libraries swallow
such an exception in some places: imports, destructors, callbacks of a fork. So the command is told
again, by a timer, until it is on its way out. In two places the first exception waits for the timer
too. Half a start of a process would leave one that nobody owns, or a lock that nobody releases. And
torch, while it is being imported, calls Python from C++ that ends the process at an exception. The
module needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

_AGAIN_SECONDS = 0.1
_STARTS_A_PROCESS = {
    ("subprocess", "_execute_child"),
    ("multiprocessing.popen_fork", "_launch"),
    ("multiprocessing.popen_spawn_posix", "_launch"),
    ("multiprocessing.util", "spawnv_passfds"),
    ("logging", "_acquireLock"),  # callbacks of os.fork
    ("logging", "_releaseLock"),
}


class Terminated(SystemExit):
    """SIGTERM has arrived. The exception lets cleanup code run on the way out, as after Ctrl-C."""


_received: int | None = None


def received() -> int | None:
    """Return the signal that has told the command of this process to end; None: none has."""
    return _received


def forget() -> None:
    """Forget the signal, once the command has ended."""
    global _received
    _received = None


def _has_to_wait(frame: FrameType | None) -> bool:
    """Return whether nothing may be raised in this frame, because of it or of a caller.

    A process is being started, or a module of torch is being imported.
    """
    while frame is not None:
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if (module, function) in _STARTS_A_PROCESS:
            return True
        if function == "<module>" and module.partition(".")[0] == "torch":
            return True
        frame = frame.f_back
    return False


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
    if _is_ending():
        return
    raise KeyboardInterrupt if _received == signal.SIGINT else Terminated(128 + signal.SIGTERM)


def _tell(number: int, frame: FrameType | None) -> None:
    global _received
    _received = number
    signal.signal(signal.SIGALRM, _tell_again)
    _tell_again(number, frame)


def _tell_again(number: int, frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    if not _has_to_wait(frame):
        raise_if_interrupted()


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Context: SIGINT and SIGTERM raise KeyboardInterrupt and `Terminated` in the body.

    A signal that is ignored, as in a background process, stays ignored. Nothing changes outside the
    main thread.
    """
    global _received
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _received = None
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # The timer stays whose it is until a signal comes.
    alarm_before = signal.getsignal(signal.SIGALRM)
    timer_before = signal.getitimer(signal.ITIMER_REAL)
    hook_before = sys.unraisablehook

    def unraisable(error: sys.UnraisableHookArgs) -> None:
        """Say nothing of an exception of ours that Python ignores: the timer raises it again."""
        if _received is None or not isinstance(error.exc_value, KeyboardInterrupt | Terminated):
            hook_before(error)

    sys.unraisablehook = unraisable
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, _tell)
        yield
    finally:
        if _received is not None:
            signal.setitimer(signal.ITIMER_REAL, *timer_before)
            signal.signal(signal.SIGALRM, alarm_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook_before
