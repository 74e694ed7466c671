"""`--into-current`: install what the active environment lacks, and leave its torch alone."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

from gallery_lib.cli.preparation.children import attend, starts
from gallery_lib.cli.preparation.environment import Environment
from gallery_lib.cli.preparation.installation import failure
from gallery_lib.cli.preparation.progress import detail
from gallery_lib.cli.preparation.stamp import DEVELOPMENT
from gallery_lib.errors import InputError

KEPT = ("torch", "torchvision")
"""Packages that stay at the version that they have."""


def _declared(root: Path, extra: str) -> list[str]:
    """Return the requirements of pyproject.toml."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = project["optional-dependencies"].values() if extra == DEVELOPMENT else []
    return project["dependencies"] + [requirement for group in groups for requirement in group]


def _pins() -> list[str]:
    """Return the versions of KEPT that this Python has, as requirements."""
    pins = []
    for name in KEPT:
        try:
            pins.append(f"{name}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return pins


def _installer(python: Path) -> list[str]:
    """Return the command that installs packages for `python`, to which requirements are added."""
    if starts(["uv", "--version"]):
        return ["uv", "pip", "install", "--python", str(python)]
    if starts([python, "-m", "pip", "--version"]):
        return [str(python), "-m", "pip", "install"]
    raise InputError(
        "there is neither uv nor pip to install with.\n"
        f"    Install uv, or run: {python} -m ensurepip"
    )


def add_to(environment: Environment, root: Path, cache: Path) -> None:
    """Install what pyproject.toml declares into the active environment.

    Raises:
        InputError: for a failed installation.
    """
    environment.stamp_file.unlink(missing_ok=True)
    install = _installer(environment.python)
    required, kept = cache / "into-current-required", cache / "into-current-kept"
    pins = _pins()
    required.write_text(
        "".join(f"{line}\n" for line in _declared(root, environment.wanted.extra)),
        encoding="utf-8",
    )
    kept.write_text("".join(f"{line}\n" for line in pins), encoding="utf-8")
    if pins:
        detail(f"kept as they are: {' '.join(pins)}")
    if attend([*install, "-r", required, "-c", kept]) != 0:
        reason = (
            f"What had to stay as it is: {' '.join(pins)} - the gallery needs what pyproject.toml "
            "says."
        )
        raise failure(*([reason] if pins else []))
    if attend([*install, "--quiet", "--no-deps", "-e", "."]) != 0:
        raise failure()
