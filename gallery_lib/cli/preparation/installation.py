"""uv, which installs packages: getting it, how it links files, and what to say when it fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from gallery_lib.cli.preparation.children import Words, attend, starts
from gallery_lib.cli.preparation.progress import detail
from gallery_lib.errors import InputError


def find_uv(python: str, cache: Path) -> str:
    """Return the command of uv: that on PATH, or else one in an environment of its own.

    That environment is made with pip, and so with pip's configuration.
    """
    os.environ["UV_HTTP_TIMEOUT"] = os.environ.get("UV_HTTP_TIMEOUT") or "180"
    if starts(["uv", "--version"]):
        return "uv"
    own = cache / "uv-tool"
    uv = own / "bin" / "uv"
    if not starts([uv, "--version"]):
        detail("getting uv, which installs the packages")
        shutil.rmtree(own, ignore_errors=True)
        pip: Words = [own / "bin" / "pip", "install", "--quiet", "uv"]
        if attend([python, "-m", "venv", own]) != 0 or attend(pip) != 0:
            raise InputError(
                "uv could not be installed; the reason is above.\n"
                "    Without network or behind a proxy: set HTTPS_PROXY, or pip's index-url.\n"
                "    Or install uv yourself, and run this again."
            )
    return str(uv)


def choose_link_mode(uv: str, cache: Path) -> None:
    """Set UV_LINK_MODE to copy where uv's cache is on another file system than `cache`.

    uv links packages from its cache. Where it has to copy, it would warn.
    """
    if os.environ.get("UV_LINK_MODE"):
        return
    answer = subprocess.run([uv, "cache", "dir"], stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        return
    uv_cache = Path(answer.stdout.strip())
    uv_cache.mkdir(parents=True, exist_ok=True)
    probe, link = cache / "link-probe", uv_cache / f"gallery-link-probe.{os.getpid()}"
    probe.touch()
    try:
        os.link(probe, link)
    except OSError:
        os.environ["UV_LINK_MODE"] = "copy"
    for path in (probe, link):
        with contextlib.suppress(OSError):
            path.unlink()


def failure(*lines: str) -> InputError:
    """Return the error for packages that could not be installed, with `lines` as its end."""
    return InputError(
        "\n    ".join(
            [
                "the packages could not be installed; the reason is above.",
                "Without network or behind a proxy: set HTTPS_PROXY, or UV_DEFAULT_INDEX for a "
                "package index of your own.",
                'For "invalid peer certificate": UV_SYSTEM_CERTS=1 trusts what this machine '
                "trusts, SSL_CERT_FILE=FILE the certificates in FILE.",
                "Run the same command again afterwards: what was downloaded is kept.",
                *lines,
            ]
        )
    )
