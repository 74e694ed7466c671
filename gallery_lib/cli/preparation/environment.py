"""The environment that `prepare.sh` prepares, and whether it is ready."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.cli.preparation.children import starts
from gallery_lib.cli.preparation.folders import Folders
from gallery_lib.cli.preparation.stamp import DEVELOPMENT, Stamp, digest, read_stamp, wanted_stamp

PROBE = Path(__file__).with_name("environment_probe.py")


@dataclass(frozen=True)
class Environment:
    """An environment as it is, and the stamp that it should have.

    `folder` is None for the active environment, which is not `prepare.sh`'s to make anew.
    """

    folder: Path | None
    python: Path
    stamp_file: Path
    stamp: Stamp
    wanted: Stamp
    ready: bool


def environment_of_checkout(folders: Folders, extra: str) -> Environment:
    """Return the environment of the checkout.

    In a checkout of another user, a user without an environment gets the owner's while that one is
    ready.
    """
    own, wanted = folders.environment, wanted_stamp(folders.root, extra)
    owners = Path(".venv")
    for folder in [own] if folders.ours or own.exists() else [owners, own]:
        python = folders.root / folder / "bin" / "python"
        environment = _inspect(folder, python, folder / "gallery-stamp", wanted, folders.root)
        if environment.ready:
            break
    return environment


def environment_of_active_python(folders: Folders, python: str, extra: str) -> Environment:
    """Return the environment of `python`, which runs this code."""
    prefix = digest(os.fsencode(folders.root), sys.prefix.encode())
    stamp_file = folders.cache / f"into-current-{prefix}"
    wanted = wanted_stamp(folders.root, extra)
    return _inspect(None, Path(python), stamp_file, wanted, folders.root)


def _inspect(
    folder: Path | None, python: Path, stamp_file: Path, wanted: Stamp, root: Path
) -> Environment:
    stamp = read_stamp(stamp_file)
    ready = stamp.suffices_for(wanted) and starts([python, "-P", PROBE, root])
    if stamp.extra == DEVELOPMENT:  # the tools for development stay
        wanted = dataclasses.replace(wanted, extra=DEVELOPMENT)
    return Environment(folder, python, stamp_file, stamp, wanted, ready)
