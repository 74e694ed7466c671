"""Versions: of the gallery, whether a checkout or installed, and of libraries."""

from __future__ import annotations

import importlib.metadata
import platform
import tomllib

from gallery_lib.system import paths


def version() -> str:
    """Return the version that pyproject.toml declares."""
    if root := paths.checkout():
        return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "version"
        ]
    return importlib.metadata.version("gallery_lib")


def library_version(name: str) -> str | None:
    """Return the installed version of a library, None if it is not installed. Imports nothing."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def version_text() -> str:
    """Return a line for bug reports: `gallery_lib 0.1.0, torch 2.15.0, Python 3.12.1`.

    Imports no torch.
    """
    return (
        f"gallery_lib {version()}, torch {importlib.metadata.version('torch')}, "
        f"Python {platform.python_version()}"
    )
