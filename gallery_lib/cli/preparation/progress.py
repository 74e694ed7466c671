"""Lines that `prepare.sh` prints about its steps."""

from __future__ import annotations

import time


def say(text: str) -> None:
    """Print a line now: the commands that follow write to the same output."""
    print(text, flush=True)


def detail(text: str) -> None:
    """Print a line below the title of a step."""
    say(f"      {text}")


class Steps:
    """Numbered steps, each with the seconds that it took."""

    def __init__(self, total: int) -> None:
        self._total, self._number, self._began = total, 0, 0.0

    def begin(self, title: str) -> None:
        """Print the end of the step before and the title of the next."""
        self.finish()
        self._number += 1
        self._began = time.monotonic()
        say(f"[{self._number}/{self._total}] {title}")

    def finish(self) -> None:
        """Print how long the current step took."""
        if self._number:
            detail(f"done in {time.monotonic() - self._began:.0f} s")
