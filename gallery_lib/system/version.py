"""Versions of the gallery and of libraries, and how to install what is optional."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import shlex
import shutil
import sys
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


def install_command(extra: str) -> str:
    """Return a command that adds the packages of `extra` to this Python, from any folder.

    An environment that uv has made has no pip; prepare.sh puts a uv into the cache.
    """
    root, uv = paths.checkout(), paths.cache_dir() / "uv-tool" / "bin" / "uv"
    package = ["-e", f"{root}[{extra}]"] if root else [f"gallery_lib[{extra}]"]
    if found := shutil.which("uv") or (str(uv) if uv.exists() else None):
        return shlex.join([found, "pip", "install", "--python", sys.executable, *package])
    return shlex.join([sys.executable, "-m", "pip", "install", *package])
