"""Notice to end: SIGTERM and SIGUSR1, as schedulers send them, or a file that a launcher writes.

A process that listens goes on until it is at the end of a step. A second SIGTERM ends it at once,
unless it follows the first within seconds: a scheduler and torchrun may both send one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

REQUEST_FILE = "end-requested-host{}"
"""File in a run's folder by which the launcher of a host hands on the notice to its own ranks.

It names the signal. Ranks of other hosts agree with these at the next step. A host that the run has
lost asks nobody.
"""
_ONE_NOTICE_SECONDS = 2.0


class Notice:
    """What a process has heard so far: the name of the signal, or "".

    Args:
        folder: where `REQUEST_FILE` may appear; None: nobody writes one.
        host: number of this host in the run.
    """

    def __init__(self, folder: Path | None = None, host: int = 0) -> None:
        self._file = None if folder is None else folder / REQUEST_FILE.format(host)
        self._signal, self._since = "", 0.0

    def heard(self) -> str:
        """Return the name of the signal that came, here or at the launcher; "" before."""
        if not self._signal and self._file is not None:
            with contextlib.suppress(OSError):
                self._signal = self._file.read_text(encoding="utf-8").strip() or "SIGTERM"
        return self._signal

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Context: signals are noted instead of ending the process. Main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def note(number: int, frame: FrameType | None) -> None:
            if not self._signal:
                self._signal, self._since = signal.Signals(number).name, time.monotonic()
            elif number == signal.SIGTERM and time.monotonic() - self._since > _ONE_NOTICE_SECONDS:
                signal.signal(number, before[number])
                os.kill(os.getpid(), number)

        before: dict[int, Any] = {
            number: signal.signal(number, note) or signal.SIG_DFL
            for number in (signal.SIGTERM, signal.SIGUSR1)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def request(folder: Path, host: int, name: str) -> None:
    """Have the ranks that the run in `folder` has on `host` save a checkpoint and end the run."""
    (folder / REQUEST_FILE.format(host)).write_text(name, encoding="utf-8")
