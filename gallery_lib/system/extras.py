"""Installation of an extra of pyproject.toml (`site`, `bench`, `dev`) with the tools present here.

An environment that uv has made has no pip. The uv that `prepare.sh` used may be on no PATH.
"""

from __future__ import annotations

import importlib.metadata
import shlex
import shutil
import sys

from gallery_lib.system import paths


def install_command(extra: str) -> str:
    """Return a command that adds the packages of `extra` to this Python.

    It can be pasted into a shell in any folder.
    """
    root = paths.checkout()
    if root is None:
        return shlex.join([sys.executable, "-m", "pip", "install", f"gallery_lib[{extra}]"])
    package = ["-e", f"{root}[{extra}]"]
    # prepare.sh puts a uv there where PATH has none.
    own_uv = root / ".cache" / "uv-tool" / "bin" / "uv"
    if uv := shutil.which("uv") or (str(own_uv) if own_uv.exists() else None):
        pinned = (
            ["-c", str(root / "requirements.lock")] if (root / "requirements.lock").exists() else []
        )
        return shlex.join([uv, "pip", "install", "--python", sys.executable, *package, *pinned])
    # Not by `find_spec`: setuptools takes a look for pip's module for pip at work, and then refuses
    # the compiler, which imports it.
    if any(importlib.metadata.distributions(name="pip")):
        return shlex.join([sys.executable, "-m", "pip", "install", *package])
    return shlex.join(["bash", str(root / "prepare.sh"), "--test"])
