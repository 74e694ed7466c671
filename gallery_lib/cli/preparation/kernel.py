"""The Jupyter kernel "Gallery" of an environment."""

from __future__ import annotations

from pathlib import Path

from gallery_lib.cli.preparation.children import attend
from gallery_lib.cli.preparation.progress import detail
from gallery_lib.errors import InputError


def registration(python: Path) -> list[str]:
    """Return the command that registers the kernel in the environment of `python`.

    The kernel's PATH begins with its environment, so that `!python` in a cell is the notebook's own
    Python.
    """
    command = [str(python), "-m", "ipykernel", "install", "--sys-prefix"]
    command += ["--name", "gallery", "--display-name", "Gallery"]
    return [*command, "--env", "PATH", f"{python.parent}:${{PATH}}"]


def register(python: Path) -> None:
    """Register the kernel.

    Raises:
        InputError: when that fails.
    """
    detail('registering the Jupyter kernel "Gallery"')
    if attend(registration(python), quiet=True) != 0:
        raise InputError("the Jupyter kernel could not be registered; the reason is above.")
