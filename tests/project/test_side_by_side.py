"""Tests of a file stay in one process of pytest-xdist, and large notebooks do not meet: that needs its groups to work."""

from __future__ import annotations

import os

import pytest


def test_this_test_is_in_the_group_of_its_file(request: pytest.FixtureRequest) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("there are no groups without pytest-xdist; run pytest without -n 0")
    assert request.node.nodeid.endswith(f"@{request.node.path}")
