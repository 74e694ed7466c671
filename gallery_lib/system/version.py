"""Version of the gallery: that of the checkout, or of the installed package."""

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


def version_text() -> str:
    """Return a line for bug reports: `gallery_lib 0.1.0, torch 2.15.0, Python 3.12.1`.

    Imports no torch.
    """
    return (
        f"gallery_lib {version()}, torch {importlib.metadata.version('torch')}, "
        f"Python {platform.python_version()}"
    )
