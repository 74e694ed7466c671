"""Versions are looked up without importing a library."""

from __future__ import annotations

import importlib.metadata

from gallery_lib.system.version import library_version


def test_a_library_that_is_not_installed_has_no_version() -> None:
    assert library_version("numpy") == importlib.metadata.version("numpy")
    assert library_version("no-such-library") is None
