"""Digests of the files of checkpoints: XXH3 where the package xxhash is installed, else SHA-256.

They find damage, so they need not withstand an attacker. XXH3 reads memory at its own speed, while
SHA-256 takes a training half a second of a core for a gigabyte.
"""

from __future__ import annotations

import hashlib
from typing import Any

try:
    import xxhash
except ImportError:  # not where only torch is
    xxhash = None  # type: ignore[assignment]

SHA, XXH3 = "sha256", "xxh3_128"
NAME = SHA if xxhash is None else XXH3
"""Which of the two new files get: the name of its field in `manifest.FileFacts`."""


class Missing(ImportError):
    """A digest cannot be computed, since a package is missing."""


def new(name: str) -> Any:
    """Return a digest to which bytes are added, as of `hashlib`; `name` is SHA or XXH3.

    Raises:
        Missing: xxhash is not installed.
    """
    if name == SHA:
        return hashlib.sha256()
    if xxhash is None:
        raise Missing("its digests are XXH3, and xxhash is not installed (pip install xxhash).")
    return xxhash.xxh3_128()
