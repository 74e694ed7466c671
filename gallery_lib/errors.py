"""The one base class of every error that this package raises on purpose, and what an interrupt becomes.

A message says what was wrong, with which value, and what to do about it. The command line ends with exit
code 2 on bad input and 1 on a run that failed; a notebook shows the same text.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class GalleryError(Exception):
    """Something that the reader can act on. `exit_code` is what the command line ends with."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """What IPython prints in a notebook instead of a stack of frames inside this package."""
        return [f"{type(self).__name__}: {self}"]


class InputError(GalleryError, ValueError):
    """A wrong value, name, file or folder was given: nothing has been started or written."""

    exit_code = 2


class RunFailed(GalleryError, RuntimeError):
    """A run was started and did not finish. The message holds the reason and the last log lines.

    `suspects_compiled_code`: it failed before its first step, where kept compiled code was loaded; the files may be damaged.
    """

    suspects_compiled_code = False


class Diverged(RunFailed):
    """A training whose loss is no finite number any more. What was measured until then is in its `results.json`."""


class SilentRank(RunFailed):
    """A rank of a run of several processes hangs, was stopped, or cannot be reached."""


class LoaderKilled(RunFailed):
    """A process that loads data was killed, or ended by itself, while a rank waited for its batches."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or the stop button of a notebook, while processes of ours were at work; they have been ended.

    A notebook shows the message alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted: {self}"]


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that is most like `name`; None when none is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean `x`?" for the closest of `known`, or "" when nothing is close."""
    return f" Did you mean `{match}`?" if (match := closest(name, known)) else ""
