"""Fixtures of the tests of optimizers."""

from collections.abc import Iterator

import pytest
from own_operators import on_cpu_too

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    monkeypatch.setenv(KERNELS_VARIABLE, "1")
    with on_cpu_too():
        yield
