"""Words of others, harmless: no control character reaches a terminal, an XML file or a page.

A task's error, a file's fields, names of tensors and notebooks may hold escape sequences, which
move the cursor, rename the window or hide what stands there. Every command prints through
`VisibleStream` (see `exit_code`), so its other code need not think of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TextIO

_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but for tab and newline
    "\u202a-\u202e\u2066-\u2069"  # which turn the direction of letters
    "\ud800-\udfff\ufffe\uffff]"  # no UTF-8, and no XML
)


def visible(text: str) -> str:
    """Return the text without colours and moves of the cursor, other control characters escaped.

    Newline and tab stay. A byte that is no UTF-8 is escaped as well.
    """
    return _HIDDEN.sub(
        lambda found: found[0].encode("unicode_escape").decode(), _SEQUENCE.sub("", text)
    )


class VisibleStream:
    """Text stream that writes what is `visible`; `unescaped` is the stream below it.

    `failure` is the last error of writing.
    """

    def __init__(self, unescaped: TextIO) -> None:
        self.unescaped = unescaped
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        """Write what is visible of the text; return how many characters were written."""
        try:
            return self.unescaped.write(visible(text))
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self.unescaped.flush()
        except OSError as error:
            self.failure = error
            raise

    def writelines(self, lines: Iterable[str]) -> None:
        """Write what is visible of the lines, which bring their line ends."""
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unescaped, name)


def unescaped(stream: Any) -> Any:
    """Return the stream that accepts control characters, for own drawing on a terminal."""
    return getattr(stream, "unescaped", stream)
