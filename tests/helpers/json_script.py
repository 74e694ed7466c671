"""What a script of the tests computes in a process of its own, and prints as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from gallery_lib.system.processes import search_path


def printed_by(script: Path, *options: str, timeout: float) -> dict[str, str]:
    """Return what the script prints, which must end well within `timeout` seconds."""
    done = subprocess.run(
        [sys.executable, str(script), *options],
        env=os.environ | {"PYTHONPATH": search_path()},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr
    printed: dict[str, str] = json.loads(done.stdout)
    return printed
