"""How a command ends: one message and an exit code, whatever its body raises. Needs nothing but the standard library."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gallery_lib.errors import GalleryError

INTERRUPTED = 130


def exit_code_of(body: Callable[[], int | None], *, error_prefix: str, interrupted: str) -> int:
    """Run `body` and return the exit code: its own (None is 0), that of a GalleryError, or 130 after Ctrl-C.

    The error's text, after `error_prefix`, or the line `interrupted` goes to standard error. Anything else that is
    raised is a defect of ours, and keeps its traceback.
    """
    try:
        return body() or 0
    except GalleryError as error:
        print(f"{error_prefix}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
