"""What the machine must have before the environment is made, and what is got for it.

As root on Debian and its kin, packages are installed. Elsewhere, what is lacking is named with its
remedy, all of it at once.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gallery_lib.cli.preparation.children import attend
from gallery_lib.cli.preparation.folders import Folders
from gallery_lib.cli.preparation.progress import detail

MIN_DISK_GIB = 8
"""The environment is 5.7 GiB with CUDA's libraries, shared with uv's cache by hard links."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Shortcoming:
    """Something that the machine lacks, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}\n        -> {self.remedy}"


@dataclass(frozen=True)
class Requirement:
    """Requirement that a Debian package meets."""

    is_met: Callable[[], bool]
    package: str
    shortcoming: Shortcoming


def _has_compiler() -> bool:
    """Return whether there is a C++ compiler. Inductor heeds CXX."""
    on_a_mac = sys.platform == "darwin" and shutil.which("clang++") is not None
    return on_a_mac or shutil.which(os.environ.get("CXX") or "g++") is not None


def _has_headers() -> bool:
    return Path(sysconfig.get_path("include"), "Python.h").is_file()


def _requirements(python: str) -> list[Requirement]:
    """Return what torch.compile needs: Inductor writes C++ and compiles it."""
    headers = f"python{sys.version_info[0]}.{sys.version_info[1]}-dev"
    return [
        Requirement(
            _has_compiler,
            "g++",
            Shortcoming(
                "no C++ compiler (torch.compile needs one)",
                "install one: apt-get install g++, or conda install cxx-compiler",
            ),
        ),
        Requirement(
            _has_headers,
            headers,
            Shortcoming(
                f"no Python.h for {python} (torch.compile needs it)",
                f"install its headers: apt-get install {headers}",
            ),
        ),
    ]


def _can_apt() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _apt_install(*packages: str) -> None:
    """Install Debian packages; refresh the package lists only when it fails without."""
    detail(f"apt-get install {' '.join(packages)}")
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    if attend(install, silent=True) != 0 and attend(["apt-get", "update", "-qq"]) == 0:
        attend(install, quiet=True)


def get_build_tools(python: str) -> list[Shortcoming]:
    """Install what torch.compile needs where that is possible; return what is still lacking."""
    unmet = [requirement for requirement in _requirements(python) if not requirement.is_met()]
    if unmet and _can_apt():
        _apt_install(*[requirement.package for requirement in unmet])
    return [requirement.shortcoming for requirement in unmet if not requirement.is_met()]


def _is_daemon(name: str) -> bool:
    """Return whether a command is here; daemons are in folders that not every PATH has."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is not None


def get_test_tools() -> None:
    """Install what some tests need, where that is possible: a browser, iproute2 and Slurm.

    Without these, the tests are skipped.
    """
    if not any(map(shutil.which, BROWSERS)):
        if _can_apt():
            _apt_install("chromium")
        if not shutil.which("chromium"):
            detail(
                "no chromium: the tests in a real browser will be skipped "
                "-> apt-get install chromium"
            )
    if not (shutil.which("ip") and shutil.which("tc")):
        if _can_apt():
            _apt_install("iproute2")
        if not shutil.which("ip"):
            detail(
                "no ip and tc: the tests of several hosts will be skipped "
                "-> apt-get install iproute2"
            )
    if not (_is_daemon("slurmctld") and _is_daemon("slurmd") and _is_daemon("munged")):
        if _can_apt():
            _apt_install("slurm-wlm", "munge")
        if not _is_daemon("slurmctld"):
            detail(
                "no Slurm: the tests of its jobs will be skipped -> apt-get install slurm-wlm munge"
            )


def disk_shortcoming(folders: Folders) -> list[Shortcoming]:
    """Return, in a list of one, that the disk is too full for an environment; else nothing."""
    folder = folders.root if folders.ours else folders.cache
    remedy = (
        "put the checkout on a larger disk"
        if folders.ours
        else "name a folder on a larger disk with GALLERY_CACHE_DIR"
    )
    needed = int(os.environ.get("PREPARE_MIN_DISK_GIB") or MIN_DISK_GIB)
    free = shutil.disk_usage(folder).free // 2**30
    if free >= needed:
        return []
    return [
        Shortcoming(
            f"only {free} GiB free below {folder}, {needed} are needed",
            f"free some space, or {remedy}",
        )
    ]
