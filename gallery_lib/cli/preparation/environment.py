"""The Python environment: whether it is ready, and how uv makes it from requirements.lock.

The environment has a stamp, written last: three words for what it was made from, what it should
hold, and with which extra. Without one it is incomplete. A change of the first word means making it
anew, of the others installing on top. `--into-current` has no environment of its own, and adds to
the active one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import shutil
import sys
import sysconfig
import tomllib
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.cli.preparation.children import Words, attend, detail, starts
from gallery_lib.errors import InputError
from gallery_lib.system import paths
from gallery_lib.system.files import atomic_write

PLAIN, DEVELOPMENT = "plain", "dev"
"""The extras: the packages that the gallery needs, or all that pyproject.toml names."""
COMPILE_OPTIONS = (
    *("--universal", "--generate-hashes", "--python-version", "3.11", "--all-extras"),
    *("--no-emit-index-url", "--custom-compile-command", "bash prepare.sh --lock"),
)
_IS_COMPLETE = """
import os, sys
from importlib.util import find_spec
kernel = os.path.isfile(os.path.join(sys.prefix, "share/jupyter/kernels/gallery/kernel.json"))
packages = map(find_spec, ("torch", "torchvision", "jupyterlab", "gallery_lib"))
sys.exit(not (kernel and all(packages)))
"""


@dataclass(frozen=True)
class Folders:
    """Where things are kept: in the checkout, or in this user's own folders if it is another's.

    `gallery_lib.system.paths` finds them by the same rule. Those in the checkout are relative to
    it, as messages show them.
    """

    root: Path
    environment: Path
    cache: Path
    runs: Path
    ours: bool


def folders_of(root: Path) -> Folders:
    """Return the folders for the checkout at `root`."""
    if paths.ours(root):
        return Folders(root, Path(".venv"), Path(".cache"), root / "runs", ours=True)
    user_cache = os.environ.get("XDG_CACHE_HOME") or paths.home() / ".cache"
    cache = Path(os.environ.get("GALLERY_CACHE_DIR") or Path(user_cache) / "gallery_lib")
    environment = cache / "environments" / str(root).replace(os.sep, "-")
    return Folders(root, environment, cache, paths.home() / "gallery-runs", ours=False)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@dataclass(frozen=True)
class Environment:
    """An environment for the checkout at `root`, as it is.

    `folder` is None for the active environment, which is not `prepare.sh`'s to make anew. `stamp`
    are the words of the stamp, none where there is no whole one; `wanted` are those that it should
    have.
    """

    folder: Path | None
    python: Path
    stamp_file: Path
    stamp: list[str]
    wanted: list[str]

    def is_ready(self) -> bool:
        """Return whether nothing is left to install."""
        return self.stamp == self.wanted and starts([self.python, "-P", "-c", _IS_COMPLETE])

    def write_stamp(self) -> None:
        """Note that the environment is complete."""
        with atomic_write(self.stamp_file) as file:
            file.write(f"{' '.join(self.wanted)}\n")


def find_environment(folders: Folders, extra: str, *, into_current: bool) -> Environment:
    """Return the environment to prepare.

    In a checkout of another user, a user without an environment gets the owner's while that one is
    ready.
    """
    if into_current:
        prefix = _digest(os.fsencode(folders.root), sys.prefix.encode())
        stamp_file = folders.cache / f"into-current-{prefix}"
        return _environment(folders.root, None, Path(sys.executable), stamp_file, extra)
    own, owners = folders.environment, Path(".venv")
    for folder in [own] if folders.ours or own.exists() else [owners, own]:
        python = folders.root / folder / "bin" / "python"
        found = _environment(folders.root, folder, python, folder / "gallery-stamp", extra)
        if found.is_ready():
            break
    return found


def _environment(
    root: Path, folder: Path | None, python: Path, stamp_file: Path, extra: str
) -> Environment:
    stamp: list[str] = []
    with contextlib.suppress(OSError):  # there is none, or it is closed to this user
        stamp = stamp_file.read_text("utf-8", "replace").split()
    if stamp[2:] == [DEVELOPMENT]:  # the tools for development stay
        extra = DEVELOPMENT
    declared = [(root / name).read_bytes() for name in ("pyproject.toml", "requirements.lock")]
    made_from = _digest(os.fsencode(root), sys.version.encode())
    return Environment(folder, python, stamp_file, stamp, [made_from, _digest(*declared), extra])


def prepare(environment: Environment, cache: Path) -> None:
    """Install what the environment lacks, register the kernel, and write the stamp last.

    Raises:
        InputError: for a folder that `prepare.sh` has not made, and for a failed installation.
    """
    if environment.folder is None:
        _add_to_active(environment, cache)
    else:
        _make(environment, environment.folder, cache)
    if attend(kernel_command(environment.python), quiet=True) != 0:
        raise InputError("the Jupyter kernel could not be registered; the reason is above.")
    environment.write_stamp()


def _make(environment: Environment, folder: Path, cache: Path) -> None:
    """Make the environment in `folder` for this Python, or bring it up to date.

    The lock serves as constraints: each package must be in it, at its version and with its hash.
    Packages are compiled to bytecode here, once. Otherwise every process compiles them anew on a
    machine that keeps no bytecode (PYTHONDONTWRITEBYTECODE, or an environment that its users may
    not write to), and the import of torch and its compiler takes three times as long.
    """
    settings = folder / "pyvenv.cfg"
    if settings.is_file() and "prompt = gallery" not in settings.read_text("utf-8").splitlines():
        raise InputError(
            f"{folder} is there, but was not made by prepare.sh.\n"
            "    Move it away, or activate it and use --into-current."
        )
    uv, stamp, wanted = find_uv(cache), environment.stamp, environment.wanted
    # One that has all that is wanted and is not ready is damaged.
    anew = stamp[:1] != wanted[:1] or stamp == wanted or not starts([environment.python, "-c", ""])
    environment.stamp_file.unlink(missing_ok=True)
    if anew:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            detail(f"{folder} is incomplete or of another set-up: making it anew")
            shutil.rmtree(folder)
        venv: Words = [uv, "venv", "--quiet", "--python", sys.executable]
        _install([*venv, "--prompt", "gallery", folder], cache)
    install: Words = [uv, "pip", "install", "--python", environment.python]
    extras = ["--all-extras"] if wanted[2] == DEVELOPMENT else []
    packages = ["--compile-bytecode", "--require-hashes", "-r", "pyproject.toml", *extras]
    _install([*install, *packages, "-c", "requirements.lock"], cache)
    _install([*install, "--no-deps", "-e", "."], cache)
    write_path_in_ascii(next(folder.glob("lib/python*/site-packages"), folder))


def _add_to_active(environment: Environment, cache: Path) -> None:
    """Install what pyproject.toml declares; torch and torchvision stay at the version they have."""
    environment.stamp_file.unlink(missing_ok=True)
    install: Words = [sys.executable, "-m", "pip", "install"]
    if starts(["uv", "--version"]):
        install = ["uv", "pip", "install", "--python", sys.executable]
    pins = []
    for name in ("torch", "torchvision"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            pins.append(f"{name}=={importlib.metadata.version(name)}")
    kept = cache / "into-current-kept"
    kept.write_text("".join(f"{pin}\n" for pin in pins), encoding="utf-8")
    detail(f"kept as they are: {' '.join(pins) or 'nothing'}")
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ",".join(project["optional-dependencies"])
    package = f".[{extras}]" if environment.wanted[2] == DEVELOPMENT else "."
    _install([*install, "-c", kept, "-e", package], cache)
    write_path_in_ascii(Path(sysconfig.get_path("purelib")))


def _install(command: Words, cache: Path) -> None:
    """Run a command of an installation.

    Raises:
        InputError: when it fails.
    """
    if attend(command, log=cache / "installation.txt") != 0:
        raise InputError(
            "the packages could not be installed; the reason is above.\n"
            "    Without network or behind a proxy: set HTTPS_PROXY, or UV_DEFAULT_INDEX for a "
            "package index of your own.\n"
            '    For "invalid peer certificate": UV_SYSTEM_CERTS=1, or SSL_CERT_FILE=FILE.\n'
            "    Run the same command again afterwards: what was downloaded is kept."
        )


def find_uv(cache: Path) -> str:
    """Return the command of uv: that on PATH, or else one in an environment of its own.

    That environment is made with pip, and so with pip's configuration.

    Raises:
        InputError: when uv cannot be installed.
    """
    os.environ["UV_HTTP_TIMEOUT"] = os.environ.get("UV_HTTP_TIMEOUT") or "180"
    if paths.home() != Path(os.environ.get("HOME", "")):  # uv would keep its cache in the checkout
        os.environ.setdefault("UV_CACHE_DIR", str(cache / "uv"))
    if starts(["uv", "--version"]):
        return "uv"
    own = cache / "uv-tool"
    uv = own / "bin" / "uv"
    if not starts([uv, "--version"]):
        detail("getting uv, which installs the packages")
        shutil.rmtree(own, ignore_errors=True)
        pip: Words = [own / "bin" / "pip", "install", "-qq", "uv"]
        if attend([sys.executable, "-m", "venv", own]) != 0 or attend(pip) != 0:
            raise InputError(
                "uv could not be installed; the reason is above.\n"
                "    Without network or behind a proxy: set HTTPS_PROXY, or pip's index-url.\n"
                "    Or install uv yourself, and run this again."
            )
    return str(uv)


def write_path_in_ascii(site_packages: Path) -> None:
    """Write the path of the checkout, a line of a file in `site_packages`, with escapes.

    Python before 3.13 reads that file in the locale's encoding, and does not start where it cannot
    (LC_ALL=C and a folder `é`).
    """
    for file in site_packages.glob("*gallery_lib*.pth"):
        path = os.fsdecode(file.read_bytes()).rstrip()
        if not path.isascii():
            file.write_text(f"import sys; sys.path.append({path!a})\n", encoding="ascii")


def kernel_command(python: Path) -> list[str]:
    """Return the command that registers the kernel "Gallery" in the environment of `python`.

    The kernel's PATH begins with its environment, so that `!python` in a cell is the notebook's own
    Python.
    """
    command = [str(python), "-m", "ipykernel", "install", "--sys-prefix"]
    command += ["--name", "gallery", "--display-name", "Gallery"]
    return [*command, "--env", "PATH", f"{python.parent}:${{PATH}}"]


def write_lock(cache: Path) -> int:
    """Write requirements.lock anew from pyproject.toml; return uv's exit code."""
    cache.mkdir(exist_ok=True)
    compile_command: Words = [find_uv(cache), "pip", "compile", "--quiet", *COMPILE_OPTIONS]
    return attend([*compile_command, "-o", "requirements.lock", "pyproject.toml"], quiet=True)
