"""Groups of real processes that the tests of this folder share: their start takes longest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ranks import Ranks


@pytest.fixture(scope="package")
def two() -> Iterator[Ranks]:
    with Ranks(processes=2, hosts=1) as running:
        yield running


@pytest.fixture(scope="package")
def two_by_two() -> Iterator[Ranks]:
    with Ranks(processes=4, hosts=2) as running:
        yield running
