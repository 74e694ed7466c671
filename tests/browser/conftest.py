"""One JupyterLab and one browser for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium
from lab_page import Lab, started


@pytest.fixture(scope="module")
def lab(
    checkout: Path, kernel: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lab]:
    """Yield a JupyterLab in a copy of the notebooks."""
    with started(checkout, kernel, tmp_path_factory.mktemp("lab")) as one:
        yield one


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield a headless browser."""
    with chromium() as one:
        yield one
