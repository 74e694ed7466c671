"""Style, types, and notebooks without outputs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRITTEN = ("--extend-exclude", "runs", "--extend-exclude", ".cache")
CHECKS = {
    "style": ("ruff", "check", "--quiet", *WRITTEN, "."),
    "form": ("ruff", "format", "--quiet", "--check", *WRITTEN, "."),
    "types": ("mypy", "--no-error-summary"),
    "notebooks": ("nbstripout", "--verify", "--keep-id"),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_code_passes(name: str, checkout: Path) -> None:
    files = map(str, checkout.glob("notebooks/*.ipynb")) if name == "notebooks" else ()
    words = [sys.executable, "-m", *CHECKS[name], *files]
    done = subprocess.run(words, cwd=checkout, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
