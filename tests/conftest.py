"""What all tests share: the checkout's folder, and a folder of runs that is thrown away."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts pytest in the background makes it, and all that it starts, ignore the interrupts under test.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """The folder that holds pyproject.toml."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def runs_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test writes into the checkout's own runs/."""
    path = tmp_path / "runs"
    monkeypatch.setenv("GALLERY_RUNS_DIR", str(path))
    return path
