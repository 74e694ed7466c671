"""Fixtures that the tests of benchmarks have in common."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster.conftest import why_no_lab

from gallery_lib.system.processes import search_path


@pytest.fixture
def benchmark_module(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a file of benchmarks/ as a module, by its name."""
    monkeypatch.syspath_prepend(str(checkout / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def command(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs benchmarks/ddp_lab.py with these words to its end."""
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setenv("GALLERY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words: str, seconds: float = 150) -> subprocess.CompletedProcess[str]:
        script = str(checkout / "benchmarks" / "ddp_lab.py")
        return subprocess.run(
            [sys.executable, script, *words], capture_output=True, text=True, timeout=seconds
        )

    return run


@pytest.fixture
def needs_a_lab() -> None:
    """Skip the test where this machine cannot have a lab."""
    if reason := why_no_lab():
        pytest.skip(reason)
