"""Versions of the gallery and of libraries."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import tomllib

from gallery_lib.system import paths


def version() -> str:
    """Return the version that pyproject.toml declares."""
    if root := paths.checkout():
        declared = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
        return declared["project"]["version"]
    return importlib.metadata.version("gallery_lib")


def library_version(name: str) -> str | None:
    """Return the installed version of a library, None if it is not installed. Imports nothing."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


def version_text() -> str:
    """Return a line for bug reports: `gallery_lib 0.1.0, torch 2.15.0, Python 3.12.1`."""
    torch, python = importlib.metadata.version("torch"), platform.python_version()
    return f"gallery_lib {version()}, torch {torch}, Python {python}"
