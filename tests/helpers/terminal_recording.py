"""Recording of what a person sees on a terminal: once a second, the last line with text in it.

A command runs on a pseudo-terminal of the standard library. Only the terminal language that
Progress and rich use is understood: carriage return, new line, line up, and erasing of a line.
Recordings are kept in `runs/recordings`, for people.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RECORDINGS = Path(__file__).resolve().parents[2] / "runs" / "recordings"
"""Folder of recordings, kept after the tests for people and as artefacts of the CI."""
WIDTH = 120
_CONTROL = re.compile(r"(\r\n|\n|\r|\x1b\[1?A|\x1b\[2K)")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class _Screen:
    """Lines of text, of which the last may be drawn over."""

    def __init__(self) -> None:
        self.lines, self.drawn = [""], [""]  # every state of every line, in order
        self._row = 0

    def write(self, text: str) -> None:
        for part in _CONTROL.split(text):
            if part in ("\r\n", "\n"):
                self._row += 1
                self.lines += [""] * (self._row == len(self.lines))
            elif part.endswith("A") and part.startswith("\x1b["):
                self._row -= 1
            elif part == "\x1b[2K":
                self.lines[self._row] = ""
            elif part and part != "\r":
                self.lines[self._row] = _ESCAPE.sub("", part)
                self.drawn.append(self.lines[self._row])

    @property
    def last(self) -> str:
        """Return the last line with text in it."""
        return next((line for line in reversed(self.lines) if line), "")


@dataclass(frozen=True)
class Recording:
    """What was seen on the terminal.

    `samples` has the last line at each second, `drawn` every state that a line was ever in.
    """

    code: int
    seconds: float
    samples: list[str]
    drawn: list[str]
    lines: list[str]  # what stands there at the end

    def standstills(self) -> list[str]:
        """Return lines that were seen three times in a row, a second apart.

        The last line of the command does not count.
        """
        last = next((line for line in reversed(self.lines) if line), "")
        threes = zip(self.samples, self.samples[1:], self.samples[2:], strict=False)
        return [first for first, second, third in threes if first == second == third != last]


def record(
    name: str, command: Sequence[str], environment: dict[str, str], timeout: float = 500.0
) -> Recording:
    """Run the command to its end and return what was seen, which is kept under `name`."""
    terminal, other_end = pty.openpty()
    termios.tcsetwinsize(other_end, (30, WIDTH))
    began = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=other_end, stderr=other_end, env=environment
    )
    os.close(other_end)
    screen, samples = _Screen(), list[str]()
    try:
        with contextlib.suppress(OSError):  # what the end of a terminal gives
            while time.monotonic() - began < timeout:
                if select.select(
                    [terminal], [], [], max(0.0, began + len(samples) + 1 - time.monotonic())
                )[0]:
                    screen.write(os.read(terminal, 65536).decode(errors="replace"))
                while time.monotonic() - began >= len(samples) + 1:
                    samples.append(screen.last)
    finally:
        os.close(terminal)
        process.terminate()
    code = process.wait(timeout=60)
    RECORDINGS.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{second:4} s  {line}\n" for second, line in enumerate(samples, 1))
    (RECORDINGS / f"{name}.txt").write_text(
        f"$ {' '.join(command)}\n{text}\nat the end:\n" + "\n".join(screen.lines), encoding="utf-8"
    )
    return Recording(code, time.monotonic() - began, samples, screen.drawn, screen.lines)
