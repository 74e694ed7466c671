"""Make `.venv` with uv from requirements.lock, or bring it up to date.

In a checkout of another user, the environment is a folder in the user's own cache.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from gallery_lib.cli.preparation.children import Words, attend, starts
from gallery_lib.cli.preparation.environment import Environment
from gallery_lib.cli.preparation.installation import choose_link_mode, failure, find_uv
from gallery_lib.cli.preparation.progress import detail
from gallery_lib.cli.preparation.stamp import DEVELOPMENT
from gallery_lib.errors import InputError


def _is_foreign(folder: Path) -> bool:
    """Return whether the folder is an environment that `prepare.sh` has not made."""
    settings = folder / "pyvenv.cfg"
    lines = settings.read_text(encoding="utf-8").splitlines() if settings.is_file() else None
    return lines is not None and "prompt = gallery" not in lines


def _must_be_made_anew(environment: Environment) -> bool:
    """Return whether installing on top would not do.

    It would not for an environment that is incomplete, of another Python, moved here from
    elsewhere, or damaged: one whose stamp has all that is wanted, and which is not ready.
    """
    return (
        environment.stamp.made_from != environment.wanted.made_from
        or not starts([environment.python, "-c", ""])
        or environment.stamp == environment.wanted
    )


def _remove(folder: Path) -> None:
    """Remove the folder, or a link in its place."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def make(environment: Environment, folder: Path, python: str, cache: Path) -> None:
    """Make the environment in `folder`, or bring it up to date, for the Python `python`.

    Raises:
        InputError: for a folder that `prepare.sh` has not made, and for a failed installation.
    """
    if _is_foreign(folder):
        raise InputError(
            f"{folder} is there, but was not made by prepare.sh.\n"
            "    Move it away, or activate it and use --into-current.",
            parameter=str(folder),
        )
    uv = find_uv(python, cache)
    choose_link_mode(uv, cache)
    anew = _must_be_made_anew(environment)
    environment.stamp_file.unlink(missing_ok=True)
    if anew:
        if folder.exists():
            detail(f"{folder} is incomplete or of another set-up: making it anew")
        _remove(folder)
        venv: Words = [uv, "venv", "--quiet", "--python", python, "--prompt", "gallery", folder]
        if attend(venv) != 0:
            raise failure()
    _install(uv, environment)


def _install(uv: str, environment: Environment) -> None:
    """Install what requirements.lock pins, then the gallery itself.

    The lock serves as constraints: each package must be in it, at its version and with its hash.
    Packages are compiled to bytecode here, once. Otherwise every process compiles them anew on a
    machine that keeps no bytecode (PYTHONDONTWRITEBYTECODE, or an environment that its users may
    not write to), and the import of torch and its compiler takes three times as long.
    """
    install: list[str | Path] = [uv, "pip", "install", "--python", environment.python]
    packages = [*install, "--compile-bytecode", "--require-hashes", "-r", "pyproject.toml"]
    if environment.wanted.extra == DEVELOPMENT:  # the tests cover what is optional too
        packages.append("--all-extras")
    if attend([*packages, "-c", "requirements.lock"]) != 0:
        raise failure()
    if attend([*install, "--quiet", "--no-deps", "-e", "."]) != 0:
        raise failure()
