"""Installation of an extra of pyproject.toml: `site`, `bench` or `dev`."""

from __future__ import annotations

import shlex
import shutil
import sys

from gallery_lib.system import paths


def install_command(extra: str) -> str:
    """Return a command that adds the packages of `extra` to this Python, from any folder.

    An environment that uv has made has no pip; prepare.sh puts a uv into the cache where PATH has
    none.
    """
    root, own_uv = paths.checkout(), paths.cache_dir() / "uv-tool" / "bin" / "uv"
    package = ["-e", f"{root}[{extra}]"] if root else [f"gallery_lib[{extra}]"]
    if uv := shutil.which("uv") or (str(own_uv) if own_uv.exists() else None):
        return shlex.join([uv, "pip", "install", "--python", sys.executable, *package])
    return shlex.join([sys.executable, "-m", "pip", "install", *package])
