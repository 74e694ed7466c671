"""A progress bar that suits where it is shown.

In a notebook: one text output that is updated in place, so the saved notebook holds only its last state and needs
neither JavaScript nor trust (a widget would need both). On a terminal: tqdm. Elsewhere (a log file, CI, a terminal that
calls itself dumb): a plain line now and then.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any, TextIO

from tqdm import tqdm


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    shell = sys.modules.get("IPython") and sys.modules["IPython"].get_ipython()
    return bool(shell and "IPKernelApp" in shell.config)


def redraws(stream: TextIO) -> bool:
    """Whether what was written to the stream can be drawn over: a terminal with a cursor that moves."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class Progress:
    """Counts towards `total` (steps, say), with a label that may change on the way."""

    def __init__(self, label: str, total: int, *, enabled: bool = True, line_seconds: float = 15.0) -> None:
        self.label, self.total, self.count = label, total, 0
        self.enabled, self.line_seconds = enabled, line_seconds
        self._started = self._shown = time.monotonic()
        self._handle: Any = None
        self._bar: Any = None
        if not enabled:
            return
        if in_notebook():
            from IPython.display import display

            self._handle = display({"text/plain": self._text()}, raw=True, display_id=True)
        elif redraws(sys.stderr):
            self._bar = tqdm(total=total, desc=label, dynamic_ncols=True)

    def _text(self) -> str:
        return tqdm.format_meter(self.count, self.total, time.monotonic() - self._started, ncols=100, prefix=self.label, ascii=False)

    def update(self, count: int, label: str | None = None) -> None:
        """`count` of the total is done."""
        changed = count != self.count or (label is not None and label != self.label)
        self.count, self.label = count, label or self.label
        if not self.enabled or not changed:
            return
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_description_str(self.label, refresh=False)
            self._bar.update(count - self._bar.n)
        elif self._handle is not None:
            if now - self._shown >= 0.2 or count >= self.total:
                self._shown = now
                self._handle.update({"text/plain": self._text()}, raw=True)
        elif now - self._shown >= self.line_seconds:
            self._shown = now
            print(self._text(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """The bar's last state stays."""
        if self._bar is not None:
            self._bar.set_description_str(self.label)
            self._bar.close()
        elif self._handle is not None:
            self._handle.update({"text/plain": self._text()}, raw=True)
