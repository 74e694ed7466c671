"""Run the `gallery` command from a checkout with any Python.

    python3 -m gallery_lib show runs/night

A Python that cannot run the gallery is replaced by that of the environment of prepare.sh.
"""

from __future__ import annotations

import _signal as signal  # `signal` itself imports for milliseconds, in which Ctrl-C may come
import sys

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends it at once


def main() -> int:
    """Run the `gallery` command and return its exit code."""
    from gallery_lib.system.prepared_python import run_in_prepared_environment

    run_in_prepared_environment()

    from gallery_lib.cli.main import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
