"""`--lock`: write requirements.lock anew from pyproject.toml; pins are kept where they fit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gallery_lib.cli.preparation.children import attend
from gallery_lib.cli.preparation.installation import find_uv
from gallery_lib.cli.preparation.progress import say

HEADER = (
    "# Every package of the environment, with its version and hashes. "
    "Written by: bash prepare.sh --lock\n"
)
COMPILE_OPTIONS = (
    *("--universal", "--generate-hashes", "--python-version", "3.11"),
    *("--all-extras", "--no-header", "--no-emit-index-url"),
)


def write_lock(root: Path, python: str) -> int:
    """Write the file; return uv's exit code."""
    cache, lock = root / ".cache", root / "requirements.lock"
    cache.mkdir(exist_ok=True)
    uv = find_uv(python, cache)
    new = cache / "new.lock"
    new.unlink(missing_ok=True)
    if lock.exists():
        shutil.copyfile(lock, new)
    compile_command = [uv, "pip", "compile", "--quiet", *COMPILE_OPTIONS]
    code = attend([*compile_command, "--output-file", new, "pyproject.toml"], quiet=True)
    if code:
        return code
    text = new.read_text(encoding="utf-8")
    new.write_text(HEADER + text, encoding="utf-8")
    new.replace(lock)
    say(f"requirements.lock: {len(re.findall('^[a-zA-Z0-9]', text, re.MULTILINE))} packages")
    return 0
