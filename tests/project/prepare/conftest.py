"""Fixture with a copy of the checkout for each test of prepare.sh."""

from __future__ import annotations

from pathlib import Path

import pytest
from project.prepare.small_checkout import Checkout, small_checkout


@pytest.fixture
def copy(tmp_path: Path, checkout: Path) -> Checkout:
    """Return a small checkout where a test may run prepare.sh and break things."""
    return small_checkout(checkout, tmp_path)
