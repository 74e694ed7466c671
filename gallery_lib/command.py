"""How a command begins and ends: its options, then one message and an exit code. Needs nothing but the standard library."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from gallery_lib.errors import GalleryError, did_you_mean

INTERRUPTED, READER_GONE, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGPIPE, 128 + signal.SIGTERM


class Parser(argparse.ArgumentParser):
    """argparse's, which names the option that a misspelt one is most like."""

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and end with exit code 2."""
        before, _, words = message.partition("unrecognized arguments: ")
        if not before and words:
            known = [option for action in self._actions for option in action.option_strings]
            if meant := did_you_mean(words.split()[0].partition("=")[0], known):
                message += f".{meant}"
        super().error(message)


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


def _reader_of_output_is_gone() -> bool:
    """Return whether standard output is a pipe from which nobody reads any more."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except io.UnsupportedOperation:  # it is no file: something in this process collects it
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def exit_code_of(body: Callable[[], int | None], *, error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code: its own (None is 0), that of a GalleryError, 130 after Ctrl-C, 143 after SIGTERM.

    The error's text, after `error_prefix`, or the line `interrupted` goes to standard error. A command whose output nobody
    reads any more (`… | head`) ends in silence with 141, as other commands do. Anything else that is raised is a defect of
    ours, and keeps its traceback.
    """
    try:
        try:
            return _ended(body, error_prefix, interrupted)
        finally:
            if sys.stdout is not None:  # it is None where the shell has closed it
                sys.stdout.flush()  # else Python does it at its very end, and says what failed
    except BrokenPipeError:
        if not _reader_of_output_is_gone():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be written
        return READER_GONE


def _ended(body: Callable[[], int | None], error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code; an error and an interruption become one line."""
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
