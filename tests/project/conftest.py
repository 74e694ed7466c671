"""Fixtures that the tests of benchmarks have in common."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def benchmark_module(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Return a file of benchmarks/ as a module, by its name."""
    monkeypatch.syspath_prepend(str(checkout / "benchmarks"))
    return importlib.import_module
