"""A fresh clone with an environment in `.venv`, as `prepare.sh` leaves them, and a plain shell.

The clone has the files that git tracks, as they are in the working tree. Its environment is a
`.venv` of its own around the packages that are installed for this interpreter, so that its commands
import the clone's `gallery_lib`. Mock data and compiler caches are those of the checkout. Nothing
is installed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.system import paths

SYSTEM_FOLDERS = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True)
class Clone:
    """A folder with the sources, and the home folder of its user."""

    root: Path
    home: Path

    def shell(self, command: str) -> list[str]:
        """Return the words of a shell that knows of no environment and runs the command.

        There is no activation and no PYTHONPATH, and PATH is the system's.
        """
        # The last folder is for machines whose system has no Python.
        search = ":".join([*SYSTEM_FOLDERS, str(Path(sys.base_prefix) / "bin")])
        variables = [f"HOME={self.home}", f"PATH={search}"]
        return ["env", "-i", *variables, "bash", "--norc", "--noprofile", "-c", command]

    def run(
        self, command: str, *, folder: Path | None = None, seconds: float = 560
    ) -> subprocess.CompletedProcess[str]:
        """Run the command as it stands in a shell that knows of no environment."""
        return subprocess.run(
            self.shell(command),
            cwd=folder or self.root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )


def _tracked_files(checkout: Path) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=checkout, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and (checkout / name).is_file()]


def _make_environment(root: Path, packages: Sequence[Path]) -> None:
    """Make `root/.venv`, with the commands that are installed here.

    Its Python finds `root` first and then `packages`.
    """
    venv, here = root / ".venv", Path(sys.prefix) / "bin"
    make = [sys.executable, "-m", "venv", "--without-pip", "--prompt", "gallery", str(venv)]
    subprocess.run(make, check=True, timeout=60)
    bases = {"base": str(venv), "platbase": str(venv)}
    lines = [f"{path}\n" for path in dict.fromkeys([root, *packages])]
    Path(sysconfig.get_path("purelib", "venv", vars=bases), "clone.pth").write_text("".join(lines))
    for command in here.iterdir():
        own = venv / "bin" / command.name
        if own.exists() or not command.is_file():
            continue
        if command.read_bytes()[:2] != b"#!":
            own.symlink_to(command)
            continue
        text = command.read_text(encoding="utf-8")  # a script, which names its interpreter
        for folder in (here, here.resolve()):
            text = text.replace(f"{folder}/python", f"{venv}/bin/python")
        own.write_text(text, encoding="utf-8")
        own.chmod(0o755)


def add_prepared(root: Path) -> None:
    """Add to the sources at `root` what `prepare.sh` makes.

    This is the environment, and `.cache` with the mock data.
    """
    _make_environment(root, [Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")])
    paths.cache_dir().mkdir(exist_ok=True)
    (root / ".cache").symlink_to(paths.cache_dir())


def fresh_clone(checkout: Path, folder: Path) -> Clone:
    """Return a clone, without an environment, in a folder with a space and an accent."""
    clone = Clone(folder / "mes modèles à moi", folder / "home")
    clone.home.mkdir()
    for name in _tracked_files(checkout):
        (clone.root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(checkout / name, clone.root / name)
    return clone
