"""Short child processes for questions that should leave nothing in this process.

A CUDA context takes half a GiB of the device for as long as its process lives, and processes that
are forked later cannot use CUDA. So a child makes the context, answers, and ends.
"""

from __future__ import annotations

import re
import subprocess

from gallery_lib.errors import RunFailed
from gallery_lib.system.processes import PYTHON, end_supervised, start_supervised

_NAMES_ERROR = re.compile(r"[\w.]*(Error|Exception|Failed): ")


def printed_by(arguments: list[str], what: str) -> str:
    """Run this Python with `arguments`, and return what it prints on standard output.

    An interrupt ends the child.

    Args:
        arguments: words behind `python`.
        what: the purpose, for the message, as "the name of the GPU".

    Raises:
        RunFailed: when the child fails, with its error in a line.
    """
    with start_supervised(
        [*PYTHON, *arguments], {}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            printed, errors = process.communicate()
        except BaseException:
            end_supervised(process)
            raise
    if process.returncode:
        advice = ". nvidia-smi lists what uses the GPU" if "out of memory" in errors else ""
        raise RunFailed(f"{what} could not be found out: {_reason(errors)}{advice}")
    return printed


def _reason(errors: str) -> str:
    """Return the line of a traceback that names the error, else the last line."""
    lines = [line for line in errors.splitlines() if line.strip()] or ["it said nothing"]
    return next((line for line in reversed(lines) if _NAMES_ERROR.match(line)), lines[-1]).strip()
