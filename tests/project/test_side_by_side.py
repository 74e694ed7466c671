"""The groups of pytest-xdist work here: they keep the tests of a file in one process.

They also keep large notebooks from running at the same time.
"""

from __future__ import annotations

import os

import pytest


def test_this_test_is_in_the_group_of_its_file(request: pytest.FixtureRequest) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        pytest.skip("there are no groups without pytest-xdist; run pytest without -n 0")
    assert request.node.nodeid.endswith(f"@{request.node.path}")
