"""Commands of data_prep/ as a reader runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DATA_PREP = Path(__file__).resolve().parents[2] / "data_prep"
_SECONDS = 60


def data_command(name: str, *arguments: object) -> list[str]:
    """Return the words that run `data_prep/NAME.py` with these arguments."""
    return [sys.executable, str(DATA_PREP / f"{name}.py"), *map(str, arguments)]


def run_data_command(
    name: str,
    *arguments: object,
    cache: Path | None = None,
    folder: Path | None = None,
    user: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `data_prep/NAME.py` to its end and return how it ended.

    Args:
        name: of the command.
        arguments: its arguments.
        cache: the gallery's cache; None: that of this process.
        folder: the working directory; None: that of this process.
        user: runs it; None: this user.
    """
    environment = os.environ | ({"GALLERY_CACHE_DIR": str(cache)} if cache else {})
    return subprocess.run(
        data_command(name, *arguments),
        env=environment,
        cwd=folder,
        user=user,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
