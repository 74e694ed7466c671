"""Where compiled code is kept. Needs neither torch nor time."""

from __future__ import annotations

import os

from gallery_lib.paths import cache_dir


def environment() -> dict[str, str]:
    """Variables that keep Inductor's caches in the project's folder, unless the user has chosen another."""
    return {"TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "inductor"))}
