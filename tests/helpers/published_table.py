"""The table that a page of `benchmarks/results/` would show of one file of figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_PRINTS = (
    "import json, sys, types; from {module} import {function}\n"
    "file = types.SimpleNamespace(content=json.load(open(sys.argv[1])))\n"
    "print({function}([file]))"
)


def table_of(figures: Path, module: str, function: str, checkout: Path) -> str:
    """Return the table that `function` of `benchmarks/<module>.py` makes of the file."""
    return subprocess.run(
        [sys.executable, "-c", _PRINTS.format(module=module, function=function), str(figures)],
        cwd=checkout / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(checkout), "PATH": "/usr/bin:/bin"},
    ).stdout
