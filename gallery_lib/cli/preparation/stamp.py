"""The stamp of an environment, written last: an environment without one is incomplete.

A stamp is a line of three words: what the environment was made from, what it should hold, and with
which extra. A change of the first means making the environment anew, of the others installing on
top.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.system.files import atomic_write

PLAIN, DEVELOPMENT = "plain", "dev"
"""The extras: the packages that the gallery needs, or all that pyproject.toml names."""


@dataclass(frozen=True)
class Stamp:
    """The three facts; empty ones for an environment without a stamp."""

    made_from: str = ""
    content: str = ""
    extra: str = ""

    def suffices_for(self, wanted: Stamp) -> bool:
        """Return whether an environment with this stamp has what `wanted` says."""
        same = (self.made_from, self.content) == (wanted.made_from, wanted.content)
        return same and (wanted.extra != DEVELOPMENT or self.extra == DEVELOPMENT)


def digest(*parts: bytes) -> str:
    """Return a short digest of `parts`."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def wanted_stamp(root: Path, extra: str) -> Stamp:
    """Return the stamp of an environment that this Python makes of the checkout as it stands."""
    declarations = [(root / name).read_bytes() for name in ("pyproject.toml", "requirements.lock")]
    return Stamp(digest(os.fsencode(root), sys.version.encode()), digest(*declarations), extra)


def read_stamp(path: Path) -> Stamp:
    """Return the stamp in the file; an empty one when there is none, or another text."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return Stamp()
    return Stamp(*words) if len(words) == 3 else Stamp()


def write_stamp(path: Path, stamp: Stamp) -> None:
    """Write the file atomically."""
    with atomic_write(path) as file:
        file.write(f"{stamp.made_from} {stamp.content} {stamp.extra}\n")
