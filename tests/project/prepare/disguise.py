"""An interpreter that seems to be another one: other owner, path or build.

`write_interpreter` writes a script that starts this Python. It is told what to seem by variables,
and a `sitecustomize`, which Python imports at its start, changes what it tells about itself.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

SITECUSTOMIZE = """
import os, sys, sysconfig

if path := os.environ.get("SEEMS_AT"):
    sys.executable = sys._base_executable = path
if "SEEMS_BUILT_WITH" in os.environ:
    sysconfig.get_config_vars()["CONFIG_ARGS"] = os.environ["SEEMS_BUILT_WITH"]
    sys.base_prefix = "/elsewhere"
if user := os.environ.get("SEEMS_USER"):
    os.geteuid = lambda: int(user)
"""


def write_interpreter(path: Path, folder: Path, **seems: str) -> None:
    """Write the script `path`, a Python with the variables `seems`; `folder` is for its files."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    lines = ["#!/usr/bin/env bash", f"export PYTHONPATH={shlex.quote(str(folder))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in seems.items()]
    lines.append(f'exec {shlex.quote(sys.executable)} "$@"')
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
