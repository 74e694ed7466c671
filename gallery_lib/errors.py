"""Base class of the errors that this package raises on purpose, and the form of an interrupt.

A message says what was wrong, with which value, and what to do about it. The command line ends with
exit code 2 on bad input and 1 on a run that failed. A notebook shows the same text.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


class GalleryError(Exception):
    """Something that the reader can act on. The command line ends with `exit_code`."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython prints instead of a stack of frames in this package."""
        return [f"{type(self).__name__}: {self}"]


_LONG_WORD = re.compile(r"\S{1000,}")


class InputError(GalleryError, ValueError):
    """A wrong value, name, file or folder was given: nothing has been started or written.

    `parameter` names the option, the argument, the file or the field that was wrong; None where
    the error is about no single one. A program decides by it, a person reads the message.
    """

    exit_code = 2

    def __init__(self, message: str, *, parameter: str | None = None) -> None:
        super().__init__(
            _LONG_WORD.sub(lambda word: f"{word[0][:80]}… ({len(word[0]):,} characters)", message)
        )
        self.parameter = parameter


class RunFailed(GalleryError, RuntimeError):
    """A run was started and did not finish. The message holds the reason and the last log lines.

    `suspects_compiled_code` is true where the run loaded kept compiled code and failed before its
    first step. The files of the compiled code may be damaged.
    """

    suspects_compiled_code = False


class Diverged(RunFailed):
    """A training whose loss is no longer finite; `results.json` holds what was measured before."""


class SilentRank(RunFailed):
    """A rank hangs, was stopped, or cannot be reached."""


class GoOnLater(GalleryError):
    """A run was told to end, and has saved a checkpoint from which it can go on."""

    exit_code = 75  # EX_TEMPFAIL of sysexits.h: to be tried again later


class OutOfMemory(RunFailed):
    """A run that did not fit: memory of a GPU or the host, or disk ran out."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or the stop button of a notebook, while processes of this package were at work.

    These processes have been ended. A notebook shows the message alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"Interrupted: {self}"]


_PACKAGES = {  # whose modules have other names
    **{"PIL": "pillow", "sklearn": "scikit-learn", "yaml": "pyyaml", "cuda": "cuda-core"},
    **{"IPython": "ipykernel", "nbformat": "papermill", "nbconvert": "papermill"},
}


def missing_package(error: ModuleNotFoundError) -> InputError | None:
    """Return what to install for a module that an extra of this package brings, else None."""
    import importlib.metadata

    module = (error.name or "").partition(".")[0]
    package = _PACKAGES.get(module, module)
    for line in importlib.metadata.requires("gallery_lib") or ():
        requirement, _, marker = line.partition(";")
        extra = marker.partition("extra == ")[2].strip(" '\"")
        if extra and re.split(r"[^\w-]", requirement.strip())[0] == package:
            return InputError(
                f"{package} is not installed. The extra `{extra}` brings it: "
                f"pip install 'gallery_lib[{extra}]', or in a checkout pip install '.[{extra}]'.",
                parameter=package,
            )
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean `x`?" for the closest of `known`, or "" when nothing is close."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean `{matches[0]}`?" if matches else ""
