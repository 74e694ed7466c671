"""Runners that the tests of batches share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest
from notebooks.batch.runner import Runner


@pytest.fixture(scope="module")
def runner_for(kernel: dict[str, str]) -> Callable[[], Runner]:
    return lambda: Runner(kernel, uuid.uuid4().hex)


@pytest.fixture
def runner(runner_for: Callable[[], Runner]) -> Iterator[Runner]:
    """Yield a Runner that has left nothing behind in the end, whatever happened."""
    one = runner_for()
    yield one
    for process in one.left():
        process.kill()
