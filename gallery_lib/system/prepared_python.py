"""Run a checkout's script in the environment that `prepare.sh` made, whichever Python started it.

    from gallery_lib.system.prepared_python import run_in_prepared_environment

    if __name__ == "__main__":
        run_in_prepared_environment()  # before the imports that need torch

A Python that is new enough and has the packages goes on as it is: an activated environment, say.
This module and `paths` need the standard library only, and Python 3.8 can read both: it has to be
told what is missing.
"""

from __future__ import annotations

import importlib.util
import locale
import os
import signal
import sys
from pathlib import Path

from gallery_lib.system import paths

OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch", "numpy", "psutil")
"""Packages without which no command starts."""


def _reason_not_usable() -> str | None:
    """Return what this Python is short of, for a message; None when nothing."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        return "is Python {}.{}, older than {}.{}".format(*sys.version_info[:2], *OLDEST_PYTHON)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"has no {missing[0]}" if missing else None


def _execute(python: str) -> None:
    """Execute the words of this process with another Python, in the place of this process."""
    words = getattr(sys, "orig_argv", ["", *sys.argv])[1:]  # from Python 3.10 on
    os.execv(python, [python, *words])


def _read_files_as_utf8() -> None:
    """Restart this process in Python's UTF-8 mode where the locale has another encoding.

    All files of the gallery are UTF-8. Output keeps the locale's encoding.
    """
    if sys.flags.utf8_mode or os.environ.get("PYTHONUTF8") == "1":
        return
    if locale.getpreferredencoding(False).lower().replace("-", "") == "utf8":
        return
    os.environ["PYTHONUTF8"] = "1"
    os.environ.setdefault(
        "PYTHONIOENCODING", (getattr(sys.stdout, "encoding", None) or "ascii") + ":replace"
    )
    _execute(sys.executable)


def run_in_prepared_environment() -> None:
    """Return if this Python can run the gallery; else continue with the prepared environment's.

    In the second case this process executes that Python with the same words, and says so in a line
    on standard error. Where `prepare.sh` has made no environment, end with exit code 2 and a line
    that names it. Ctrl-C ends the process at once until `exit_code_of` takes care of it: an import
    would swallow the exception.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    _read_files_as_utf8()
    reason = _reason_not_usable()
    if reason is None:
        return
    root = Path(__file__).resolve().parents[2]
    python = paths.environment_dir(root) / "bin" / "python"
    is_that_one = Path(sys.prefix).resolve() == python.parent.parent.resolve()
    is_that_one |= Path(sys.executable).absolute() == python.absolute()  # it may lack pyvenv.cfg
    if not is_that_one and python.exists():
        where = os.path.relpath(python)
        print(f"Using the environment that prepare.sh made: {where}", file=sys.stderr, flush=True)
        _execute(str(python))
    lacking = "prepare.sh has made no environment here"
    if is_that_one:
        lacking = "the environment that prepare.sh makes is incomplete"
    run = f"Run: bash {os.path.relpath(root / 'prepare.sh')}"
    print(f"error: {sys.executable} {reason}, and {lacking}. {run}", file=sys.stderr)
    sys.exit(2)
