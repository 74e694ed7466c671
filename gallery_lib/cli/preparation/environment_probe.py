"""Check, run by an environment's own Python, that the environment is complete.

    .venv/bin/python -P gallery_lib/cli/preparation/environment_probe.py ROOT

Ends with 0 where the Python finds the gallery in ROOT, the declared packages and the kernel. It
imports none of them, and so takes a fraction of a second.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import sys
from pathlib import Path


def is_complete(root: Path) -> bool:
    """Return whether this Python has what the gallery at `root` needs."""
    spec = importlib.util.find_spec("gallery_lib")
    if not (spec and spec.origin and root in Path(spec.origin).parents):
        return False
    for requirement in importlib.metadata.requires("gallery_lib") or []:
        name = re.match(r"[\w.-]+", requirement)
        if name and "extra ==" not in requirement:
            importlib.metadata.version(name[0])
    kernel = Path(sys.prefix, "share/jupyter/kernels/gallery/kernel.json")
    return '"PATH"' in kernel.read_text(encoding="utf-8")


if __name__ == "__main__":
    sys.exit(not is_complete(Path(sys.argv[1])))
