"""How a command ends: one message and an exit code, whatever its body raises. Needs nothing but the standard library."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from gallery_lib.errors import GalleryError

INTERRUPTED, TERMINATED = 130, 143


class _Terminated(SystemExit):
    """SIGTERM has arrived. Raised so that everything on the way out is tidied up, as after Ctrl-C."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(number: int, frame: FrameType | None) -> None:
        raise _Terminated(TERMINATED)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def exit_code_of(body: Callable[[], int | None], *, error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code: its own (None is 0), that of a GalleryError, 130 after Ctrl-C, 143 after SIGTERM.

    The error's text, after `error_prefix`, or the line `interrupted` goes to standard error. Anything else that is
    raised is a defect of ours, and keeps its traceback.
    """
    try:
        with _sigterm_raises():
            return body() or 0
    except GalleryError as error:
        print(f"{error_prefix}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except _Terminated:
        print(interrupted, file=sys.stderr)
        return TERMINATED
