"""Folders that `prepare.sh` fills: in the checkout, or this user's own for another user's checkout.

`gallery_lib.system.paths` finds them by the same rule.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.system import paths


@dataclass(frozen=True)
class Folders:
    """Where things are kept. Those in the checkout are relative to it, as messages show them.

    `ours` says whether this user keeps things in the checkout.
    """

    root: Path
    environment: Path
    cache: Path
    runs: Path
    ours: bool


def folders_of(root: Path) -> Folders:
    """Return the folders for the checkout at `root`."""
    if paths.ours(root):
        return Folders(root, Path(".venv"), Path(".cache"), root / "runs", ours=True)
    user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    cache = Path(os.environ.get("GALLERY_CACHE_DIR") or Path(user_cache) / "gallery_lib")
    environment = cache / "environments" / str(root).replace(os.sep, "-")
    return Folders(root, environment, cache, Path.home() / "gallery-runs", ours=False)
