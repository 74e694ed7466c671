"""Fixtures that the tests of benchmarks have in common."""

from __future__ import annotations

import importlib.util
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
    """Return a file of benchmarks/ as a module by its name, which a folder of tests may share."""
    monkeypatch.syspath_prepend(str(checkout / "benchmarks"))

    def load(name: str) -> Any:
        path = checkout / "benchmarks" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look for their module
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def command(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs a script of benchmarks/ with these words to its end."""
    monkeypatch.setenv("PYTHONPATH", search_path())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(script: str, *words: object, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        path = str(checkout / "benchmarks" / script)
        line = [sys.executable, path, *map(str, words)]
        return subprocess.run(line, capture_output=True, text=True, timeout=seconds)

    return run


@pytest.fixture
def needs_a_lab() -> None:
    """Skip the test where this machine cannot have a lab."""
    if reason := why_no_lab():
        pytest.skip(reason)
