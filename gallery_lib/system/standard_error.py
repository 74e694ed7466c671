"""Lines on standard error."""

from __future__ import annotations

import sys


def tell(line: object) -> None:
    """Print a line on standard error, or nowhere where that is closed.

    `print` would take standard output then.
    """
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)
