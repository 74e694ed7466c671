"""Run a checkout's script in the environment that `prepare.sh` made, whichever Python started it.

    from gallery_lib.system.prepared_python import run_in_prepared_environment

    if __name__ == "__main__":
        run_in_prepared_environment()  # before the imports that need torch

A Python that is new enough and has the packages goes on as it is: an activated environment, say.
The module needs the standard library only, and Python 3.8 can read it: it has to be told what is
missing.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

OLDEST_PYTHON = (3, 11)
PACKAGES = ("torch", "numpy", "psutil")  # without which no command starts


def _reason_not_usable() -> str | None:
    """Return what this Python is short of, for a message; None when nothing."""
    if sys.version_info[:2] < OLDEST_PYTHON:
        return "is Python {}.{}, older than {}.{}".format(*sys.version_info[:2], *OLDEST_PYTHON)
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"has no {missing[0]}" if missing else None


def run_in_prepared_environment() -> None:
    """Return if this Python can run the gallery; else continue with the prepared environment's.

    In the second case this process executes that Python with the same words, and says so in a line
    on standard error. Where `prepare.sh` has made no environment, end with exit code 2 and a line
    that names it. Ctrl-C ends the process at once until `exit_code_of` takes care of it: an import
    would swallow the exception.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    reason = _reason_not_usable()
    if reason is None:
        return
    root = Path(__file__).resolve().parents[2]
    python = root / ".venv" / "bin" / "python"
    is_that_one = Path(sys.prefix).resolve() == python.parent.parent.resolve()
    is_that_one |= Path(sys.executable).absolute() == python.absolute()  # it may lack pyvenv.cfg
    if not is_that_one and python.exists():
        where = os.path.relpath(python)
        print(f"Using the environment that prepare.sh made: {where}", file=sys.stderr, flush=True)
        words = getattr(sys, "orig_argv", ["", *sys.argv])[1:]  # from Python 3.10 on
        os.execv(str(python), [str(python), *words])
    lacking = "prepare.sh has made no environment here"
    if is_that_one:
        lacking = "the environment that prepare.sh makes is incomplete"
    run = f"Run: bash {os.path.relpath(root / 'prepare.sh')}"
    print(f"error: {sys.executable} {reason}, and {lacking}. {run}", file=sys.stderr)
    sys.exit(2)
