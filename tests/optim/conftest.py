"""Fixtures of the tests of optimizers."""

from collections.abc import Iterator

import pytest
from own_operators import on_cpu_too

from gallery_lib.config.switches import COMPILER_VARIABLE, KERNELS_VARIABLE


@pytest.fixture
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPILER_VARIABLE, "1")
    monkeypatch.setenv(KERNELS_VARIABLE, "1")


@pytest.fixture
def kernels(switched_on: None) -> Iterator[None]:
    with on_cpu_too():
        yield
