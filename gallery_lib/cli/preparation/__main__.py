"""Entry point of `prepare.sh`, which executes this file in its own place.

    python -P gallery_lib/cli/preparation/__main__.py ROOT START_FOLDER PYTHON SKIPPED [options]

The process stays that of `prepare.sh`, so that a signal to it is handled here.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = "prepare.sh: interrupted. The same command goes on from here."


def end_at_once(number: int, frame: FrameType | None) -> None:
    """End this process: nothing has been started before the imports are done."""
    os.write(2, f"{INTERRUPTED}\n".encode())
    os._exit(128 + number)


def main(root: str, start_folder: str, python: str, skipped: str, *words: str) -> int:
    """Prepare the checkout at `root` as the options in `words` say; return the exit code.

    Args:
        root: the checkout, which is also the working directory.
        start_folder: the folder in which `prepare.sh` was called.
        python: the path of this interpreter, by which other commands start it.
        skipped: an interpreter that comes earlier on PATH and is not optimised; "" for none.
        words: the options of `prepare.sh`.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_at_once)
    sys.path.insert(0, root)

    from gallery_lib.cli.preparation.command import Call, prepare
    from gallery_lib.console.exit_code import exit_code_of

    call = Call(root, start_folder, python, skipped, words)
    return exit_code_of(lambda: prepare(call), error_prefix="prepare.sh", interrupted=INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
