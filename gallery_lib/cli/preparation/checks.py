"""`--test`: the checks of the code, then all tests that need no GPU."""

from __future__ import annotations

import sys
from pathlib import Path

from gallery_lib.cli.preparation.children import attend, replace_by
from gallery_lib.cli.preparation.progress import detail, say

WRITTEN_FOLDERS = ("--extend-exclude", "runs", "--extend-exclude", ".cache")
PYTEST = ("-m", "pytest", "-m", "not gpu", "--durations=60", "--durations-min=15")


def _checks(root: Path) -> dict[str, list[str]]:
    """Return what Python is given for each check, by the name of the check."""
    checks = {
        "ruff check": ["-m", "ruff", "check", "--quiet", *WRITTEN_FOLDERS, "."],
        "ruff format": ["-m", "ruff", "format", "--quiet", "--check", *WRITTEN_FOLDERS, "."],
        "mypy": ["-m", "mypy", "--no-error-summary"],
        "rules of the house": ["-m", "tests.project.house"],
    }
    if notebooks := sorted((root / "notebooks").glob("*.ipynb")):
        names = [str(path.relative_to(root)) for path in notebooks]
        checks["no outputs in notebooks"] = ["-m", "nbstripout", "--verify", "--keep-id", *names]
    return checks


def check_code(python: Path, root: Path) -> bool:
    """Run every check; return whether all passed, and name those that failed."""
    failed = []
    for name, words in _checks(root).items():
        detail(name)
        if attend([python, *words]) != 0:
            failed.append(name)
    for name in failed:
        print(f"prepare.sh: failed: {name}", file=sys.stderr)
    if failed:
        say("The tests were not started.")
    return not failed


def run_tests(python: Path) -> int:
    """Execute pytest in the place of this process."""
    return replace_by([python, *PYTEST])
